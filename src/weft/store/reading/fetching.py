"""`Fetching`: one read of some shards of an array: what is fetched, decoded, placed and counted.

The chunks that a box meets are found shard by shard. What lies close together in a shard is read at
once, and threads decode it, straight into the result where it lies there in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.space import ZRange
from weft.store.codecs import CodecError, Crc32c, check, decode, most_stored, stored_size
from weft.store.dtypes import Bytes
from weft.store.index import ABSENT, ShardError
from weft.store.metadata import Metadata
from weft.store.reading.limits import check_expansion, turn
from weft.store.reading.parts import Grid, Part, Place
from weft.store.reading.shards import Shards
from weft.store.reading.source import OpenFile, Shard
from weft.store.reading.workers import each, may_join, scratch
from weft.values import Point

ATTEMPTS = 3
"""How often a shard is read that is replaced in the meantime."""

SMALL = 1 << 16
"""Bytes that one thread decodes faster than it calls others."""

Result: TypeAlias = np.ndarray[Any, Any]
Task: TypeAlias = Callable[[], object]


class Form(NamedTuple):
    """How the chunks of an array are stored, as far as all who read it need to know."""

    metadata: Metadata
    grid: Grid
    dtype: np.dtype[Any]
    """As elements are stored."""
    is_plain: bool
    """Whether the bytes of a chunk, once decoded, are those of an array in memory."""
    stored: int | None
    """The stored bytes of a chunk, where its content does not decide: it is not compressed."""

    @classmethod
    def of(cls, metadata: Metadata, grid: Grid, dtype: np.dtype[Any]) -> Form:
        """The form of an array whose elements are of some type in memory."""
        stored = dtype.newbyteorder(">" if metadata.endian == "big" else "<")
        is_plain = stored.isnative and not metadata.order
        fixed = stored_size(metadata.codecs, grid.size)
        return cls(metadata, grid, stored, is_plain, fixed)


class Piece(NamedTuple):
    """A part of a chunk, and the bytes of the shard that it takes."""

    start: int
    stop: int
    part: Part


class Fetching:
    """One read, on some threads at most, and the bytes that it took from storage."""

    def __init__(self, form: Form, shards: Shards, threads: int | None = None) -> None:
        self.form, self.threads = form, threads
        self._metadata, self._grid, self._shards = form.metadata, form.grid, shards
        self._fetched: list[int] = []  # many threads append to it

    @property
    def fetched(self) -> int:
        """The bytes that were fetched so far, as they are stored: indexes and chunks."""
        return sum(self._fetched)

    def fill(self, box: ZRange, out: Result) -> None:
        """Bring the elements of a box into an array of its shape."""
        for window in self._windows(box):
            self._attempt(window, partial(self._filling, box, out))

    # -- shards

    def _windows(self, box: ZRange) -> Iterator[list[Point]]:
        """The shards that a box meets, some at a time; many where each is one chunk."""
        shards = self._grid.shards_of(box)
        while window := list(islice(shards, self._shards.window)):
            yield window

    def _attempt(
        self, window: list[Point], tasks_of: Callable[[Point, Shard | None], Iterable[Task]]
    ) -> None:
        """Do what is to be done for some shards, again if one of them was replaced meanwhile."""
        if not self._metadata.is_sharded:
            self._do([task for at in window for task in tasks_of(at, None)])
            return
        for attempt in range(1, ATTEMPTS + 1):
            held, found = self._find(window)
            checks = [] if self._shards.source.is_near else [*self._checks(held)]
            try:
                self._do([*checks, *(t for at in window for t in tasks_of(at, found.get(at)))])
                return
            except ShardError:
                if attempt == ATTEMPTS or all(map(self._is_current, found.values())):
                    raise
                self._shards.forget(window)
            finally:
                for shard in found.values():
                    shard.close()

    def _find(self, window: list[Point]) -> tuple[dict[Point, Shard], dict[Point, Shard]]:
        """Those of some shards whose index is held, and all of them that are there."""
        held = {at: shard for at in window if (shard := self._shards.held(at)) is not None}
        wanted = [at for at in window if at not in held]
        new = self._shards.find_all(wanted, self.threads)
        self._fetched.append(len(new) * self._shards.index_size)
        return held, held | new

    def _checks(self, held: Mapping[Point, Shard]) -> Iterator[Task]:
        """Ask whether shards that were found before are current, while their chunks are fetched."""
        for at, shard in held.items():
            yield partial(self._check, at, shard)

    def _check(self, at: Point, shard: Shard) -> None:
        if not self._is_current(shard):
            raise self._shards.error(at, None, "it is replaced again and again")

    def _is_current(self, shard: Shard) -> bool:
        if not self._shards.source.is_near:
            self._fetched.append(self._shards.index_size)
        return shard.is_current()

    def _do(self, tasks: list[Task]) -> None:
        kind = self._shards.source.kind
        if kind == "decode" and len(tasks) * self._grid.size <= SMALL:
            for task in tasks:
                task()
            return
        joins = may_join(self._metadata.codecs)
        each(_call, tasks, kind=kind, joins=joins, most=self.threads)

    def _filling(self, box: ZRange, out: Result, at: Point, shard: Shard | None) -> Iterator[Task]:
        """What brings the part of a shard that lies in a box into the result."""
        if not self._metadata.is_sharded:
            yield partial(self._take, out, at, self._grid.parts_of(box, at)[0])
        elif shard is None:
            where = self._grid.box(at) & box
            yield partial(self._leave, out, [(*where.slices(box.start), ...)])
        else:
            sizes, parts = shard.index.sizes, self._grid.parts_of(box, at)
            if empty := [part.into for part in parts if sizes[part.slot] == ABSENT]:
                yield partial(self._leave, out, empty)
            present = (part for part in parts if sizes[part.slot] != ABSENT)
            yield from self._runs(out, at, shard, present)

    # -- bytes

    def _runs(
        self, out: Result | None, at: Point, shard: Shard, parts: Iterable[Part]
    ) -> Iterator[Task]:
        """Parts by the bytes that are read at once."""
        for run, stop in self._grouped([self._piece(at, shard, part) for part in parts]):
            yield partial(self._read_run, out, at, shard, run, stop)

    def _grouped(self, pieces: list[Piece]) -> Iterator[tuple[list[Piece], int]]:
        """Group pieces that lie close together, up to so many bytes; each group with its end."""
        source = self._shards.source
        run: list[Piece] = []
        stop = 0
        for piece in sorted(pieces):
            far = not stop <= piece.start <= stop + source.gap
            if run and (far or piece.stop - run[0].start > source.most):
                yield run, stop
                run = []
            stop = piece.stop
            run.append(piece)
        if run:
            yield run, stop

    def _piece(self, at: Point, shard: Shard, part: Part) -> Piece:
        offset, size = shard.index.offsets[part.slot], shard.index.sizes[part.slot]
        self._check_size(at, part.slot, size)
        if self._metadata.codecs:
            return Piece(offset, offset + size, part)
        return Piece(offset + part.first, offset + part.first + part.reach, part)

    def _check_size(self, at: Point, slot: int, size: int) -> None:
        """No more is read than a chunk can have, whatever an index says."""
        codecs, whole, fixed = self._metadata.codecs, self._grid.size, self.form.stored
        if size > most_stored(codecs, whole) or (fixed is not None and size != fixed):
            raise self._shards.error(at, slot, f"a chunk of {whole} B was stored as {size} B")
        if fixed is None:
            try:
                check_expansion(size, whole)
            except CodecError as error:
                raise self._shards.error(at, slot, error) from None

    def _read_run(
        self, out: Result | None, at: Point, shard: Shard, run: list[Piece], stop: int
    ) -> None:
        start, part = run[0].start, run[0].part
        self._fetched.append(stop - start)
        try:
            if len(run) == 1 and self._read_straight(out, shard, start, part):
                return
            data = memoryview(shard.read(start, stop - start))
        except CodecError as error:
            raise self._shards.error(at, part.slot, error) from None
        except ShardError as error:
            raise self._shards.error(at, part.slot, error) from None
        for piece in run:
            self._place(out, at, piece.part, data[piece.start - start : piece.stop - start])

    def _read_straight(self, out: Result | None, shard: Shard, start: int, part: Part) -> bool:
        """Read a chunk that is not compressed into the result, if it lies there in one piece."""
        if out is None or not isinstance(shard, OpenFile):
            return False
        codecs, size = self._metadata.codecs, self._grid.size
        is_checked = codecs == (Crc32c(),) and part.reach == size
        view = self._straight(out, part) if is_checked or not codecs else None
        if view is None:
            return False
        shard.read_into(start, view)
        if is_checked:
            tail = bytearray(4)
            shard.read_into(start + size, memoryview(tail))
            check(view, tail)
        return True

    def _straight(self, out: Result, part: Part) -> memoryview | None:
        """The bytes of the result that a part is, if they are just those that are stored."""
        view = out[part.into]
        if self.form.is_plain and view.nbytes == part.reach and view.flags.c_contiguous:
            return view.reshape(-1).view(np.uint8).data
        return None

    def _place(self, out: Result | None, at: Point, part: Part, stored: Bytes) -> None:
        """Decode a chunk, and bring a part of it into the result."""
        try:
            with turn(len(stored), self._grid.size):
                self._decode(out, part, stored)
        except CodecError as error:
            raise self._shards.error(at, part.slot, error) from None

    def _decode(self, out: Result | None, part: Part, stored: Bytes) -> None:
        codecs, size, skipped = self._metadata.codecs, self._grid.size, 0
        if codecs and self.form.stored is not None:
            for codec in reversed(codecs):  # checksums alone: what they are of is used where it is
                stored = codec.decode(stored, size)
            skipped = part.first
        elif codecs:
            view = self._straight(out, part) if out is not None and part.reach == size else None
            raw = scratch("chunk", size) if view is None else view
            decode(codecs, stored, raw, part.first, part.first + part.reach)
            if view is not None:
                return
            stored, skipped = raw, part.first
        if out is not None:
            strides = self._grid.strides
            values = np.ndarray(part.shape, self.form.dtype, stored, skipped, strides)
            out[part.into] = values

    def _leave(self, out: Result, places: Iterable[Place]) -> None:
        """Fill value, where nothing is stored."""
        fill = self._metadata.fill
        for place in places:
            out[place] = fill

    def _take(self, out: Result | None, at: Point, part: Part) -> int:
        """A chunk that is a value of its own; how many there are."""
        codecs = self._metadata.codecs
        most = most_stored(codecs, self._grid.size)
        wanted = (0, most) if codecs else (part.first, part.reach)
        found = self._shards.source.take(self._shards.key(at), *wanted)
        if found is None:
            if out is not None:
                self._leave(out, [part.into])
            return 0
        self._fetched.append(len(found.data))
        self._check_size(at, 0, found.size)
        self._place(out, at, part, found.data)
        return 1


def _call(task: Task) -> None:
    task()
