"""Axes of a mesh, whole or in part, by number: where they join and where they clash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weft.errors import LayoutError
from weft.text.shardy import Axis, write_axis


class Slot(NamedTuple):
    """An axis or a part of one by numbers: the axis at `position`, the digit of `size` in it."""

    position: int
    before: int
    size: int


def join(slots: Iterable[Slot]) -> list[Slot]:
    """The slots with neighbouring digits of one axis joined: one sharding has one spelling.

    >>> join([Slot(0, 1, 2), Slot(0, 2, 4), Slot(1, 1, 3)])
    [Slot(position=0, before=1, size=8), Slot(position=1, before=1, size=3)]
    """
    joined: list[Slot] = []
    for slot in slots:
        last = joined[-1] if joined else None
        if last and last.position == slot.position and slot.before == last.before * last.size:
            joined[-1] = Slot(last.position, last.before, last.size * slot.size)
        else:
            joined.append(slot)
    return joined


def check_apart(uses: Iterable[tuple[Slot, Axis, str]]) -> None:
    """Refuse two uses of one axis, or of parts of it that are not different digits.

    Each use is a slot, its axis and what it does there: `cuts dimension 0`.
    """
    seen: dict[int, list[tuple[Slot, Axis, str]]] = {}
    for slot, axis, role in uses:
        for other, other_axis, other_role in seen.setdefault(slot.position, []):
            major, minor = sorted((slot, other))
            if slot == other:
                both = f"{role} twice" if role == other_role else f"{other_role} and {role}"
                raise LayoutError(f"axis {write_axis(axis)} {both}")
            if minor.before % (major.before * major.size):
                raise LayoutError(
                    f"axes {write_axis(other_axis)} and {write_axis(axis)} overlap: "
                    f"the first {other_role}, the second {role}"
                )
        seen[slot.position].append((slot, axis, role))
