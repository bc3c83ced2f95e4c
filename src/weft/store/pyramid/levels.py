"""`Pyramid`: the coarser levels of an image, made by one thread while the finest is written.

Elements are copied into buffers, of which there are a few; small blocks are collected. The thread
reduces full buffers, appends what became complete to the next level, and reduces that again. Where
it cannot keep up, `take` waits for a buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.store.dtypes import as_dtype
from weft.store.pyramid.reduce import Reducer
from weft.store.writer import Writer

Numbers: TypeAlias = np.ndarray[Any, Any]

BUFFERS = 4
"""Buffers that are filled and reduced in turn."""

BUFFERED = 1 << 22
"""Bytes of a buffer, about."""


class _Step(NamedTuple):
    """How a level is made, and where it goes."""

    reducer: Reducer
    writer: Writer


class Pyramid:
    """Takes what the finest level takes; used by one thread, and has one of its own.

    Where it goes on, `start` is the row of the finest level that comes next; all levels begin a
    window there.
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
        self._steps: list[_Step] = []
        sizes = tuple(shape)
        for number, writer in enumerate(writers):
            reducer = Reducer(sizes, factors, method, dtype)
            reducer.start_at(start // factors[0] ** number)
            self._steps.append(_Step(reducer, writer))
            sizes = reducer.reduced_shape
        self._size = buffer_size(shape, factors, self.dtype.itemsize)
        self._memory = self._predicted()
        self._free: SimpleQueue[Numbers] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(np.empty(self._size, self.dtype))
        self._full: SimpleQueue[tuple[Numbers, int] | None] = SimpleQueue()
        self._turn = threading.Condition()
        self._waiting = 0
        """Buffers that are not reduced yet."""
        self._buffer: Numbers | None = None
        self._start = self._at = start * prod(n or 1 for n in shape[1:])
        """Elements that came before those in the buffer, and with them."""
        self._failed: BaseException | None = None
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name="weft-pyramid", daemon=True)
        self._thread.start()

    def take(self, block: Numbers, *, is_own: bool = False) -> None:
        """Take a copy of elements that the finest level took, whosever they are."""
        rows = block.view(np.uint16) if self.name == "bfloat16" else block
        while len(rows):
            buffer, begin = self._room(), self._at - self._start
            fit = (self._limit() - begin) // rows[0].size
            if not fit:
                self.take(rows[0])
                rows = rows[1:]
                continue
            part, rows = rows[:fit], rows[fit:]
            np.copyto(buffer[begin : begin + part.size].reshape(part.shape), part)
            self._at += part.size
            if self._at - self._start == self._limit():
                self._hand_over()

    def drain(self) -> None:
        """Wait until all windows that are full are written to their levels."""
        self._hand_over()
        with self._turn:
            self._turn.wait_for(lambda: self._waiting == 0)
        self.check()

    def close(self) -> None:
        """Reduce what is there, windows that are not full too, and end the thread."""
        self._hand_over()
        self._full.put(None)
        self._thread.join()
        self._free, self._steps = SimpleQueue(), []  # nothing is held any longer
        if not self._is_told:
            self.check()

    def check(self) -> None:
        """Say that a level failed, if one did."""
        if self._failed is not None:
            self._is_told = True
            raise WeftError(
                f"a coarser level failed: {self._failed}",
                hint="the finest level has all that was appended to it",
            ) from self._failed

    @property
    def waiting(self) -> int:
        """Buffers that are not reduced yet."""
        return self._waiting

    def memory(self) -> int:
        """The bytes that are held at most, those of the levels' writers not counted."""
        return self._memory

    def _predicted(self) -> int:
        """Buffers, what reducers hold, and what they give for one buffer."""
        count, total = self._size, BUFFERS * self._size * self.dtype.itemsize
        for step in self._steps:
            count = step.reducer.most(count)
            total += step.reducer.memory() + count * self.dtype.itemsize
        return total

    # -- buffers

    def _limit(self) -> int:
        """How many elements the buffer takes, so that the next one begins where rows do."""
        return self._size - self._start % self._size

    def _room(self) -> Numbers:
        if self._buffer is None:
            self._buffer = self._free.get()
        return self._buffer

    def _hand_over(self) -> None:
        if self._buffer is None or self._at == self._start:
            return
        with self._turn:
            self._waiting += 1
        self._full.put((self._buffer, self._at - self._start))
        self._buffer, self._start = None, self._at

    # -- the thread

    def _run(self) -> None:
        while (taken := self._full.get()) is not None:
            buffer, count = taken
            self._guarded(self._push, 0, buffer[:count])
            self._free.put(buffer)
            with self._turn:
                self._waiting -= 1
                self._turn.notify_all()
        self._guarded(self._finish)

    def _guarded(self, work: Any, *given: Any) -> None:
        """Work, unless something failed; the first failure is kept for who calls next."""
        if self._failed is None:
            try:
                work(*given)
            except BaseException as error:
                self._failed = error

    def _push(self, level: int, block: Numbers) -> None:
        if level < len(self._steps):
            for made in self._steps[level].reducer.push(block):
                self._give(level, made)

    def _give(self, level: int, made: Numbers) -> None:
        self._steps[level].writer.append_rows(made)
        self._push(level + 1, made)

    def _finish(self) -> None:
        for level, step in enumerate(self._steps):
            for made in step.reducer.finish():
                self._give(level, made)


def buffer_size(shape: Sequence[int | None], factors: Sequence[int], itemsize: int) -> int:
    """Elements of a buffer: whole windows of rows, of the largest rows that are small enough.

    >>> buffer_size((None, 2048, 2048), (1, 2, 2), 2) // 2048
    1024
    """
    most = max(1, BUFFERED // itemsize)
    inner = [n or 1 for n in shape]
    dim = next(d for d in range(len(inner)) if prod(inner[d + 1 :]) <= most)
    unit = prod(inner[dim + 1 :])
    rows = most // unit
    return unit * (rows - rows % factors[dim] or rows)
