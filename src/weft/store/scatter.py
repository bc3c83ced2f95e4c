"""`Scatter`: copies elements, as they arrive, into the tiles of an epoch.

Each dimension is split into two, the tile and the place in the tile, and the axes are permuted:
tiles first, then places in stored order. Strides do both, and elements are copied once.

Tiles lie one after the other in one block of memory. Those of a large epoch lie in many: each has
one row of the tiles of a band, and a band is some neighbours along the first dimension. A block is
free as soon as its band is encoded, and then takes the next row of any band: about one epoch and a
few rows are in memory, where whole epochs would be two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.space import BlockGrid
from weft.store import native
from weft.store.buffers import BUFFERS
from weft.store.chunk_layout import FrameLayout, Slab
from weft.store.native import boxes_of
from weft.store.threads import CORES, for_each
from weft.values import Point

Values: TypeAlias = np.ndarray[Any, Any]
Ranges: TypeAlias = tuple[tuple[int, int], ...]

LARGE = 1 << 26
"""Bytes of an epoch whose rows are kept apart."""

MAX_BANDS = 16
"""Bands of an epoch whose rows are kept apart, at most; a half at least."""

MAX_KNOWN = 64
"""Shapes of rows for which is known how they are copied."""

MAX_COPIERS = min(4, CORES // 4)
"""Threads of Python that copy, at most; few cores have enough to do with encoding."""

MIN_COPIED = 1 << 20
"""Bytes from which a thread of its own pays."""


class Block(NamedTuple):
    """Memory for one piece of every tile of a band."""

    memory: Values
    data: memoryview
    """The bytes of the memory."""
    address: int
    band: int = 0
    """The band whose tiles it had last."""

    @classmethod
    def of(cls, memory: Values, band: int = 0) -> Block:
        """Return an array of pieces as a block."""
        return cls(memory, memory.reshape(-1).view(np.uint8).data, memory.ctypes.data, band)


class Tiles:
    """Tiles in memory, in blocks: each has one piece of every tile of a band."""

    def __init__(self, count: int, shape: Point, bands: int = 1, pieces: int = 1) -> None:
        self.count, self.shape = count, shape
        """The number of tiles, and the shape of each."""
        self.blocks: list[list[Block]] = [[] for _ in range(bands)]
        """For each band its blocks, in the order of pieces."""
        self.addresses = np.zeros((bands, pieces), np.int64)

    @classmethod
    def of(cls, tiles: Values) -> Tiles:
        """Return tiles that lie one after the other."""
        made = cls(len(tiles), tiles.shape[1:])
        made.add(0, Block.of(tiles))
        return made

    def add(self, band: int, block: Block) -> None:
        """Add the block for the next piece of the tiles of a band."""
        self.addresses[band, len(self.blocks[band])] = block.address
        self.blocks[band].append(block)

    @property
    def whole(self) -> Values | None:
        """All tiles as one array, where they lie one after the other."""
        return self.blocks[0][0].memory if self.addresses.size == 1 else None

    @property
    def nbytes(self) -> int:
        """The bytes of a tile."""
        return prod(self.shape) * self.blocks[0][0].memory.itemsize

    def __iter__(self) -> Iterator[Values]:
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, number: int) -> Values:
        """Return a tile; a copy, where it is in pieces."""
        pieces = self.pieces(number)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([piece.reshape(-1) for piece in pieces]).reshape(self.shape)

    def pieces(self, number: int) -> list[Values]:
        """Return the pieces of a tile."""
        band, place = divmod(number, len(self.blocks[0][0].memory))
        return [block.memory[place, ...] for block in self.blocks[band]]

    def buffers(self, number: int) -> list[memoryview]:
        """Return the bytes of the pieces of a tile."""
        memory = self.blocks[0][0].memory
        band, place = divmod(number, len(memory))
        first, stop = place * memory.strides[0], (place + 1) * memory.strides[0]
        return [block.data[first:stop] for block in self.blocks[band]]

    def rows(self, numbers: Sequence[int]) -> tuple[Values, Sequence[int]]:
        """Return tiles as rows of bytes, and the numbers that some have among them."""
        whole = self.whole
        if whole is None:
            whole, numbers = np.stack([self[n] for n in numbers]), range(len(numbers))
        return whole.reshape(len(whole), -1).view(np.uint8), numbers

    def addresses_of(self, numbers: Sequence[int]) -> Values:
        """Return the addresses of the pieces of tiles: a row for each tile."""
        memory = self.blocks[0][0].memory
        bands, places = np.divmod(np.asarray(numbers), len(memory))
        found: Values = self.addresses[bands] + places[:, None] * memory.strides[0]
        return found


class TileSlices(NamedTuple):
    """A part of a box whose tiles are alike: in one band, and cut at the same places if at all."""

    band: int
    source: tuple[slice, ...]
    tiles: tuple[slice, ...]
    """The tiles, counted from the first of the band."""
    places: tuple[slice, ...]
    split: Point
    """For each dimension the number of tiles, and the extent in each."""


class Scatter:
    """Copies boxes of elements into the tiles of an epoch."""

    def __init__(self, layout: FrameLayout, dtype: np.dtype[Any], fill: Any) -> None:
        self.layout, self.dtype, self.fill = layout, dtype, fill
        axis, inner = layout.buffered_axis, layout.inner_grid.ndim
        stored = sorted(range(axis, axis + 1 + inner), key=lambda n: layout.axis_order[n])
        self._places = [level - axis for level in stored]
        """For each dimension of a tile, the dimension from the buffered axis on."""
        self._axes = (*range(1, 2 * inner, 2), *(2 * place for place in self._places))
        rows, self._dim = layout.ordered_chunks[axis], layout.axis_order[axis]
        count = layout.inner_grid.counts[0] if inner else 1
        size = layout.tiles_per_epoch * prod(layout.chunks) * dtype.itemsize
        self.is_apart = (
            size > LARGE
            and rows > 1
            and count >= MAX_BANDS // 2
            and prod(layout.chunks[: self._dim]) == 1
        )
        """Whether each row of a band has a block of its own."""
        self._per_band = max(1, -(-count // MAX_BANDS) if self.is_apart else count)
        """Tiles of a band along the first dimension."""
        self.bands = max(1, -(-count // self._per_band))
        self.pieces = rows if self.is_apart else 1
        """Pieces of a tile."""
        self._piece = tuple(
            1 if self.is_apart and at == self._dim else n for at, n in enumerate(layout.chunks)
        )
        self._others = prod(layout.inner_grid.counts[1:])
        outer = set(layout.axis_order[:axis])  # their chunks are one long
        self._kept = tuple(n for at, n in enumerate(self._piece) if at not in outer)
        self._is_cut = bool(inner and layout.inner_grid.shape[0] % layout.ordered_chunks[axis + 1])
        """Whether the last tiles along the first dimension are cut, and have the fill value."""
        self._slices = lru_cache(maxsize=256)(self._cut)
        self._known: dict[Any, tuple[Values, Values, Values, Values] | None] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the tiles of an epoch."""
        return self.pieces * self.row_nbytes

    @property
    def row_nbytes(self) -> int:
        """The bytes of a block for each band."""
        tiles = self.bands * self._per_band * self._others
        return tiles * prod(self._piece) * self.dtype.itemsize

    def bands_of(self, tiles: Sequence[int]) -> set[int]:
        """Return the bands of some tiles."""
        return {tile // (self._per_band * self._others) for tile in tiles}

    def tiles(self) -> Tiles:
        """Return the tiles of an epoch, without blocks."""
        count, shape = self.layout.tiles_per_epoch, self.layout.chunks
        return Tiles(count, shape, self.bands, self.pieces)

    def blocks(self) -> Sequence[Block]:
        """Return a new block for each band, all fill value."""
        memory = BUFFERS.allocate(self.row_nbytes).view(self.dtype)
        fill = np.asarray(self.fill, self.dtype)
        if any(fill.tobytes()):
            memory[...] = fill
        parts = memory.reshape(self.bands, self._per_band * self._others, *self._piece)
        return [Block.of(part, band) for band, part in enumerate(parts)]

    def add(self, tiles: Tiles, blocks: Sequence[Block]) -> None:
        """Add a block to every band; places beyond the edge of the array have the fill value."""
        last = self.bands - 1
        for band, block in enumerate(blocks):
            if self._is_cut and (block.band == last) != (band == last):
                block.memory[...] = self.fill
            tiles.add(band, block._replace(band=band))

    def rows(self, slab: Slab, values: Values) -> Iterator[tuple[int, Slab, Values]]:
        """Yield what goes into each block of a band: its number, and the elements."""
        axis = self.layout.buffered_axis
        if not self.is_apart:
            yield 0, slab, values
        elif slab.level > axis:
            yield slab.start[axis] % self.pieces, slab, values
        else:
            for n in range(slab.steps):
                *lead, row = slab.start
                one = Slab(axis, (*lead, row + n), 1)
                yield (row + n) % self.pieces, one, values[n : n + 1]

    def put(self, tiles: Tiles, slab: Slab, values: Values) -> None:
        """Copy the elements of a slab into tiles; the blocks are there."""
        axis = self.layout.buffered_axis
        row = slab.start[axis] % self.layout.ordered_chunks[axis]
        above = slab.level - axis
        rows = values.reshape((1,) * above + values.shape)
        fixed = tuple((at, at + 1) for at in slab.start[axis + 1 : slab.level])
        last = ((slab.start[-1], slab.start[-1] + slab.steps),) if above else ()
        whole = tuple((0, n) for n in self.layout.inner_grid.shape[above:])
        ranges = (*fixed, *last, *whole)
        piece, row = (row, 0) if self.is_apart else (0, row)
        if not self._copy_natively(tiles, piece, row, rows, ranges):
            for _, target, split in self._views(tiles, piece, row, rows, ranges):
                _copy(target, split)

    def _views(
        self, tiles: Tiles, piece: int, row: int, rows: Values, ranges: Ranges
    ) -> Iterator[tuple[int, Values, Values]]:
        """Yield for each part of a box its band, its place in a block, and its elements."""
        counts = self.layout.inner_grid.counts
        shape = (self._per_band, *counts[1:]) if counts else ()
        for each in self._slices(ranges):
            part = rows[(slice(None), *each.source)]
            split = part.reshape(len(part), *each.split).transpose(self._axes)
            places = (slice(row, row + len(part)), *each.places)
            block = tiles.blocks[each.band][piece].memory.reshape(*shape, *self._kept)
            yield each.band, block[(*each.tiles, *(places[n] for n in self._places))], split

    def _copy_natively(
        self, tiles: Tiles, piece: int, row: int, rows: Values, ranges: Ranges
    ) -> bool:
        """Copy rows by compiled code; False if it cannot.

        How rows of a shape are cut is kept: of the next ones only the places differ.
        """
        engine, key = native.compiled(), (ranges, rows.shape, rows.strides)
        if engine is None or rows.dtype != self.dtype:
            return False
        if key not in self._known:
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._boxes(tiles, piece, rows, ranges)
        known = self._known[key]
        if known is None:
            return False
        boxes, bands, to, source = known
        step = tiles.blocks[0][piece].memory.strides[1 + self._dim]
        boxes["to"] = tiles.addresses[bands, piece] + (to + row * step)
        boxes["from"] = rows.ctypes.data + source
        engine.copy(boxes)
        return True

    def _boxes(
        self, tiles: Tiles, piece: int, rows: Values, ranges: Ranges
    ) -> tuple[Values, Values, Values, Values] | None:
        """Return boxes that are copied; of each its band, and where it begins there and in rows."""
        views = list(self._views(tiles, piece, 0, rows, ranges))
        boxes = boxes_of([(target, split) for _, target, split in views])
        if boxes is None:
            return None
        bands = np.array([band for band, _, _ in views], int)
        to = boxes["to"].astype(int) - tiles.addresses[bands, piece]
        return boxes, bands, to, boxes["from"].astype(int) - rows.ctypes.data

    def clear(self, tiles: Tiles, done: int) -> None:
        """Write the fill value after the last element that arrived, to the end of its epoch."""
        axis = self.layout.buffered_axis
        step, fill = self.layout.step_sizes[axis], np.asarray(self.fill, self.dtype)
        for slab in self.layout.slabs(done, done + -done % step):  # the rest of a row
            inner = (n or 0 for n in self.layout.ordered_shape[slab.level + 1 :])
            self.put(tiles, slab, np.broadcast_to(fill, (slab.steps, *inner)))
        _, row = self.layout.epoch_of(done - 1)
        if self.is_apart:
            for pieces in tiles.blocks:
                for block in pieces[row + 1 :]:
                    block.memory[...] = fill
            return
        places: list[slice] = [slice(None)] * len(self.layout.chunks)
        places[self.layout.axis_order[axis]] = slice(row + 1, None)
        tiles.blocks[0][0].memory[(slice(None), *places)] = fill

    def _cut(self, ranges: Ranges) -> list[TileSlices]:
        """Return a box as parts of bands: whole tiles, and those that it cuts at its ends."""
        grid = self.layout.inner_grid
        sides = [_slices_along(grid, dim, *limits) for dim, limits in enumerate(ranges)]
        parts = list[TileSlices]()
        for picked in product(*sides):
            source, tiles, places, splits = zip(*picked) if picked else ((), (), (), ())
            split = tuple(n for two in splits for n in two)
            parts += self._by_band(TileSlices(0, source, tiles, places, split))
        return parts

    def _by_band(self, part: TileSlices) -> Iterator[TileSlices]:
        """Cut a part at the ends of bands, along the first dimension."""
        if self.bands == 1:
            yield part
            return
        (first, stop), (_, extent) = (part.tiles[0].start, part.tiles[0].stop), part.split[:2]
        for band in range(first // self._per_band, -(-stop // self._per_band)):
            start = band * self._per_band
            low, high = max(first, start), min(stop, start + self._per_band)
            source = part.source[0].start + (low - first) * extent
            yield TileSlices(
                band,
                (slice(source, source + (high - low) * extent), *part.source[1:]),
                (slice(low - start, high - start), *part.tiles[1:]),
                part.places,
                (high - low, extent, *part.split[2:]),
            )


def _slices_along(
    grid: BlockGrid, dim: int, low: int, high: int
) -> list[tuple[slice, slice, slice, tuple[int, int]]]:
    """Return the parts of a range: the elements, the tiles, the places in them, and the split."""
    parts = []
    for each in grid.classes_meeting(dim, low, high):
        start = grid.span(dim, each.first)[0] + each.offset - low
        parts.append(
            (
                slice(start, start + each.count * each.extent),
                slice(each.first, each.first + each.count),
                slice(each.offset, each.offset + each.extent),
                (each.count, each.extent),
            )
        )
    return parts


def _copy(target: Values, source: Values) -> None:
    """Copy an array, line by line where lines are contiguous: fewer and longer moves.

    Where there are many cores, a large one is copied by several threads.
    """
    count = min(MAX_COPIERS, source.nbytes // MIN_COPIED)
    width = source.shape[-1] * source.itemsize
    lines = source.dtype == target.dtype and width > source.itemsize
    if lines and source.strides[-1] == target.strides[-1] == source.itemsize:
        line = np.dtype(f"V{width}")
        target, source = target.view(line)[..., 0], source.view(line)[..., 0]
    axis = next((dim for dim, n in enumerate(target.shape) if n >= count), None)
    if count < 2 or axis is None:
        target[...] = source
        return
    edges = [number * target.shape[axis] // count for number in range(count + 1)]

    def copy(span: tuple[int, int]) -> None:
        part = (slice(None),) * axis + (slice(*span),)
        target[part] = source[part]

    for_each(copy, list(pairwise(edges)), max_threads=count)
