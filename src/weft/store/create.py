"""`create` makes an array to append to; `open` opens what is stored, to read or to append to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from weft.errors import WeftError
from weft.store.array import Array
from weft.store.assembler import SHARD_SLOT_MEMORY
from weft.store.chunk_layout import FrameLayout, check_frame_ndim, resolve_axis_order
from weft.store.codecs import CodecLike
from weft.store.dtypes import as_dtype
from weft.store.files import Folder
from weft.store.hierarchy import load_metadata, sink_of
from weft.store.lock import FileLock
from weft.store.metadata import (
    Metadata,
    check_shapes,
    make_metadata,
    own_attributes,
    without_elements,
    without_own,
)
from weft.store.sink import Lock, Sink, Url, writing
from weft.store.target import check_target, recover, remove_after_end, replace
from weft.store.writer import Writer
from weft.values import Point, as_count, check_list

MAX_PLANE = 1 << 24
"""Bytes of the largest plane of frames that is buffered whole; of a larger one, a row of tiles."""


def create(
    url: Url | Sink,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    codecs: CodecLike | Sequence[CodecLike] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    append_dim: int = 0,
    axis_order: Sequence[int] | None = None,
    frame_ndim: int | None = None,
    order: Sequence[int] = (),
    endian: Literal["little", "big"] = "little",
    index_location: Literal["start", "end"] = "end",
    overwrite: bool = False,
    fsync: bool = False,
    direct: bool | None = None,
    threads: int | None = None,
    epochs: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    encoder: Literal["weft", "nvcomp"] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Writer:
    """Create an array, and return a writer to which frames are appended.

    Codecs are values, names ("zstd", "blosc-lz4", …), or dictionaries as in `zarr.json`. Every
    chunk has a CRC32C of its stored bytes, unless `checksum` is False. Frames are appended along
    `append_dim`, whose size may be None: the array then has no end. `axis_order` lists all
    dimensions in the order in which frames count through them, the slowest first, where that is
    not the order in which they are stored; `order` is the order of the dimensions inside chunks,
    as in the codec `transpose`. A frame is the last two dimensions that arrive, or the last
    `frame_ndim`. `direct` says whether files bypass the page cache; unless given, large shards on
    a disk do. `threads` encode; `epochs` of tiles are buffered, at least two. With `device="cuda"`
    a GPU does all of that, and `encoder` says whose kernels encode where there are two. `options`
    are those of the object store.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create(f"{folder}/a", (None, 5), "uint8", (2, 3), (4, 6)) as writer:
    ...         writer.append(np.arange(15, dtype="uint8").reshape(3, 5))
    ...     print(open_array(f"{folder}/a").read())
    [[ 0  1  2  3  4]
     [ 5  6  7  8  9]
     [10 11 12 13 14]]
    """
    planned = plan_array(
        sink_of(url, options=options, fsync=fsync),
        shape,
        dtype,
        chunks,
        shards,
        codecs=codecs,
        checksum=checksum,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes=attributes,
        append_dim=append_dim,
        axis_order=axis_order,
        frame_ndim=frame_ndim,
        order=order,
        endian=endian,
        index_location=index_location,
        direct=direct,
        threads=threads,
        epochs=epochs,
        device=device,
        encoder=encoder,
    )
    return planned.create(overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that can be created: its arguments are checked, and nothing is written yet."""

    sink: Sink
    metadata: Metadata
    layout: FrameLayout
    direct: bool | None
    writer_options: Mapping[str, Any]
    """The threads, epochs, device and encoder of the `Writer`."""

    def create(self, *, overwrite: bool) -> Writer:
        """Create the array, and return its writer."""
        hint = "pass overwrite=True, or continue with open(url, mode='a')"
        check_target(self.sink, overwrite, hint)
        with locked(self.sink) as lock:
            writer = self.writer(lock)
            try:
                begin(self.sink, self.metadata, overwrite)
            except BaseException:
                writer.abandon()
                raise
            writer.watch()
            return writer

    def writer(self, lock: Lock) -> Writer:
        """Return a writer on the sink, tuned for the size of its shards."""
        size = prod(self.metadata.shards) * as_dtype(self.metadata.dtype)[1].itemsize
        tuned = self.sink.tuned(size, 2 * self.layout.shards_per_row, self.direct)
        if isinstance(tuned, Folder) and isinstance(lock, FileLock):
            tuned = tuned.held_by(lock)
        return Writer(tuned, self.metadata, self.layout, lock, **self.writer_options)


def plan_array(
    sink: Sink,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    append_dim: int = 0,
    axis_order: Sequence[int] | None = None,
    frame_ndim: int | None = None,
    attributes: Mapping[str, Any] | None = None,
    direct: bool | None = None,
    threads: int | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    encoder: str | None = None,
    **more: Any,
) -> PlannedArray:
    """Check the arguments of `create`; nothing is written."""
    check_list(shape, "shape")
    axes = resolve_axis_order(len(shape), append_dim, axis_order)
    size, small, large = check_shapes(shape, chunks, shards, axes[0])
    kept = without_own(attributes)
    own = dict(own_attributes(kept))
    if axes != tuple(range(len(size))):
        own["axis_order"] = list(axes)
    if frame_ndim is not None:
        own["frame_ndim"] = check_frame_ndim(frame_ndim, len(size))
    metadata = make_metadata(
        tuple(0 if dim == axes[0] else n or 0 for dim, n in enumerate(size)),
        dtype,
        small,
        large,
        attributes=kept | {"weft": own},
        **more,
    )
    layout = _layout(metadata, size, device)
    check_memory(layout, as_dtype(metadata.dtype)[1].itemsize)
    for what, count in (("threads", threads), ("epochs", epochs)):
        if count is not None and not as_count(count, what):
            raise WeftError(f"{what} is 0; it must be 1 or more")
    options = {"threads": threads, "epochs": epochs, "device": device, "encoder": encoder}
    return PlannedArray(sink, metadata, layout, direct, options)


def _layout(metadata: Metadata, shape: tuple[int | None, ...], device: str) -> FrameLayout:
    """Return the layout of frames; small planes are buffered whole, as all are on a GPU."""
    planes = FrameLayout.stored(metadata, shape, whole_planes=True)
    itemsize = as_dtype(metadata.dtype)[1].itemsize
    is_small = planes.tiles_per_epoch * prod(planes.chunks) * itemsize <= MAX_PLANE
    return planes if device == "cuda" or is_small else FrameLayout.stored(metadata, shape)


def check_memory(layout: FrameLayout, itemsize: int) -> None:
    """Refuse an array whose buffers cannot fit the memory of this machine."""
    tile = prod(layout.chunks) * itemsize
    memory = check_chunk(layout.chunks, itemsize)
    indexes = layout.shards_per_row * layout.slots * SHARD_SLOT_MEMORY
    needed = 2 * (layout.tiles_per_epoch * tile + indexes)
    if needed > memory:
        sizes = ["…" if n is None else n for n in layout.shape]
        raise WeftError(
            f"frames of {sizes} need buffers of {needed} B, and this machine has {memory} B: "
            f"{layout.tiles_per_epoch} chunks of {tile} B are filled at a time",
            hint="append along a dimension whose steps are smaller, or use create_shards",
        )


def check_chunk(chunks: Point, itemsize: int) -> int:
    """Refuse a chunk that the memory of this machine cannot hold; return the bytes of memory."""
    size = prod(chunks) * itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise WeftError(f"a chunk of {list(chunks)} has {size} B, and this machine has {memory} B")
    return memory


def begin(sink: Sink, metadata: Metadata, overwrite: bool) -> None:
    """Write the metadata of a new array, replacing what may be replaced; the sink is locked."""
    recover(sink)
    check_target(sink, overwrite)
    text, empty = metadata.to_json().encode(), without_elements(metadata).to_json().encode()
    replace(sink, text, empty=empty)


@contextmanager
def locked(sink: Sink) -> Iterator[Lock]:
    """Hold the lock of a store; if the block fails, release it and remove new empty folders."""
    with writing(sink.url):
        absent = sink.absent() if isinstance(sink, Folder) else []
        try:
            lock = sink.lock()
            try:
                yield lock
            except BaseException:
                lock.release()
                raise
        except BaseException:
            with suppress(OSError):  # it holds something, or was never created
                for folder in absent:
                    folder.rmdir()
            raise


# -- arrays that exist


def open_array(url: Url | Sink, *, options: Mapping[str, Any] | None = None) -> Array:
    """Open a stored array to read it."""
    sink = sink_of(url, options=options)
    return Array(sink, load_metadata(sink))


def continue_array(
    url: Url | Sink,
    *,
    threads: int | None = None,
    fsync: bool = False,
    direct: bool | None = None,
    options: Mapping[str, Any] | None = None,
    rows: int | None = None,
) -> Writer:
    """Open a stored array to append frames.

    Complete shards stay as they are. A short last one is written again once a frame is appended,
    and stays visible in its old form until then. Unfinished files of a writer that was killed are
    removed. `rows` says how many rows are kept, unless all: later ones stay visible until they are
    appended again.
    """
    sink = sink_of(url, options=options, fsync=fsync)
    Metadata.load(sink)  # before anything is created to lock it
    with locked(sink) as lock:
        recover(sink)
        metadata = Metadata.load(sink)
        sink.sweep()
        remove_after_end(sink)
        if not metadata.is_sharded:
            raise WeftError(f"{sink.url} has no shards: frames are appended to sharded arrays only")
        is_plain = metadata.has_checksum and metadata.index_endian == "little"
        if not metadata.is_writable or not is_plain or 0 in metadata.shards:
            raise WeftError(f"{sink.url} has shards of a kind that is read, but not written")
        stored = FrameLayout.stored(metadata)
        shape = [None if dim == stored.append_axis else n for dim, n in enumerate(metadata.shape)]
        layout = _layout(metadata, tuple(shape), "cpu")
        planned = PlannedArray(sink, metadata, layout, direct, {"threads": threads})
        writer = planned.writer(lock)
    try:
        _continue(writer, rows)
    except BaseException:
        writer.abandon()
        raise
    writer.watch()
    return writer


def _continue(writer: Writer, rows: int | None) -> None:
    """Let a writer continue its array: a last row of shards that is short is appended again."""
    metadata, layout = writer.metadata, writer.layout
    elements = layout.promised_elements(metadata)
    stop = elements if rows is None else min(elements, rows * layout.step_sizes[0])
    size = metadata.shards[layout.append_axis]
    row = stop // max(1, layout.step_sizes[0]) // size * size
    step, array = metadata.chunks[layout.append_axis], Array(writer.sink, metadata)
    writer.continue_from(elements, row, lambda: promised_blocks(array, layout, step, row, stop))


def promised_blocks(
    array: Array, layout: FrameLayout, step: int, start: int, stop: int | None = None
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield what a writer promised from a row on, in arrival order: whole rows, then frames.

    With `stop`, only the elements before it.
    """
    row = layout.step_sizes[0]
    left = (layout.promised_elements(array.metadata) if stop is None else stop) - start * row
    for block in array.rows(step, layout.append_axis, start):
        rows = block.transpose(layout.axis_order)
        count = min(len(rows), left // row) if row else len(rows)
        if count:
            yield rows[:count]
        if count < len(rows):
            frames = rows[count].reshape(-1, *layout.frame_shape)
            if short := left // layout.frame_size % layout.frames_per_row:
                yield frames[:short]
            return
        left -= rows.size
