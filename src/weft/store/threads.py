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

POOL_SIZES = {"decode": CORES, "fetch": max(16, CORES)}
"""Threads of the pool that keeps cores busy, and of the one that mostly waits for a server."""

MAX_KEPT = 1 << 25
"""Bytes of the largest buffer that a thread keeps for its next call."""

_POOLS: dict[str, ThreadPoolExecutor] = {}
_LOCK = threading.Lock()
_LOCAL = threading.local()


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


def _forget() -> None:
    """Drop the pools in a forked process, which has none of its parent's threads."""
    global _LOCK  # noqa: PLW0603 - a thread that no longer exists may have held it
    _LOCK = threading.Lock()
    _POOLS.clear()


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
