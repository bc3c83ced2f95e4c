"""`Delivery`: compressed tiles to shards, whoever compressed them, and what readers see of that.

Batches of a shard are put into it in the order in which their epochs came, however threads run. A
shard is seen when it is whole, or as far as it goes when it is published. The metadata follow. They
promise the frames of which every element, and every element before them, can be read. Where that is
no whole number of steps of the outermost dimension, the shape is rounded up, frames that did not
come read as fill value, and the attribute `weft.frames` has the number that is promised.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.store.chunk_layout import Tiling
from weft.store.dtypes import Bytes, Pieces
from weft.store.metadata import Metadata
from weft.store.metrics import Clock
from weft.store.shard import Index, length
from weft.store.sink import Sink, Upload
from weft.values import FrozenMap, Point


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
    end: int
    """Where the next chunk goes."""
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """Batches and elements at which epochs end that readers do not see yet."""
    upload: Upload | None = None
    """None as long as there is no chunk that is stored."""
    issued: int = 0
    next: int = 0
    seen: int = 0
    shown: int = 0
    """The batches that readers see."""
    is_busy: bool = False
    """Whether a thread is putting batches into it, and will take those that come meanwhile."""
    ready: dict[int, Batch] = field(default_factory=dict)


@dataclass(slots=True)
class Mark:
    """The end of an epoch: readers see all elements before it once they see the batches left."""

    end: int
    left: dict[Point, int]
    """For each shard the number of its batches up to here, as far as they were not seen."""


class Delivery:
    """All shards of an array that are begun, and the metadata."""

    def __init__(self, sink: Sink, metadata: Metadata, tiling: Tiling, clock: Clock) -> None:
        self.sink, self.metadata, self.tiling, self.clock = sink, metadata, tiling, clock
        self.promised = 0
        """The elements that the metadata say are there: whole frames, but at the very end."""
        self.first = 0
        """The elements that were there before, of an array that is continued."""
        self._is_continued = False
        self._marks: deque[Mark] = deque()
        self._issued: dict[Point, int] = {}
        """The shards that got batches since the last mark, and how many they have in all."""
        self._dim = tiling.dims[0]
        self._head = length(tiling.slots) if metadata.index_location == "start" else 0
        self._shards: dict[Point, Shard] = {}
        self._lock = threading.Condition()
        self._telling = threading.Lock()
        self._shows = True

    @property
    def memory(self) -> int:
        """The bytes that shards hold while they are written; two rows of them may be begun."""
        return 2 * self.tiling.across * (64 * self.tiling.slots + self.sink.held)

    @property
    def safe(self) -> int:
        """The frames that the metadata promise."""
        size = self.tiling.frame_size
        return self.promised // size if size else 0

    def start_at(self, first: int) -> None:
        """Continue an array of which so many elements are there."""
        self.first = self.promised = first
        self._is_continued = True

    def issue(self, at: Point) -> int:
        """The number of the next batch of a shard."""
        with self._lock:
            shard = self._shards.get(at) or self._begin(at)
            shard.issued += 1
            self._issued[at] = shard.issued
            return shard.issued - 1

    def mark(self, end: int) -> None:
        """All batches of the elements before `end` have numbers."""
        with self._lock:
            issued, self._issued = self._issued, {}
            for at, count in issued.items():
                if at in self._shards:
                    self._shards[at].marks.append((count, end))
            self._marks.append(Mark(end, issued))
            seen = self._seen() if len(self._marks) == 1 else 0
        self.promise(seen)

    def _begin(self, at: Point) -> Shard:
        shard = Shard(
            at,
            self.metadata.key(at),
            Index.empty(self.tiling.slots),
            self.tiling.expected(at),
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
        else:
            self._remove_older(shard)
        with self._lock:
            self.clock.stored += len(index)
            self._shards.pop(shard.at, None)
            shard.upload = None
            seen = self._seen(shard.at)
        self.promise(seen)

    def _remove_older(self, shard: Shard) -> None:
        """Remove what an earlier writer left under the key of a shard that is all fill value."""
        if self._is_continued:
            self.sink.delete(shard.key)

    # -- what readers see

    def _seen(self, at: Point | None = None) -> int:
        """The elements that readers see with all before them, after a change of one shard."""
        seen = self.promised
        while self._marks:
            mark = self._marks[0]
            for one in list(mark.left) if at is None else [at] if at in mark.left else []:
                shard = self._shards.get(one)  # None: it is whole
                if shard is None or shard.shown >= mark.left[one]:
                    del mark.left[one]
            if mark.left:
                break
            seen, at = mark.end, None
            self._marks.popleft()
        return seen

    def promise(self, elements: int) -> None:
        """Write the metadata of an array of so many elements; never fewer than were there."""
        size = self.tiling.frame_size
        elements = max(self.first, elements // size * size if size else 0)
        with self._telling:
            if elements > self.promised:
                self._tell(elements)

    def _tell(self, elements: int) -> None:
        with self.clock.stage("publish", 0):
            text = counted(self.metadata, self.tiling, elements).to_json()
            self.sink.put("zarr.json", text.encode())
        self.promised = elements

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

    def _complete(self, shard: Shard) -> bool:
        """Whether a shard has epochs that readers do not see, and no fewer than were there."""
        return any(
            shard.shown < count <= shard.next and end > self.first for count, end in shard.marks
        )

    def _show(self, shard: Shard) -> None:
        """Publish one shard, unless a thread is at it."""
        with self._lock:
            if shard.is_busy or shard.at not in self._shards:
                return
            shard.is_busy = True
        try:
            if self._complete(shard) and self._publish(shard, shard.index, ()):
                self._note(shard)
        except BaseException:
            self._leave(shard)
            raise
        self._drain(shard)

    def _open(self, shard: Shard) -> None:
        """Begin the upload of a shard that is to be seen, even without chunks."""
        if shard.upload is None and self.metadata.stores_every_shard:
            shard.upload = self.sink.upload(shard.key, self._head)

    def _note(self, shard: Shard) -> None:
        """Readers see all batches that a shard has."""
        with self._lock:
            shard.shown = shard.next
            while shard.marks and shard.marks[0][0] <= shard.shown:
                shard.marks.popleft()
            seen = self._seen(shard.at)
        self.promise(seen)

    def _publish(self, shard: Shard, index: Index, more: Sequence[Bytes]) -> bool:
        self._open(shard)
        if shard.upload is not None:
            with self.clock.stage("publish", shard.end):
                self._shows = shard.upload.publish(more, index.to_bytes())
        else:
            self._remove_older(shard)
        return self._shows

    # -- in the end, or as if it were

    def flush(self, elements: int, more: Mapping[Point, tuple[Sequence[int], Chunks]]) -> None:
        """Let readers see all elements, with `more` chunks of an epoch that is not full.

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
            self._note(shard)
        self.promise(elements)

    def close(self, elements: int) -> None:
        """Let readers see shards that stay short, and say how many elements there are."""
        if self.metadata.stores_every_shard:
            self._begin_rest(elements)
        for shard in self._each():
            self._finish(shard)
        with self._telling:
            if max(self.first, elements) != self.promised or not self.tiling.units[0]:
                self._tell(max(self.first, elements))

    def _begin_rest(self, elements: int) -> None:
        """Begin the shards of a last frame that is not whole to which nothing has come."""
        size = self.tiling.frame_size
        stop = -(-elements // size) * size if size else 0
        at = self.tiling.epoch_end(elements - 1) if elements else stop
        with self._lock:
            while at < stop:
                for group in self.tiling.groups(self.tiling.epoch(at)[0]):
                    if group.shard not in self._shards:
                        self._begin(group.shard)
                at = self.tiling.epoch_end(at)

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


def counted(metadata: Metadata, tiling: Tiling, elements: int) -> Metadata:
    """The metadata of an array of so many elements: its shape, and its frames if a row is short.

    >>> tiling = Tiling((None, 2, 4, 4), (1, 1, 4, 4), (1, 2, 4, 4))
    >>> metadata = Metadata((0, 2, 4, 4), "uint8", tiling.chunks, tiling.shards)
    >>> found = counted(metadata, tiling, 3 * 16)
    >>> found.shape, dict(found.attributes)
    ((2, 2, 4, 4), {'weft': {'frames': 3}})
    """
    dim, unit = tiling.dims[0], tiling.units[0]
    shape = list(metadata.shape)
    shape[dim] = -(-elements // unit) if unit else tiling.sizes[0] or 0
    attributes = dict(metadata.attributes)
    weft = attributes.pop("weft", {})
    weft = {key: value for key, value in weft.items() if key != "frames"}
    if unit and elements % unit:
        weft["frames"] = -(-elements // tiling.frame_size)
    if weft:
        attributes["weft"] = weft
    return replace(metadata, shape=tuple(shape), attributes=FrozenMap(attributes.items()))


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
