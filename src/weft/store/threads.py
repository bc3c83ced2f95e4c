"""Threads that all readers of a process share, and buffers that each of them keeps."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The cores that this process may use."""

SIZES = {"decode": CORES, "fetch": max(16, CORES)}
"""Threads for what keeps a core busy, and for what mostly waits for a server."""

KEPT = 1 << 25
"""The most bytes of a buffer that a thread keeps for the next time."""

_POOLS: dict[str, ThreadPoolExecutor] = {}
_LOCK = threading.Lock()
_LOCAL = threading.local()


def each(
    work: Callable[[T], object],
    tasks: Sequence[T],
    *,
    kind: Literal["decode", "fetch"] = "decode",
    joins: bool = True,
    most: int | None = None,
) -> None:
    """Do all tasks on the shared threads, and here too if this one joins in; an error is raised.

    At most so many threads are at work, if that is said; alone, this one works only if it joins.
    Threads take one task after the other from what is left, so that none waits while there is one.

    >>> done = []
    >>> each(done.append, range(100))
    >>> sorted(done) == list(range(100))
    True
    """
    count = min(most or SIZES[kind], SIZES[kind], len(tasks)) - joins
    if count < 1 or (len(tasks) == 1 and (joins or most != 1)):
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
    """Whether this thread may use codecs itself.

    Blosc has threads of its own where the main thread calls it, and they would be too many.
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
        left.clear()  # nobody needs the rest
        raise


def _wait(others: list[Future[None]], left: deque[T]) -> None:
    """Until no thread is at work any more; those that were too busy to begin need not."""
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
            pool = _POOLS.setdefault(kind, ThreadPoolExecutor(SIZES[kind], f"weft-{kind}"))
    return pool


def _forget() -> None:
    """A forked process has none of the threads of its parent."""
    global _LOCK  # noqa: PLW0603 - it may have been held by a thread that is not there
    _LOCK = threading.Lock()
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def scratch(name: str, size: int) -> memoryview:
    """A buffer of this thread; the next call with the same name gives the same bytes.

    >>> len(scratch("stored", 10))
    10
    """
    held: memoryview | None = getattr(_LOCAL, name, None)
    if held is None or len(held) < size:
        held = None
        setattr(_LOCAL, name, None)  # or both are there for a moment
        held = memoryview(bytearray(size))
        if size <= KEPT:
            setattr(_LOCAL, name, held)
    return held[:size]
