"""`Cut`: how one dimension of a tensor is cut by axes of a mesh, in one piece or interleaved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

from weft.errors import LayoutError
from weft.layout import DeviceMesh
from weft.values import Point


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension made of groups, each cut in the same number of blocks.

    A plain shard has one group. In an interleaved one (fused QKV, pairs of gate and up) a chip
    holds its block of every group, one after the other. Blocks follow Weft's rule: of ceil(n / K),
    the last ones short or empty.

    >>> cut = Cut(1, (8, 4), axes=(0,), ways=(4,))
    >>> cut.size, list(cut.runs(1)), cut.local(1)
    (12, [(2, 4), (9, 10)], 3)
    """

    dim: int
    groups: Point
    axes: Point = ()
    ways: Point = ()

    @property
    def size(self) -> int:
        """The size of the dimension."""
        return sum(self.groups)

    @property
    def count(self) -> int:
        """In how many blocks each group is cut."""
        return prod(self.ways)

    @property
    def is_even(self) -> bool:
        """Whether all chips hold the same number of elements of every group."""
        return not any(size % self.count for size in self.groups)

    @property
    def is_regular(self) -> bool:
        """Whether the dimension is (groups, blocks, elements), all alike: a plain view of it."""
        return self.is_even and len(set(self.groups)) == 1

    def lengths(self, block: int) -> Point:
        """How much of each group a block holds."""
        whole = ((size, -(-size // self.count)) for size in self.groups)
        return tuple(min(size, (block + 1) * c) - min(size, block * c) for size, c in whole)

    def local(self, block: int) -> int:
        """How much of the dimension a chip holds."""
        return sum(self.lengths(block))

    def runs(self, block: int) -> Iterator[tuple[int, int]]:
        """The ranges that a block holds, group by group."""
        for low, high in pairwise(accumulate(self.groups, initial=0)):
            size, c = high - low, -(-(high - low) // self.count)
            yield low + min(size, block * c), low + min(size, (block + 1) * c)

    def padded(self) -> Cut:
        """The same with every group as large as its blocks are together."""
        groups = tuple(-(-size // self.count) * self.count for size in self.groups)
        return Cut(self.dim, groups, self.axes, self.ways)

    def coordinates(self, block: int) -> Iterator[tuple[int, int]]:
        """The axes with the coordinate that holds a block."""
        for axis, ways in zip(reversed(self.axes), reversed(self.ways)):
            block, at = divmod(block, ways)
            yield axis, at

    def told(self, mesh: DeviceMesh) -> str:
        """What is cut by what, for messages."""
        axes = " x ".join(f'"{mesh.axis_names[a]}"={n}' for a, n in zip(self.axes, self.ways))
        if len(self.axes) > 1:
            axes += f" = {self.count}"
        plural = "axes" if len(self.axes) > 1 else "axis"
        return f"dimension {self.dim} of size {self.size} is cut by mesh {plural} {axes}"

    def check_even(self, mesh: DeviceMesh) -> None:
        """Refuse blocks that are not all alike."""
        for number, size in enumerate(self.groups):
            if size % self.count:
                group = f"group {number} of {size} is" if len(self.groups) > 1 else "is"
                raise LayoutError(
                    f"{self.told(mesh)}, and {group} no multiple of it: "
                    f"{size} = {self.count} x {size // self.count} + {size % self.count}",
                    hint=f"pad to {self.padded().size} (uneven='pad'), "
                    "or allow short shards (uneven='ragged')",
                )
