"""`create_shards` and `open_shards`: an array of which anybody writes whole shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, Literal

from weft.store.address import sink_of
from weft.store.dtypes import as_dtype
from weft.store.metadata import Metadata, checked
from weft.store.named import Said
from weft.store.new import begin, check_chunk, described, locked, without_own
from weft.store.shard_writer import ShardWriter
from weft.store.sink import Lock, Sink, Url
from weft.store.target import check_target, recover
from weft.values import Point


def create_shards(
    url: Url | Sink,
    shape: Sequence[int],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    codecs: Said | Sequence[Said] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    endian: Literal["little", "big"] = "little",
    index_location: Literal["start", "end"] = "end",
    overwrite: bool = False,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    begun: bool = True,
) -> ShardWriter:
    """A new array, of which boxes of whole shards are written in any order, by many.

    Without shards, or with shards of one chunk, each chunk is a file. Every chunk carries a CRC32C
    of its stored bytes, unless `checksum` is False. Metadata are written once, here; the writer
    that comes back may be sent to as many processes as there are. Without `begun` the array is only
    described, and `begin_shards` creates it.

    >>> import numpy as np, pickle, tempfile
    >>> from weft.space import ZRange
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_shards(f"{folder}/a", (4, 6), "uint8", (2, 2), (2, 6), codecs="zstd")
    ...     there = pickle.loads(pickle.dumps(writer))
    ...     stored = there.write(ZRange((2, 0), (4, 6)), np.full((2, 6), 7, "uint8"))
    ...     writer.done(ZRange((2, 0), (4, 6))), writer.reader().read()[2].tolist()
    (True, [7, 7, 7, 7, 7, 7])
    """
    size: Point = ()
    small: Point = ()
    large: Point = ()
    if len(shape) or len(chunks) or len(shards or ()):
        sizes, small, large = checked(shape, chunks, shards or chunks, append_dim=-1)
        size = tuple(n or 0 for n in sizes)
    metadata = described(
        size,
        dtype,
        small,
        large,
        codecs=codecs,
        checksum=checksum,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes=without_own(attributes),
        order=order,
        endian=endian,
        index_location=index_location,
        is_sharded=small != large,
    )
    check_chunk(small, as_dtype(metadata.dtype)[1].itemsize)
    sink = sink_of(url, options=options, fsync=fsync)
    check_target(sink, overwrite, "pass overwrite=True, or continue with open_shards(url)")
    if not begun:
        return _writer(sink, metadata)
    with locked(sink) as lock:
        begin(sink, metadata, overwrite)
        lock.release()
    return _writer(sink, metadata)


def begin_shards(writer: ShardWriter, *, overwrite: bool = False) -> None:
    """Write the metadata of an array described by `create_shards(..., begun=False)`.

    The caller holds the lock of `writer.sink`.
    """
    begin(writer.sink, writer.metadata, overwrite)


def open_shards(
    url: Url | Sink,
    *,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    lock: Lock | None = None,
) -> ShardWriter:
    """An array that is there, to write the shards that are missing: after a crash, say.

    What writers that were killed left aside is removed, so that nobody may be writing meanwhile:
    an array that somebody has locked is refused, unless `lock` is that lock, held by the caller.
    """
    sink = sink_of(url, options=options, fsync=fsync)
    Metadata.load(sink)  # before anything is created to lock it
    with nullcontext(lock) if lock is not None else locked(sink) as held:
        recover(sink)
        metadata = Metadata.load(sink)
        sink.sweep()
        if held is not lock:
            held.release()
    return _writer(sink, metadata)


def _writer(sink: Sink, metadata: Metadata) -> ShardWriter:
    """A writer on the sink as it is best for its shards; through the cache: many share it."""
    size = prod(metadata.shards) * as_dtype(metadata.dtype)[1].itemsize
    return ShardWriter(sink.suited(size, 1, False), metadata)
