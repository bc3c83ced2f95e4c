"""`halve`: a box in two halves, for kernels that would need too much room for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.lang.block import Block, Kernel
from weft.lang.kernels.monoids import combine
from weft.space import ZRange


@dataclass(frozen=True, slots=True)
class Halves:
    """Two blocks that make up one: their results lie side by side, or are combined."""

    whole: Block
    parts: tuple[Block, Block]
    monoid: str
    """What combines the results; nothing where they lie side by side."""
    axes: tuple[int, ...]
    """For each result the axis along which its halves lie."""

    def run(self, kernel: Kernel, operands: Sequence[Any]) -> Any:
        """What a kernel makes of both, put together."""
        found = []
        for part in self.parts:
            boxes = zip(operands, part.operands, self.whole.operands)
            taken = [x[_within(box, have)] for x, box, have in boxes]
            made = kernel(part, *taken)
            found.append(tuple(made) if isinstance(made, tuple | list) else (made,))
        results = [self._together(n, pair) for n, pair in enumerate(zip(*found))]
        return results[0] if len(results) == 1 else tuple(results)

    def _together(self, number: int, pair: Sequence[Any]) -> Any:
        xp = self.whole.xp
        if self.monoid:
            return combine(xp, self.monoid, pair)
        return xp.concat(pair, axis=self.axes[number])


def _within(box: ZRange, have: ZRange) -> tuple[slice, ...]:
    return box.slices(box.start if box.is_empty else have.start)


def halve(block: Block) -> Halves | None:
    """The block in two, along the longest dimension that can be cut; None if there is none.

    >>> from weft.lang import OPERATORS
    >>> line = OPERATORS["matmul"].sign([(8, 16), (16, 4)])
    >>> halves = halve(Block(None, line, {}, line.space))
    >>> print(*(part.box for part in halves.parts), halves.monoid)
    [0:8, 0:4, 0:8] [0:8, 0:4, 8:16] sum
    """
    for name in sorted(block.signature.sizes, key=lambda name: -len(block.span(name))):
        if len(block.span(name)) < 2:
            return None
        if name in block.signature.fixed:
            continue
        monoid, axes = block.signature.notation.reduced.get(name, ""), _axes(block, name)
        may_add = monoid and name in block.signature.reduced and not block.signature.notation.once
        if may_add or (not monoid and axes is not None):
            return Halves(block, _cut(block, name), monoid, axes or ())
    return None


def _axes(block: Block, name: str) -> tuple[int, ...] | None:
    """For each result the one axis that a dimension is; None where it is not so simple."""
    found = []
    for rows in block.signature.notation.results:
        axes = [axis for axis, row in enumerate(rows) if name in row.dims]
        if len(axes) != 1 or rows[axes[0]].plain is None:
            return None
        found.append(axes[0])
    return tuple(found)


def _cut(block: Block, name: str) -> tuple[Block, Block]:
    place = list(block.signature.sizes).index(name)
    low, high = block.box.start[place], block.box.stop[place]
    start, stop = list(block.box.start), list(block.box.stop)
    stop[place] = start[place] = (low + high) // 2
    boxes = ZRange(block.box.start, stop), ZRange(start, block.box.stop)
    first, second = (Block(block.xp, block.signature, block.attributes, box) for box in boxes)
    return first, second
