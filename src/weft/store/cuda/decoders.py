"""Decoders of stored chunks on a GPU.

Chunks of a batch are decoded into a pool, where they lie at equal distances. A kernel marks those
that it cannot decode, and leaves them: the host decodes them, or refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.store.codecs import Blosc, Codec, Lz4, Zstd
from weft.store.cuda.device import address, module
from weft.store.cuda.encoders import CHECKSUM_PART, SIZE, THREADS, before_checksum

DECODE_THREADS = 64
"""Threads of a block of the kernels that decode: two warps, so that few wait for the slowest."""

WARPS = DECODE_THREADS // 32
STREAM = 1 << 14
"""Bytes of a chunk for each warp that decodes its streams, if there are as many streams."""

COPIED_PART = 1 << 14
"""Bytes of a chunk for each block of threads that copies, or joins planes."""

MAX_PARTS = 1 << 12
"""The most blocks of threads for one chunk."""


class StoredChunks:
    """The chunks of a batch on the device: stored bytes, tables of where they lie, and the pool."""

    def __init__(self, count: int, staged: Any, tables: Any, pool: Any, planes: Any) -> None:
        self.count, self.staged, self.pool, self.planes = count, staged, pool, planes
        self.offsets, self.sizes = tables, tables[count:]
        self.most = 0
        """The most stored bytes of a chunk."""
        self.failed: Any = None
        """A number for each chunk: 1 where it could not be decoded."""


class ChunkDecoder:
    """Decodes chunks of one size. This one copies: without a codec, chunks are elements."""

    has_planes = False
    """Whether it needs a second pool, for the planes of shuffled chunks, or literals."""

    def __init__(self, size: int, stride: int) -> None:
        self._shape = np.uint64(size), np.uint64(stride)
        self._parts = parts_of(size, COPIED_PART)
        self._unpack = self._kernel("weft_unpack")

    def _kernel(self, name: str) -> Any:
        return module("decode_zstd.cu" if "zstd" in name else "decode.cu").get_function(name)

    def _given(self, chunks: StoredChunks) -> tuple[Any, ...]:
        return (
            address(chunks.staged),
            address(chunks.offsets),
            address(chunks.sizes),
            *self._shape,
        )

    def decode(self, chunks: StoredChunks) -> None:
        """Decode chunks into their pool, on the current stream."""
        more = np.uint32(self._parts), address(chunks.pool), address(chunks.failed)
        grid = (chunks.count * self._parts,)
        self._unpack(grid, (DECODE_THREADS,), (*self._given(chunks), *more))


class Lz4Decoder(ChunkDecoder):
    """A warp decodes an LZ4 block behind its size."""

    def __init__(self, size: int, stride: int) -> None:
        self._shape = np.uint64(size), np.uint64(stride)
        self._decode = self._kernel("weft_lz4_decode")

    def decode(self, chunks: StoredChunks) -> None:
        """Decode chunks into their pool, on the current stream."""
        given = *self._given(chunks), address(chunks.pool), address(chunks.failed)
        self._decode((chunks.count,), (DECODE_THREADS,), given)


class BloscDecoder(ChunkDecoder):
    """A warp decodes each stream of LZ4 of a frame; then the planes of its blocks are joined."""

    has_planes = True

    def __init__(self, size: int, stride: int) -> None:
        self._shape = np.uint64(size), np.uint64(stride)
        self._streams = self._kernel("weft_blosc_lz4"), parts_of(size, WARPS * STREAM)
        self._join = self._kernel("weft_blosc_join"), parts_of(size, COPIED_PART)

    def decode(self, chunks: StoredChunks) -> None:
        """Decode chunks into their pool, on the current stream."""
        for kernel, parts in (self._streams, self._join):
            self._launch(chunks, kernel, parts)

    def _launch(self, chunks: StoredChunks, kernel: Any, parts: int, *more: Any) -> None:
        pools = address(chunks.planes), address(chunks.pool), address(chunks.failed)
        given = *self._given(chunks), np.uint32(parts), *more, *pools
        kernel((chunks.count * parts,), (DECODE_THREADS,), given)


class BloscZstdDecoder(BloscDecoder):
    """Warps share the literals of streams of zstd; then one decodes the sequences of each."""

    is_blosc = True

    def __init__(self, size: int, stride: int) -> None:
        super().__init__(size, stride)
        parts = parts_of(size, WARPS * STREAM)
        self._literals = self._kernel("weft_zstd_literals"), parts
        self._sequences = self._kernel("weft_zstd_sequences"), parts if self.is_blosc else 1

    def decode(self, chunks: StoredChunks) -> None:
        """Decode chunks into their pool, on the current stream."""
        for kernel, parts in (self._literals, self._sequences):
            self._launch(chunks, kernel, parts, np.uint32(self.is_blosc))
        if self.is_blosc:
            self._launch(chunks, *self._join)


class ZstdDecoder(BloscZstdDecoder):
    """The same of chunks that are frames of zstd; the second pool holds their literals."""

    is_blosc = False


def parts_of(size: int, part: int) -> int:
    """Return into how many parts the work on a chunk is cut."""
    return max(1, min(MAX_PARTS, -(-size // part)))


def chunk_decoder(codecs: Sequence[Codec]) -> type[ChunkDecoder] | None:
    """Return the decoder for codecs; None for those that the host decodes."""
    match list(before_checksum(codecs)):
        case []:
            return ChunkDecoder
        case [Lz4()]:
            return Lz4Decoder
        case [Zstd(checksum=False)]:
            return ZstdDecoder
        case [Blosc(cname="lz4" | "lz4hc")]:
            return BloscDecoder
        case [Blosc(cname="zstd")]:
            return BloscZstdDecoder
    return None


class ChecksumCheck:
    """Compares the checksums of chunks with those behind them."""

    def __init__(self) -> None:
        kernels = module("checksum.cu")
        self._sum, self._check = (kernels.get_function(f"weft_crc_{n}") for n in ("parts", "check"))

    def scratch(self, chunks: int, most: int) -> int:
        """Return the bytes of workspace for chunks, given the largest stored size."""
        return SIZE * chunks * parts_in(most)

    def check(self, chunks: StoredChunks, scratch: Any) -> None:
        """Mark chunks that do not match, on the current stream."""
        parts = parts_in(chunks.most)
        tables = address(chunks.sizes), address(chunks.offsets), address(scratch), np.uint32(parts)
        given = address(chunks.staged), *tables
        self._sum((chunks.count * parts,), (THREADS,), given)
        more = np.uint64(chunks.count), address(chunks.failed)
        self._check((-(-chunks.count // THREADS),), (THREADS,), (*given, *more))


def parts_in(most: int) -> int:
    """Return the parts of a chunk that the checksum kernel reads one by one."""
    return max(1, -(-most // CHECKSUM_PART))
