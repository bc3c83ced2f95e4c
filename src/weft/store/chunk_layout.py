"""`Tiling`: which tile an element goes to, which shard a tile, and which slot of it.

Elements arrive in row-major order of the dimensions as frames count through them, which need not
be the order in which they are stored. The first of these whose chunks are longer than one is the
*grain*: as many rows as a chunk is long along it make an *epoch*, which fills every tile of the
dimensions behind it once. Tiles are lifted to shards: tile t is shard t // n and place t % n of it,
along every dimension; the *slot* of a chunk is its place along all of them.

Which chunks a box meets, shard by shard, and which bytes of each are wanted where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from types import EllipsisType
from typing import NamedTuple, TypeAlias

from weft.space import ZRange
from weft.space.lifting import Digit, weigh
from weft.values import Point


class Group(NamedTuple):
    """The tiles of one epoch that go to one shard: their numbers, and their slots in it."""

    shard: Point
    tiles: Point
    slots: Point


class Span(NamedTuple):
    """Elements of one epoch that are a box: so many `steps` of dimension `level`, all behind it.

    Dimensions are counted as they arrive; `at` is where it begins, up to `level`.
    """

    level: int
    at: Point
    steps: int


@dataclass(frozen=True)
class Tiling:
    """The tiles and shards of an array; a size of None has no end.

    `arrival` lists the dimensions as frames count through them, outermost first; none given, they
    arrive as they are stored. With `is_coarse`, an epoch is at least one step of a dimension before
    the grain, where there is one: a whole plane, and not a row of its tiles.
    """

    shape: tuple[int | None, ...]
    chunks: Point
    shards: Point
    arrival: Point = ()
    is_coarse: bool = False
    frame_ndim: int | None = None
    """Dimensions of a frame, the last of those that arrive; two unless given, or all but one."""

    @cached_property
    def dims(self) -> Point:
        """The dimensions as they arrive."""
        return self.arrival or tuple(range(len(self.chunks)))

    @cached_property
    def sizes(self) -> tuple[int | None, ...]:
        """The shape as it arrives."""
        return tuple(self.shape[dim] for dim in self.dims)

    @cached_property
    def extents(self) -> Point:
        """A chunk as it arrives."""
        return tuple(self.chunks[dim] for dim in self.dims)

    @cached_property
    def grain(self) -> int:
        """Along which of the dimensions, as they arrive, an epoch is cut."""
        last = len(self.dims) - 1
        found = next((level for level, n in enumerate(self.extents) if n > 1), last)
        return max(0, found - 1) if self.is_coarse else found

    @cached_property
    def inner(self) -> Point:
        """The sizes behind the grain."""
        return tuple(n or 0 for n in self.sizes[self.grain + 1 :])

    @cached_property
    def inner_counts(self) -> Point:
        """How many tiles there are along every dimension behind the grain."""
        return tuple(-(-n // c) for n, c in zip(self.inner, self.extents[self.grain + 1 :]))

    @cached_property
    def tiles(self) -> int:
        """How many tiles an epoch has."""
        return prod(self.inner_counts)

    @cached_property
    def per_shard(self) -> Point:
        """How many chunks a shard has along every dimension."""
        return tuple(s // c for s, c in zip(self.shards, self.chunks))

    @cached_property
    def slots(self) -> int:
        """How many chunks a shard has."""
        return prod(self.per_shard)

    @cached_property
    def across(self) -> int:
        """How many shards there are beside each other, for each along the outermost dimension."""
        return prod(-(-(self.shape[dim] or 0) // self.shards[dim]) for dim in self.dims[1:])

    # -- where elements are

    @cached_property
    def units(self) -> Point:
        """How many elements one step of every dimension is, as they arrive."""
        levels = range(1, len(self.dims) + 1)
        return tuple(prod(n or 0 for n in self.sizes[level:]) for level in levels)

    @cached_property
    def frame_level(self) -> int:
        """The first dimension of a frame, as they arrive."""
        rank = len(self.dims)
        ndim = 2 if self.frame_ndim is None else self.frame_ndim
        return rank - max(0, min(ndim, rank - 1))

    @cached_property
    def frame(self) -> Point:
        """The shape of a frame."""
        return tuple(n or 0 for n in self.sizes[self.frame_level :])

    @cached_property
    def frame_size(self) -> int:
        """How many elements a frame has."""
        return prod(self.frame)

    @cached_property
    def frames_per_row(self) -> int:
        """How many frames one step of the outermost dimension is."""
        return prod(n or 0 for n in self.sizes[1 : self.frame_level])

    @property
    def most(self) -> int | None:
        """How many elements there can be; None where there is no end."""
        return None if self.sizes[0] is None else self.sizes[0] * self.units[0]

    def coordinates(self, element: int, level: int) -> Point:
        """Where an element is, along the dimensions up to a level."""
        found = [element // self.units[level]]
        for size in reversed(self.sizes[1 : level + 1]):
            found[:1] = divmod(found[0], size or 1)
        return tuple(found)

    def epoch(self, element: int) -> tuple[Point, int]:
        """The chunk of an element up to the grain, and its row in the epoch."""
        *lead, row = self.coordinates(element, self.grain)
        tile, place = divmod(row, self.extents[self.grain])
        return (*lead, tile), place

    def epoch_end(self, element: int) -> int:
        """The first element behind the epoch that an element is in."""
        row = self.units[self.grain]
        *_, at = self.coordinates(element, self.grain)
        chunk, size = self.extents[self.grain], self.sizes[self.grain]
        last = (at // chunk + 1) * chunk
        if size is not None:
            last = min(last, size)
        return element - element % row + (last - at) * row

    def spans(self, start: int, stop: int) -> Iterator[Span]:
        """Elements one behind the other, which lie in one epoch, as boxes.

        >>> tiling = Tiling((None, 4, 5), (2, 2, 2), (2, 2, 2))
        >>> list(tiling.spans(15, 40))  # the last line of a frame, and a whole one
        [Span(level=1, at=(0, 3), steps=1), Span(level=0, at=(1,), steps=1)]
        """
        while start < stop:
            level = next(
                level
                for level, unit in enumerate(self.units[self.grain :], self.grain)
                if start % unit == 0 and stop - start >= unit
            )
            at, size = self.coordinates(start, level), self.sizes[level]
            steps = (stop - start) // self.units[level]
            if size is not None:
                steps = min(steps, size - at[-1])
            yield Span(level, at, steps)
            start += steps * self.units[level]

    # -- where tiles go

    @cached_property
    def _slot_strides(self) -> Point:
        """What one step of a chunk in a shard adds to its slot, along every dimension."""
        return tuple(prod(self.per_shard[dim + 1 :]) for dim in range(len(self.chunks)))

    @cached_property
    def inner_groups(self) -> list[tuple[Point, Point, Point]]:
        """For each shard of an epoch where it is behind the grain, its tiles, their slots.

        Every tile is lifted to the digits of its shard and of its place there; the places give
        slots, in the order in which dimensions are stored.
        """
        behind = self.dims[self.grain + 1 :]
        per = [self.per_shard[dim] for dim in behind]
        counts = [-(-n // each) for n, each in zip(self.inner_counts, per)]
        order = sorted(range(len(behind)), key=lambda n: behind[n])
        shards = weigh(
            self.inner_counts,
            [
                Digit(n, per[n], counts[n], prod(counts[m] for m in order[place + 1 :]))
                for place, n in enumerate(order)
            ],
        )
        slots = weigh(
            self.inner_counts,
            [Digit(n, 1, per[n], self._slot_strides[dim]) for n, dim in enumerate(behind)],
        )
        found = dict[int, list[tuple[int, int]]]()
        for tile, (shard, slot) in enumerate(zip(shards, slots)):
            found.setdefault(shard, []).append((slot, tile))
        return [
            (
                self._unravelled(shard, counts, order),
                tuple(tile for _, tile in sorted(pairs)),
                tuple(slot for slot, _ in sorted(pairs)),
            )
            for shard, pairs in sorted(found.items())
        ]

    @staticmethod
    def _unravelled(number: int, counts: list[int], order: list[int]) -> Point:
        """The coordinates of a shard behind the grain, as dimensions arrive."""
        found = [0] * len(counts)
        for n in reversed(order):
            number, found[n] = divmod(number, counts[n])
        return tuple(found)

    def groups(self, at: Point) -> Iterator[Group]:
        """The tiles of an epoch by shard; `at` is its chunk along the dimensions to the grain.

        >>> tiling = Tiling((None, 3, 4), (2, 1, 1), (4, 2, 4))
        >>> [(group.shard, group.tiles, group.slots) for group in tiling.groups((1,))]
        [((0, 0, 0), (0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15)),
        ((0, 1, 0), (8, 9, 10, 11), (8, 9, 10, 11))]
        """
        first = self.first_slot(at)
        for behind, tiles, slots in self.inner_groups:
            yield Group(self.shard(at, behind), tiles, tuple(first + slot for slot in slots))

    def first_slot(self, at: Point) -> int:
        """What the chunk of an epoch, up to the grain, adds to slots."""
        dims = self.dims[: self.grain + 1]
        return sum(t % self.per_shard[dim] * self._slot_strides[dim] for t, dim in zip(at, dims))

    def shard(self, at: Point, behind: Point) -> Point:
        """A shard, by the chunk of an epoch up to the grain, and by where it is behind it."""
        found = [0] * len(self.dims)
        head = [t // self.per_shard[dim] for t, dim in zip(at, self.dims)]
        for dim, s in zip(self.dims, (*head, *behind)):
            found[dim] = s
        return tuple(found)

    def expected(self, shard: Point, rows: int | None = None) -> int:
        """How many chunks of a shard lie in the array, or in so many rows of the outermost one."""
        found = 1
        for dim, (s, n, c, per) in enumerate(zip(shard, self.shape, self.chunks, self.per_shard)):
            size = rows if dim == self.dims[0] and rows is not None else n
            found *= per if size is None else max(0, min(-(-size // c) - s * per, per))
        return found

    def box(self, shard: Point, slot: int) -> ZRange:
        """The box of the array that a chunk of a shard is, beyond the array's edge too."""
        start = []
        for s, c, per in zip(reversed(shard), reversed(self.chunks), reversed(self.per_shard)):
            slot, place = divmod(slot, per)
            start.append((s * per + place) * c)
        start.reverse()
        return ZRange(start, [a + c for a, c in zip(start, self.chunks)])


Place: TypeAlias = tuple[slice | EllipsisType, ...]
"""An index that makes a view of an array of any rank, 0 too."""


class Part(NamedTuple):
    """The part of a chunk that lies in a box."""

    slot: int
    """Of the chunk in its shard."""
    first: int
    """The byte of the chunk at which the part begins."""
    reach: int
    """The bytes from there to the end of its last element."""
    shape: Point
    into: Place
    """The same elements in an array that holds the box."""


class Grid:
    """The chunks of an array in their shards, and the bytes of a chunk in its own order."""

    def __init__(self, chunks: Point, shards: Point, order: Point, itemsize: int) -> None:
        self.chunks, self.shards, self.itemsize = chunks, shards, itemsize
        self.per_shard = tuple(s // c for s, c in zip(shards, chunks))
        self.weights = _strides(self.per_shard, tuple(range(len(chunks))), 1)
        self.strides = _strides(chunks, order or tuple(range(len(chunks))), itemsize)
        """The bytes from an element of a stored chunk to the next, along each dimension."""

    @property
    def slots(self) -> int:
        """The chunks of a shard."""
        return prod(self.per_shard)

    @property
    def size(self) -> int:
        """The bytes of a chunk."""
        return prod(self.chunks) * self.itemsize

    def shards_of(self, box: ZRange) -> Iterator[Point]:
        """The shards that a box meets, by their coordinates.

        >>> grid = Grid((2, 2), (4, 8), (), 1)
        >>> list(grid.shards_of(ZRange((3, 0), (6, 8))))
        [(0, 0), (1, 0)]
        >>> [part.slot for part in grid.parts_of(ZRange((3, 0), (6, 4)), (0, 0))]
        [4, 5]
        """
        if not box.is_empty:
            sides = zip(box.start, box.stop, self.shards)
            yield from points([range(low // s, (high - 1) // s + 1) for low, high, s in sides])

    def parts_of(self, box: ZRange, shard: Point) -> list[Part]:
        """The parts of a box that lie in one shard, in the order of their slots."""
        sides = map(self._along, range(len(shard)), shard, box.start, box.stop)
        parts = []
        for places in product(*sides):
            slots, firsts, reaches, shape, into = zip(*places) if places else ((),) * 5
            reach = sum(reaches) + self.itemsize
            parts.append(Part(sum(slots), sum(firsts), reach, shape, (*into, ...)))
        return parts

    def _along(
        self, dim: int, shard: int, low: int, high: int
    ) -> list[tuple[int, int, int, int, slice]]:
        """The same along one dimension."""
        chunk, weight, stride = self.chunks[dim], self.weights[dim], self.strides[dim]
        start = shard * self.shards[dim]
        first, end = max(low, start), min(high, start + self.shards[dim])
        found = []
        for place in range((first - start) // chunk, (end - 1 - start) // chunk + 1):
            corner = start + place * chunk
            a, b = max(first, corner), min(end, corner + chunk)
            reach = (b - a - 1) * stride
            found.append(
                (place * weight, (a - corner) * stride, reach, b - a, slice(a - low, b - low))
            )
        return found

    def box(self, shard: Point, slot: int | None = None) -> ZRange:
        """The box of a shard, or of a chunk in it, beyond the array's edge too."""
        start = [s * n for s, n in zip(shard, self.shards)]
        if slot is None:
            return ZRange.of(self.shards, start)
        for dim, weight in enumerate(self.weights):
            place, slot = divmod(slot, weight)
            start[dim] += place * self.chunks[dim]
        return ZRange.of(self.chunks, start)


def points(sides: Sequence[range]) -> Iterator[Point]:
    """Yield the points of a box in row-major order; unlike `product`, no range is listed first.

    >>> list(points([range(2), range(5, 7)])), next(points([range(2**60)]))
    ([(0, 5), (0, 6), (1, 5), (1, 6)], (0,))
    """
    if not sides:
        yield ()
        return
    first, *rest = sides
    for place in first:
        for behind in points(rest):
            yield (place, *behind)


def _strides(sizes: Point, order: Point, unit: int) -> Point:
    """How far apart neighbours are along each dimension, if they are stored in some order."""
    found = [0] * len(sizes)
    for dim in reversed(order):
        found[dim] = unit
        unit *= sizes[dim]
    return tuple(found)
