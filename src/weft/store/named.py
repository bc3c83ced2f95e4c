"""`as_codecs`: codecs as people say them: by name, as metadata have them, or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Crc32c, Gzip, Lz4, Zstd
from weft.store.metadata import read_codec

NAMED: Mapping[str, tuple[Codec, ...]] = {
    "none": (),
    "zstd": (Zstd(1),),
    "gzip": (Gzip(1),),
    "blosc-lz4": (Blosc("lz4", 5, "shuffle"),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle"),),
    "lz4": (Lz4(),),
    "crc32c": (Crc32c(),),
}
"""Codecs by the names that commands and people have for them."""

Said: TypeAlias = Codec | str | Mapping[str, Any]
"""A codec, its name, or what `zarr.json` says of it."""


def as_codecs(given: Said | Sequence[Said], itemsize: int) -> tuple[Codec, ...]:
    """Codecs for elements of some bytes.

    >>> as_codecs("blosc-zstd", 2)
    (Blosc(cname='zstd', clevel=1, shuffle='shuffle', typesize=2, blocksize=0),)
    >>> as_codecs([{"name": "gzip", "configuration": {"level": 5}}, "crc32c"], 2)
    (Gzip(level=5), Crc32c())
    """
    many: Any = [given] if isinstance(given, str | Mapping) or _is_codec(given) else given
    return tuple(_sized(codec, itemsize) for one in many for codec in _codecs(one))


def _is_codec(given: Any) -> bool:
    """Whether it does what writing asks of codecs; people may bring their own."""
    return all(hasattr(given, name) for name in ("name", "configuration", "encode"))


def _codecs(given: Said) -> Sequence[Codec]:
    if isinstance(given, str):
        if given not in NAMED:
            raise WeftError(f"{given!r} is no codec", hint=", ".join(NAMED))
        return NAMED[given]
    return (read_codec(given, "codecs"),) if isinstance(given, Mapping) else (given,)


def _sized(codec: Codec, itemsize: int) -> Codec:
    """Blosc with the width of an element, where none was said."""
    if not _is_codec(codec):
        raise WeftError(f"{codec!r} is no codec", hint=", ".join(NAMED))
    if isinstance(codec, Blosc) and not codec.typesize:
        return replace(codec, typesize=itemsize)
    return codec
