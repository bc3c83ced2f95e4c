"""`Writer`: appends frames to a sharded array, through a pipeline and a shard assembler."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from weft.errors import WeftError
from weft.store.assembler import ShardAssembler
from weft.store.attributes import Attributes, Change, node_attributes
from weft.store.buffers import MemoryUse
from weft.store.chunk_layout import FrameLayout, Slab
from weft.store.dtypes import as_dtype
from weft.store.encoder import ChunkEncoder
from weft.store.frames import FrameTable, check_metadata, dropped_line, metadata_line
from weft.store.metadata import Metadata
from weft.store.metrics import CPU_STAGES, GPU_STAGES, Clock, Metrics
from weft.store.pipeline import Values, create_pipeline
from weft.store.sink import Lock, Sink, SinkError
from weft.store.threads import uninterrupted
from weft.values import Point, as_count


class Closeable(ABC):
    """Something that a `with` block closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AutoClosed(Closeable):
    """Something that is closed even without `close`: when it is dropped, or at exit.

    A `ResourceWarning` reports it, as for files. A process that is killed closes nothing, and
    neither does a forked child: what it inherits belongs to its parent.
    """

    is_open: bool
    """Whether it is not closed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How messages call it."""

    def watch(self) -> None:
        """Close it when the interpreter exits, unless it is closed before."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        _WATCHED[id(self)] = weakref.ref(self)

    def unwatch(self) -> None:
        """Stop watching: it is closed, or belongs to something that is watched."""
        _WATCHED.pop(id(self), None)

    def close_unclosed(self) -> None:
        """Close it with a warning, unless it is closed."""
        self.unwatch()
        if not self.is_open or self._process != os.getpid():
            return
        try:
            self.close()
        except Exception as error:
            warnings.warn(
                f"{self.name} was not closed, and closing it failed: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            warnings.warn(
                f"{self.name} was not closed; it is closed now", ResourceWarning, stacklevel=2
            )

    def __del__(self) -> None:
        if id(self) not in _WATCHED:
            return
        if self._thread == threading.get_ident():
            self.close_unclosed()
        else:
            # The garbage collector runs in any thread, and a thread of its own would wait for
            # itself: it stays alive, and is closed when the interpreter exits.
            _WATCHED[id(self)] = lambda: self


_WATCHED: dict[int, Callable[[], AutoClosed | None]] = {}
"""What is open, in the order in which it was opened."""


@atexit.register
def _close_all() -> None:
    """Close what is open, the last first."""
    for number in reversed(list(_WATCHED)):
        one = _WATCHED[number]() if number in _WATCHED else None
        if one is not None:
            one.close_unclosed()


class Writer(AutoClosed):
    """Appends frames to a sharded array; used in a `with` block. Threads that append take turns.

    One that is never closed is closed when it is dropped or the interpreter exits, with a
    `ResourceWarning`.
    """

    def __init__(
        self,
        sink: Sink,
        metadata: Metadata,
        layout: FrameLayout,
        lock: Lock,
        *,
        threads: int | None = None,
        epochs: int | None = None,
        device: str = "cpu",
        encoder: str | None = None,
    ) -> None:
        self.sink, self.layout, self._lock = sink, layout, lock
        self.device = device
        """Where frames are processed: "cpu" or "cuda"."""
        self.dtype = as_dtype(metadata.dtype)[1]
        self._clock = Clock(GPU_STAGES if device == "cuda" else CPU_STAGES)
        self._assembler = ShardAssembler(sink, metadata, layout, self._clock)
        self._pipeline = create_pipeline(
            device,
            layout,
            ChunkEncoder(metadata, self.dtype),
            self._assembler,
            self._clock,
            threads=threads,
            epochs=epochs,
            by=encoder,
        )
        self._done = 0
        """Elements that have been appended, with those that were there before."""
        self._first = 0
        """Elements that were there before."""
        self._is_reported = False
        """Whether a failure was reported to the caller."""
        self.is_open = True
        self._turn, self._owner = threading.RLock(), os.getpid()
        self._limit: int | None = None
        """The elements after which nothing counts, once appending was given up."""
        self._resume: Callable[[], None] | None = None
        """Appends the frames of a short last row of shards again, before the first new one."""

    # -- appending

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        shape = "x".join(map(str, self.shape))
        return f"<Writer of {self.sink.url}: {self.metadata.dtype} {shape}, {state}>"

    def append(
        self,
        block: Any,
        *,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        is_kept: bool = False,
    ) -> None:
        """Append one frame, or several, with metadata: a mapping, or a list of one for each frame.

        A frame has the shape `frame`: the last two dimensions that arrive (the last, of an array
        of two dimensions), unless `frame_ndim` was given. An array of [t, y, x] takes [y, x] and
        [5, y, x]; one of [t, c, z, y, x] also takes [z, y, x] and so on. Anything else is refused
        and changes nothing. The block may be changed as soon as this returns, unless it `is_kept`:
        then after `release`.

        Metadata are any JSON: time stamps, positions, … They are stored before their frames are
        safe, and `weft.store.open(url).frames` reads them.
        """
        self._check()
        with self._turn:
            values, level = self.check_frames(block)
            texts = self.check_metadata(metadata, values)
            try:
                self.append_checked(values, level, texts, is_kept=is_kept)
            except BaseException:
                self._keep_whole_frames()
                raise

    def _keep_whole_frames(self) -> None:
        """Forget a frame that was taken in part, after an interrupt (Ctrl-C) or an error.

        Another one may take its place, unless a part was passed on: nothing more is taken then.
        """
        size = self.layout.frame_size
        if not size or not self.is_open or self._pipeline.error is not None:
            return
        if self._done and self.layout.epoch_end(self._done - 1) == self._done:
            self._end_epoch()  # unless it is already
        whole = self._done // size * size
        is_passed_on = whole < self._done and self.layout.epoch_end(whole) <= self._done
        if is_passed_on or not self._pipeline.forget(whole):
            self.retract(whole)
        else:
            self._done = whole
        self._assembler.forget(whole // size)

    def copy_metadata(self, table: FrameTable) -> None:
        """Note the metadata of the frames of an array that is copied, before the first of them."""
        self._check()
        if self._done:
            raise WeftError(f"{self.sink.url} has frames already")
        for frame, line in table.lines_for(self.layout):
            self._assembler.log.add(frame, line)

    def skip(self, frames: int = 1) -> None:
        """Count frames that were dropped: they read as fill value, and no chunk is stored for them.

        `weft.store.open(url).frames.dropped` lists them.
        """
        self._check()
        with self._turn:
            count = self.check_skip(frames)
            try:
                self._skip(count)
            except BaseException:
                self._keep_whole_frames()
                raise

    def _skip(self, count: int) -> None:
        size = self.layout.frame_size
        if not count or not size:
            return
        self._continue()
        self._assembler.log.add(self._done // size, dropped_line(self._done // size, count))
        stop, fill = self._done + count * size, np.asarray(self.metadata.fill, self.dtype)
        while self._done < stop:
            end = min(stop, self.layout.epoch_end(self._done))
            if self._is_epoch(self._done, end) and uninterrupted(self._skip_epoch, end):
                self._check()
                continue
            # An epoch may end inside of a frame, where rows of chunks are buffered.
            whole = max(1, (end - self._done) // size)
            self.append_checked(np.broadcast_to(fill, (whole, *self.frame)), self._frame_level)

    def _skip_epoch(self, end: int) -> bool:
        """Skip a whole epoch, if the pipeline can."""
        is_skipped = self._pipeline.skip_epoch(end)
        self._done = end if is_skipped else self._done
        return is_skipped

    def check_skip(self, frames: int) -> int:
        """Return the number of frames to skip; refuse one that does not fit here."""
        self._check()
        count, size = as_count(frames, "skip"), self.layout.frame_size
        if count and not size:
            raise WeftError(f"{self.sink.url}: frames without elements cannot be skipped")
        if size and self._done % size:
            raise WeftError(f"{self.sink.url}: frames cannot be skipped inside of a frame")
        capacity = self.layout.capacity
        if capacity is not None and self._done + count * size > capacity:
            left = (capacity - self._done) // max(1, size)
            raise WeftError(f"{count} frames are skipped, and {self.sink.url} has room for {left}")
        return count

    @property
    def attrs(self) -> Attributes:
        """The attributes of the array, which can be changed during a recording and after it."""
        if not self.is_open:
            return node_attributes(self.sink)
        return Attributes(lambda: self.metadata.attributes, self._change_attributes)

    def _change_attributes(self, change: Change) -> None:
        try:
            self._assembler.change_attributes(change)
        except OSError as error:
            if isinstance(error, WeftError):
                raise
            raise SinkError(f"{self.sink.url}: attributes cannot be written: {error}") from error

    def append_rows(self, block: Any, *, is_kept: bool = False) -> None:
        """Append loose rows, as a line scanner produces them.

        The block has the sizes of the array except for its first, and may leave out leading
        dimensions: [3, x] are three rows of [t, y, x]. They need not end where a frame ends.
        """
        self._check()
        with self._turn:
            values, shape = self._check_open(block), self.layout.ordered_shape
            level = len(shape) - values.ndim
            if level < 0 or level == len(shape) or values.shape[1:] != shape[level + 1 :]:
                wanted = ", ".join("…" if n is None else str(n) for n in shape)
                raise WeftError(f"a block of {list(values.shape)} does not fit rows of [{wanted}]")
            self.append_checked(self._check_fit(values, level), level, is_kept=is_kept)

    def append_checked(
        self,
        values: Values,
        level: int,
        metadata: Sequence[str | None] = (),
        *,
        is_kept: bool = False,
    ) -> None:
        """Append checked elements; `level` is the dimension that their first one is."""
        begin = time.perf_counter()
        self._continue()
        for frame, text in enumerate(metadata, self._done // max(1, self.layout.frame_size)):
            if text is not None:
                self._assembler.log.add(frame, metadata_line(frame, text))
        start, stop = self._done, self._done + values.size
        self._done += self._pipeline.put_epochs(values, start)
        self._check()
        while self._done < stop:
            end = self.layout.epoch_end(self._done)
            for slab in self.layout.slabs(self._done, min(end, stop)):
                self._pipeline.put(slab, self._slab_values(values, level, start, slab))
                self._check()
                self._done += slab.steps * self.layout.step_sizes[slab.level]
            if self._done == end:
                self._end_epoch()
        if is_kept:
            self._pipeline.keep()
        else:
            self._pipeline.release()
        self._clock.count_append(time.perf_counter() - begin)

    def _end_epoch(self) -> None:
        """Pass on the epoch that is being filled; an interrupt waits, if it is large."""
        self._pipeline.together(self._pass_on)

    def _pass_on(self) -> None:
        """Pass on the epoch that is being filled; if that fails, it is counted, and not written."""
        try:
            self._pipeline.end_epoch(self._done)
        except BaseException as error:
            self._pipeline.fail(error)
            raise

    def release(self) -> None:
        """Wait until kept blocks are read."""
        self._pipeline.release()

    def to_device(self, block: Any) -> tuple[Any, bool]:
        """Return a block as an array on the writer's device, and whether it is a copy."""
        found: tuple[Any, bool] = self._as_array(block, self._pipeline.to_device)
        return found

    def flush(self) -> None:
        """Wait until all that was appended is written, and make every whole frame visible.

        Frames are safe then: `safe` counts them. In an object store a shard is visible only once it
        is complete.
        """
        self._check()
        with self._turn:
            self._check()
            self._settle()
            try:
                self._assembler.flush(self.elements, self._pipeline.partial_epoch(self._done))
            except OSError as error:
                self._pipeline.error = error
                self._check()

    def close(self) -> None:
        """Write what was appended, and the final metadata.

        In a forked process it does nothing: the array belongs to the process that opened it.
        """
        if self._owner != os.getpid():
            self.is_open = False
            self.unwatch()
            return
        with self._turn:
            if self.is_open:
                self._close()

    def _close(self) -> None:
        self.is_open = False
        self.unwatch()
        try:
            if self._pipeline.error is None:
                self._end_epoch()
                self._settle()
                try:
                    self._assembler.close(self.frames * self.layout.frame_size)
                except OSError as error:
                    self._pipeline.error = error
                    raise self._failure() from error
            elif not self._is_reported:
                raise self._failure() from self._pipeline.error
        finally:
            self._release()

    def abandon(self) -> None:
        """Discard what is not visible, and release the lock."""
        self.is_open = False
        self.unwatch()
        self._release()

    def retract(self, elements: int) -> None:
        """Count only the first `elements`, and refuse more."""
        self._limit = elements

    # -- state

    @property
    def assembler(self) -> ShardAssembler:
        """What decides how much of the array readers see."""
        return self._assembler

    @property
    def metadata(self) -> Metadata:
        """The metadata of the array, with its attributes as they are now."""
        return self._assembler.metadata

    @property
    def elements(self) -> int:
        """The number of elements: those that were there before, and those appended."""
        return self._done if self._limit is None else min(self._done, self._limit)

    @property
    def name(self) -> str:
        """The address of the array."""
        return self.sink.url

    def memory(self) -> int:
        """Return the most bytes that are buffered: tiles, chunks, and parts of shards."""
        return sum(use.total for use in self.memory_uses())

    def memory_uses(self) -> list[MemoryUse]:
        """Return the most bytes that are buffered, by what they depend on."""
        return [self._pipeline.memory, self._assembler.memory]

    def metrics(self) -> Metrics:
        """Return what was done so far, stage by stage."""
        return self._clock.metrics(
            rows=self.shape[self.layout.append_axis],
            safe=self.safe,
            size=(self._done - self._first) * self.dtype.itemsize,
            epochs=self._pipeline.epochs,
            batches=self._pipeline.waiting,
        )

    @property
    def shape(self) -> Point:
        """The shape of what was appended, a last row that is not whole included."""
        shape = list(self.metadata.shape)
        shape[self.layout.append_axis] = self.layout.rows_in(self.elements)
        return tuple(shape)

    @property
    def frame(self) -> Point:
        """The shape of a frame, as `append` takes it."""
        return self.layout.frame_shape

    @property
    def frames(self) -> int:
        """The number of frames, those that were there before and a begun one included."""
        return self.layout.frames_in(self.elements)

    @property
    def safe(self) -> int:
        """The number of frames that readers see now, and after a crash."""
        return self._assembler.safe

    def continue_from(self, existing: int, row: int, blocks: Callable[[], Iterator[Any]]) -> None:
        """Continue an array that has `existing` elements.

        Before the first frame is appended, the rows of its last shards, which begin at `row`, are
        appended again: `blocks` reads them.
        """
        self._assembler.continue_from(existing)
        self._first = self._done = existing

        def resume() -> None:
            self._first = self._done = row * self.layout.step_sizes[0]
            for block in blocks():
                self.append_rows(block)

        self._resume = resume

    def _continue(self) -> None:
        """Append the last rows of an array that is continued again, once."""
        resume, self._resume = self._resume, None
        if resume is not None:
            try:
                resume()
            except BaseException:
                self.abandon()
                raise

    # -- blocks

    def check_frames(self, block: Any) -> tuple[Values, int]:
        """Return frames as an array to append, and the dimension that its first one is."""
        values, layout = self._check_open(block), self.layout
        level = len(layout.ordered_shape) - values.ndim
        is_whole = level < layout.frame_axis or values.shape == layout.frame_shape
        if level < 0 or not is_whole or values.shape[1:] != layout.ordered_shape[level + 1 :]:
            frame = ", ".join(map(str, layout.frame_shape))
            raise WeftError(
                f"a block of {list(values.shape)} is not a frame of {self.sink.url}: a frame is "
                f"[{frame}]",
                hint=f"append [{frame}] or [n, {frame}]; append_rows takes loose rows",
            )
        size = layout.frame_size
        if not size and len(values) and layout.ordered_shape[0] is None:
            raise WeftError(
                f"{self.sink.url}: frames of {list(layout.frame_shape)} have no elements, and "
                "cannot be counted"
            )
        if size and self._done % size:
            raise WeftError(
                f"{self.sink.url}: a frame is not complete, {self._done % size} of its {size} "
                "elements are there, and no other can begin",
                hint="complete it with append_rows",
            )
        if not values.ndim:
            values, level = values.reshape(1), level - 1
        return self._check_fit(values, level), level

    def check_metadata(self, metadata: Any, values: Values) -> Sequence[str | None]:
        """Return the metadata of checked frames as JSON."""
        if metadata is None:
            return ()
        size = self.layout.frame_size
        if not size or self._done % size:
            raise WeftError(f"{self.sink.url}: metadata belong to a frame, and none begins here")
        return check_metadata(metadata, int(values.size) // size)

    def _is_epoch(self, start: int, stop: int) -> bool:
        """Return whether elements are a whole epoch."""
        is_begin = not start or self.layout.epoch_end(start - 1) == start
        return is_begin and self.layout.epoch_end(start) == stop

    @property
    def _frame_level(self) -> int:
        """The dimension, in arrival order, that a block of several frames begins with."""
        return self.layout.frame_axis - 1

    def _check_open(self, block: Any) -> Values:
        self._check()
        values: Values = self._as_array(block, self._pipeline.asarray)
        if values.dtype == object:
            raise WeftError(
                f"{type(block).__name__} cannot be read as an array of numbers",
                hint="append an array, or one frame at a time",
            )
        return values

    def _as_array(self, block: Any, read: Callable[[Any], Any]) -> Any:
        """Read a block as an array; refuse what is none, and what would lose something."""
        if np.ma.is_masked(block):
            raise WeftError(
                f"{self.sink.url} cannot store which elements are masked",
                hint="append block.filled(value)",
            )
        try:
            return read(block)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            if isinstance(error, WeftError):
                raise
            raise WeftError(f"{type(block).__name__} cannot be read as an array: {error}") from None

    def _check_fit(self, block: Values, level: int) -> Values:
        """Return a block as it is stored; refuse another dtype, and one that does not fit here."""
        name = self.metadata.dtype
        if block.dtype != self.dtype or name == "bfloat16":
            if block.dtype.name != name and block.dtype != self.dtype:
                raise WeftError(
                    f"the array holds {name}, and the block {block.dtype.name}",
                    hint=f"append block.astype({name!r}), if its values fit",
                )
            if name == "bfloat16":
                block = block.view(np.uint16)
        step, capacity = self.layout.step_sizes[level], self.layout.capacity
        if step and self._done % step:
            raise WeftError(
                f"a block of {list(block.shape)} would begin inside a row: {self._done % step} of "
                f"its {step} elements are there"
            )
        if capacity is not None and self._done + block.size > capacity:
            raise WeftError(
                f"a block of {list(block.shape)} goes past the end of "
                f"{list(self.layout.ordered_shape)}: {self._done} of {capacity} elements are there"
            )
        return block

    def _slab_values(self, values: Values, level: int, start: int, slab: Slab) -> Values:
        """Return the elements of a slab as a view of a block that began at element `start`."""
        shape, steps = self.layout.ordered_shape, self.layout.step_sizes
        at = self._done - start
        if level > slab.level:
            rows = slab.steps * steps[slab.level] // steps[level]
            first = at // steps[level]
            inner = (n or 0 for n in shape[slab.level + 1 :])
            return values[first : first + rows].reshape(slab.steps, *inner)
        place = [at // steps[level]]
        for n in range(level + 1, slab.level + 1):
            place.append(at // steps[n] % (shape[n] or 1))
        *lead, row = place
        where: Any = (*lead, slice(row, row + slab.steps))
        part: Values = values[where]
        return part

    # -- failures

    def _settle(self) -> None:
        self._pipeline.settle()
        if self._pipeline.error is not None:
            raise self._failure() from self._pipeline.error

    def _check(self) -> None:
        if self._owner != os.getpid():
            raise WeftError(
                f"{self.sink.url} was opened by the process that this one was forked from",
                hint="record in that process, or open another array here",
            )
        if not self.is_open:
            raise WeftError(f"{self.sink.url} is closed: nothing can be appended")
        if self._limit is not None:
            raise WeftError(
                f"{self.sink.url}: appending was given up: nothing can be appended",
                hint="close it, and continue with open(url, mode='a')",
            )
        if self._pipeline.error is not None:
            raise self._failure() from self._pipeline.error

    def _failure(self) -> WeftError:
        earlier = " before, and nothing can be appended" if self._is_reported else ""
        self._is_reported = True
        return WeftError(
            f"{self.sink.url}: writing failed{earlier}: {self._pipeline.error}; {self.safe} of "
            f"{self.frames} frames are safe",
            hint="visible frames are complete; once the cause is gone, continue with "
            "open(url, mode='a')",
        )

    def _release(self) -> None:
        """Stop threads, discard incomplete shards, and release the lock."""
        try:
            self._pipeline.stop()
            self._assembler.discard()
        finally:
            self._lock.release()
