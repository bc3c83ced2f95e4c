"""`Sink`: where the values of a store are kept, in files or objects.

A store is a map from keys to values: `zarr.json`, `c/0/1`. Small values are put at once. A shard is
an `Upload`: bytes are appended, and it becomes visible when it is complete. Parts of values are
fetched.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from os import PathLike
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias

from weft.errors import WeftError
from weft.store.dtypes import Bytes
from weft.store.lock import LockedError

Url: TypeAlias = str | PathLike[str]
"""A folder, or a URL: `file:///…`, `s3://bucket/…`."""


class SinkError(WeftError, OSError):
    """A store that cannot be reached, or refuses a request.

    >>> isinstance(SinkError("s3://b/c/0: access is denied"), OSError)
    True
    """

    def __new__(cls, *args: object, **options: object) -> Self:
        """Return a new error: by ValueError, which comes first, it cannot be created."""
        return OSError.__new__(cls, *args)


class AccessDeniedError(SinkError):
    """A value that may not be read; servers that hide what they have answer so for missing ones."""


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Raise the errors of the system that a block meets as a `SinkError` that names an address."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WeftError):
            raise
        raise SinkError(f"{url} cannot be written: {error}") from error


class Fetched(NamedTuple):
    """A part of a value, and the size of the value in bytes."""

    data: Bytes
    size: int


class StoreEntry(NamedTuple):
    """Anything that a store holds, whoever wrote it."""

    key: str
    kind: Literal["value", "link", "folder", "other"]
    """A value; in a file system also a symbolic link, an empty folder, or something else."""


class Upload(Protocol):
    """A value that is being written, by one thread at a time."""

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Append buffers, which may be changed afterwards."""

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Make the value visible so far, with `more` bytes and an index, and stay open.

        Return False where incomplete values cannot be made visible.
        """

    def finish(self, index: Bytes) -> None:
        """Write the index in its place, and make the value visible."""

    def discard(self) -> None:
        """Discard the value; what was published stays."""


class Lock(Protocol):
    """The lock that the only writer of a store holds."""

    def release(self) -> None:
        """Let others write."""


class Sink(Protocol):
    """A map from keys to values; any thread may call it.

    A store of your own is a class that derives from it: `url`, `fetch`, `put`, `delete`, `walk` and
    `below` are enough. What it inherits keeps a shard in memory until it is complete, excludes
    other writers of this process only, and can be replaced method by method.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The address, for messages."""

    @property
    def is_link(self) -> bool:
        """Whether the path of the store ends with a symbolic link."""
        return False

    @property
    def buffered(self) -> int:
        """The most bytes that one upload buffers."""
        return getattr(self, "_shard_bytes", 0)

    def check_writable(self) -> None:
        """Refuse a store of a kind that can only be read."""

    def lock(self) -> Lock:
        """Become the only writer, or raise an error."""
        self.check_writable()
        return ProcessLock(self.url)

    @abstractmethod
    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """Return a part of a value; None where there is none. A negative start is from the end.

        What lies outside of the value is left out.
        """

    @abstractmethod
    def put(self, key: str, data: Bytes) -> None:
        """Write a small value, new or existing, atomically."""

    def upload(self, key: str, head: int) -> Upload:
        """Begin a value; its index takes the first `head` bytes, or 0 where it comes last."""
        return WholeUpload(self, key, head)

    def keys(self, prefix: str) -> Iterator[str]:
        """Return the keys of visible values below a folder."""
        for key, kind in self.walk(prefix):
            if kind == "value" and not key.rpartition("/")[2].startswith("."):
                yield key

    @abstractmethod
    def walk(self, prefix: str) -> Iterator[StoreEntry]:
        """Return everything below a folder, hidden or not; symbolic links are not followed."""

    def folders(self) -> list[str]:
        """Return the names of the folders directly below, sorted."""
        return sorted({key.partition("/")[0] for key, _ in self.walk("") if "/" in key})

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a value, if it exists."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove values, as far as they exist."""
        for key in keys:
            self.delete(key)

    def sweep(self) -> None:
        """Remove the unfinished values of a writer that was killed, and nothing else."""

    def tuned(self, shard: int, count: int, direct: bool | None) -> Sink:
        """Return the sink tuned for shards of `shard` bytes, `count` of them at a time."""
        tuned = copy(self)
        tuned._shard_bytes = 3 * shard // 2  # type: ignore[attr-defined]  # codecs may add bytes
        return tuned

    @abstractmethod
    def below(self, name: str) -> Sink:
        """Return the part of the store below a name."""


class WholeUpload:
    """A value that is kept in memory until it is complete, and put at once."""

    def __init__(self, sink: Sink, key: str, head: int) -> None:
        self._sink, self._key, self._head = sink, key, head
        self._data = bytearray()

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Append buffers, which may be changed afterwards."""
        for buffer in buffers:
            self._data += buffer

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Return False: what is not complete is not visible."""
        return False

    def finish(self, index: Bytes) -> None:
        """Put the value."""
        parts = (index, self._data) if self._head else (self._data, index)
        self._sink.put(self._key, b"".join(parts))

    def discard(self) -> None:
        """Discard the value."""
        self._data.clear()


class ProcessLock:
    """A lock that other writers of this process respect."""

    def __init__(self, url: str) -> None:
        self._url = url
        with _GUARD:
            if url in _HELD:
                raise LockedError(
                    f"{url} is locked by another writer", hint="it is in this process"
                )
            _HELD.add(url)

    def release(self) -> None:
        """Let others write."""
        with _GUARD:
            _HELD.discard(self._url)


_HELD: set[str] = set()
_GUARD = threading.Lock()
