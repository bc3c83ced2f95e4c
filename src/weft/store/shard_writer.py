"""`ShardWriter`: whole shards of an array, written by anybody in any order.

A shard is one file or object, and nobody but its writer ever touches it: processes on any hosts
write different shards at the same time, and need no lock. A shard appears when it is whole, so that
what is there after a crash is complete, and the rest is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.store.handles import Handle
from weft.store.index import ShardError
from weft.store.metadata import Metadata
from weft.store.objects.faults import SinkError
from weft.store.reading.reader import Array
from weft.store.reading.source import Files
from weft.store.reading.workers import each, may_join
from weft.store.shard_encoder import ShardEncoder, Values
from weft.store.sink import Sink
from weft.store.target import ArrayKeys
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
