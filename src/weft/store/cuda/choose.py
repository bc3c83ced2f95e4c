"""`stage_of`: which stage on a GPU makes the chunks that codecs say."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Gzip, Zstd
from weft.store.cuda.nvcomp import NvComp
from weft.store.cuda.stages import Frames, Plain, Shape, Stage

WIDTHS = (1, 2, 4, 8, 16)
RUNS = 1 << 14
"""Bytes of a block of runs."""

PIECE, PIECE_SLOT = 1 << 13, (1 << 13) + 16
"""Bytes of a piece of literals, and what is made of it at most."""


def stage_of(codecs: Sequence[Codec], tile: int, encoder: str | None = None) -> Stage:
    """The stage for codecs; those that the device has not are refused by name.

    Where there are two, `encoder` says which: "weft", unless said, or "nvcomp".
    """
    if encoder not in (None, "weft", "nvcomp"):
        raise WeftError(f"encoder: {encoder!r} is neither weft nor nvcomp")
    match list(codecs):
        case []:
            return Plain(tile)
        case [Zstd() | Gzip() as codec] if encoder == "nvcomp" or isinstance(codec, Gzip):
            return NvComp(type(codec).__name__, tile)
        case [Zstd(checksum=False)]:
            pieces = -(-tile // PIECE)
            return Frames("zstd", Shape(pieces, PIECE_SLOT, 9 + tile + 3 * pieces), None)
        case [Blosc(cname="lz4", shuffle="bitshuffle", typesize=size)] if size in WIDTHS:
            return Frames("runs", Shape(-(-tile // RUNS), RUNS, tile + 16), size)
        case [Blosc(cname="zstd", shuffle="shuffle", typesize=size)] if size in WIDTHS:
            pieces = -(-tile // (PIECE * size)) * size
            return Frames("literals", Shape(pieces, PIECE_SLOT, tile + 16), size)
    raise WeftError(
        f"device='cuda' has no encoder of {[codec.name for codec in codecs]} as given",
        hint="no codec, Blosc('lz4', shuffle='bitshuffle'), Blosc('zstd', shuffle='shuffle'), "
        "Zstd(), and with nvCOMP Gzip()",
    )
