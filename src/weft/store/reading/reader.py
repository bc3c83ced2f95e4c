"""`Array`: a stored array, of which boxes are read and every byte is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.handles import Handle
from weft.store.metadata import Metadata
from weft.store.reading.fetching import Fetching, Form, Result
from weft.store.reading.memory import memory_of
from weft.store.reading.verification import Verification, VerificationError, Verifying
from weft.store.sink import Sink
from weft.store.tiling import Tiling
from weft.values import Point


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
