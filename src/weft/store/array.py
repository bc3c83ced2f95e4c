"""`Array`: a stored array, of which boxes are read and every byte is verified."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from math import prod
from operator import lt
from typing import Any, Literal, NamedTuple, overload
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.chunk_layout import ChunkLayout
from weft.store.dtypes import numpy_dtype
from weft.store.files import Folder, file_identity
from weft.store.frames import FrameTable
from weft.store.hierarchy import load_metadata
from weft.store.metadata import Metadata
from weft.store.read import BoxReader, ChunkFormat, Result, read_memory
from weft.store.selection import Gather, Selection
from weft.store.shard import ShardError, ShardIndexCache
from weft.store.sink import Sink
from weft.store.verify import IntegrityError, Verification, Verifier
from weft.store.view import LazyArray
from weft.store.zip_archive import ZipArchive
from weft.values import Point

MAX_OPEN = 64
"""Arrays that a process keeps open for what is sent to it, the last used."""

MAX_TORN = 10
"""How often metadata are read that another writer may be writing in place."""

_OPEN: dict[str, Any] = {}
_OPEN_LOCK = threading.Lock()


def _unpickle(
    token: str, kind: Callable[[Sink, Metadata], Any], sink: Sink, metadata: Metadata
) -> Any:
    """Return the array that this process has open under a token, or open it."""
    with _OPEN_LOCK:
        stored = _OPEN.pop(token, None)
        if stored is None:
            stored = kind(sink, metadata)
            stored.token = token
        _OPEN[token] = stored  # the last to be dropped
        while len(_OPEN) > MAX_OPEN:
            del _OPEN[next(iter(_OPEN))]
        return stored


def _reloaded(sink: Sink) -> Metadata:
    """Return the metadata that are stored now; not every writer replaces them at once."""
    for _ in range(MAX_TORN):
        with suppress(WeftError):
            return load_metadata(sink)
        time.sleep(0.01)
    return load_metadata(sink)


class StoredArray:
    """A stored array that is open, to read or to write; small to pickle."""

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        self.sink, self.metadata = sink, metadata
        self.dtype: np.dtype[Any] = numpy_dtype(metadata.dtype)
        self.layout = ChunkLayout.of(metadata)
        """How its chunks lie in its shards."""
        self._shards = ShardIndexCache(sink, metadata, self.layout)
        self.token = uuid4().hex
        """Identifies the array in the processes that it is sent to."""

    def __reduce__(self) -> tuple[object, ...]:
        # Each process opens it once, and keeps the indexes that it has read.
        return _unpickle, (self.token, type(self), self.sink, self.metadata)

    def __repr__(self) -> str:
        kind = f"{self.metadata.dtype}{list(self.shape)}"
        return f"<{type(self).__name__} {kind} at {self.sink.url}>"

    @property
    def shape(self) -> Point:
        """The shape of the array."""
        return self.metadata.shape

    @property
    def chunks(self) -> Point:
        """The shape of a chunk, which is encoded and decoded at once."""
        return self.metadata.chunks

    @property
    def box(self) -> ZRange:
        """The box of the whole array."""
        return ZRange.of(self.shape)

    def _check_inside(self, box: ZRange | None) -> ZRange:
        """Return a box of the array, or all of it; refuse one that is not inside."""
        whole = self.box
        if box is None:
            return whole
        if not isinstance(box, ZRange):
            raise WeftError(
                f"expected a box, a ZRange, got {box!r:.100}",
                hint="a[…] takes indices as NumPy does, and a[…].read() reads them",
            )
        if box.ndim != whole.ndim or (box not in whole and not box.is_empty):
            raise WeftError(f"{box} is not inside the array, {whole}")
        return box


class CountedRead(NamedTuple):
    """The elements of a box, and the bytes that were fetched for them."""

    values: Result
    fetched: int
    """The stored bytes that came from storage: indexes and chunks."""


class Array(StoredArray, LazyArray):
    """A Zarr array, indexed as NumPy's: its metadata, views, and boxes of it.

    Arrays of other writers and of Zarr v2 are read as well, as long as Weft has their codecs. An
    array has the shape that it had when it was opened; each read sees every shard as it is then.
    """

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        super().__init__(sink, metadata)
        self._format = ChunkFormat.of(metadata, self.layout, self.dtype)
        self._checked: tuple[int, ...] | None = None
        """The identity of the metadata's file when it was last compared with `metadata`."""
        self._read_dtype = self.dtype
        if metadata.dtype == "bfloat16":
            with suppress(ImportError):
                self.dtype = np.dtype(import_module("ml_dtypes").bfloat16)

    @property
    def _source(self) -> Array:
        return self

    @cached_property
    def _selection(self) -> Selection:
        return Selection.whole(self.shape)

    @property
    def shards(self) -> Point | None:
        """The shape of a shard, which is one file; None where each chunk is a file of its own."""
        return self.metadata.shards if self.metadata.is_sharded else None

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes; `weft.store.attributes` changes them."""
        return self.metadata.attributes

    @property
    def fill_value(self) -> Any:
        """The value of elements that are not stored, a NumPy scalar."""
        fill = self.metadata.fill
        return fill if self.dtype == self._read_dtype else fill.view(self.dtype)

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """The names of the dimensions, where they have some."""
        return self.metadata.dimension_names

    @property
    def url(self) -> str:
        """Where the array is."""
        return self.sink.url

    @cached_property
    def frames(self) -> FrameTable:
        """The metadata of the frames that were recorded, and which of them were dropped."""
        return FrameTable.load(self.sink, self.metadata)

    def shards_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """Return the boxes of the shards that a box meets, or of all."""
        grid = self.layout.shard_grid
        return map(grid.box, grid.meeting(self._check_inside(box)))

    def chunks_of(self, box: ZRange | None = None) -> Iterator[ZRange]:
        """Return the boxes of the chunks that a box meets, or of all."""
        grid = self.layout.chunk_grid
        return map(grid.box, grid.meeting(self._check_inside(box)))

    @overload
    def read(
        self,
        box: ZRange | None = None,
        out: Result | None = None,
        *,
        threads: int | None = None,
        device: Literal["cpu"] = "cpu",
    ) -> Result: ...
    @overload
    def read(
        self,
        box: ZRange | None = None,
        out: Any = None,
        *,
        threads: int | None = None,
        device: Any,
    ) -> Any: ...
    def read(
        self,
        box: ZRange | None = None,
        out: Any = None,
        *,
        threads: int | None = None,
        device: Any = "cpu",
    ) -> Any:
        """Return the elements of a box, or all of them; chunks that are not stored are fill value.

        At most `threads` threads fetch and decode; as many as there are cores unless given. With
        `device="cuda"`, `"cuda:1"` or a device of CuPy, chunks are decoded on that GPU, and the
        result is a CuPy array.
        """
        if isinstance(device, str) and device == "cpu":
            return self.read_counted(box, out, threads=threads).values
        if isinstance(device, str) and device.partition(":")[0] != "cuda":
            raise WeftError(f"device: {device!r} is not a device", hint="'cpu', 'cuda', 'cuda:1'")
        from weft.store.cuda.read import read_to_device

        wanted = self._check_inside(box)
        self._check_unchanged()
        return read_to_device(self, self._format, self._shards, wanted, out, device, threads)

    def read_counted(
        self, box: ZRange | None = None, out: Result | None = None, *, threads: int | None = None
    ) -> CountedRead:
        """Return the elements of a box and the bytes that were fetched; cached indexes count 0."""
        wanted = self._check_inside(box)
        target = self._allocate(wanted) if out is None else self._check_out(out, wanted)
        self._check_unchanged()
        reader = BoxReader(self._format, self._shards, threads)
        reader.fill(wanted, target)
        self._check_found(reader, target)
        return CountedRead(target if out is None else out, reader.fetched)

    def _gather(self, wanted: Gather, threads: int | None = None) -> Result:
        """Return the elements that an index selects."""
        if 0 in wanted.result:
            return np.empty(wanted.result, self.dtype)
        box = wanted.box
        if box is not None:
            values = self.read(box, threads=threads)
        else:
            self._check_unchanged()
            reader = BoxReader(self._format, self._shards, threads)
            parts, picks = wanted.around() or (wanted.parts, ())
            values = self._allocate(ZRange.of([part.size for part in parts]))
            reader.gather(parts, values)
            self._check_found(reader, values)
            values = values[picks] if picks else values
        if self.metadata.dtype == "bfloat16":
            if self.dtype == self._read_dtype:
                raise WeftError(
                    f"{self.sink.url}: the values of bfloat16 need ml_dtypes",
                    hint="install it, or use read(), which returns their bits",
                )
            values = values.view(self.dtype)
        return wanted.arrange(values)

    def read_memory(self, box: ZRange | None = None, *, threads: int | None = None) -> int:
        """Return the most bytes that reading a box takes beside the result.

        Indexes that the array caches from then on are included.
        """
        return read_memory(self._format, self._shards, self._check_inside(box), threads)

    def rows(self, step: int, dim: int = 0, start: int = 0) -> Iterator[Result]:
        """Yield the array from a row of a dimension on, in boxes of `step` rows."""
        low, high = [0] * len(self.shape), list(self.shape)
        if step < 1 or not -self.ndim <= dim < self.ndim:
            raise WeftError(f"{step} rows at a time of dimension {dim} of {self.ndim}")
        for row in range(start, self.shape[dim], step):
            low[dim], high[dim] = row, min(row + step, self.shape[dim])
            yield self.read(ZRange(low, high))

    def verify(self, progress: Callable[[int, int], None] | None = None) -> Verification:
        """Read every stored byte of the array, and raise `IntegrityError` if any is wrong.

        The result counts the chunks that matched their checksum, and those that have none and
        were only decoded. The error lists the findings: chunks that do not match or do not decode,
        indexes that do not match their checksum, overlap or point outside their shard, shards that
        are missing, torn or longer than their index says. `progress` is called with the shards
        and chunks read so far.
        """
        self._check_unchanged()
        result = Verifier(self._format, self._shards).verify(progress)
        if result.faults:
            raise IntegrityError(self.sink.url, result)
        return result

    # -- changes by others

    def _check_unchanged(self) -> None:
        """Refuse to read an array that was removed, replaced or cut since it was opened.

        Its shards would be missing, and read as fill value, or hold elements of another kind. A
        file is compared when it has changed; a server is asked only where nothing is found.
        """
        if isinstance(self.sink, Folder):
            file = f"{self.sink.path}/{self._file}"
        elif isinstance(self.sink, ZipArchive):
            file = os.fspath(self.sink.path)
        else:
            return
        try:
            identity = file_identity(os.stat(file))
        except OSError:
            raise self._gone() from None
        if identity != self._checked:
            self._check_metadata(_reloaded(self.sink))
            self._checked = identity

    def _check_found(self, reader: BoxReader, values: Result) -> None:
        """Refuse what a server reads as fill value because the array is not there any more."""
        if reader.has_found or not values.size or isinstance(self.sink, Folder):
            return
        if not reader.is_there(self._file):
            raise self._gone()

    @property
    def _file(self) -> str:
        """The name of the file with the metadata."""
        return "zarr.json" if self.metadata.zarr_format == 3 else ".zarray"

    def _gone(self) -> ShardError:
        return ShardError(f"{self.url}: the array is gone: there is no {self._file} any more")

    def _check_metadata(self, now: Metadata) -> None:
        """Refuse metadata of another array; it may have grown, and have other attributes."""
        old, hint = self.metadata, "open it again"
        if len(now.shape) == len(old.shape) and any(map(lt, now.shape, old.shape)):
            text = f"the array was {list(old.shape)} when it was opened, and is {list(now.shape)}"
            raise ShardError(f"{self.url}: {text}", hint=hint)
        unread = ("shape", "attributes", "dimension_names", "extensions")
        same = replace(now, **{name: getattr(old, name) for name in unread})
        if same != old and repr(same) != repr(old):  # NaNs differ from themselves
            raise ShardError(
                f"{self.url}: another array is there than when it was opened", hint=hint
            )

    def _facts(self) -> dict[str, str]:
        of, metadata = super()._facts(), self.metadata
        of["chunks"] = f"{list(self.chunks)}, {self.layout.chunk_grid.size} in all"
        if metadata.is_sharded:
            of["shards"] = f"{list(metadata.shards)}, {self.layout.shard_grid.size} in all"
        of["codecs"] = ", ".join(codec.name for codec in metadata.codecs) or "none"
        of["fill value"] = str(self.fill_value)
        if metadata.dimension_names is not None:
            of["dimensions"] = ", ".join(str(name) for name in metadata.dimension_names)
        return of | {"Zarr": f"version {metadata.zarr_format}", "at": self.sink.url}

    @property
    def info(self) -> str:
        """What the array is, in lines of text."""
        facts = self._facts()
        return "\n".join(f"{key:12}{value}" for key, value in facts.items())

    def _allocate(self, box: ZRange) -> Result:
        try:
            return np.empty(box.shape, self._read_dtype)
        except (MemoryError, ValueError) as error:  # a ValueError where it is beyond any memory
            size = prod(box.shape) * self.dtype.itemsize
            raise WeftError(
                f"not enough memory for the {size} B of {box} of {self.sink.url}: {error}",
                hint="read smaller boxes",
            ) from None

    def _check_out(self, out: Result, box: ZRange) -> Result:
        if not isinstance(out, np.ndarray):
            raise WeftError(f"out: expected a NumPy array, got {type(out).__name__}")
        is_bfloat16 = self.metadata.dtype == out.dtype.name == "bfloat16"
        target = out.view(np.uint16) if is_bfloat16 else out
        if (
            target.shape != box.shape
            or target.dtype != self._read_dtype
            or not target.flags.writeable
        ):
            kind = out.dtype.name if out.dtype.isnative else f"byte-swapped {out.dtype.name}"
            raise WeftError(
                f"out must be a writeable {self.metadata.dtype}{list(box.shape)} to hold {box}, "
                f"got {'' if out.flags.writeable else 'read-only '}{kind}{list(out.shape)}"
            )
        return target
