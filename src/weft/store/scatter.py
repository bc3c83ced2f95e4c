"""`Scatter`: copies elements, as they arrive, into the tiles of an epoch.

Each dimension is split into two, the tile and the place in the tile, and the axes are permuted:
tiles first, then places in stored order. NumPy does both with strides, and copies elements once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from weft.space import BlockGrid
from weft.store.buffers import BUFFERS
from weft.store.chunk_layout import FrameLayout, Slab
from weft.store.threads import CORES, for_each
from weft.values import Point

MAX_BANDS = min(4, CORES // 4)
"""The most threads that copy elements into tiles; few cores have enough to do with encoding."""

MIN_BAND = 1 << 20
"""Bytes from which a thread of its own pays."""


class TileSlices(NamedTuple):
    """A part of a box whose tiles are alike: all whole, or all cut at the same places."""

    source: tuple[slice, ...]
    tiles: tuple[slice, ...]
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
        outer = set(layout.axis_order[:axis])  # their chunks are one long
        kept = (n for dim, n in enumerate(layout.chunks) if dim not in outer)
        self._pool_shape = (*layout.inner_grid.counts, *kept)
        """The tiles along each inner dimension, and the places in a tile."""
        self._slices = lru_cache(maxsize=256)(self._cut)

    @property
    def nbytes(self) -> int:
        """The bytes of the tiles of an epoch."""
        return self.layout.tiles_per_epoch * prod(self.layout.chunks) * self.dtype.itemsize

    def pool(self) -> np.ndarray[Any, Any]:
        """Return memory for the tiles of an epoch, all fill value."""
        shape = (self.layout.tiles_per_epoch, *self.layout.chunks)
        pool = BUFFERS.allocate(self.nbytes).view(self.dtype).reshape(shape)
        fill = np.asarray(self.fill, self.dtype)
        if any(fill.tobytes()):
            pool[...] = fill
        return pool

    def put(self, pool: np.ndarray[Any, Any], slab: Slab, values: np.ndarray[Any, Any]) -> None:
        """Copy the elements of a slab into the tiles of a pool."""
        axis = self.layout.buffered_axis
        row = slab.start[axis] % self.layout.ordered_chunks[axis]
        above = slab.level - axis
        rows = values.reshape((1,) * above + values.shape)
        fixed = tuple((at, at + 1) for at in slab.start[axis + 1 : slab.level])
        last = ((slab.start[-1], slab.start[-1] + slab.steps),) if above else ()
        whole = tuple((0, n) for n in self.layout.inner_grid.shape[above:])
        tiles = pool.reshape(self._pool_shape)
        for each in self._slices((*fixed, *last, *whole)):
            part = rows[(slice(None), *each.source)]
            split = part.reshape(len(part), *each.split).transpose(self._axes)
            places = (slice(row, row + len(part)), *each.places)
            _copy(tiles[(*each.tiles, *(places[n] for n in self._places))], split)

    def clear(self, pool: np.ndarray[Any, Any], done: int) -> None:
        """Write the fill value after the last element that arrived, to the end of its epoch."""
        axis = self.layout.buffered_axis
        step, fill = self.layout.step_sizes[axis], np.asarray(self.fill, self.dtype)
        for slab in self.layout.slabs(done, done + -done % step):  # the rest of a row
            inner = (n or 0 for n in self.layout.ordered_shape[slab.level + 1 :])
            self.put(pool, slab, np.broadcast_to(fill, (slab.steps, *inner)))
        _, row = self.layout.epoch_of(done - 1)
        places: list[slice] = [slice(None)] * len(self.layout.chunks)
        places[self.layout.axis_order[axis]] = slice(row + 1, None)
        pool[(slice(None), *places)] = fill

    def _cut(self, ranges: tuple[tuple[int, int], ...]) -> list[TileSlices]:
        """Return a box as parts: whole tiles, and those that it cuts at its ends."""
        grid = self.layout.inner_grid
        sides = [_slices_along(grid, dim, *limits) for dim, limits in enumerate(ranges)]
        parts = []
        for picked in product(*sides):
            source, tiles, places, splits = zip(*picked) if picked else ((), (), (), ())
            parts.append(TileSlices(source, tiles, places, tuple(n for two in splits for n in two)))
        return parts


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


def _copy(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy an array, line by line where lines are contiguous: fewer and longer moves.

    Where there are many cores, a large one is copied in bands, on several threads.
    """
    bands = min(MAX_BANDS, source.nbytes // MIN_BAND)
    width = source.shape[-1] * source.itemsize
    lines = source.dtype == target.dtype and width > source.itemsize
    if lines and source.strides[-1] == target.strides[-1] == source.itemsize:
        line = np.dtype(f"V{width}")
        target, source = target.view(line)[..., 0], source.view(line)[..., 0]
    axis = next((dim for dim, n in enumerate(target.shape) if n >= bands), None)
    if bands < 2 or axis is None:
        target[...] = source
        return
    edges = [number * target.shape[axis] // bands for number in range(bands + 1)]

    def copy(span: tuple[int, int]) -> None:
        part = (slice(None),) * axis + (slice(*span),)
        target[part] = source[part]

    for_each(copy, list(pairwise(edges)), max_threads=bands)
