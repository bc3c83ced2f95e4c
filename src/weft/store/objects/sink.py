"""`ObjectSink`: values as objects in S3 and compatible stores, and all others of obstore.

An object is visible when it is complete, and never before. What is appended is sent in parts while
more comes (a multipart upload), so that one upload buffers a few parts; what is smaller than a part
is one request. Obstore retries failed requests with growing pauses.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.extra import needed
from weft.space import BlockGrid
from weft.store.dtypes import Bytes
from weft.store.objects.connect import ObjectStore, cached_connection, connect
from weft.store.objects.errors import (
    has_no_ranges,
    is_missing_bucket,
    is_out_of_range,
    translate_errors,
)
from weft.store.objects.lease import Lease
from weft.store.objects.upload import Connection, ObjectUpload, SpooledUpload, abort_leftovers, flat
from weft.store.sink import Fetched, SinkError, StoreEntry

MAX_REMOVED = 1000
"""The most objects that one request removes."""

MAX_PARTS = 10_000
"""The most parts of an object in S3."""


MAX_WHOLE = 1 << 31
"""The most bytes of an object of a server that sends whole objects only."""

TURNS = 64
"""Such objects that may be fetched at a time."""

MAX_KEPT = 1 << 28
"""The most bytes of such objects that are kept, the last used."""


class _WholeObject(NamedTuple):
    """An object that was fetched whole, and what tells whether the server still has the same."""

    data: memoryview
    version: tuple[object, ...]


@dataclass(slots=True)
class _SharedState:
    """The state that the sinks of one store share."""

    leases: list[Lease] = field(default_factory=list)
    connection: Connection = field(default_factory=Connection)
    has_ranges: bool = True
    """Whether the server sends parts of objects, as far as is known."""
    kept: dict[str, _WholeObject] = field(default_factory=dict)
    """Objects of a server that sends whole ones only, by path, the last used last."""
    turns: tuple[threading.Lock, ...] = field(
        default_factory=lambda: tuple(threading.Lock() for _ in range(TURNS))
    )
    """The parts of one object are wanted one after the other, so that it is fetched once."""


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """A bucket, or a part of it, as a `Sink`: an object for every key.

    >>> sink = ObjectSink.of("memory://doc/a.zarr", {})
    >>> sink.put("zarr.json", b"{}")
    >>> sink.fetch("zarr.json", start=-1).size, list(sink.keys(""))
    (2, ['zarr.json'])
    """

    url: str
    root: str
    """The URL that was given, of which this may be a part."""
    options: Mapping[str, Any] = field(repr=False)  # there are secrets among them
    store: ObjectStore
    prefix: str
    """The prefix of the names of the objects."""
    state: _SharedState = field(default_factory=_SharedState, compare=False, repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> ObjectSink:
        """Return the sink of a URL: `s3://bucket/path`, `gs://…`, `az://…`, `https://…` to read.

        Options are those of obstore for the store (`endpoint`, `region`, `access_key_id`, …), its
        `client_options` (`timeout`, `allow_http`, …; also by themselves), `retry_config` and
        `credential_provider`, and Weft's: `part_size` in bytes, `parts` that an upload buffers, and
        `lease`, the seconds after which a lock that is not renewed expires. Numbers are seconds
        where obstore expects timedeltas. The module `connect` explains credentials.

        `memory://name/path` is a store that ends with the process.
        """
        store = connect(url, options)
        return cls(url.rstrip("/"), url.rstrip("/"), options, store, store.prefix)

    def __reduce__(self) -> tuple[object, ...]:
        limits = self.store.part_size, self.store.parts, self.store.lease
        return _reopened, (os.getpid(), self.url, self.root, self.options, self.prefix, limits)

    @property
    def buffered(self) -> int:
        """The bytes that one upload buffers: the part that is filled, and those being sent."""
        return self.store.parts * self.store.part_size

    def lock(self) -> Lease:
        """Become the only writer, while a thread of this process renews a lock object."""
        self.check_writable()
        lease = self.store.lease
        client = self.store.client
        if self.store.kind != "memory":
            client = connect(self.root, _brief(self.options, lease / 4)).client
        self.state.leases[:] = [held for held in self.state.leases if held.is_held]
        self.state.leases.append(Lease(client, self.prefix, self.url, lease))
        self.state.connection.is_broken = False
        return self.state.leases[-1]

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """Fetch a part of an object, and its size, in one request."""
        if count == 0:
            return self._size_only(key)
        if not self.state.has_ranges:
            return self._part_of_whole(key, start, count)
        errors = needed("obstore.exceptions", "store")
        with translate_errors(self._name(key)):
            try:
                fetched = self._got(key, _range(start, count))
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None
            except (errors.GenericError, errors.NotSupportedError) as error:
                if self.store.kind == "http" and has_no_ranges(error):
                    self.state.has_ranges = False
                    return self._part_of_whole(key, start, count)
                if not is_out_of_range(error):
                    raise
                return self._clipped(key, start, count)
        return fetched if count is None else Fetched(fetched.data[:count], fetched.size)

    def _got(self, key: str, wanted: Any) -> Fetched:
        options = None if wanted is None else {"range": wanted}
        got = needed("obstore", "store").get(self._client, self._path(key), options=options)
        return Fetched(memoryview(got.bytes()), got.meta["size"])

    def _part_of_whole(self, key: str, start: int, count: int | None) -> Fetched | None:
        """Return a part of an object of a server that sends whole ones only."""
        path = self._path(key)
        with self.state.turns[hash(path) % TURNS]:
            whole = self._whole(path, self._name(key))
        if whole is None:
            return None
        size = len(whole.data)
        first = max(0, size + start) if start < 0 else min(start, size)
        stop = size if count is None else min(first + count, size)
        return Fetched(whole.data[first:stop], size)

    def _whole(self, path: str, name: str) -> _WholeObject | None:
        """Return an object as the server has it now, from those that are kept if it is the same."""
        kept, obstore = self.state.kept, needed("obstore", "store")
        known = kept.pop(path, None)
        with translate_errors(name):
            if known is not None:
                with suppress(FileNotFoundError):  # or HEAD is not allowed: GET will tell
                    if _version(obstore.head(self._client, path)) == known.version:
                        kept[path] = known
                        return known
            try:
                got = obstore.get(self._client, path)
            except FileNotFoundError:
                return None
            if got.meta["size"] > MAX_WHOLE:
                raise SinkError(
                    f"{name} has {got.meta['size']} B, and the server only sends all of them",
                    hint="use a server that supports range requests",
                )
            whole = _WholeObject(memoryview(bytes(got.bytes())), _version(got.meta))
        kept[path] = whole
        every, most = list(kept.items()), MAX_KEPT
        for known_path, each in reversed(every):  # the last used are kept
            most -= len(each.data)
            if most < 0 and known_path != path:
                kept.pop(known_path, None)
        return whole

    def _clipped(self, key: str, start: int, count: int | None) -> Fetched | None:
        """Fetch a part of an object that is not all inside, after asking for its size."""
        empty = self._size_only(key)
        if empty is None:
            return None
        first = max(0, empty.size + start) if start < 0 else start
        stop = empty.size if count is None else min(first + count, empty.size)
        return empty if first >= stop else self._got(key, (first, stop))

    def _size_only(self, key: str) -> Fetched | None:
        """Fetch the size of an object, and no bytes."""
        obstore, path = needed("obstore", "store"), self._path(key)
        with translate_errors(self._name(key)):
            try:
                return Fetched(b"", obstore.head(self._client, path)["size"])
            except FileNotFoundError:
                if self.store.kind != "http":
                    return None
            try:  # servers that do not allow HEAD; the content is not read
                return Fetched(b"", obstore.get(self._client, path).meta["size"])
            except FileNotFoundError:
                return None

    def put(self, key: str, data: Bytes) -> None:
        """Write a small object, new or existing, in one request."""
        self._check(key)
        with translate_errors(self._name(key)):
            needed("obstore", "store").put(
                self._client, self._path(key), flat(data), use_multipart=False
            )

    def upload(self, key: str, head: int) -> ObjectUpload | SpooledUpload:
        """Begin an object that is written in parts.

        Parts are sent in order, as obstore does it. Where the index comes first, all wait for it,
        in a temporary file and not in memory.
        """
        self._check(key)
        if head:
            begin = partial(self._parts, key)
            return SpooledUpload(self._name(key), head, tempfile.TemporaryFile(), begin)
        return self._parts(key)

    def _parts(self, key: str) -> ObjectUpload:
        store = self.store
        file = needed("obstore", "store").open_writer(
            self._client, self._path(key), buffer_size=store.part_size, max_concurrency=store.parts
        )
        check = partial(self._check, key)
        return ObjectUpload(self._name(key), file, store.part_size, check, self.state.connection)

    def keys(self, prefix: str) -> Iterator[str]:
        """Return the keys below a folder, except names that begin with a dot."""
        for key, _ in self.walk(prefix):
            if not key.rpartition("/")[2].startswith("."):
                yield key

    def walk(self, prefix: str) -> Iterator[StoreEntry]:
        """Return every object below a folder."""
        at = f"{self.prefix}{prefix}".rstrip("/")
        with translate_errors(self._name(prefix)):
            for chunk in needed("obstore", "store").list(self._client, at or None):
                for entry in chunk:
                    yield StoreEntry(entry["path"].removeprefix(self.prefix), "value")

    def folders(self) -> list[str]:
        """Return the names of the prefixes directly below, sorted."""
        if self.store.kind == "http":
            raise WeftError(
                f"{self.url} cannot be listed: HTTP has no folders",
                hint="consolidated metadata list the members of a group",
            )
        with translate_errors(self.url):
            listed = needed("obstore", "store").list_with_delimiter(
                self._client, self.prefix.rstrip("/") or None
            )
        return sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"])

    @property
    def is_link(self) -> bool:
        """False: object stores have no links."""
        return False

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        self._check(key)
        with translate_errors(self._name(key)), suppress(FileNotFoundError):
            needed("obstore", "store").delete(self._client, self._path(key))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, as far as they exist, many with each request."""
        for first in range(0, len(keys), MAX_REMOVED):
            part = keys[first : first + MAX_REMOVED]
            self._check(part[0])
            with translate_errors(self._name(part[0])), suppress(FileNotFoundError):
                needed("obstore", "store").delete(self._client, [self._path(key) for key in part])

    def sweep(self) -> None:
        """Abort the uploads that a writer that was killed did not finish.

        They are invisible, but cost storage. Obstore cannot list them: boto3 does it for S3, where
        it is installed and permitted; else a lifecycle rule of the bucket should remove them.
        """
        if self.store.kind == "s3":
            abort_leftovers(self.url, self.options)

    def tuned(self, shard: int, count: int, direct: bool | None) -> ObjectSink:
        """Return the sink with parts so large that a shard never has too many."""
        # Codecs and the index may make a shard larger, but not by half.
        least = BlockGrid.cut(((3 * shard + 1) // 2,), (MAX_PARTS,)).block_shape[0]
        part_size = max(self.store.part_size, least)
        return replace(self, store=self.store._replace(part_size=part_size))

    def below(self, name: str) -> ObjectSink:
        """Return a part of the bucket."""
        return replace(self, url=f"{self.url}/{name}", prefix=f"{self.prefix}{name}/")

    @property
    def _client(self) -> Any:
        return self.store.client

    def _path(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"

    def check_writable(self) -> None:
        """Refuse a store that can only be read."""
        if self.store.kind == "http":
            raise WeftError(f"{self.url} can only be read", hint="write to s3://, gs:// or az://")

    def _check(self, key: str) -> None:
        """Refuse to write to a store that is read-only, or that another writer may hold."""
        self.check_writable()
        for lease in self.state.leases:
            if self._path(key).startswith(lease.prefix):
                lease.check()


def _reopened(
    process: int,
    url: str,
    root: str,
    options: Mapping[str, Any],
    prefix: str,
    limits: tuple[int, int, float],
) -> ObjectSink:
    """Return a sink that was sent here; sinks of one store share a connection."""
    store = cached_connection(root, options)
    if store.kind == "memory" and process != os.getpid():
        raise WeftError(f"{url} ends with process {process}, and this is {os.getpid()}")
    part_size, parts, lease = limits
    store = store._replace(part_size=part_size, parts=parts, lease=lease)
    return ObjectSink(url, root, options, store, prefix)


def _brief(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the options with short timeouts: requests for a lock must end before it expires."""
    client, retry = dict(options.get("client_options", {})), dict(options.get("retry_config", {}))
    client["timeout"] = _least(client.get("timeout", options.get("timeout")), seconds)
    retry["retry_timeout"] = _least(retry.get("retry_timeout"), seconds)
    rest = {name: value for name, value in options.items() if name != "timeout"}
    return {**rest, "client_options": client, "retry_config": retry}


def _least(given: Any, seconds: float) -> float:
    """Return the shorter of two times."""
    given = given.total_seconds() if isinstance(given, timedelta) else given
    return min(given, seconds) if isinstance(given, int | float) else seconds


def _version(meta: Any) -> tuple[object, ...]:
    """Return what changes with the content of an object, as far as a server tells."""
    return meta["size"], meta.get("e_tag"), meta.get("last_modified")


def _range(start: int, count: int | None) -> Any:
    """Return the range in obstore's form; None for the whole value."""
    if start < 0:
        return {"suffix": -start}
    if count is None:
        return {"offset": start} if start else None
    return (start, start + count)
