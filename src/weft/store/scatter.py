"""`Scatter`: elements as they arrive, put into the tiles of an epoch by lifted strides.

A dimension of size n is split into the digits tile and place in the tile, and the digits are
permuted: tiles first, then places in the order in which they are stored. NumPy does both with
strides alone, and copies every element once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from weft.store.chunk_layout import Span, Tiling
from weft.values import Point


class Piece(NamedTuple):
    """A part of a box whose tiles are alike: all whole, or all cut at the same places."""

    source: tuple[slice, ...]
    tiles: tuple[slice, ...]
    places: tuple[slice, ...]
    split: Point
    """For every dimension how many tiles, and how much of each."""


class Scatter:
    """Puts boxes of elements into the tiles of an epoch."""

    def __init__(self, tiling: Tiling, dtype: np.dtype[Any], fill: Any) -> None:
        self.tiling, self.dtype, self.fill = tiling, dtype, fill
        self.tile = tiling.chunks
        rank, behind = len(tiling.dims), len(tiling.inner)
        stored = sorted(range(tiling.grain, rank), key=lambda level: tiling.dims[level])
        digits = [0 if level == tiling.grain else 2 * (level - tiling.grain) for level in stored]
        self._axes = (*range(1, 2 * behind, 2), *digits)
        self._places = [level - tiling.grain for level in stored]
        """Which dimension, from the grain on, every place of a tile is along."""
        self._pieces = lru_cache(maxsize=256)(self._cut)

    @property
    def nbytes(self) -> int:
        """The bytes of the tiles of an epoch."""
        return self.tiling.tiles * prod(self.tile) * self.dtype.itemsize

    def pool(self) -> np.ndarray[Any, Any]:
        """Room for the tiles of an epoch; what no element reaches stays fill value."""
        pool = np.empty((self.tiling.tiles, *self.tile), self.dtype)
        pool[...] = self.fill
        return pool

    def put(self, pool: np.ndarray[Any, Any], span: Span, values: np.ndarray[Any, Any]) -> None:
        """A box of elements, as they arrive: `steps` of its level, and all behind it."""
        grain = self.tiling.grain
        place = span.at[grain] % self.tiling.extents[grain]
        above = span.level - grain
        rows = values.reshape((1,) * above + values.shape)
        fixed = tuple((at, at + 1) for at in span.at[grain + 1 : span.level])
        last = ((span.at[-1], span.at[-1] + span.steps),) if above else ()
        whole = tuple((0, n) for n in self.tiling.inner[above:])
        tiles = self._tiles(pool)
        for piece in self._pieces((*fixed, *last, *whole)):
            part = rows[(slice(None), *piece.source)]
            split = part.reshape(len(part), *piece.split).transpose(self._axes)
            places = (slice(place, place + len(part)), *piece.places)
            target = tiles[(*piece.tiles, *(places[level] for level in self._places))]
            _assign(target, split)

    def clear(self, pool: np.ndarray[Any, Any], done: int) -> None:
        """Fill value behind the last element that came, in the rest of its epoch."""
        grain, sizes = self.tiling.grain, self.tiling.sizes
        unit, fill = self.tiling.units[grain], np.asarray(self.fill, self.dtype)
        for span in self.tiling.spans(done, -(-done // unit) * unit):  # the rest of a row
            below = (n or 0 for n in sizes[span.level + 1 :])
            self.put(pool, span, np.broadcast_to(fill, (span.steps, *below)))
        _, row = self.tiling.epoch(done - 1)
        places: list[slice] = [slice(None)] * len(self.tile)
        places[self.tiling.dims[grain]] = slice(row + 1, None)
        pool[(slice(None), *places)] = fill

    def _tiles(self, pool: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A pool by tiles along every dimension behind the grain, and places from the grain on.

        Chunks of the dimensions before it are one long: their places are left out.
        """
        before = set(self.tiling.dims[: self.tiling.grain])
        kept = [n for dim, n in enumerate(self.tile) if dim not in before]
        return pool.reshape(*self.tiling.inner_counts, *kept)

    def _cut(self, ranges: tuple[tuple[int, int], ...]) -> list[Piece]:
        """The pieces of a box: along every dimension the whole tiles, and those at its ends."""
        extents = self.tiling.extents[self.tiling.grain + 1 :]
        options = [list(_segments(*limits, n)) for limits, n in zip(ranges, extents)]
        pieces = []
        for picked in product(*options):
            sources, tiles, places, splits = zip(*picked) if picked else ((), (), (), ())
            pieces.append(Piece(sources, tiles, places, tuple(n for two in splits for n in two)))
        return pieces


def _segments(
    start: int, stop: int, chunk: int
) -> Iterator[tuple[slice, slice, slice, tuple[int, int]]]:
    """A range cut at tiles: its source, its tiles, the places in them, and how it is split."""
    at = start
    while at < stop:
        tile, place = divmod(at, chunk)
        count = (stop - at) // chunk if place == 0 else 0
        size = chunk if count else min(chunk - place, stop - at)
        end = at + max(count, 1) * size
        yield (
            slice(at - start, end - start),
            slice(tile, tile + max(count, 1)),
            slice(place, place + size),
            (max(count, 1), size),
        )
        at = end


def _assign(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Copy, line by line where lines are contiguous: fewer and longer moves."""
    width = source.shape[-1] * source.itemsize
    lines = source.dtype == target.dtype and width > source.itemsize
    if lines and source.strides[-1] == target.strides[-1] == source.itemsize:
        line = np.dtype(f"V{width}")
        target, source = target.view(line)[..., 0], source.view(line)[..., 0]
    target[...] = source
