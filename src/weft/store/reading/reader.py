"""`Array`: a stored array, of which boxes are read and every byte is verified.

The chunks that a box meets are found shard by shard. What lies close together in a shard is read at
once, and threads decode it, straight into the result where it lies there in one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.codecs import Blosc, CodecError, decode, most_stored
from weft.store.dtypes import Bytes, as_dtype
from weft.store.index import ABSENT, ShardError
from weft.store.metadata import Metadata
from weft.store.reading.parts import Grid, Part, Place
from weft.store.reading.shards import Shards
from weft.store.reading.source import OpenFile, Shard
from weft.store.reading.workers import each, scratch
from weft.store.sink import Sink
from weft.store.tiling import Tiling
from weft.values import Point

ATTEMPTS = 3
"""How often a shard is read that is replaced in the meantime."""

WINDOW = 16
"""Shards that are read at the same time: each local one is an open file."""

SMALL = 1 << 16
"""Bytes that one thread decodes faster than it calls others."""

Result: TypeAlias = np.ndarray[Any, Any]
Task: TypeAlias = Callable[[], object]


class _Piece(NamedTuple):
    """A part of a chunk, and the bytes of the shard that it takes."""

    start: int
    stop: int
    part: Part


class Array:
    """A Zarr v3 array: its metadata, and boxes of it.

    What was written by others is read as well, as long as its codecs are known here. An array is as
    large as it was when it was opened; each read sees every shard as it is then.
    """

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        self.sink, self.metadata = sink, metadata
        self.dtype: np.dtype[Any] = as_dtype(metadata.dtype)[1]
        small = tuple(max(1, n) for n in metadata.chunks)
        large = tuple(max(1, n) for n in metadata.shards)
        self.tiling = Tiling(metadata.shape, small, large)
        self._grid = Grid(small, large, metadata.order, self.dtype.itemsize)
        self._shards = Shards(sink, metadata, self._grid)
        self._stored = self.dtype.newbyteorder(">" if metadata.endian == "big" else "<")
        self._is_plain = self._stored.isnative and not metadata.order
        self._has_blosc = any(isinstance(codec, Blosc) for codec in metadata.codecs)

    def __reduce__(self) -> tuple[object, ...]:
        return Array, (self.sink, self.metadata)

    def __repr__(self) -> str:
        return f"<Array {self.metadata.dtype}{list(self.shape)} at {self.sink.url}>"

    @property
    def shape(self) -> Point:
        """The shape of the array."""
        return self.metadata.shape

    @property
    def chunks(self) -> Point:
        """The shape of a chunk: what is decoded at once."""
        return self.metadata.chunks

    @property
    def shards(self) -> Point:
        """The shape of a shard: what is one file."""
        return self.metadata.shards

    @property
    def box(self) -> ZRange:
        """All of the array."""
        return ZRange.of(self.shape)

    def shards_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """The shards that a box meets, or all: their boxes, as far as the array goes."""
        return self._blocks(self._inside(box), self._grid.shards)

    def chunks_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """The chunks that a box meets, or all: their boxes, as far as the array goes."""
        return self._blocks(self._inside(box), self._grid.chunks)

    def _blocks(self, box: ZRange, sizes: Point) -> Iterator[ZRange]:
        if box.is_empty:
            return iter(())
        start = [low // n * n for low, n in zip(box.start, sizes)]
        stop = [min(-(-high // n) * n, end) for high, n, end in zip(box.stop, sizes, self.shape)]
        return ZRange(start, stop).tiles(sizes)

    # -- what a person calls

    def read(self, box: ZRange | None = None, out: Result | None = None) -> Result:
        """The elements of a box, or all of them; chunks that are not stored are fill value."""
        wanted = self._inside(box)
        made = np.empty(wanted.shape, self.dtype) if out is None else self._room(out, wanted)
        for window in self._windows(wanted):
            self._attempt(window, partial(self._filling, wanted, made))
        return made if out is None else out

    def rows(self, step: int, dim: int = 0, start: int = 0) -> Iterator[Result]:
        """The array from a row of a dimension on, in boxes of so many rows."""
        size = self.shape[dim]
        for row in range(start, size, step):
            low, high = [0] * len(self.shape), list(self.shape)
            low[dim], high[dim] = row, min(row + step, size)
            yield self.read(ZRange(low, high))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Read every index and every chunk, and count the chunks; an error names a bad one.

        `progress` is told how many shards and chunks have been read so far.
        """
        count = shards = 0
        for window in self._windows(self.box):
            self._shards.forget(window)
            counts: dict[Point, int] = {}
            self._attempt(window, partial(self._checking, counts))
            count, shards = count + sum(counts.values()), shards + len(window)
            if progress is not None:
                progress(shards, count)
        return count

    def _inside(self, box: ZRange | None) -> ZRange:
        whole = self.box
        if box is None:
            return whole
        if box.ndim != whole.ndim or (box not in whole and not box.is_empty):
            raise WeftError(f"{box} is not inside the array, {whole}")
        return box

    def _room(self, out: Result, box: ZRange) -> Result:
        made = out.view(np.uint16) if self.metadata.dtype == out.dtype.name == "bfloat16" else out
        if made.shape != box.shape or made.dtype != self.dtype or not made.flags.writeable:
            raise WeftError(
                f"out is {out.dtype.name}{list(out.shape)}, and {box} is "
                f"{self.metadata.dtype}{list(box.shape)}, to be written to"
            )
        return made

    # -- shards

    def _windows(self, box: ZRange) -> Iterator[list[Point]]:
        """The shards that a box meets, some at a time; many where each is one chunk."""
        shards = self._grid.shards_of(box)
        count = WINDOW if self.metadata.is_sharded else 64 * WINDOW
        while window := list(islice(shards, count)):
            yield window

    def _attempt(
        self, window: list[Point], tasks_of: Callable[[Point, Shard | None], Iterable[Task]]
    ) -> None:
        """Do what is to be done for some shards, again if one of them was replaced meanwhile."""
        if not self.metadata.is_sharded:
            self._do([task for at in window for task in tasks_of(at, None)])
            return
        for attempt in range(1, ATTEMPTS + 1):
            held = {at: shard for at in window if (shard := self._shards.held(at)) is not None}
            found = held | self._shards.find_all(at for at in window if at not in held)
            checks = [] if self._shards.source.is_near else [*self._checks(held)]
            try:
                self._do([*checks, *(t for at in window for t in tasks_of(at, found.get(at)))])
                return
            except ShardError:
                if attempt == ATTEMPTS or all(shard.is_current() for shard in found.values()):
                    raise
                self._shards.forget(window)
            finally:
                for shard in found.values():
                    shard.close()

    def _checks(self, held: Mapping[Point, Shard]) -> Iterator[Task]:
        """Ask whether shards that were found before are current, while their chunks are fetched."""
        for at, shard in held.items():
            yield partial(self._check, at, shard)

    def _check(self, at: Point, shard: Shard) -> None:
        if not shard.is_current():
            raise self._shards.error(at, None, "it is replaced again and again")

    def _do(self, tasks: list[Task]) -> None:
        kind = self._shards.source.kind
        if kind == "decode" and len(tasks) * self._grid.size <= SMALL:
            for task in tasks:
                task()
            return
        # Blosc has threads of its own where the main thread calls it, and they would be too many.
        is_main = threading.current_thread() is threading.main_thread()
        each(_call, tasks, kind=kind, joins=not (self._has_blosc and is_main))

    def _filling(self, box: ZRange, out: Result, at: Point, shard: Shard | None) -> Iterator[Task]:
        """What brings the part of a shard that lies in a box into the result."""
        parts = self._grid.parts_of(box, at)
        if not self.metadata.is_sharded:
            yield partial(self._take, out, at, parts[0])
        elif shard is None:
            where = self._grid.box(at) & box
            yield partial(self._leave, out, [(*where.slices(box.start), ...)])
        else:
            sizes = shard.index.sizes
            if empty := [part.into for part in parts if sizes[part.slot] == ABSENT]:
                yield partial(self._leave, out, empty)
            present = (part for part in parts if sizes[part.slot] != ABSENT)
            yield from self._runs(out, at, shard, present)

    def _checking(self, counts: dict[Point, int], at: Point, shard: Shard | None) -> Iterator[Task]:
        """What decodes all chunks of a shard, and counts them."""
        if not self.metadata.is_sharded:
            yield partial(self._count, counts, at)
        elif shard is not None:
            slots = list(shard.index.present())
            counts[at] = len(slots)
            whole = (Part(slot, 0, self._grid.size, (), ()) for slot in slots)
            yield from self._runs(None, at, shard, whole)

    def _count(self, counts: dict[Point, int], at: Point) -> None:
        counts[at] = self._take(None, at, Part(0, 0, self._grid.size, (), ()))

    # -- bytes

    def _runs(
        self, out: Result | None, at: Point, shard: Shard, parts: Iterable[Part]
    ) -> Iterator[Task]:
        """Parts by the bytes that are read at once: what lies close together, and not too much."""
        source = self._shards.source
        pieces = sorted(self._piece(at, shard, part) for part in parts)
        run: list[_Piece] = []
        stop = 0
        for piece in pieces:
            far = not stop <= piece.start <= stop + source.gap
            if run and (far or piece.stop - run[0].start > source.most):
                yield partial(self._read_run, out, at, shard, run, stop)
                run = []
            stop = piece.stop
            run.append(piece)
        if run:
            yield partial(self._read_run, out, at, shard, run, stop)

    def _piece(self, at: Point, shard: Shard, part: Part) -> _Piece:
        offset, size = shard.index.offsets[part.slot], shard.index.sizes[part.slot]
        self._check_size(at, part.slot, size)
        if self.metadata.codecs:
            return _Piece(offset, offset + size, part)
        return _Piece(offset + part.first, offset + part.first + part.reach, part)

    def _check_size(self, at: Point, slot: int, size: int) -> None:
        """No more is read than a chunk can have, whatever an index says."""
        codecs, whole = self.metadata.codecs, self._grid.size
        if size > most_stored(codecs, whole) or (not codecs and size != whole):
            raise self._shards.error(at, slot, f"a chunk of {whole} B was stored as {size} B")

    def _read_run(
        self, out: Result | None, at: Point, shard: Shard, run: list[_Piece], stop: int
    ) -> None:
        start, part = run[0].start, run[0].part
        try:
            if len(run) == 1 and out is not None and isinstance(shard, OpenFile):
                view = None if self.metadata.codecs else self._straight(out, part)
                if view is not None:
                    shard.read_into(start, view)
                    return
            data = memoryview(shard.read(start, stop - start))
        except ShardError as error:
            raise self._shards.error(at, part.slot, error) from None
        for piece in run:
            self._place(out, at, piece.part, data[piece.start - start : piece.stop - start])

    def _straight(self, out: Result, part: Part) -> memoryview | None:
        """The bytes of the result that a part is, if they are just those that are stored."""
        view = out[part.into]
        if self._is_plain and view.nbytes == part.reach and view.flags.c_contiguous:
            return view.reshape(-1).view(np.uint8).data
        return None

    def _place(self, out: Result | None, at: Point, part: Part, stored: Bytes) -> None:
        """Decode a chunk, and bring a part of it into the result."""
        try:
            self._decode(out, part, stored)
        except CodecError as error:
            raise self._shards.error(at, part.slot, error) from None

    def _decode(self, out: Result | None, part: Part, stored: Bytes) -> None:
        codecs, size, skipped = self.metadata.codecs, self._grid.size, 0
        if codecs:
            view = self._straight(out, part) if out is not None and part.reach == size else None
            raw = scratch("chunk", size) if view is None else view
            decode(codecs, stored, raw, part.first, part.first + part.reach)
            if view is not None:
                return
            stored, skipped = raw, part.first
        if out is not None:
            strides = self._grid.strides
            values = np.ndarray(part.shape, self._stored, stored, skipped, strides)
            out[part.into] = values

    def _leave(self, out: Result, places: Iterable[Place]) -> None:
        """Fill value, where nothing is stored."""
        fill = self.metadata.fill
        for place in places:
            out[place] = fill

    def _take(self, out: Result | None, at: Point, part: Part) -> int:
        """A chunk that is a value of its own; how many there are."""
        most = most_stored(self.metadata.codecs, self._grid.size)
        found = self._shards.source.find(self._shards.key(at), 0, most)
        if found is None:
            if out is not None:
                self._leave(out, [part.into])
            return 0
        self._check_size(at, 0, found.size)
        data = memoryview(found.head)
        if not self.metadata.codecs:
            data = data[part.first : part.first + part.reach]
        self._place(out, at, part, data)
        return 1


def _call(task: Task) -> None:
    task()
