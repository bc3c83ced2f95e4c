"""`Sink`: where the bytes of a store go and come from, whatever keeps them.

A store is a map from keys to values: `zarr.json`, `c/0/1`. Small values are put at once. A shard is
an `Upload`: bytes are appended, and it is seen when it is whole. Values are fetched in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Literal, NamedTuple, Protocol, TypeAlias

from weft.store.dtypes import Bytes

Url: TypeAlias = str | PathLike[str]
"""A folder, or the address of one: `file:///…`, `s3://bucket/…`."""


class Fetched(NamedTuple):
    """A part of a value, and the bytes of all of it."""

    data: Bytes
    size: int


class Entry(NamedTuple):
    """Something that a store holds, whoever put it there."""

    key: str
    kind: Literal["value", "link", "folder", "other"]
    """A value; in a file system also a symbolic link, an empty folder, or something else."""


class Upload(Protocol):
    """A value that is being written. One thread at a time uses it."""

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Put buffers behind what is there; they may be changed afterwards."""

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Let what is there be seen, `more` behind it and an index, and stay open.

        False where values cannot be seen before they are whole.
        """

    def finish(self, index: Bytes) -> None:
        """Put the index in its place, and let the value be seen."""

    def drop(self) -> None:
        """Forget all of it; what was seen before stays."""


class Lock(Protocol):
    """What the only writer of a store holds."""

    def release(self) -> None:
        """Let others write."""


class Sink(Protocol):
    """A map from keys to values. All of it may be called from any thread."""

    @property
    def url(self) -> str:
        """What messages call it."""

    @property
    def is_link(self) -> bool:
        """Whether the store itself is reached through a symbolic link at the end of its path."""

    @property
    def held(self) -> int:
        """The bytes that one upload holds at most."""

    def check_writable(self) -> None:
        """Refuse a store that can only be read, by its kind."""

    def lock(self) -> Lock:
        """Be the only writer, or be refused."""

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """A part of a value, None where there is none; a negative start counts from the end.

        What lies outside of the value is left out.
        """

    def fetch_spans(self, key: str, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Several parts of a value, each a start and a count."""

    def put(self, key: str, data: Bytes) -> None:
        """A small value, new or in place of an old one, at once."""

    def upload(self, key: str, head: int) -> Upload:
        """A value to be written, whose index has its place in front and `head` bytes, or 0."""

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that begin with a folder's name, and the values that are seen."""

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Everything below a folder's name, hidden or not; no symbolic link is followed."""

    def delete(self, key: str) -> None:
        """Remove a value, if it is there."""

    def remove(self, keys: Sequence[str]) -> None:
        """Remove values, as far as they are there."""

    def sweep(self) -> None:
        """Remove the unfinished values of a writer that was killed, and nothing else."""

    def suited(self, shard: int, count: int, direct: bool | None) -> Sink:
        """The sink as it is best for shards of so many bytes, so many of them at a time."""

    def below(self, name: str) -> Sink:
        """The part of the store whose keys begin with a name and a slash."""
