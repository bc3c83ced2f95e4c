"""`Lease`: a lock among objects, which is lost when nobody renews it.

The lock is an object that says who holds it. It is made only if there is none, and renewed or taken
over only if nobody else changed it meanwhile: conditional puts, which S3, Google, Azure and most of
those that are compatible with them know. On a store that knows none, the lock is read, written and
read again, before every renewal too: of two writers that begin at the very same time, both may hold
it until the first renewal, when one of them loses it.

How old a lock is, is read off the store's own clock: that of the machines may be wrong.
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
from weft.store.objects.errors import SinkError, fault, is_no_bucket, told

LOCK = ".weft.lock"
"""The object that says who writes."""

CLOCK = ".weft.clock"
"""How an object is called that is written to see what time the store has."""


class _Found(NamedTuple):
    """A lock as it was read."""

    said: dict[str, Any]
    version: dict[str, str]
    modified: datetime


class Lease:
    """What the only writer below a prefix holds; renewed by a thread until it is released."""

    def __init__(self, store: Any, prefix: str, url: str, seconds: float) -> None:
        self.store, self.prefix, self.url, self.seconds = store, prefix, url, seconds
        self.holder = uuid4().hex
        self._count = 0
        self._renewed = time.monotonic()
        self._fault = ""
        self._is_lost = False
        self._process = os.getpid()
        self._is_conditional = True
        """Whether the store knows puts that depend on what is there."""
        with told(f"{url}/{LOCK}"):
            self._version = self._take()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="weft-lease", daemon=True)
        self._thread.start()
        # A daemon thread must not be inside of a foreign library while the interpreter ends.
        atexit.register(self.release)

    def check(self) -> None:
        """Refuse to write once somebody else may hold the lock."""
        if self._stop.is_set():
            return
        if self._process != os.getpid():
            raise SinkError(f"{self.url}: the lock belongs to the process that was forked")
        if self._is_lost:
            raise SinkError(
                f"{self.url}: somebody else took the lock over",
                hint=f"it was not renewed for {self.seconds:g} s, or somebody removed it",
            )
        age = time.monotonic() - self._renewed
        if age > self.seconds:
            why = f": {self._fault}" if self._fault else ""
            raise SinkError(f"{self.url}: the lock was not renewed for {age:.0f} s{why}")

    def release(self) -> None:
        """Let others write; a server that does not answer lets them when the time is over."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._process != os.getpid():  # a forked child: its parent holds the lock
            return
        self._thread.join()
        atexit.unregister(self.release)
        try:
            # A delete has no condition. Renewed just before, on the condition that it is still
            # ours, the lock is nobody else's for so long that the request has ended by then.
            self._version = self._renewal()
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
        """Make the lock, or take one over that is too old."""
        found = self._read()
        if found is None:
            return self._put("create")
        age = self._now() - found.modified.timestamp()
        if age <= self.seconds:
            raise self._refused(found, age)
        return self._put(found.version)

    def _put(self, mode: str | dict[str, str]) -> dict[str, str]:
        """Write the lock if nobody else did; its version."""
        obstore, errors = needed("obstore", "store"), needed("obstore.exceptions", "store")
        self._count += 1
        said = {
            "holder": self.holder,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "renewed": datetime.now(UTC).isoformat(),
            "count": self._count,  # the same bytes would be the same version
        }
        data = json.dumps(said).encode()
        try:
            return _version(obstore.put(self.store, self._path, data, mode=mode or "create"))
        except (errors.AlreadyExistsError, errors.PreconditionError, FileNotFoundError) as error:
            if is_no_bucket(error):
                raise
            # Our own, if the answer to a put got lost and it was put again.
            return self._own()
        except (NotImplementedError, errors.NotSupportedError):
            self._is_conditional = False
            obstore.put(self.store, self._path, data)
            return self._own()

    def _own(self) -> dict[str, str]:
        """The version of the lock as it is, if it is ours."""
        found = self._read()
        if found is None or found.said.get("holder") != self.holder:
            raise self._refused(found)
        return found.version

    def _read(self) -> _Found | None:
        try:
            got = needed("obstore", "store").get(self.store, self._path)
            text = bytes(got.bytes())
        except FileNotFoundError:
            return None
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = {}
        meta = got.meta
        return _Found(said if isinstance(said, dict) else {}, _version(meta), meta["last_modified"])

    def _now(self) -> float:
        """What time the store has."""
        obstore, path = needed("obstore", "store"), f"{self.prefix}{CLOCK}.{self.holder}"
        obstore.put(self.store, path, self.holder.encode())
        now: float = obstore.head(self.store, path)["last_modified"].timestamp()
        obstore.delete(self.store, path)
        return now

    def _refused(self, found: _Found | None, age: float | None = None) -> WeftError:
        said = found.said if found else {}
        who = f"process {said.get('process', '?')} on {said.get('host', '?')}"
        seen = "" if age is None else f", seen {max(0.0, age):.0f} s ago"
        return WeftError(
            f"{self.url} is being written by somebody else",
            hint=f"{who}{seen}; a lock is free when it is not renewed for {self.seconds:g} s",
        )

    def _keep(self) -> None:
        """Renew the lock until it is released or lost."""
        while not self._is_lost and not self._stop.wait(self.seconds / 3):
            begun = time.monotonic()
            try:
                self._version = self._renewal()
                self._renewed, self._fault = begun, ""
            except WeftError:
                self._is_lost = True
            except self._errors as error:
                self._fault = str(fault(self._path, error))

    def _renewal(self) -> dict[str, str]:
        """The version of the lock that is put in place of ours."""
        if not self._version or not self._is_conditional:
            self._own()  # else another writer's lock would be overwritten
        return self._put(self._version or "overwrite")


def _version(meta: Any) -> dict[str, str]:
    """What tells one writing of an object from another."""
    names = ("e_tag", "version")
    return {name: meta[name] for name in names if meta.get(name) is not None}
