"""`ShardWriter`: whole shards of an array, written by any process in any order.

A shard is one file or object that only its writer touches: processes on any hosts write different
shards at the same time without a lock. A shard appears when it is complete, so that what exists
after a crash is complete, and the rest is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, Literal

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.array import Array, StoredArray
from weft.store.codecs import CodecLike
from weft.store.create import begin, check_chunk, locked
from weft.store.dtypes import as_dtype
from weft.store.encoder import ShardEncoder, Values
from weft.store.hierarchy import sink_of
from weft.store.metadata import Metadata, check_shapes, make_metadata, without_own
from weft.store.shard import FileSource, ShardError
from weft.store.sink import Lock, Sink, SinkError, Url
from weft.store.target import ArrayKeys, check_target, recover
from weft.values import Point

SHARD_MEMORY = 256
"""Bytes of the objects that list a shard of a box."""


class ShardWriter(StoredArray):
    """An array of which whole shards are written; `create_shards` makes one.

    It is small and can be sent to other processes, which write other shards.

    >>> import tempfile
    >>> from weft.store import create_shards
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_shards(f"{folder}/a", (6, 5), "uint8", (2, 2), (4, 4))
    ...     _ = writer.write(ZRange((4, 0), (6, 5)), np.ones((2, 5), "uint8"))
    ...     writer.written(), writer.done(ZRange((0, 0), (6, 5)))
    ([(1, 0), (1, 1)], False)
    """

    def __init__(self, sink: Sink, metadata: Metadata) -> None:
        super().__init__(sink, metadata)
        self._encoder = ShardEncoder(metadata, self.layout, self.dtype)

    @property
    def shards(self) -> Point:
        """The shape of a shard, which is one file, and is written whole."""
        return self.metadata.shards

    def write(self, box: ZRange, values: Values, *, threads: int = 1) -> int:
        """Write the shards of a box, one after the other; return the stored bytes.

        A shard that exists is replaced. One that is all fill value is stored too, as an index
        without chunks: it is done. An error leaves the shards that were complete.
        """
        self._check_whole_shards(box)
        block = self._as_block(box, values)
        shards = self.layout.shard_grid.meeting(box)
        return sum(self._write(at, box, block, threads) for at in shards)

    def write_memory(self, box: ZRange | None = None, *, threads: int = 1) -> int:
        """Return the most bytes that writing a box, or all, takes beside its values."""
        wanted = self.box if box is None else box
        self._check_whole_shards(wanted)
        shards = self.layout.shard_grid.count_meeting(wanted)
        return self._encoder.memory(threads) + 2 * self.sink.buffered + shards * SHARD_MEMORY

    def done(self, box: ZRange) -> bool:
        """Return whether all shards that a box meets are complete."""
        return all(map(self._is_done, self.layout.shard_grid.meeting(self._check_inside(box))))

    def written(self) -> list[Point]:
        """Return the coordinates of the shards that are complete, in order.

        A file whose index is torn, as when a host lost its power, is not complete.
        """
        keys = ArrayKeys.of(json.loads(self.metadata.to_json()))
        shards = (keys.shard_at(key) for key in self._keys())
        inside = sorted(at for at in shards if at is not None and keys.is_inside(at))
        is_remote = not isinstance(self._shards.source, FileSource)
        return [at for at in inside if is_remote or self._is_done(at)]

    def shard_box(self, at: Point) -> ZRange:
        """Return the box of a shard, as far as the array goes."""
        return self.layout.shard_grid.box(at)

    def reader(self) -> Array:
        """Return the array, to be read: missing shards are fill value."""
        return Array(self.sink, self.metadata)

    def _write(self, at: Point, box: ZRange, block: Values, threads: int) -> int:
        key = self.metadata.key(at)
        try:
            upload = self.sink.upload(key, self._encoder.head)
            try:
                return self._encoder.write(upload, self.layout.parts(box, at), block, threads)
            except BaseException:
                upload.discard()
                raise
        except OSError as error:
            if isinstance(error, WeftError):
                raise
            raise SinkError(
                f"{self.sink.url}/{key} cannot be written: {error.strerror or error}",
                hint="complete shards stay; write the others once the cause is gone",
            ) from error

    def _check_whole_shards(self, box: ZRange) -> None:
        if box.ndim != len(self.shape):
            raise WeftError(f"{box} has rank {box.ndim}, and the array rank {len(self.shape)}")
        for dim, (low, high, end) in enumerate(zip(box.start, box.stop, self.shape)):
            if not 0 <= low <= high <= end:
                raise WeftError(f"dimension {dim}: {low}:{high} of {box} is not inside 0:{end}")
        whole = box if box.is_empty else self.layout.shard_grid.widen(box)
        sides = zip(box.start, box.stop, whole.start, whole.stop)
        for dim, (low, high, first, last) in enumerate(sides):
            if (low, high) != (first, last):
                raise WeftError(
                    f"dimension {dim}: {low}:{high} of {box} is not made of whole shards of "
                    f"{self.layout.shards[dim]}, up to the end at {self.shape[dim]}",
                    hint=f"the shards that it meets are {first}:{last}",
                )

    def _as_block(self, box: ZRange, values: Values) -> Values:
        """Return the values as an array that can be stored."""
        block, name = np.asarray(values), self.metadata.dtype
        is_raw = name == "bfloat16" and block.dtype == self.dtype
        if block.shape != box.shape or (block.dtype.name != name and not is_raw):
            raise WeftError(
                f"the block is {block.dtype.name}{list(block.shape)}, and {box} is "
                f"{name}{list(box.shape)}"
            )
        return block.view(np.uint16) if name == "bfloat16" else block

    def _keys(self) -> Iterator[str]:
        """Return the keys that exist, those of shards among them."""
        if not self.shape:
            return iter([self.metadata.key(())] if self._is_done(()) else [])
        return self.sink.keys(self.metadata.keys.root)

    def _is_done(self, at: Point) -> bool:
        """Return whether a shard exists, with an intact index."""
        if not (self.metadata.is_sharded and isinstance(self._shards.source, FileSource)):
            fetched = self.sink.fetch(self.metadata.key(at), 0, 0)
            return fetched is not None and fetched.size > 0
        try:
            shard = self._shards.find(at)
        except ShardError:
            return False
        if shard is not None:
            shard.close()
        return shard is not None


def create_shards(
    url: Url | Sink,
    shape: Sequence[int],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    codecs: CodecLike | Sequence[CodecLike] = (),
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
    """Create an array of which boxes of whole shards are written in any order, by many processes.

    Without shards, or with shards of one chunk, each chunk is a file. Every chunk has a CRC32C of
    its stored bytes, unless `checksum` is False. Metadata are written once, here; the writer that
    is returned may be sent to any number of processes. Without `begun` nothing is written yet, and
    `begin_shards` creates the array.

    >>> import numpy as np, pickle, tempfile
    >>> from weft.space import ZRange
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_shards(f"{folder}/a", (4, 6), "uint8", (2, 2), (2, 6), codecs="zstd")
    ...     other = pickle.loads(pickle.dumps(writer))
    ...     stored = other.write(ZRange((2, 0), (4, 6)), np.full((2, 6), 7, "uint8"))
    ...     writer.done(ZRange((2, 0), (4, 6))), writer.reader().read()[2].tolist()
    (True, [7, 7, 7, 7, 7, 7])
    """
    size: Point = ()
    small: Point = ()
    large: Point = ()
    if len(shape) or len(chunks) or len(shards or ()):
        sizes, small, large = check_shapes(shape, chunks, shards, append_dim=-1)
        size = tuple(n or 0 for n in sizes)
    metadata = make_metadata(
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
    if begun:
        with locked(sink) as lock:
            begin(sink, metadata, overwrite)
            lock.release()
    return _writer(sink, metadata)


def begin_shards(writer: ShardWriter, *, overwrite: bool = False) -> None:
    """Write the metadata of an array of `create_shards(..., begun=False)`.

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
    """Open an array to write the shards that are missing, for instance after a crash.

    Unfinished files of writers that were killed are removed, so no other process may be writing:
    an array that is locked is refused, unless `lock` is that lock, held by the caller.
    """
    sink = sink_of(url, options=options, fsync=fsync)
    Metadata.load(sink)  # before anything is created to lock it
    with nullcontext(lock) if lock is not None else locked(sink) as held:
        recover(sink)
        metadata = Metadata.load(sink)
        if not metadata.is_writable:
            raise WeftError(f"{sink.url} is an array of a kind that is read, but not written")
        sink.sweep()
        if held is not lock:
            held.release()
    return _writer(sink, metadata)


def _writer(sink: Sink, metadata: Metadata) -> ShardWriter:
    """Return a writer on the sink, tuned for its shards; through the page cache."""
    size = prod(metadata.shards) * as_dtype(metadata.dtype)[1].itemsize
    return ShardWriter(sink.tuned(size, 1, False), metadata)
