"""How the chunks of an array lie in its shards, and how its frames arrive.

`ChunkLayout` is what reading and writing share: the chunks and shards of an array as block grids.
A chunk's place among the chunks of its shard, in row-major order, is its *slot*.

`FrameLayout` adds the order in which the elements of a stream arrive: row-major order of the
dimensions in `axis_order`, which need not be the order in which they are stored. The first of
these dimensions whose chunks are longer than one is the *buffered axis*: as many of its rows as a
chunk is long make an *epoch*, which fills every *tile* (a chunk in memory) of the dimensions after
it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, product
from math import prod
from operator import floordiv
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.space import BlockGrid, ZRange
from weft.store.dtypes import numpy_dtype
from weft.store.metadata import Metadata, own_attributes
from weft.store.selection import ChunkEntry, Points, Run
from weft.values import FrozenMap, Point

ArrayIndex: TypeAlias = tuple[Any, ...]
"""A NumPy index: slices and `...`, which give a view of an array of any rank, 0 too, or arrays."""

ENDLESS = 1 << 62
"""The size of a dimension without an end."""

COLOURS = (3, 4)
"""Samples of a colour: red, green and blue, and perhaps opacity."""


class ChunkPart(NamedTuple):
    """The part of a chunk that lies in a box."""

    slot: int
    start: int
    """The byte of the chunk at which the part begins."""
    nbytes: int
    """The bytes from there to the end of the part's last element."""
    shape: Point
    target: ArrayIndex
    """The same elements in an array that holds the box."""
    strides: Point | None = None
    """The bytes between elements; those of the chunk, in the order of dimensions, unless given."""
    picks: tuple[tuple[Any, ...], ...] = ()
    """Indices that are applied to these elements, one after the other."""


@dataclass(frozen=True)
class ChunkLayout:
    """The chunks of an array in its shards, and the elements of a chunk; a size of None has no end.

    `order` lists the dimensions as the elements of a chunk are stored; row-major unless given.

    >>> layout = ChunkLayout((9, 8), (2, 2), (4, 8))
    >>> list(layout.shard_grid.meeting(ZRange((3, 0), (6, 8))))
    [(0, 0), (1, 0)]
    >>> [part.slot for part in layout.parts(ZRange((3, 0), (6, 4)), (0, 0))]
    [4, 5]
    """

    shape: tuple[int | None, ...]
    chunks: Point
    shards: Point
    order: Point = ()
    itemsize: int = 1

    @classmethod
    def of(cls, metadata: Metadata) -> ChunkLayout:
        """Return the layout of a stored array; chunks of 0, where nothing is stored, count as 1."""
        chunks, shards = (tuple(max(1, n) for n in of) for of in (metadata.chunks, metadata.shards))
        itemsize = numpy_dtype(metadata.dtype).itemsize
        return ChunkLayout(metadata.shape, chunks, shards, metadata.order, itemsize)

    @cached_property
    def chunk_grid(self) -> BlockGrid:
        """The chunks of the array."""
        return BlockGrid.blocks(_bounded(self.shape), self.chunks)

    @cached_property
    def shard_grid(self) -> BlockGrid:
        """The shards of the array."""
        return BlockGrid.blocks(_bounded(self.shape), self.shards)

    @cached_property
    def slot_grid(self) -> BlockGrid:
        """The chunks of one shard; their numbers are their slots."""
        return BlockGrid.blocks(self.shards, self.chunks)

    @cached_property
    def slots(self) -> int:
        """The number of chunks of a shard."""
        return self.slot_grid.size

    @cached_property
    def slot_strides(self) -> Point:
        """The distance between the slots of neighbouring chunks, along each dimension."""
        return _strides(self.slot_grid.counts)

    @cached_property
    def chunk_nbytes(self) -> int:
        """The bytes of a chunk."""
        return prod(self.chunks) * self.itemsize

    @cached_property
    def strides(self) -> Point:
        """The bytes from an element of a stored chunk to the next, along each dimension."""
        return _strides(self.chunks, self.order, self.itemsize)

    def shard_box(self, shard: Point) -> ZRange:
        """Return the box of a shard, beyond the array's edge too."""
        return ZRange.of(self.shards, [k * n for k, n in zip(shard, self.shards)])

    def chunk_box(self, shard: Point, slot: int) -> ZRange:
        """Return the box of a chunk of a shard, beyond the array's edge too."""
        inside = self.slot_grid.box(self.slot_grid.unravel(slot))
        return inside.translate(self.shard_box(shard).start)

    def expected_chunks(self, shard: Point) -> int:
        """Return how many chunks of a shard lie in the array."""
        return self.chunk_grid.count_meeting(self.shard_box(shard))

    def parts(self, box: ZRange, shard: Point) -> list[ChunkPart]:
        """Return the parts of chunks that a box takes from one shard, by slot."""
        sides = map(self._parts_along, range(len(shard)), shard, box.start, box.stop)
        parts = []
        for picked in product(*sides):
            slots, starts, spans, shape, target = zip(*picked) if picked else ((),) * 5
            nbytes = sum(spans) + self.itemsize
            parts.append(ChunkPart(sum(slots), sum(starts), nbytes, shape, (*target, ...)))
        return parts

    def selected(self, gather: Sequence[Run | Points]) -> Iterator[tuple[Point, list[ChunkPart]]]:
        """Yield the shards that a selection meets, each with the parts of chunks that it takes.

        The result has an axis for each part of the selection, in their order.
        """
        sides = []
        for part in gather:
            chunks = tuple(self.chunks[dim] for dim in part.dims)
            shards = tuple(self.shards[dim] for dim in part.dims)
            per = tuple(map(floordiv, shards, chunks))
            entries = part.entries(chunks, shards)
            grouped = groupby(entries, partial(_shard_of, per))
            sides.append([(shard, list(those)) for shard, those in grouped])
        dims = [dim for part in gather for dim in part.dims]
        for picked in product(*sides):
            shard = [0] * len(self.chunks)
            for dim, number in zip(dims, [n for numbers, _ in picked for n in numbers]):
                shard[dim] = number
            every = product(*(those for _, those in picked))
            yield tuple(shard), [self._part(dims, tuple(shard), each) for each in every]

    def _part(self, dims: Sequence[int], shard: Point, entries: Sequence[ChunkEntry]) -> ChunkPart:
        """Return the part of a chunk that entries along all dimensions take."""
        chunk = [n for entry in entries for n in entry.chunk]
        start = [n for entry in entries for n in entry.start]
        shape = tuple(n for entry in entries for n in entry.shape)
        steps = [n for entry in entries for n in entry.steps]
        strides = tuple(self.strides[dim] * step for dim, step in zip(dims, steps))
        slot = sum(
            (n - shard[dim] * self.slot_grid.counts[dim]) * self.slot_strides[dim]
            for dim, n in zip(dims, chunk)
        )
        picks = [
            (*(slice(None),) * axis, *entry.pick)
            for axis, entry in enumerate(entries)
            if entry.pick is not None
        ]
        targets = [entry.target for entry in entries]
        if sum(isinstance(target, np.ndarray) for target in targets) > 1:
            targets = list(np.ix_(*(np.r_[target] for target in targets)))
        return ChunkPart(
            slot,
            sum(n * self.strides[dim] for dim, n in zip(dims, start)),
            sum((n - 1) * stride for n, stride in zip(shape, strides)) + self.itemsize,
            shape,
            (*targets, ...),
            strides,
            tuple(picks),
        )

    def _parts_along(
        self, dim: int, shard: int, low: int, high: int
    ) -> list[tuple[int, int, int, int, slice]]:
        slot_stride, stride, extent = self.slot_strides[dim], self.strides[dim], self.chunks[dim]
        origin = shard * self.shards[dim]
        return [
            (
                place * slot_stride,
                each.offset * stride,
                (each.extent - 1) * stride,
                each.extent,
                slice(start, start + each.extent),
            )
            for each in self.slot_grid.classes_meeting(dim, low - origin, high - origin)
            for place in range(each.first, each.first + each.count)
            for start in [origin + place * extent + each.offset - low]
        ]


class Slab(NamedTuple):
    """A box of elements of one epoch: `steps` along dimension `level`, and all dimensions after it.

    Dimensions are counted in arrival order; `start` is where it begins, up to `level`.
    """

    level: int
    start: Point
    steps: int


class ShardTiles(NamedTuple):
    """The tiles of one epoch that belong to one shard: their numbers, and their slots in it."""

    shard: Point
    tiles: Point
    slots: Point


@dataclass(frozen=True)
class FrameLayout(ChunkLayout):
    """The chunk layout of an array whose elements arrive frame by frame.

    `axis_order` lists the dimensions in arrival order, the slowest first; stored order unless
    given. With `whole_planes`, an epoch is at least one step of the dimension before the buffered
    axis, where there is one. A frame has the last `frame_ndim` dimensions that arrive; two unless
    given, and all but one at most.
    """

    axis_order: Point = ()
    whole_planes: bool = False
    frame_ndim: int | None = None

    def __post_init__(self) -> None:
        if not self.axis_order:
            object.__setattr__(self, "axis_order", tuple(range(len(self.chunks))))

    @classmethod
    def stored(
        cls,
        metadata: Metadata,
        shape: tuple[int | None, ...] | None = None,
        *,
        whole_planes: bool = False,
    ) -> FrameLayout:
        """Return the layout with which a stored array arrived, of another shape if given."""
        axes = stored_axis_order(metadata)
        return cls(
            metadata.shape if shape is None else shape,
            metadata.chunks,
            metadata.shards,
            metadata.order,
            numpy_dtype(metadata.dtype).itemsize,
            axes,
            whole_planes,
            stored_frame_ndim(metadata, axes),
        )

    @cached_property
    def append_axis(self) -> int:
        """The dimension along which the array grows."""
        return self.axis_order[0]

    @cached_property
    def ordered_shape(self) -> tuple[int | None, ...]:
        """The shape in arrival order."""
        return tuple(self.shape[dim] for dim in self.axis_order)

    @cached_property
    def ordered_chunks(self) -> Point:
        """The shape of a chunk in arrival order."""
        return tuple(self.chunks[dim] for dim in self.axis_order)

    @cached_property
    def buffered_axis(self) -> int:
        """The dimension, in arrival order, along which the stream is cut into epochs."""
        last = len(self.axis_order) - 1
        axis = next((level for level, n in enumerate(self.ordered_chunks) if n > 1), last)
        return max(0, axis - 1) if self.whole_planes else axis

    @cached_property
    def inner_grid(self) -> BlockGrid:
        """The tiles of an epoch, along the dimensions after the buffered axis."""
        inner = slice(self.buffered_axis + 1, None)
        sizes = tuple(n or 0 for n in self.ordered_shape[inner])
        return BlockGrid.blocks(sizes, self.ordered_chunks[inner])

    @cached_property
    def tiles_per_epoch(self) -> int:
        """The number of tiles of an epoch."""
        return self.inner_grid.size

    @cached_property
    def shards_per_row(self) -> int:
        """The number of shards for each one along the dimension that is appended to."""
        return prod(self.shard_grid.counts[dim] for dim in self.axis_order[1:])

    # -- elements

    @cached_property
    def step_sizes(self) -> Point:
        """The number of elements in one step of each dimension, in arrival order."""
        sizes = [n or 0 for n in self.ordered_shape]
        return tuple(prod(sizes[level + 1 :]) for level in range(len(sizes)))

    @cached_property
    def frame_axis(self) -> int:
        """The first dimension of a frame, in arrival order."""
        rank = len(self.axis_order)
        ndim = 2 if self.frame_ndim is None else self.frame_ndim
        return rank - max(0, min(ndim, rank - 1))

    @cached_property
    def frame_shape(self) -> Point:
        """The shape of a frame."""
        return tuple(n or 0 for n in self.ordered_shape[self.frame_axis :])

    @cached_property
    def frame_size(self) -> int:
        """The number of elements of a frame."""
        return prod(self.frame_shape)

    @cached_property
    def frames_per_row(self) -> int:
        """The number of frames in one step of the dimension that is appended to."""
        return prod(n or 0 for n in self.ordered_shape[1 : self.frame_axis])

    @property
    def capacity(self) -> int | None:
        """The most elements that the array can have; None where it has no end."""
        size = self.ordered_shape[0]
        return None if size is None else size * self.step_sizes[0]

    def frames_in(self, elements: int) -> int:
        """Return the number of frames that elements make, one that is begun included."""
        return -(-elements // self.frame_size) if self.frame_size else 0

    def rows_in(self, elements: int) -> int:
        """Return the length of the appended dimension that holds a number of elements."""
        row = self.step_sizes[0]
        return -(-elements // row) if row else self.ordered_shape[0] or 0

    def coordinates(self, element: int, level: int) -> Point:
        """Return where an element lies, along the dimensions up to a level."""
        point = [element // self.step_sizes[level]]
        for size in reversed(self.ordered_shape[1 : level + 1]):
            point[:1] = divmod(point[0], size or 1)
        return tuple(point)

    def epoch_of(self, element: int) -> tuple[Point, int]:
        """Return the chunk of an element up to the buffered axis, and its row in the epoch."""
        *lead, row = self.coordinates(element, self.buffered_axis)
        tile, place = divmod(row, self.ordered_chunks[self.buffered_axis])
        return (*lead, tile), place

    def epoch_end(self, element: int) -> int:
        """Return the first element after the epoch that holds an element."""
        row = self.step_sizes[self.buffered_axis]
        *_, at = self.coordinates(element, self.buffered_axis)
        chunk, size = (
            self.ordered_chunks[self.buffered_axis],
            self.ordered_shape[self.buffered_axis],
        )
        last = (at // chunk + 1) * chunk
        if size is not None:
            last = min(last, size)
        return element - element % row + (last - at) * row

    def slabs(self, start: int, stop: int) -> Iterator[Slab]:
        """Yield consecutive elements of one epoch as boxes.

        >>> layout = FrameLayout((None, 4, 5), (2, 2, 2), (2, 2, 2))
        >>> list(layout.slabs(15, 40))  # the last line of a frame, and a whole one
        [Slab(level=1, start=(0, 3), steps=1), Slab(level=0, start=(1,), steps=1)]
        """
        while start < stop:
            level = next(
                level
                for level, step in enumerate(
                    self.step_sizes[self.buffered_axis :], self.buffered_axis
                )
                if start % step == 0 and stop - start >= step
            )
            at, size = self.coordinates(start, level), self.ordered_shape[level]
            steps = (stop - start) // self.step_sizes[level]
            if size is not None:
                steps = min(steps, size - at[-1])
            yield Slab(level, at, steps)
            start += steps * self.step_sizes[level]

    # -- tiles

    @cached_property
    def inner_shards(self) -> list[ShardTiles]:
        """The tiles of an epoch by shard; shards and slots count the inner dimensions only."""
        inner = self.axis_order[self.buffered_axis + 1 :]
        stored = sorted(
            range(len(inner)), key=inner.__getitem__
        )  # shards and slots, in their order
        tiles = np.arange(self.tiles_per_epoch).reshape(self.inner_grid.counts)
        slots = np.zeros(self.inner_grid.counts, np.int64)
        for axis, dim in enumerate(inner):
            places = np.arange(slots.shape[axis]) % self.slot_grid.counts[dim]
            shape = [-1 if n == axis else 1 for n in range(len(inner))]
            slots += (places * self.slot_strides[dim]).reshape(shape)
        tiles, slots = tiles.transpose(stored), slots.transpose(stored)
        grid = BlockGrid.blocks(tiles.shape, [self.slot_grid.counts[inner[n]] for n in stored])
        groups = []
        for number, box in enumerate(grid.boxes()):
            shard = [0] * len(self.chunks)
            for n, place in zip(stored, grid.unravel(number)):
                shard[inner[n]] = place
            part: Any = (*box.slices(), ...)
            groups.append(
                ShardTiles(
                    tuple(shard),
                    tuple(tiles[part].ravel().tolist()),
                    tuple(slots[part].ravel().tolist()),
                )
            )
        return groups

    def shard_tiles(self, epoch: Point) -> Iterator[ShardTiles]:
        """Yield the tiles of an epoch by shard; an epoch is its chunk up to the buffered axis.

        >>> layout = FrameLayout((None, 3, 4), (2, 1, 1), (4, 2, 4))
        >>> [(each.shard, each.tiles, each.slots) for each in layout.shard_tiles((1,))]
        [((0, 0, 0), (0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15)),
        ((0, 1, 0), (8, 9, 10, 11), (8, 9, 10, 11))]
        """
        first = self.first_slot(epoch)
        for inner, tiles, slots in self.inner_shards:
            yield ShardTiles(
                self.shard_of(epoch, inner), tiles, tuple(first + slot for slot in slots)
            )

    def first_slot(self, epoch: Point) -> int:
        """Return what an epoch adds to the slots of its tiles."""
        return sum(
            t % self.slot_grid.counts[dim] * self.slot_strides[dim]
            for t, dim in zip(epoch, self.axis_order)
        )

    def shard_of(self, epoch: Point, inner: Point) -> Point:
        """Return the shard of an epoch at the inner coordinates of `inner_shards`."""
        shard = list(inner)
        for t, dim in zip(epoch, self.axis_order):
            shard[dim] = t // self.slot_grid.counts[dim]
        return tuple(shard)

    # -- what metadata promise

    def promised_elements(self, metadata: Metadata) -> int:
        """Return the elements that a writer promised: all, or the frames that it counted."""
        whole = metadata.shape[self.append_axis] * self.step_sizes[0]
        frames = own_attributes(metadata.attributes).get("frames")
        if type(frames) is not int or frames < 0:
            return whole
        return min(whole, frames * self.frame_size)

    def grown_metadata(self, metadata: Metadata, elements: int, min_rows: int = 0) -> Metadata:
        """Return the metadata of the array once it has a number of elements, and `min_rows`.

        Where they do not fill the last row, the attribute `weft.frames` counts the frames.

        >>> layout = FrameLayout((None, 2, 4, 4), (1, 1, 4, 4), (1, 2, 4, 4))
        >>> metadata = Metadata((0, 2, 4, 4), "uint8", layout.chunks, layout.shards)
        >>> grown = layout.grown_metadata(metadata, 3 * 16)
        >>> grown.shape, dict(grown.attributes)
        ((2, 2, 4, 4), {'weft': {'frames': 3}})
        """
        shape, row = list(metadata.shape), self.step_sizes[0]
        shape[self.append_axis] = max(min_rows, self.rows_in(elements))
        attributes = dict(metadata.attributes)
        own = {key: value for key, value in attributes.pop("weft", {}).items() if key != "frames"}
        if row and elements < shape[self.append_axis] * row:
            own["frames"] = self.frames_in(elements)
        if own:
            attributes["weft"] = own
        return replace(metadata, shape=tuple(shape), attributes=FrozenMap(attributes.items()))


def resolve_axis_order(ndim: int, append_dim: int, axis_order: Sequence[int] | None) -> Point:
    """Return the dimensions in arrival order, the one that is appended to first."""
    if not -ndim <= append_dim < ndim:
        raise WeftError(f"append_dim: there is no dimension {append_dim} of {ndim}")
    outer = append_dim % ndim
    if axis_order is None:
        return (outer, *(dim for dim in range(ndim) if dim != outer))
    axes = tuple(int(dim) for dim in axis_order)
    if sorted(axes) != list(range(ndim)):
        raise WeftError(f"axis_order: {list(axes)} is not a permutation of {ndim} dimensions")
    if append_dim and axes[0] != outer:
        raise WeftError(
            f"axis_order begins with dimension {axes[0]}, and frames are appended along {outer}: "
            f"these must be the same"
        )
    return axes


def stored_axis_order(metadata: Metadata) -> Point:
    """Return the dimensions of a stored array in the order in which its elements arrived."""
    axes = own_attributes(metadata.attributes).get("axis_order")
    if axes is not None and not (isinstance(axes, list) and all(type(n) is int for n in axes)):
        raise WeftError(f"attributes.weft.axis_order: expected a list of dimensions, got {axes!r}")
    return resolve_axis_order(len(metadata.shape), 0, axes)


def stored_frame_ndim(metadata: Metadata, axis_order: Point) -> int:
    """Return how many dimensions a frame has, the last of those that arrive.

    The attributes say it; else a frame begins at y or x where dimensions have these names; else it
    has two, or three where the last has 3 or 4 elements, fewer than each of the two before, which
    are colours. All but one at most.

    >>> chunk = (1, 64, 48, 3)
    >>> stored_frame_ndim(Metadata((0, 64, 48, 3), "uint8", chunk, chunk), (0, 1, 2, 3))
    3
    """
    rank, given = len(axis_order), own_attributes(metadata.attributes).get("frame_ndim")
    if given is not None:
        return check_frame_ndim(given, rank)
    names = [(metadata.dimension_names or [None] * rank)[dim] for dim in axis_order]
    if "x" in names and "y" in names:
        return min(rank - min(names.index("x"), names.index("y")), rank - 1)
    sizes = [metadata.shape[dim] for dim in axis_order]
    is_colour = rank > 3 and sizes[-1] in COLOURS and min(sizes[-3:-1]) > sizes[-1]
    return min(3 if is_colour else 2, rank - 1)


def check_frame_ndim(given: Any, rank: int) -> int:
    """Return the number of dimensions of a frame, or refuse it."""
    if type(given) is not int or not 0 <= given < rank:
        raise WeftError(f"frame_ndim: expected 0 to {rank - 1} of {rank} dimensions, got {given!r}")
    return given


def _shard_of(per_shard: Point, entry: ChunkEntry) -> Point:
    """Return the shard of a chunk, given the chunks of a shard along each dimension."""
    return tuple(map(floordiv, entry.chunk, per_shard))


def _bounded(shape: Sequence[int | None]) -> Point:
    return tuple(ENDLESS if n is None else n for n in shape)


def _strides(sizes: Point, order: Point = (), unit: int = 1) -> Point:
    """Return how far apart neighbours are along each dimension, stored in some order."""
    strides = [0] * len(sizes)
    for dim in reversed(order or range(len(sizes))):
        strides[dim] = unit
        unit *= sizes[dim]
    return tuple(strides)
