"""`Device`: the pipeline of a GPU.

Rows are scattered into tiles as they arrive, in the order of their shards. A batch of epochs is
compressed and its chunks are put one behind the other, while the next batch arrives and chunks of
the one before go to the host and into shards. Streams keep transfers and kernels apart, events
their order; the host waits for none of it but in threads of its own, and for a block that it may
not keep.
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
from weft.store.assembler import Batch, Chunks, Delivery, Packed
from weft.store.chunk_layout import Span, Tiling
from weft.store.cuda.batch import Plan, Planner, Sizes, Slot
from weft.store.cuda.device import Memory, cupy, module, move_bytes
from weft.store.cuda.encoders import THREADS, Checksums, before_checksum, stage_of
from weft.store.cuda.scatter import Arrival
from weft.store.encoder import Encoder
from weft.store.metrics import Clock
from weft.store.pipeline import Work
from weft.values import Point

MOST_EPOCHS = 256
"""Epochs of a batch, at most."""

SLOTS = 3
"""Batches that are held: one arrives, one is computed, one leaves."""


class Filling:
    """A batch that is being filled: its slot, and where its epochs are that are full."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.epochs: list[Point] = []
        self.left = 0
        """Parts that are not written yet."""
        self.end = 0
        """The elements of the array up to the last of its epochs."""


class Device(Work):
    """The pipeline of a GPU."""

    def __init__(
        self,
        tiling: Tiling,
        encoder: Encoder,
        delivery: Delivery,
        clock: Clock,
        *,
        threads: int | None = None,
        epochs: int | None = None,
        by: str | None = None,
    ) -> None:
        super().__init__(delivery)
        self.tiling, self.clock = tiling, clock
        self.cp = cupy()
        self.waiting = 0
        self._arrival = Arrival(self.cp, tiling, encoder)
        tile, codecs = self._arrival.tile, encoder.metadata.codecs
        self._stage = stage_of(before_checksum(codecs), tile, by)
        self._checksums = Checksums(codecs, self._stage.most(tile))
        size = self._arrival.elements
        batch = epochs or max(1, min(MOST_EPOCHS, self._stage.batch // max(1, size)))
        self._sizes = Sizes.of(batch, tiling.tiles, tile, size, self._stage, self._checksums)
        self._memory = Memory(self.cp)
        self._planner = Planner(tiling)
        self._offsets = module("aggregate.cu").get_function("weft_offsets")
        self._computing, self._leaving = (self.cp.cuda.Stream(non_blocking=True) for _ in "12")
        self._free = [Slot(self.cp, self._memory, self._sizes) for _ in range(SLOTS)]
        self._now: Filling | None = None
        self._leaves = ThreadPoolExecutor(1, "weft-cuda")
        self._writes = ThreadPoolExecutor(threads or 8, "weft-store")
        self._guess = 0
        """Bytes that chunks of a batch had: so many are brought to the host before it is known."""

    @property
    def memory(self) -> int:
        """The bytes of the device, and the pinned ones of the host."""
        return SLOTS * (self._sizes.device + self._sizes.pinned) + 4 * self.tiling.tiles

    def asarray(self, block: Any) -> Any:
        """A block where it is: on the device, if it can be had there, or on the host."""
        where = getattr(block, "__dlpack_device__", None)
        if isinstance(block, np.ndarray) or where is None or int(where()[0]) != 2:
            return np.asarray(block)
        return block if isinstance(block, self.cp.ndarray) else self.cp.from_dlpack(block)

    def sent(self, block: Any) -> tuple[Any, bool]:
        """A block on the device, and whether it is a copy."""
        values = self.asarray(block)
        is_here = not isinstance(values, np.ndarray)
        return (values, False) if is_here else (self._arrival.sent(values), True)

    # -- elements

    def put(self, span: Span, values: Any) -> None:
        """The next elements of an epoch."""
        with self._named("arrive"), self.clock.stage("arrive", values.nbytes):
            now = self._current()
            if now is not None:
                self._arrival.put(now.slot, len(now.epochs), values)

    def put_epochs(self, values: Any, done: int) -> int:
        """Whole epochs of one row each: one launch for as many as a batch takes."""
        unit = self.tiling.units[self.tiling.grain]
        count = int(values.size) // max(1, unit)
        if self._arrival.rows > 1 or count < 2 or values.size % unit or self._arrival.filled:
            return 0
        if isinstance(values, np.ndarray) and not values.flags.c_contiguous:
            return 0
        with self._named("arrive"), self.clock.stage("arrive", values.nbytes):
            self._put_epochs(values.reshape(count, unit), done)
        return count * unit

    def _put_epochs(self, values: Any, done: int) -> None:
        first, (count, unit) = 0, values.shape
        while first < count and (now := self._current()) is not None:
            held = len(now.epochs)
            fit = min(count - first, self._sizes.epochs - held)
            self._arrival.put_epochs(now.slot, held, values[first : first + fit])
            for number in range(first, first + fit):
                now.epochs.append(self.tiling.epoch(done + number * unit)[0])
            with self._turn:
                self.epochs += fit
            first += fit
            now.end = done + first * unit
            if len(now.epochs) == self._sizes.epochs:
                self._dispatch()

    @contextmanager
    def _named(self, stage: str, epochs: Sequence[Point] = ()) -> Iterator[None]:
        """What fails inside is said with the stage and the epochs."""
        try:
            yield
        except BaseException as error:
            where = f", epochs {epochs[0]} to {epochs[-1]}" if epochs else ""
            self.fail(WeftError(f"the GPU's stage {stage}{where}: {error!r}"))

    def _current(self) -> Filling | None:
        """The batch that is filled now; another, once a slot is free; none after a failure."""
        if self._now is None:
            begin = time.perf_counter()
            with self._turn:
                while not self._free and self.error is None:
                    self._turn.wait()
                slot = self._free.pop() if self._free and self.error is None else None
            self.clock.waited += time.perf_counter() - begin
            if slot is None:
                return None
            self._arrival.begin(slot)
            self._now = Filling(slot)
        return self._now

    def keep(self) -> None:
        """What was put will not be changed before it is released."""
        self._arrival.keep()

    def release(self) -> None:
        """Until no block is needed any more that was put."""
        self._arrival.release()

    def end(self, done: int) -> None:
        """An epoch is full; with the last one of a batch, that is computed."""
        now = self._now
        if now is None or not self._arrival.filled:
            return
        self._arrival.end(now.slot, len(now.epochs))
        now.epochs.append(self.tiling.epoch(done - 1)[0])
        now.end = done
        with self._turn:
            self.epochs += 1
        if len(now.epochs) == self._sizes.epochs:
            self._dispatch()

    # -- a batch

    def _dispatch(self) -> None:
        """Compute the epochs that are full, and let their chunks leave."""
        now = self._now
        if now is None or not now.epochs:
            return
        self._now = None
        plan = self._planner.plan(now.epochs)
        now.left = len(plan.parts)
        numbers = [self.delivery.issue(part.shard) for part in plan.parts]
        self.delivery.mark(now.end)
        with self._named("compute", now.epochs):
            self._compute(now.slot, plan)
            self._start(self._leaves, self._leave, now, plan, numbers)

    def _compute(self, slot: Slot, plan: Plan) -> None:
        """Compress tiles of a slot, and put their chunks one behind the other."""
        stream, stage, tile, count = self._computing, self._stage, self._sizes.tile, len(plan.order)
        slot.host_order[:count] = plan.order
        slot.events["arrived"].record(self._arrival.stream)
        stream.wait_event(slot.events["arrived"])
        with stream:
            move_bytes(self.cp, slot.order.data.ptr, slot.host_order.ctypes.data, 4 * count, stream)
            slot.events["begun"].record(stream)
            stage.sizes(slot.pool, tile, count, slot.scratch, slot.sizes)
            slot.events["compressed"].record(stream)
            tables = slot.stored, slot.order, slot.sizes, slot.offsets, slot.placed
            given = (np.uint64(n) for n in (count, stage.fixed, self._checksums.extra))
            self._offsets((1,), (THREADS,), (*tables, *given))
            stage.put(slot.pool, tile, count, slot.scratch, slot.sizes, slot.offsets, slot.out)
            self._checksums.put(count, slot.out, slot.sizes, slot.offsets, slot.sums)
            slot.events["computed"].record(stream)
        self._leaving.wait_event(slot.events["computed"])
        size = 8 * (count + 1)
        move_bytes(self.cp, slot.host_placed.ctypes.data, slot.placed.data.ptr, size, self._leaving)
        slot.events["placed"].record(self._leaving)
        slot.events["leaving"].record(self._leaving)
        whole = count * (stage.fixed + self._checksums.extra) if stage.fixed else 0
        slot.guess = whole or min(count * tile, self._guess + self._guess // 64)
        move_bytes(self.cp, slot.host_out.ctypes.data, slot.out.data.ptr, slot.guess, self._leaving)

    def _fetch(self, slot: Slot, count: int) -> np.ndarray[Any, Any]:
        """Where chunks lie, once they are on the host; most of them were on their way before."""
        slot.events["placed"].synchronize()
        total = int(slot.host_placed[count])
        if total > slot.guess:
            to, source = slot.host_out.ctypes.data, slot.out.data.ptr
            rest = total - slot.guess
            move_bytes(self.cp, to + slot.guess, source + slot.guess, rest, self._leaving)
        self._guess = total
        slot.events["left"].record(self._leaving)
        slot.events["left"].synchronize()
        self._stage.check(self._sizes.tile, count, slot.scratch)
        self._timed(slot, count * self._sizes.tile, total)
        return slot.host_placed[: count + 1].copy()

    def _timed(self, slot: Slot, size: int, total: int) -> None:
        """Count what the device took, by its own clock."""
        between = self.cp.cuda.get_elapsed_time
        events = slot.events
        for name, first, last, count in (
            ("compress", "begun", "compressed", size),
            ("aggregate", "compressed", "computed", total),
            ("leave", "leaving", "left", total),
        ):
            self.clock.count(name, count, between(events[first], events[last]) / 1e3)

    def _leave(self, now: Filling, plan: Plan, numbers: Sequence[int]) -> None:
        """Bring the chunks of a batch to the host, and hand them over."""
        with self._named("leave", now.epochs):
            placed = self._fetch(now.slot, len(plan.order))
        if self.error is not None:
            return
        written = partial(self._written, now)
        packed = _packed(memoryview(now.slot.host_out.data), placed, plan)
        for (shard, slots), number, chunks in zip(plan.parts, numbers, packed):
            batch = Batch(shard, number, slots, chunks, written)
            self._start(self._writes, self._deliver, batch)

    def _written(self, now: Filling) -> None:
        """One part of a batch is written; with the last one its slot is free."""
        with self._turn:
            now.left -= 1
            if not now.left:
                self._give_back(now.slot, len(now.epochs))
            self._turn.notify_all()

    # -- in the end, or as if it were

    def rest(self, done: int) -> Mapping[Point, tuple[Sequence[int], Chunks]]:
        """The chunks of an epoch that is not full, as if no more came."""
        now = self._now
        if now is None or not self._arrival.filled:
            return {}
        self._arrival.fill(now.slot, 0)
        plan = self._planner.plan([self.tiling.epoch(done - 1)[0]])
        self._compute(now.slot, plan)
        placed = self._fetch(now.slot, len(plan.order))
        data = memoryview(now.slot.host_out[: placed[-1]].tobytes())
        packed = _packed(data, placed, plan)
        return {
            shard: (slots.tolist(), chunks) for (shard, slots), chunks in zip(plan.parts, packed)
        }

    def settle(self) -> None:
        """Until all epochs that are full are written, or something failed."""
        self._set_apart()
        self._dispatch()
        super().settle()

    def _set_apart(self) -> None:
        """Move what is there of an epoch that is not full to a batch of its own."""
        now = self._now
        if now is None or not now.epochs or not self._arrival.filled:
            return
        self._now = None
        fresh = self._current()
        if fresh is not None:
            self._arrival.move(now.slot, len(now.epochs), fresh.slot)
        self._now = now
        self._dispatch()
        self._now = fresh

    def stop(self) -> None:
        """Stop threads, and give memory back."""
        self._showing.stop()
        self._leaves.shutdown(wait=True, cancel_futures=True)
        self._writes.shutdown(wait=True, cancel_futures=True)
        self._arrival.stop()
        for stream in (self._arrival.stream, self._computing, self._leaving):
            stream.synchronize()
        self._free.clear()
        self._now = None


def _packed(data: memoryview, placed: np.ndarray[Any, Any], plan: Plan) -> list[Packed]:
    """The chunks of a batch, shard by shard: they lie in that order."""
    made, first = [], 0
    for _, slots in plan.parts:
        last = first + len(slots)
        low, high = int(placed[first]), int(placed[last])
        made.append(Packed(data[low:high], np.diff(placed[first : last + 1])))
        first = last
    return made
