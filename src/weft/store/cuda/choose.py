"""`stage_of`: which stage on a GPU makes the chunks that codecs say."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Gzip, Zstd
from weft.store.cuda.nvcomp import NvComp
from weft.store.cuda.stages import Frames, Plain, Stage

WIDTHS = (1, 2, 4, 8, 16)


def stage_of(codecs: Sequence[Codec], tile: int) -> Stage:
    """The stage for codecs; those that the device has not are refused by name."""
    match list(codecs):
        case []:
            return Plain(tile)
        case [Blosc(cname="lz4", shuffle="bitshuffle", typesize=size)] if size in WIDTHS:
            return Frames("runs", size, 1 << 14, 1 << 14)
        case [Zstd()]:
            return NvComp("Zstd", tile)
        case [Gzip()]:
            return NvComp("Gzip", tile)
    raise WeftError(
        f"device='cuda' has no encoder of {[codec.name for codec in codecs]} as given",
        hint="no codec, Blosc('lz4', shuffle='bitshuffle'), and with nvCOMP Zstd() and Gzip()",
    )
