"""`BlockGrid`: the one rule for cutting a shape into blocks.

Devices, chunks, shards, tiles and pages are all blocks of a grid. A dimension is cut in one of
three ways: into K blocks of ceil(n / K), the last of which may be short or empty (devices); into as
many blocks of a given extent as it takes (chunks); or at given edges (ragged).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from weft.errors import LayoutError, WeftError
from weft.space.zrange import ZRange, unchecked, unchecked_all
from weft.values import Point, as_point, as_shape, counted
from weft.values import points as points_between


@dataclass(frozen=True, slots=True)
class BlockClass:
    """Consecutive blocks of one dimension that have the same extent, or of which a range takes it.

    >>> BlockGrid.cut((9,), (4,)).classes(0)[0]
    BlockClass(first=0, count=3, extent=3, offset=0)
    """

    first: int
    """The number of the first of them."""
    count: int
    extent: int
    offset: int = 0
    """Where the extent begins inside each block: 0 unless a range starts inside a block."""


@dataclass(frozen=True, slots=True, init=False)
class BlockGrid:
    """A shape cut into blocks, dimension by dimension.

    Block `k` of a regular dimension of size n is [min(k·c, n), min((k+1)·c, n)) for blocks of c.

    >>> grid = BlockGrid.cut((8, 10), (2, 4))
    >>> grid.block_shape, grid.counts
    ((4, 3), (2, 4))
    >>> print(grid.box((1, 3)))
    [4:8, 9:10]
    >>> BlockGrid.blocks((8, 10), (4, 4)).counts
    (2, 3)
    >>> print(*BlockGrid.at_edges([(0, 1, 8)]).boxes())
    [0:1] [1:8]
    """

    shape: Point
    counts: Point
    """The number of blocks along each dimension."""
    block_shape: Point
    """The shape of the largest block."""
    edges: tuple[Point | None, ...]
    """Where each dimension is cut, 0 and its size included; None where it is cut regularly."""

    def __init__(
        self,
        shape: Point,
        counts: Point,
        block_shape: Point,
        edges: tuple[Point | None, ...] | None = None,
    ) -> None:
        _SET_SHAPE(self, shape)
        _SET_COUNTS(self, counts)
        _SET_BLOCK_SHAPE(self, block_shape)
        _SET_EDGES(self, (None,) * len(shape) if edges is None else edges)

    @classmethod
    def cut(
        cls,
        shape: Iterable[int],
        counts: Iterable[int],
        points: Sequence[Point | None] | None = None,
    ) -> BlockGrid:
        """Cut each dimension into a number of blocks, as meshes do: the last may be empty.

        A dimension may be cut at given points instead, one fewer than its blocks.

        >>> grid = BlockGrid.cut((8, 10), (2, 3), [None, (7, 9)])
        >>> print(grid, BlockGrid.cut((8,), (2,), [(4,)]).edges)
        [8 by 4, 10 at [0, 7, 9, 10]] (None,)
        """
        sizes = as_shape(shape)
        numbers = as_point(counts, "counts", len(sizes))
        for dim, count in enumerate(numbers):
            if count < 1:
                raise LayoutError(f"dimension {dim} is cut into {count} blocks; 1 is the fewest")
        extents = tuple(-(-n // count) for n, count in zip(sizes, numbers))
        regular = cls(sizes, numbers, extents)
        if points is None or not any(points):
            return regular
        edges: list[Point | None] = []
        for dim, (n, at) in enumerate(zip(sizes, points)):
            given = None if at is None else (0, *at, n)
            if given is not None:
                if len(given) != numbers[dim] + 1 or any(a > b for a, b in pairwise(given)):
                    raise LayoutError(
                        f"dimension {dim} of size {n} cannot be cut at {list(given[1:-1])} into "
                        f"{counted(numbers[dim], 'block')}: cut points rise from 0 to {n}"
                    )
                given = None if given == tuple(regular.edges_of(dim)) else given
            edges.append(given)
        largest = tuple(
            extent if at is None else max(b - a for a, b in pairwise(at))
            for extent, at in zip(extents, edges)
        )
        return cls(sizes, numbers, largest, tuple(edges))

    @classmethod
    def blocks(cls, shape: Iterable[int], block_shape: Iterable[int]) -> BlockGrid:
        """Cut into blocks of one shape, as many as it takes: those at the edge may be short."""
        sizes = as_shape(shape)
        extents = as_point(block_shape, "block shape", len(sizes))
        for dim, extent in enumerate(extents):
            if extent < 1:
                raise LayoutError(f"dimension {dim} of block shape {extents} is below 1")
        return cls(sizes, tuple(-(-n // extent) for n, extent in zip(sizes, extents)), extents)

    @classmethod
    def at_edges(cls, edges: Iterable[Iterable[int]]) -> BlockGrid:
        """Cut at given edges: 0, then where each block ends, the last at the dimension's size."""
        every = tuple(as_point(each, "edges") for each in edges)
        for dim, each in enumerate(every):
            if len(each) < 2 or each[0] != 0 or any(a > b for a, b in pairwise(each)):
                raise LayoutError(f"dimension {dim}: edges rise from 0 to the size, got {each}")
        return cls(
            tuple(each[-1] for each in every),
            tuple(len(each) - 1 for each in every),
            tuple(max(b - a for a, b in pairwise(each)) for each in every),
            every,
        )

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of blocks."""
        return prod(self.counts)

    @property
    def is_even(self) -> bool:
        """Whether all blocks have the same shape.

        >>> BlockGrid.cut((8,), (4,)).is_even, BlockGrid.cut((9,), (4,)).is_even
        (True, False)
        """
        return all(
            count < 2 or (extent * count == size if edges is None else len(self.classes(dim)) < 2)
            for dim, (size, count, extent, edges) in enumerate(
                zip(self.shape, self.counts, self.block_shape, self.edges)
            )
        )

    def span(self, dim: int, block: int) -> tuple[int, int]:
        """Return where a block begins and ends along one dimension.

        >>> BlockGrid.cut((9,), (4,)).span(0, 3)
        (9, 9)
        """
        edges = self.edges[dim]
        if edges is not None:
            return edges[block], edges[block + 1]
        size, low = self.shape[dim], self.block_shape[dim] * block
        return min(low, size), min(low + self.block_shape[dim], size)

    def box(self, block: Sequence[int]) -> ZRange:
        """Return the box of a block, given its number along every dimension."""
        if len(block) != len(self.shape):
            raise LayoutError(f"block {tuple(block)} of a grid of rank {self.ndim}")
        for dim, (number, count) in enumerate(zip(block, self.counts)):
            if not 0 <= number < count:
                raise LayoutError(f"dimension {dim} has no block {number}: it is cut into {count}")
        return self.unchecked_box(block)

    def unchecked_box(self, block: Sequence[int]) -> ZRange:
        """Return the box of a block that is known to exist."""
        start: list[int] = []
        stop: list[int] = []
        for number, size, extent, edges in zip(block, self.shape, self.block_shape, self.edges):
            if edges is None:  # as `span`, inlined for speed
                low = extent * number
                high = low + extent
                start.append(low if low < size else size)
                stop.append(high if high < size else size)
            else:
                start.append(edges[number])
                stop.append(edges[number + 1])
        return unchecked(tuple(start), tuple(stop))

    def boxes(self) -> list[ZRange]:
        """Return the boxes of all blocks in row-major order: they tile the shape."""
        cuts = list(map(self.edges_of, range(self.ndim)))
        starts, stops = product(*(c[:-1] for c in cuts)), product(*(c[1:] for c in cuts))
        return unchecked_all(self.size, starts, stops)

    def edges_of(self, dim: int) -> Sequence[int]:
        """Return where a dimension is cut, 0 and its size included.

        >>> BlockGrid.cut((9,), (4,)).edges_of(0)
        [0, 3, 6, 9, 9]
        """
        edges = self.edges[dim]
        if edges is not None:
            return edges
        size, count = self.shape[dim], self.counts[dim]
        starts = list(range(0, size, self.block_shape[dim] or 1))
        return starts + [size] * (count + 1 - len(starts))

    def block_of(self, point: Iterable[int]) -> Point:
        """Return the block that holds a point of the shape.

        >>> BlockGrid.cut((9,), (4,)).block_of((8,))
        (2,)
        """
        at = as_point(point, "point", self.ndim)
        for dim, (x, n) in enumerate(zip(at, self.shape)):
            if not 0 <= x < n:
                raise LayoutError(f"dimension {dim} of size {n} has no coordinate {x}")
        return tuple(map(self._block_at, range(self.ndim), at))

    def _block_at(self, dim: int, x: int) -> int:
        edges = self.edges[dim]
        return x // self.block_shape[dim] if edges is None else bisect_right(edges, x) - 1

    def overlaps(self, dim: int, low: int, high: int) -> range:
        """Return the numbers of the blocks that meet [low, high) along one dimension.

        >>> BlockGrid.blocks((9,), (4,)).overlaps(0, 3, 5)
        range(0, 2)
        """
        low, high = max(low, 0), min(high, self.shape[dim])
        if high <= low:
            return range(0)
        return range(self._block_at(dim, low), self._block_at(dim, high - 1) + 1)

    def meeting(self, box: ZRange) -> Iterator[Point]:
        """Return the blocks that a box meets, the last dimension running fastest.

        >>> list(BlockGrid.blocks((9, 4), (4, 4)).meeting(ZRange((3, 0), (5, 9))))
        [(0, 0), (1, 0)]
        """
        sides = list(map(self.overlaps, range(self.ndim), box.start, box.stop))
        return points_between(
            tuple(side.start for side in sides), tuple(side.stop for side in sides)
        )

    def widen(self, box: ZRange) -> ZRange:
        """Return the smallest box of whole blocks that holds what lies inside the shape of a box.

        >>> print(BlockGrid.blocks((9,), (4,)).widen(ZRange((5,), (20,))))
        [4:9]
        """
        if box.ndim != self.ndim:
            raise WeftError(f"{box} is not a box of rank {self.ndim}")
        inside = box & ZRange.of(self.shape)
        if inside.is_empty:
            return inside
        sides = [
            self.overlaps(dim, low, high)
            for dim, (low, high) in enumerate(zip(inside.start, inside.stop))
        ]
        return unchecked(
            tuple(self.span(dim, side[0])[0] for dim, side in enumerate(sides)),
            tuple(self.span(dim, side[-1])[1] for dim, side in enumerate(sides)),
        )

    def count_meeting(self, box: ZRange) -> int:
        """Return how many blocks a box meets, without listing them."""
        return prod(map(len, map(self.overlaps, range(self.ndim), box.start, box.stop)))

    def neighbours(self, block: Sequence[int]) -> Iterator[Point]:
        """Return the blocks that share a face with a block.

        >>> list(BlockGrid.cut((9, 9), (3, 3)).neighbours((0, 1)))
        [(1, 1), (0, 0), (0, 2)]
        """
        at = tuple(block)
        for dim, count in enumerate(self.counts):
            for near in (at[dim] - 1, at[dim] + 1):
                if 0 <= near < count:
                    yield (*at[:dim], near, *at[dim + 1 :])

    def ravel(self, block: Sequence[int]) -> int:
        """Return the number of a block in row-major order.

        >>> grid = BlockGrid.cut((8, 10), (2, 4))
        >>> grid.ravel((1, 2)), grid.unravel(6)
        (6, (1, 2))
        """
        number = 0
        for place, count in zip(block, self.counts):
            number = number * count + place
        return number

    def unravel(self, number: int) -> Point:
        """Return the block with a number in row-major order."""
        block = []
        for count in reversed(self.counts):
            number, place = divmod(number, count)
            block.append(place)
        return tuple(reversed(block))

    def classes_meeting(self, dim: int, low: int, high: int) -> list[BlockClass]:
        """Return what [low, high) takes of the blocks of a dimension, equal neighbours together.

        A regular dimension has at most three classes: the rest of the first block, whole blocks,
        and the beginning of the last one.

        >>> for each in BlockGrid.blocks((20,), (4,)).classes_meeting(0, 3, 14):
        ...     print(each)
        BlockClass(first=0, count=1, extent=1, offset=3)
        BlockClass(first=1, count=2, extent=4, offset=0)
        BlockClass(first=3, count=1, extent=2, offset=0)
        """
        found: list[BlockClass] = []
        for block in self.overlaps(dim, low, high):
            start, stop = self.span(dim, block)
            offset, extent = max(low - start, 0), min(high, stop) - max(low, start)
            if found and (found[-1].offset, found[-1].extent) == (offset, extent):
                found[-1] = BlockClass(found[-1].first, found[-1].count + 1, extent, offset)
            else:
                found.append(BlockClass(block, 1, extent, offset))
        return found

    def classes(self, dim: int) -> tuple[BlockClass, ...]:
        """Return the blocks of a dimension as runs of equal extent: at most full, short and empty.

        A ragged dimension may have more runs.

        >>> BlockGrid.cut((9,), (8,)).classes(0)
        (BlockClass(first=0, count=4, extent=2, offset=0), \
BlockClass(first=4, count=1, extent=1, offset=0), BlockClass(first=5, count=3, extent=0, offset=0))
        """
        edges, count = self.edges[dim], self.counts[dim]
        if edges is None:
            size, extent = self.shape[dim], self.block_shape[dim]
            full = min(size // extent, count) if extent else 0
            runs = [(full, extent)]
            if full < count and size > full * extent:
                runs.append((1, size - full * extent))
            runs.append((count - sum(n for n, _ in runs), 0))
        else:
            runs = [(1, b - a) for a, b in pairwise(edges)]
        found: list[BlockClass] = []
        first = 0
        for number, extent in runs:
            if found and found[-1].extent == extent:
                last = found[-1]
                found[-1] = BlockClass(last.first, last.count + number, extent)
            elif number:
                found.append(BlockClass(first, number, extent))
            first += number
        return tuple(found)

    def __str__(self) -> str:
        parts = [
            f"{n} at {list(edges)}" if edges is not None else f"{n} by {extent}"
            for n, extent, edges in zip(self.shape, self.block_shape, self.edges)
        ]
        return f"[{', '.join(parts)}]"


# The setters of the slots of a frozen value: a grid is made for every shape that is asked about.
_SET_SHAPE, _SET_COUNTS, _SET_BLOCK_SHAPE, _SET_EDGES = (
    vars(BlockGrid)[name].__set__ for name in ("shape", "counts", "block_shape", "edges")
)
