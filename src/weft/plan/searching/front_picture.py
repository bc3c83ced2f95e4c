"""A plot of a front: one point a plan, the first objective across and the second up."""

from __future__ import annotations

from collections.abc import Sequence

from weft.draw import Drawing, Item, Label, Line, Rect

WIDE, TALL = 56, 16
"""Columns and rows of the plot."""

MOST = 60
"""Points that are drawn."""


def draw_front(
    objectives: Sequence[str], points: Sequence[Sequence[float]], units: Sequence[str]
) -> Drawing:
    """The points, each with its number; those of one tone are alike in the last objective."""
    if not points:
        return Drawing((), "an empty front")
    across = _Axis([p[0] for p in points], WIDE)
    up = _Axis([p[1] if len(p) > 1 else 0.0 for p in points], TALL)
    left = 12
    items: list[Item] = [
        Line(left, 0, left, TALL + 1),
        Line(left, TALL + 1, left + WIDE + 2, TALL + 1),
    ]
    taken = set[tuple[int, int]]()
    tones = _tones([p[-1] for p in points])
    for number, point in enumerate(points[:MOST]):
        x = left + 2 + across.at(point[0])
        y = TALL - 1 - up.at(point[1] if len(point) > 1 else 0.0)
        if len(str(number)) == 1 or not taken & {(x, y), (x + 1, y)}:
            items.append(Rect(x, y, 2, 1, "", tones[number]))
            items.append(Label(x + 1, y, str(number)))
        taken |= {(x, y), (x + 1, y)}
    items += _ticks(across, up, left, units)
    title = f"{len(points)} plans: {objectives[0]} across"
    title += f", {objectives[1]} up" if len(objectives) > 1 else ""
    notes = [f"one tone, the same {objectives[2]}"] if len(objectives) > 2 else []
    return Drawing(tuple(items), title, tuple(notes))


def _ticks(across: _Axis, up: _Axis, left: int, units: Sequence[str]) -> list[Item]:
    unit = units[1] if len(units) > 1 else ""
    return [
        Label(left - 1, 1, scaled(up.high, unit), "end"),
        Label(left - 1, TALL - 1, scaled(up.low, unit), "end"),
        Label(left, TALL + 2, scaled(across.low, units[0])),
        Label(left + WIDE + 2, TALL + 2, scaled(across.high, units[0]), "end"),
    ]


class _Axis:
    """From numbers to places."""

    def __init__(self, numbers: Sequence[float], length: int) -> None:
        self.low, self.high, self.length = min(numbers), max(numbers), length

    def at(self, number: float) -> int:
        if self.high <= self.low:
            return self.length // 2
        return round((number - self.low) / (self.high - self.low) * (self.length - 2))


def _tones(numbers: Sequence[float]) -> list[int]:
    order = sorted(set(numbers))
    return [order.index(number) for number in numbers]


def scaled(number: float, unit: str) -> str:
    """A number with its unit, short.

    >>> scaled(0.00123, "s"), scaled(4096, "B"), scaled(12_345_678, "B")
    ('1.23 ms', '4096 B', '12.3 MB')
    """
    if unit == "B":
        return _large(number, unit) if number >= 100_000 else f"{number:.0f} B"
    for power, name in ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if number >= power:
            return f"{number / power:.3g} {name}{unit}"
    return f"{number:.3g} {unit}"


def _large(number: float, unit: str) -> str:
    for power, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {name}{unit}"
    return f"{number:.0f} {unit}"
