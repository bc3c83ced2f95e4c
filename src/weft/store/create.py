"""What a new array needs: metadata that go together, and a place that is free.

`create` and `open_array`: a new array to write to, and one that is there to read.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, overload

import numpy as np

from weft.errors import WeftError
from weft.store.array import Array
from weft.store.chunk_layout import Tiling
from weft.store.codecs import Said, as_codecs, with_checksum
from weft.store.dtypes import as_dtype, write_fill
from weft.store.files import Folder
from weft.store.hierarchy import sink_of
from weft.store.metadata import EVERY_SHARD, Metadata, checked
from weft.store.sink import Lock, Sink, Url
from weft.store.target import check_target, recover, remove_behind, replace
from weft.store.writer import Writer
from weft.values import FrozenMap, Point

OWN = ("arrival", "frame_ndim", "frames", EVERY_SHARD)
"""What Weft says of an array in the attribute `weft`."""


def without_own(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes without what Weft says of the array that they were copied from."""
    kept = dict(attributes or {})
    if isinstance(kept.get("weft"), Mapping):
        kept["weft"] = {key: value for key, value in kept["weft"].items() if key not in OWN}
    return kept


def described(
    shape: Point,
    dtype: Any,
    chunks: Point,
    shards: Point,
    *,
    codecs: Said | Sequence[Said] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    endian: str = "little",
    index_location: str = "end",
    is_sharded: bool = True,
) -> Metadata:
    """Return the metadata of a new array; what does not go together is refused.

    With `checksum`, every chunk carries a CRC32C of its stored bytes. The attribute "weft" promises
    that every shard is stored, those that are all fill value too.

    >>> described((9, 9), "uint8", (2, 2), (4, 4), codecs="zstd").codecs
    (Zstd(level=1, checksum=False, table=0), Crc32c())
    """
    name, kind = as_dtype(dtype)
    _one_of("index_location", index_location, "start", "end")
    _one_of("endian", endian, "little", "big")
    if order and sorted(order) != list(range(len(shape))):
        raise WeftError(f"{list(order)} is no order of {len(shape)} dimensions")
    if dimension_names is not None and len(dimension_names) != len(shape):
        raise WeftError(f"{len(dimension_names)} names for {len(shape)} dimensions")
    chain = as_codecs(codecs, kind.itemsize)
    given = dict(attributes or {})
    weft = given["weft"] if isinstance(given.get("weft"), Mapping) else {}
    given["weft"] = {**weft, EVERY_SHARD: True}
    return Metadata(
        shape,
        name,
        chunks,
        shards,
        with_checksum(chain) if checksum else chain,
        write_fill(name, fill_value),
        tuple(order),
        endian,
        index_location,
        None if dimension_names is None else tuple(dimension_names),
        FrozenMap(given.items()),
        is_sharded,
    )


def _one_of(what: str, said: str, one: str, other: str) -> None:
    if said not in (one, other):
        raise WeftError(f"{what}: {said!r} is neither {one} nor {other}")


def check_chunk(chunks: Point, itemsize: int) -> int:
    """Refuse a chunk that the memory of this machine cannot hold; return the bytes of that."""
    size = prod(chunks) * itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise WeftError(f"a chunk of {list(chunks)} has {size} B, and this machine has {memory} B")
    return memory


def begin(sink: Sink, metadata: Metadata, overwrite: bool) -> None:
    """Write the metadata of a new array, in place of what may be replaced; the sink is locked."""
    recover(sink)
    check_target(sink, overwrite)
    text, empty = metadata.to_json().encode(), without_elements(metadata).to_json().encode()
    replace(sink, text, empty=empty)


def without_elements(metadata: Metadata) -> Metadata:
    """The metadata of the same array, but without elements."""
    if 0 in metadata.shape:
        return metadata
    if metadata.shape:
        return dataclasses.replace(metadata, shape=(0, *metadata.shape[1:]))
    return Metadata((0,), metadata.dtype, (1,), (1,), is_sharded=False)


@contextmanager
def locked(sink: Sink) -> Iterator[Lock]:
    """Hold the lock of a store; if the block fails it is released, and no new folder stays."""
    try:
        absent = sink.absent() if isinstance(sink, Folder) else []
        try:
            lock = sink.lock()
            try:
                yield lock
            except BaseException:
                lock.release()
                raise
        except BaseException:
            with suppress(OSError):  # it holds something, or was never made
                for folder in absent:
                    folder.rmdir()
            raise
    except OSError as error:
        raise WeftError(f"{sink.url} cannot be written: {error}") from error


def create(
    url: Url | Sink,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    codecs: Said | Sequence[Said] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    append_dim: int = 0,
    arrival: Sequence[int] | None = None,
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
    """A new array, to which frames are appended.

    Codecs are values, names ("zstd", "blosc-lz4", …), or what metadata say of them. Every chunk
    carries a CRC32C of its stored bytes, unless `checksum` is False. Frames are
    appended along `append_dim`, whose size may be None: it then has no end, and in the end
    as many as came. `arrival` lists all dimensions as frames count through them, where that is
    not the order in which they are stored; `order` is that of the dimensions inside chunks, as the
    codec `transpose` has it. A frame is the last two dimensions as they arrive, or the last
    `frame_ndim`. `direct` says whether files are written past the page cache; where it
    is not said, large shards on a disk are. `threads` compress; `epochs` of tiles are held, at
    least two. On `device="cuda"` all of that is done by a GPU, and `encoder` says whose kernels
    compress where there are two. `options` are those of the object store.

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
        arrival=arrival,
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
    return planned.writer(overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class PlannedArray:
    """An array that can be created: all that is given goes together, and nothing is written yet."""

    sink: Sink
    metadata: Metadata
    tiling: Tiling
    direct: bool | None
    how: Mapping[str, Any]
    """What `Writer` takes: threads, epochs, device, encoder."""

    def writer(self, *, overwrite: bool) -> Writer:
        """Create the array, and return what frames are appended to."""
        hint = "pass overwrite=True, or continue with open(url, mode='a')"
        check_target(self.sink, overwrite, hint)
        with locked(self.sink) as lock:
            writer = self._writer(lock)
            try:
                begin(self.sink, self.metadata, overwrite)
            except BaseException:
                writer.abandon()
                raise
            writer.watch()
            return writer

    def _writer(self, lock: Lock) -> Writer:
        """A writer on the sink as it is best for its shards."""
        size = prod(self.metadata.shards) * as_dtype(self.metadata.dtype)[1].itemsize
        suited = self.sink.suited(size, 2 * self.tiling.across, self.direct)
        return Writer(suited, self.metadata, self.tiling, lock, **self.how)


def plan_array(
    sink: Sink,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    append_dim: int = 0,
    arrival: Sequence[int] | None = None,
    frame_ndim: int | None = None,
    attributes: Mapping[str, Any] | None = None,
    direct: bool | None = None,
    threads: int | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    encoder: str | None = None,
    **more: Any,
) -> PlannedArray:
    """Check what `create` is given, and describe the array; nothing is written."""
    dims = arrival_order(len(shape), append_dim, arrival)
    size, small, large = checked(shape, chunks, shards or chunks, dims[0])
    said = dict(attributes or {})
    weft = {key: value for key, value in _weft(said).items() if key not in OWN}
    if dims != tuple(range(len(size))):
        weft["arrival"] = list(dims)
    if frame_ndim is not None:
        weft["frame_ndim"] = _frame_ndim(frame_ndim, len(size))
    if weft:
        said["weft"] = weft
    elif _weft(said):
        del said["weft"]
    metadata = described(
        tuple(0 if dim == dims[0] else n or 0 for dim, n in enumerate(size)),
        dtype,
        small,
        large,
        attributes=said,
        **more,
    )
    tiling = Tiling(size, small, large, dims, device == "cuda", frame_ndim_of(metadata, dims))
    check_memory(tiling, as_dtype(metadata.dtype)[1].itemsize)
    how = {"threads": threads, "epochs": epochs, "device": device, "encoder": encoder}
    return PlannedArray(sink, metadata, tiling, direct, how)


def check_memory(tiling: Tiling, itemsize: int) -> None:
    """Refuse an array whose buffers cannot fit the memory of this machine, before any is made."""
    tile = prod(tiling.chunks) * itemsize
    memory = check_chunk(tiling.chunks, itemsize)
    needed = 2 * (tiling.tiles * tile + tiling.across * tiling.slots * INDEXED)
    if needed > memory:
        sizes = ["…" if n is None else n for n in tiling.shape]
        raise WeftError(
            f"frames of {sizes} need buffers of {needed} B, and this machine has {memory} B: "
            f"{tiling.tiles} chunks of {tile} B are filled at a time",
            hint="append along a dimension whose steps are smaller, or use create_shards",
        )


def arrival_order(rank: int, append_dim: int, arrival: Sequence[int] | None) -> Point:
    """The dimensions as frames count through them."""
    if not -rank <= append_dim < rank:
        raise WeftError(f"append_dim: there is no dimension {append_dim} of {rank}")
    outer = append_dim % rank
    if arrival is None:
        return (outer, *(dim for dim in range(rank) if dim != outer))
    dims = tuple(int(dim) for dim in arrival)
    if sorted(dims) != list(range(rank)):
        raise WeftError(f"arrival: {list(dims)} is no order of {rank} dimensions")
    if append_dim and dims[0] != outer:
        raise WeftError(
            f"arrival: frames count through dimension {dims[0]} last, and are appended along "
            f"{outer}: the two must be one"
        )
    return dims


def arrival_of(metadata: Metadata) -> Point:
    """The dimensions of an array that is there, as its elements arrived."""
    arrival = _weft(metadata.attributes).get("arrival")
    if arrival is not None and not (
        isinstance(arrival, list) and all(type(dim) is int for dim in arrival)
    ):
        raise WeftError(f"attributes.weft.arrival: a list of dimensions is wanted, got {arrival!r}")
    return arrival_order(len(metadata.shape), 0, arrival)


INDEXED = 64
"""Bytes that a shard holds for each of its chunks while it is written."""

COLOURS = (3, 4)
"""Samples of a colour: red, green and blue, and perhaps an opacity."""


def frame_ndim_of(metadata: Metadata, dims: Point) -> int:
    """How many dimensions a frame has, the last of those that arrive.

    As was given; else from y or x on, where dimensions have these names; else two, or three where
    the last has 3 or 4 elements, fewer than each of the two before: colours. All but one, at most.

    >>> chunk = (1, 64, 48, 3)
    >>> frame_ndim_of(Metadata((0, 64, 48, 3), "uint8", chunk, chunk), (0, 1, 2, 3))
    3
    """
    rank, given = len(dims), _weft(metadata.attributes).get("frame_ndim")
    if given is not None:
        return _frame_ndim(given, rank)
    said = metadata.dimension_names or [None] * rank
    names = [said[dim] for dim in dims]
    if "x" in names and "y" in names:
        return min(rank - min(names.index("x"), names.index("y")), rank - 1)
    sizes = [metadata.shape[dim] for dim in dims]
    is_colour = rank > 3 and sizes[-1] in COLOURS and min(sizes[-3:-1]) > sizes[-1]
    return min(3 if is_colour else 2, rank - 1)


def _frame_ndim(given: Any, rank: int) -> int:
    if type(given) is not int or not 0 <= given < rank:
        raise WeftError(f"frame_ndim: {given!r}, where 0 to {rank - 1} of {rank} dimensions can be")
    return given


def _weft(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    found = attributes.get("weft")
    return found if isinstance(found, dict) else {}


@overload
def open_array(
    url: Url, mode: Literal["r"] = "r", *, options: Mapping[str, Any] | None = None
) -> Array: ...


@overload
def open_array(
    url: Url,
    mode: Literal["a"],
    *,
    threads: int | None = None,
    fsync: bool = False,
    direct: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Writer: ...


def open_array(
    url: Url,
    mode: str = "r",
    *,
    threads: int | None = None,
    fsync: bool = False,
    direct: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Array | Writer:
    """An array that is there: to read, or with mode "a" to append more frames to.

    Shards that are whole stay as they are. A short last one is written anew, and is there in its
    old form until the new one is whole. What a writer that was killed left aside is removed.
    """
    sink = sink_of(url, options=options, fsync=fsync)
    if mode == "r":
        return Array(sink, Metadata.load(sink))
    if mode != "a":
        raise WeftError(f"mode is 'r' or 'a', and not {mode!r}")
    Metadata.load(sink)  # before anything is created to lock it
    with locked(sink) as lock:
        recover(sink)
        metadata = Metadata.load(sink)
        sink.sweep()
        remove_behind(sink)
        writer = _continued(sink, metadata, lock, threads, direct)
    try:
        _rewrite(writer)
    except BaseException:
        writer.abandon()
        raise
    writer.watch()
    return writer


def _continued(
    sink: Sink, metadata: Metadata, lock: Lock, threads: int | None, direct: bool | None
) -> Writer:
    """A writer that goes on where the last row of shards begins."""
    if not metadata.is_sharded:
        raise WeftError(f"{sink.url} has no shards, and nothing is appended to such an array")
    if not metadata.has_checksum or metadata.index_endian != "little" or 0 in metadata.shards:
        raise WeftError(f"{sink.url} has shards of a kind that is read, and not written")
    dims = arrival_of(metadata)
    shape = [None if dim == dims[0] else n for dim, n in enumerate(metadata.shape)]
    frame_ndim = frame_ndim_of(metadata, dims)
    tiling = Tiling(tuple(shape), metadata.chunks, metadata.shards, dims, frame_ndim=frame_ndim)
    return PlannedArray(sink, metadata, tiling, direct, {"threads": threads})._writer(lock)


def _rewrite(writer: Writer) -> None:
    """Append once more what is in the last row of shards, if that is short."""
    metadata, tiling = writer.metadata, writer.tiling
    elements = promised(metadata, tiling)
    size = metadata.shards[tiling.dims[0]]
    whole = elements // max(1, tiling.units[0]) // size * size
    writer.start_at(whole, elements)
    step = metadata.chunks[tiling.dims[0]]
    for block in promised_blocks(Array(writer.sink, metadata), tiling, step, whole):
        writer.append_rows(block)


def promised(metadata: Metadata, tiling: Tiling) -> int:
    """The elements of an array that its writer promised: all, or the frames that it counted."""
    whole = metadata.shape[tiling.dims[0]] * tiling.units[0]
    frames = _weft(metadata.attributes).get("frames")
    if type(frames) is not int or frames < 0:
        return whole
    return min(whole, frames * tiling.frame_size)


def promised_blocks(
    array: Array, tiling: Tiling, step: int, start: int
) -> Iterator[np.ndarray[Any, Any]]:
    """What a writer promised from a row on, as it arrived: rows, and then frames of a short one."""
    unit = tiling.units[0]
    left = promised(array.metadata, tiling) - start * unit
    for block in array.rows(step, tiling.dims[0], start):
        rows = block.transpose(tiling.dims)
        count = min(len(rows), left // unit) if unit else len(rows)
        if count:
            yield rows[:count]
        if count < len(rows):
            frames = rows[count].reshape(-1, *tiling.frame)
            if short := left // tiling.frame_size % tiling.frames_per_row:
                yield frames[:short]
            return
        left -= rows.size
