"""`Pipeline`: from elements to chunks of shards; `CpuPipeline` runs on threads.

Elements are scattered into the tiles of an epoch. A full epoch goes to threads in batches of tiles:
they drop tiles that are all fill value, encode the others, and pass them to the assembler, while
the next epoch is being filled.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from itertools import chain, islice
from math import ceil, prod
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from weft.errors import WeftError
from weft.store import native
from weft.store.assembler import ChunkBatch, Publisher, ShardAssembler, workers_for
from weft.store.buffers import BUFFERS, MemoryUse
from weft.store.chunk_layout import FrameLayout, ShardTiles, Slab
from weft.store.codecs import EncodedChunks, stored_size
from weft.store.encoder import ChunkEncoder, CodecChoice
from weft.store.files import Folder
from weft.store.metrics import Clock
from weft.store.scatter import Block, Scatter, Tiles
from weft.store.threads import CORES, Workers, is_worker, uninterrupted
from weft.values import Point

POOL_BYTES = 1 << 25 if CORES <= 8 else 1 << 26
"""Bytes of tiles that are buffered, in at least two epochs and at most `MAX_EPOCHS`."""

MAX_EPOCHS = 16

AHEAD_BYTES = 3 << 23
"""Bytes of tiles that are buffered beside a large epoch, whose rows are kept apart."""

BATCH = 1 << 22
"""Bytes of tiles that a thread encodes at a time; at least one tile."""

MAX_THREADS = 12
"""The most threads that encode, unless a number is given."""

BUSY = 0.75
"""The part of the time that threads encode, if there are enough of them."""

SHORT = 1e-3
"""Seconds that a frame may wait for the threads without more of them being started."""

MANY_TILES = 32
"""Tiles of an epoch from which codecs are tuned for each epoch, and not for a row of shards."""

MIN_TOGETHER = 1 << 19
"""Bytes of an epoch from which it pays to let interrupts wait: that takes some microseconds."""

MAX_LOST = 5.0
"""Seconds to wait for threads that an interrupt may have kept from being started."""

Values: TypeAlias = np.ndarray[Any, Any]
T = TypeVar("T")


class Pipeline(ABC):
    """Makes chunks of elements. One thread calls it; what fails in other threads is its `error`."""

    def __init__(self, assembler: ShardAssembler) -> None:
        self.assembler = assembler
        self.error: BaseException | None = None
        self.epochs = 0
        """Epochs that are full and not written yet."""
        self._turn = threading.Condition()
        self._free: list[Any] = []
        """Buffers for epochs that are not in use."""
        self._has_news = False
        """Whether epochs were written since shards were last published."""
        self._publisher = Publisher(assembler, self._is_idle, self._guarded)

    def _is_idle(self) -> bool:
        """Return whether there is nothing to do but to publish."""
        return self.epochs == 0

    @property
    def waiting(self) -> int:
        """Batches that no thread has begun."""
        return 0

    @property
    @abstractmethod
    def memory(self) -> MemoryUse:
        """The most bytes that it buffers."""

    @abstractmethod
    def asarray(self, block: Any) -> Any:
        """Return a block as an array, where the pipeline reads it."""

    def to_device(self, block: Any) -> tuple[Any, bool]:
        """Return a block on the pipeline's device, and whether it is a copy."""
        return self.asarray(block), False

    def put_epochs(self, values: Any, done: int) -> int:
        """Take whole epochs at once, where that is faster; return the number of elements taken.

        `done` elements came before; an epoch begins there.
        """
        return 0

    def skip_epoch(self, done: int) -> bool:
        """Take a whole epoch that is all fill value, where that is faster; `done` is its end."""
        return False

    @abstractmethod
    def put(self, slab: Slab, values: Any) -> None:
        """Take the next elements of an epoch; may wait for a free buffer."""

    def forget(self, done: int) -> bool:
        """Forget elements of an epoch that were put after `done` ones; False if it cannot."""
        return False

    def together(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function; an interrupt waits for its end, where an epoch is worth that time."""
        return work(*arguments)

    def keep(self) -> None:  # noqa: B027 - nothing to do where elements are copied
        """Keep using blocks that were put: their owner changes none of them before `release`."""

    def release(self) -> None:  # noqa: B027
        """Wait until no block that was put is needed any more."""

    @abstractmethod
    def end_epoch(self, done: int) -> None:
        """Pass on the epoch whose last element came; `done` elements came in all."""

    @abstractmethod
    def partial_epoch(self, done: int) -> Mapping[Point, tuple[Sequence[int], EncodedChunks]]:
        """Return the slots and chunks, by shard, of an epoch that is not full; it stays open."""

    def settle(self) -> None:
        """Wait until all full epochs are written, or something failed."""
        with self._turn:
            while self.epochs and self.error is None:
                self._turn.wait()

    @abstractmethod
    def stop(self) -> None:
        """Stop all threads; what they have not written is lost."""

    def fail(self, error: BaseException) -> None:
        """Keep an error for the thread that appends, and wake all that wait."""
        with self._turn:
            self.error = self.error or error
            self._turn.notify_all()

    def _assemble(self, batch: ChunkBatch) -> None:
        """Pass chunks to their shard, and publish what was written meanwhile."""
        self.assembler.add(batch)
        with self._turn:
            has_news, self._has_news = self._has_news, False
        if has_news:
            self._publisher.publish()

    def _give_back(self, buffer: Any, epochs: int) -> None:
        """Reuse the buffer of epochs that are written; the caller holds the condition."""
        self._free.append(buffer)
        self.epochs -= epochs
        self._has_news = True

    def _start(
        self, threads: Executor | Workers, work: Callable[..., None], *arguments: Any
    ) -> None:
        """Run work on a thread, or here while the interpreter ends and no thread can be started."""
        try:
            threads.submit(self._guarded, work, *arguments)
        except RuntimeError:
            self._guarded(work, *arguments)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.fail(error)


def create_pipeline(device: str, *arguments: Any, **options: Any) -> Pipeline:
    """Return the pipeline of a device."""
    if device == "cpu":
        return CpuPipeline(*arguments, **options)
    if device == "cuda":
        gpu: Any = import_module("weft.store.cuda.pipeline")  # needs CuPy
        pipeline: Pipeline = gpu.GpuPipeline(*arguments, **options)
        return pipeline
    raise WeftError(f"device: {device!r} is neither cpu nor cuda")


class Batch(NamedTuple):
    """Some tiles of an epoch that belong to one shard."""

    epoch: FullEpoch
    tiles: ShardTiles
    number: int
    """Its number among the batches of the shard."""


class FullEpoch:
    """The tiles of a full epoch, and what is left to do of its batches."""

    def __init__(self, tiles: Tiles, choice: CodecChoice, batches: Sequence[set[int]]) -> None:
        self.tiles, self.choice = tiles, choice
        self.unwritten = len(batches)
        self.unread = Counter(band for bands in batches for band in bands)
        """For each band the batches that still need its blocks."""


class CpuPipeline(Pipeline):
    """The pipeline of a CPU: tiles in memory, encoded by threads."""

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
        if by is not None:
            raise WeftError(f"encoder: {by!r} is for device='cuda'")
        self.layout, self.encoder, self.clock = layout, encoder, clock
        self.scatter = Scatter(layout, encoder.dtype, encoder.metadata.fill)
        self._is_large = self.scatter.nbytes >= MIN_TOGETHER
        self._is_alone = threads is not None or native.compiled() is None
        """Whether a thread encodes a batch by itself, without those of compiled code."""
        is_local = isinstance(assembler.sink, Folder)  # others are waited for
        few = is_local and not self._is_alone
        self._count = threads or (native.CALLERS if few else min(MAX_THREADS, CORES))
        size = prod(layout.chunks) * encoder.dtype.itemsize
        self._is_compressed = stored_size(encoder.metadata.codecs, size) is None
        """Whether tiles are not needed any more once they are encoded."""
        self._threads = workers_for(assembler.sink, threads or 0)
        self._batch = max(1, BATCH // max(1, size))
        self._max_rows = self._allowed_rows(epochs)
        """Rows of blocks that may be in memory, one block for each band."""
        self._rows = 0
        """Rows of blocks that are in memory."""
        self._may_add = False
        """Whether one of these rows is not allocated yet."""
        BUFFERS.open()
        self._tiles: Tiles | None = None
        """The tiles that are being filled."""
        self._epoch: Point = ()
        """The epoch of the elements that were put last; none if they do not count."""
        self._batches: deque[Batch] = deque()
        """Batches that no thread has begun."""
        self._running = 0
        """Threads that encode."""
        self._unwritten = 0
        """Batches that threads have begun and that are not written yet."""
        self._last_choice: tuple[int, CodecChoice] | None = None
        """The codecs that were tuned last, and for which row of shards."""
        self._per_epoch = 1
        """Batches of an epoch."""
        self._batch_seconds = self._epoch_seconds = 0.0
        """How long a batch takes a thread, and how long an epoch to come; 0 if not known."""
        self._last_end = time.perf_counter()
        self._is_behind = False
        """Whether a frame had to wait for the threads, or all that came should be written now."""

    def _is_idle(self) -> bool:
        """Return whether no writer that shares its threads has anything to do but to publish."""
        return self.epochs == 0 and not self._threads.is_contended

    @property
    def waiting(self) -> int:
        """Batches that no thread has begun."""
        return len(self._batches)

    def _allowed_rows(self, epochs: int | None) -> int:
        """Return how many rows of blocks may be in memory: an epoch, and some for the next ones."""
        pieces, row = self.scatter.pieces, max(1, self.scatter.row_nbytes)
        if epochs is not None:
            return max(2, epochs) * pieces
        if self.scatter.is_apart:
            return pieces + max(2, AHEAD_BYTES // row)
        return max(2, min(MAX_EPOCHS, POOL_BYTES // row))

    @property
    def memory(self) -> MemoryUse:
        """The bytes of tiles, and of chunks that are not written yet."""
        tiles = self.scatter.nbytes
        encoded = self._max_unwritten * self._batch_memory
        return MemoryUse(tiles, self._max_rows * self.scatter.row_nbytes - tiles, encoded)

    @property
    def _max_unwritten(self) -> int:
        return 3 * self._count // 2 + 1 if self._is_alone else self._count + 2

    @property
    def _batch_memory(self) -> int:
        """The bytes that encoding a batch takes."""
        epochs = 1 if self._is_alone else self._max_rows
        return min(self._batch, epochs * self.layout.tiles_per_epoch) * self.encoder.extra_nbytes

    # -- tiles

    def asarray(self, block: Any) -> Values:
        """Return a block in the memory of the host."""
        if hasattr(block, "__dlpack__") and not hasattr(block, "__array__"):
            return np.from_dlpack(block)
        return np.asarray(block)

    def put(self, slab: Slab, values: Values) -> None:
        """Scatter the next elements of an epoch."""
        axis = self.layout.buffered_axis
        self._epoch = (*slab.start[:axis], slab.start[axis] // self.layout.ordered_chunks[axis])
        for row, part, some in self.scatter.rows(slab, values):
            tiles = self._tiles_with(row)
            if tiles is None:
                return
            with self.clock.stage("scatter", some.nbytes):
                self.scatter.put(tiles, part, some)

    def together(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function; an interrupt waits for its end, unless epochs are small."""
        return uninterrupted(work, *arguments) if self._is_large else work(*arguments)

    def forget(self, done: int) -> bool:
        """Put the next elements in their place."""
        if not done or self.layout.epoch_end(done - 1) == done:
            self._epoch = ()  # the tiles, if there are some, are for the next one
        return True

    def skip_epoch(self, done: int) -> bool:
        """Pass on the slots of an epoch without chunks."""
        at, _ = self.layout.epoch_of(done - 1)
        batches = []
        for each in self.layout.shard_tiles(at):
            number = self.assembler.issue(each.shard)
            empty = EncodedChunks.of([None] * len(each.slots))
            batches.append(ChunkBatch(each.shard, number, each.slots, empty, lambda: None))
        self.assembler.mark(done)
        for batch in batches:
            self._guarded(self.assembler.add, batch)
        with self._turn:
            self._has_news = True
        return True

    def settle(self) -> None:
        """Wait until all full epochs are written, on all threads."""
        uninterrupted(self._hurry)
        super().settle()

    def _hurry(self) -> None:
        """Start all threads that have something to do."""
        with self._turn:
            self._is_behind = True
            more = self._more_threads()
        self._start_threads(more)

    def _tiles_with(self, row: int) -> Tiles | None:
        """Return the tiles that are being filled, with blocks for a row; None after a failure."""
        tiles = self._tiles = self._tiles or self.scatter.tiles()
        while len(tiles.blocks[0]) <= row:
            if not self._wait_for_blocks():
                return None
            self.together(self._add_blocks, tiles)
        return tiles

    def _wait_for_blocks(self) -> bool:
        """Wait until there is a block for each band, or may be; False after a failure."""
        begin = time.perf_counter()
        with self._turn:
            while len(self._free) < self.scatter.bands and not self._may_add:
                if self.error is not None:
                    return False
                if self._rows == self._max_rows or not self.together(self._may_allocate):
                    self._wait()
        waited = time.perf_counter() - begin
        self.clock.waited += waited
        self._is_behind = waited > SHORT
        return True

    def _add_blocks(self, tiles: Tiles) -> None:
        """Add blocks to tiles: free ones, or new ones that are counted already."""
        count = self.scatter.bands
        with self._turn:
            found: Sequence[Block] = self._free[-count:]
            if len(found) == count:
                del self._free[-count:]
            else:
                found, self._may_add = (), False
        self.scatter.add(tiles, found or self.scatter.blocks())

    def _may_allocate(self) -> bool:
        """Count another row of blocks, if there may be one; the caller holds the condition."""
        row = self.scatter.row_nbytes
        if not BUFFERS.take(row, self._rows * row, self.scatter.nbytes):
            return False
        self._rows += 1
        self._may_add = True
        return True

    def _wait(self) -> None:
        """Wait until something is written; the caller holds the condition.

        A thread that all writers share encodes a batch instead: others may wait for that thread.
        """
        if not is_worker() or not self._batches or self._unwritten == self._max_unwritten:
            self._turn.wait()
            return
        self._running += 1
        self._turn.release()
        try:
            self._guarded(self._help)
        finally:
            self._turn.acquire()

    def _help(self) -> None:
        if self._work_once():
            with self._turn:
                self._running -= 1
                self._turn.notify_all()

    def partial_epoch(self, done: int) -> Mapping[Point, tuple[Sequence[int], EncodedChunks]]:
        """Return the chunks of an epoch that is not full, as if no more came."""
        tiles = self._cleared_tiles(done)
        if tiles is None:
            return {}
        epoch, _ = self.layout.epoch_of(done - 1)
        codecs = self.encoder.tuned_codecs(tiles)
        return {
            each.shard: (
                each.slots,
                EncodedChunks.of([self.encoder.encode(tiles[n], codecs) for n in each.tiles]),
            )
            for each in self.layout.shard_tiles(epoch)
        }

    def _cleared_tiles(self, done: int) -> Tiles | None:
        """Return the tiles that are being filled, with the fill value after the last element.

        None if there are none: those of a later epoch are left by a frame that was interrupted.
        """
        if self._tiles is None or self.layout.epoch_of(done - 1)[0] != self._epoch:
            return None
        tiles = self._tiles_with(self.scatter.pieces - 1)
        if tiles is not None:
            self.scatter.clear(tiles, done)
        return tiles

    def end_epoch(self, done: int) -> None:
        """Pass the tiles to threads, and go on with others."""
        tiles = self._cleared_tiles(done)
        if tiles is None:
            return
        at, _ = self.layout.epoch_of(done - 1)
        shards = list(self.layout.shard_tiles(at))
        batches = [  # the first of every shard first: they can be written at the same time
            ShardTiles(each.shard, each.tiles[n:end], each.slots[n:end])
            for n in range(0, max(len(each.tiles) for each in shards), self._batch)
            for end in [n + self._batch]
            for each in shards
            if n < len(each.tiles)
        ]
        bands = [self.scatter.bands_of(each.tiles) for each in batches]
        epoch = FullEpoch(tiles, self._choice(at, tiles), bands)
        self._tiles, self._per_epoch = None, len(batches)
        now = time.perf_counter()
        self._epoch_seconds, self._last_end = now - self._last_end, now
        issued = [Batch(epoch, each, self.assembler.issue(each.shard)) for each in batches]
        self.assembler.mark(done)  # before a thread may have written all of them
        with self._turn:
            self.epochs += 1
            self._batches.extend(issued)
            more = self._more_threads()
        self._start_threads(more)

    def _choice(self, at: Point, tiles: Tiles) -> CodecChoice:
        """Return the codecs of an epoch; where it has few tiles, those of the first in its row.

        Threads begin with the first epoch: they tune before its tiles are reused.
        """
        row = at[0] // self.layout.slot_grid.counts[self.layout.append_axis]
        if (
            self._last_choice is None
            or self._last_choice[0] != row
            or self.layout.tiles_per_epoch >= MANY_TILES
        ):
            self._last_choice = row, CodecChoice(self.encoder, tiles)
        return self._last_choice[1]

    # -- on threads

    def _more_threads(self) -> int:
        """Count threads that have something to do as running; the caller holds the condition.

        Batches are begun in order, and no more than a certain number before they are written. All
        before the first of these are written: it need not wait, and the others cannot block it.
        """
        may_begin = min(len(self._batches), self._max_unwritten - self._unwritten)
        useful = may_begin - self._running
        if self._is_alone:  # a thread that takes the next batch as well saves a start
            useful = (useful + 1) // 2
        more = max(0, min(self._enough - self._running, useful))
        self._running += more
        return more

    @property
    def _enough(self) -> int:
        """The threads that keep up with the frames; each more takes time of the others."""
        is_late = self._is_behind or len(self._batches) > 2 * self._per_epoch
        if is_late or not self._batch_seconds or not self._epoch_seconds:
            return self._count
        needed = self._per_epoch * self._batch_seconds / self._epoch_seconds / BUSY
        return min(self._count, ceil(needed))

    def _start_threads(self, count: int) -> None:
        for _ in range(count):
            self._start(self._threads, self._work)

    def _work(self) -> None:
        """Encode one batch after the other, while some may be begun and no other writer waits."""
        while self._work_once():
            if self._threads.is_contended:
                self._start(self._threads, self._work)
                return

    def _work_once(self) -> bool:
        """Encode a batch, or some; without one, return False."""
        try:
            begun = self._begin_batches()
            if begun:
                self._encode(begun)
            return bool(begun)
        except BaseException:
            with self._turn:
                self._running -= 1
                self._turn.notify_all()
            raise

    def _begin_batches(self) -> Sequence[Batch]:
        """Return the next batch; without one, the thread counts as idle under the same lock.

        Where batches are small and several epochs wait, others of the same shard come with it.
        """
        with self._turn:
            may_begin = self._unwritten < self._max_unwritten and self.error is None
            if not self._batches or not may_begin:
                self._running -= 1
                self._turn.notify_all()
                return ()
            self._unwritten += 1
            first = self._batches.popleft()
            found, room = [first], self._batch // max(1, len(first.tiles.tiles)) - 1
            if room and self.epochs > 1 and not self._is_alone:
                found += islice(self._next_of_shard(first), room)
                for batch in found[1:]:
                    self._batches.remove(batch)
            return found

    def _next_of_shard(self, last: Batch) -> Iterator[Batch]:
        """Yield the batches that follow one in its shard and have the same codecs."""
        for batch in self._batches:
            if batch.tiles.shard == last.tiles.shard:
                is_next = batch.number == last.number + 1  # skipped frames have numbers as well
                if not is_next or batch.epoch.choice is not last.epoch.choice:
                    return
                yield batch
                last = batch

    def _encode(self, batches: Sequence[Batch]) -> None:
        """Encode tiles of a shard, and pass them on."""
        begin = time.perf_counter()
        memory = BUFFERS.memory(self._batch_memory)
        groups = [(epoch.tiles, tiles.tiles) for epoch, tiles, _ in batches]
        size = batches[0].epoch.tiles.nbytes
        with self.clock.stage("compress", size * sum(len(numbers) for _, numbers in groups)):
            codecs = batches[0].epoch.choice.codecs()
            chunks = self.encoder.encode_tiles(groups, codecs, memory, is_alone=self._is_alone)
        if self._is_compressed:
            with self._turn:
                self._free_blocks(batches)
        slots = list(chain.from_iterable(batch.tiles.slots for batch in batches))
        written = partial(self._written, batches, memory)
        shard, number = batches[0].tiles.shard, batches[0].number
        self._assemble(ChunkBatch(shard, number, slots, chunks, written, len(batches)))
        taken = (time.perf_counter() - begin) / len(batches)
        self._batch_seconds += (taken - self._batch_seconds) / (8 if self._batch_seconds else 1)

    def _written(self, batches: Sequence[Batch], memory: Values) -> None:
        """Count batches that are written."""
        BUFFERS.keep(memory)
        with self._turn:
            if not self._is_compressed:  # the tiles themselves were written
                self._free_blocks(batches)
            self._unwritten -= 1
            for epoch, _, _ in batches:
                epoch.unwritten -= 1
                if not epoch.unwritten:
                    self.epochs -= 1
                    self._has_news = True
                    self._turn.notify_all()
            more = self._more_threads()
        self._start_threads(more)

    def _free_blocks(self, batches: Sequence[Batch]) -> None:
        """Free the blocks of bands that no batch needs any more; the condition is held."""
        for epoch, tiles, _ in batches:
            for band in self.scatter.bands_of(tiles.tiles):
                epoch.unread[band] -= 1
                if not epoch.unread[band]:
                    self._free += epoch.tiles.blocks[band]
                    self._turn.notify_all()
        row = self.scatter.row_nbytes
        if not self.scatter.is_apart and BUFFERS.is_scarce(self._rows * row):
            BUFFERS.give_back(len(self._free) * row)
            self._rows -= len(self._free)
            self._free.clear()

    def stop(self) -> None:
        """Wait until no thread works for it, and free its memory."""
        self._publisher.stop()
        with self._turn:
            self._batches.clear()
            is_interrupted = self.error is not None and not isinstance(self.error, Exception)
            while self._running and self._turn.wait(MAX_LOST if is_interrupted else None):
                pass
            BUFFERS.give_back(self._rows * self.scatter.row_nbytes)
            self._rows = 0
            self._free.clear()
            self._tiles = None
        BUFFERS.close()
