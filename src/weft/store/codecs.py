"""Codecs of Zarr v3: from an array's bytes to those that are stored, and back.

A chunk goes through `transpose`, is made bytes in an order (`bytes`), and then through any number
of codecs from bytes to bytes. Each is a small value that says what metadata says of it. All of them
let other threads run while they work.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store.blosc_frame import blosc_frame
from weft.store.decompress import (
    CodecError,
    copy_into,
    unblosc,
    unblosc_into,
    ungzip,
    ungzip_into,
    unlz4,
    unlz4_into,
    unzstd,
    unzstd_into,
)
from weft.store.dtypes import Bytes

__all__ = ["Blosc", "Codec", "CodecError", "Crc32c", "Gzip", "Lz4", "Zstd"]


@dataclass(frozen=True, slots=True)
class Zstd:
    """Zstandard, by `zstandard`."""

    level: int = 1
    checksum: bool = False
    table: int = 0
    """The logarithm of the places where matches are looked for; 0 for what the level has.

    No reader needs to know it.
    """

    name = "zstd"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {"level": self.level, "checksum": self.checksum}

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        known: dict[tuple[Zstd, int], Any] = _LOCAL.__dict__.setdefault("zstd", {})
        key = self, len(data).bit_length() if self.table else 0
        if key not in known:
            known[key] = self._compressor(len(data))
        made: bytes = known[key].compress(data)
        return made

    def _compressor(self, size: int) -> Any:
        zstandard = needed("zstandard", "store")
        if not self.table:
            return zstandard.ZstdCompressor(self.level, write_checksum=self.checksum)
        return zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                self.level,
                source_size=size,
                hash_log=self.table,
                write_checksum=self.checksum,
                write_content_size=True,
            )
        )

    def suited(self, sample: Bytes) -> Zstd:
        """The same codec, as it is quickest for data like a sample.

        Noise has no matches to be found: a table that fits a core's nearest cache then gives
        frames within half a percent of the level's, in two thirds of the time.
        """
        if self.table or self.level not in (1, 2) or len(sample) < _LEAST:
            return self
        quick = replace(self, table=_NEAR)
        return quick if len(quick.encode(sample)) <= 1.005 * len(self.encode(sample)) else self

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        return unzstd(data, most)

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """The bytes as they were, in a buffer of just as many; those in `first:stop` at least."""
        unzstd_into(data, out, first, stop)


@dataclass(frozen=True, slots=True)
class Gzip:
    """Gzip, by zlib."""

    level: int = 1

    name = "gzip"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {"level": self.level}

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        packer = zlib.compressobj(self.level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        return ungzip(data, most)

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """The bytes as they were, in a buffer of just as many; those in `first:stop` at least."""
        ungzip_into(data, out)


@dataclass(frozen=True, slots=True)
class Blosc:
    """Blosc 1, by `numcodecs`: a compressor behind a shuffle of bytes or bits."""

    cname: Literal["lz4", "lz4hc", "zstd", "zlib", "blosclz"] = "lz4"
    clevel: int = 5
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"] = "shuffle"
    typesize: int = 0
    """The bytes of an element; 0 for those of the array."""
    blocksize: int = 0

    name = "blosc"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": self.shuffle,
            "typesize": self.typesize or 1,
            "blocksize": self.blocksize,
        }

    @property
    def zstd_level(self) -> int:
        """The level of zstd that Blosc means by its own."""
        return 2 * self.clevel - 1 if self.clevel < 9 else 22

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        size = self.typesize or 1
        is_ours = self.cname == "zstd" and self.clevel and self.shuffle != "bitshuffle"
        if is_ours and len(data) and len(data) % size == 0:
            shuffle, compress = self.shuffle == "shuffle", Zstd(self.zstd_level).encode
            return blosc_frame(
                data, size, shuffle=shuffle, compress=compress, blocksize=self.blocksize
            )
        blosc = needed("numcodecs.blosc", "store")
        kinds = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE}
        kind = kinds.get(self.shuffle, blosc.BITSHUFFLE)
        array = np.frombuffer(data, dtype=f"V{size}" if len(data) % size == 0 else "V1")
        made: bytes = blosc.compress(array, self.cname.encode(), self.clevel, kind, self.blocksize)
        return made

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        return unblosc(data, most)

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """The bytes as they were, in a buffer of just as many; those in `first:stop` at least."""
        unblosc_into(data, out, first, stop)


@dataclass(frozen=True, slots=True)
class Lz4:
    """LZ4 as numcodecs writes it: a raw block behind its size."""

    acceleration: int = 1

    name = "numcodecs.lz4"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {"acceleration": self.acceleration}

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        made: bytes = needed("numcodecs.lz4", "store").compress(data, self.acceleration)
        return made

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        return unlz4(data, most)

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """The bytes as they were, in a buffer of just as many; those in `first:stop` at least."""
        unlz4_into(data, out)


@dataclass(frozen=True, slots=True)
class Crc32c:
    """The bytes, and a checksum of four bytes behind them."""

    name = "crc32c"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {}

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        return b"".join((data, checksum(data)))

    def decode(self, data: Bytes, most: int) -> Bytes:
        """Return the bytes before the checksum, once they match it."""
        if len(data) < 4:
            raise CodecError(f"{len(data)} B are too few for a checksum")
        body = memoryview(data)[:-4]
        check(body, data[-4:])
        return body

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """The bytes as they were, in a buffer of just as many."""
        copy_into(self.decode(data, len(out)), out)


Codec: TypeAlias = Zstd | Gzip | Blosc | Lz4 | Crc32c
"""What makes bytes of bytes."""

_LOCAL = threading.local()

_NEAR = 10
"""The logarithm of a table of 4 KiB."""

_LEAST = 1 << 16
"""Bytes below which a table of the level's size is small as well."""

_JOINED = 1 << 14
"""Bytes up to which copying a chunk behind its checksum is quicker than writing two pieces."""


def checksum(data: Bytes) -> bytes:
    """The CRC32C of bytes, as it is stored.

    >>> checksum(b"123456789").hex()
    '839206e3'
    """
    library = needed("google_crc32c", "store")
    # Its C extension takes arrays without a copy, but not memoryviews; pure Python wants bytes.
    in_place = library.implementation == "c" and len(data)
    value: int = library.value(np.frombuffer(data, np.uint8) if in_place else bytes(data))
    return value.to_bytes(4, "little")


def check(data: Bytes, stored: Bytes) -> None:
    """Raise `CodecError` unless the CRC32C of `data` is the one that is stored."""
    found = checksum(data)
    if found != bytes(stored):
        raise CodecError(
            f"checksum mismatch: {bytes(stored).hex()} is stored, and the CRC32C of the "
            f"{len(data)} B before it is {found.hex()}"
        )


def has_checksum(codecs: Sequence[Codec]) -> bool:
    """Return whether a chunk carries a CRC32C."""
    return any(isinstance(codec, Crc32c) for codec in codecs)


def with_checksum(codecs: Sequence[Codec]) -> tuple[Codec, ...]:
    """Return the codecs with a CRC32C behind them, unless one of them is a CRC32C already.

    >>> with_checksum([Gzip(5)])
    (Gzip(level=5), Crc32c())
    """
    return tuple(codecs) if has_checksum(codecs) else (*codecs, Crc32c())


def encode(codecs: Sequence[Codec], data: Bytes) -> Bytes:
    """Bytes through all codecs, the first first.

    >>> bytes(Gzip().decode(encode([Gzip()], b"abc"), 3))
    b'abc'
    """
    for codec in codecs:
        data = codec.encode(data)
    return data


def encode_pieces(codecs: Sequence[Codec], data: Bytes) -> tuple[Bytes, ...]:
    """Encode bytes to pieces that are stored one behind the other.

    A checksum at the end is a piece of its own, unless the bytes before it are few: they are not
    copied to make room for it.

    >>> [len(piece) for piece in encode_pieces([Crc32c()], bytes(100_000))]
    [100000, 4]
    """
    if not codecs or not isinstance(codecs[-1], Crc32c):
        return (encode(codecs, data),)
    body = encode(codecs[:-1], data)
    pieces = body, checksum(body)
    return pieces if len(body) > _JOINED else (b"".join(pieces),)


def decode(
    codecs: Sequence[Codec],
    data: Bytes,
    out: memoryview,
    first: int = 0,
    stop: int | None = None,
) -> None:
    """The bytes as they were, into a buffer of as many as there must be.

    Where not all are wanted, those in `first:stop` are there in the end, and the stored bytes may
    have been changed.

    >>> out = bytearray(3)
    >>> decode([Gzip()], encode([Gzip()], b"abc"), memoryview(out))
    >>> out
    bytearray(b'abc')
    """
    for codec in reversed(codecs[1:]):
        data = codec.decode(data, most_between(len(out)))
    if codecs:
        codecs[0].decode_into(data, out, first, len(out) if stop is None else stop)
    else:
        copy_into(data, out)


def most_stored(codecs: Sequence[Codec], size: int) -> int:
    """The most bytes that a chunk of some size is stored as: more is not read.

    No codec makes much more of bytes than they were, and a file may claim anything.
    """
    fixed = stored_size(codecs, size)
    return 2 * size + 4096 if fixed is None else fixed


def stored_size(codecs: Sequence[Codec], size: int) -> int | None:
    """Return the bytes that a chunk is stored as, or None where its content decides.

    >>> stored_size([], 10), stored_size([Crc32c()], 10), stored_size([Gzip()], 10)
    (10, 14, None)
    """
    is_fixed = all(isinstance(codec, Crc32c) for codec in codecs)
    return size + 4 * len(codecs) if is_fixed else None


def most_between(size: int) -> int:
    """Return the most bytes that may lie between two codecs of a chunk of some size."""
    return size + size // 8 + 4096


def most_work(codecs: Sequence[Codec], size: int) -> int:
    """The most bytes that it takes to encode or decode a chunk, beside what is given and made.

    A library has its tables; a stream that is unpacked grows, and is copied in the end; Blosc has
    a block in three forms, and a block may be all of a chunk. Between two codecs are bytes too.
    """
    if stored_size(codecs, size) is not None:  # checksums alone are computed where the bytes are
        return 0
    apart = len(codecs) - isinstance(codecs[-1], Crc32c)
    between = 2 * most_between(size) if apart > 1 else 0
    return between + max(_WORK.get(codec.name, 3) for codec in codecs) * size + _TABLES


def most_tables(codecs: Sequence[Codec], size: int) -> int:
    """The bytes that the contexts of a thread take for good, once it has encoded chunks.

    >>> most_tables([Gzip()], 1 << 20), most_tables([Zstd(1)], 1 << 20) < 2 << 20
    (0, True)
    """
    return sum(_tables(codec, size) for codec in codecs)


def _tables(codec: Codec, size: int) -> int:
    """Zstd has tables that grow with its level, and may have tried two of them."""
    if isinstance(codec, Blosc):
        return _tables(Zstd(codec.zstd_level), size) if codec.cname == "zstd" else 0
    if not isinstance(codec, Zstd):
        return 0
    parameters = needed("zstandard", "store").ZstdCompressionParameters
    made: int = parameters.from_level(
        codec.level, source_size=size
    ).estimated_compression_context_size()
    return made + (made if codec.level in (1, 2) else 0)


_WORK = {"zstd": 1, "gzip": 2, "blosc": 3, "numcodecs.lz4": 1, "crc32c": 2}
"""How many times the bytes of a chunk a codec needs while it works."""

_TABLES = 1 << 20
"""Bytes of tables that do not depend on the chunk."""


# -- as metadata and people write them

CODECS: dict[str, type[Any]] = {kind.name: kind for kind in (Zstd, Gzip, Blosc, Lz4, Crc32c)} | {
    "lz4": Lz4
}
_CNAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz", "snappy")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_RANGES = {
    ("zstd", "level"): (-131072, 22),
    ("gzip", "level"): (0, 9),
    ("blosc", "clevel"): (0, 9),
    ("blosc", "typesize"): (0, (1 << 31) - 1),
    ("blosc", "blocksize"): (0, (1 << 31) - 1),
}
"""What the numbers of codecs may be; those that are not named have 32 bits."""

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


def read_codec(data: Mapping[str, Any], path: str) -> Codec:
    """A codec from bytes to bytes, as metadata have it."""
    name = data.get("name")
    if name not in CODECS:
        raise WeftError(f"{path}: the codec {name!r} is not known here", hint=", ".join(CODECS))
    return codec_of(name, data.get("configuration") or {}, path)


def codec_of(name: str, said: Mapping[str, Any], path: str) -> Codec:
    kind = CODECS[name]
    taken: dict[str, Any] = {}
    for field in fields(kind):
        if field.name not in said or field.name not in kind().configuration:
            continue
        value = said[field.name]
        if field.name == "shuffle" and value in (0, 1, 2):
            value = _SHUFFLES[value]
        options = {"cname": _CNAMES, "shuffle": _SHUFFLES}.get(field.name)
        if type(value) is not type(field.default) or (options and value not in options):
            raise WeftError(f"{path}.configuration.{field.name}: {value!r} is not read here")
        low, high = _RANGES.get((name, field.name), (-(1 << 31), (1 << 31) - 1))
        if type(value) is int and not low <= value <= high:
            raise WeftError(
                f"{path}.configuration.{field.name}: {value} is not in {low}:{high + 1}"
            )
        taken[field.name] = value
    codec: Codec = kind(**taken)
    return codec
