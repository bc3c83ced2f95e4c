"""The source of the scatter kernel, generated from the lifting of a tiling.

A move is a few bytes of a line of a tile. Its number is split into the digits of its place in the
tile, and the tile's number into those of the tile, dimension by dimension; sizes are constants, so
that no division is left to the device.

`Arrival`: elements that come to a GPU, and are scattered into tiles row by row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from weft.store.chunk_layout import Tiling
from weft.store.cuda.batch import Slot
from weft.store.cuda.device import module, move_bytes
from weft.store.cuda.encoders import THREADS
from weft.store.encoder import Encoder
from weft.values import Point

WIDTHS = (16, 8, 4, 2, 1)
"""The bytes that a thread may move at a time."""


def stored_levels(tiling: Tiling, order: Sequence[int]) -> list[int]:
    """The dimensions from the grain on, as a tile has them, by how they arrive."""
    places = list(order) or list(range(len(tiling.chunks)))
    return sorted(range(tiling.grain, len(tiling.dims)), key=lambda n: places.index(tiling.dims[n]))


def width_of(tiling: Tiling, order: Sequence[int], itemsize: int) -> int:
    """How many bytes can be moved at a time: lines must be contiguous where they come from."""
    last = stored_levels(tiling, order)[-1]
    if last != len(tiling.dims) - 1 or last == tiling.grain:
        return itemsize
    size, chunk = tiling.sizes[last] or 0, tiling.extents[last]
    return next(w for w in WIDTHS if not (size * itemsize % w or chunk * itemsize % w))


def scatter_source(tiling: Tiling, order: Sequence[int], itemsize: int, swapped: int = 1) -> str:
    """What stands before the scatter kernel; so many bytes at a time are turned around.

    >>> tiling = Tiling((None, 6, 8), (2, 3, 4), (2, 6, 8))
    >>> print(scatter_source(tiling, (), 2).splitlines()[1])
    #define WIDTH 8
    """
    width = min(width_of(tiling, order, itemsize), 16)
    per = width // itemsize
    levels = stored_levels(tiling, order)
    lines: list[str] = []
    rest = "move"
    for level in reversed(levels):
        extent = tiling.extents[level]
        if level == levels[-1]:
            extent //= per
        scale = f" * {per}u" if level == levels[-1] and per > 1 else ""
        if level == levels[0]:
            lines.append(f"    u32 p{level} = ({rest}){scale};")
        else:
            lines.append(f"    u32 p{level} = ({rest}) % {extent}u{scale};")
        rest = f"({rest}) / {extent}u"
    lines += _tile_lines(tiling)
    inside = [f"x{n} < {size}u" for n, size in _inner(tiling)]
    terms = [f"(u64)x{n} * {tiling.units[n]}ull" for n, _ in _inner(tiling)]
    grain = tiling.grain
    terms.append(f"(u64)p{grain} * {tiling.units[grain]}ull")
    body = "\n".join(
        [
            *lines,
            f"    row = p{grain};",
            f"    at = {' + '.join(terms)};",
            f"    return {' && '.join(inside) or 'true'};",
        ]
    )
    tile = prod(tiling.chunks) * itemsize
    return "\n".join(
        [
            f"#define ITEM {itemsize}",
            f"#define WIDTH {width}",
            f"#define SWAPPED {swapped}",
            f"#define ROW {tiling.units[grain] * itemsize}ull",
            f"#define TILES {tiling.tiles}ull",
            f"#define VECTORS {tile // width}u",
            '#include "threads.h"',
            "WEFT_DEVICE bool source(u32 number, u32 move, u32& row, u64& at) {",
            "    (void)number;",
            body,
            "}",
            "",
        ]
    )


def _inner(tiling: Tiling) -> list[tuple[int, int]]:
    """The dimensions behind the grain, and their sizes."""
    return list(enumerate(tiling.inner, tiling.grain + 1))


def _tile_lines(tiling: Tiling) -> list[str]:
    """Where a tile is along every dimension behind the grain, and with it an element."""
    lines, rest = [], "number"
    for place in reversed(range(len(tiling.inner))):
        level, count = tiling.grain + 1 + place, tiling.inner_counts[place]
        tile = f"({rest})" if place == 0 else f"({rest}) % {count}u"
        lines.append(f"    u32 x{level} = {tile} * {tiling.extents[level]}u + p{level};")
        rest = f"({rest}) / {count}u"
    return lines


def moves_of(tiling: Tiling, order: Sequence[int], itemsize: int, low: int, end: int) -> Point:
    """The first and last move of a tile's rows, where these are one behind the other, or all."""
    width = width_of(tiling, order, itemsize)
    count = prod(tiling.chunks) * itemsize // width
    rows = tiling.extents[tiling.grain]
    if stored_levels(tiling, order)[0] != tiling.grain or count % rows:
        return 0, count
    return low * (count // rows), end * (count // rows)


def tile_order(tiling: Tiling) -> Point:
    """The tiles of an epoch in the order of their shards and slots."""
    lead = (0,) * (tiling.grain + 1)
    return tuple(tile for group in tiling.groups(lead) for tile in group.tiles)


COPIERS = 8
"""Threads that copy a block of the host."""

COPIED = 1 << 20
"""Bytes that are worth a thread of their own."""

URGENT = -1
"""The priority of streams that blocks are read by: who appended them waits for it."""

MOVES = 4 * THREADS
"""Moves of a block of the scatter kernel."""


class Arrival:
    """Brings the elements of one epoch after the other to the device, and into tiles.

    Elements arrive one behind the other, so an epoch is a line of bytes. What is on the device
    already is scattered from where it is, if it is whole rows; all else is staged.
    """

    def __init__(self, cp: Any, tiling: Tiling, encoder: Encoder) -> None:
        self.cp, self.tiling, self.dtype = cp, tiling, encoder.dtype
        self.stream = cp.cuda.Stream(non_blocking=True, priority=URGENT)
        self._copying = cp.cuda.Stream(non_blocking=True)
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
        self._owed: list[Any] = []
        """Events that end the reading of a block which belongs to who appends it."""
        self._sent = range(0)
        """Where the last block lies that was sent here: it is nobody else's."""
        self._held: deque[tuple[Any, Any]] = deque()
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
        if isinstance(values, np.ndarray) or self.filled % self.row or values.nbytes % self.row:
            self._stage(slot, number, values)
            self._scatter_whole(slot, number)
        else:
            rows = values.nbytes // self.row
            self._read(slot, number, values, self.scattered, self.scattered + rows)
            self.filled += values.nbytes
            self.scattered += rows

    def put_epochs(self, slot: Slot, number: int, values: Any) -> None:
        """Epochs that lie one behind the other, each whole: one transfer, and one launch."""
        count = values.nbytes // self.elements
        if isinstance(values, np.ndarray):
            source = self._stage(slot, number, values)
            self._launch(slot, number, source, 0, self.rows, epochs=count)
            self.filled = 0
        else:
            self._read(slot, number, values, 0, self.rows, epochs=count)

    def _read(
        self, slot: Slot, number: int, values: Any, low: int, high: int, epochs: int = 1
    ) -> None:
        """Scatter a block of the device from where it is."""
        source = self._readable(values)
        self._launch(slot, number, source.data.ptr, low, high, epochs=epochs)
        self._lend(source)

    def _stage(self, slot: Slot, number: int, values: Any) -> int:
        """Copy elements behind those that came before; where they are on the device."""
        first = number * self.elements + self.filled
        to = self._staged(slot, number) + self.filled
        size = values.size * self.dtype.itemsize
        if not isinstance(values, np.ndarray):
            source = self._readable(values)
            self._copying.wait_event(self.stream.record())
            self._copy_bytes(to, source.data.ptr, size)
            self._await_copy()
            self._lend(source)
        elif self._is_plain(values):
            self._copy_bytes(to, values.ctypes.data, size)
            self._owed.append(self._await_copy())
        else:
            pinned = slot.host_in[first : first + size]
            self._copy(pinned.view(self.dtype).reshape(values.shape), values)
            self._copy_bytes(to, pinned.ctypes.data, size)
            self._await_copy()
        self.filled += size
        return to

    def _is_plain(self, values: np.ndarray[Any, Any]) -> bool:
        """Whether a block of the host can be read by the device where it is."""
        is_alike = values.flags.c_contiguous and values.dtype == self.dtype
        return is_alike and bool(values.nbytes) and self._is_pinned(values)

    def _copy_bytes(self, to: int, source: int, size: int) -> None:
        """Copy bytes to the device, beside what is scattered."""
        move_bytes(self.cp, to, source, size, self._copying)

    def _await_copy(self) -> Any:
        """What is launched from now on finds what was copied; the event of that."""
        copied = self._copying.record()
        self.stream.wait_event(copied)
        return copied

    def sent(self, values: np.ndarray[Any, Any]) -> Any:
        """A block of the host on the device; it may not be changed before `release`."""
        now = self.cp.cuda.get_current_stream()
        with self._copying:
            made = self.cp.empty(values.shape, values.dtype)
            if values.flags.c_contiguous and self._is_pinned(values):
                self._copy_bytes(made.data.ptr, values.ctypes.data, values.nbytes)
            else:
                made.set(np.ascontiguousarray(values))
            self._owed.append(self._copying.record())
        now.wait_event(self._owed[-1])
        self._sent = range(made.data.ptr, made.data.ptr + made.nbytes)
        return made

    def _is_pinned(self, values: np.ndarray[Any, Any]) -> bool:
        runtime = self.cp.cuda.runtime
        try:
            kind = runtime.pointerGetAttributes(values.ctypes.data).type
        except runtime.CUDARuntimeError:
            return False
        return bool(kind == runtime.memoryTypeHost)

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

    def keep(self) -> None:
        """The owner of what was put will not change it before it is released."""
        self._owed = [event for event in self._owed if not event.done]

    def release(self) -> None:
        """Until blocks that were put are read, and their owners may change them."""
        for event in self._owed:
            event.synchronize()
        self._owed.clear()
        self._let_go()

    def _let_go(self) -> None:
        """Forget blocks of the device that are read."""
        while self._held and self._held[0][0].done:
            self._held.popleft()

    def stop(self) -> None:
        """Stop the threads that copy."""
        self._threads.shutdown(wait=True)

    def _scatter_whole(self, slot: Slot, number: int) -> None:
        """Scatter the rows that are whole by now."""
        whole = self.filled // self.row
        if whole > self.scattered:
            source = self._staged(slot, number) + self.scattered * self.row
            self._launch(slot, number, source, self.scattered, whole)
            self.scattered = whole

    def _readable(self, values: Any) -> Any:
        """A block of the device in one piece, which is there before it is read."""
        source = self.cp.ascontiguousarray(values.astype(self.dtype, copy=False))
        self.stream.wait_event(self.cp.cuda.get_current_stream().record())
        return source

    def _lend(self, source: Any) -> None:
        """A block is being read until what was launched so far is done."""
        self._let_go()
        self._held.append((self.stream.record(), source))
        if source.data.ptr not in self._sent:
            self._owed.append(self._held[-1][0])

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
        parts = -(-(last - first) // MOVES)
        told = tuple(np.uint32(n) for n in (low, high, end, first, last, parts))
        return (self.tiling.tiles * parts,), told

    def fill(self, slot: Slot, number: int) -> None:
        """Fill value behind the last element that came, in the rest of its epoch."""
        rows, rest = divmod(self.filled, self.row)
        if rest:
            begin, end = self.filled // self.dtype.itemsize, (rows + 1) * self.row
            with self.stream:
                staged = slot.staged[number * self.elements :].view(self.dtype)
                staged[begin : end // self.dtype.itemsize] = self._fill
            self._copying.wait_event(self.stream.record())
            source = self._staged(slot, number) + rows * self.row
            self._launch(slot, number, source, rows, rows + 1)
            rows += 1
        if rows < self.rows:
            self._launch(slot, number, self._staged(slot, number), rows, rows, self.rows)

    def _staged(self, slot: Slot, number: int) -> int:
        """Where elements of an epoch are staged."""
        return int(slot.staged.data.ptr) + number * self.elements

    def end(self, slot: Slot, number: int) -> None:
        """The epoch has all it will have."""
        self.fill(slot, number)
        self.filled = self.scattered = 0

    def move(self, old: Slot, number: int, new: Slot) -> None:
        """Go on in another slot, as its first epoch."""
        tiles = self.tiling.tiles
        with self.stream:
            first = number * self.elements
            new.staged[: self.filled] = old.staged[first : first + self.filled]
            pool = slice(number * tiles * self.tile, (number + 1) * tiles * self.tile)
            new.pool[: tiles * self.tile] = old.pool[pool]
            new.stored[:tiles] = old.stored[number * tiles : (number + 1) * tiles]
