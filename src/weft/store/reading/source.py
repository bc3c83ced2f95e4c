"""Where a reader has the bytes of a shard from: a file, or a server.

A shard may be replaced while it is read. A file that is open stays as it was, so that its index and
its chunks belong together; a value on a server is asked for again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal, Protocol

from weft.store.dtypes import Bytes
from weft.store.files import Folder
from weft.store.index import Index, ShardError
from weft.store.reading.workers import scratch
from weft.store.sink import Fetched, Sink

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
