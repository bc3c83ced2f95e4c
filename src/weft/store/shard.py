"""Shards as bytes: the index of a shard, and where readers find shards and their chunks.

A shard may be replaced while it is read. An open file stays as it was, so that its index and its
chunks belong together; of an object it is asked again whether it is the same.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.store.chunk_layout import ChunkLayout
from weft.store.codecs import EncodedChunks, checksum
from weft.store.dtypes import Bytes
from weft.store.files import Folder, file_identity
from weft.store.metadata import Metadata
from weft.store.sink import Fetched, Sink
from weft.store.threads import for_each, scratch
from weft.values import Point

ABSENT = 0xFFFF_FFFF_FFFF_FFFF
"""The offset and the size of a chunk that is not stored: it is all fill value."""

MAX_INDEXES = 1024
"""Shards whose index is cached."""

MAX_CACHED_SLOTS = 1 << 20
"""Slots of all cached indexes, 16 B each."""

WINDOW = 16
"""Shards that are read at the same time: each local one is an open file."""

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""How shards are opened: a pipe in the place of a file is refused, and not waited for."""

_ADVICE = getattr(os, "POSIX_FADV_WILLNEED", None)


class ShardError(WeftError):
    """A shard that is damaged, or not as its metadata describe it."""


class Index(NamedTuple):
    """For each slot of a shard the offset and the size of its chunk; both `ABSENT` for none."""

    offsets: array[int]
    sizes: array[int]

    @classmethod
    def empty(cls, slots: int) -> Index:
        """Return the index of a shard without chunks."""
        return cls(array("Q", [ABSENT]) * slots, array("Q", [ABSENT]) * slots)

    def copy(self) -> Index:
        """Return a copy that can be changed."""
        return Index(self.offsets[:], self.sizes[:])

    def append(self, end: int, slots: Any, chunks: EncodedChunks) -> int:
        """Enter chunks that lie one after the other from `end` on; return where they end."""
        stored = np.flatnonzero(chunks.sizes)
        sizes, where = chunks.sizes[stored].astype(np.uint64), np.asarray(slots, np.int64)[stored]
        ends = np.cumsum(sizes)
        np.frombuffer(self.sizes, np.uint64)[where] = sizes
        np.frombuffer(self.offsets, np.uint64)[where] = end + ends - sizes
        return end + int(ends[-1]) if len(ends) else end

    def to_bytes(self, *, has_checksum: bool = True, endian: str = "little") -> bytes:
        """Return the index as it is stored.

        >>> len(Index.empty(4).to_bytes())
        68
        """
        kind = ">u8" if endian == "big" else "<u8"
        body = np.stack([self.offsets, self.sizes], axis=1).astype(kind).tobytes()
        return body + checksum(body) if has_checksum else body

    @classmethod
    def parse(
        cls, data: Bytes, slots: int, *, has_checksum: bool = True, endian: str = "little"
    ) -> Index:
        """Read an index, without checking where its chunks lie."""
        expected = index_size(slots, has_checksum)
        if len(data) != expected:
            raise ShardError(f"an index of {slots} chunks has {expected} B, got {len(data)} B")
        body = memoryview(data)[: 16 * slots]
        if has_checksum and checksum(body) != bytes(data[-4:]):
            raise ShardError("the checksum of the index does not match its bytes")
        table = np.frombuffer(body, ">u8" if endian == "big" else "<u8").reshape(slots, 2)
        return cls(*(array("Q", column.astype("=u8").tobytes()) for column in table.T))

    def misplaced(self, start: int, stop: int) -> int | None:
        """Return the first slot whose chunk does not lie in [start, stop), if there is one."""
        offsets, sizes = np.frombuffer(self.offsets, "u8"), np.frombuffer(self.sizes, "u8")
        low, high = np.uint64(start), np.uint64(max(start, stop))
        inside = (offsets >= low) & (offsets <= high)
        inside &= sizes <= high - np.minimum(offsets, high)
        inside |= (offsets == ABSENT) & (sizes == ABSENT)
        return None if inside.all() else int(inside.argmin())

    def overlapping(self) -> tuple[int, int] | None:
        """Return two slots whose chunks share bytes, if there are two.

        >>> Index(array("Q", [0, 8, 4]), array("Q", [4, 4, 5])).overlapping()
        (2, 1)
        """
        slots = self._stored()
        offsets, sizes = np.frombuffer(self.offsets, "u8"), np.frombuffer(self.sizes, "u8")
        order = slots[np.lexsort((sizes[slots], offsets[slots]))]
        ends = offsets[order] + sizes[order]
        hits = np.flatnonzero(ends[:-1] > offsets[order][1:])
        return (int(order[hits[0]]), int(order[hits[0] + 1])) if len(hits) else None

    def stored_bytes(self) -> int:
        """Return the bytes of all chunks."""
        return int(np.frombuffer(self.sizes, "u8")[self._stored()].sum())

    def stored_slots(self) -> list[int]:
        """Return the slots that have a chunk."""
        slots: list[int] = self._stored().tolist()
        return slots

    def _stored(self) -> np.ndarray[Any, Any]:
        return np.flatnonzero(np.frombuffer(self.offsets, "u8") != ABSENT)

    def describe(self, slot: int) -> str:
        """Return where the index places a chunk, for messages."""
        return f"byte {self.offsets[slot]}, {self.sizes[slot]} B long"


def index_size(slots: int, has_checksum: bool = True) -> int:
    """Return the bytes of the index of a shard of `slots` chunks."""
    return 16 * slots + 4 * has_checksum


# -- where shards are found


class FileSource:
    """Finds shards in local files."""

    kind: Literal["decode", "fetch"] = "decode"
    """The pool of threads that use it."""
    gap = 1 << 12
    """Bytes between two chunks that are read along, because a second request takes longer."""
    max_request = 1 << 18
    """Bytes of a request for more than one chunk."""
    is_local = True
    """Whether a shard that is reopened is known to be the same."""

    def __init__(self, folder: Folder) -> None:
        self.base = os.fspath(folder.path)

    def find(self, key: str, start: int, count: int) -> FileShard | None:
        """Open the file of a key, with some of its bytes; None where there is none.

        A negative start counts from the end. What lies outside of the file is left out.
        """
        shard = self._open(key)
        if shard is None:
            return None
        first = max(0, shard.size + start) if start < 0 else min(start, shard.size)
        shard.head = bytes(shard.read(first, min(count, shard.size - first)))
        return shard

    def fetch(self, key: str, start: int, count: int) -> Fetched | None:
        """Return some bytes of a file, valid until this thread reads more, and its size."""
        file = self._open(key)
        if file is None:
            return None
        try:
            count = max(0, min(count, file.size - start))
            return Fetched(file.read(start, count), file.size)
        finally:
            file.close()

    def _open(self, key: str) -> FileShard | None:
        path = f"{self.base}/{key}"
        try:
            return FileShard(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error}") from None


class FileShard:
    """An open file, which stays the same whatever its path names later."""

    index: Index

    def __init__(self, path: str) -> None:
        self.path, self.file, self.head = path, -1, b""
        self.file = os.open(path, _FLAGS)
        status = os.fstat(self.file)
        self.size, self._identity = status.st_size, file_identity(status)

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    __del__ = close

    def reopen(self) -> FileShard | None:
        """Return the file, opened once more, if it is still there and unchanged."""
        with suppress(OSError):
            other = FileShard(self.path)
            if other._identity == self._identity:
                other.index = self.index
                return other
        return None

    def prefetch(self, start: int, stop: int) -> None:
        """Let the system read some bytes ahead, if they are not in memory."""
        if _ADVICE is not None:
            os.posix_fadvise(self.file, start, stop - start, _ADVICE)

    def read(self, start: int, count: int) -> memoryview:
        """Return some bytes, in a buffer of this thread."""
        out = scratch("stored", count)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill a buffer from a place on."""
        done = 0
        while done < len(out):
            try:
                got = os.preadv(self.file, [out[done:]], start + done)
            except OSError as error:
                raise ShardError(f"{self.path} cannot be read: {error}") from None
            if not got:
                raise _too_short(start + done, start + len(out))
            done += got

    def is_current(self) -> bool:
        """Return whether the path still names this file, unchanged."""
        with suppress(OSError):
            return file_identity(os.stat(self.path)) == self._identity
        return False


def _too_short(size: int, wanted: int) -> ShardError:
    return ShardError(f"it has {size} B, and bytes up to {wanted} are needed")


class ObjectSource:
    """Finds shards in an object store; `FileSource` documents its members."""

    kind: Literal["decode", "fetch"] = "fetch"
    gap = 1 << 18
    max_request = 1 << 22
    is_local = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def find(self, key: str, start: int, count: int) -> ObjectShard | None:
        """Fetch some bytes of an object, and its size."""
        got = self.sink.fetch(key, start, count)
        return None if got is None else ObjectShard(self.sink, key, start, got.data, got.size)

    def fetch(self, key: str, start: int, count: int) -> Fetched | None:
        """Fetch some bytes of an object."""
        return self.sink.fetch(key, start, count)


class ObjectShard:
    """An object as it was when its index was fetched."""

    index: Index

    def __init__(self, sink: Sink, key: str, start: int, head: Bytes, size: int) -> None:
        self.sink, self.key, self.start, self.head, self.size = sink, key, start, head, size

    def read(self, start: int, count: int) -> Bytes:
        """Fetch some bytes."""
        got = self.sink.fetch(self.key, start, count)
        if got is None:
            raise ShardError("the object was deleted while it was read")
        if len(got.data) != count:
            raise _too_short(start + len(got.data), start + count)
        return got.data

    def is_current(self) -> bool:
        """Return whether the index and the size are the same as before."""
        now = self.sink.fetch(self.key, self.start, len(self.head))
        return now is not None and now.size == self.size and now.data == self.head

    def reopen(self) -> ObjectShard:
        """Return the same shard: `is_current` asks the server."""
        return self

    def close(self) -> None:
        """There is nothing to close."""


ShardSource: TypeAlias = FileSource | ObjectSource
ShardReader: TypeAlias = FileShard | ObjectShard


def shard_source(sink: Sink) -> ShardSource:
    """Return the source that reads the values of a sink."""
    return FileSource(sink) if isinstance(sink, Folder) else ObjectSource(sink)


class ShardIndexCache:
    """Finds the shards of an array, and caches their indexes while they are current."""

    def __init__(self, sink: Sink, metadata: Metadata, layout: ChunkLayout) -> None:
        self.sink, self.metadata, self.layout = sink, metadata, layout
        self.source = shard_source(sink)
        self._cached: dict[Point, ShardReader] = {}
        self.max_cached = max(1, min(MAX_INDEXES, MAX_CACHED_SLOTS // max(1, layout.slots)))
        self.window = min(WINDOW, self.max_cached) if metadata.is_sharded else 64 * WINDOW
        """Shards that are read at the same time."""
        self.index_size = index_size(layout.slots, metadata.has_checksum)

    def error(self, at: Point, slot: int | None, message: object) -> ShardError:
        """Return an error with the key of a shard, or of a chunk of it, and its box."""
        if slot is None:
            where = f"shard {self.layout.shard_box(at)}"
        else:
            where = f"chunk {slot}, {self.layout.chunk_box(at, slot)}"
        error = ShardError(f"{self.sink.url}/{self.metadata.key(at)}: {where}: {message}")
        for note in getattr(message, "__notes__", ()):
            error.add_note(note)
        return error

    def find(self, at: Point) -> ShardReader | None:
        """Return a shard as it is now, with its index; None where there is none."""
        slots, count = self.layout.slots, self.index_size
        is_first = self.metadata.index_location == "start"
        shard = self.source.find(self.metadata.key(at), 0 if is_first else -count, count)
        if shard is None:
            return None
        if len(shard.head) != count:
            message = f"it has {shard.size} B, and its index alone ({slots} chunks) {count} B"
            raise self.error(at, None, message)
        has_checksum, endian = self.metadata.has_checksum, self.metadata.index_endian
        try:
            shard.index = Index.parse(shard.head, slots, has_checksum=has_checksum, endian=endian)
        except ShardError as error:
            raise self.error(at, None, error) from None
        start, stop = (count, shard.size) if is_first else (0, shard.size - count)
        slot = shard.index.misplaced(start, stop)
        if slot is not None:
            where = shard.index.describe(slot)
            message = f"the index places it at {where}, outside of bytes {start}:{stop}"
            raise self.error(at, slot, message)
        if isinstance(shard, FileShard):
            shard.head = b""  # files are compared by their status
        return shard

    def cached(self, at: Point) -> ShardReader | None:
        """Return a shard that was found before, reopened."""
        known = self._cached.pop(at, None)
        shard = None if known is None else known.reopen()
        if shard is not None:
            self._cached[at] = shard  # the last to be dropped
        return shard

    def find_all(
        self, wanted: Sequence[Point], threads: int | None = None
    ) -> dict[Point, ShardReader]:
        """Return those of some shards that exist, as they are now."""
        shards: dict[Point, ShardReader] = {}

        def find(at: Point) -> None:
            if (shard := self.find(at)) is not None:
                shards[at] = shard

        for_each(find, wanted, kind=self.source.kind, max_threads=threads)
        self._cached |= shards
        for at in list(self._cached)[: -self.max_cached]:
            self._cached.pop(at, None)
        return shards

    def forget(self, some: Iterable[Point]) -> None:
        """Remove shards from the cache."""
        for at in some:
            self._cached.pop(at, None)
