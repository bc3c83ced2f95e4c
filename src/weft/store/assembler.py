"""`ShardAssembler`: puts encoded chunks into shards, and decides what readers see of them.

Batches of a shard are appended in the order of their epochs, whatever the order of threads. A shard
becomes visible when it is complete, or as far as it goes when it is published. The metadata follow:
they promise the frames of which every element, and every element before them, can be read. Where
the promised frames do not fill the last row, the shape is rounded up, missing frames read as fill
value, and the attribute `weft.frames` counts the promised ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from weft.store import native
from weft.store.attributes import Change, put_metadata
from weft.store.buffers import BUFFERS, MemoryUse
from weft.store.chunk_layout import FrameLayout
from weft.store.codecs import EncodedChunks
from weft.store.dtypes import Bytes
from weft.store.files import Folder
from weft.store.frames import SEGMENTS, FrameLog, segment_count
from weft.store.metadata import Metadata, own_attributes
from weft.store.metrics import Clock
from weft.store.shard import Index, index_size
from weft.store.sink import Sink, Upload
from weft.store.threads import CORES, Later, Workers, workers
from weft.values import FrozenMap, Point

SHARD_SLOT_MEMORY = 64
"""Bytes that a shard holds for each of its chunks while it is written."""

PUBLISH_SHARE = 0.02
"""The share of the time that all writers may spend on publishing shards that are not complete."""

QUICK = 0.02
"""Seconds of publishing that are always allowed while there is nothing else to do."""


class ChunkBatch(NamedTuple):
    """Consecutive chunks of one shard."""

    shard: Point
    number: int
    """Its number among the batches of the shard."""
    slots: Sequence[int] | np.ndarray[Any, Any]
    chunks: EncodedChunks
    written: Callable[[], None]
    """Called when the chunks are no longer needed."""
    batches: int = 1
    """The number of batches that it is made of; theirs follow each other."""


@dataclass(slots=True)
class OpenShard:
    """A shard that is being written."""

    at: Point
    key: str
    index: Index
    expected: int
    """The number of chunks to come, those that are all fill value included."""
    end: int
    """Where the next chunk goes."""
    marks: deque[tuple[int, int]] = field(default_factory=deque)
    """The batches and elements at which unpublished epochs end."""
    upload: Upload | None = None
    """None while no chunk is stored."""
    issued: int = 0
    next: int = 0
    received: int = 0
    """The number of chunks so far."""
    published: int = 0
    """The number of batches that readers see."""
    is_busy: bool = False
    """Whether a thread is appending batches; it also takes those that come meanwhile."""
    ready: dict[int, ChunkBatch] = field(default_factory=dict)


@dataclass(slots=True)
class EpochMark:
    """The end of an epoch: all elements before it are readable once the batches left are."""

    end: int
    left: dict[Point, int]
    """For each shard the number of its batches up to here that readers do not see yet."""


class ShardAssembler:
    """All open shards of an array, and its metadata."""

    def __init__(self, sink: Sink, metadata: Metadata, layout: FrameLayout, clock: Clock) -> None:
        self.sink, self.metadata, self.layout, self.clock = sink, metadata, layout, clock
        self.log = FrameLog(sink)
        """The metadata of frames."""
        self.promised = 0
        """The elements that the metadata promise: whole frames, except at the very end."""
        self.existing = 0
        """The elements that were there before, of an array that is continued."""
        self._min_rows = 0
        """The least length that the metadata say, although the last row may not be whole."""
        self.on_readable: Callable[[int], None] | None = None
        """Called with the elements that can be read, where others decide what is shown of them."""
        self._is_continued = False
        self._marks: deque[EpochMark] = deque()
        self._issued: dict[Point, int] = {}
        """The shards that got batches since the last mark, and how many they have in all."""
        self._head = index_size(layout.slots) if metadata.index_location == "start" else 0
        self._shards: dict[Point, OpenShard] = {}
        self._lock = threading.Condition()
        self._metadata_lock = threading.Lock()
        self._can_publish = True

    @property
    def memory(self) -> MemoryUse:
        """The bytes that open shards hold; two rows of them may be open."""
        shards, buffered = 2 * self.layout.shards_per_row, self.sink.buffered
        indexes = shards * SHARD_SLOT_MEMORY * self.layout.slots
        if isinstance(self.sink, Folder):  # no more than some blocks, for all arrays
            return MemoryUse(indexes, shards * buffered)
        return MemoryUse(indexes + shards * buffered)

    @property
    def safe(self) -> int:
        """The number of frames that the metadata promise."""
        size = self.layout.frame_size
        return self.promised // size if size else 0

    def continue_from(self, elements: int) -> None:
        """Continue an array that has `elements` elements."""
        self.existing = self.promised = elements
        self._is_continued = True
        self._min_rows = self.metadata.shape[self.layout.append_axis]
        self.log.continue_from(segment_count(self.metadata), self.safe)

    def issue(self, at: Point) -> int:
        """Return the number of the next batch of a shard."""
        with self._lock:
            shard = self._shards.get(at) or self._begin(at)
            shard.issued += 1
            self._issued[at] = shard.issued
            return shard.issued - 1

    def mark(self, end: int) -> None:
        """Note that all batches of the elements before `end` have numbers."""
        with self._lock:
            issued, self._issued = self._issued, {}
            for at, count in issued.items():
                if at in self._shards:
                    self._shards[at].marks.append((count, end))
            self._marks.append(EpochMark(end, issued))
            readable = self._readable() if len(self._marks) == 1 else 0
        self.promise(readable)

    def _begin(self, at: Point) -> OpenShard:
        index, expected = Index.empty(self.layout.slots), self.layout.expected_chunks(at)
        shard = OpenShard(at, self.metadata.key(at), index, expected, self._head)
        self._shards[at] = shard
        return shard

    # -- batches

    def add(self, batch: ChunkBatch) -> None:
        """Append a batch to its shard, or leave it to the thread that is appending."""
        with self._lock:
            shard = self._shards[batch.shard]
            shard.ready[batch.number] = batch
            if shard.is_busy:
                return
            shard.is_busy = True
        self._drain(shard)

    def _drain(self, shard: OpenShard) -> None:
        """Append all batches that are ready, in order; the last one completes the shard."""
        try:
            while (batch := self._next(shard)) is not None:
                self._append(shard, batch)
                if shard.received == shard.expected:
                    self._finish(shard)
                batch.written()
        except BaseException:
            self._leave(shard)
            raise

    def _next(self, shard: OpenShard) -> ChunkBatch | None:
        """Return the next batch; where it is not there yet, leave the shard under the same lock.

        The thread that adds that batch then sees that the shard is not busy.
        """
        with self._lock:
            batch = shard.ready.pop(shard.next, None)
            if batch is None:
                self._leave(shard)
            else:
                shard.next += batch.batches
            return batch

    def _leave(self, shard: OpenShard) -> None:
        with self._lock:
            shard.is_busy = False
            self._lock.notify_all()

    def _append(self, shard: OpenShard, batch: ChunkBatch) -> None:
        size = batch.chunks.nbytes
        if size:
            upload = shard.upload = shard.upload or self.sink.upload(shard.key, self._head)
            with self.clock.stage("write", size):
                upload.append(batch.chunks.buffers)
        shard.end = shard.index.append(shard.end, batch.slots, batch.chunks)
        with self._lock:
            shard.received += len(batch.slots)
            self.clock.stored += size

    def _finish(self, shard: OpenShard) -> None:
        """Make a complete shard visible.

        One without chunks is an index alone, or nothing where the array does not store every shard.
        """
        self._open_upload(shard)
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
            readable = self._readable(shard.at)
        self.promise(readable)

    def _remove_older(self, shard: OpenShard) -> None:
        """Remove what an earlier writer stored for a shard that is all fill value now."""
        if self._is_continued:
            self.sink.delete(shard.key)

    # -- what readers see

    def _readable(self, at: Point | None = None) -> int:
        """Return the elements that can be read with all before them, after a shard changed."""
        readable = self.promised
        while self._marks:
            mark = self._marks[0]
            for one in list(mark.left) if at is None else [at] if at in mark.left else []:
                shard = self._shards.get(one)  # None: it is complete
                if shard is None or shard.published >= mark.left[one]:
                    del mark.left[one]
            if mark.left:
                break
            readable, at = mark.end, None
            self._marks.popleft()
        return readable

    def promise(self, elements: int) -> None:
        """Write metadata that promise the whole frames of `elements`, if they promise fewer."""
        size = self.layout.frame_size
        elements = max(self.existing, elements // size * size if size else 0)
        if self.on_readable is None:
            self.show(elements)
        else:
            self.on_readable(elements)

    def show(self, elements: int, rows: int = 0) -> None:
        """Write metadata that promise elements, and have at least `rows`, if theirs have fewer."""
        with self._metadata_lock:
            now = max(self._min_rows, self.layout.rows_in(self.promised))
            if elements > self.promised or rows > now:
                self._min_rows = max(self._min_rows, rows)
                self._write_metadata(max(self.promised, elements))

    def _write_metadata(self, elements: int) -> None:
        """Write metadata that promise elements, after the metadata of their frames."""
        with self.clock.stage("publish", 0):
            size, own = self.layout.frame_size, own_attributes(self.metadata.attributes)
            segments = self.log.store(elements // size if size else 0)
            if segments != own.get(SEGMENTS, 0):
                attributes = {**self.metadata.attributes, "weft": {**own, SEGMENTS: segments}}
                self.metadata = _with_attributes(self.metadata, attributes)
            self.sink.put("zarr.json", self._metadata_text(self.metadata, elements).encode())
        self.promised = elements

    def _metadata_text(self, metadata: Metadata, elements: int) -> str:
        return self.layout.grown_metadata(metadata, elements, self._min_rows).to_json()

    def forget(self, frame: int) -> None:
        """Forget the metadata of a frame, and of those after it, that were not appended."""
        with self._metadata_lock:
            self.log.forget(frame)

    def change_attributes(self, change: Change) -> None:
        """Change the attributes of the array with one atomic write."""
        with self._metadata_lock:
            attributes = dict(self.metadata.attributes)
            change(attributes)
            metadata = _with_attributes(self.metadata, attributes)
            put_metadata(self.sink, self._metadata_text(metadata, self.promised))
            self.metadata = metadata

    def publish(self, *, is_idle: bool) -> float | None:
        """Publish shards that are not complete, if that costs little.

        Return the seconds after which to try again, if it would cost too much now.
        """
        if not self._can_publish:
            return None
        with self._lock:
            shards = [shard for shard in self._shards.values() if self._has_news(shard)]
        if not shards:
            return None
        spent, elapsed = self.clock.spent("publish"), self.clock.elapsed
        rate = (spent.bytes + 1e6) / (spent.seconds + 1e-3)  # 1 GB/s, before anything is known
        cost = sum(shard.end for shard in shards) / rate
        share = PUBLISH_SHARE / max(1, BUFFERS.writers)
        if not (is_idle and cost <= QUICK) and spent.seconds + cost > share * elapsed:
            return (spent.seconds + cost) / share - elapsed
        for shard in shards:
            self._publish_if_free(shard)
        return None

    def _has_news(self, shard: OpenShard) -> bool:
        """Return whether a shard has complete epochs that readers do not see."""
        return any(
            shard.published < count <= shard.next and end > self.existing
            for count, end in shard.marks
        )

    def _publish_if_free(self, shard: OpenShard) -> None:
        with self._lock:
            if shard.is_busy or shard.at not in self._shards:
                return
            shard.is_busy = True
        try:
            with self._lock:  # the thread that appends adds marks
                has_news = self._has_news(shard)
            if has_news and self._publish(shard, shard.index, ()):
                self._note_published(shard)
        except BaseException:
            self._leave(shard)
            raise
        self._drain(shard)

    def _open_upload(self, shard: OpenShard) -> None:
        """Begin the upload of a shard that must be visible, even without chunks."""
        if shard.upload is None and self.metadata.stores_every_shard:
            shard.upload = self.sink.upload(shard.key, self._head)

    def _note_published(self, shard: OpenShard) -> None:
        with self._lock:
            shard.published = shard.next
            while shard.marks and shard.marks[0][0] <= shard.published:
                shard.marks.popleft()
            readable = self._readable(shard.at)
        self.promise(readable)

    def _publish(self, shard: OpenShard, index: Index, more: Sequence[Bytes]) -> bool:
        self._open_upload(shard)
        if shard.upload is not None:
            with self.clock.stage("publish", shard.end):
                self._can_publish = shard.upload.publish(more, index.to_bytes())
        else:
            self._remove_older(shard)
        return self._can_publish

    # -- at the end

    def flush(
        self, elements: int, more: Mapping[Point, tuple[Sequence[int], EncodedChunks]]
    ) -> None:
        """Publish all elements, with `more` chunks of an epoch that is not full.

        No batch may be under way.
        """
        with self._lock:
            for at in more:
                if at not in self._shards:
                    self._begin(at)
        for shard in self._each():
            slots, chunks = more.get(shard.at, ((), EncodedChunks.of(())))
            if chunks.buffers and shard.upload is None:
                shard.upload = self.sink.upload(shard.key, self._head)
            index = shard.index.copy()
            index.append(shard.end, slots, chunks)
            if not self._publish(shard, index, chunks.buffers):
                return
            self._note_published(shard)
        self.promise(elements)

    def close(self, elements: int) -> None:
        """Finish shards that stay short, and write the final metadata."""
        if self.metadata.stores_every_shard:
            self._begin_missing(elements)
        for shard in self._each():
            self._finish(shard)
        final = max(self.existing, elements)
        if self.on_readable is not None:
            self.on_readable(final)
            return
        with self._metadata_lock:
            if final != self.promised or not self.layout.step_sizes[0]:
                self._write_metadata(final)

    def _begin_missing(self, elements: int) -> None:
        """Begin the shards of a last frame that is not whole to which nothing has come."""
        stop = self.layout.frames_in(elements) * self.layout.frame_size
        at = self.layout.epoch_end(elements - 1) if elements else stop
        with self._lock:
            while at < stop:
                for each in self.layout.shard_tiles(self.layout.epoch_of(at)[0]):
                    if each.shard not in self._shards:
                        self._begin(each.shard)
                at = self.layout.epoch_end(at)

    def discard(self) -> None:
        """Discard shards that are not complete; what was published stays."""
        for shard in self._each():
            with self._lock:
                self._shards.pop(shard.at)
            if shard.upload is not None:
                shard.upload.discard()

    def _each(self) -> Iterator[OpenShard]:
        """Yield the open shards one by one, each while no other thread works on it."""
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


def _with_attributes(metadata: Metadata, attributes: Mapping[str, Any]) -> Metadata:
    return replace(metadata, attributes=FrozenMap(attributes.items()))


def workers_for(sink: Sink, least: int = 0) -> Workers:
    """Return the threads that encode and write: those of all folders, or of all other stores.

    Another store may be a server, which is waited for. Compiled code has threads of its own: both
    together are as many as there are cores.
    """
    if not isinstance(sink, Folder):
        return workers("send", max(16, CORES), least)
    return workers("encode", CORES if native.compiled() is None else native.CALLERS, least)


class Publisher:
    """Publishes the shards of an assembler, now, or later if it would cost too much now."""

    def __init__(
        self,
        assembler: ShardAssembler,
        is_idle: Callable[[], bool],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self._assembler, self._is_idle, self._guarded = assembler, is_idle, guarded
        self._lock = threading.Lock()
        self._later: Later | None = None
        self._is_stopped = False

    def publish(self) -> None:
        """Publish now, or later."""
        delay = self._assembler.publish(is_idle=self._is_idle())
        with self._lock:
            if delay is not None and not self._is_stopped and self._later is None:
                threads = workers_for(self._assembler.sink)
                self._later = threads.later(delay, self._publish_later)

    def _publish_later(self) -> None:
        with self._lock:
            self._later = None
            if self._is_stopped:
                return
        self._guarded(self.publish)

    def stop(self) -> None:
        """Publish no more."""
        with self._lock:
            self._is_stopped = True
            if self._later is not None:
                self._later.cancel()
