"""`ShardWriter`: whole shards of an array, written by anybody in any order.

A shard is one file or object, and nobody but its writer ever touches it: processes on any hosts
write different shards at the same time, and need no lock. A shard appears when it is whole, so that
what is there after a crash is complete, and the rest is written again.

`create_shards` and `open_shards`: an array of which anybody writes whole shards.
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
from weft.store.array import Array, Handle
from weft.store.codecs import Said
from weft.store.create import begin, check_chunk, described, locked, without_own
from weft.store.dtypes import as_dtype
from weft.store.encoder import ShardEncoder, Values
from weft.store.hierarchy import sink_of
from weft.store.metadata import Metadata, checked
from weft.store.objects.errors import SinkError
from weft.store.shard import Files, ShardError
from weft.store.sink import Lock, Sink, Url
from weft.store.target import ArrayKeys, check_target, recover
from weft.store.threads import each, may_join
from weft.values import Point

SHARD = 256
"""Bytes of the objects that say which shards a box has."""


class ShardWriter(Handle):
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
        self._encoder = ShardEncoder(metadata, self._grid, self.dtype)

    # -- what a person calls

    def write(self, box: ZRange, values: Values, *, threads: int = 1) -> int:
        """Write the shards that a box is made of, one after the other; the bytes that are stored.

        A shard that is there already is replaced. One that is all fill value is stored too, as an
        index without chunks: it is done. An error leaves those that were complete as they are.
        """
        self._check(box)
        block = self._block(box, values)
        sizes: list[int] = []
        here = threads > 1 or may_join(self.metadata.codecs)
        shards = list(self._grid.shards_of(box))
        each(
            lambda at: sizes.append(self._write(at, box, block, threads)),
            shards,
            joins=here,
            most=1,
        )
        return sum(sizes)

    def write_memory(self, box: ZRange | None = None, *, threads: int = 1) -> int:
        """The bytes that writing a box, or all, takes at most, beside its values."""
        wanted = ZRange.of(self.shape) if box is None else box
        self._check(wanted)
        sides = zip(wanted.shape, self._grid.shards)
        shards = prod(-(-n // s) for n, s in sides)
        return self._encoder.memory(threads) + 2 * self.sink.held + shards * SHARD

    def done(self, box: ZRange) -> bool:
        """Whether all shards that a box meets are complete."""
        whole = ZRange.of(self.shape)
        if box.ndim != whole.ndim or (box not in whole and not box.is_empty):
            raise WeftError(f"{box} is not inside the array, {whole}")
        return all(map(self._is_done, self._grid.shards_of(box)))

    def written(self) -> list[Point]:
        """The shards that are complete, by their coordinates, in order.

        A file whose index is torn, as when a host lost its power, is not.
        """
        keys = ArrayKeys.of(json.loads(self.metadata.to_json()))
        places = (keys.place(key) for key in self._keys())
        found = sorted(at for at in places if at is not None and keys.is_inside(at))
        is_far = not isinstance(self._shards.source, Files)
        return [at for at in found if is_far or self._is_done(at)]

    def shard_box(self, at: Point) -> ZRange:
        """The box of a shard, as far as the array goes."""
        return self._grid.box(at) & ZRange.of(self.shape)

    def reader(self) -> Array:
        """The array, to be read: shards that are not there are fill value."""
        return Array(self.sink, self.metadata)

    # -- one shard

    def _write(self, at: Point, box: ZRange, block: Values, threads: int) -> int:
        key = self.metadata.key(at)
        try:
            upload = self.sink.upload(key, self._encoder.head)
            try:
                size = self._encoder.put(upload, self._grid.parts_of(box, at), block, threads)
            except BaseException:
                upload.drop()
                raise
        except OSError as error:
            if isinstance(error, WeftError):
                raise
            raise SinkError(
                f"{self.sink.url}/{key} cannot be written: {error.strerror or error}",
                hint="shards that are complete stay; write the others once the cause is gone",
            ) from error
        return size

    # -- what is given

    def _check(self, box: ZRange) -> None:
        """Refuse what is not made of whole shards."""
        if box.ndim != len(self.shape):
            raise WeftError(f"{box} has rank {box.ndim}, and the array rank {len(self.shape)}")
        sides = zip(box.start, box.stop, self._grid.shards, self.shape)
        for dim, (low, high, size, end) in enumerate(sides):
            if not 0 <= low <= high <= end:
                raise WeftError(f"dimension {dim}: {low}:{high} of {box} is not inside 0:{end}")
            if low % size or (high % size and high != end):
                first, last = low // size * size, min(-(-high // size) * size, end)
                raise WeftError(
                    f"dimension {dim}: {low}:{high} of {box} is not made of whole shards of "
                    f"{size}, up to the end at {end}",
                    hint=f"the shards that it meets are {first}:{last}",
                )

    def _block(self, box: ZRange, values: Values) -> Values:
        """The values as an array that can be stored."""
        block, name = np.asarray(values), self.metadata.dtype
        is_raw = name == "bfloat16" and block.dtype == self.dtype
        if block.shape != box.shape or (block.dtype.name != name and not is_raw):
            raise WeftError(
                f"the block is {block.dtype.name}{list(block.shape)}, and {box} is "
                f"{name}{list(box.shape)}"
            )
        return block.view(np.uint16) if name == "bfloat16" else block

    # -- what is there

    def _keys(self) -> Iterator[str]:
        """The keys that are there, among which are those of shards."""
        keys = self.metadata.keys
        if not self.shape:
            return iter([keys.of(())] if self._is_done(()) else [])
        return self.sink.keys("c" if keys.name == "default" and keys.separator == "/" else "")

    def _is_done(self, at: Point) -> bool:
        """Whether a shard is there, and its index as it must be."""
        if not (self.metadata.is_sharded and isinstance(self._shards.source, Files)):
            found = self.sink.fetch(self.metadata.key(at), 0, 0)
            return found is not None and found.size > 0
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
