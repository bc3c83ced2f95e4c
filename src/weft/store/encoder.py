"""`Encoder`: a tile to the bytes that are stored of it.

`ShardEncoder`: a shard of an array in memory to the bytes that are stored of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.store.chunk_layout import Grid, Part
from weft.store.codecs import (
    Codec,
    Zstd,
    encode_pieces,
    most_stored,
    most_tables,
    most_work,
    stored_size,
)
from weft.store.dtypes import Bytes, Pieces
from weft.store.metadata import Metadata
from weft.store.read import FIXED, PART
from weft.store.shard import Index, length
from weft.store.sink import Upload
from weft.store.threads import CORES, each, may_join, scratch


class Encoder:
    """What makes bytes of tiles; tiles that are all fill value have none."""

    def __init__(self, metadata: Metadata, dtype: np.dtype[Any]) -> None:
        self.metadata, self.dtype = metadata, dtype
        fill = np.asarray(metadata.fill, dtype).reshape(1)
        self._first = fill.tobytes()
        words = np.dtype(f"u{min(8, dtype.itemsize)}")  # compared many at a time, as others are not
        self._fill = fill.view(words)

    @property
    def most(self) -> int:
        """The bytes that a chunk may have at most: no codec adds more than that."""
        size = prod(self.metadata.chunks) * self.dtype.itemsize
        fixed = stored_size(self.metadata.codecs, size)
        return size + size // 128 + 1024 if fixed is None else fixed - size

    def encoded(self, tile: np.ndarray[Any, Any], codecs: Sequence[Codec]) -> Pieces | None:
        """The bytes of a chunk; None for one that is all fill value."""
        return None if self.is_fill(tile) else self.stored(tile, codecs)

    def stored(self, tile: np.ndarray[Any, Any], codecs: Sequence[Codec]) -> Pieces:
        """The bytes of a chunk, whatever is in it; uncompressed, they may be the tile's own."""
        return encode_pieces(codecs, self._plain(tile))

    def suited(self, tiles: Iterable[np.ndarray[Any, Any]]) -> tuple[Codec, ...]:
        """The codecs as they are quickest for the first of some tiles that is stored."""
        codecs = self.metadata.codecs
        if not codecs or not isinstance(codecs[0], Zstd):
            return codecs
        sample = next((tile for tile in tiles if not self.is_fill(tile)), None)
        return codecs if sample is None else (codecs[0].suited(self._plain(sample)), *codecs[1:])

    def is_fill(self, tile: np.ndarray[Any, Any]) -> bool:
        """Whether every byte is that of the fill value: NaN is one, and -0.0 is not 0.0."""
        flat = tile.reshape(-1)
        if flat[:1].tobytes() != self._first or flat[-1:].tobytes() != self._first:
            return False
        words = flat.view(self._fill.dtype).reshape(-1, len(self._fill))
        return bool((words == self._fill).all())

    def _plain(self, tile: np.ndarray[Any, Any]) -> Bytes:
        """The bytes of a tile in the order and the endianness that metadata says."""
        if self.metadata.order:
            tile = np.ascontiguousarray(tile.transpose(self.metadata.order))
        if self.metadata.endian == "big" and self.dtype.itemsize > 1:
            tile = tile.astype(self.dtype.newbyteorder(">"))
        return tile.reshape(-1).view(np.uint8).data


class Chosen:
    """The codecs for the tiles of an epoch or a shard, chosen once, by the first who asks."""

    def __init__(self, encoder: Encoder, tiles: Iterable[np.ndarray[Any, Any]]) -> None:
        self._encoder, self._tiles = encoder, tiles
        self._lock = threading.Lock()
        self._codecs: tuple[Codec, ...] | None = None

    def codecs(self) -> tuple[Codec, ...]:
        """The codecs; they depend on the tiles alone, however threads run."""
        with self._lock:
            if self._codecs is None:
                self._codecs = self._encoder.suited(self._tiles)
            return self._codecs


Values: TypeAlias = np.ndarray[Any, Any]

BATCH = 1 << 20
"""Bytes of tiles that are encoded before they are written, if they are so small."""

TRIED = 32
"""Chunks of a shard from which it pays to try which codec is quickest for them."""


class ShardEncoder:
    """Cuts shards into tiles, encodes them, and puts them into uploads with an index.

    However many threads encode, the bytes are the same: they depend on the shard alone.
    """

    def __init__(self, metadata: Metadata, grid: Grid, dtype: np.dtype[Any]) -> None:
        self.metadata, self.grid, self.dtype = metadata, grid, dtype
        self.encoder = Encoder(metadata, dtype)
        self.index_size = length(grid.slots, metadata.has_checksum) if metadata.is_sharded else 0
        self.head = self.index_size if metadata.index_location == "start" else 0
        """The bytes in front of a shard that its index takes."""

    def batch(self, threads: int) -> int:
        """The chunks that are encoded before they are written."""
        return min(self.grid.slots, max(threads, BATCH // self.grid.size))

    def memory(self, threads: int) -> int:
        """The bytes that it takes at most, beside the values and what an upload holds."""
        size, codecs = self.grid.size, self.metadata.codecs
        batch = self.batch(threads)
        tiles = batch * size + (size if self._tries(self.grid.slots) else 0)
        is_fixed = stored_size(codecs, size) is not None
        made = batch * (self.encoder.most if is_fixed else most_stored(codecs, size))
        turned = 2 * size if self.metadata.order or self.metadata.endian == "big" else 0
        turned += size // self.dtype.itemsize  # whether each element is the fill value
        work = turned + most_work(codecs, size) + most_tables(codecs, size)
        return (
            tiles
            + made
            + min(threads, CORES, batch) * work
            + 8 * self.index_size
            + self.grid.slots * PART
            + FIXED
        )

    def put(self, upload: Upload, parts: Sequence[Part], block: Values, threads: int) -> int:
        """Put the parts of a block that lie in a shard into an upload, and finish it; its bytes."""
        if not self.metadata.is_sharded:
            return self._put_alone(upload, parts[0], block)
        index, end = Index.empty(self.grid.slots), self.head
        chosen = self._chosen(parts, block)
        step = self.batch(threads)
        for first in range(0, len(parts), step):
            some = parts[first : first + step]
            chunks = self._encoded(some, block, chosen, threads)
            for part, chunk in zip(some, chunks):
                if chunk is not None:
                    index.offsets[part.slot], index.sizes[part.slot] = end, sum(map(len, chunk))
                    end += index.sizes[part.slot]
            upload.append([piece for chunk in chunks if chunk is not None for piece in chunk])
        said = self.metadata
        upload.finish(index.to_bytes(has_checksum=said.has_checksum, endian=said.index_endian))
        return end + (0 if self.head else self.index_size)

    def _put_alone(self, upload: Upload, part: Part, block: Values) -> int:
        """A chunk that is a value of its own."""
        tile = self._tile(part, block, scratch("tiles", self.grid.size))
        chunk = self.encoder.stored(tile, self.metadata.codecs)
        upload.append(chunk)
        upload.finish(b"")
        return sum(map(len, chunk))

    def _encoded(
        self, parts: Sequence[Part], block: Values, chosen: Chosen | None, threads: int
    ) -> list[Pieces | None]:
        made: list[Pieces | None] = [None] * len(parts)
        room, size = scratch("tiles", len(parts) * self.grid.size), self.grid.size

        def encode(number: int) -> None:
            tile = self._tile(parts[number], block, room[number * size : (number + 1) * size])
            if not self.encoder.is_fill(tile):
                codecs = self.metadata.codecs if chosen is None else chosen.codecs()
                made[number] = self.encoder.stored(tile, codecs)

        each(encode, range(len(parts)), joins=may_join(self.metadata.codecs), most=threads)
        return made

    def _tile(self, part: Part, block: Values, room: memoryview) -> Values:
        """A chunk of a block, fill value beyond the edge; the block's own memory if it can be."""
        view = block[part.into]
        is_whole = part.shape == self.grid.chunks
        if is_whole and view.flags.c_contiguous and view.dtype == self.dtype:
            return view
        tile = np.frombuffer(room, self.dtype).reshape(self.grid.chunks)
        if not is_whole:
            tile[...] = self.metadata.fill
        tile[tuple(map(slice, part.shape))] = view
        return tile

    def _tries(self, count: int) -> bool:
        return self.metadata.is_sharded and count >= TRIED

    def _chosen(self, parts: Sequence[Part], block: Values) -> Chosen | None:
        """The codecs as they are quickest for the first chunk of a shard that is stored."""
        if not self._tries(len(parts)):
            return None
        return Chosen(self.encoder, self._tiles(parts, block))

    def _tiles(self, parts: Sequence[Part], block: Values) -> Iterator[Values]:
        tile = partial(self._tile, block=block, room=scratch("sample", self.grid.size))
        return map(tile, parts)
