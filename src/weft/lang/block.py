"""`Block`: one box of an application's index space, as its kernel sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from weft.lang.signature import Signature
from weft.space import ZRange

Attributes: TypeAlias = Mapping[str, Any]
"""What an application says beside its operands: numbers, names, and tuples of them."""


@dataclass(frozen=True, eq=False)
class Block:
    """What a kernel needs to know of the box that it computes.

    A kernel is called as `kernel(block, *operands)`. Each operand holds the image of the box under
    its projection, as far as that lies inside the array; what is given back, an array or a tuple
    of them, holds the images of the box in the results. A block is equal to itself alone, so that
    a kernel can cheaply remember what it worked out for it.

    >>> line = Signature.of("2*y+u-1, u -> y  sum: u", [(16,), (3,)], sizes={"y": 8})
    >>> block = Block(None, line, {}, ZRange((0, 0), (4, 3)))
    >>> print(block.image(0), block.operands[0], block.results[0], block.span("y"))
    [-1:8] [0:8] [0:4] range(0, 4)
    """

    xp: Any
    """The namespace of the arrays: NumPy, or any library that keeps the array API standard."""
    signature: Signature
    attributes: Attributes
    box: ZRange

    def span(self, name: str) -> range:
        """The part of an index dimension that lies in the box."""
        place = list(self.signature.sizes).index(name)
        return range(self.box.start[place], self.box.stop[place])

    def image(self, number: int) -> ZRange:
        """The image of the box in an operand, be it outside the array or not."""
        return self.signature.operands[number].image_by_dim(self.box)

    @cached_property
    def operands(self) -> tuple[ZRange, ...]:
        """The boxes of the operands that the kernel is given."""
        line = self.signature
        return tuple(p.region(self.box, s) for p, s in zip(line.operands, line.operand_shapes))

    @cached_property
    def results(self) -> tuple[ZRange, ...]:
        """The boxes of the results that the kernel makes."""
        line = self.signature
        return tuple(p.region(self.box, s) for p, s in zip(line.results, line.result_shapes))


Kernel: TypeAlias = Callable[..., Any]
"""Computes one box: `kernel(block, *operands)`."""
