"""`Lease`: a lock in an object store, which expires unless it is renewed.

The lock is an object that names its holder. It is created only if there is none, and renewed or
taken over only if no other writer changed it meanwhile: conditional puts, which S3, Google, Azure
and most compatible stores support. On a store without them, the lock is read, written and read
again, before every renewal too: of two writers that begin at the same moment, both may hold it
until the first renewal, when one of them loses it.

The age of a lock is measured by the store's own clock, because that of a machine may be wrong.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import threading
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from weft.errors import WeftError
from weft.extra import needed
from weft.store.objects.errors import is_missing_bucket, sink_error, translate_errors
from weft.store.sink import SinkError

LOCK = ".weft.lock"
"""The object that names the writer."""

CLOCK = ".weft.clock"
"""The name of an object that is written to read the store's clock."""


class _LeaseRecord(NamedTuple):
    """A lock object as it was read."""

    content: dict[str, Any]
    version: dict[str, str]
    modified: datetime


class Lease:
    """The lock of the only writer below a prefix; a thread renews it until it is released."""

    def __init__(self, store: Any, prefix: str, url: str, seconds: float) -> None:
        self.store, self.prefix, self.url, self.seconds = store, prefix, url, seconds
        self.holder = uuid4().hex
        self._count = 0
        self._renewed = time.monotonic()
        self._error = ""
        self._is_lost = False
        self._process = os.getpid()
        self._is_conditional = True
        """Whether the store supports conditional puts."""
        with translate_errors(f"{url}/{LOCK}"):
            self._version = self._take()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="weft-lease", daemon=True)
        self._thread.start()
        # A daemon thread must not be inside of a foreign library while the interpreter ends.
        atexit.register(self.release)

    def check(self) -> None:
        """Raise an error once another writer may hold the lock."""
        if self._stop.is_set():
            return
        if self._process != os.getpid():
            raise SinkError(f"{self.url}: the lock belongs to the process that was forked")
        if self._is_lost:
            raise SinkError(
                f"{self.url}: another writer took the lock over",
                hint=f"it was not renewed for {self.seconds:g} s, or was removed",
            )
        age = time.monotonic() - self._renewed
        if age > self.seconds:
            why = f": {self._error}" if self._error else ""
            raise SinkError(f"{self.url}: the lock was not renewed for {age:.0f} s{why}")

    def release(self) -> None:
        """Release the lock; where the server does not answer, it expires."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._process != os.getpid():  # a forked child: its parent holds the lock
            return
        self._thread.join()
        atexit.unregister(self.release)
        try:
            # A delete has no condition. The lock is renewed just before, on the condition that it
            # is still ours, so that no other writer takes it over before the request has ended.
            self._version = self._renew()
            needed("obstore", "store").delete(self.store, self._path)
        except WeftError:  # it is not ours any more
            pass
        except self._errors:  # it ends by itself
            pass

    @property
    def is_held(self) -> bool:
        """Whether it is not released."""
        return not self._stop.is_set()

    @property
    def _path(self) -> str:
        return f"{self.prefix}{LOCK}"

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return (needed("obstore.exceptions", "store").BaseError, OSError)

    def _take(self) -> dict[str, str]:
        """Create the lock, or take over one that expired."""
        record = self._read()
        if record is None:
            return self._put("create")
        age = self._now() - record.modified.timestamp()
        if age <= self.seconds:
            raise self._refused(record, age)
        return self._put(record.version)

    def _put(self, mode: str | dict[str, str]) -> dict[str, str]:
        """Write the lock unless another writer did; return its version."""
        obstore, errors = needed("obstore", "store"), needed("obstore.exceptions", "store")
        self._count += 1
        content = {
            "holder": self.holder,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "renewed": datetime.now(UTC).isoformat(),
            "count": self._count,  # the same bytes would be the same version
        }
        data = json.dumps(content).encode()
        try:
            return _version(obstore.put(self.store, self._path, data, mode=mode or "create"))
        except (errors.AlreadyExistsError, errors.PreconditionError, FileNotFoundError) as error:
            if is_missing_bucket(error):
                raise
            # It is our own, if the answer to a put was lost and it was put again.
            return self._own()
        except (NotImplementedError, errors.NotSupportedError):
            self._is_conditional = False
            obstore.put(self.store, self._path, data)
            return self._own()

    def _own(self) -> dict[str, str]:
        """Return the version of the lock, if it is ours."""
        record = self._read()
        if record is None or record.content.get("holder") != self.holder:
            raise self._refused(record)
        return record.version

    def _read(self) -> _LeaseRecord | None:
        try:
            got = needed("obstore", "store").get(self.store, self._path)
            text = bytes(got.bytes())
        except FileNotFoundError:
            return None
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = {}
        meta = got.meta
        return _LeaseRecord(
            content if isinstance(content, dict) else {}, _version(meta), meta["last_modified"]
        )

    def _now(self) -> float:
        """Return the time of the store's clock."""
        obstore, path = needed("obstore", "store"), f"{self.prefix}{CLOCK}.{self.holder}"
        obstore.put(self.store, path, self.holder.encode())
        now: float = obstore.head(self.store, path)["last_modified"].timestamp()
        obstore.delete(self.store, path)
        return now

    def _refused(self, record: _LeaseRecord | None, age: float | None = None) -> WeftError:
        content = record.content if record else {}
        who = f"process {content.get('process', '?')} on {content.get('host', '?')}"
        seen = "" if age is None else f", seen {max(0.0, age):.0f} s ago"
        return WeftError(
            f"{self.url} is locked by another writer",
            hint=f"{who}{seen}; a lock is free when it is not renewed for {self.seconds:g} s",
        )

    def _keep_renewing(self) -> None:
        """Renew the lock until it is released or lost."""
        while not self._is_lost and not self._stop.wait(self.seconds / 3):
            begun = time.monotonic()
            try:
                self._version = self._renew()
                self._renewed, self._error = begun, ""
            except WeftError:
                self._is_lost = True
            except self._errors as error:
                self._error = str(sink_error(self._path, error))

    def _renew(self) -> dict[str, str]:
        """Renew the lock; return its version."""
        if not self._version or not self._is_conditional:
            self._own()  # or another writer's lock would be overwritten
        return self._put(self._version or "overwrite")


def _version(meta: Any) -> dict[str, str]:
    """Return what identifies a version of an object."""
    names = ("e_tag", "version")
    return {name: meta[name] for name in names if meta.get(name) is not None}
