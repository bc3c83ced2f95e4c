"""`Meter`: what one task takes, measured around it by the worker that runs it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, Self, TypeAlias

from weft.runtime.cluster.metrics.peak import Peak, begin_anew, most
from weft.runtime.cluster.metrics.report import Report

Part: TypeAlias = Literal["receiving", "reading", "writing"]
"""What a task may do beside computing."""


class Meter:
    """Measures one task; what it counts itself, bytes and parts of its time, it notes here.

    A process that does one task at a time counts the seconds of all its threads, for those of a
    library that multiplies matrices are the task's. Where tasks share a process (`alone=False`, or
    when another task is seen) a task has the seconds of its own thread.

    >>> with Meter(7) as meter:
    ...     with meter.part("reading"):
    ...         meter.read += 64
    >>> report = meter.report()
    >>> report.task, report.read, report.seconds >= report.reading > 0
    (7, 64, True)
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_own",
        "_process",
        "alone",
        "begin",
        "cpu",
        "parts",
        "peak",
        "read",
        "received",
        "seconds",
        "task",
        "worker",
        "written",
    )

    def __init__(self, task: int, *, alone: bool = True) -> None:
        self.task, self.alone = task, alone
        self.worker = _process_name(os.getpid()) if alone else threading.current_thread().name
        self.received: dict[int, int] = {}
        """The bytes that came from other cells, by cell."""
        self.read = self.written = 0
        """The bytes that came from storage, and went there."""
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

    def note(self, found: Peak) -> None:
        """Keep the most."""
        self.peak = max(self.peak, found)

    @contextmanager
    def part(self, what: Part) -> Iterator[None]:
        """Count the time of the block as a part of the task's."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.parts[what] = self.parts.get(what, 0.0) + time.perf_counter() - begin

    def report(self) -> Report:
        """What was measured."""
        return Report(
            self.task,
            self.seconds,
            self.received,
            self.worker,
            self.begin,
            self.cpu,
            self.read,
            self.written,
            *self.peak[:1],
            self.parts.get("receiving", 0.0),
            self.parts.get("reading", 0.0),
            self.parts.get("writing", 0.0),
            self.peak.is_bound,
        )


class _Active:
    """The tasks that this process does now.

    Whoever begins to count the most memory anew takes from the others what they have seen so far:
    they are told before.
    """

    def __init__(self) -> None:
        self.lock, self.meters, self.begun = threading.Lock(), set[Meter](), False

    def enter(self, meter: Meter) -> bool:
        with self.lock:
            if self.meters:
                meter.alone, so_far = False, most(self.begun)
            for other in self.meters:
                other.alone = False
                other.note(so_far)
            self.meters.add(meter)
            self.begun = begin_anew()
            return self.begun

    def leave(self, meter: Meter, begun: bool) -> Peak:
        with self.lock:
            self.meters.discard(meter)
            return most(begun)


_ACTIVE = _Active()
if hasattr(os, "register_at_fork"):  # a child has none of the tasks, and a lock may be held
    os.register_at_fork(after_in_child=_ACTIVE.__init__)  # type: ignore[misc]


@lru_cache(maxsize=1)
def _process_name(process: int) -> str:
    return f"{socket.gethostname()}:{process}"
