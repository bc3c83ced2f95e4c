"""`ChunkEncoder` encodes tiles to stored bytes; `ShardEncoder` does it for a whole shard."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.store import native
from weft.store.chunk_layout import ChunkLayout, ChunkPart
from weft.store.codecs import (
    Codec,
    CodecError,
    Zstd,
    codec_workspace,
    context_memory,
    encode_pieces,
    max_stored,
    native_compressor,
    run_compressor,
    stored_size,
)
from weft.store.dtypes import Bytes, Pieces
from weft.store.metadata import Metadata
from weft.store.read import FIXED_MEMORY, PART_MEMORY
from weft.store.shard import Chunks, Index, PackedChunks, index_size
from weft.store.sink import Upload
from weft.store.threads import CORES, for_each, may_join, scratch

Values: TypeAlias = np.ndarray[Any, Any]

BATCH = 1 << 20
"""Bytes of tiles that are encoded before they are written, where tiles are small."""

MIN_TRIED = 32
"""Chunks of a shard from which it pays to try which codec settings are the quickest."""


class ChunkEncoder:
    """Encodes tiles; tiles that are all fill value are not stored."""

    def __init__(self, metadata: Metadata, dtype: np.dtype[Any]) -> None:
        self.metadata, self.dtype = metadata, dtype
        fill = np.asarray(metadata.fill, dtype).reshape(1)
        self._fill_bytes = fill.tobytes()
        self._fill = fill.view(f"u{min(8, dtype.itemsize)}")  # integers are compared quickly

    @property
    def extra_nbytes(self) -> int:
        """The most bytes that encoding a chunk allocates: the tile's own bytes are reused."""
        size = prod(self.metadata.chunks) * self.dtype.itemsize
        fixed = stored_size(self.metadata.codecs, size)
        return size + size // 128 + 1024 if fixed is None else fixed - size

    def encode(self, tile: Values, codecs: Sequence[Codec]) -> Pieces | None:
        """Return the stored bytes of a chunk; None for one that is all fill value."""
        return None if self.is_fill(tile) else self.encode_any(tile, codecs)

    def encode_tiles(
        self, pool: Values, tiles: Sequence[int], codecs: Sequence[Codec], memory: Values
    ) -> Chunks:
        """Return the stored bytes of some tiles of a pool.

        They may be the tiles' own, or lie in `memory`, which has `extra_nbytes` for each of them.
        """
        is_plain = not self.metadata.order and self.metadata.endian != "big"
        stored = self._stored(pool, tiles)
        compressor = native_compressor(codecs, pool[0].nbytes) if is_plain else None
        if compressor is not None:
            compress, has_crc = compressor
            packer = _Packer(pool, memory, has_crc=has_crc)
            together = run_compressor(codecs, packer.nbytes)
            if together is None:
                return _packed(packer, compress, tiles, stored)
            return _in_runs(packer, compress, together, tiles, stored)
        first, stop = tiles[0], tiles[-1] + 1
        if is_plain and not codecs and len(stored) == len(tiles) == stop - first:
            data = pool[first:stop].reshape(-1).view(np.uint8).data
            return PackedChunks(data, np.full(len(tiles), pool[0].nbytes))
        chunks: list[Pieces | None] = [None] * len(tiles)
        for n in stored:
            chunks[n] = self.encode_any(pool[tiles[n]], codecs)
        return chunks

    def _stored(self, pool: Values, tiles: Sequence[int]) -> Sequence[int]:
        """Return which of some tiles are not all fill value."""
        words, at = pool.reshape(len(pool), -1).view(self._fill.dtype), np.asarray(tiles)
        may_be_fill = (words[at, 0] == self._fill[0]) & (words[at, -1] == self._fill[-1])
        if not may_be_fill.any():
            return range(len(tiles))
        suspects = set(np.flatnonzero(may_be_fill).tolist())
        return [
            n for n, tile in enumerate(tiles) if n not in suspects or not self.is_fill(pool[tile])
        ]

    def encode_any(self, tile: Values, codecs: Sequence[Codec]) -> Pieces:
        """Return the stored bytes of any chunk; uncompressed, they may be the tile's own."""
        return encode_pieces(codecs, self._ordered(tile))

    def tuned_codecs(self, tiles: Iterable[Values]) -> tuple[Codec, ...]:
        """Return the codecs with the settings that are quickest for the first stored tile."""
        codecs = self.metadata.codecs
        if not codecs or not isinstance(codecs[0], Zstd):
            return codecs
        sample = next((tile for tile in tiles if not self.is_fill(tile)), None)
        return codecs if sample is None else (codecs[0].tuned(self._ordered(sample)), *codecs[1:])

    def is_fill(self, tile: Values) -> bool:
        """Return whether every byte is that of the fill value: NaN is one, and -0.0 is not 0.0."""
        flat = tile.reshape(-1)
        if flat[:1].tobytes() != self._fill_bytes or flat[-1:].tobytes() != self._fill_bytes:
            return False
        words = flat.view(self._fill.dtype).reshape(-1, len(self._fill))
        return bool((words == self._fill).all())

    def _ordered(self, tile: Values) -> Bytes:
        """Return the bytes of a tile in the order and the endianness of the metadata."""
        if self.metadata.order:
            tile = np.ascontiguousarray(tile.transpose(self.metadata.order))
        if self.metadata.endian == "big" and self.dtype.itemsize > 1:
            tile = tile.astype(self.dtype.newbyteorder(">"))
        return tile.reshape(-1).view(np.uint8).data


class _Packer:
    """Encodes tiles of a pool one after the other into memory, by functions in C."""

    def __init__(self, pool: Values, memory: Values, *, has_crc: bool) -> None:
        self.pool, self.memory, self.view = pool, memory, memory.data
        self.checksum = native.crc32c() if has_crc else None
        self.source, self.target = pool.ctypes.data, memory.ctypes.data
        self.nbytes, self.end = pool[0].nbytes, 0

    def compress(self, compress: native.Compress, tile: int, count: int = 1) -> int:
        """Compress neighbouring tiles to the next free bytes; return their number."""
        source, nbytes = self.source + tile * self.nbytes, count * self.nbytes
        room = len(self.memory) - self.end
        found = compress(source, nbytes, self.target + self.end, room)
        if found < 1:
            raise CodecError(f"a chunk of {nbytes} B could not be compressed")
        return found

    def chunk(self, compress: native.Compress, tile: int) -> int:
        """Append a chunk, with its checksum; return its bytes."""
        count = self.compress(compress, tile)
        if self.checksum is not None:
            found = self.checksum(0, self.target + self.end, count)
            struct.pack_into("<I", self.view, self.end + count, found)
            count += 4
        self.end += count
        return count

    def run(self, compress: native.Compress, tile: int, count: int) -> list[Pieces] | None:
        """Append chunks that one call compresses; None where that is not possible."""
        nbytes = self.compress(compress, tile, count)
        start = self.end
        split = native.split_frame(self.memory[start : start + nbytes], count, self.nbytes)
        if split is None:
            return None
        self.end += nbytes
        size, heads = native.FRAME_HEAD, split.heads.reshape(-1).data
        chunks: list[Pieces] = [
            (heads[n * size : (n + 1) * size], self.view[start + first : start + stop])
            for n, (first, stop) in enumerate(zip(split.starts, split.stops))
        ]
        if self.checksum is None:
            return chunks
        extend, at, body = self.checksum, split.heads.ctypes.data, self.target + start
        checked = list[Pieces]()
        for n, (head, block) in enumerate(chunks):
            found = extend(extend(0, at + n * size, size), body + split.starts[n], len(block))
            checked.append((head, block, found.to_bytes(4, "little")))
        return checked


def _packed(
    packer: _Packer, compress: native.Compress, tiles: Sequence[int], stored: Sequence[int]
) -> PackedChunks:
    """Return chunks that are encoded one after the other."""
    sizes = [0] * len(tiles)
    for n in stored:
        sizes[n] = packer.chunk(compress, tiles[n])
    return PackedChunks(packer.view[: packer.end], np.array(sizes))


def _in_runs(
    packer: _Packer,
    compress: native.Compress,
    together: native.Compress,
    tiles: Sequence[int],
    stored: Sequence[int],
) -> list[Pieces | None]:
    """Return chunks, of which neighbours are encoded by one call."""
    chunks: list[Pieces | None] = [None] * len(tiles)
    for _, group in groupby(enumerate(stored), lambda pair: tiles[pair[1]] - pair[0]):
        run = [n for _, n in group]  # neighbours: as far apart as their places in the list
        made = packer.run(together, tiles[run[0]], len(run)) if len(run) > 1 else None
        for place, n in enumerate(run):
            if made is not None:
                chunks[n] = made[place]
            else:
                start = packer.end
                chunks[n] = (packer.view[start : start + packer.chunk(compress, tiles[n])],)
    return chunks


class CodecChoice:
    """The codecs for the tiles of an epoch or a shard, tuned by the first thread that asks."""

    def __init__(self, encoder: ChunkEncoder, tiles: Iterable[Values]) -> None:
        self._encoder, self._tiles = encoder, tiles
        self._lock = threading.Lock()
        self._codecs: tuple[Codec, ...] | None = None

    def codecs(self) -> tuple[Codec, ...]:
        """Return the codecs; they depend on the tiles alone, not on the order of threads."""
        with self._lock:
            if self._codecs is None:
                self._codecs = self._encoder.tuned_codecs(self._tiles)
            return self._codecs


class ShardEncoder:
    """Cuts shards into tiles, encodes them, and writes them to uploads with an index.

    The bytes do not depend on the number of threads.
    """

    def __init__(self, metadata: Metadata, layout: ChunkLayout, dtype: np.dtype[Any]) -> None:
        self.metadata, self.layout, self.dtype = metadata, layout, dtype
        self.encoder = ChunkEncoder(metadata, dtype)
        self.index_size = index_size(layout.slots, metadata.has_checksum)
        self.index_size *= metadata.is_sharded
        self.head = self.index_size if metadata.index_location == "start" else 0
        """The bytes before the first chunk of a shard, where its index goes."""

    def batch(self, threads: int) -> int:
        """Return the number of chunks that are encoded before they are written."""
        return min(self.layout.slots, max(threads, BATCH // self.layout.chunk_nbytes))

    def memory(self, threads: int) -> int:
        """Return the most bytes that it takes, beside the values and what an upload buffers."""
        size, codecs = self.layout.chunk_nbytes, self.metadata.codecs
        batch = self.batch(threads)
        tiles = batch * size + (size if self._tunes(self.layout.slots) else 0)
        is_fixed = stored_size(codecs, size) is not None
        encoded = batch * (self.encoder.extra_nbytes if is_fixed else max_stored(codecs, size))
        work = 2 * size if self.metadata.order or self.metadata.endian == "big" else 0
        work += size // self.dtype.itemsize  # whether each element is the fill value
        work += codec_workspace(codecs, size) + context_memory(codecs, size)
        return (
            tiles
            + encoded
            + min(threads, CORES, batch) * work
            + 8 * self.index_size
            + self.layout.slots * PART_MEMORY
            + FIXED_MEMORY
        )

    def write(self, upload: Upload, parts: Sequence[ChunkPart], block: Values, threads: int) -> int:
        """Write the chunks of a shard, and finish the upload; return its bytes."""
        if not self.metadata.is_sharded:
            return self._write_chunk(upload, parts[0], block)
        index, end = Index.empty(self.layout.slots), self.head
        choice = self._choice(parts, block)
        step = self.batch(threads)
        for first in range(0, len(parts), step):
            some = parts[first : first + step]
            chunks = self._encode(some, block, choice, threads)
            end = index.append(end, [part.slot for part in some], chunks)
            upload.append([piece for chunk in chunks if chunk is not None for piece in chunk])
        metadata = self.metadata
        upload.finish(
            index.to_bytes(has_checksum=metadata.has_checksum, endian=metadata.index_endian)
        )
        return end + (0 if self.head else self.index_size)

    def _write_chunk(self, upload: Upload, part: ChunkPart, block: Values) -> int:
        """Write a chunk that is a file of its own."""
        tile = self._tile(part, block, scratch("tiles", self.layout.chunk_nbytes))
        chunk = self.encoder.encode_any(tile, self.metadata.codecs)
        upload.append(chunk)
        upload.finish(b"")
        return sum(map(len, chunk))

    def _encode(
        self, parts: Sequence[ChunkPart], block: Values, choice: CodecChoice | None, threads: int
    ) -> list[Pieces | None]:
        chunks: list[Pieces | None] = [None] * len(parts)
        size = self.layout.chunk_nbytes
        memory = scratch("tiles", len(parts) * size)

        def encode(number: int) -> None:
            tile = self._tile(parts[number], block, memory[number * size : (number + 1) * size])
            if not self.encoder.is_fill(tile):
                codecs = self.metadata.codecs if choice is None else choice.codecs()
                chunks[number] = self.encoder.encode_any(tile, codecs)

        joins = may_join(self.metadata.codecs)
        for_each(encode, range(len(parts)), joins=joins, max_threads=threads)
        return chunks

    def _tile(self, part: ChunkPart, block: Values, memory: memoryview) -> Values:
        """Return a chunk of a block, fill value beyond the edge; a view where possible."""
        view = block[part.target]
        is_whole = part.shape == self.layout.chunks
        if is_whole and view.flags.c_contiguous and view.dtype == self.dtype:
            return view
        tile = np.frombuffer(memory, self.dtype).reshape(self.layout.chunks)
        if not is_whole:
            tile[...] = self.metadata.fill
        tile[tuple(map(slice, part.shape))] = view
        return tile

    def _tunes(self, count: int) -> bool:
        return self.metadata.is_sharded and count >= MIN_TRIED

    def _choice(self, parts: Sequence[ChunkPart], block: Values) -> CodecChoice | None:
        if not self._tunes(len(parts)):
            return None
        memory = scratch("sample", self.layout.chunk_nbytes)
        return CodecChoice(
            self.encoder, map(partial(self._tile, block=block, memory=memory), parts)
        )
