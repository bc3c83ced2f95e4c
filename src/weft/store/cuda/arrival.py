"""`Arrival`: elements that come to a GPU, and are scattered into tiles row by row."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from weft.store.cuda.device import module
from weft.store.cuda.slots import Slot
from weft.store.cuda.source import moves_of, scatter_source, tile_order
from weft.store.cuda.stages import THREADS
from weft.store.encoder import Encoder
from weft.store.tiling import Tiling

COPIERS = 8
"""Threads that copy a block of the host."""

COPIED = 1 << 20
"""Bytes that are worth a thread of their own."""

PART = 4 * THREADS
"""Moves of a block of the scatter kernel."""


class Arrival:
    """Brings the elements of one epoch after the other to the device, and into tiles.

    Elements arrive one behind the other, so an epoch is a line of bytes. What is on the device
    already is scattered from where it is, if it is whole rows; all else is staged.
    """

    def __init__(self, cp: Any, tiling: Tiling, encoder: Encoder) -> None:
        self.cp, self.tiling, self.dtype = cp, tiling, encoder.dtype
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.filled = 0
        """Bytes of the epoch that have come."""
        self.scattered = 0
        """Rows of the epoch that are in tiles."""
        width, metadata = encoder.dtype.itemsize, encoder.metadata
        self.row = tiling.units[tiling.grain] * width
        self.rows = tiling.extents[tiling.grain]
        self.elements = self.rows * self.row
        self.tile = prod(tiling.chunks) * width
        self._layout = metadata.order
        half = width // 2 if encoder.dtype.kind == "c" else width
        swapped = half if metadata.endian == "big" else 1
        source = scatter_source(tiling, metadata.order, width, swapped)
        self._kernel = module("scatter.cu", source).get_function("weft_scatter")
        self._order = cp.asarray(np.array(tile_order(tiling), np.uint32))
        self._fill = np.asarray(metadata.fill, encoder.dtype)
        words = np.frombuffer(self._fill.tobytes() * (16 // width), np.uint64)
        self._words = words[0], words[1]
        cp.cuda.get_current_stream().synchronize()
        self._is_borrowing = False
        """Whether a block is being read that belongs to who appended it."""
        self._borrowed: deque[tuple[Any, Any]] = deque()
        """Blocks of the device that are being read, and the events that end it."""
        self._threads = ThreadPoolExecutor(COPIERS, "weft-copy")
        self._rows = lru_cache(maxsize=4096)(self._rows_of)

    @property
    def nbytes(self) -> int:
        """The bytes of the device that it takes."""
        return int(self._order.nbytes)

    def begin(self, slot: Slot) -> None:
        """No tile of a slot has anything but fill value yet."""
        self.cp.cuda.runtime.memsetAsync(
            slot.stored.data.ptr, 0, slot.stored.nbytes, self.stream.ptr
        )

    def put(self, slot: Slot, number: int, values: Any) -> None:
        """The next elements of an epoch, which is the one of that number in its slot."""
        if isinstance(values, np.ndarray):
            self._from_host(slot, number, values)
        else:
            self._from_device(slot, number, values)

    def _from_host(self, slot: Slot, number: int, values: np.ndarray[Any, Any]) -> None:
        """Through pinned memory, unless the block is in such: then it is waited for."""
        is_plain = values.flags.c_contiguous and values.dtype == self.dtype
        if is_plain and values.nbytes and self._is_pinned(values):
            self._stage(slot, values.ctypes.data, values.nbytes)
            self._scatter_whole(slot, number)
            self._is_borrowing = True
            return
        first = number * self.elements + self.filled
        pinned = slot.host_in[first : first + values.size * self.dtype.itemsize]
        self._copy(pinned.view(self.dtype).reshape(values.shape), values)
        self._stage(slot, pinned.ctypes.data, pinned.nbytes)
        self._scatter_whole(slot, number)

    def sent(self, values: np.ndarray[Any, Any]) -> Any:
        """A block of the host on the device; it is read until the current stream is done."""
        made = self.cp.empty(values.shape, values.dtype)
        if not values.flags.c_contiguous or not self._is_pinned(values):
            made.set(np.ascontiguousarray(values))
            return made
        runtime = self.cp.cuda.runtime
        kind = runtime.memcpyHostToDevice
        stream = self.cp.cuda.get_current_stream()
        runtime.memcpyAsync(made.data.ptr, values.ctypes.data, values.nbytes, kind, stream.ptr)
        return made

    def _is_pinned(self, values: np.ndarray[Any, Any]) -> bool:
        runtime = self.cp.cuda.runtime
        try:
            kind = runtime.pointerGetAttributes(values.ctypes.data).type
        except runtime.CUDARuntimeError:
            return False
        return bool(kind == runtime.memoryTypeHost)

    def _from_device(self, slot: Slot, number: int, values: Any) -> None:
        """From where it is; the block is free when this returns."""
        source = self._readable(values)
        if self.filled % self.row == 0 and source.nbytes % self.row == 0:
            rows = source.nbytes // self.row
            self._launch(slot, number, source.data.ptr, self.scattered, self.scattered + rows)
            self.filled += source.nbytes
            self.scattered += rows
        else:
            self._stage(slot, source.data.ptr, source.nbytes)
            self._scatter_whole(slot, number)
        self.lend(source)

    def _copy(self, to: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """Copy on the host, by several threads where it is worth it."""
        count = min(len(values), COPIERS, values.nbytes // COPIED)
        if count < 2:
            to[...] = values
            return
        ends = [len(values) * n // count for n in range(count + 1)]

        def one(n: int) -> None:
            to[ends[n] : ends[n + 1]] = values[ends[n] : ends[n + 1]]

        for _ in self._threads.map(one, range(count)):
            pass

    def release(self) -> None:
        """Until blocks that were put are read, and their owners may change them."""
        if self._is_borrowing or self._borrowed:
            self.stream.synchronize()
            self._is_borrowing = False
            self._borrowed.clear()

    def keep(self) -> None:
        """Blocks that were put are nobody else's: they are let go once they are read."""
        self._is_borrowing = False
        while self._borrowed and self._borrowed[0][0].done:
            self._borrowed.popleft()

    def stop(self) -> None:
        """Stop the threads that copy."""
        self._threads.shutdown(wait=True)

    def _stage(self, slot: Slot, source: int, size: int) -> None:
        """Copy bytes behind those that came before; the runtime sees where they are."""
        runtime = self.cp.cuda.runtime
        target = slot.staged.data.ptr + self.filled
        runtime.memcpyAsync(target, source, size, runtime.memcpyDefault, self.stream.ptr)
        self.filled += size

    def _scatter_whole(self, slot: Slot, number: int) -> None:
        """Scatter the rows that are whole by now."""
        whole = self.filled // self.row
        if whole > self.scattered:
            source = slot.staged.data.ptr + self.scattered * self.row
            self._launch(slot, number, source, self.scattered, whole)
            self.scattered = whole

    def put_epochs(self, slot: Slot, number: int, source: int, count: int) -> None:
        """Scatter epochs that lie one behind the other on the device, each whole."""
        self._launch(slot, number, source, 0, self.rows, epochs=count)

    def borrow(self, values: Any) -> Any | None:
        """A block of the device as it can be read from where it is; None where it cannot."""
        if isinstance(values, np.ndarray) or self.filled:
            return None
        return self._readable(values)

    def _readable(self, values: Any) -> Any:
        """A block of the device in one piece, which is there before it is read."""
        source = self.cp.ascontiguousarray(values.astype(self.dtype, copy=False))
        self.stream.wait_event(self.cp.cuda.get_current_stream().record())
        return source

    def lend(self, source: Any) -> None:
        """A block is being read until what was launched so far is done."""
        self._is_borrowing = True
        self._borrowed.append((self.stream.record(), source))

    def _launch(
        self,
        slot: Slot,
        number: int,
        source: int,
        low: int,
        high: int,
        end: int = 0,
        epochs: int = 1,
    ) -> None:
        """Scatter rows, and fill those behind them up to an end; the same of several epochs."""
        end = max(high, end)
        (blocks,), rows = self._rows(low, high, end)
        tiles = self.tiling.tiles
        given = (
            np.uint64(source),
            np.uint64(slot.pool.data.ptr + number * tiles * self.tile),
            np.uint64(slot.stored.data.ptr + 4 * number * tiles),
            self._order,
            *self._words,
            *rows,
        )
        with self.stream:
            self._kernel((epochs * blocks,), (THREADS,), given)

    def _rows_of(self, low: int, high: int, end: int) -> tuple[tuple[int], tuple[Any, ...]]:
        """The blocks of a launch for some rows, and what the kernel is told of them."""
        first, last = moves_of(self.tiling, self._layout, self.dtype.itemsize, low, end)
        parts = -(-(last - first) // PART)
        told = tuple(np.uint32(n) for n in (low, high, end, first, last, parts))
        return (self.tiling.tiles * parts,), told

    def fill(self, slot: Slot, number: int) -> None:
        """Fill value behind the last element that came, in the rest of its epoch."""
        rows, rest = divmod(self.filled, self.row)
        if rest:
            begin, end = self.filled // self.dtype.itemsize, (rows + 1) * self.row
            with self.stream:
                staged = slot.staged.view(self.dtype)
                staged[begin : end // self.dtype.itemsize] = self._fill
            source = slot.staged.data.ptr + rows * self.row
            self._launch(slot, number, source, rows, rows + 1)
            rows += 1
        if rows < self.rows:
            self._launch(slot, number, slot.staged.data.ptr, rows, rows, self.rows)

    def end(self, slot: Slot, number: int) -> None:
        """The epoch has all it will have."""
        self.fill(slot, number)
        self.filled = self.scattered = 0

    def move(self, old: Slot, number: int, new: Slot) -> None:
        """Go on in another slot, as its first epoch."""
        tiles = self.tiling.tiles
        with self.stream:
            new.staged[: self.filled] = old.staged[: self.filled]
            pool = slice(number * tiles * self.tile, (number + 1) * tiles * self.tile)
            new.pool[: tiles * self.tile] = old.pool[pool]
            new.stored[:tiles] = old.stored[number * tiles : (number + 1) * tiles]
