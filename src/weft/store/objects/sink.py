"""Values as objects: S3 and what is compatible with it, and all else that obstore reaches.

An object is seen when it is whole, and never before. What is appended leaves in parts while more
comes (a multipart upload), so that one upload holds a few parts at most; what is smaller than a
part is one request. Requests that fail are tried again, by obstore, with growing pauses.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.objects.connect import Reached, known_reach, reach
from weft.store.objects.errors import SinkError, is_no_bucket, is_outside, told
from weft.store.objects.lease import Lease
from weft.store.objects.upload import Line, ObjectUpload, SpooledUpload, abort_leftovers, flat
from weft.store.sink import Entry, Fetched

COALESCE = 1 << 20
"""Parts of a value that are so near to each other are fetched in one request."""


REMOVED = 1000
"""Objects that one request removes, at most."""

MOST_PARTS = 10_000
"""Parts that S3 takes for one object."""


@dataclass(slots=True)
class _State:
    """What the sinks of one store share."""

    leases: list[Lease] = field(default_factory=list)
    line: Line = field(default_factory=Line)


@dataclass(frozen=True, slots=True)
class Objects:
    """A bucket, or a part of it, as a `Sink`: an object for every key.

    >>> sink = Objects.of("memory://doc/a.zarr", {})
    >>> sink.put("zarr.json", b"{}")
    >>> sink.fetch("zarr.json", start=-1).size, list(sink.keys(""))
    (2, ['zarr.json'])
    """

    url: str
    root: str
    """The address that was given, of which this may be a part."""
    options: Mapping[str, Any] = field(repr=False)  # there are secrets among them
    reached: Reached
    prefix: str
    """What the names of the objects begin with."""
    state: _State = field(default_factory=_State, compare=False, repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any]) -> Objects:
        """The sink of an address: `s3://bucket/path`, `gs://…`, `az://…`, `https://…` to read.

        Options are those of obstore for the store (`endpoint`, `region`, `access_key_id`, …), its
        `client_options` (`timeout`, `allow_http`, …; by themselves too), `retry_config` and
        `credential_provider`, and ours: `part_size` in bytes, `parts` that an upload holds, and
        `lease`, the seconds after which a lock that is not renewed is free. Numbers are seconds
        where obstore wants spans of time. The module `reach` says where credentials come from.

        `memory://name/path` is a store that ends with the process.
        """
        reached = reach(url, options)
        return cls(url.rstrip("/"), url.rstrip("/"), options, reached, reached.prefix)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (os.getpid(), self.url, self.root, self.options, self.prefix, self._how)

    @property
    def _how(self) -> tuple[int, int, float]:
        return self.reached.part_size, self.reached.parts, self.reached.lease

    @property
    def held(self) -> int:
        """The bytes that one upload holds: the part that is filled, and those that leave."""
        return self.reached.parts * self.reached.part_size

    def lock(self) -> Lease:
        """Be the only writer, as long as a thread of this process renews a lock object."""
        self.check_writable()
        lease = self.reached.lease
        store = self.reached.store
        if self.reached.kind != "memory":
            store = reach(self.root, _brief(self.options, lease / 4)).store
        self.state.leases[:] = [held for held in self.state.leases if held.is_held]
        self.state.leases.append(Lease(store, self.prefix, self.url, lease))
        self.state.line.is_cut = False
        return self.state.leases[-1]

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """A part of an object, and its size, in one request."""
        if count == 0:
            return self._nothing(key)
        errors = needed("obstore.exceptions", "store")
        with told(self._name(key)):
            try:
                found = self._got(key, _range(start, count))
            except FileNotFoundError as error:
                if is_no_bucket(error):
                    raise
                return None
            except (errors.GenericError, errors.NotSupportedError) as error:
                if not is_outside(error):
                    raise
                return self._clipped(key, start, count)
        return found if count is None else Fetched(found.data[:count], found.size)

    def _got(self, key: str, wanted: Any) -> Fetched:
        options = None if wanted is None else {"range": wanted}
        got = needed("obstore", "store").get(self._store, self._path(key), options=options)
        return Fetched(memoryview(got.bytes()), got.meta["size"])

    def _clipped(self, key: str, start: int, count: int | None) -> Fetched | None:
        """A part of an object whose size is asked for first, since it does not lie inside."""
        there = self._nothing(key)
        if there is None:
            return None
        first = max(0, there.size + start) if start < 0 else start
        stop = there.size if count is None else min(first + count, there.size)
        return there if first >= stop else self._got(key, (first, stop))

    def _nothing(self, key: str) -> Fetched | None:
        """No part of an object, and its size."""
        with told(self._name(key)):
            try:
                meta = needed("obstore", "store").head(self._store, self._path(key))
            except FileNotFoundError:
                return None
        return Fetched(b"", meta["size"])

    def fetch_spans(self, key: str, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Several parts of an object; those that are near to each other in one request."""
        merged = _merged(spans)
        with told(self._name(key)):
            try:
                # obstore would merge them too, and panics where the object ends between two.
                parts = needed("obstore", "store").get_ranges(
                    self._store,
                    self._path(key),
                    starts=[start for start, _ in merged],
                    ends=[end for _, end in merged],
                    coalesce=0,
                )
            except FileNotFoundError as error:
                if is_no_bucket(error):
                    raise
                raise SinkError(f"{self._name(key)} is not there") from None
            except needed("obstore.exceptions", "store").GenericError as error:
                if not is_outside(error):
                    raise
                parts = [self._present(key, start, end - start) for start, end in merged]
        return list(_cut(spans, merged, [memoryview(part) for part in parts]))

    def put(self, key: str, data: Bytes) -> None:
        """A small object, new or in place of an old one, at once."""
        self._check(key)
        with told(self._name(key)):
            needed("obstore", "store").put(
                self._store, self._path(key), flat(data), use_multipart=False
            )

    def upload(self, key: str, head: int) -> ObjectUpload | SpooledUpload:
        """An object that is written in parts.

        The parts of an upload leave in their order, as obstore has it. Where the index has its
        place in front, all wait for it: in a temporary file, and not in memory.
        """
        self._check(key)
        if head:
            begin = partial(self._parts, key)
            return SpooledUpload(self._name(key), head, tempfile.TemporaryFile(), begin)
        return self._parts(key)

    def _parts(self, key: str) -> ObjectUpload:
        reached = self.reached
        file = needed("obstore", "store").open_writer(
            self._store,
            self._path(key),
            buffer_size=reached.part_size,
            max_concurrency=reached.parts,
        )
        check = partial(self._check, key)
        return ObjectUpload(self._name(key), file, reached.part_size, check, self.state.line)

    def keys(self, prefix: str) -> Iterator[str]:
        """The objects below a folder, but for those whose names begin with a dot."""
        for key, _ in self.walk(prefix):
            if not key.rpartition("/")[2].startswith("."):
                yield key

    def walk(self, prefix: str) -> Iterator[Entry]:
        """Every object below a folder."""
        at = f"{self.prefix}{prefix}".rstrip("/")
        with told(self._name(prefix)):
            for chunk in needed("obstore", "store").list(self._store, at or None):
                for found in chunk:
                    yield Entry(found["path"].removeprefix(self.prefix), "value")

    @property
    def is_link(self) -> bool:
        """Object stores have no links."""
        return False

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._check(key)
        with told(self._name(key)), suppress(FileNotFoundError):
            needed("obstore", "store").delete(self._store, self._path(key))

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, as far as they are there, many with each request."""
        for first in range(0, len(keys), REMOVED):
            part = keys[first : first + REMOVED]
            self._check(part[0])
            with told(self._name(part[0])), suppress(FileNotFoundError):
                needed("obstore", "store").delete(self._store, [self._path(key) for key in part])

    def sweep(self) -> None:
        """Let the server forget the uploads that a writer that was killed did not finish.

        They cannot be seen, and are paid for. Obstore has no way to list them: boto3 does it for
        S3, where it is installed and may; else a rule of the bucket should remove them in time.
        """
        if self.reached.kind == "s3":
            abort_leftovers(self.url, self.options)

    def suited(self, shard: int, count: int, direct: bool | None) -> Objects:
        """The sink with parts so large that there are never too many in a shard."""
        # A shard may become larger by what codecs add and by its index, but not by half.
        least = -(-shard * 3 // (2 * MOST_PARTS))
        part_size = max(self.reached.part_size, least)
        return replace(self, reached=self.reached._replace(part_size=part_size))

    def below(self, name: str) -> Objects:
        """A part of the bucket."""
        return replace(self, url=f"{self.url}/{name}", prefix=f"{self.prefix}{name}/")

    @property
    def _store(self) -> Any:
        return self.reached.store

    def _path(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"

    def check_writable(self) -> None:
        """Refuse a store that can only be read."""
        if self.reached.kind == "http":
            raise WeftError(f"{self.url} can only be read", hint="write to s3://, gs:// or az://")

    def _check(self, key: str) -> None:
        """Refuse to write where one cannot, and where somebody else may."""
        self.check_writable()
        for lease in self.state.leases:
            if self._path(key).startswith(lease.prefix):
                lease.check()

    def _present(self, key: str, start: int, count: int) -> Bytes:
        found = self.fetch(key, start, count)
        if found is None:
            raise SinkError(f"{self._name(key)} is not there")
        return found.data


def _reopened(
    process: int,
    url: str,
    root: str,
    options: Mapping[str, Any],
    prefix: str,
    how: tuple[int, int, float],
) -> Objects:
    """A sink that was sent here; all that are of one store share what reaches it."""
    reached = known_reach(root, options)
    if reached.kind == "memory" and process != os.getpid():
        raise WeftError(f"{url} ends with process {process}, and this is {os.getpid()}")
    part_size, parts, lease = how
    reached = reached._replace(part_size=part_size, parts=parts, lease=lease)
    return Objects(url, root, options, reached, prefix)


def _brief(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The options, with requests that end soon: those of a lock must end before the lock does."""
    client, retry = dict(options.get("client_options", {})), dict(options.get("retry_config", {}))
    client["timeout"] = _least(client.get("timeout", options.get("timeout")), seconds)
    retry["retry_timeout"] = _least(retry.get("retry_timeout"), seconds)
    rest = {name: value for name, value in options.items() if name != "timeout"}
    return {**rest, "client_options": client, "retry_config": retry}


def _least(given: Any, seconds: float) -> float:
    """A span of time, as far as it is shorter."""
    given = given.total_seconds() if isinstance(given, timedelta) else given
    return min(given, seconds) if isinstance(given, int | float) else seconds


def _range(start: int, count: int | None) -> Any:
    """How obstore says which part is wanted; None for all of it."""
    if start < 0:
        return {"suffix": -start}
    if count is None:
        return {"offset": start} if start else None
    return (start, start + count)


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The starts and ends of the requests that fetch all spans, in order."""
    merged: list[tuple[int, int]] = []
    for start, count in sorted(span for span in spans if span[1]):
        if merged and start - merged[-1][1] <= COALESCE:
            merged[-1] = merged[-1][0], max(merged[-1][1], start + count)
        else:
            merged.append((start, start + count))
    return merged


def _cut(
    spans: Sequence[tuple[int, int]], merged: list[tuple[int, int]], parts: list[memoryview]
) -> Iterator[Bytes]:
    """The spans, out of what the requests gave."""
    starts = [start for start, _ in merged]
    for start, count in spans:
        if not count:
            yield b""
            continue
        at = bisect_right(starts, start) - 1
        offset = start - starts[at]
        yield parts[at][offset : offset + count]
