"""Applications of operators in rows: values as boxes, and the operator on an arrow between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.draw.drawing import Item, Label, Line, Rect, clip

ROW_HEIGHT = 5
"""Text rows of one application: a box of three, a line below, an empty one."""

MAX_COLUMNS = 40
"""The most columns of a line under a box or an arrow."""

MAX_VALUES = 4
"""The most operands, and the most results, of one application that are drawn."""


class ValueBox(NamedTuple):
    """A value: a box with its text, and a line below it."""

    text: str
    below: str
    tone: int


class ApplicationRow(NamedTuple):
    """An application: operands, the operator with lines below its arrow, results."""

    operands: Sequence[ValueBox]
    operator: str
    below: Sequence[str]
    results: Sequence[ValueBox]

    def items(self, x: int, y: int) -> list[Item]:
        """Return the drawn row, from a column and a row on."""
        items: list[Item] = []
        for box in self.operands[:MAX_VALUES]:
            x = _add_value(items, box, x, y)
        if len(self.operands) > MAX_VALUES:
            items.append(Label(x, y + 1, f"+ {len(self.operands) - MAX_VALUES} more"))
            x += 10
        lines = [clip(line, MAX_COLUMNS) for line in self.below]
        start = max(0, x - 1)
        items += arrow(self.operator, start, y + 1, max(map(len, lines), default=0) - 4)
        items += [Label(start + 2, y + 2 + n, line) for n, line in enumerate(lines) if line]
        x = start + max(len(clip(self.operator, 24)) + 4, *map(len, lines), 0) + 3
        for box in self.results[:MAX_VALUES]:
            x = _add_value(items, box, x, y)
        return items


def _add_value(items: list[Item], box: ValueBox, x: int, y: int) -> int:
    """Draw a value, and return the next free column."""
    text, below = clip(box.text, 32), clip(box.below, MAX_COLUMNS)
    width = max(len(text), len(below)) + 3
    items += [Rect(x, y, width, 2, text, box.tone), Label(x + 2, y + 3, below)]
    return x + width + 2


def arrow(name: str, x: int, y: int, least: int = 0) -> list[Item]:
    """Return an arrow with a name on it; `least` is the length of a name that would fill it."""
    label = clip(name, 24)
    end = x + max(len(label), least) + 6
    if not label:
        return [Line(x, y, end - 2, y, arrow=True)]
    after = x + len(label) + 4
    return [Line(x, y, x + 1, y), Label(x + 3, y, label), Line(after, y, end, y, arrow=True)]


def first_and_last(count: int, most: int) -> list[int]:
    """Return the numbers that are drawn of `count`: all, or the first and the last.

    >>> first_and_last(3, 4), first_and_last(9, 4)
    ([0, 1, 2], [0, 1, 7, 8])
    """
    if count <= most:
        return list(range(count))
    return [*range(most // 2), *range(count - most // 2, count)]
