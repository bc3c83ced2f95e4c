"""`ChunkEncoder` encodes tiles to stored bytes; `ShardEncoder` does it for a whole shard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.store import native
from weft.store.chunk_layout import ChunkLayout, ChunkPart
from weft.store.codecs import (
    Codec,
    EncodedChunks,
    Zstd,
    batch_encoder,
    codec_workspace,
    compression,
    context_memory,
    encode_pieces,
    max_stored,
    stored_size,
)
from weft.store.dtypes import Bytes, Pieces
from weft.store.metadata import Metadata
from weft.store.native import STORED, Compression, Native
from weft.store.read import FIXED_MEMORY, PART_MEMORY
from weft.store.scatter import Tiles
from weft.store.shard import Index, index_size
from weft.store.sink import Upload
from weft.store.threads import CORES, for_each, scratch

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
        self,
        groups: Sequence[tuple[Tiles, Sequence[int]]],
        codecs: Sequence[Codec],
        memory: Values,
        *,
        is_fill_stored: bool = False,
        is_alone: bool = True,
    ) -> EncodedChunks:
        """Return the stored bytes of some tiles, of one epoch or several.

        They may be the tiles' own, or lie in `memory`, which has `extra_nbytes` for each of them.
        Threads of compiled code help, unless it `is_alone`.
        """
        is_plain = not self.metadata.order and self.metadata.endian != "big"
        how = compression(codecs, groups[0][0].nbytes) if is_plain else None
        engine = native.compiled()
        if engine is not None and how is not None:
            fill = None if is_fill_stored else self._fill_bytes
            return self._encode_natively(engine, how, groups, fill, memory, is_alone)
        buffers, sizes, used = list[Bytes](), list[Values](), 0
        for tiles, numbers in groups:
            rows, places = tiles.rows(numbers)
            stored = range(len(places)) if is_fill_stored else self._stored(rows, places)
            wanted = [places[n] for n in stored]
            found = self._encode_rows(rows, wanted, codecs, memory[used:], is_plain)
            buffers += found.buffers
            sizes.append(np.zeros(len(places), np.int64))
            sizes[-1][stored] = found.sizes
            used += len(places) * self.extra_nbytes
        return EncodedChunks(buffers, np.concatenate(sizes))

    def _encode_natively(
        self,
        engine: Native,
        how: Compression,
        groups: Sequence[tuple[Tiles, Sequence[int]]],
        fill: bytes | None,
        memory: Values,
        is_alone: bool,
    ) -> EncodedChunks:
        found = [tiles.addresses_of(numbers) for tiles, numbers in groups]
        pieces = found[0] if len(found) == 1 else np.concatenate(found)
        size, room = groups[0][0].nbytes // pieces.shape[1], self.extra_nbytes
        sizes, parts = engine.encode(pieces, size, how, fill, memory, room, is_alone=is_alone)
        if how.codec != STORED:
            return EncodedChunks([memory.data[at : at + n] for at, n in parts if n], sizes)
        buffers, at = list[Bytes](), 0
        for tiles, numbers in groups:
            stored = np.flatnonzero(sizes[at : at + len(numbers)]).tolist()
            if tiles.whole is not None and not how.has_checksum:
                data = tiles.blocks[0][0].data
                runs = _runs([numbers[n] for n in stored])
                buffers += [data[size * first : size * stop] for first, stop in runs]
            else:
                for n in stored:
                    buffers += tiles.buffers(numbers[n])
                    if how.has_checksum:
                        buffers.append(memory.data[room * (at + n) : room * (at + n) + 4])
            at += len(numbers)
        return EncodedChunks(buffers, sizes)

    def _encode_rows(
        self,
        rows: Values,
        numbers: Sequence[int],
        codecs: Sequence[Codec],
        memory: Values,
        is_plain: bool,
    ) -> EncodedChunks:
        """Encode tiles that are rows of bytes, without compiled code."""
        size = rows.shape[1]
        if is_plain and not codecs:
            buffers = [rows[a:b].reshape(-1).data for a, b in _runs(numbers)]
            return EncodedChunks(buffers, np.full(len(numbers), size))
        encode = batch_encoder(codecs, size) if is_plain and numbers else None
        if encode is not None:
            return encode(rows, numbers, memory)
        tiles = rows.view(self.dtype).reshape(len(rows), *self.metadata.chunks)
        return EncodedChunks.of([self.encode_any(tiles[n, ...], codecs) for n in numbers])

    def _stored(self, rows: Values, numbers: Sequence[int]) -> Sequence[int]:
        """Return which of some tiles, rows of bytes, are not all fill value."""
        words, at = rows.view(self._fill.dtype), np.asarray(numbers)
        may_be_fill = (words[at, 0] == self._fill[0]) & (words[at, -1] == self._fill[-1])
        if not may_be_fill.any():
            return range(len(numbers))
        suspects = set(np.flatnonzero(may_be_fill).tolist())
        return [
            n
            for n, number in enumerate(numbers)
            if n not in suspects or not self.is_fill(rows[number].view(self.dtype))
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


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number of each run of neighbours, and the one after its last.

    >>> list(_runs([4, 5, 6, 9]))
    [(4, 7), (9, 10)]
    """
    for _, some in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in some]
        yield run[0], run[-1] + 1


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
                self._tiles = ()  # their memory may be freed
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
            for group, chunks in self._encode(some, block, choice, threads):
                end = index.append(end, [part.slot for part in group], chunks)
                upload.append(chunks.buffers)
        metadata = self.metadata
        upload.finish(
            index.to_bytes(has_checksum=metadata.has_checksum, endian=metadata.index_endian)
        )
        return end + (0 if self.head else self.index_size)

    def _write_chunk(self, upload: Upload, part: ChunkPart, block: Values) -> int:
        """Write a chunk that is a file of its own."""
        ((_, chunks),) = self._encode([part], block, None, 1, is_fill_stored=True)
        upload.append(chunks.buffers)
        upload.finish(b"")
        return chunks.nbytes

    def _encode(
        self,
        parts: Sequence[ChunkPart],
        block: Values,
        choice: CodecChoice | None,
        threads: int,
        *,
        is_fill_stored: bool = False,
    ) -> list[tuple[Sequence[ChunkPart], EncodedChunks]]:
        """Return the chunks of a block, in groups that threads encoded."""
        size, extra, count = self.layout.chunk_nbytes, self.encoder.extra_nbytes, len(parts)
        memory = np.frombuffer(scratch("encoded", count * extra), np.uint8)
        tiles = self._tiles(parts, block)
        is_filled = tiles is not None
        if tiles is None:
            tiles = np.frombuffer(scratch("tiles", count * size), self.dtype)
            tiles = tiles.reshape(count, *self.layout.chunks)
        found: dict[int, EncodedChunks] = {}

        def encode(span: range) -> None:
            for n in () if is_filled else span:
                self._fill_tile(tiles[n], parts[n], block)
            codecs = self.metadata.codecs if choice is None else choice.codecs()
            room = memory[span.start * extra : span.stop * extra]
            found[span.start] = self.encoder.encode_tiles(
                [(Tiles.of(tiles), span)], codecs, room, is_fill_stored=is_fill_stored
            )

        step = -(-count // min(threads, count))
        spans = [range(first, min(first + step, count)) for first in range(0, count, step)]
        for_each(encode, spans, max_threads=threads)
        return [(parts[span.start : span.stop], found[span.start]) for span in spans]

    def _tiles(self, parts: Sequence[ChunkPart], block: Values) -> Values | None:
        """Return chunks as they lie in a block; None where they do not lie one after the other."""
        chunks, itemsize = self.layout.chunks, self.dtype.itemsize
        first, last = (np.asarray(block[part.target]) for part in (parts[0], parts[-1]))
        if first.shape != chunks or last.shape != chunks or block.dtype != self.dtype:
            return None
        if not (first.flags.c_contiguous and block.flags.c_contiguous):
            return None
        start, end = (each.ctypes.data - block.ctypes.data for each in (first, last))
        if end - start != (len(parts) - 1) * self.layout.chunk_nbytes:
            return None
        stop = end + self.layout.chunk_nbytes
        return block.reshape(-1)[start // itemsize : stop // itemsize].reshape(-1, *chunks)

    def _fill_tile(self, tile: Values, part: ChunkPart, block: Values) -> None:
        """Copy a chunk of a block into a tile, with the fill value beyond the edge."""
        if part.shape != self.layout.chunks:
            tile[...] = self.metadata.fill
        tile[tuple(map(slice, part.shape))] = block[part.target]

    def _tunes(self, count: int) -> bool:
        return self.metadata.is_sharded and count >= MIN_TRIED

    def _choice(self, parts: Sequence[ChunkPart], block: Values) -> CodecChoice | None:
        if not self._tunes(len(parts)):
            return None
        return CodecChoice(self.encoder, map(partial(self._sample, block=block), parts))

    def _sample(self, part: ChunkPart, block: Values) -> Values:
        tile = np.frombuffer(scratch("sample", self.layout.chunk_nbytes), self.dtype)
        tile = tile.reshape(self.layout.chunks)
        self._fill_tile(tile, part, block)
        return tile
