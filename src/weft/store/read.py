"""`Fetching`: one read of some shards of an array: what is fetched, decoded, placed and counted.

The chunks that a box meets are found shard by shard. What lies close together in a shard is read at
once, and threads decode it, straight into the result where it lies there in one piece.

How much memory hostile input may take: chunks that claim far more than they are stored as.

Metadata say how large a chunk is, and a few bytes can claim to be that chunk: zstd stores 2 GiB of
zeros in 65 KB. A chunk of up to `CHUNK` bytes is decoded whatever it is stored as. A larger one
must be stored as at least one byte in `RATIO`: the memory that it takes is then in proportion to
what is there. The environment variable `WEFT_CHUNK_LIMIT` raises `CHUNK` for data that compress
better.

How much memory a read takes at most, beside its result: known before it begins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.space import ZRange
from weft.store.chunk_layout import Grid, Part, Place
from weft.store.codecs import CodecError, Crc32c, check, decode, most_stored, most_work, stored_size
from weft.store.dtypes import Bytes
from weft.store.metadata import Metadata
from weft.store.shard import ABSENT, OpenFile, Shard, ShardError, Shards
from weft.store.threads import SIZES, each, may_join, scratch
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


CHUNK = 1 << 27
"""Bytes of a chunk that is decoded however few bytes it is stored as."""

RATIO = 64
"""How many times its stored bytes a larger chunk may have."""

LARGE = 1 << 24
"""Bytes of a chunk from which it is decoded alone, if it is stored as few."""

VARIABLE = "WEFT_CHUNK_LIMIT"

_ALONE = threading.Lock()


def check_expansion(stored: int, size: int) -> None:
    """Raise `CodecError` where a chunk of `size` bytes is stored as suspiciously few.

    >>> check_expansion(65_000, 1 << 27)
    >>> check_expansion(65_000, 10**10)
    Traceback (most recent call last):
    ...
    weft.store.decompress.CodecError: 65000 B claim to be a chunk of 10000000000 B
    hint: above 134217728 B, a chunk has at most 64 times its stored bytes; if this one has more,
    set WEFT_CHUNK_LIMIT=10000000000
    """
    if size <= CHUNK or size <= RATIO * stored or size <= _limit():
        return
    raise CodecError(
        f"{stored} B claim to be a chunk of {size} B",
        hint=f"above {CHUNK} B, a chunk has at most {RATIO} times its stored bytes; if this one "
        f"has more, set {VARIABLE}={size}",
    )


def turn(stored: int, size: int) -> AbstractContextManager[object]:
    """Return what to hold while a chunk is decoded: a lock, where it is large for what is stored.

    Such chunks are decoded one at a time, so that however many there are, and however many threads,
    they take the memory of one.
    """
    return _ALONE if size > LARGE and size > RATIO * stored else nullcontext()


def _limit() -> int:
    text = os.environ.get(VARIABLE, "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise CodecError(f"{VARIABLE}={text!r} is no number of bytes")
    return int(text)


PART = 2048
"""Bytes of the objects that say where the part of a chunk lies and goes, and hold its turn."""

FIXED = 1 << 15
"""Bytes of the objects of any read or write, whatever its size."""

HELD = 2048
"""Bytes of the objects of a shard that is known, its index left out."""


def memory_of(form: Form, shards: Shards, box: ZRange, threads: int | None) -> int:
    """The bytes that reading a box takes at most, on so many threads.

    What no thread can do without is counted for each: the bytes of a run, or of a chunk as it is
    stored, the chunk as it was, and what its codecs need. An index is held in memory, and needs
    four times as much while it is read.
    """
    if box.is_empty:
        return FIXED
    many, per_shard = _most_parts(form, box)
    pool = SIZES[shards.source.kind]
    at_work = min(threads or pool, pool, many)
    index = shards.index_size if form.metadata.is_sharded else 0
    window = min(shards.window, many)
    held = min(shards.most, _shards_in(form)) + window if index else 0
    planned = min(many, window * per_shard)
    return (
        at_work * (_each(form, shards) + 4 * index)
        + held * (2 * index + HELD)
        + planned * PART
        + FIXED
    )


def _each(form: Form, shards: Shards) -> int:
    """The bytes of one thread."""
    codecs, size = form.metadata.codecs, form.grid.size
    fetched = max(shards.source.most, most_stored(codecs, size))
    if not shards.source.is_near:
        fetched *= 2  # as it comes over the line, and in one piece
    return fetched + (size + most_work(codecs, size) if codecs else 0)


def _most_parts(form: Form, box: ZRange) -> tuple[int, int]:
    """The chunks that a box meets, and how many of them lie in one shard at most."""
    sides = zip(box.start, box.stop, form.grid.chunks)
    counts = [-(-high // n) - low // n for low, high, n in sides]
    return prod(counts), prod(map(min, counts, form.grid.per_shard))


def _shards_in(form: Form) -> int:
    return prod(-(-n // s) for n, s in zip(form.metadata.shape, form.grid.shards))
