"""Threads that all readers, and all writers, of a process share; buffers that readers keep."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, TypeVar

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The cores that this process may use."""

POOL_SIZES = {"decode": CORES, "fetch": max(16, CORES)}
"""Threads of the pool that keeps cores busy, and of the one that mostly waits for a server."""

MAX_KEPT = 1 << 25
"""Bytes of the largest buffer that a thread keeps for its next call."""

_POOLS: dict[str, ThreadPoolExecutor] = {}
_WORKERS: dict[str, Workers] = {}
_LOCK = threading.Lock()
_LOCAL = threading.local()


def uninterrupted(work: Callable[..., T], *arguments: Any) -> T:
    """Call a function; an interrupt (Ctrl-C) waits for its end.

    Python runs the handler of SIGINT in the main thread, between any two instructions. One that
    raises an error among those that belong together would leave half of them done.

    >>> uninterrupted(max, 1, 2)
    2
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*arguments)
    handler, noted = signal.getsignal(signal.SIGINT), list[tuple[Any, ...]]()
    if not callable(handler):
        return work(*arguments)
    try:
        signal.signal(signal.SIGINT, lambda *given: noted.append(given))
    except ValueError:  # in an interpreter that gets no signals
        return work(*arguments)
    try:
        return work(*arguments)
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(*noted[0])


def for_each(
    work: Callable[[T], object],
    tasks: Sequence[T],
    *,
    kind: Literal["decode", "fetch"] = "decode",
    joins: bool = True,
    max_threads: int | None = None,
) -> None:
    """Run all tasks on the shared threads, and on this one too if it joins; raise their error.

    At most `max_threads` run at a time; this one runs tasks only if it joins. Threads take one task
    after the other, so that none is idle while tasks are left.

    >>> done = []
    >>> for_each(done.append, range(100))
    >>> sorted(done) == list(range(100))
    True
    """
    count = min(max_threads or POOL_SIZES[kind], POOL_SIZES[kind], len(tasks)) - joins
    if count < 1 or (len(tasks) == 1 and (joins or max_threads != 1)):
        for task in tasks:
            work(task)
        return
    left = deque(tasks)
    others = [_pool(kind).submit(_drain, work, left) for _ in range(count)]
    try:
        if joins:
            _drain(work, left)
        else:
            others[0].result()
    finally:
        _wait(others, left)
    for other in others:
        if not other.cancelled():
            other.result()


def may_join(codecs: Sequence[Any]) -> bool:
    """Return whether this thread may run codecs itself.

    Blosc starts threads of its own where the main thread calls it, which would be too many.
    """
    if threading.current_thread() is not threading.main_thread():
        return True
    return not any(codec.name == "blosc" for codec in codecs)


def _drain(work: Callable[[T], object], left: deque[T]) -> None:
    try:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            work(task)
    except BaseException:
        left.clear()  # the other tasks are not needed any more
        raise


def _wait(others: list[Future[None]], left: deque[T]) -> None:
    """Wait until no thread works any more; those that have not begun are cancelled."""
    for other in others:
        if not other.cancel():
            try:
                other.exception()
            except BaseException:
                left.clear()
                raise


def _pool(kind: str) -> ThreadPoolExecutor:
    pool = _POOLS.get(kind)
    if pool is None:
        with _LOCK:
            pool = _POOLS.setdefault(kind, ThreadPoolExecutor(POOL_SIZES[kind], f"weft-{kind}"))
    return pool


class Later:
    """A task that runs at a certain time, unless it is cancelled."""

    __slots__ = ("task",)

    def __init__(self, task: Callable[[], None]) -> None:
        self.task: Callable[[], None] | None = task

    def cancel(self) -> None:
        """Forget the task, unless it has begun."""
        self.task = None


class Workers:
    """A few threads that run tasks in order, now or later; each starts when it is needed.

    Tasks of many writers share them: one that runs for long ends, and submits itself again, while
    `is_contended`. The threads are daemons: writers that are still open at exit are closed by them.

    >>> workers, done = Workers("weft-test", 2), threading.Event()
    >>> _ = workers.later(0.001, lambda: workers.submit(done.set))
    >>> done.wait(10)
    True
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        """The most threads."""
        self._turn = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Later]] = []
        """A heap of tasks for later, by their time."""
        self._numbers = count()
        self._threads = self._idle = 0

    @property
    def is_contended(self) -> bool:
        """Whether tasks wait for a thread."""
        return bool(self._tasks)

    def submit(self, task: Callable[..., None], *arguments: Any) -> None:
        """Run a task; RuntimeError where no thread can be started because the interpreter ends."""
        with self._turn:
            self._tasks.append((lambda: task(*arguments)) if arguments else task)
            try:
                if self._idle < len(self._tasks) and self._threads < self.size:
                    self._start()
            finally:  # after an interrupt too
                self._turn.notify()

    def later(self, seconds: float, task: Callable[[], None]) -> Later:
        """Run a task after some seconds, as soon as a thread is free."""
        later = Later(task)
        with self._turn:
            heappush(self._later, (time.monotonic() + seconds, next(self._numbers), later))
            if not self._threads:
                self._start()
            self._turn.notify()
        return later

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._threads += 1
        try:
            thread.start()
        except RuntimeError:
            self._threads -= 1
            if not self._threads:
                self._tasks.clear()
                raise

    def _run(self) -> None:
        _LOCAL.is_worker = True
        while True:
            self._next()()

    def _next(self) -> Callable[[], None]:
        """Wait for a task."""
        with self._turn:
            self._idle += 1
            try:
                while True:
                    now = time.monotonic()
                    while self._later and self._later[0][0] <= now:
                        task = heappop(self._later)[2].task
                        if task is not None:
                            self._tasks.append(task)
                    if self._tasks:
                        return self._tasks.popleft()
                    self._turn.wait(self._later[0][0] - now if self._later else None)
            finally:
                self._idle -= 1


def is_worker() -> bool:
    """Return whether this thread runs tasks of `Workers`, which may have to wait for it."""
    return getattr(_LOCAL, "is_worker", False)


def workers(kind: Literal["encode", "send"], size: int, least: int = 0) -> Workers:
    """Return the threads that encode and write; others where writing waits for a server.

    There are as many as the first caller says, and at least as many as any has asked for.
    """
    with _LOCK:
        found = _WORKERS.setdefault(kind, Workers(f"weft-{kind}", size))
        found.size = max(found.size, least)
        return found


def _forget() -> None:
    """Drop the pools in a forked process, which has none of its parent's threads."""
    global _LOCK  # noqa: PLW0603 - a thread that no longer exists may have held it
    _LOCK = threading.Lock()
    _POOLS.clear()
    _WORKERS.clear()
    _LOCAL.__dict__.pop("is_worker", None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def scratch(name: str, size: int) -> memoryview:
    """Return a buffer of this thread; the next call with the same name returns the same bytes.

    >>> len(scratch("stored", 10))
    10
    """
    buffer: memoryview | None = getattr(_LOCAL, name, None)
    if buffer is None or len(buffer) < size:
        buffer = None
        setattr(_LOCAL, name, None)  # free the old one before the new one is allocated
        buffer = memoryview(bytearray(size))
        if size <= MAX_KEPT:
            setattr(_LOCAL, name, buffer)
    return buffer[:size]
