"""`GpuPipeline`: the pipeline of a GPU.

Rows are scattered into tiles as they arrive, in the order of their shards. A batch of epochs is
encoded and its chunks are packed, while the next batch arrives and the chunks of the one before go
to the host and into shards. Streams separate transfers from kernels, and events order them; the
host waits only in threads of its own, and for blocks that it may not keep.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.assembler import ChunkBatch, ShardAssembler
from weft.store.buffers import MemoryUse
from weft.store.chunk_layout import FrameLayout, Slab
from weft.store.codecs import EncodedChunks
from weft.store.cuda.batch import BatchBuffers, BatchPlan, BatchPlanner, BatchSizes
from weft.store.cuda.device import DeviceMemory, cupy, module, move_bytes
from weft.store.cuda.encoders import THREADS, Checksums, before_checksum, tile_encoder
from weft.store.cuda.scatter import DeviceScatter
from weft.store.encoder import ChunkEncoder
from weft.store.metrics import Clock
from weft.store.pipeline import Pipeline
from weft.values import Point

MOST_EPOCHS = 256
"""The most epochs of a batch."""

BATCHES = 3
"""Batches in memory: one arrives, one is encoded, one goes to the host."""


class FillingBatch:
    """A batch that is being filled: its buffers, and its full epochs."""

    def __init__(self, buffers: BatchBuffers) -> None:
        self.buffers = buffers
        self.epochs: list[Point] = []
        self.left = 0
        """Parts that are not written yet."""
        self.end = 0
        """The number of elements of the array up to the end of the batch."""


class GpuPipeline(Pipeline):
    """The pipeline of a GPU."""

    def __init__(
        self,
        layout: FrameLayout,
        encoder: ChunkEncoder,
        assembler: ShardAssembler,
        clock: Clock,
        *,
        threads: int | None = None,
        epochs: int | None = None,
        by: str | None = None,
    ) -> None:
        super().__init__(assembler)
        self.layout, self.clock = layout, clock
        self.cp = cupy()
        self._scatter = DeviceScatter(self.cp, layout, encoder)
        tile, codecs = self._scatter.tile, encoder.metadata.codecs
        self._encoder = tile_encoder(before_checksum(codecs), tile, by)
        self._checksums = Checksums(codecs, self._encoder.most)
        size = self._scatter.elements
        batch = epochs or max(1, min(MOST_EPOCHS, self._encoder.batch // max(1, size)))
        self._sizes = BatchSizes.of(
            batch, layout.tiles_per_epoch, size, self._encoder, self._checksums
        )
        self._memory = DeviceMemory(self.cp)
        self._planner = BatchPlanner(layout)
        self._offsets = module("aggregate.cu").get_function("weft_offsets")
        self._computing, self._leaving = (self.cp.cuda.Stream(non_blocking=True) for _ in "12")
        self._free = [BatchBuffers(self.cp, self._memory, self._sizes) for _ in range(BATCHES)]
        self._now: FillingBatch | None = None
        self._leaves = ThreadPoolExecutor(1, "weft-cuda")
        self._writes = ThreadPoolExecutor(threads or 8, "weft-store")
        self._guess = 0
        """Bytes of the chunks of the last batch: as many are copied before the size is known."""

    @property
    def memory(self) -> MemoryUse:
        """The bytes of the device, and pinned bytes of the host."""
        batches = BATCHES * (self._sizes.device + self._sizes.pinned)
        return MemoryUse(batches + 4 * self.layout.tiles_per_epoch)

    def asarray(self, block: Any) -> Any:
        """Return a block as an array where it is: on the device or on the host."""
        where = getattr(block, "__dlpack_device__", None)
        if isinstance(block, np.ndarray) or where is None or int(where()[0]) != 2:
            return np.asarray(block)
        return block if isinstance(block, self.cp.ndarray) else self.cp.from_dlpack(block)

    def to_device(self, block: Any) -> tuple[Any, bool]:
        """Return a block on the device, and whether it is a copy."""
        values = self.asarray(block)
        is_here = not isinstance(values, np.ndarray)
        return (values, False) if is_here else (self._scatter.to_device(values), True)

    # -- elements

    def put(self, span: Slab, values: Any) -> None:
        """Take the next elements of an epoch."""
        with self._failing("arrive"), self.clock.stage("arrive", values.nbytes):
            now = self._current()
            if now is not None:
                self._scatter.put(now.buffers, len(now.epochs), values)

    def put_epochs(self, values: Any, done: int) -> int:
        """Take whole epochs of one row each, with one launch for as many as a batch holds."""
        unit = self.layout.step_sizes[self.layout.buffered_axis]
        count = int(values.size) // max(1, unit)
        if self._scatter.rows > 1 or count < 2 or values.size % unit or self._scatter.filled:
            return 0
        if isinstance(values, np.ndarray) and not values.flags.c_contiguous:
            return 0
        with self._failing("arrive"), self.clock.stage("arrive", values.nbytes):
            self._put_epochs(values.reshape(count, unit), done)
        return count * unit

    def _put_epochs(self, values: Any, done: int) -> None:
        first, (count, unit) = 0, values.shape
        while first < count and (now := self._current()) is not None:
            held = len(now.epochs)
            fit = min(count - first, self._sizes.epochs - held)
            self._scatter.put_epochs(now.buffers, held, values[first : first + fit])
            for number in range(first, first + fit):
                now.epochs.append(self.layout.epoch_of(done + number * unit)[0])
            with self._turn:
                self.epochs += fit
            first += fit
            now.end = done + first * unit
            if len(now.epochs) == self._sizes.epochs:
                self._dispatch()

    @contextmanager
    def _failing(self, stage: str, epochs: Sequence[Point] = ()) -> Iterator[None]:
        """Keep an error of a `with` block, with the stage and the epochs."""
        try:
            yield
        except BaseException as error:
            where = f", epochs {epochs[0]} to {epochs[-1]}" if epochs else ""
            self.fail(WeftError(f"the GPU's stage {stage}{where}: {error!r}"))

    def _current(self) -> FillingBatch | None:
        """Return the batch that is being filled, once buffers are free; None after a failure."""
        if self._now is None:
            begin = time.perf_counter()
            with self._turn:
                while not self._free and self.error is None:
                    self._turn.wait()
                buffers = self._free.pop() if self._free and self.error is None else None
            self.clock.waited += time.perf_counter() - begin
            if buffers is None:
                return None
            self._scatter.begin(buffers)
            self._now = FillingBatch(buffers)
        return self._now

    def keep(self) -> None:
        """Keep reading blocks: their owner does not change them before `release`."""
        self._scatter.keep()

    def release(self) -> None:
        """Wait until no block is needed any more."""
        self._scatter.release()

    def end_epoch(self, done: int) -> None:
        """End an epoch; with the last one of a batch, encode that."""
        now = self._now
        if now is None or not self._scatter.filled:
            return
        self._scatter.end(now.buffers, len(now.epochs))
        now.epochs.append(self.layout.epoch_of(done - 1)[0])
        now.end = done
        with self._turn:
            self.epochs += 1
        if len(now.epochs) == self._sizes.epochs:
            self._dispatch()

    # -- a batch

    def _dispatch(self) -> None:
        """Encode the full epochs, and start copying their chunks to the host."""
        now = self._now
        if now is None or not now.epochs:
            return
        self._now = None
        plan = self._planner.plan(now.epochs)
        now.left = len(plan.parts)
        numbers = [self.assembler.issue(part.shard) for part in plan.parts]
        self.assembler.mark(now.end)
        with self._failing("compute", now.epochs):
            self._compute(now.buffers, plan)
            self._start(self._leaves, self._leave, now, plan, numbers)

    def _compute(self, batch: BatchBuffers, plan: BatchPlan) -> None:
        """Encode the tiles of a batch, and pack their chunks."""
        stream, encoder = self._computing, self._encoder
        tile, count = self._sizes.tile, len(plan.order)
        batch.host_order[:count] = plan.order
        batch.events["arrived"].record(self._scatter.stream)
        stream.wait_event(batch.events["arrived"])
        with stream:
            move_bytes(
                self.cp, batch.order.data.ptr, batch.host_order.ctypes.data, 4 * count, stream
            )
            batch.events["begun"].record(stream)
            encoder.sizes(batch, count)
            batch.events["compressed"].record(stream)
            tables = batch.stored, batch.order, batch.sizes, batch.offsets, batch.placed
            given = (np.uint64(n) for n in (count, encoder.fixed, self._checksums.extra))
            self._offsets((1,), (THREADS,), (*tables, *given))
            encoder.put(batch, count)
            self._checksums.put(batch, count)
            batch.events["computed"].record(stream)
        self._leaving.wait_event(batch.events["computed"])
        size = 8 * (count + 1)
        move_bytes(
            self.cp, batch.host_placed.ctypes.data, batch.placed.data.ptr, size, self._leaving
        )
        batch.events["placed"].record(self._leaving)
        batch.events["leaving"].record(self._leaving)
        whole = count * (encoder.fixed + self._checksums.extra) if encoder.fixed else 0
        batch.guess = whole or min(count * tile, self._guess + self._guess // 64)
        move_bytes(
            self.cp, batch.host_out.ctypes.data, batch.out.data.ptr, batch.guess, self._leaving
        )

    def _fetch(self, batch: BatchBuffers, count: int) -> np.ndarray[Any, Any]:
        """Wait for the chunks on the host; return their offsets."""
        batch.events["placed"].synchronize()
        total = int(batch.host_placed[count])
        if total > batch.guess:
            to, source = batch.host_out.ctypes.data, batch.out.data.ptr
            rest = total - batch.guess
            move_bytes(self.cp, to + batch.guess, source + batch.guess, rest, self._leaving)
        self._guess = total
        batch.events["left"].record(self._leaving)
        batch.events["left"].synchronize()
        self._encoder.check(batch, count)
        self._timed(batch, count * self._sizes.tile, total)
        return batch.host_placed[: count + 1].copy()

    def _timed(self, batch: BatchBuffers, size: int, total: int) -> None:
        """Count the time of each stage, by the device's clock."""
        between = self.cp.cuda.get_elapsed_time
        events = batch.events
        for name, first, last, count in (
            ("compress", "begun", "compressed", size),
            ("aggregate", "compressed", "computed", total),
            ("leave", "leaving", "left", total),
        ):
            self.clock.count(name, count, between(events[first], events[last]) / 1e3)

    def _leave(self, now: FillingBatch, plan: BatchPlan, numbers: Sequence[int]) -> None:
        """Copy the chunks of a batch to the host, and pass them to the assembler."""
        with self._failing("leave", now.epochs):
            placed = self._fetch(now.buffers, len(plan.order))
        if self.error is not None:
            return
        written = partial(self._written, now)
        packed = _packed(memoryview(now.buffers.host_out.data), placed, plan)
        for (shard, slots), number, chunks in zip(plan.parts, numbers, packed):
            batch = ChunkBatch(shard, number, slots, chunks, written)
            self._start(self._writes, self._assemble, batch)

    def _written(self, now: FillingBatch) -> None:
        """Count a part that is written; with the last one the buffers of its batch are free."""
        with self._turn:
            now.left -= 1
            if not now.left:
                self._give_back(now.buffers, len(now.epochs))
            self._turn.notify_all()

    # -- at the end

    def partial_epoch(self, done: int) -> Mapping[Point, tuple[Sequence[int], EncodedChunks]]:
        """Return the chunks of an epoch that is not full, as if no more came."""
        now = self._now
        if now is None or not self._scatter.filled:
            return {}
        self._scatter.fill(now.buffers, 0)
        plan = self._planner.plan([self.layout.epoch_of(done - 1)[0]])
        self._compute(now.buffers, plan)
        placed = self._fetch(now.buffers, len(plan.order))
        data = memoryview(now.buffers.host_out[: placed[-1]].tobytes())
        packed = _packed(data, placed, plan)
        return {
            shard: (slots.tolist(), chunks) for (shard, slots), chunks in zip(plan.parts, packed)
        }

    def settle(self) -> None:
        """Wait until all full epochs are written, or something failed."""
        self._set_apart()
        self._dispatch()
        super().settle()

    def _set_apart(self) -> None:
        """Move an epoch that is not full to a batch of its own."""
        now = self._now
        if now is None or not now.epochs or not self._scatter.filled:
            return
        self._now = None
        fresh = self._current()
        if fresh is not None:
            self._scatter.move(now.buffers, len(now.epochs), fresh.buffers)
        self._now = now
        self._dispatch()
        self._now = fresh

    def stop(self) -> None:
        """Stop threads, and free memory."""
        self._publisher.stop()
        self._leaves.shutdown(wait=True, cancel_futures=True)
        self._writes.shutdown(wait=True, cancel_futures=True)
        self._scatter.stop()
        for stream in (self._scatter.stream, self._computing, self._leaving):
            stream.synchronize()
        self._free.clear()
        self._now = None


def _packed(data: memoryview, placed: np.ndarray[Any, Any], plan: BatchPlan) -> list[EncodedChunks]:
    """Return the chunks of a batch, shard by shard: they lie in that order."""
    packed, first = [], 0
    for _, slots in plan.parts:
        last = first + len(slots)
        low, high = int(placed[first]), int(placed[last])
        packed.append(EncodedChunks([data[low:high]], np.diff(placed[first : last + 1])))
        first = last
    return packed
