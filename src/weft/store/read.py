"""`BoxReader`: reads the chunks that a box meets, and counts the bytes that this takes.

The chunks are found shard by shard. Those that lie close together in a shard are read at once, and
threads decode them, directly into the result where they are contiguous there.

Hostile input takes bounded memory. Metadata say how large a chunk is, and a few bytes can claim to
be that chunk: zstd stores 2 GiB of zeros in 65 KB. A chunk of up to `MAX_FREE_CHUNK` bytes is
decoded however few bytes it is stored as. A larger one must be stored as at least one byte in
`MAX_EXPANSION`: its memory is then in proportion to what is stored. The environment variable
`WEFT_CHUNK_LIMIT` raises the limit for data that compress better.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store import native
from weft.store.chunk_layout import ArrayIndex, ChunkLayout, ChunkPart
from weft.store.codecs import (
    CodecError,
    Crc32c,
    check_checksum,
    codec_workspace,
    decode,
    decoded_sizes,
    is_text,
    max_stored,
    stored_size,
)
from weft.store.decompress import ZSTD_BLOCK, blosc_library
from weft.store.dtypes import Bytes
from weft.store.filters import VlenText
from weft.store.metadata import Metadata
from weft.store.native import BLOSC, MAX_RANK, STORED, ZSTD, Native, ShardBox, StoredChunks
from weft.store.selection import Points, Run
from weft.store.shard import ABSENT, FileShard, FileSource, ShardError, ShardIndexCache, ShardReader
from weft.store.threads import POOL_SIZES, for_each, may_join, scratch
from weft.values import Point, as_count

ATTEMPTS = 3
"""How often a shard is read that is replaced meanwhile."""

SMALL = 1 << 16
"""Bytes that one thread decodes sooner than it starts others."""

SMALL_PART = 48 << 10
"""Bytes of the part of a chunk up to which one thread reads it sooner than several would.

Between two chunks a thread holds the interpreter lock, and threads would mostly wait for it.
"""

SMALL_CHUNKS = {"crc32c": SMALL_PART, "blosc": 1 << 15, "lz4": 1 << 15, "zstd": 1 << 14}
"""Bytes of a chunk up to which one thread decodes it sooner, by codec: those of 20 µs or so."""

SMALL_OTHERS = 1 << 12
"""The same for other codecs, which are slower."""

COMPILED = {(): STORED, ("blosc",): BLOSC, ("zstd",): ZSTD}
"""The codecs that compiled code decodes, before a checksum or without."""

LEAST_COMPILED = 4
"""Chunks from which compiled code reads them sooner."""

MAX_COMPILED = 1 << 22
"""Bytes of a chunk up to which compiled code reads it: larger ones need not wait for Python."""

MAX_FREE_CHUNK = 1 << 27
"""Bytes of a chunk that is decoded however few bytes it is stored as."""

MAX_EXPANSION = 64
"""How many times its stored bytes a larger chunk may have."""

LARGE_CHUNK = 1 << 24
"""Bytes of a chunk from which it is decoded alone, if it is stored as few."""

LIMIT_VARIABLE = "WEFT_CHUNK_LIMIT"

PART_MEMORY = 2048
"""Bytes of the objects that describe a part of a chunk, and its task."""

FIXED_MEMORY = 1 << 15
"""Bytes of the objects of any read or write, whatever its size."""

SHARD_MEMORY = 2048
"""Bytes of the objects of a cached shard, without its index."""

_ONE_AT_A_TIME = threading.Lock()

Result: TypeAlias = np.ndarray[Any, Any]
Task: TypeAlias = Callable[[], object]


class ChunkFormat(NamedTuple):
    """How the chunks of an array are stored, as far as reading needs it."""

    metadata: Metadata
    layout: ChunkLayout
    dtype: np.dtype[Any]
    """The dtype of stored elements, with their byte order."""
    is_plain: bool
    """Whether the decoded bytes of a chunk are those of an array in memory."""
    stored: int | None
    """The stored bytes of every chunk; None where they depend on its content."""
    most: int
    """The most stored bytes of a chunk."""
    limits: tuple[int, ...]
    """The most bytes that each codec decodes to."""
    compiled: StoredChunks | None
    """The same for compiled code; None where that does not read them."""

    @classmethod
    def of(cls, metadata: Metadata, layout: ChunkLayout, dtype: np.dtype[Any]) -> ChunkFormat:
        """Return the format of an array whose elements have some dtype in memory."""
        stored = metadata.stored_dtype
        is_plain = stored == dtype and not metadata.order and not is_text(metadata.codecs)
        codecs, size = metadata.codecs, layout.chunk_nbytes
        fixed, limits = stored_size(codecs, size), tuple(decoded_sizes(codecs, size))
        most = max_stored(codecs, size)
        is_compiled = is_plain and size <= MAX_COMPILED
        chunks = _stored_chunks(metadata, layout, dtype, most) if is_compiled else None
        return cls(metadata, layout, stored, is_plain, fixed, most, limits, chunks)


def _stored_chunks(
    metadata: Metadata, layout: ChunkLayout, dtype: np.dtype[Any], most: int
) -> StoredChunks | None:
    """Return how chunks are stored, for compiled code; None where it has not their codecs."""
    names = [codec.name for codec in metadata.codecs]
    has_checksum = names[-1:] == ["crc32c"]
    codec = COMPILED.get(tuple(names[: len(names) - has_checksum]))
    if codec is None or len(layout.chunks) > MAX_RANK:
        return None
    fill = np.empty((), dtype)
    fill[...] = metadata.fill
    return StoredChunks(
        shape=layout.chunks,
        slot_steps=layout.slot_strides,
        steps=layout.strides,
        itemsize=layout.itemsize,
        nbytes=layout.chunk_nbytes,
        most=most,
        codec=codec,
        has_checksum=has_checksum,
        fill=fill.tobytes(),
    )


class ChunkRead(NamedTuple):
    """A part of a chunk to read, and the bytes of the shard that it needs."""

    start: int
    stop: int
    part: ChunkPart


class CompiledRead(NamedTuple):
    """What compiled code reads of a box."""

    code: Native
    chunks: StoredChunks
    base: str
    """The folder of the array."""
    met: int
    """The chunks that the box meets."""


class BoxReader:
    """One read, on limited threads, and the bytes that it fetches from storage."""

    def __init__(
        self, chunk_format: ChunkFormat, shards: ShardIndexCache, threads: int | None = None
    ) -> None:
        if threads is not None and not as_count(threads, "threads"):
            raise WeftError("threads is 0; it must be 1 or more")
        self.format, self.threads = chunk_format, threads
        self._metadata, self._layout, self._shards = (
            chunk_format.metadata,
            chunk_format.layout,
            shards,
        )
        self._fetched: list[int] = []  # many threads append to it
        self._are_small = False
        self.has_found = False
        """Whether any stored chunk was read."""

    @property
    def fetched(self) -> int:
        """The stored bytes that were fetched so far: indexes and chunks."""
        return sum(self._fetched)

    def is_there(self, key: str) -> bool:
        """Return whether there is a value, of which a byte is fetched."""
        found = self._shards.source.fetch(key, 0, 1)
        self._fetched.append(0 if found is None else len(found.data))
        return found is not None

    def fill(self, box: ZRange, out: Result) -> None:
        """Read the elements of a box into an array of its shape."""
        read = self._compiled_read(box, out)
        if read is not None and not self._metadata.is_sharded:
            if self._read_files(box, out, read):
                return
            read = None
        shards = self._layout.shard_grid.meeting(box)
        while window := list(islice(shards, self._shards.window)):
            if read is None or not self._read_shards(window, box, out, read):
                self._read_window(window, partial(self._box_tasks, box, out))

    def gather(self, parts: Sequence[Run | Points], out: Result) -> None:
        """Read the elements of a selection into an array with an axis for each of its parts."""
        shards = self._layout.selected(parts)
        while window := dict(islice(shards, self._shards.window)):
            tasks_of = partial(self._selected_tasks, window, out)
            self._read_window(list(window), tasks_of)

    # -- shards, by compiled code

    def _compiled_read(self, box: ZRange, out: Result) -> CompiledRead | None:
        """Return the compiled code and what it reads, if it reads this box, and sooner.

        It decodes all blocks of a zstd frame; elsewhere those are left out that are not needed.
        """
        chunks, source = self.format.compiled, self._shards.source
        if chunks is None or not isinstance(source, FileSource) or not box.ndim:
            return None
        is_apart = out.shape[-1] > 1 and out.strides[-1] != out.itemsize
        if is_apart or out.dtype != self.format.dtype:
            return None
        count = self._layout.chunk_grid.count_meeting(box)
        is_cut = (
            chunks.codec == ZSTD
            and chunks.nbytes > ZSTD_BLOCK
            and count * chunks.nbytes > 2 * out.nbytes
        )
        if is_cut or count < LEAST_COMPILED or (code := native.compiled()) is None:
            return None
        return CompiledRead(code, chunks, source.base, count)

    def _read_files(self, box: ZRange, out: Result, read: CompiledRead) -> bool:
        """Read a box of chunks that are files of their own; return False if one is damaged."""
        first, keys = (0,) * box.ndim, self._metadata.keys
        places = keys.separator.join(map(str, first))
        start = os.fsencode(f"{read.base}/{keys.key(first).removesuffix(places)}")
        whole, separator = ShardBox(box, out, read.met), keys.separator.encode()
        return self._note_fetched(
            read.code.read([whole], read.chunks, self.threads, start, separator)
        )

    def _note_fetched(self, fetched: int | None) -> bool:
        """Count the bytes that compiled code has fetched; return False if it failed."""
        self._fetched.append(fetched or 0)
        return fetched is not None

    def _read_shards(
        self, window: list[Point], box: ZRange, out: Result, read: CompiledRead
    ) -> bool:
        """Read the part of a box that lies in some shards; return False if a chunk is damaged."""
        _, shards = self._find(window)
        boxes = []
        try:
            for at in window:
                part, shard = self._layout.shard_grid.box(at) & box, shards.get(at)
                target = out[part.slices(box.start)]
                if isinstance(shard, FileShard):
                    inside = part.translate([-n for n in self._layout.shard_box(at).start])
                    count = self._layout.slot_grid.count_meeting(inside)
                    boxes.append(ShardBox(inside, target, count, shard.file, *shard.index))
                else:
                    target[...] = self._metadata.fill
            return not boxes or self._note_fetched(read.code.read(boxes, read.chunks, self.threads))
        finally:
            for shard in shards.values():
                shard.close()

    # -- shards

    def _read_window(
        self, window: list[Point], tasks_of: Callable[[Point, ShardReader | None], Iterable[Task]]
    ) -> None:
        """Run the tasks of some shards, again if one of the shards is replaced meanwhile."""
        if not self._metadata.is_sharded:
            self._run([task for at in window for task in tasks_of(at, None)], self.threads)
            return
        for attempt in range(1, ATTEMPTS + 1):
            cached, shards = self._find(window)
            checks: list[Task] = []
            if not self._shards.source.is_local:  # on the server, while their chunks are fetched
                checks = [partial(self._check_current, at, cached[at]) for at in cached]
            try:
                self._are_small = self._shards.source.is_local
                tasks = [*checks, *(t for at in window for t in tasks_of(at, shards.get(at)))]
                self._run(tasks, 1 if self._are_small else self.threads)
                return
            except ShardError:
                if attempt == ATTEMPTS or all(map(self._is_current, shards.values())):
                    raise
                self._shards.forget(window)
            finally:
                for shard in shards.values():
                    shard.close()

    def _find(
        self, window: list[Point]
    ) -> tuple[dict[Point, ShardReader], dict[Point, ShardReader]]:
        """Return those of some shards whose index is cached, and all that exist."""
        cached = {at: shard for at in window if (shard := self._shards.cached(at)) is not None}
        wanted = [at for at in window if at not in cached]
        new = self._shards.find_all(wanted, self.threads)
        self._fetched.append(len(new) * self._shards.index_size)
        return cached, cached | new

    def _check_current(self, at: Point, shard: ShardReader) -> None:
        if not self._is_current(shard):
            raise self._shards.error(at, None, "it was replaced each time it was read")

    def _is_current(self, shard: ShardReader) -> bool:
        if not self._shards.source.is_local:
            self._fetched.append(self._shards.index_size)
        return shard.is_current()

    def _run(self, tasks: list[Task], threads: int | None) -> None:
        kind = self._shards.source.kind
        if kind == "decode" and len(tasks) * self._layout.chunk_nbytes <= SMALL:
            for task in tasks:
                task()
            return
        joins = blosc_library() is not None or may_join(self._metadata.codecs)
        for_each(lambda task: task(), tasks, kind=kind, joins=joins, max_threads=threads)

    def _box_tasks(
        self, box: ZRange, out: Result, at: Point, shard: ShardReader | None
    ) -> Iterator[Task]:
        """Yield the tasks that read the part of a shard that lies in a box."""
        if self._metadata.is_sharded and shard is None:
            where = self._layout.shard_grid.box(at) & box
            yield partial(self._fill, out, [(*where.slices(box.start), ...)])
        else:
            yield from self._tasks(self._layout.parts(box, at), out, at, shard)

    def _selected_tasks(
        self,
        parts: Mapping[Point, list[ChunkPart]],
        out: Result,
        at: Point,
        shard: ShardReader | None,
    ) -> Iterator[Task]:
        """Yield the tasks that read the selected parts of a shard."""
        return self._tasks(parts[at], out, at, shard)

    def _tasks(
        self, parts: list[ChunkPart], out: Result, at: Point, shard: ShardReader | None
    ) -> Iterator[Task]:
        """Yield the tasks that read parts of the chunks of a shard."""
        if not self._metadata.is_sharded:
            yield partial(self._read_chunk, out, at, parts[0])
        elif shard is None:
            yield partial(self._fill, out, [part.target for part in parts])
        else:
            sizes = shard.index.sizes
            if absent := [part.target for part in parts if sizes[part.slot] == ABSENT]:
                yield partial(self._fill, out, absent)
            stored = [part for part in parts if sizes[part.slot] != ABSENT]
            reads = [self._chunk_read(at, shard, part) for part in stored]
            self._are_small = is_small = self._are_small and self._is_small(reads)
            for run, stop in self._grouped(reads):
                if is_small and isinstance(shard, FileShard):
                    shard.prefetch(run[0].start, stop)
                yield partial(self._read_run, out, at, shard, run, stop)

    def _is_small(self, reads: list[ChunkRead]) -> bool:
        """Return whether reads take so little time each that one thread should do all of them."""
        if names := [codec.name for codec in self._metadata.codecs]:
            most = min(SMALL_CHUNKS.get(name, SMALL_OTHERS) for name in names)
            return self._layout.chunk_nbytes <= most
        return sum(read.part.nbytes for read in reads) <= SMALL_PART * len(reads)

    # -- bytes

    def _grouped(self, reads: list[ChunkRead]) -> Iterator[tuple[list[ChunkRead], int]]:
        """Yield groups of reads that lie close together, each with its end."""
        source = self._shards.source
        run: list[ChunkRead] = []
        stop = 0
        for read in sorted(reads):
            far = not stop <= read.start <= stop + source.gap
            if run and (far or read.stop - run[0].start > source.max_request):
                yield run, stop
                run = []
            stop = read.stop
            run.append(read)
        if run:
            yield run, stop

    def _chunk_read(self, at: Point, shard: ShardReader, part: ChunkPart) -> ChunkRead:
        offset, size = shard.index.offsets[part.slot], shard.index.sizes[part.slot]
        self._check_size(at, part.slot, size)
        if self._metadata.codecs:
            return ChunkRead(offset, offset + size, part)
        return ChunkRead(offset + part.start, offset + part.start + part.nbytes, part)

    def _check_size(self, at: Point, slot: int, size: int) -> None:
        """Refuse a chunk of more stored bytes than it can have, or of suspiciously few."""
        whole, fixed = self._layout.chunk_nbytes, self.format.stored
        if size > self.format.most or (fixed is not None and size != fixed):
            raise self._shards.error(at, slot, f"a chunk of {whole} B was stored as {size} B")
        if fixed is None:
            try:
                check_expansion(size, whole)
            except CodecError as error:
                raise self._shards.error(at, slot, error) from None

    def _read_run(
        self, out: Result | None, at: Point, shard: ShardReader, run: list[ChunkRead], stop: int
    ) -> None:
        start, part = run[0].start, run[0].part
        self._fetched.append(stop - start)
        try:
            if len(run) == 1 and self._read_directly(out, shard, start, part):
                self.has_found = True
                return
            data = memoryview(shard.read(start, stop - start))
            self.has_found = True
        except (CodecError, ShardError) as error:
            raise self._shards.error(at, part.slot, error) from None
        for read in run:
            self._decode_part(out, at, read.part, data[read.start - start : read.stop - start])

    def _read_directly(
        self, out: Result | None, shard: ShardReader, start: int, part: ChunkPart
    ) -> bool:
        """Read an uncompressed chunk into the result, if it is contiguous there."""
        if out is None or not isinstance(shard, FileShard):
            return False
        codecs, size = self._metadata.codecs, self._layout.chunk_nbytes
        is_checked = codecs == (Crc32c(),) and part.nbytes == size
        view = self._contiguous(out, part) if is_checked or not codecs else None
        if view is None:
            return False
        shard.read_into(start, view)
        if is_checked:
            tail = bytearray(4)
            shard.read_into(start + size, memoryview(tail))
            check_checksum(view, tail)
        return True

    def _contiguous(self, out: Result, part: ChunkPart) -> memoryview | None:
        """Return the bytes of the result that are the decoded bytes of a part, if contiguous."""
        if part.strides is not None:  # elements at a distance, or picked
            return None
        view = out[part.target]
        if self.format.is_plain and view.nbytes == part.nbytes and view.flags.c_contiguous:
            return view.reshape(-1).view(np.uint8).data
        return None

    def _decode_part(self, out: Result | None, at: Point, part: ChunkPart, stored: Bytes) -> None:
        """Decode a chunk, and copy a part of it into the result."""
        try:
            with expansion_lock(len(stored), self._layout.chunk_nbytes):
                self._decode(out, part, stored)
        except CodecError as error:
            raise self._shards.error(at, part.slot, error) from None

    def _decode_texts(self, out: Result | None, part: ChunkPart, stored: Bytes) -> None:
        """Decode a chunk of texts of any length, which have no bytes of their own in an array."""
        texts, *codecs = self._metadata.codecs
        for codec, limit in zip(reversed(codecs), reversed(self.format.limits)):
            stored = codec.decode(stored, limit)
        layout, size = self._layout, self.format.dtype.itemsize
        elements = cast(VlenText, texts).elements(stored, layout.chunk_nbytes // size)
        if out is not None:
            strides = layout.strides if part.strides is None else part.strides
            places: Result = np.arange(len(elements))
            steps = [stride // size * places.itemsize for stride in strides]
            start = part.start // size * places.itemsize
            taken: Result = np.ndarray(part.shape, places.dtype, places.data, start, steps)
            for pick in part.picks:
                taken = taken[pick]
            out[part.target] = elements[taken]

    def _decode(self, out: Result | None, part: ChunkPart, stored: Bytes) -> None:
        codecs, size, offset = self._metadata.codecs, self._layout.chunk_nbytes, 0
        if is_text(codecs):
            self._decode_texts(out, part, stored)
            return
        if codecs and self.format.stored is not None:
            for codec, limit in zip(reversed(codecs), reversed(self.format.limits)):
                stored = codec.decode(stored, limit)  # of checksums, the body where it is
            if len(stored) != size:
                raise CodecError(f"a chunk of {size} B was decoded to {len(stored)} B")
            offset = part.start
        elif codecs:
            view = self._contiguous(out, part) if out is not None and part.nbytes == size else None
            raw = scratch("chunk", size) if view is None else view
            stop = part.start + part.nbytes
            decode(codecs, stored, raw, part.start, stop, self.format.limits)
            if view is not None:
                return
            stored, offset = raw, part.start
        if out is not None:
            strides = self._layout.strides if part.strides is None else part.strides
            taken: Result = np.ndarray(part.shape, self.format.dtype, stored, offset, strides)
            for pick in part.picks:
                taken = taken[pick]
            out[part.target] = taken

    def _fill(self, out: Result, places: Iterable[ArrayIndex]) -> None:
        """Write the fill value where nothing is stored."""
        fill = self._metadata.fill
        for place in places:
            out[place] = fill

    def _read_chunk(self, out: Result | None, at: Point, part: ChunkPart) -> int:
        """Read a chunk that is a file of its own; return the number of stored chunks, 0 or 1."""
        codecs = self._metadata.codecs
        wanted = (0, self.format.most) if codecs else (part.start, part.nbytes)
        fetched = self._shards.source.fetch(self._metadata.key(at), *wanted)
        if fetched is None:
            if out is not None:
                self._fill(out, [part.target])
            return 0
        self._fetched.append(len(fetched.data))
        self.has_found = True
        self._check_size(at, 0, fetched.size)
        self._decode_part(out, at, part, fetched.data)
        return 1


# -- bounds


def check_expansion(stored: int, size: int) -> None:
    """Raise `CodecError` where a chunk of `size` bytes is stored as suspiciously few.

    >>> check_expansion(65_000, 1 << 27)
    >>> check_expansion(65_000, 10**10)
    Traceback (most recent call last):
    ...
    weft.store.decompress.CodecError: a chunk of 10000000000 B is stored as only 65000 B
    hint: above 134217728 B, a chunk has at most 64 times its stored bytes; if this one has more,
    set WEFT_CHUNK_LIMIT=10000000000
    """
    if size <= MAX_FREE_CHUNK or size <= MAX_EXPANSION * stored or size <= _limit():
        return
    raise CodecError(
        f"a chunk of {size} B is stored as only {stored} B",
        hint=f"above {MAX_FREE_CHUNK} B, a chunk has at most {MAX_EXPANSION} times its stored "
        f"bytes; if this one has more, set {LIMIT_VARIABLE}={size}",
    )


def expansion_lock(stored: int, size: int) -> AbstractContextManager[object]:
    """Return a lock to hold while a chunk is decoded that is large for its stored bytes.

    Such chunks are decoded one at a time, so that any number of them, on any number of threads,
    takes the memory of one.
    """
    is_large = size > LARGE_CHUNK and size > MAX_EXPANSION * stored
    return _ONE_AT_A_TIME if is_large else nullcontext()


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE, "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise CodecError(f"{LIMIT_VARIABLE}={text!r} is not a number of bytes")
    return int(text)


def read_memory(
    chunk_format: ChunkFormat, shards: ShardIndexCache, box: ZRange, threads: int | None
) -> int:
    """Return the most bytes that reading a box takes beside its result.

    Each thread needs the bytes of a request or of a stored chunk, the decoded chunk, and the
    workspace of its codecs. An index is cached, and needs four times as much while it is read.
    """
    if box.is_empty:
        return FIXED_MEMORY
    layout, metadata = chunk_format.layout, chunk_format.metadata
    codecs = metadata.codecs
    sides = map(len, map(layout.chunk_grid.overlaps, range(box.ndim), box.start, box.stop))
    counts = tuple(sides)
    chunks, per_shard = prod(counts), prod(map(min, counts, layout.slot_grid.counts))
    pool = POOL_SIZES[shards.source.kind]
    at_work = min(threads or pool, pool, chunks)
    index = shards.index_size if metadata.is_sharded else 0
    window = min(shards.window, chunks)
    cached = min(shards.max_cached, layout.shard_grid.size) + window if index else 0
    fetched = max(shards.source.max_request, max_stored(codecs, layout.chunk_nbytes))
    if not shards.source.is_local:
        fetched *= 2  # as it arrives, and in one piece
    decoded = layout.chunk_nbytes + codec_workspace(codecs, layout.chunk_nbytes) if codecs else 0
    return (
        at_work * (fetched + decoded + 4 * index)
        + cached * (2 * index + SHARD_MEMORY)
        + min(chunks, window * per_shard) * PART_MEMORY
        + FIXED_MEMORY
    )
