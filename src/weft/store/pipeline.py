"""`Pipeline`: from elements to chunks of shards. `Threads` is the one of a CPU.

Elements are scattered into the tiles of an epoch. A full epoch goes to threads in batches of tiles:
they drop tiles that are all fill value, compress the others, and hand them to the delivery, while
the next epoch is being filled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.store.assembler import Batch, Chunks, Delivery, Showing
from weft.store.chunk_layout import Group, Span, Tiling
from weft.store.encoder import Chosen, Encoder
from weft.store.metrics import STAGES, Clock
from weft.store.scatter import Scatter
from weft.values import Point

FILLED = 1 << 25
"""Bytes of tiles that are held at least; at least two epochs, and at most `MOST_POOLS`."""

MOST_POOLS = 16

BATCHED = 1 << 22
"""Bytes of tiles that a thread compresses at a time; at least one tile."""

Values: TypeAlias = np.ndarray[Any, Any]


class Pipeline(Protocol):
    """What makes chunks of elements. One thread calls it; what fails in others is its `error`."""

    error: BaseException | None
    epochs: int
    """Epochs that are full and not written yet."""
    waiting: int
    """Batches that nothing has begun with."""

    @property
    def memory(self) -> int:
        """The bytes that are held at most."""

    def asarray(self, block: Any) -> Any:
        """A block as an array, where the pipeline takes it from."""

    def sent(self, block: Any) -> tuple[Any, bool]:
        """A block on the pipeline's device, and whether it is a copy."""

    def put_epochs(self, values: Any, done: int) -> int:
        """A block of whole epochs at once, where that pays; how many elements that was.

        All elements so far are `done`, and an epoch begins there.
        """

    def put(self, span: Span, values: Values) -> None:
        """The next elements of an epoch, which are a box; may wait for room."""

    def keep(self) -> None:
        """What was put will not be changed before it is released."""

    def release(self) -> None:
        """Until no block is needed any more that was put."""

    def end(self, done: int) -> None:
        """Hand the epoch over whose last element came; all elements so far are `done`."""

    def rest(self, done: int) -> Mapping[Point, tuple[Sequence[int], Chunks]]:
        """For each shard the slots and chunks of an epoch that is not full; it stays as it is."""

    def settle(self) -> None:
        """Until all epochs that were handed over are written, or something failed."""

    def stop(self) -> None:
        """Stop all threads; what they did not write is gone."""


class Work:
    """Work of other threads: what it fails with is kept for the thread that waits for it."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.error: BaseException | None = None
        self.epochs = 0
        """Epochs that are full and not written yet."""
        self._turn = threading.Condition()
        self._free: list[Any] = []
        """Room for epochs that is not taken."""
        self._is_due = False
        """Whether an epoch was written, and nobody has seen to it that readers see it."""
        self._showing = Showing(delivery, lambda: self.epochs == 0, self._guarded)

    def settle(self) -> None:
        """Until all epochs that are full are written, or something failed."""
        with self._turn:
            while self.epochs and self.error is None:
                self._turn.wait()

    def fail(self, error: BaseException) -> None:
        """Let nobody wait any longer."""
        with self._turn:
            self.error = self.error or error
            self._turn.notify_all()

    def _deliver(self, batch: Batch) -> None:
        """Hand chunks over, and show what is written by then."""
        self.delivery.take(batch)
        with self._turn:
            is_due, self._is_due = self._is_due, False
        if is_due:
            self._showing.show()

    def _give_back(self, room: Any, epochs: int) -> None:
        """Epochs are written, and others find room; the turn is taken."""
        self._free.append(room)
        self.epochs -= epochs
        self._is_due = True

    def _start(self, threads: Executor, work: Callable[..., None], *given: Any) -> None:
        """Let a thread do work; do it here while the interpreter ends, when none can be asked."""
        try:
            threads.submit(self._guarded, work, *given)
        except RuntimeError:
            self._guarded(work, *given)

    def _guarded(self, work: Callable[..., None], *given: Any) -> None:
        """Do work; what it fails with is said by the thread that appends."""
        try:
            work(*given)
        except BaseException as error:
            self.fail(error)


MANY = 32
"""Tiles of an epoch from which codecs are chosen anew for it, and not for a row of shards."""


class Epoch:
    """The tiles of an epoch that is full, and how many of its batches are not written yet."""

    def __init__(self, pool: Values, chosen: Chosen) -> None:
        self.pool, self.left, self.chosen = pool, 0, chosen


class Threads(Work):
    """The pipeline of a CPU: tiles in memory, compressed by threads."""

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
        if by is not None:
            raise WeftError(f"encoder: {by!r} is for device='cuda'")
        self.tiling, self.encoder, self.clock = tiling, encoder, clock
        self.scatter = Scatter(tiling, encoder.dtype, encoder.metadata.fill)
        self.waiting = 0
        self._count = threads or min(8, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._count, "weft-store")
        self._batch = max(1, BATCHED // max(1, prod(tiling.chunks) * encoder.dtype.itemsize))
        enough = min(MOST_POOLS, FILLED // max(1, self.scatter.nbytes))
        self._pools = max(2, enough if epochs is None else epochs)
        self._made = 2
        self._free = [self.scatter.pool() for _ in range(2)]
        """Others are made when they are needed: these two, so that no frame has to wait for it."""
        self._pool: Values | None = None
        """The tiles that are being filled."""
        self._queued = 0
        """Batches that were ever handed to threads."""
        self._ended = 0
        """Batches that are written."""
        self._last: tuple[int, Chosen] | None = None
        """The codecs that were chosen last, and for which row of shards."""

    @property
    def memory(self) -> int:
        """The bytes of tiles, and of the chunks that are made of them and not written yet."""
        batch = min(self._batch, self.tiling.tiles)
        return self._pools * self.scatter.nbytes + 2 * self._count * batch * self.encoder.most

    # -- tiles

    def asarray(self, block: Any) -> Values:
        """A block in the memory of the host."""
        return np.asarray(block)

    def sent(self, block: Any) -> tuple[Values, bool]:
        """A block where it is."""
        return np.asarray(block), False

    def put_epochs(self, values: Any, done: int) -> int:
        """Epochs are scattered one by one."""
        return 0

    def put(self, span: Span, values: Values) -> None:
        """Scatter the next elements of an epoch."""
        pool = self._taken()
        if pool is not None:
            with self.clock.stage("scatter", values.nbytes):
                self.scatter.put(pool, span, values)

    def _taken(self) -> Values | None:
        """The tiles that are filled now; others, once some are free; none after a failure."""
        if self._pool is None:
            begin = time.perf_counter()
            with self._turn:
                while not self._free and self._made == self._pools and self.error is None:
                    self._turn.wait()
                if self._free:
                    self._pool = self._free.pop()
            self.clock.waited += time.perf_counter() - begin
            if self._pool is None and self.error is None:
                self._made += 1
                self._pool = self.scatter.pool()
        return self._pool

    def keep(self) -> None:
        """Nothing is kept: elements are copied into tiles at once."""

    def release(self) -> None:
        """Nothing is kept."""

    def rest(self, done: int) -> Mapping[Point, tuple[Sequence[int], Chunks]]:
        """The chunks of an epoch that is not full, as if no more came."""
        pool = self._pool
        if pool is None:
            return {}
        self.scatter.clear(pool, done)
        at, _ = self.tiling.epoch(done - 1)
        codecs = self.encoder.suited(pool)
        return {
            group.shard: (
                group.slots,
                [self.encoder.encoded(pool[tile], codecs) for tile in group.tiles],
            )
            for group in self.tiling.groups(at)
        }

    def end(self, done: int) -> None:
        """Hand the tiles over to threads, and go on with others."""
        if self._pool is None:
            return
        self.scatter.clear(self._pool, done)
        at, _ = self.tiling.epoch(done - 1)
        epoch, self._pool = Epoch(self._pool, self._chosen(at, self._pool)), None
        batches = [
            Group(group.shard, group.tiles[n:end], group.slots[n:end])
            for group in self.tiling.groups(at)
            for n in range(0, len(group.tiles), self._batch)
            for end in [n + self._batch]
        ]
        epoch.left = len(batches)
        with self._turn:
            self.epochs += 1
            self.waiting += len(batches)
        for group in batches:
            number = self.delivery.issue(group.shard)
            self._start(self._threads, self._compress, epoch, group, number, self._queued)
            self._queued += 1
        self.delivery.mark(done)

    def _chosen(self, at: Point, pool: Values) -> Chosen:
        """The codecs of an epoch; where it has few tiles, those of the first one in its row.

        Threads begin with the first one: they choose before its tiles are filled with others.
        """
        row = at[0] // self.tiling.per_shard[self.tiling.dims[0]]
        if self._last is None or self._last[0] != row or self.tiling.tiles >= MANY:
            self._last = row, Chosen(self.encoder, pool)
        return self._last[1]

    # -- what threads do

    def _compress(self, epoch: Epoch, group: Group, number: int, turn: int) -> None:
        """Compress some tiles of a shard, and hand them over.

        A thread waits while too many batches are not written. The first of these never waits, for
        all before it are written; the others cannot hold it up.
        """
        with self._turn:
            self.waiting -= 1
            while turn >= self._ended + 2 * self._count and self.error is None:
                self._turn.wait()
        if self.error is not None:
            return
        with self.clock.stage("compress", sum(epoch.pool[tile].nbytes for tile in group.tiles)):
            codecs = epoch.chosen.codecs()
            chunks = [self.encoder.encoded(epoch.pool[tile], codecs) for tile in group.tiles]
        written = partial(self._written, epoch)
        self._deliver(Batch(group.shard, number, group.slots, chunks, written))

    def _written(self, epoch: Epoch) -> None:
        """One batch of an epoch is written; with the last one its tiles are free."""
        with self._turn:
            self._ended += 1
            epoch.left -= 1
            if not epoch.left:
                self._give_back(epoch.pool, 1)
            self._turn.notify_all()

    # -- in the end

    def stop(self) -> None:
        """Stop threads."""
        self._showing.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._free.clear()
        self._pool = None


STAGES_CUDA = ("arrive", "compress", "aggregate", "leave", "write", "publish")
"""What is done to frames on a GPU, in order; seconds of kernels are by the device's clock."""


def pipeline_on(device: str) -> Any:
    """The pipeline of a device, by its name."""
    if device == "cpu":
        return Threads
    if device == "cuda":
        return import_module("weft.store.cuda.pipeline").Device
    raise WeftError(f"device: {device!r} is neither cpu nor cuda")


def stages_of(device: str) -> tuple[str, ...]:
    """The stages that a device counts."""
    return STAGES_CUDA if device == "cuda" else STAGES
