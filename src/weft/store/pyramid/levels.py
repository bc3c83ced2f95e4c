"""`Pyramid`: computes the coarser levels of an image while the finest is written.

Elements are copied into a few buffers; small blocks are collected. A thread of those that all
writers share reduces full buffers in order, appends complete windows to the next level, and reduces
these again. Where it cannot keep up, `append` waits for a free buffer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.store.assembler import workers_for
from weft.store.buffers import BUFFERS as SHARED
from weft.store.buffers import MemoryUse
from weft.store.dtypes import as_dtype
from weft.store.pyramid.reduce import Reducer
from weft.store.threads import uninterrupted
from weft.store.writer import Writer

Numbers: TypeAlias = np.ndarray[Any, Any]

BUFFERS = 3
"""Buffers that are filled and reduced in turn."""

BUFFERED = 1 << 22
"""Approximate bytes of a buffer, or of two frames if these are smaller.

With a quarter of it, threads take turns so often that an image takes a quarter longer.
"""

MIN_BUFFERED = 1 << 16
"""Approximate bytes of a buffer of tiny frames."""


class _LevelStep(NamedTuple):
    """How a level is reduced, and its writer."""

    reducer: Reducer
    writer: Writer


class Pyramid:
    """Takes the frames of the finest level; used by one thread.

    `start` is the row of the finest level that comes next, of an image that is continued; all
    levels begin a window there.
    """

    def __init__(
        self,
        shape: Sequence[int | None],
        factors: Sequence[int],
        method: str,
        dtype: Any,
        writers: Sequence[Writer],
        start: int = 0,
    ) -> None:
        self.name, self.dtype = as_dtype(dtype)
        self._steps: list[_LevelStep] = []
        sizes = tuple(shape)
        for number, writer in enumerate(writers):
            reducer = Reducer(sizes, factors, method, dtype)
            reducer.start_at(start // factors[0] ** number)
            self._steps.append(_LevelStep(reducer, writer))
            sizes = reducer.reduced_shape
        self._size = buffer_size(shape, factors, self.dtype.itemsize)
        self._memory = self._predicted()
        self._turn = threading.Condition()
        self._buffers = 0
        """Buffers that are in memory."""
        self._free: list[Numbers] = []
        self._full: deque[tuple[Numbers, int]] = deque()
        """Buffers that are not reduced yet, with their elements."""
        self._is_running = False
        """Whether a thread reduces buffers."""
        self._threads = workers_for(writers[0].sink)
        self._buffer: Numbers | None = None
        self._start = self._at = start * prod(n or 1 for n in shape[1:])
        """The elements before those in the buffer, and with them."""
        self._failed: BaseException | None = None
        self._is_reported = False

    def append(self, block: Numbers, *, is_own: bool = False) -> None:
        """Copy the elements of a block; `is_own` does not matter here."""
        rows = block.view(np.uint16) if self.name == "bfloat16" else block
        while len(rows):
            buffer, begin = self._current_buffer(), self._at - self._start
            fit = (self._limit() - begin) // rows[0].size
            if not fit:
                self.append(rows[0])
                rows = rows[1:]
                continue
            part, rows = rows[:fit], rows[fit:]
            np.copyto(buffer[begin : begin + part.size].reshape(part.shape), part)
            self._at += part.size
            if self._at - self._start == self._limit():
                uninterrupted(self._queue_buffer)

    @property
    def position(self) -> int:
        """The number of elements that came, those of an image that is continued included."""
        return self._at

    def catch_up(self, block: Numbers, position: int, count: int) -> None:
        """Append the rest of the first `count` elements of a block, after an interrupt.

        The block began at `position`.
        """
        if self._at - self._start == self._limit():
            uninterrupted(self._queue_buffer)
        self.append(block.reshape(-1)[self._at - position : count])

    def drain(self) -> None:
        """Wait until all full windows are appended to their levels."""
        uninterrupted(self._queue_buffer)
        with self._turn:
            self._turn.wait_for(lambda: not self._is_running)
        self.check()

    def close(self) -> None:
        """Reduce the remaining elements, windows that are not full too."""
        uninterrupted(self._queue_buffer)
        with self._turn:
            self._turn.wait_for(lambda: not self._is_running)
            if self._buffer is not None:
                self._free.append(self._buffer)
            self._buffer = None
            self._release()
        self._guarded(self._finish)
        self._steps = []  # release the memory
        if not self._is_reported:
            self.check()

    def check(self) -> None:
        """Raise the error of a level that failed."""
        if self._failed is not None:
            self._is_reported = True
            raise WeftError(
                f"a coarser level failed: {str(self._failed) or repr(self._failed)}",
                hint="the finest level has all frames that were appended; opening the image with "
                "mode='a' computes the others again",
            ) from self._failed

    def fail(self, error: BaseException) -> None:
        """Reduce no more: elements of the finest level did not come, as the caller knows."""
        self._failed, self._is_reported = self._failed or error, True

    @property
    def waiting(self) -> int:
        """Buffers that are not reduced yet."""
        return len(self._full)

    def memory(self) -> MemoryUse:
        """Return the most bytes that are buffered, without those of the levels' writers."""
        return self._memory

    def _predicted(self) -> MemoryUse:
        """Return the bytes of buffers, of reducers, and of what these return for one buffer."""
        size = self._size * self.dtype.itemsize
        count, least, output = self._size, size, 0
        for step in self._steps:
            count = step.reducer.max_output(count)
            least += step.reducer.memory()
            output += count * self.dtype.itemsize
        shared = {step.reducer.workspaces for step in self._steps}
        workspaces = sum(each.nbytes for each in shared if each is not None)
        return MemoryUse(least, (BUFFERS - 1) * size, output + workspaces)

    # -- buffers

    def _limit(self) -> int:
        """Return how many elements the buffer takes, so that the next one begins with a row."""
        return self._size - self._start % self._size

    def _current_buffer(self) -> Numbers:
        if self._buffer is None:
            with self._turn:
                self._turn.wait_for(lambda: self._free or self._may_allocate())
                self._buffer = self._free.pop() if self._free else None
        if self._buffer is None:
            self._buffer = SHARED.allocate(self._size * self.dtype.itemsize).view(self.dtype)
        return self._buffer

    def _may_allocate(self) -> bool:
        """Count another buffer, if there may be one; the caller holds the condition."""
        size = self._size * self.dtype.itemsize
        if self._buffers == BUFFERS or not SHARED.take(size, self._buffers * size, size):
            return False
        self._buffers += 1
        return True

    def _release(self) -> None:
        """Free buffers that are not in use; the caller holds the condition."""
        SHARED.give_back(len(self._free) * self._size * self.dtype.itemsize)
        self._buffers -= len(self._free)
        self._free.clear()

    def _queue_buffer(self) -> None:
        if self._buffer is None or self._at == self._start:
            return
        with self._turn:
            self._full.append((self._buffer, self._at - self._start))
            is_begun, self._is_running = self._is_running, True
        self._buffer, self._start = None, self._at
        if not is_begun:
            self._submit()

    # -- on threads

    def _submit(self) -> None:
        """Reduce full buffers on a thread, or here while the interpreter ends."""
        try:
            self._threads.submit(self._run)
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        """Reduce one buffer after the other, while there are some and no other writer waits."""
        while True:
            buffer, count = self._full[0]
            self._guarded(self._push, 0, buffer[:count])
            with self._turn:
                self._full.popleft()
                self._free.append(buffer)
                if SHARED.is_scarce(self._buffers * self._size * self.dtype.itemsize):
                    self._release()
                self._is_running = bool(self._full)
                self._turn.notify_all()
                if not self._full:
                    return
            if self._threads.is_contended:
                self._submit()
                return

    def _guarded(self, work: Any, *arguments: Any) -> None:
        """Run work, unless something failed; keep the first error for the next call."""
        if self._failed is None:
            try:
                work(*arguments)
            except BaseException as error:
                self._failed = error

    def _push(self, level: int, block: Numbers) -> None:
        if level < len(self._steps):
            for output in self._steps[level].reducer.push(block):
                self._append_to(level, output)

    def _append_to(self, level: int, block: Numbers) -> None:
        self._steps[level].writer.append_rows(block)
        self._push(level + 1, block)

    def _finish(self) -> None:
        for level, step in enumerate(self._steps):
            for output in step.reducer.finish():
                self._append_to(level, output)


def buffer_size(shape: Sequence[int | None], factors: Sequence[int], itemsize: int) -> int:
    """Return the elements of a buffer: whole windows of the largest rows that fit.

    >>> buffer_size((None, 2048, 2048), (1, 2, 2), 2) // 2048
    1024
    """
    inner = [n or 1 for n in shape]
    frames = max(MIN_BUFFERED, 2 * prod(inner[-2:]) * itemsize)
    limit = max(1, min(BUFFERED, frames) // itemsize)
    dim = next(d for d in range(len(inner)) if prod(inner[d + 1 :]) <= limit)
    unit = prod(inner[dim + 1 :])
    rows = limit // unit
    return unit * (rows - rows % factors[dim] or rows)
