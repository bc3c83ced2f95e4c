"""`DevicePyramid`: coarser levels of an image, made on a GPU while frames arrive there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.store.cuda.arrival import URGENT
from weft.store.cuda.device import cupy, module
from weft.store.cuda.reduce import reduce_source
from weft.store.cuda.stages import THREADS
from weft.store.dtypes import as_dtype
from weft.store.writer import Writer


class Level:
    """One level: rows of the level before it are held until a window of them is full."""

    def __init__(
        self, cp: Any, inner: Sequence[int], factors: Sequence[int], method: str, name: str
    ) -> None:
        self.cp, self.factors = cp, tuple(factors)
        self.dtype = as_dtype(name)[1]
        self.row = prod(inner)
        self.made = tuple(-(-n // f) for n, f in zip(inner, factors[1:]))
        """The sizes of a row of this level."""
        source = reduce_source(inner, factors, method, name)
        self._kernel = module("reduce.cu", source).get_function("weft_reduce")
        self._held = cp.empty(0, self.dtype)

    def push(self, block: Any) -> Any:
        """The rows that windows are full of by now."""
        flat = block.reshape(-1)
        if len(self._held):
            flat = self.cp.concatenate([self._held, flat])
        step = self.row * self.factors[0]
        whole = len(flat) // step * step
        if len(self._held) or whole < len(flat):
            self._held = flat[whole:].copy()
        return self._reduced(flat[:whole])

    def finish(self) -> Any:
        """What windows give that are not full; a row that is not whole is made so."""
        flat = self._held
        missing = -len(flat) % self.row
        if missing:  # the row has no more elements: its last one stands for them
            flat = self.cp.concatenate([flat, self.cp.repeat(flat[-1:], missing)])
        self._held = self.cp.empty(0, self.dtype)
        return self._reduced(flat)

    def _reduced(self, flat: Any) -> Any:
        rows = len(flat) // self.row
        made = self.cp.empty((-(-rows // self.factors[0]), *self.made), self.dtype)
        if made.size:
            grid = (-(-made.size // THREADS),)
            self._kernel(grid, (THREADS,), (flat, made, np.uint64(rows), np.uint64(made.size)))
        return made

    @property
    def nbytes(self) -> int:
        """The bytes of rows that are held at most."""
        return self.row * self.factors[0] * self.dtype.itemsize


class DevicePyramid:
    """Makes coarser levels of what the finest takes, at once: blocks are on the device."""

    def __init__(
        self,
        shape: Sequence[int | None],
        factors: Sequence[int],
        method: str,
        dtype: Any,
        writers: Sequence[Writer],
    ) -> None:
        self.cp, self._writers = cupy(), tuple(writers)
        self._stream = self.cp.cuda.Stream(non_blocking=True, priority=URGENT)
        self._reading: deque[tuple[Any, Any]] = deque()
        """Blocks that are being reduced, and the events that end it."""
        name, _ = as_dtype(dtype)
        self._levels: list[Level] = []
        inner = tuple(n or 0 for n in shape[1:])
        for _ in writers:
            level = Level(self.cp, inner, factors, method, name)
            self._levels.append(level)
            inner = level.made

    def take(self, block: Any, *, is_own: bool = False) -> None:
        """Reduce elements that the finest level took; they are read then, unless they are ours."""
        self._stream.wait_event(self.cp.cuda.get_current_stream().record())
        with self._stream:
            rows = self._levels[0].push(self.cp.asarray(block))
            self._reading.append((self._stream.record(), block))
            for level, writer in zip([*self._levels[1:], None], self._writers):
                if not len(rows):
                    break
                writer.append(rows, is_kept=True)
                rows = level.push(rows) if level else rows
        if not is_own:
            self._reading[-1][0].synchronize()
        while self._reading and self._reading[0][0].done:
            self._reading.popleft()

    def check(self) -> None:
        """What fails is said at once."""

    def drain(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Reduce what is there, windows that are not full too."""
        with self._stream:
            self._finish()

    def _finish(self) -> None:
        carried = None
        for level, writer in zip(self._levels, self._writers):
            if carried is not None and len(carried):
                made = level.push(carried)
                carried = self.cp.concatenate([made, level.finish()])
            else:
                carried = level.finish()
            if len(carried):
                writer.append(carried)

    def memory(self) -> int:
        """The bytes of the device that rows take which wait for their windows."""
        return sum(level.nbytes for level in self._levels)
