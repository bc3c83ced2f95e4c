"""`Writer`: frames in, shards out.

Elements are scattered into the tiles of an epoch. A full epoch goes to threads in batches of tiles:
they drop tiles that are all fill value, compress the others, and hand them to the delivery, while
the next epoch is being filled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from types import TracebackType
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.delivery import Batch, Delivery
from weft.store.dtypes import Bytes, as_dtype
from weft.store.encoder import Chosen, Encoder
from weft.store.metadata import Metadata
from weft.store.metrics import Clock, Metrics
from weft.store.scatter import Scatter
from weft.store.sink import Lock, Sink
from weft.store.tiling import Group, Span, Tiling
from weft.values import Point

FILLED = 1 << 25
"""Bytes of tiles that are held at least; at least two epochs, and at most `MOST_POOLS`."""

MOST_POOLS = 16

BATCHED = 1 << 22
"""Bytes of tiles that a thread compresses at a time; at least one tile."""


class Epoch:
    """The tiles of an epoch that is full, and how many of its batches are not written yet."""

    def __init__(self, pool: np.ndarray[Any, Any], encoder: Encoder) -> None:
        self.pool, self.left = pool, 0
        self.chosen = Chosen(encoder, pool)


class Writer:
    """Appends frames to a sharded array; used in a `with` block, by one thread."""

    def __init__(
        self,
        sink: Sink,
        metadata: Metadata,
        shape: Sequence[int | None],
        lock: Lock,
        *,
        arrival: Point = (),
        threads: int | None = None,
    ) -> None:
        self.sink, self.metadata, self._held = sink, metadata, lock
        self.tiling = Tiling(tuple(shape), metadata.chunks, metadata.shards, arrival)
        self.dtype = as_dtype(metadata.dtype)[1]
        self._scatter = Scatter(self.tiling, self.dtype, metadata.fill)
        self._encoder = Encoder(metadata, self.dtype)
        self._clock = Clock()
        self._delivery = Delivery(sink, metadata, self.tiling, self._clock)
        self._done = 0
        """Elements that have been appended, with those that were there before."""
        self._begun = 0
        """Elements that were there before."""
        self._count = threads or min(8, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._count, "weft-store")
        self._queued = 0
        """Batches that were ever handed to threads."""
        self._waiting = 0
        """Batches that no thread has begun."""
        self._ended = 0
        """Batches that are written."""
        tile = max(1, prod(metadata.chunks) * self.dtype.itemsize)
        self._batch = max(1, BATCHED // tile)
        self._pools = min(MOST_POOLS, max(2, FILLED // max(1, self._scatter.nbytes)))
        self._made = 0
        self._free: list[np.ndarray[Any, Any]] = []
        self._pool: np.ndarray[Any, Any] | None = None
        self._turn = threading.Condition()
        self._epochs = 0
        """Epochs that are full and not written yet."""
        self._is_due = False
        """Whether an epoch was written, and nobody has seen to it that readers see it."""
        self._again: threading.Timer | None = None
        self._failed: BaseException | None = None
        self._is_told = False
        self._is_open = True

    # -- what a person calls

    def append(self, block: Any) -> None:
        """Append the next elements: frames, one frame, or lines of one.

        A block has the sizes of the array, as dimensions arrive, but for its first, and may leave
        out leading dimensions: an array of [t, y, x] takes [5, y, x], [y, x] and [3, x].
        """
        begin = time.perf_counter()
        self._check()
        values, level = self._block(np.asarray(block))
        start, stop = self._done, self._done + values.size
        while self._done < stop:
            end = self.tiling.epoch_end(self._done)
            self._fill(values, level, start, min(end, stop))
            if self._done == end:
                self._end_epoch()
        self._clock.called(time.perf_counter() - begin)

    def flush(self) -> None:
        """Wait until all that was appended is written, and let readers see it.

        Rows that are not whole are not counted in the shape. In an object store a shard cannot be
        seen before it is whole.
        """
        self._check()
        self._settle()
        more: dict[Point, tuple[Sequence[int], list[Bytes | None]]] = {}
        if self._pool is not None:
            self._scatter.clear(self._pool, self._done)
            at, _ = self.tiling.epoch(self._done - 1)
            codecs = self._encoder.suited(self._pool)
            for group in self.tiling.groups(at):
                tiles = [self._encoder.encoded(self._pool[tile], codecs) for tile in group.tiles]
                more[group.shard] = group.slots, tiles
        try:
            self._delivery.flush(self._done // max(1, self.tiling.units[0]), more)
        except OSError as error:
            self._fail(error)
            self._check()

    def close(self) -> None:
        """Write what is there, and say in the metadata how much that is."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._failed is None:
                self._end_epoch()
                self._settle()
                self._guarded(self._delivery.close, self.shape[self.tiling.dims[0]])
            if self._failed is not None and not self._is_told:
                raise self._failure() from self._failed
        finally:
            self._release()

    def abandon(self) -> None:
        """Forget what no reader sees, and let others write."""
        self._is_open = False
        self._fail(WeftError("the writer was abandoned"))
        self._release()

    def memory(self) -> int:
        """The bytes that are held at most, whatever comes: tiles, and chunks made of them."""
        chunks = 2 * self._count * min(self._batch, self.tiling.tiles) * self._encoder.most
        return self._pools * self._scatter.nbytes + chunks + self._delivery.memory

    def metrics(self) -> Metrics:
        """What was done so far, stage by stage."""
        return self._clock.metrics(
            rows=self.shape[self.tiling.dims[0]],
            safe=self.safe,
            size=(self._done - self._begun) * self.dtype.itemsize,
            epochs=self._epochs,
            batches=self._waiting,
        )

    @property
    def shape(self) -> Point:
        """The shape of what has been appended, a last row that is not whole included."""
        shape, unit = list(self.metadata.shape), self.tiling.units[0]
        shape[self.tiling.dims[0]] = -(-self._done // unit) if unit else self.tiling.sizes[0] or 0
        return tuple(shape)

    @property
    def safe(self) -> int:
        """The rows of the outermost dimension that readers see now, and after a crash."""
        rows = self._delivery.safe
        end = self.tiling.sizes[0]
        return max(self._delivery.first, rows if end is None else min(rows, end))

    def start_at(self, row: int, first: int) -> None:
        """Go on at a row where shards begin, of an array of which `first` rows are there."""
        self._begun = self._done = row * self.tiling.units[0]
        self._delivery.start_at(row, first)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- elements

    def _block(self, block: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
        """A block that can be appended, and which dimension its first one is, as they arrive."""
        name, sizes = self.metadata.dtype, self.tiling.sizes
        if block.dtype.name != name and not (name == "bfloat16" and block.dtype == self.dtype):
            raise WeftError(f"the array holds {name}, and the block {block.dtype.name}")
        if name == "bfloat16":
            block = block.view(np.uint16)
        level = len(sizes) - block.ndim
        if level < 0 or level == len(sizes) or block.shape[1:] != sizes[level + 1 :]:
            wanted = ", ".join("…" if n is None else str(n) for n in sizes)
            raise WeftError(f"a block of {list(block.shape)} does not go to frames of [{wanted}]")
        unit, most = self.tiling.units[level], self.tiling.most
        if unit and self._done % unit:
            raise WeftError(
                f"a block of {list(block.shape)} begins in the middle of what it is made of: "
                f"{self._done % unit} elements of {unit} are there"
            )
        if most is not None and self._done + block.size > most:
            row = most // max(1, unit)
            raise WeftError(f"row {row} lies behind the end of {list(sizes)}")
        return block, level

    def _fill(self, values: np.ndarray[Any, Any], level: int, start: int, stop: int) -> None:
        """Put elements that lie in one epoch into its tiles."""
        pool = self._taken()
        with self._clock.stage("scatter", (stop - self._done) * self.dtype.itemsize):
            for span in self.tiling.spans(self._done, stop):
                self._scatter.put(pool, span, self._part(values, level, start, span))
                self._done += span.steps * self.tiling.units[span.level]

    def _part(
        self, values: np.ndarray[Any, Any], level: int, start: int, span: Span
    ) -> np.ndarray[Any, Any]:
        """The elements of a span, of a block that began at an element; never a copy."""
        sizes, units = self.tiling.sizes, self.tiling.units
        at = self._done - start
        if level > span.level:
            rows = span.steps * units[span.level] // units[level]
            first = at // units[level]
            inner = (n or 0 for n in sizes[span.level + 1 :])
            return values[first : first + rows].reshape(span.steps, *inner)
        place = [at // units[level]]
        for n in range(level + 1, span.level + 1):
            place.append(at // units[n] % (sizes[n] or 1))
        *lead, row = place
        where: tuple[Any, ...] = (*lead, slice(row, row + span.steps))
        part: np.ndarray[Any, Any] = values[where]
        return part

    def _taken(self) -> np.ndarray[Any, Any]:
        """The tiles that are filled now; others, once some are free."""
        if self._pool is None:
            begin = time.perf_counter()
            with self._turn:
                while not self._free and self._made == self._pools and self._failed is None:
                    self._turn.wait()
                self._pool = self._free.pop() if self._free else None
            self._clock.waited += time.perf_counter() - begin
            self._check()
            if self._pool is None:
                self._made += 1
                self._pool = self._scatter.pool()
        return self._pool

    # -- epochs

    def _end_epoch(self) -> None:
        """Hand the tiles over, and go on with others."""
        if self._pool is None:
            return
        self._scatter.clear(self._pool, self._done)
        epoch, self._pool = Epoch(self._pool, self._encoder), None
        at, _ = self.tiling.epoch(self._done - 1)
        jobs = [
            (Group(group.shard, group.tiles[n:end], group.slots[n:end]))
            for group in self.tiling.groups(at)
            for n in range(0, len(group.tiles), self._batch)
            for end in [n + self._batch]
        ]
        epoch.left = len(jobs)
        with self._turn:
            self._epochs += 1
        for group in jobs:
            number = self._delivery.issue(group.shard)
            with self._turn:
                self._waiting += 1
            self._threads.submit(self._guarded, self._compress, epoch, group, number, self._queued)
            self._queued += 1

    def _compress(self, epoch: Epoch, group: Group, number: int, turn: int) -> None:
        """Compress some tiles of a shard, and hand them over.

        A thread waits while too many batches are not written. The first of these never waits, for
        all before it are written; the others cannot hold it up.
        """
        with self._turn:
            self._waiting -= 1
            while turn >= self._ended + 2 * self._count and self._failed is None:
                self._turn.wait()
        if self._failed is not None:
            return
        size = len(group.tiles) * self._scatter.nbytes // max(1, self.tiling.tiles)
        with self._clock.stage("compress", size):
            codecs = epoch.chosen.codecs()
            chunks = [self._encoder.encoded(epoch.pool[tile], codecs) for tile in group.tiles]

        written = partial(self._written, epoch)
        self._delivery.take(Batch(group.shard, number, group.slots, chunks, written))
        with self._turn:
            is_due, self._is_due = self._is_due, False
        if is_due:
            self._show()

    def _written(self, epoch: Epoch) -> None:
        """One batch of an epoch is written; with the last one its tiles are free."""
        with self._turn:
            self._ended += 1
            epoch.left -= 1
            if not epoch.left:
                self._free.append(epoch.pool)
                self._epochs -= 1
                self._is_due = True
            self._turn.notify_all()

    def _show(self) -> None:
        """Let readers see what is there, now or later."""
        delay = self._delivery.show(is_idle=self._epochs == 0)
        with self._turn:
            if delay is not None and self._is_open and self._again is None:
                self._again = threading.Timer(delay, self._show_again)
                self._again.daemon = True
                self._again.start()

    def _show_again(self) -> None:
        with self._turn:
            self._again = None
            if not self._is_open:
                return
        self._guarded(self._show)

    def _settle(self) -> None:
        """Until all epochs that are full are written."""
        with self._turn:
            while self._epochs and self._failed is None:
                self._turn.wait()
        if self._failed is not None:
            raise self._failure() from self._failed

    # -- what can go wrong

    def _guarded(self, work: Any, *given: Any) -> None:
        """Do work; what it fails with is said at the next `append`, `flush` or `close`."""
        try:
            work(*given)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._turn:
            self._failed = self._failed or error
            self._turn.notify_all()

    def _failure(self) -> WeftError:
        dim, before = self.tiling.dims[0], " before, and nothing can be appended"
        told, self._is_told = before if self._is_told else "", True
        return WeftError(
            f"{self.sink.url}: writing failed{told}: {self._failed}; {self.safe} of "
            f"{self.shape[dim]} frames along dimension {dim} are safe",
            hint="what is visible is whole; go on with open(url, mode='a') once the cause is gone",
        )

    def _check(self) -> None:
        if not self._is_open:
            raise WeftError(f"{self.sink.url} is closed: nothing can be appended")
        if self._failed is not None:
            raise self._failure() from self._failed

    def _release(self) -> None:
        """Stop threads, forget what is not whole, and let others write."""
        with self._turn:
            if self._again is not None:
                self._again.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._delivery.drop()
        self._held.release()
