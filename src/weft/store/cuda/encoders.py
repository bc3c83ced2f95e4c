"""Encoders of tiles on a GPU: none, kernels that write standard frames, nvCOMP, and checksums.

nvCOMP is used through its batched C API, where it is installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Crc32c, Gzip, Zstd
from weft.store.cuda.device import cupy, module

THREADS = 256
"""Threads of a block, in every kernel."""

COPIED_PART = 1 << 15
"""Bytes that one block of the gather kernel copies."""

BATCHED = 1 << 28
"""Bytes of a batch."""

ALIGNED = 256
"""The alignment of buffers inside another."""


class TileEncoder:
    """Encodes tiles to chunks, in two steps: sizes, and then bytes at their offsets.

    This one copies: without a codec, tiles are chunks.
    """

    name = "none"
    batch = BATCHED
    """Bytes of tiles that keep the device busy; a batch has at least one epoch."""

    def __init__(self, tile: int) -> None:
        self.fixed = tile
        """The bytes of every chunk; 0 where they differ."""
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def most(self, tile: int) -> int:
        """Return the most bytes of the chunk of a tile."""
        return tile

    def scratch(self, tile: int, count: int) -> int:
        """Return the bytes of workspace for `count` tiles."""
        return 0

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Compute the sizes of chunks, on the current stream, where they differ."""

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Write chunks at their offsets."""
        self._copy(pool, tile, count, sizes, offsets, out)

    def _copy(
        self, chunks: Any, stride: int, count: int, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy chunks that are `stride` bytes apart to their offsets."""
        parts = -(-stride // COPIED_PART)
        rest = np.uint32(parts), np.uint64(COPIED_PART)
        given = chunks, np.uint64(stride), sizes, offsets, out, *rest
        self._gather((count * parts,), (THREADS,), given)

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Raise an error if a batch was not encoded correctly, once it is on the host."""


@dataclass(frozen=True)
class PieceLayout:
    """How an encoder cuts a chunk into pieces, one for each block of threads."""

    pieces: int
    slot: int
    """The most bytes of an encoded piece."""
    most: int
    """The most bytes of a chunk."""


class FrameEncoder(TileEncoder):
    """Standard frames by kernels in three launches: pieces, sizes, frames. See `encode.cu`."""

    fixed = 0
    batch = BATCHED

    def __init__(self, name: str, shape: PieceLayout, typesize: int | None) -> None:
        self.name, self.shape = name, shape
        self._kind = () if typesize is None else (np.uint32(typesize),)
        kernels = module("encode.cu")
        self._blocks, self._sizes, self._frames = (
            kernels.get_function(f"weft_{name}_{step}") for step in ("blocks", "sizes", "frames")
        )

    def most(self, tile: int) -> int:
        """Return the most bytes of a frame."""
        return self.shape.most

    def _parts(self, count: int) -> tuple[int, int, int]:
        """Return where the sizes and the starts of pieces lie after the pieces, and the end."""
        pieces = count * self.shape.pieces
        slots, table = aligned(pieces * self.shape.slot), aligned(4 * pieces)
        return slots, slots + table, slots + 2 * table

    def scratch(self, tile: int, count: int) -> int:
        """Return the bytes of the pieces, and of two tables."""
        return self._parts(count)[2]

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Encode all pieces, and compute the sizes of frames."""
        first, second, _ = self._parts(count)
        table, starts, size = scratch[first:], scratch[second:], np.uint64(tile)
        grid = (count * self.shape.pieces,)
        self._blocks(grid, (THREADS,), (pool, size, size, *self._kind, scratch, table))
        self._sizes((count,), (THREADS,), (size, *self._kind, table, starts, sizes))

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy pieces into frames; where a frame may be stored raw, tiles are read again."""
        first, second, _ = self._parts(count)
        table, starts, size = scratch[first:], scratch[second:], np.uint64(tile)
        tiles = (pool, size) if self._kind else ()
        given = *tiles, size, *self._kind, scratch, table, starts, sizes, offsets, out
        self._frames((count * self.shape.pieces,), (THREADS,), given)


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
        self.name = f"nvcomp-{kind.lower()}"
        self.kind, self.library, self.cp = kind, library(), cupy()
        if tile % 8:
            raise WeftError(f"nvCOMP takes chunks of a multiple of 8 B, and not of {tile} B")
        self._most = aligned(self._query("GetMaxOutputChunkSize", ctypes.c_size_t(tile), Options()))
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def _call(self, name: str, *given: Any) -> None:
        status = getattr(self.library, f"nvcompBatched{self.kind}Compress{name}")(*given)
        if status:
            raise WeftError(f"nvCOMP: {self.kind} {name} failed with status {status}")

    def _query(self, name: str, *given: Any, after: tuple[Any, ...] = ()) -> int:
        size = ctypes.c_size_t()
        self._call(name, *given, ctypes.byref(size), *after)
        return size.value

    def most(self, tile: int) -> int:
        """Return nvCOMP's bound."""
        return self._most

    def _parts(self, tile: int, count: int) -> list[int]:
        """Return where the workspace, the chunks and four tables lie, and the end."""
        sizes = ctypes.c_size_t(count), ctypes.c_size_t(tile), Options()
        total = ctypes.c_size_t(count * tile), ctypes.c_void_p(0)
        working = aligned(self._query("GetTempSize", *sizes, after=total))
        steps = [
            working,
            aligned(count * self._most),
            *[aligned(8 * count)] * 3,
            aligned(4 * count),
        ]
        return [0, *np.cumsum(steps).tolist()]

    def scratch(self, tile: int, count: int) -> int:
        """Return the bytes of the workspace, of every chunk, and of tables."""
        return self._parts(tile, count)[-1]

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Encode all tiles."""
        at, cp = self._parts(tile, count), self.cp
        numbers = cp.arange(count, dtype=cp.uint64)
        tables = [scratch[a : a + 8 * count].view(cp.uint64) for a in at[2:5]]
        tables[0][...] = pool.data.ptr + numbers * tile
        tables[1][...] = scratch.data.ptr + at[1] + numbers * self._most
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
            ctypes.c_void_p(sizes.data.ptr),
            Options(),
            ctypes.c_void_p(scratch.data.ptr + at[5]),
            ctypes.c_void_p(cp.cuda.get_current_stream().ptr),
        )

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy chunks to their offsets."""
        chunks = scratch[self._parts(tile, count)[1] :]
        self._copy(chunks, self._most, count, sizes, offsets, out)

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Raise an error if nvCOMP failed at a chunk."""
        at = self._parts(tile, count)[5]
        statuses = scratch[at : at + 4 * count].view(self.cp.int32).get()
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
            return FrameEncoder(
                "zstd", PieceLayout(pieces, PIECE_SLOT, 9 + tile + 3 * pieces), None
            )
        case [Blosc(cname="lz4", shuffle="bitshuffle", typesize=size)] if size in WIDTHS:
            return FrameEncoder("runs", PieceLayout(-(-tile // RUNS), RUNS, tile + 16), size)
        case [Blosc(cname="zstd", shuffle="shuffle", typesize=size)] if size in WIDTHS:
            pieces = -(-tile // (PIECE * size)) * size
            return FrameEncoder("literals", PieceLayout(pieces, PIECE_SLOT, tile + 16), size)
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

    def put(self, count: int, out: Any, sizes: Any, offsets: Any, scratch: Any) -> None:
        """Compute the checksums of chunks at their offsets, on the current stream."""
        if not self.extra:
            return
        given = out, sizes, offsets, scratch, np.uint32(self._parts)
        self._sum((count * self._parts,), (THREADS,), given)
        self._put((-(-count // THREADS),), (THREADS,), (*given, np.uint64(count)))
