"""Buffers that the writers of a process share a budget for.

Each writer may have one buffer to fill. It gets more while all writers together stay below the
budget, and keeps them. Beyond it a buffer is freed when it is written.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.store.threads import CORES

Memory: TypeAlias = np.ndarray[Any, Any]

BUDGET = 1 << 27
"""Bytes of buffers from which no writer gets more than it needs."""


MANY = 16
"""Writers from which on buffers that are freed go back to the system."""


class MemoryUse(NamedTuple):
    """The most bytes that a writer buffers, by what they depend on."""

    least: int
    """Bytes that it needs in any case."""
    extra: int = 0
    """Bytes of buffers that it gets while all writers stay below the budget."""
    encoded: int = 0
    """Bytes that it has only while a thread works for it."""

    @property
    def total(self) -> int:
        """The bytes of a writer that is alone."""
        return sum(self)


def memory_together(uses: Iterable[MemoryUse]) -> int:
    """Return the most bytes that some writers of a process buffer together.

    >>> memory_together([MemoryUse(1 << 20, 1 << 22)] * 100) == (100 << 20) + BUDGET + (1 << 22)
    True
    """
    every = list(uses)
    extras = [use.extra for use in every]
    extra = min(sum(extras), BUDGET + max(extras, default=0))
    encoded = sorted(use.encoded for use in every)[-CORES:]
    return sum(use.least for use in every) + extra + sum(encoded)


class Buffers:
    """Counts the buffers of all writers, and keeps memory for what they encode."""

    def __init__(self) -> None:
        self.used = 0
        """Bytes that writers fill, or wait to be written."""
        self._lock = threading.Lock()
        self.writers = 0
        """Writers that are open."""
        self._kept: dict[int, list[Memory]] = {}
        """Memory that is not in use, by size."""
        self._kept_bytes = 0

    def is_scarce(self, own: int) -> bool:
        """Return whether a writer that has `own` bytes should free those that are not in use."""
        return self.used > BUDGET and self.used - own > BUDGET // 2

    def take(self, size: int, own: int, least: int) -> bool:
        """Count a buffer for a writer that has `own` bytes; False if it has to do with these.

        A writer gets the `least` bytes that it needs in any case, as many again while others have
        little, and more while all together stay below the budget.
        """
        with self._lock:
            is_needed, is_second = own + size <= least, own + size <= 2 * least
            others = self.used - own
            if is_needed or (is_second and others <= BUDGET // 2) or self.used + size <= BUDGET:
                self.used += size
                return True
            return False

    def give_back(self, size: int) -> None:
        """Count buffers that are freed."""
        with self._lock:
            self.used -= size

    def open(self) -> None:
        """Count a writer."""
        with self._lock:
            self.writers += 1

    def close(self) -> None:
        """Count a writer less; without any, no memory is kept."""
        with self._lock:
            self.writers -= 1
            if not self.writers:
                self._kept.clear()
                self._kept_bytes = 0

    def allocate(self, size: int) -> Memory:
        """Return bytes, all 0.

        Where many writers are open, they go back to the system when they are freed, at the price of
        page faults; else the next writer gets them.
        """
        return np.zeros(size, np.uint8) if self.writers < MANY else _pages(size)

    def memory(self, size: int) -> Memory:
        """Return memory for encoded chunks, any bytes."""
        with self._lock:
            if self._kept.get(size):
                self._kept_bytes -= size
                return self._kept[size].pop()
        return _pages(size)

    def keep(self, memory: Memory) -> None:
        """Keep memory for the next that asks, while it is not too much."""
        with self._lock:
            if self.writers and self._kept_bytes + memory.nbytes <= BUDGET:
                self._kept_bytes += memory.nbytes
                self._kept.setdefault(memory.nbytes, []).append(memory)


def _pages(size: int) -> Memory:
    """Return memory of its own, of which small pages are taken as they are written."""
    memory = mmap.mmap(-1, max(1, size))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)


BUFFERS = Buffers()
"""Those of this process."""


def _forget() -> None:
    """Count anew in a forked process: it has none of its parent's writers."""
    BUFFERS.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
