"""The figure of an operator: its index space, and the box of every array for an index box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.draw.drawing import Drawing, Item, Label, clip, extent, moved
from weft.draw.panels import Patch, draw_patches
from weft.draw.rows import arrow
from weft.draw.scale import Scale, limits
from weft.values import Point

WIDTH = 112
"""Panels wrap to a new row of panels at this column."""

ARROW_ROW = 3
"""The row of the arrow: in the middle of the first row of boxes, below a title and a ruler."""


class ArrayPanel(NamedTuple):
    """An array of the figure, or the index space, and the boxes in it."""

    title: str
    shape: Point
    patches: Sequence[Patch]

    def drawing(self) -> Drawing:
        """Draw the boxes inside an outline of the array."""
        whole = Patch((0,) * len(self.shape), self.shape, tone=None)
        full = [p for p in (whole, *self.patches) if all(map(int.__lt__, p.start, p.stop))]
        corners = [whole.start, whole.stop, *(at for p in full for at in (p.start, p.stop))]
        scales = list(map(Scale.through, zip(*corners), limits(len(self.shape))))
        return draw_patches(full, scales, self.title)


def draw_figure(
    operator: str,
    index: ArrayPanel,
    operands: Iterable[ArrayPanel],
    results: Iterable[ArrayPanel],
    title: str = "",
    notes: Sequence[str] = (),
) -> Drawing:
    """Draw operands, an arrow with the operator and results in a row, and the index space below."""
    flow = _Flow()
    for operand in operands:
        flow.add_panel(operand)
    flow.add(arrow(operator, 0, ARROW_ROW))
    for result in results:
        flow.add_panel(result)
    flow.new_row()
    flow.add_panel(index)
    remarks = dict.fromkeys([*notes, *flow.notes])
    return Drawing(tuple(flow.items), clip(title), tuple(remarks))


class _Flow:
    """Items in rows, each beside the last as long as it fits."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.notes: list[str] = []
        self.x = self.y = self.height = 0

    def add_panel(self, panel: ArrayPanel) -> None:
        drawing = panel.drawing()
        self.notes += drawing.notes
        self.add([Label(0, 0, clip(drawing.title, 60)), *moved(drawing.items, 0, 1)])

    def add(self, items: Sequence[Item]) -> None:
        width, height = extent(items)
        if self.x and self.x + width > WIDTH:
            self.new_row()
        self.items += moved(items, self.x, self.y)
        self.x, self.height = self.x + width + 3, max(self.height, height)

    def new_row(self) -> None:
        self.x, self.y, self.height = 0, self.y + self.height + 2, 0
