"""`Writer`: frames in, shards out, by a pipeline and a delivery."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from weft.errors import WeftError
from weft.store.assembler import Delivery
from weft.store.chunk_layout import Span, Tiling
from weft.store.dtypes import as_dtype
from weft.store.encoder import Encoder
from weft.store.metadata import Metadata
from weft.store.metrics import Clock, Metrics
from weft.store.pipeline import Pipeline, Values, pipeline_on, stages_of
from weft.store.sink import Lock, Sink
from weft.values import Point


class Closing(ABC):
    """What is used in a `with` block, and closed at its end."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Finishing(Closing):
    """What is finished even if nobody closes it: when it is dropped, or when the interpreter ends.

    A `ResourceWarning` says so, as for files. A process that is killed finishes nothing, and
    neither does a forked child: what it inherits belongs to its parent.
    """

    is_open: bool
    """Whether it is not closed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    def watch(self) -> None:
        """Finish it at the end of the interpreter, unless it is closed before."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        _WATCHED[id(self)] = weakref.ref(self)

    def unwatch(self) -> None:
        """It is closed, or belongs to something that is watched."""
        _WATCHED.pop(id(self), None)

    def finish(self) -> None:
        """Close what nobody closed, with a warning."""
        self.unwatch()
        if not self.is_open or self._process != os.getpid():
            return
        try:
            self.close()
        except Exception as error:
            warnings.warn(
                f"{self.name} was not closed, and could not be finished: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            warnings.warn(
                f"{self.name} was not closed, and has been finished", ResourceWarning, stacklevel=2
            )

    def __del__(self) -> None:
        if id(self) not in _WATCHED:
            return
        if self._thread == threading.get_ident():
            self.finish()
        else:
            # The collector runs in any thread, and one of its own would wait for itself: it lives
            # on, and is finished at the end of the interpreter.
            _WATCHED[id(self)] = partial(_same, self)


_WATCHED: dict[int, Callable[[], Finishing | None]] = {}
"""What is open, in the order in which it was opened."""


def _same(one: Finishing) -> Finishing:
    return one


@atexit.register
def _finish_all() -> None:
    """Finish what is open, the last first."""
    for number in reversed(list(_WATCHED)):
        found = _WATCHED[number]() if number in _WATCHED else None
        if found is not None:
            found.finish()


class Writer(Finishing):
    """Appends frames to a sharded array; used in a `with` block, by one thread.

    One that is never closed is finished when it is dropped or the interpreter ends, with a
    `ResourceWarning`.
    """

    def __init__(
        self,
        sink: Sink,
        metadata: Metadata,
        tiling: Tiling,
        lock: Lock,
        *,
        threads: int | None = None,
        epochs: int | None = None,
        device: str = "cpu",
        encoder: str | None = None,
    ) -> None:
        self.sink, self.metadata, self._lock = sink, metadata, lock
        self.device = device
        """Where frames are worked on: "cpu" or "cuda"."""
        self.tiling = tiling
        self.dtype = as_dtype(metadata.dtype)[1]
        self._clock = Clock(stages_of(device))
        self._delivery = Delivery(sink, metadata, self.tiling, self._clock)
        self._pipeline: Pipeline = pipeline_on(device)(
            self.tiling,
            Encoder(metadata, self.dtype),
            self._delivery,
            self._clock,
            threads=threads,
            epochs=epochs,
            by=encoder,
        )
        self._done = 0
        """Elements that have been appended, with those that were there before."""
        self._begun = 0
        """Elements that were there before."""
        self._is_told = False
        """Whether somebody has heard of what failed."""
        self.is_open = True
        self._limit: int | None = None
        """The elements behind which nothing counts, once appending was given up."""

    # -- what a person calls

    def append(self, block: Any, *, is_kept: bool = False) -> None:
        """Append one frame, or several.

        A frame has the shape `frame`: the last two dimensions as they arrive (the last, of an array
        of two dimensions), unless `frame_ndim` was given. An array of [t, y, x] takes [y, x] and
        [5, y, x]; one of [t, c, z, y, x] also takes [z, y, x] and so on. Anything else is refused
        and changes nothing. The block may be changed as soon as this returns, unless it `is_kept`:
        then after `release`.
        """
        self.append_checked(*self.check_frames(block), is_kept=is_kept)

    def append_rows(self, block: Any, *, is_kept: bool = False) -> None:
        """Append loose rows, as a line scanner gives them, which frames are made of one by one.

        The block has the sizes of the array but for its first, and may leave out leading
        dimensions: [3, x] are three rows of [t, y, x]. They need not end where a frame does.
        """
        values, level = self._checked(self._pipeline.asarray(block))
        self.append_checked(values, level, is_kept=is_kept)

    def append_checked(self, values: Values, level: int, *, is_kept: bool = False) -> None:
        """Append elements that were checked; `level` is what their first dimension is."""
        begin = time.perf_counter()
        start, stop = self._done, self._done + values.size
        self._done += self._pipeline.put_epochs(values, start)
        self._check()
        while self._done < stop:
            end = self.tiling.epoch_end(self._done)
            for span in self.tiling.spans(self._done, min(end, stop)):
                self._pipeline.put(span, self._part(values, level, start, span))
                self._check()
                self._done += span.steps * self.tiling.units[span.level]
            if self._done == end:
                self._pipeline.end(end)
        if is_kept:
            self._pipeline.keep()
        else:
            self._pipeline.release()
        self._clock.called(time.perf_counter() - begin)

    def release(self) -> None:
        """Wait until blocks are read that are kept."""
        self._pipeline.release()

    def as_block(self, block: Any) -> tuple[Any, bool]:
        """A block as an array on the writer's device, and whether it had to be sent there."""
        return self._pipeline.sent(block)

    def flush(self) -> None:
        """Wait until all that was appended is written, and let readers see every whole frame.

        They are safe then: `safe` counts them. In an object store a shard cannot be seen before it
        is whole.
        """
        self._check()
        self._settle()
        try:
            self._delivery.flush(self.elements, self._pipeline.rest(self._done))
        except OSError as error:
            self._pipeline.error = error
            self._check()

    def close(self) -> None:
        """Write what is there, and say in the metadata how much that is."""
        if not self.is_open:
            return
        self.is_open = False
        self.unwatch()
        try:
            if self._pipeline.error is None:
                self._pipeline.end(self._done)
                self._settle()
                self._finish()
            elif not self._is_told:
                raise self._failure() from self._pipeline.error
        finally:
            self._release()

    def _finish(self) -> None:
        try:
            size = self.tiling.frame_size
            self._delivery.close(-(-self.elements // size) * size if size else 0)
        except OSError as error:
            self._pipeline.error = error
            raise self._failure() from error

    def abandon(self) -> None:
        """Forget what no reader sees, and let others write."""
        self.is_open = False
        self.unwatch()
        self._release()

    def retract(self, elements: int) -> None:
        """Let nothing count that came behind so many elements, and take no more."""
        self._limit = elements

    @property
    def elements(self) -> int:
        """How many elements count: those that were there before, and those that were appended."""
        return self._done if self._limit is None else min(self._done, self._limit)

    @property
    def name(self) -> str:
        """Where it writes."""
        return self.sink.url

    def memory(self) -> int:
        """The bytes that are held at most, whatever comes: tiles, chunks, and parts of shards."""
        return self._pipeline.memory + self._delivery.memory

    def metrics(self) -> Metrics:
        """What was done so far, stage by stage."""
        return self._clock.metrics(
            rows=self.shape[self.tiling.dims[0]],
            safe=self.safe,
            size=(self._done - self._begun) * self.dtype.itemsize,
            epochs=self._pipeline.epochs,
            batches=self._pipeline.waiting,
        )

    @property
    def shape(self) -> Point:
        """The shape of what has been appended, a last row that is not whole included."""
        shape, unit = list(self.metadata.shape), self.tiling.units[0]
        shape[self.tiling.dims[0]] = (
            -(-self.elements // unit) if unit else self.tiling.sizes[0] or 0
        )
        return tuple(shape)

    @property
    def frame(self) -> Point:
        """The shape of a frame, as `append` takes it."""
        return self.tiling.frame

    @property
    def frames(self) -> int:
        """How many frames have been appended, those that were there before and a begun one too."""
        size = self.tiling.frame_size
        return -(-self.elements // size) if size else 0

    @property
    def safe(self) -> int:
        """How many frames readers see now, and after a crash; appending continues behind them."""
        return self._delivery.safe

    def start_at(self, row: int, first: int) -> None:
        """Continue at a row where shards begin, of an array of which `first` elements are there."""
        self._begun = self._done = row * self.tiling.units[0]
        self._delivery.start_at(first)

    # -- blocks

    def check_frames(self, block: Any) -> tuple[Values, int]:
        """Frames as an array that can be appended, and which dimension its first one is."""
        self._check()
        values, tiling = self._pipeline.asarray(block), self.tiling
        level = len(tiling.sizes) - values.ndim
        is_whole = level < tiling.frame_level or values.shape == tiling.frame
        if level < 0 or not is_whole or values.shape[1:] != tiling.sizes[level + 1 :]:
            frame = ", ".join(map(str, tiling.frame))
            raise WeftError(
                f"a block of {list(values.shape)} is no frame of {self.sink.url}: a frame is "
                f"[{frame}]",
                hint=f"append [{frame}] or [n, {frame}]; append_rows takes loose rows",
            )
        if not values.ndim:
            values, level = values.reshape(1), 0
        return self._fitting(values, level), level

    def _checked(self, block: Values) -> tuple[Values, int]:
        """A block that can be appended, and which dimension its first one is, as they arrive."""
        self._check()
        sizes = self.tiling.sizes
        level = len(sizes) - block.ndim
        if level < 0 or level == len(sizes) or block.shape[1:] != sizes[level + 1 :]:
            wanted = ", ".join("…" if n is None else str(n) for n in sizes)
            raise WeftError(f"a block of {list(block.shape)} does not go to rows of [{wanted}]")
        return self._fitting(block, level), level

    def _fitting(self, block: Values, level: int) -> Values:
        """A block as it is stored; refuse another data type, and one that does not fit here."""
        name = self.metadata.dtype
        if block.dtype != self.dtype or name == "bfloat16":
            if block.dtype.name != name and block.dtype != self.dtype:
                raise WeftError(f"the array holds {name}, and the block {block.dtype.name}")
            if name == "bfloat16":
                block = block.view(np.uint16)
        unit, most = self.tiling.units[level], self.tiling.most
        if unit and self._done % unit:
            raise WeftError(
                f"a block of {list(block.shape)} begins in the middle of what it is made of: "
                f"{self._done % unit} elements of {unit} are there"
            )
        if most is not None and self._done + block.size > most:
            row = most // max(1, unit)
            raise WeftError(f"row {row} lies behind the end of {list(self.tiling.sizes)}")
        return block

    def _part(self, values: Values, level: int, start: int, span: Span) -> Values:
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
        part: Values = values[where]
        return part

    # -- what can go wrong

    def _settle(self) -> None:
        self._pipeline.settle()
        if self._pipeline.error is not None:
            raise self._failure() from self._pipeline.error

    def _check(self) -> None:
        if not self.is_open:
            raise WeftError(f"{self.sink.url} is closed: nothing can be appended")
        if self._limit is not None:
            raise WeftError(f"{self.sink.url}: appending was given up: nothing can be appended")
        if self._pipeline.error is not None:
            raise self._failure() from self._pipeline.error

    def _failure(self) -> WeftError:
        before = " before, and nothing can be appended"
        told, self._is_told = before if self._is_told else "", True
        return WeftError(
            f"{self.sink.url}: writing failed{told}: {self._pipeline.error}; {self.safe} of "
            f"{self.frames} frames are safe",
            hint="what is visible is whole; go on with open(url, mode='a') once the cause is gone",
        )

    def _release(self) -> None:
        """Stop threads, forget what is not whole, and let others write."""
        try:
            self._pipeline.stop()
            self._delivery.drop()
        finally:
            self._lock.release()
