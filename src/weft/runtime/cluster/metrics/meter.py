"""`Meter`: measures one task in the worker that runs it; `Report`: what it measured.

Linux records the peak resident memory of a process and can reset it. Where it cannot be reset, the
peak since the process started is reported and marked as an upper bound.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self, TypeAlias

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

Part: TypeAlias = Literal["receiving", "reading", "writing"]
"""Activities of a task besides computing."""


class Report(NamedTuple):
    """The measurements of one task."""

    task: int
    """The number of the task."""
    seconds: float
    received: dict[int, int]
    """Bytes received from other cells, by cell, counted in the arrays that arrived."""
    worker: str = ""
    """The worker that ran it: host and process, or thread."""
    begin: float = 0.0
    """When it began, in seconds since 1970."""
    cpu: float = 0.0
    """CPU seconds."""
    read: int = 0
    """Bytes read from storage, as stored."""
    written: int = 0
    """Bytes written to storage, as stored."""
    peak: int = 0
    """Peak memory of its process in bytes; 0 if unknown."""
    receiving: float = 0.0
    """Seconds spent waiting for data from other cells."""
    reading: float = 0.0
    """Seconds spent reading from storage."""
    writing: float = 0.0
    """Seconds spent writing to storage."""
    is_bound: bool = False
    """Whether `peak` is the peak since the process started: an upper bound."""


class Meter:
    """Measures one task; the task itself adds bytes and the time of its parts.

    If a process runs one task at a time, the CPU time of all its threads counts, since a library
    that multiplies matrices may use several. If tasks share a process (`alone=False`, or another
    task was active meanwhile), only the task's own thread counts.

    >>> with Meter(7) as meter:
    ...     with meter.part("reading"):
    ...         meter.read += 64
    >>> report = meter.report()
    >>> report.task, report.read, report.seconds >= report.reading > 0
    (7, 64, True)
    """

    def __init__(self, task: int, *, alone: bool = True) -> None:
        self.task, self.alone = task, alone
        self.worker = _process_name(os.getpid()) if alone else threading.current_thread().name
        self.received: dict[int, int] = {}
        """Bytes received from other cells, by cell."""
        self.read = self.written = 0
        """Bytes read from and written to storage."""
        self.parts: dict[Part, float] = {}
        self.begin = self.seconds = self.cpu = 0.0
        self.peak = Peak(0, False)

    def __enter__(self) -> Self:
        self._begun = _ACTIVE.enter(self)
        self._process, self._own = time.process_time(), time.thread_time()
        self.begin, self._clock = time.time(), time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._clock
        own, process = time.thread_time() - self._own, time.process_time() - self._process
        self.note(_ACTIVE.leave(self, self._begun))
        self.cpu = process if self.alone else own

    def note(self, peak: Peak) -> None:
        """Keep the larger peak."""
        self.peak = max(self.peak, peak)

    @contextmanager
    def part(self, what: Part) -> Iterator[None]:
        """Count the time of the block as a part of the task's time."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.parts[what] = self.parts.get(what, 0.0) + time.perf_counter() - begin

    def report(self) -> Report:
        """Return the measurements."""
        named = ("task", "seconds", "received", "worker", "begin", "cpu", "read", "written")
        fields: dict[str, Any] = {name: getattr(self, name) for name in named} | self.parts
        return Report(**fields, peak=self.peak.size, is_bound=self.peak.is_bound)


class _ActiveMeters:
    """The meters of the tasks that this process is running.

    Resetting the peak loses what the other active tasks have seen so far, so they note it first.
    """

    def __init__(self) -> None:
        self.lock, self.meters, self.begun = threading.Lock(), set[Meter](), False

    def enter(self, meter: Meter) -> bool:
        with self.lock:
            if self.meters:
                meter.alone, so_far = False, peak_memory(self.begun)
            for other in self.meters:
                other.alone = False
                other.note(so_far)
            self.meters.add(meter)
            self.begun = reset_peak()
            return self.begun

    def leave(self, meter: Meter, begun: bool) -> Peak:
        with self.lock:
            self.meters.discard(meter)
            return peak_memory(begun)


_ACTIVE = _ActiveMeters()
if hasattr(os, "register_at_fork"):  # a child runs none of the tasks, and the lock may be taken
    os.register_at_fork(after_in_child=_ACTIVE.__init__)  # type: ignore[misc]


@lru_cache(maxsize=1)
def _process_name(process: int) -> str:
    return f"{socket.gethostname()}:{process}"


# -- memory of this process -----------------------------------------------------------------------

_STATUS, _CLEAR_REFS = "/proc/self/status", "/proc/self/clear_refs"
_RESET = b"5"
"""Resets the peak resident memory; see proc_pid_clear_refs(5)."""


class Peak(NamedTuple):
    """Peak memory in bytes since the last reset; since the process started, if it `is_bound`."""

    size: int
    is_bound: bool


@lru_cache(maxsize=1)
def _files(process: int) -> tuple[int | None, int | None]:
    """Return open files of a process: opening them for every task would double the cost.

    A child of a fork opens its own; those of its parent, which it has too, are not read.
    """
    return _open(_STATUS, os.O_RDONLY), _open(_CLEAR_REFS, os.O_WRONLY)


def reset_peak() -> bool:
    """Reset the peak memory of this process; return whether that is possible."""
    _, file = _files(os.getpid())
    try:
        return file is not None and os.write(file, _RESET) > 0
    except OSError:  # a container may show the file and refuse to write
        return False


def peak_memory(was_reset: bool) -> Peak:
    """Return the peak memory since the last reset, or since the process started.

    >>> was_reset = reset_peak()
    >>> data = bytearray(b"x" * (1 << 24))
    >>> peak_memory(was_reset).size > 1 << 24 or not was_reset
    True
    """
    size = _high_water_mark()
    return Peak(size, not was_reset) if size else Peak(_lifetime_peak(), True)


def _high_water_mark() -> int:
    status, _ = _files(os.getpid())
    try:
        data = b"" if status is None else os.pread(status, 1 << 13, 0)
    except OSError:
        return 0
    _, label, rest = data.partition(b"VmHWM:")
    return int(rest.split(maxsplit=1)[0]) << 10 if label else 0


def _lifetime_peak() -> int:
    """Return the peak since this process started; macOS counts bytes, other systems KiB."""
    if resource is None:
        return 0
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def _open(path: str, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
