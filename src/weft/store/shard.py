"""The index of a shard: where each of its chunks lies, and a checksum of all that.

Where a reader has the bytes of a shard from: a file, or a server.

A shard may be replaced while it is read. A file that is open stays as it was, so that its index and
its chunks belong together; a value on a server is asked for again.

`Shards`: the shards of an array with their indexes, found once and held as long as they last.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from weft.errors import WeftError
from weft.store.chunk_layout import Grid
from weft.store.codecs import checksum
from weft.store.dtypes import Bytes
from weft.store.files import Folder
from weft.store.metadata import Metadata
from weft.store.sink import Fetched, Sink
from weft.store.threads import each, scratch
from weft.values import Point

ABSENT = 0xFFFF_FFFF_FFFF_FFFF
"""Offset and size of a chunk that is not there: it is all fill value."""


class ShardError(WeftError):
    """A shard that is not what it should be."""


class Index(NamedTuple):
    """For each slot of a shard the offset and the bytes of its chunk; both `ABSENT` for none."""

    offsets: array[int]
    sizes: array[int]

    @classmethod
    def empty(cls, slots: int) -> Index:
        """The index of a shard without chunks."""
        return cls(array("Q", [ABSENT]) * slots, array("Q", [ABSENT]) * slots)

    def to_bytes(self, *, has_checksum: bool = True, endian: str = "little") -> bytes:
        """The index as it is stored.

        >>> len(Index.empty(4).to_bytes())
        68
        """
        kind = ">u8" if endian == "big" else "<u8"
        body = np.stack([self.offsets, self.sizes], axis=1).astype(kind).tobytes()
        return body + checksum(body) if has_checksum else body

    @classmethod
    def from_bytes(
        cls,
        data: Bytes,
        slots: int,
        limit: int,
        *,
        start: int = 0,
        has_checksum: bool = True,
        endian: str = "little",
    ) -> Index:
        """Read an index, of a shard of so many bytes; no chunk may lie outside of `start:limit`."""
        index = cls.parse(data, slots, has_checksum=has_checksum, endian=endian)
        slot = index.misplaced(start, limit)
        if slot is not None:
            raise ShardError(f"chunk {slot} is said to lie at {index.said(slot)} of {limit} B")
        return index

    @classmethod
    def parse(
        cls, data: Bytes, slots: int, *, has_checksum: bool = True, endian: str = "little"
    ) -> Index:
        """Read an index, wherever its chunks are said to lie."""
        wanted = length(slots, has_checksum)
        if len(data) != wanted:
            raise ShardError(f"an index of {slots} chunks has {wanted} B, got {len(data)} B")
        body = memoryview(data)[: 16 * slots]
        if has_checksum and checksum(body) != bytes(data[-4:]):
            raise ShardError("the checksum of the index is not that of its bytes")
        table = np.frombuffer(body, ">u8" if endian == "big" else "<u8").reshape(slots, 2)
        return cls(*(array("Q", column.astype("=u8").tobytes()) for column in table.T))

    def misplaced(self, start: int, stop: int) -> int | None:
        """The first slot whose chunk does not lie between two places, if there is one."""
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

    def _stored(self) -> np.ndarray[Any, Any]:
        """The slots that have a chunk, as an array."""
        return np.flatnonzero(np.frombuffer(self.offsets, "u8") != ABSENT)

    def said(self, slot: int) -> str:
        """Where the chunk of a slot is said to lie."""
        return f"{self.offsets[slot]}, {self.sizes[slot]} B"

    def present(self) -> Iterable[int]:
        """The slots that have a chunk."""
        return (n for n, offset in enumerate(self.offsets) if offset != ABSENT)


def length(slots: int, has_checksum: bool = True) -> int:
    """The bytes of an index of so many chunks."""
    return 16 * slots + 4 * has_checksum


_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""How shards are opened: a pipe in the place of a file is refused, and not waited for."""


class Shard(Protocol):
    """A shard that has been found."""

    index: Index

    @property
    def head(self) -> Bytes:
        """The bytes that were asked for first."""

    @property
    def size(self) -> int:
        """The bytes of all of it."""

    def read(self, start: int, count: int) -> Bytes:
        """Some of its bytes, good until this thread reads more."""

    def is_current(self) -> bool:
        """Whether it is still what one finds under its key."""

    def again(self) -> Shard | None:
        """The same shard, to be read once more; None where it is seen to be another."""

    def close(self) -> None:
        """Let go of it; `again` finds it anew."""


class Source(Protocol):
    """Finds shards by their keys."""

    kind: Literal["decode", "fetch"]
    """The threads that use it."""
    gap: int
    """Bytes between two chunks that are read along, since to ask twice takes longer."""
    most: int
    """Bytes that are asked for at once, if there is more than one chunk in them."""
    is_near: bool
    """Whether a shard that is found again is known to be the same."""

    def find(self, key: str, start: int, count: int) -> Shard | None:
        """A shard with some of its bytes, None where there is none; a negative start is of the end.

        What lies outside of the shard is left out.
        """

    def take(self, key: str, start: int, count: int) -> Fetched | None:
        """Some bytes of a value, good until this thread reads more, and its size."""


def source_of(sink: Sink) -> Source:
    """Where the values of a sink are read from."""
    return Files(sink) if isinstance(sink, Folder) else Values(sink)


class Files:
    """Shards in local files."""

    kind: Literal["decode", "fetch"] = "decode"
    gap = 1 << 12
    most = 1 << 18
    is_near = True

    def __init__(self, folder: Folder) -> None:
        self.base = os.fspath(folder.path)

    def find(self, key: str, start: int, count: int) -> OpenFile | None:
        """Open the file of a key."""
        shard = self._open(key)
        if shard is None:
            return None
        first = max(0, shard.size + start) if start < 0 else min(start, shard.size)
        shard.head = bytes(shard.read(first, min(count, shard.size - first)))
        return shard

    def take(self, key: str, start: int, count: int) -> Fetched | None:
        """Some bytes of the file of a key."""
        file = self._open(key)
        if file is None:
            return None
        try:
            count = max(0, min(count, file.size - start))
            return Fetched(file.read(start, count), file.size)
        finally:
            file.close()

    def _open(self, key: str) -> OpenFile | None:
        path = f"{self.base}/{key}"
        try:
            return OpenFile(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error}") from None


class OpenFile:
    """A file that stays what it was when it was opened, whatever its path leads to later."""

    index: Index

    def __init__(self, path: str) -> None:
        self.path, self.file, self.head = path, -1, b""
        self.file = os.open(path, _FLAGS)
        said = os.fstat(self.file)
        self.size, self._seen = said.st_size, _identity(said)

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    __del__ = close

    def again(self) -> OpenFile | None:
        """The file, opened once more, if it is still there and nobody has written to it."""
        with suppress(OSError):
            other = OpenFile(self.path)
            if other._seen == self._seen:
                other.index = self.index
                return other
        return None

    def read(self, start: int, count: int) -> memoryview:
        """Some bytes, in a buffer of this thread."""
        out = scratch("stored", count)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: memoryview) -> None:
        """As many bytes as there is room for."""
        done = 0
        while done < len(out):
            try:
                got = os.preadv(self.file, [out[done:]], start + done)
            except OSError as error:
                raise ShardError(f"{self.path} cannot be read: {error}") from None
            if not got:
                raise ended(start + done, start + len(out))
            done += got

    def is_current(self) -> bool:
        """Whether the path still leads to this file, and nobody has written to it."""
        with suppress(OSError):
            return _identity(os.stat(self.path)) == self._seen
        return False


def ended(at: int, wanted: int) -> ShardError:
    """A shard that is shorter than its index says, or than it was."""
    return ShardError(f"the file ends at {at} B, and {wanted} B are wanted")


def _identity(said: os.stat_result) -> tuple[int, ...]:
    return said.st_dev, said.st_ino, said.st_size, said.st_mtime_ns


class Values:
    """Shards behind a sink, of which parts are fetched."""

    kind: Literal["decode", "fetch"] = "fetch"
    gap = 1 << 18
    most = 1 << 22
    is_near = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def find(self, key: str, start: int, count: int) -> Value | None:
        """Fetch some bytes of a value, and learn its size."""
        found = self.sink.fetch(key, start, count)
        return None if found is None else Value(self.sink, key, start, found.data, found.size)

    def take(self, key: str, start: int, count: int) -> Fetched | None:
        """Some bytes of a value."""
        return self.sink.fetch(key, start, count)


class Value:
    """A value as it was when some of it was fetched."""

    index: Index

    def __init__(self, sink: Sink, key: str, start: int, head: Bytes, size: int) -> None:
        self.sink, self.key, self.start, self.head, self.size = sink, key, start, head, size

    def read(self, start: int, count: int) -> Bytes:
        """Some bytes, fetched."""
        (data,) = self.sink.fetch_spans(self.key, [(start, count)])
        if len(data) != count:
            raise ended(start + len(data), start + count)
        return data

    def is_current(self) -> bool:
        """Whether the same bytes are there, and as many in all."""
        found = self.sink.fetch(self.key, self.start, len(self.head))
        return found is not None and found.size == self.size and found.data == self.head

    def again(self) -> Value:
        """The same; whether it is current is asked while it is read."""
        return self

    def close(self) -> None:
        """There is nothing to let go of."""


MOST_HELD = 1024
"""Shards whose index is held."""

MOST_SLOTS = 1 << 20
"""Slots of all indexes that are held, 16 B each."""

WINDOW = 16
"""Shards that are read at the same time: each local one is an open file."""


class Shards:
    """Finds shards, and knows which are still what they were."""

    def __init__(self, sink: Sink, metadata: Metadata, grid: Grid) -> None:
        self.sink, self.metadata, self.grid = sink, metadata, grid
        self.source = source_of(sink)
        self._held: dict[Point, Shard] = {}
        self.most = max(1, min(MOST_HELD, MOST_SLOTS // max(1, grid.slots)))
        """Shards whose index is held."""
        self.window = min(WINDOW, self.most) if metadata.is_sharded else 64 * WINDOW
        """Shards that are read at the same time."""
        self.index_size = length(grid.slots, metadata.has_checksum)

    def key(self, at: Point) -> str:
        """The key of a shard."""
        return self.metadata.key(at)

    def error(self, at: Point, slot: int | None, message: object) -> ShardError:
        """What is wrong with a shard, or with a chunk of it: its key, its slot and its box."""
        box = self.grid.box(at, slot)
        where = f"shard {box}" if slot is None else f"chunk {slot}, {box}"
        error = ShardError(f"{self.sink.url}/{self.key(at)}: {where}: {message}")
        for note in getattr(message, "__notes__", ()):
            error.add_note(note)
        return error

    def find(self, at: Point) -> Shard | None:
        """A shard as it is now, with its index; None where there is none."""
        has_checksum, slots, count = self.metadata.has_checksum, self.grid.slots, self.index_size
        is_first = self.metadata.index_location == "start"
        shard = self.source.find(self.key(at), 0 if is_first else -count, count)
        if shard is None:
            return None
        if len(shard.head) != count:
            message = f"{shard.size} B, and the index of {slots} chunks has {count} B"
            raise self.error(at, None, message)
        try:
            shard.index = Index.parse(
                shard.head, slots, has_checksum=has_checksum, endian=self.metadata.index_endian
            )
        except ShardError as error:
            raise self.error(at, None, error) from None
        self._check(at, shard, *((count, shard.size) if is_first else (0, shard.size - count)))
        if isinstance(shard, OpenFile):
            shard.head = b""  # a file is told from another by other things
        return shard

    def _check(self, at: Point, shard: Shard, start: int, stop: int) -> None:
        slot = shard.index.misplaced(start, stop)
        if slot is not None:
            said = shard.index.said(slot)
            raise self.error(at, slot, f"said to lie at {said}, and chunks lie in {start}:{stop}")

    def held(self, at: Point) -> Shard | None:
        """A shard that was found before, opened once more."""
        known = self._held.pop(at, None)
        shard = None if known is None else known.again()
        if shard is not None:
            self._held[at] = shard  # the last to be dropped
        return shard

    def find_all(self, wanted: Sequence[Point], threads: int | None = None) -> dict[Point, Shard]:
        """Those of some shards that are there, as they are now."""
        found: dict[Point, Shard] = {}
        each(partial(self._find_one, found), wanted, kind=self.source.kind, most=threads)
        for at, shard in found.items():
            self._held[at] = shard
        for at in list(self._held)[: -self.most]:
            self._held.pop(at, None)
        return found

    def _find_one(self, found: dict[Point, Shard], at: Point) -> None:
        shard = self.find(at)
        if shard is not None:
            found[at] = shard

    def forget(self, some: Iterable[Point]) -> None:
        """Find these anew next time."""
        for at in some:
            self._held.pop(at, None)
