"""What is sent from process to process, opened once in each: handles to stored arrays.

`Array`: a stored array, of which boxes are read and every byte is verified.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.chunk_layout import Grid, Tiling
from weft.store.dtypes import as_dtype
from weft.store.metadata import Metadata
from weft.store.read import Fetching, Form, Result, memory_of
from weft.store.shard import Shards
from weft.store.sink import Sink
from weft.store.verify import Verification, VerificationError, Verifying
from weft.values import Point

KEPT = 64
"""Handles that a process keeps open, those that were last used."""

_HELD: dict[str, Any] = {}
_LOCK = threading.Lock()


def arrived(
    token: str, make: Callable[[Sink, Metadata], Any], sink: Sink, metadata: Metadata
) -> Any:
    """The handle that is known by a token here; made of what came along if it is the first time."""
    with _LOCK:
        handle = _HELD.pop(token, None)
        if handle is None:
            handle = make(sink, metadata)
            handle.token = token
        _HELD[token] = handle  # the last to be dropped
        while len(_HELD) > KEPT:
            del _HELD[next(iter(_HELD))]
        return handle


class Handle:
    """A stored array that is open, to read or to write; small, and known again where it is sent."""

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        self.sink, self.metadata = sink, metadata
        self.dtype: np.dtype[Any] = as_dtype(metadata.dtype)[1]
        small = tuple(max(1, n) for n in metadata.chunks)
        large = tuple(max(1, n) for n in metadata.shards)
        self._grid = Grid(small, large, metadata.order, self.dtype.itemsize)
        self._shards = Shards(sink, metadata, self._grid)
        self.token = uuid4().hex
        """What it is known by where it has been sent to."""

    def __reduce__(self) -> tuple[object, ...]:
        # What is sent is opened once in each process, and keeps the indexes that it has read.
        return arrived, (self.token, type(self), self.sink, self.metadata)

    def __repr__(self) -> str:
        what = f"{self.metadata.dtype}{list(self.shape)}"
        return f"<{type(self).__name__} {what} at {self.sink.url}>"

    @property
    def shape(self) -> Point:
        """The shape of the array."""
        return self.metadata.shape

    @property
    def chunks(self) -> Point:
        """The shape of a chunk: what is encoded and decoded at once."""
        return self.metadata.chunks

    @property
    def shards(self) -> Point:
        """The shape of a shard: what is one file."""
        return self.metadata.shards


class Counted(NamedTuple):
    """The elements of a box, and what it took to read them."""

    values: Result
    fetched: int
    """The bytes that came from storage, as they are stored: indexes and chunks."""


class Array(Handle):
    """A Zarr v3 array: its metadata, and boxes of it.

    What was written by others is read as well, as long as its codecs are known here. An array is as
    large as it was when it was opened; each read sees every shard as it is then.
    """

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        super().__init__(sink, metadata)
        self.tiling = Tiling(metadata.shape, self._grid.chunks, self._grid.shards)
        self._form = Form.of(metadata, self._grid, self.dtype)

    @property
    def box(self) -> ZRange:
        """All of the array."""
        return ZRange.of(self.shape)

    def shards_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """The shards that a box meets, or all: their boxes, as far as the array goes."""
        return self._blocks(self._inside(box), self._grid.shards)

    def chunks_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """The chunks that a box meets, or all: their boxes, as far as the array goes."""
        return self._blocks(self._inside(box), self._grid.chunks)

    def _blocks(self, box: ZRange, sizes: Point) -> Iterator[ZRange]:
        if box.is_empty:
            return iter(())
        start = [low // n * n for low, n in zip(box.start, sizes)]
        stop = [min(-(-high // n) * n, end) for high, n, end in zip(box.stop, sizes, self.shape)]
        return ZRange(start, stop).tiles(sizes)

    # -- what a person calls

    def read(
        self, box: ZRange | None = None, out: Result | None = None, *, threads: int | None = None
    ) -> Result:
        """The elements of a box, or all of them; chunks that are not stored are fill value.

        At most so many `threads` fetch and decode; where none are said, as many as there are cores.
        """
        return self.read_counted(box, out, threads=threads).values

    def read_counted(
        self, box: ZRange | None = None, out: Result | None = None, *, threads: int | None = None
    ) -> Counted:
        """The same, and the bytes that were fetched for it; an index that is held takes none."""
        wanted = self._inside(box)
        made = self._empty(wanted) if out is None else self._room(out, wanted)
        fetching = Fetching(self._form, self._shards, threads)
        fetching.fill(wanted, made)
        return Counted(made if out is None else out, fetching.fetched)

    def read_memory(self, box: ZRange | None = None, *, threads: int | None = None) -> int:
        """The bytes that reading a box takes at most, beside the result.

        Indexes that the array holds from then on are among them.
        """
        return memory_of(self._form, self._shards, self._inside(box), threads)

    def rows(self, step: int, dim: int = 0, start: int = 0) -> Iterator[Result]:
        """The array from a row of a dimension on, in boxes of so many rows."""
        size = self.shape[dim]
        for row in range(start, size, step):
            low, high = [0] * len(self.shape), list(self.shape)
            low[dim], high[dim] = row, min(row + step, size)
            yield self.read(ZRange(low, high))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        """Read every stored byte of the array, and raise `VerificationError` if any is wrong.

        The result says how many chunks matched their checksum, and how many have none and were
        only decoded. The error lists what was found: chunks that do not match or do not decode,
        indexes that do not match their checksum, overlap or point outside their shard, shards that
        are missing, torn or longer than what their index says. `progress` is called with the shards
        and chunks read so far.
        """
        found = Verifying(self._form, self._shards).verify(self.shape, progress)
        if found.faults:
            raise VerificationError(self.sink.url, found)
        return found

    def _inside(self, box: ZRange | None) -> ZRange:
        whole = self.box
        if box is None:
            return whole
        if box.ndim != whole.ndim or (box not in whole and not box.is_empty):
            raise WeftError(f"{box} is not inside the array, {whole}")
        return box

    def _empty(self, box: ZRange) -> Result:
        try:
            return np.empty(box.shape, self.dtype)
        except (MemoryError, ValueError) as error:  # a ValueError where it is beyond any memory
            size = prod(box.shape) * self.dtype.itemsize
            raise WeftError(
                f"there is no memory for the {size} B of {box} of {self.sink.url}: {error}",
                hint="read smaller boxes",
            ) from None

    def _room(self, out: Result, box: ZRange) -> Result:
        made = out.view(np.uint16) if self.metadata.dtype == out.dtype.name == "bfloat16" else out
        if made.shape != box.shape or made.dtype != self.dtype or not made.flags.writeable:
            raise WeftError(
                f"out is {out.dtype.name}{list(out.shape)}, and {box} is "
                f"{self.metadata.dtype}{list(box.shape)}, to be written to"
            )
        return made
