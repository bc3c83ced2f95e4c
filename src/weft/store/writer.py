"""`Writer`: frames in, shards out.

Frames are scattered into the tiles of an epoch. A full epoch goes to threads, which drop tiles that
are all fill value, compress the others, and write those of each shard in one piece, while frames
are scattered into the tiles of the next one. A shard is visible when its last tile has come.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import Bytes, encode
from weft.store.dtypes import as_dtype
from weft.store.files import Folder, Shard
from weft.store.metadata import Metadata
from weft.store.tiling import Group, Tiling
from weft.values import Point

POOLS = 2
"""Epochs that are held at once: one that is filled, and one that is written."""

BATCH = 8
"""Tiles that a thread compresses at a time."""


class _Piece(NamedTuple):
    """Where a part of a frame goes: dimensions behind the grain, whole tiles or the last one."""

    source: tuple[slice, ...]
    tiles: tuple[slice, ...]
    extents: Point
    counts: Point


@dataclass(slots=True)
class _Made:
    """The compressed tiles of an epoch for one shard, and how many batches are still to come."""

    group: Group
    number: int
    """Of the epochs of this shard."""
    chunks: list[Bytes | None]
    left: int


class Writer:
    """Appends frames to a sharded array; used in a `with` block."""

    def __init__(
        self,
        folder: Folder,
        metadata: Metadata,
        shape: Sequence[int | None],
        threads: int,
        lock: int,
        first: int = 0,
    ) -> None:
        self.folder, self.metadata, self._held = folder, metadata, lock
        self.tiling = Tiling(tuple(shape), metadata.chunks, metadata.shards)
        self.dtype = as_dtype(metadata.dtype)[1]
        self.fill = metadata.fill
        self.frames = 0
        """Rows along the grain that have been appended, all leading dimensions counted through."""
        self._first = first
        """The rows that were there before, of an array that is continued."""
        self._pieces = list(self._cut())
        self._threads = ThreadPoolExecutor(threads, "weft-store")
        self._free = [self._pool() for _ in range(POOLS)]
        self._busy: list[tuple[np.ndarray[Any, Any], list[Future[None]]]] = []
        self._shards: dict[Point, Shard] = {}
        self._lock = threading.Lock()
        self._epochs: dict[Point, int] = {}
        self._rows_done: dict[int, int] = {}
        self._safe = 0
        """The rows that lie in shards that are visible, with all before them."""
        self._pool_now: np.ndarray[Any, Any] | None = None
        self._failed: OSError | None = None
        self._is_open = True

    # -- what a person calls

    def append(self, block: Any) -> None:
        """Append frames: an array of the dimensions from the grain on, or from the first on."""
        self._check()
        rows = self._rows(np.asarray(block))
        while len(rows):
            room = self._room()
            self._scatter(rows[:room])
            rows = rows[room:]

    def memory(self) -> int:
        """The bytes of tiles that are held, whatever comes."""
        return POOLS * self.tiling.tiles * prod(self._tile) * self.dtype.itemsize

    def close(self) -> None:
        """Write what is there, and say in the metadata how much that is."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._failed is None:
                self._end_epoch()
                self._wait(0)
                with self._lock:
                    for at in list(self._shards):
                        self._shards.pop(at).finish()
                self._describe(self.shape[0])
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)
            for shard in self._shards.values():
                shard.drop()
            self.folder.unlock(self._held)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def shape(self) -> Point:
        """The shape of what has been appended."""
        rows = -(-self.frames // self._per_row) if self._per_row else 0
        return (rows, *self.metadata.shape[1:])

    def start_at(self, row: int) -> None:
        """Go on at a row of the outermost dimension, where a shard begins."""
        self.frames, self._safe = row * self._per_row, row

    @cached_property
    def _per_row(self) -> int:
        """How many rows along the grain make one of the outermost dimension."""
        return prod(n or 0 for n in self.tiling.shape[1 : self.tiling.grain + 1])

    @cached_property
    def _across(self) -> int:
        """How many shards lie in one row of them."""
        sizes = zip(self.metadata.shape[1:], self.metadata.shards[1:])
        return prod(-(-n // s) for n, s in sizes)

    # -- frames

    @property
    def _tile(self) -> Point:
        """A tile from the grain on."""
        return self.metadata.chunks[self.tiling.grain :]

    def _pool(self) -> np.ndarray[Any, Any]:
        """Room for the tiles of an epoch; what no frame reaches stays fill value."""
        pool = np.empty((*self.tiling.inner_counts, *self._tile), self.dtype)
        pool[...] = self.fill
        return pool

    def _rows(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A block as rows along the grain."""
        name = self.metadata.dtype
        if block.dtype.name != name and not (name == "bfloat16" and block.dtype == self.dtype):
            raise WeftError(f"the array holds {name}, and the block {block.dtype.name}")
        if name == "bfloat16":
            block = block.view(np.uint16)
        inner, grain = self.tiling.inner, self.tiling.grain
        lead = block.ndim - len(inner)
        if lead < 0 or lead > grain + 1 or block.shape[lead:] != inner:
            wanted = ", ".join(["…", *map(str, inner)])
            raise WeftError(f"a block of {list(block.shape)} does not go to frames of [{wanted}]")
        middle = self.tiling.shape[grain - lead + 2 : grain + 1] if lead > 1 else ()
        if lead > 1 and block.shape[1:lead] != tuple(middle):
            raise WeftError(
                f"a block of {list(block.shape)} is not whole behind its first dimension"
            )
        return block.reshape(-1, *inner)

    def _length(self) -> int | None:
        """How many rows there are along the grain for each place of the dimensions before it."""
        return self.tiling.shape[self.tiling.grain]

    def _place(self, row: int) -> tuple[Point, int]:
        """The chunk up to the grain, and the place in it, of a row."""
        length, chunk = self._length(), self.metadata.chunks[self.tiling.grain]
        before, at = divmod(row, length) if length is not None else (0, row)
        lead: list[int] = []
        for n in reversed(self.tiling.shape[: self.tiling.grain]):
            before, digit = divmod(before, n) if n is not None else (0, before)
            lead.append(digit)
        if before:
            raise WeftError(f"row {row} lies behind the end of {list(self.tiling.shape)}")
        return (*reversed(lead), at // chunk), at % chunk

    def _room(self) -> int:
        """How many rows the epoch has left."""
        chunk, length = self.metadata.chunks[self.tiling.grain], self._length()
        (*_, tile), at = self._place(self.frames)
        end = chunk if length is None else min(chunk, length - tile * chunk)
        return end - at

    def _scatter(self, rows: np.ndarray[Any, Any]) -> None:
        if self._pool_now is None:
            self._wait(POOLS - 1)
            self._pool_now = self._free.pop()
        _, at = self._place(self.frames)
        inner = len(self.tiling.inner)
        for source, tiles, extents, counts in self._pieces:
            part = rows[(slice(None), *source)]
            shape = [len(rows), *(n for pair in zip(counts, extents) for n in pair)]
            split = part.reshape(shape)
            axes = [*range(1, 2 * inner, 2), 0, *range(2, 2 * inner + 1, 2)]
            into = (*tiles, slice(at, at + len(rows)), *(slice(0, n) for n in extents))
            self._pool_now[into] = split.transpose(axes)
        self.frames += len(rows)
        if self._is_full():
            self._end_epoch()

    def _is_full(self) -> bool:
        """Whether the epoch has its last row."""
        length = self._length()
        _, place = self._place(self.frames - 1)
        at_end = length is not None and self.frames % length == 0
        return at_end or place + 1 == self.metadata.chunks[self.tiling.grain]

    def _cut(self) -> list[_Piece]:
        """The parts of a frame: along every dimension the whole tiles, and a short last one."""
        options = []
        for n, chunk in zip(self.tiling.inner, self.metadata.chunks[self.tiling.grain + 1 :]):
            whole, rest = divmod(n, chunk)
            found = [(slice(0, whole * chunk), slice(0, whole), chunk, whole)] if whole else []
            if rest:
                found.append((slice(whole * chunk, n), slice(whole, whole + 1), rest, 1))
            options.append(found)
        pieces = []
        for picked in product(*options):
            sources, tiles, extents, counts = zip(*picked) if picked else ((), (), (), ())
            pieces.append(_Piece(sources, tiles, extents, counts))
        return pieces

    # -- epochs

    def _end_epoch(self) -> None:
        """Hand the tiles over, and go on with others."""
        pool = self._pool_now
        if pool is None:
            return
        self._pool_now = None
        at, place = self._place(self.frames - 1)
        lead = (slice(None),) * len(self.tiling.inner)
        pool[(*lead, slice(place + 1, None))] = self.fill  # a short epoch at an end
        flat = pool.reshape(self.tiling.tiles, *self._tile)
        jobs = []
        for group in self.tiling.groups(at):
            number = self._epochs.get(group.shard, 0)
            self._epochs[group.shard] = number + 1
            left = -(-len(group.tiles) // BATCH)
            made = _Made(group, number, [None] * len(group.tiles), left)
            for first in range(0, len(group.tiles), BATCH):
                jobs.append(self._threads.submit(self._compress, flat, made, first))
        self._busy.append((pool, jobs))

    def _wait(self, most: int) -> None:
        """Until at most so many epochs are still being written."""
        while len(self._busy) > most:
            pool, jobs = self._busy.pop(0)
            for job in jobs:
                try:
                    job.result()
                except OSError as error:
                    self._failed = error
                    raise WeftError(
                        f"{self.folder.path}: writing failed: {error}",
                        hint="shards that are visible are whole; what came after them is not there",
                    ) from error
            self._free.append(pool)

    def _compress(self, tiles: np.ndarray[Any, Any], made: _Made, first: int) -> None:
        """Compress some tiles of a shard; who has the last of them writes all."""
        for n in range(first, min(first + BATCH, len(made.chunks))):
            made.chunks[n] = self._encoded(tiles[made.group.tiles[n]])
        with self._lock:
            made.left -= 1
            is_last = made.left == 0
        if is_last:
            self._write(made)

    def _write(self, made: _Made) -> None:
        """Write the tiles of a shard in one piece, behind those of the epochs before."""
        group = made.group
        with self._lock:
            shard = self._shards.get(group.shard)
            if shard is None:
                first = self.metadata.index_location == "start"
                shard = self.folder.open_shard(group.shard, self.tiling.slots, first)
                self._shards[group.shard] = shard
            turns = shard.take(made.number, (group.slots, made.chunks))
        if not turns:  # an epoch before it is not there yet; who brings it writes both
            return
        for start, chunks in turns:
            shard.write(start, [chunk for chunk in chunks if chunk is not None])
        with self._lock:
            shard.written += len(turns)
            done = shard.written == shard.next and shard.seen == self._expected(group.shard)
            if done:
                del self._shards[group.shard]
        if done:
            shard.finish()
            self._finished(group.shard)

    def _finished(self, shard: Point) -> None:
        """Say in the metadata what is there, once all shards along a row are visible."""
        with self._lock:
            row = shard[0]
            self._rows_done[row] = self._rows_done.get(row, 0) + 1
            before = self._safe
            while self._rows_done.get(self._safe // self.metadata.shards[0], 0) == self._across:
                self._safe += self.metadata.shards[0]
            if self._safe > before:
                self._describe(self._safe)

    def _describe(self, rows: int) -> None:
        """Write the metadata of an array of so many rows; never fewer than were there."""
        end = self.tiling.shape[0]
        rows = max(self._first, rows if end is None else min(rows, end))
        shape = (rows, *self.metadata.shape[1:])
        self.folder.write_text("zarr.json", replace(self.metadata, shape=shape).to_json())

    def _expected(self, shard: Point) -> int:
        size = [
            n if n is not None else (shard[dim] + 1) * self.metadata.shards[dim]
            for dim, n in enumerate(self.tiling.shape)
        ]
        return self.tiling.expected(shard, tuple(size))

    def _encoded(self, tile: np.ndarray[Any, Any]) -> Bytes | None:
        """The bytes of a chunk; None for one that is all fill value."""
        if self._is_fill(tile):
            return None
        chunk = tile.reshape(self.metadata.chunks)
        if self.metadata.order:
            chunk = np.ascontiguousarray(chunk.transpose(self.metadata.order))
        if self.metadata.endian == "big" and self.dtype.itemsize > 1:
            chunk = chunk.astype(self.dtype.newbyteorder(">"))
        return encode(self.metadata.codecs, chunk.reshape(-1).view(np.uint8).data)

    def _is_fill(self, tile: np.ndarray[Any, Any]) -> bool:
        """Whether every byte is that of the fill value: NaN is one, and -0.0 is not 0.0."""
        bits = np.dtype(f"V{self.dtype.itemsize}")
        flat, fill = tile.reshape(-1), np.asarray(self.fill, self.dtype).reshape(1)
        if flat[:1].tobytes() != fill.tobytes() or flat[-1:].tobytes() != fill.tobytes():
            return False
        return bool((flat.view(bits) == fill.view(bits)).all())

    # -- what is said of it

    def _check(self) -> None:
        if not self._is_open:
            raise WeftError(f"{self.folder.path} is closed: nothing can be appended")
        if self._failed is not None:
            raise WeftError(
                f"{self.folder.path}: writing failed before, and nothing can be appended: "
                f"{self._failed}"
            )
