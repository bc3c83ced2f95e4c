"""`Delivery`: compressed tiles to shards, whoever compressed them, and what readers see of that.

Batches of a shard are put into it in the order in which their epochs came, however threads run. A
shard is seen when it is whole, or as far as it goes when it is published. The metadata follow:
their shape counts the rows of which every chunk can be read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.store.dtypes import Bytes, Pieces
from weft.store.index import Index, length
from weft.store.metadata import Metadata
from weft.store.metrics import Clock
from weft.store.sink import Sink, Upload
from weft.store.tiling import Tiling
from weft.values import Point


class Packed(NamedTuple):
    """Chunks that lie one behind the other already."""

    data: Bytes
    sizes: np.ndarray[Any, Any]
    """The bytes of each; 0 for one that is all fill value."""


Chunks: TypeAlias = Sequence[Pieces | None] | Packed
"""The bytes of chunks, None for one that is all fill value."""

SHARE = 0.02
"""The part of the time that may go into showing shards that are not whole yet."""

QUICK = 0.02
"""Seconds of showing that nobody minds while there is nothing else to do."""


class Batch(NamedTuple):
    """Chunks of one shard, one behind the other."""

    shard: Point
    number: int
    """Of the batches of this shard."""
    slots: Sequence[int] | np.ndarray[Any, Any]
    chunks: Chunks
    written: Callable[[], None]
    """Called when the chunks are no longer needed."""


@dataclass(slots=True)
class Shard:
    """A shard that is being written: what is there, and which batch comes next."""

    at: Point
    key: str
    index: Index
    expected: int
    """How many chunks come, those that are all fill value included."""
    per_row: int
    """How many of them come for every chunk along the outermost dimension."""
    end: int
    """Where the next chunk goes."""
    upload: Upload | None = None
    """None as long as there is no chunk that is stored."""
    issued: int = 0
    next: int = 0
    seen: int = 0
    shown: int = 0
    """The rows, counted from the array's first, that readers see in this shard."""
    is_busy: bool = False
    """Whether a thread is putting batches into it, and will take those that come meanwhile."""
    ready: dict[int, Batch] = field(default_factory=dict)


class Delivery:
    """All shards of an array that are begun, and the metadata."""

    def __init__(self, sink: Sink, metadata: Metadata, tiling: Tiling, clock: Clock) -> None:
        self.sink, self.metadata, self.tiling, self.clock = sink, metadata, tiling, clock
        self.safe = 0
        """The rows of the outermost dimension that the metadata say are there."""
        self._rows = 0
        """The rows that can be seen, with all before them."""
        self.first = 0
        """The rows that were there before, of an array that is continued."""
        self._dim = tiling.dims[0]
        self._head = length(tiling.slots) if metadata.index_location == "start" else 0
        self._shards: dict[Point, Shard] = {}
        self._shown: dict[int, dict[Point, int]] = {}
        """For every row of shards the rows that readers see in each."""
        self._lock = threading.Condition()
        self._telling = threading.Lock()
        self._shows = True

    @property
    def memory(self) -> int:
        """The bytes that shards hold while they are written; two rows of them may be begun."""
        return 2 * self.tiling.across * (64 * self.tiling.slots + self.sink.held)

    def start_at(self, row: int, first: int) -> None:
        """Go on at a row where shards begin, of an array of which `first` are there."""
        self._rows, self.first, self.safe = row, first, first

    def issue(self, at: Point) -> int:
        """The number of the next batch of a shard."""
        with self._lock:
            shard = self._shards.get(at) or self._begin(at)
            shard.issued += 1
            return shard.issued - 1

    def _begin(self, at: Point) -> Shard:
        low = at[self._dim] * self.metadata.shards[self._dim]
        shard = Shard(
            at,
            self.metadata.key(at),
            Index.empty(self.tiling.slots),
            self.tiling.expected(at),
            self.tiling.expected(at, low + self.metadata.chunks[self._dim]),
            self._head,
        )
        self._shards[at] = shard
        return shard

    # -- batches

    def take(self, batch: Batch) -> None:
        """Put a batch into its shard, or leave it to the thread that is at it."""
        with self._lock:
            shard = self._shards[batch.shard]
            shard.ready[batch.number] = batch
            if shard.is_busy:
                return
            shard.is_busy = True
        self._drain(shard)

    def _drain(self, shard: Shard) -> None:
        """Put all batches that are ready into a shard, and leave it; the last makes it whole."""
        try:
            while (batch := self._next(shard)) is not None:
                self._put(shard, batch)
                if shard.seen == shard.expected:
                    self._finish(shard)
                batch.written()
        except BaseException:
            self._leave(shard)
            raise

    def _next(self, shard: Shard) -> Batch | None:
        """The batch that comes next; where it is not there yet, the shard is left at once.

        Whoever brings it then finds that nobody is at the shard, and not a moment later.
        """
        with self._lock:
            batch = shard.ready.pop(shard.next, None)
            if batch is None:
                self._leave(shard)
            else:
                shard.next += 1
            return batch

    def _leave(self, shard: Shard) -> None:
        """Let others be at a shard."""
        with self._lock:
            shard.is_busy = False
            self._lock.notify_all()

    def _put(self, shard: Shard, batch: Batch) -> None:
        stored = _buffers(batch.chunks)
        size = sum(map(len, stored))
        if stored:
            upload = shard.upload = shard.upload or self.sink.upload(shard.key, self._head)
            with self.clock.stage("write", size):
                upload.append(stored)
        shard.end = _place(shard.index, shard.end, batch.slots, batch.chunks)
        with self._lock:
            shard.seen += len(batch.slots)
            self.clock.stored += size

    def _finish(self, shard: Shard) -> None:
        """Let a whole shard be seen.

        One without chunks is an index alone, or nothing where the array does not store every shard.
        """
        self._open(shard)
        index = shard.index.to_bytes() if shard.upload is not None else b""
        if shard.upload is not None:
            with self.clock.stage("write", len(index)):
                shard.upload.finish(index)
        with self._lock:
            self.clock.stored += len(index)
            self._shards.pop(shard.at, None)
            shard.upload = None
        row = shard.at[self._dim]
        self._note(shard, (row + 1) * self.metadata.shards[self._dim])

    # -- what readers see

    def _note(self, shard: Shard, rows: int) -> None:
        """Readers see so many rows in a shard; say so once they do in all beside it."""
        size = self.metadata.shards[self._dim]
        with self._lock:
            shard.shown = rows
            self._shown.setdefault(shard.at[self._dim], {})[shard.at] = rows
            while True:
                row = self._rows // size
                states = self._shown.get(row, {})
                if len(states) < self.tiling.across:
                    break
                self._rows = max(self._rows, min(states.values()))
                if self._rows < (row + 1) * size:
                    break
                del self._shown[row]
            rows = self._rows
        self.describe(rows)

    def describe(self, rows: int) -> None:
        """Write the metadata of an array of so many rows; never fewer than were there."""
        end = self.tiling.sizes[0]
        rows = max(self.first, rows if end is None else min(rows, end))
        with self._telling:
            if rows > self.safe:
                self._tell(rows)

    def _tell(self, rows: int) -> None:
        shape = list(self.metadata.shape)
        shape[self._dim] = rows
        with self.clock.stage("publish", 0):
            text = replace(self.metadata, shape=tuple(shape)).to_json()
            self.sink.put("zarr.json", text.encode())
        self.safe = rows

    def show(self, *, is_idle: bool) -> float | None:
        """Let readers see what shards have that are not whole, if that costs little.

        The seconds after which it may be tried again, if it would cost too much now.
        """
        if not self._shows:
            return None
        with self._lock:
            begun = [shard for shard in self._shards.values() if self._complete(shard)]
        if not begun:
            return None
        spent, elapsed = self.clock.spent("publish"), self.clock.elapsed
        rate = (spent.bytes + 1e6) / (spent.seconds + 1e-3)  # 1 GB/s, before anything is known
        cost = sum(shard.end for shard in begun) / rate
        if not (is_idle and cost <= QUICK) and spent.seconds + cost > SHARE * elapsed:
            return (spent.seconds + cost) / SHARE - elapsed
        for shard in begun:
            self._show(shard)
        return None

    def _complete(self, shard: Shard) -> int:
        """How many rows a shard has of which readers see none yet; 0 while it has fewer."""
        low = shard.at[self._dim] * self.metadata.shards[self._dim]
        rows = low + shard.seen // shard.per_row * self.metadata.chunks[self._dim]
        kept = min(self.first, low + self.metadata.shards[self._dim])
        return rows if rows > max(shard.shown, kept, low) else 0

    def _show(self, shard: Shard) -> None:
        """Publish one shard, unless a thread is at it."""
        with self._lock:
            if shard.is_busy or shard.at not in self._shards:
                return
            shard.is_busy = True
        try:
            rows = self._complete(shard)
            if rows and self._publish(shard, shard.index, ()):
                self._note(shard, rows)
        except BaseException:
            self._leave(shard)
            raise
        self._drain(shard)

    def _open(self, shard: Shard) -> None:
        """Begin the upload of a shard that is to be seen, even without chunks."""
        if shard.upload is None and self.metadata.stores_every_shard:
            shard.upload = self.sink.upload(shard.key, self._head)

    def _publish(self, shard: Shard, index: Index, more: Sequence[Bytes]) -> bool:
        self._open(shard)
        if shard.upload is not None:
            with self.clock.stage("publish", shard.end):
                self._shows = shard.upload.publish(more, index.to_bytes())
        return self._shows

    # -- in the end, or as if it were

    def flush(self, rows: int, more: Mapping[Point, tuple[Sequence[int], Chunks]]) -> None:
        """Let readers see all there is, `more` chunks of an epoch that is not full included.

        No batch may be under way.
        """
        with self._lock:
            for at in more:
                if at not in self._shards:
                    self._begin(at)
        for shard in self._each():
            slots, chunks = more.get(shard.at, ((), ()))
            stored = _buffers(chunks)
            if stored and shard.upload is None:
                shard.upload = self.sink.upload(shard.key, self._head)
            index = Index(shard.index.offsets[:], shard.index.sizes[:])
            _place(index, shard.end, slots, chunks)
            if not self._publish(shard, index, stored):
                return
            shard.shown = max(shard.shown, rows)
        with self._lock:
            self._rows = max(self._rows, rows)
        self.describe(rows)

    def close(self, rows: int) -> None:
        """Let readers see shards that stay short, and say how many rows there are."""
        if self.metadata.stores_every_shard:
            self._begin_rest(rows)
        for shard in self._each():
            self._finish(shard)
        with self._telling:
            self._tell(max(self.first, rows))

    def _begin_rest(self, rows: int) -> None:
        """Begin the shards inside of so many rows to which nothing has come."""
        size, counts = self.metadata.shards[self._dim], self._counts
        with self._lock:
            for row in range(self._rows // size, -(-rows // size)):
                there = self._shown.get(row, {})
                for at in product(*counts[: self._dim], [row], *counts[self._dim + 1 :]):
                    if at not in there and at not in self._shards:
                        self._begin(at)

    @property
    def _counts(self) -> list[range]:
        """Which shards there are along each dimension; the outermost one is left to the caller."""
        sizes = zip(self.metadata.shape, self.metadata.shards)
        return [range(-(-n // s)) for n, s in sizes]

    def drop(self) -> None:
        """Forget shards that are not whole; what readers saw stays."""
        for shard in self._each():
            with self._lock:
                self._shards.pop(shard.at)
            if shard.upload is not None:
                shard.upload.drop()

    def _each(self) -> Iterator[Shard]:
        """The shards that are begun, one after the other, while no other thread is at it."""
        for shard in list(self._shards.values()):
            with self._lock:
                while shard.is_busy:
                    self._lock.wait()
                shard.is_busy = True
            try:
                if shard.at in self._shards:
                    yield shard
            finally:
                self._leave(shard)


class Showing:
    """Lets readers see what shards have so far, now, or later if it would cost too much now."""

    def __init__(
        self,
        delivery: Delivery,
        is_idle: Callable[[], bool],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self._delivery, self._is_idle, self._guarded = delivery, is_idle, guarded
        self._lock = threading.Lock()
        self._later: threading.Timer | None = None
        self._is_over = False

    def show(self) -> None:
        """Now, or later."""
        delay = self._delivery.show(is_idle=self._is_idle())
        with self._lock:
            if delay is not None and not self._is_over and self._later is None:
                self._later = threading.Timer(delay, self._again)
                self._later.daemon = True
                self._later.start()

    def _again(self) -> None:
        with self._lock:
            self._later = None
            if self._is_over:
                return
        self._guarded(self.show)

    def stop(self) -> None:
        """Not any more."""
        with self._lock:
            self._is_over = True
            if self._later is not None:
                self._later.cancel()


def _buffers(chunks: Chunks) -> list[Bytes]:
    """What is written of chunks."""
    if isinstance(chunks, Packed):
        return [chunks.data] if len(chunks.data) else []
    return [piece for chunk in chunks if chunk is not None for piece in chunk]


def _place(index: Index, end: int, slots: Any, chunks: Chunks) -> int:
    """Note chunks that lie one behind the other; the place behind them."""
    if isinstance(chunks, Packed):
        there = np.flatnonzero(chunks.sizes)
        sizes, where = chunks.sizes[there].astype(np.uint64), np.asarray(slots)[there]
        np.frombuffer(index.sizes, np.uint64)[where] = sizes
        np.frombuffer(index.offsets, np.uint64)[where] = end + np.cumsum(sizes) - sizes
        return end + len(chunks.data)
    for slot, chunk in zip(slots, chunks):
        if chunk is not None:
            index.offsets[slot], index.sizes[slot] = end, sum(map(len, chunk))
            end += index.sizes[slot]
    return end
