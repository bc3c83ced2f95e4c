"""Encoders of tiles on a GPU: none, kernels that write standard frames, nvCOMP, and checksums.

nvCOMP is used through its batched C API, where it is installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Crc32c, Gzip, Zstd
from weft.store.cuda.device import cupy, module

if TYPE_CHECKING:
    from weft.store.cuda.batch import BatchBuffers

THREADS = 256
"""Threads of a block, in every kernel."""

COPIED_PART = 1 << 15
"""Bytes that one block of the gather kernel copies."""

BATCHED = 1 << 28
"""Bytes of a batch."""

ALIGNED = 256
"""The alignment of buffers inside another."""


class TileEncoder:
    """Encodes the tiles of a batch to chunks, in two steps: sizes, then bytes at their offsets.

    This one copies: without a codec, tiles are chunks.
    """

    name = "none"
    batch = BATCHED
    """Bytes of tiles that keep the device busy; a batch has at least one epoch."""

    def __init__(self, tile: int) -> None:
        self.tile = self.most = self.fixed = tile
        """The bytes of a tile, the most bytes of its chunk, and those of all; 0 if they differ."""
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def scratch(self, count: int) -> int:
        """Return the bytes of workspace for `count` tiles."""
        return 0

    def sizes(self, batch: BatchBuffers, count: int) -> None:
        """Compute the sizes of chunks, on the current stream, where they differ."""

    def put(self, batch: BatchBuffers, count: int) -> None:
        """Write chunks at their offsets."""
        self._copy(batch, count, batch.pool, self.tile)

    def _copy(self, batch: BatchBuffers, count: int, chunks: Any, stride: int) -> None:
        """Copy chunks that are `stride` bytes apart to their offsets."""
        parts = -(-stride // COPIED_PART)
        rest = np.uint32(parts), np.uint64(COPIED_PART)
        given = chunks, np.uint64(stride), batch.sizes, batch.offsets, batch.out, *rest
        self._gather((count * parts,), (THREADS,), given)

    def check(self, batch: BatchBuffers, count: int) -> None:
        """Raise an error if a batch was not encoded correctly, once it is on the host."""


class FrameEncoder(TileEncoder):
    """Standard frames by kernels in three launches: pieces, sizes, frames. See `encode.cu`.

    A block of threads encodes one of the `pieces` of a tile to at most `slot` bytes.
    """

    fixed = 0

    def __init__(
        self, name: str, tile: int, most: int, pieces: int, slot: int, typesize: int | None = None
    ) -> None:
        self.name, self.tile, self.most = name, tile, most
        self.pieces, self.slot = pieces, slot
        self._kind = () if typesize is None else (np.uint32(typesize),)
        kernels = module("encode.cu")
        self._blocks, self._sizes, self._frames = (
            kernels.get_function(f"weft_{name}_{step}") for step in ("blocks", "sizes", "frames")
        )

    def _parts(self, count: int) -> tuple[int, int, int]:
        """Return where the sizes and the starts of pieces lie after the pieces, and the end."""
        pieces = count * self.pieces
        slots, table = aligned(pieces * self.slot), aligned(4 * pieces)
        return slots, slots + table, slots + 2 * table

    def scratch(self, count: int) -> int:
        """Return the bytes of the pieces, and of two tables."""
        return self._parts(count)[2]

    def sizes(self, batch: BatchBuffers, count: int) -> None:
        """Encode all pieces, and compute the sizes of frames."""
        first, second, _ = self._parts(count)
        scratch, size = batch.scratch, np.uint64(self.tile)
        pieces = batch.pool, size, size, *self._kind, scratch, scratch[first:]
        self._blocks((count * self.pieces,), (THREADS,), pieces)
        frames = size, *self._kind, scratch[first:], scratch[second:], batch.sizes
        self._sizes((count,), (THREADS,), frames)

    def put(self, batch: BatchBuffers, count: int) -> None:
        """Copy pieces into frames; where a frame may be stored raw, tiles are read again."""
        first, second, _ = self._parts(count)
        scratch, size = batch.scratch, np.uint64(self.tile)
        tiles = (batch.pool, size) if self._kind else ()
        tables = scratch, scratch[first:], scratch[second:], batch.sizes, batch.offsets
        given = *tiles, size, *self._kind, *tables, batch.out
        self._frames((count * self.pieces,), (THREADS,), given)


def aligned(size: int) -> int:
    """Return a number of bytes rounded up to the alignment."""
    return -(-size // ALIGNED) * ALIGNED


NAME = "libnvcomp.so"
VERSIONS = (6, 5)


class Options(ctypes.Structure):
    """The options of nvCOMP: all zero for its defaults."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


@cache
def library() -> Any:
    """Load nvCOMP from its Python package, or from the system's libraries."""
    spec = find_spec("nvidia.libnvcomp") if find_spec("nvidia") is not None else None
    folders = (
        [Path(place) / "lib64" for place in (spec.submodule_search_locations or [])] if spec else []
    )
    names = [f"{NAME}.{version}" for version in VERSIONS]
    for place in [*(str(folder / name) for folder in folders for name in names), *names]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise WeftError(
        "nvCOMP is needed and not installed", hint="pip install nvidia-libnvcomp-cu13 (or -cu12)"
    )


class NvComp(TileEncoder):
    """Chunks by nvCOMP: all tiles of a batch in one call."""

    fixed = 0
    batch = 1 << 29  # it wants a thousand chunks and more

    def __init__(self, kind: str, tile: int) -> None:
        self.name, self.tile = f"nvcomp-{kind.lower()}", tile
        self.kind, self.library, self.cp = kind, library(), cupy()
        if tile % 8:
            raise WeftError(f"nvCOMP takes chunks of a multiple of 8 B, and not of {tile} B")
        self.most = aligned(self._query("GetMaxOutputChunkSize", ctypes.c_size_t(tile), Options()))
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def _call(self, name: str, *given: Any) -> None:
        status = getattr(self.library, f"nvcompBatched{self.kind}Compress{name}")(*given)
        if status:
            raise WeftError(f"nvCOMP: {self.kind} {name} failed with status {status}")

    def _query(self, name: str, *given: Any, after: tuple[Any, ...] = ()) -> int:
        size = ctypes.c_size_t()
        self._call(name, *given, ctypes.byref(size), *after)
        return size.value

    def _parts(self, count: int) -> list[int]:
        """Return where the workspace, the chunks and four tables lie, and the end."""
        sizes = ctypes.c_size_t(count), ctypes.c_size_t(self.tile), Options()
        total = ctypes.c_size_t(count * self.tile), ctypes.c_void_p(0)
        working = aligned(self._query("GetTempSize", *sizes, after=total))
        steps = [
            working,
            aligned(count * self.most),
            *[aligned(8 * count)] * 3,
            aligned(4 * count),
        ]
        return [0, *np.cumsum(steps).tolist()]

    def scratch(self, count: int) -> int:
        """Return the bytes of the workspace, of every chunk, and of tables."""
        return self._parts(count)[-1]

    def sizes(self, batch: BatchBuffers, count: int) -> None:
        """Encode all tiles."""
        at, cp, scratch, tile = self._parts(count), self.cp, batch.scratch, self.tile
        numbers = cp.arange(count, dtype=cp.uint64)
        tables = [scratch[a : a + 8 * count].view(cp.uint64) for a in at[2:5]]
        tables[0][...] = batch.pool.data.ptr + numbers * tile
        tables[1][...] = scratch.data.ptr + at[1] + numbers * self.most
        tables[2][...] = tile
        sources, targets, given = (ctypes.c_void_p(table.data.ptr) for table in tables)
        self._call(
            "Async",
            sources,
            given,
            ctypes.c_size_t(tile),
            ctypes.c_size_t(count),
            ctypes.c_void_p(scratch.data.ptr),
            ctypes.c_size_t(at[1]),
            targets,
            ctypes.c_void_p(batch.sizes.data.ptr),
            Options(),
            ctypes.c_void_p(scratch.data.ptr + at[5]),
            ctypes.c_void_p(cp.cuda.get_current_stream().ptr),
        )

    def put(self, batch: BatchBuffers, count: int) -> None:
        """Copy chunks to their offsets."""
        self._copy(batch, count, batch.scratch[self._parts(count)[1] :], self.most)

    def check(self, batch: BatchBuffers, count: int) -> None:
        """Raise an error if nvCOMP failed at a chunk."""
        at = self._parts(count)[5]
        statuses = batch.scratch[at : at + 4 * count].view(self.cp.int32).get()
        if statuses.any():
            chunk = int(np.flatnonzero(statuses)[0])
            raise WeftError(f"nvCOMP failed at chunk {chunk} of a batch: status {statuses[chunk]}")


WIDTHS = (1, 2, 4, 8, 16)
RUNS = 1 << 14
"""Bytes of a block of runs."""

PIECE, PIECE_SLOT = 1 << 13, (1 << 13) + 16
"""Bytes of a piece of literals, and the most bytes of an encoded one."""


def tile_encoder(codecs: Sequence[Codec], tile: int, encoder: str | None = None) -> TileEncoder:
    """Return the encoder for codecs; refuse those that the device does not have.

    Where there are two, `encoder` chooses: "weft", which is the default, or "nvcomp".
    """
    if encoder not in (None, "weft", "nvcomp"):
        raise WeftError(f"encoder: {encoder!r} is neither weft nor nvcomp")
    match list(codecs):
        case []:
            return TileEncoder(tile)
        case [Zstd() | Gzip() as codec] if encoder == "nvcomp" or isinstance(codec, Gzip):
            return NvComp(type(codec).__name__, tile)
        case [Zstd(checksum=False)]:
            pieces = -(-tile // PIECE)
            return FrameEncoder("zstd", tile, 9 + tile + 3 * pieces, pieces, PIECE_SLOT)
        case [Blosc(cname="lz4", shuffle="bitshuffle", typesize=size)] if size in WIDTHS:
            return FrameEncoder("runs", tile, tile + 16, -(-tile // RUNS), RUNS, size)
        case [Blosc(cname="zstd", shuffle="shuffle", typesize=size)] if size in WIDTHS:
            pieces = -(-tile // (PIECE * size)) * size
            return FrameEncoder("literals", tile, tile + 16, pieces, PIECE_SLOT, size)
    raise WeftError(
        f"device='cuda' has no encoder for {[codec.name for codec in codecs]} as given",
        hint="no codec, Blosc('lz4', shuffle='bitshuffle'), Blosc('zstd', shuffle='shuffle'), "
        "Zstd(), and with nvCOMP Gzip()",
    )


CHECKSUM_PART = THREADS * 256
"""Bytes of a chunk that one block of threads reads."""

SIZE = 4
"""Bytes of a checksum."""


def before_checksum(codecs: Sequence[Codec]) -> Sequence[Codec]:
    """Return the codecs without a checksum at their end."""
    return codecs[:-1] if codecs and isinstance(codecs[-1], Crc32c) else codecs


class Checksums:
    """Appends checksums to chunks, or does nothing where the codecs have none.

    Chunks are `extra` bytes apart, where their checksums go.
    """

    def __init__(self, codecs: Sequence[Codec], most: int) -> None:
        is_last = len(before_checksum(codecs)) < len(codecs)
        self.extra = SIZE if is_last else 0
        self._parts = -(-most // CHECKSUM_PART) if is_last else 0
        if is_last:
            kernels = module("checksum.cu")
            self._sum, self._put = (kernels.get_function(f"weft_crc_{n}") for n in ("parts", "put"))

    def scratch(self, count: int) -> int:
        """Return the bytes of workspace for `count` chunks: a sum for every part."""
        return 4 * self._parts * count

    def put(self, batch: BatchBuffers, count: int) -> None:
        """Compute the checksums of chunks at their offsets, on the current stream."""
        if not self.extra:
            return
        given = batch.out, batch.sizes, batch.offsets, batch.sums, np.uint32(self._parts)
        self._sum((count * self._parts,), (THREADS,), given)
        self._put((-(-count // THREADS),), (THREADS,), (*given, np.uint64(count)))
