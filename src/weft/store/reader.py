"""`Array`: a stored array, of which boxes are read and every byte is verified."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.codecs import CodecError, decode
from weft.store.dtypes import as_dtype
from weft.store.index import ABSENT, Index, ShardError, length
from weft.store.metadata import Metadata
from weft.store.sink import Sink
from weft.store.tiling import Tiling
from weft.values import Point

THREADS = 4
"""Threads that read and decode chunks."""


class _Wanted(NamedTuple):
    """A chunk of which a part is wanted."""

    shard: Point
    slot: int
    box: ZRange
    """The chunk in the array, whole."""


class Array:
    """A Zarr v3 array in a folder: its metadata, and boxes of it.

    What was written by others is read as well, as long as its codecs are known here.
    """

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        self.sink = sink
        self.path, self.metadata = Path(sink.url), metadata
        self.tiling = Tiling(metadata.shape, metadata.chunks, metadata.shards)
        self.dtype = as_dtype(metadata.dtype)[1]
        self._index = lru_cache(maxsize=1024)(self._read_index)

    @property
    def shape(self) -> Point:
        """The shape of the array."""
        return self.metadata.shape

    def read(self, box: ZRange | None = None) -> np.ndarray[Any, Any]:
        """The elements of a box, or all of them; chunks that are not stored are fill value."""
        whole = ZRange.of(self.shape)
        wanted = whole if box is None else box
        if wanted not in whole and not wanted.is_empty:
            raise WeftError(f"{wanted} is not inside the array, {whole}")
        made = np.empty(wanted.shape, self.dtype)
        made[...] = self.metadata.fill
        with ThreadPoolExecutor(THREADS) as threads:
            for part in threads.map(lambda chunk: self._part(chunk, wanted), self._chunks(wanted)):
                if part is not None:
                    inside, values = part
                    made[inside.slices(wanted.start)] = values
        return made

    def verify(self) -> int:
        """Read every index and every chunk, and count the chunks; an error names a bad one."""
        count = 0
        grid = [range(-(-n // s)) for n, s in zip(self.shape, self.metadata.shards)]
        with ThreadPoolExecutor(THREADS) as threads:
            for shard in product(*grid):
                index = self._index(shard)
                if index is None:
                    continue
                slots = list(index.present())
                count += sum(1 for _ in threads.map(lambda n, s=shard: self._decoded(s, n), slots))
        return count

    # -- chunks

    def _chunks(self, box: ZRange) -> Iterator[_Wanted]:
        """The chunks that a box meets."""
        if box.is_empty:
            return
        per = self.tiling.per_shard
        spans = zip(box.start, box.stop, self.metadata.chunks)
        for at in product(*(range(low // c, (high - 1) // c + 1) for low, high, c in spans)):
            shard = tuple(t // n for t, n in zip(at, per))
            slot = 0
            for t, n in zip(at, per):
                slot = slot * n + t % n
            start = [t * c for t, c in zip(at, self.metadata.chunks)]
            stop = [a + c for a, c in zip(start, self.metadata.chunks)]
            yield _Wanted(shard, slot, ZRange(start, stop))

    def _part(self, chunk: _Wanted, box: ZRange) -> tuple[ZRange, np.ndarray[Any, Any]] | None:
        values = self._decoded(chunk.shard, chunk.slot)
        if values is None:
            return None
        inside = chunk.box & box
        return inside, values[inside.slices(chunk.box.start)]

    def _decoded(self, shard: Point, slot: int) -> np.ndarray[Any, Any] | None:
        """A chunk, or None if it is not stored."""
        index = self._index(shard)
        if index is None or index.offsets[slot] == ABSENT:
            return None
        data = self._bytes(shard, index.offsets[slot], index.sizes[slot])
        size = prod(self.metadata.chunks) * self.dtype.itemsize
        try:
            raw = decode(self.metadata.codecs, data, size)
        except CodecError as error:
            box = self.tiling.box(shard, slot)
            raise ShardError(f"{self._file(shard)}: chunk {slot}, {box}: {error}") from None
        return self._shaped(raw)

    def _shaped(self, raw: Any) -> np.ndarray[Any, Any]:
        order = self.metadata.order or tuple(range(len(self.metadata.chunks)))
        dtype = self.dtype.newbyteorder(">" if self.metadata.endian == "big" else "<")
        stored = np.frombuffer(raw, dtype).reshape([self.metadata.chunks[dim] for dim in order])
        return stored.transpose(np.argsort(order))

    def _file(self, shard: Point) -> Path:
        return self.path.joinpath("c", *map(str, shard))

    def _read_index(self, shard: Point) -> Index | None:
        path, slots = self._file(shard), self.tiling.slots
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return None
        if not self.metadata.is_sharded:
            return Index([0], [size])
        count = length(slots)
        if size < count:
            raise ShardError(f"{path} has {size} B, and the index of {slots} chunks {count} B")
        start = 0 if self.metadata.index_location == "start" else size - count
        try:
            return Index.from_bytes(self._bytes(shard, start, count), slots, size)
        except ShardError as error:
            raise ShardError(f"{path}: {error}") from None

    def _bytes(self, shard: Point, start: int, count: int) -> bytes:
        path = self._file(shard)
        file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            data = os.pread(file, count, start)
        finally:
            os.close(file)
        if len(data) < count:
            raise ShardError(f"{path} ends at {start + len(data)} B; {start + count} B are wanted")
        return data
