"""`DeviceScatter`: copies elements to a GPU, and scatters them into tiles row by row.

The scatter kernel is generated from a `FrameLayout`. A thread moves a few bytes of a line of a
tile. The number of the move is split into the place in the tile, and the number of the tile into
its coordinates, dimension by dimension; sizes are constants, so that the compiler replaces the
divisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from weft.store.chunk_layout import FrameLayout
from weft.store.cuda.batch import BatchBuffers
from weft.store.cuda.device import module, move_bytes
from weft.store.cuda.encoders import THREADS
from weft.store.encoder import ChunkEncoder
from weft.values import Point

WIDTHS = (16, 8, 4, 2, 1)
"""The numbers of bytes that a thread may move at a time."""


def stored_levels(layout: FrameLayout, order: Sequence[int]) -> list[int]:
    """Return the dimensions from the buffered axis on, in arrival numbers and stored order."""
    places = list(order) or list(range(len(layout.chunks)))
    return sorted(
        range(layout.buffered_axis, len(layout.axis_order)),
        key=lambda n: places.index(layout.axis_order[n]),
    )


def width_of(layout: FrameLayout, order: Sequence[int], itemsize: int) -> int:
    """Return how many bytes can be moved at a time: lines must be contiguous in the source."""
    last = stored_levels(layout, order)[-1]
    if last != len(layout.axis_order) - 1 or last == layout.buffered_axis:
        return itemsize
    size, chunk = layout.ordered_shape[last] or 0, layout.ordered_chunks[last]
    return next(w for w in WIDTHS if not (size * itemsize % w or chunk * itemsize % w))


def scatter_source(
    layout: FrameLayout, order: Sequence[int], itemsize: int, swapped: int = 1
) -> str:
    """Return the code before the scatter kernel; `swapped` bytes at a time are reversed.

    >>> layout = FrameLayout((None, 6, 8), (2, 3, 4), (2, 6, 8))
    >>> print(scatter_source(layout, (), 2).splitlines()[1])
    #define WIDTH 8
    """
    width = min(width_of(layout, order, itemsize), 16)
    per = width // itemsize
    levels = stored_levels(layout, order)
    lines: list[str] = []
    rest = "move"
    for level in reversed(levels):
        extent = layout.ordered_chunks[level]
        if level == levels[-1]:
            extent //= per
        scale = f" * {per}u" if level == levels[-1] and per > 1 else ""
        if level == levels[0]:
            lines.append(f"    u32 p{level} = ({rest}){scale};")
        else:
            lines.append(f"    u32 p{level} = ({rest}) % {extent}u{scale};")
        rest = f"({rest}) / {extent}u"
    lines += _tile_lines(layout)
    inside = [f"x{n} < {size}u" for n, size in _inner(layout)]
    terms = [f"(u64)x{n} * {layout.step_sizes[n]}ull" for n, _ in _inner(layout)]
    axis = layout.buffered_axis
    terms.append(f"(u64)p{axis} * {layout.step_sizes[axis]}ull")
    body = "\n".join(
        [
            *lines,
            f"    row = p{axis};",
            f"    at = {' + '.join(terms)};",
            f"    return {' && '.join(inside) or 'true'};",
        ]
    )
    tile = prod(layout.chunks) * itemsize
    return "\n".join(
        [
            f"#define ITEM {itemsize}",
            f"#define WIDTH {width}",
            f"#define SWAPPED {swapped}",
            f"#define ROW {layout.step_sizes[axis] * itemsize}ull",
            f"#define TILES {layout.tiles_per_epoch}ull",
            f"#define VECTORS {tile // width}u",
            '#include "threads.h"',
            "WEFT_DEVICE bool source(u32 number, u32 move, u32& row, u64& at) {",
            "    (void)number;",
            body,
            "}",
            "",
        ]
    )


def _inner(layout: FrameLayout) -> list[tuple[int, int]]:
    """Return the dimensions after the buffered axis, and their sizes."""
    return list(enumerate(layout.inner_grid.shape, layout.buffered_axis + 1))


def _tile_lines(layout: FrameLayout) -> list[str]:
    """Return code for where an element of a tile lies, along each inner dimension."""
    lines, rest = [], "number"
    for place in reversed(range(len(layout.inner_grid.shape))):
        level, count = layout.buffered_axis + 1 + place, layout.inner_grid.counts[place]
        tile = f"({rest})" if place == 0 else f"({rest}) % {count}u"
        lines.append(f"    u32 x{level} = {tile} * {layout.ordered_chunks[level]}u + p{level};")
        rest = f"({rest}) / {count}u"
    return lines


def moves_of(layout: FrameLayout, order: Sequence[int], itemsize: int, low: int, end: int) -> Point:
    """Return the range of moves of a tile's rows, where these are contiguous, or of all."""
    width = width_of(layout, order, itemsize)
    count = prod(layout.chunks) * itemsize // width
    rows = layout.ordered_chunks[layout.buffered_axis]
    if stored_levels(layout, order)[0] != layout.buffered_axis or count % rows:
        return 0, count
    return low * (count // rows), end * (count // rows)


def tile_order(layout: FrameLayout) -> Point:
    """Return the tiles of an epoch in the order of their shards and slots."""
    lead = (0,) * (layout.buffered_axis + 1)
    return tuple(tile for group in layout.shard_tiles(lead) for tile in group.tiles)


COPIERS = 8
"""Threads that copy a block of the host."""

COPIED = 1 << 20
"""Bytes from which another thread pays."""

URGENT = -1
"""The priority of streams that read blocks, for which the caller of `append` waits."""

MOVES = 4 * THREADS
"""Moves of one block of the scatter kernel."""


class DeviceScatter:
    """Copies the elements of one epoch after the other to the device, and into tiles.

    Elements arrive in order, so an epoch is contiguous bytes. Whole rows that are on the device
    already are scattered from where they are; everything else is staged.
    """

    def __init__(self, cp: Any, layout: FrameLayout, encoder: ChunkEncoder) -> None:
        self.cp, self.layout, self.dtype = cp, layout, encoder.dtype
        self.stream = cp.cuda.Stream(non_blocking=True, priority=URGENT)
        self._copying = cp.cuda.Stream(non_blocking=True)
        self.filled = 0
        """Bytes of the epoch that arrived."""
        self.scattered = 0
        """Rows of the epoch that are in tiles."""
        width, metadata = encoder.dtype.itemsize, encoder.metadata
        self.row = layout.step_sizes[layout.buffered_axis] * width
        self.rows = layout.ordered_chunks[layout.buffered_axis]
        self.elements = self.rows * self.row
        self.tile = prod(layout.chunks) * width
        self._order_in_chunk = metadata.order
        half = width // 2 if encoder.dtype.kind == "c" else width
        swapped = half if metadata.endian == "big" else 1
        source = scatter_source(layout, metadata.order, width, swapped)
        self._kernel = module("scatter.cu", source).get_function("weft_scatter")
        self._order = cp.asarray(np.array(tile_order(layout), np.uint32))
        self._fill = np.asarray(metadata.fill, encoder.dtype)
        words = np.frombuffer(self._fill.tobytes() * (16 // width), np.uint64)
        self._words = words[0], words[1]
        cp.cuda.get_current_stream().synchronize()
        self._borrowed: list[Any] = []
        """Events after which the caller may change its blocks."""
        self._copied = range(0)
        """The addresses of the last block that was copied here: only this class uses it."""
        self._reading: deque[tuple[Any, Any]] = deque()
        """Blocks of the device that are being read, and the events at which that ends."""
        self._threads = ThreadPoolExecutor(COPIERS, "weft-copy")
        self._rows = lru_cache(maxsize=4096)(self._rows_of)

    @property
    def nbytes(self) -> int:
        """The bytes of the device that it allocates."""
        return int(self._order.nbytes)

    def begin(self, batch: BatchBuffers) -> None:
        """Mark all tiles of a batch as fill value."""
        self.cp.cuda.runtime.memsetAsync(
            batch.stored.data.ptr, 0, batch.stored.nbytes, self.stream.ptr
        )

    def put(self, batch: BatchBuffers, number: int, values: Any) -> None:
        """Take the next elements of an epoch, given by its number in the batch."""
        if isinstance(values, np.ndarray) or self.filled % self.row or values.nbytes % self.row:
            self._stage(batch, number, values)
            self._scatter_whole(batch, number)
        else:
            rows = values.nbytes // self.row
            self._read(batch, number, values, self.scattered, self.scattered + rows)
            self.filled += values.nbytes
            self.scattered += rows

    def put_epochs(self, batch: BatchBuffers, number: int, values: Any) -> None:
        """Take whole consecutive epochs: one transfer, and one launch."""
        count = values.nbytes // self.elements
        if isinstance(values, np.ndarray):
            source = self._stage(batch, number, values)
            self._launch(batch, number, source, 0, self.rows, epochs=count)
            self.filled = 0
        else:
            self._read(batch, number, values, 0, self.rows, epochs=count)

    def _read(
        self, batch: BatchBuffers, number: int, values: Any, low: int, high: int, epochs: int = 1
    ) -> None:
        """Scatter a block of the device from where it is."""
        source = self._readable(values)
        self._launch(batch, number, source.data.ptr, low, high, epochs=epochs)
        self._borrow(source)

    def _stage(self, batch: BatchBuffers, number: int, values: Any) -> int:
        """Copy elements to the staging buffer; return their address on the device."""
        first = number * self.elements + self.filled
        to = self._staged(batch, number) + self.filled
        size = values.size * self.dtype.itemsize
        if not isinstance(values, np.ndarray):
            source = self._readable(values)
            self._copying.wait_event(self.stream.record())
            self._copy_bytes(to, source.data.ptr, size)
            self._await_copy()
            self._borrow(source)
        elif self._is_plain(values):
            self._copy_bytes(to, values.ctypes.data, size)
            self._borrowed.append(self._await_copy())
        else:
            pinned = batch.host_in[first : first + size]
            self._copy(pinned.view(self.dtype).reshape(values.shape), values)
            self._copy_bytes(to, pinned.ctypes.data, size)
            self._await_copy()
        self.filled += size
        return to

    def _is_plain(self, values: np.ndarray[Any, Any]) -> bool:
        """Return whether the device can read a block of the host where it is."""
        is_alike = values.flags.c_contiguous and values.dtype == self.dtype
        return is_alike and bool(values.nbytes) and self._is_pinned(values)

    def _copy_bytes(self, to: int, source: int, size: int) -> None:
        """Copy bytes to the device, concurrently with scattering."""
        move_bytes(self.cp, to, source, size, self._copying)

    def _await_copy(self) -> Any:
        """Let later launches wait for what was copied; return the event."""
        copied = self._copying.record()
        self.stream.wait_event(copied)
        return copied

    def to_device(self, values: np.ndarray[Any, Any]) -> Any:
        """Return a block of the host on the device; it may not be changed before `release`."""
        now = self.cp.cuda.get_current_stream()
        with self._copying:
            copy = self.cp.empty(values.shape, values.dtype)
            if values.flags.c_contiguous and self._is_pinned(values):
                self._copy_bytes(copy.data.ptr, values.ctypes.data, values.nbytes)
            else:
                copy.set(np.ascontiguousarray(values))
            self._borrowed.append(self._copying.record())
        now.wait_event(self._borrowed[-1])
        self._copied = range(copy.data.ptr, copy.data.ptr + copy.nbytes)
        return copy

    def _is_pinned(self, values: np.ndarray[Any, Any]) -> bool:
        runtime = self.cp.cuda.runtime
        try:
            kind = runtime.pointerGetAttributes(values.ctypes.data).type
        except runtime.CUDARuntimeError:
            return False
        return bool(kind == runtime.memoryTypeHost)

    def _copy(self, to: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        """Copy on the host, with several threads where that pays."""
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
        """Keep reading blocks: their owner does not change them before `release`."""
        self._borrowed = [event for event in self._borrowed if not event.done]

    def release(self) -> None:
        """Wait until blocks are read, so that their owners may change them."""
        for event in self._borrowed:
            event.synchronize()
        self._borrowed.clear()
        self._drop_read()

    def _drop_read(self) -> None:
        """Drop references to blocks of the device that are read."""
        while self._reading and self._reading[0][0].done:
            self._reading.popleft()

    def stop(self) -> None:
        """Stop the threads that copy."""
        self._threads.shutdown(wait=True)

    def _scatter_whole(self, batch: BatchBuffers, number: int) -> None:
        """Scatter the rows that are complete now."""
        whole = self.filled // self.row
        if whole > self.scattered:
            source = self._staged(batch, number) + self.scattered * self.row
            self._launch(batch, number, source, self.scattered, whole)
            self.scattered = whole

    def _readable(self, values: Any) -> Any:
        """Return a contiguous block of the device, and let the stream wait for it."""
        source = self.cp.ascontiguousarray(values.astype(self.dtype, copy=False))
        self.stream.wait_event(self.cp.cuda.get_current_stream().record())
        return source

    def _borrow(self, source: Any) -> None:
        """Keep a block until what was launched so far is done."""
        self._drop_read()
        self._reading.append((self.stream.record(), source))
        if source.data.ptr not in self._copied:
            self._borrowed.append(self._reading[-1][0])

    def _launch(
        self,
        batch: BatchBuffers,
        number: int,
        source: int,
        low: int,
        high: int,
        end: int = 0,
        epochs: int = 1,
    ) -> None:
        """Scatter rows, and fill those after them up to an end; the same for several epochs."""
        end = max(high, end)
        (blocks,), rows = self._rows(low, high, end)
        tiles = self.layout.tiles_per_epoch
        arguments = (
            np.uint64(source),
            np.uint64(batch.pool.data.ptr + number * tiles * self.tile),
            np.uint64(batch.stored.data.ptr + 4 * number * tiles),
            self._order,
            *self._words,
            *rows,
        )
        with self.stream:
            self._kernel((epochs * blocks,), (THREADS,), arguments)

    def _rows_of(self, low: int, high: int, end: int) -> tuple[tuple[int], tuple[Any, ...]]:
        """Return the blocks of a launch for some rows, and the kernel's arguments for them."""
        first, last = moves_of(self.layout, self._order_in_chunk, self.dtype.itemsize, low, end)
        parts = -(-(last - first) // MOVES)
        arguments = tuple(np.uint32(n) for n in (low, high, end, first, last, parts))
        return (self.layout.tiles_per_epoch * parts,), arguments

    def fill(self, batch: BatchBuffers, number: int) -> None:
        """Write the fill value after the last element that arrived, to the end of its epoch."""
        rows, rest = divmod(self.filled, self.row)
        if rest:
            begin, end = self.filled // self.dtype.itemsize, (rows + 1) * self.row
            with self.stream:
                staged = batch.staged[number * self.elements :].view(self.dtype)
                staged[begin : end // self.dtype.itemsize] = self._fill
            self._copying.wait_event(self.stream.record())
            source = self._staged(batch, number) + rows * self.row
            self._launch(batch, number, source, rows, rows + 1)
            rows += 1
        if rows < self.rows:
            self._launch(batch, number, self._staged(batch, number), rows, rows, self.rows)

    def _staged(self, batch: BatchBuffers, number: int) -> int:
        """Return the address of the staged elements of an epoch."""
        return int(batch.staged.data.ptr) + number * self.elements

    def end(self, batch: BatchBuffers, number: int) -> None:
        """End the epoch."""
        self.fill(batch, number)
        self.filled = self.scattered = 0

    def move(self, old: BatchBuffers, number: int, new: BatchBuffers) -> None:
        """Continue in another batch, as its first epoch."""
        tiles = self.layout.tiles_per_epoch
        with self.stream:
            first = number * self.elements
            new.staged[: self.filled] = old.staged[first : first + self.filled]
            pool = slice(number * tiles * self.tile, (number + 1) * tiles * self.tile)
            new.pool[: tiles * self.tile] = old.pool[pool]
            new.stored[:tiles] = old.stored[number * tiles : (number + 1) * tiles]
