"""Codecs of Zarr v3: from an array's bytes to those that are stored, and back.

A chunk goes through `transpose`, is made bytes in an order (`bytes`), and then through any number
of codecs from bytes to bytes. Each is a small value that says what metadata says of it. All of them
let other threads run while they work.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed

Bytes: TypeAlias = bytes | bytearray | memoryview
"""What a codec takes and makes."""


class CodecError(WeftError):
    """Bytes that are not what a codec makes."""


@dataclass(frozen=True, slots=True)
class Zstd:
    """Zstandard, by `zstandard`."""

    level: int = 1
    checksum: bool = False

    name = "zstd"

    @property
    def configuration(self) -> dict[str, Any]:
        """What metadata says of it."""
        return {"level": self.level, "checksum": self.checksum}

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        known: dict[Zstd, Any] = _LOCAL.__dict__.setdefault("zstd", {})
        if self not in known:
            zstandard = needed("zstandard", "store")
            known[self] = zstandard.ZstdCompressor(self.level, write_checksum=self.checksum)
        made: bytes = known[self].compress(data)
        return made

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        zstandard = needed("zstandard", "store")
        try:
            _check_claim("a zstd frame", zstandard.frame_content_size(data), most)
            made: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=most)
        except zstandard.ZstdError as error:
            raise CodecError(f"not a zstd frame: {error}") from None
        return made

    def decode_into(self, data: Bytes, out: memoryview) -> None:
        """The bytes as they were, in a buffer of just as many."""
        try:
            needed("numcodecs.zstd", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            self.decode(data, len(out))  # says more where the frame claims too much
            raise CodecError(f"not a zstd frame of {len(out)} B: {error}") from None


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
        """The bytes as they were, at most so many; a stream may have several members."""
        parts: list[bytes] = []
        left = most + 1
        while data or not parts:
            unpacker = zlib.decompressobj(31)
            try:
                parts.append(unpacker.decompress(data, left))
            except zlib.error as error:
                raise CodecError(f"not a gzip stream: {error}") from None
            left -= len(parts[-1])
            if left < 1 or not unpacker.eof:
                raise CodecError(f"a gzip stream has more than {most} B, or no end")
            data = unpacker.unused_data.lstrip(b"\0")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def decode_into(self, data: Bytes, out: memoryview) -> None:
        """The bytes as they were, in a buffer of just as many."""
        _copy(self.decode(data, len(out)), out)


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

    def encode(self, data: Bytes) -> Bytes:
        """The stored bytes."""
        blosc = needed("numcodecs.blosc", "store")
        kinds = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE}
        kind = kinds.get(self.shuffle, blosc.BITSHUFFLE)
        size = self.typesize or 1
        array = np.frombuffer(data, dtype=f"V{size}" if len(data) % size == 0 else "V1")
        made: bytes = blosc.compress(array, self.cname.encode(), self.clevel, kind, self.blocksize)
        return made

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were, at most so many."""
        out = bytearray(self._claim(data, most))
        self._decompress(data, memoryview(out))
        return out

    def decode_into(self, data: Bytes, out: memoryview) -> None:
        """The bytes as they were, in a buffer of just as many."""
        claimed = self._claim(data, len(out))
        if claimed != len(out):
            raise CodecError(f"a blosc buffer of {claimed} B, and a chunk has {len(out)} B")
        self._decompress(data, out)

    def _claim(self, data: Bytes, most: int) -> int:
        """The bytes that a buffer says it has: the library trusts what its header says."""
        if len(data) < 16:
            raise CodecError(f"{len(data)} B are no blosc buffer")
        claimed, _, stored = _BLOSC.unpack_from(data, 4)
        _check_claim("a blosc buffer", claimed, most)
        if not 16 <= stored <= len(data):
            raise CodecError(f"a blosc buffer claims {stored} B, and {len(data)} B are stored")
        return int(claimed)

    def _decompress(self, data: Bytes, out: memoryview) -> None:
        try:
            needed("numcodecs.blosc", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not a blosc buffer: {error}") from None


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
        out = bytearray(self._claim(data, most))
        self._decompress(data, memoryview(out))
        return out

    def decode_into(self, data: Bytes, out: memoryview) -> None:
        """The bytes as they were, in a buffer of just as many."""
        claimed = self._claim(data, len(out))
        if claimed != len(out):
            raise CodecError(f"an lz4 block of {claimed} B, and a chunk has {len(out)} B")
        self._decompress(data, out)

    def _claim(self, data: Bytes, most: int) -> int:
        if len(data) < 4:
            raise CodecError(f"{len(data)} B are no lz4 block")
        claimed = int.from_bytes(data[:4], "little")
        _check_claim("an lz4 block", claimed, most)
        return claimed

    def _decompress(self, data: Bytes, out: memoryview) -> None:
        try:
            needed("numcodecs.lz4", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not an lz4 block: {error}") from None


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
        return bytes(data) + checksum(data)

    def decode(self, data: Bytes, most: int) -> Bytes:
        """The bytes as they were."""
        body = memoryview(data)[:-4]
        if len(data) < 4 or checksum(body) != bytes(data[-4:]):
            raise CodecError("the checksum is not that of the bytes before it")
        return body

    def decode_into(self, data: Bytes, out: memoryview) -> None:
        """The bytes as they were, in a buffer of just as many."""
        _copy(self.decode(data, len(out)), out)


Codec: TypeAlias = Zstd | Gzip | Blosc | Lz4 | Crc32c
"""What makes bytes of bytes."""

_LOCAL = threading.local()
_BLOSC = struct.Struct("<III")
"""Of a header: the bytes of the data, of a block, and of all that is stored."""


def checksum(data: Bytes) -> bytes:
    """The CRC32C of bytes, as it is stored.

    >>> checksum(b"123456789").hex()
    '839206e3'
    """
    value: int = needed("google_crc32c", "store").value(bytes(data))
    return value.to_bytes(4, "little")


def encode(codecs: Sequence[Codec], data: Bytes) -> Bytes:
    """Bytes through all codecs, the first first.

    >>> bytes(Gzip().decode(encode([Gzip()], b"abc"), 3))
    b'abc'
    """
    for codec in codecs:
        data = codec.encode(data)
    return data


def decode(codecs: Sequence[Codec], data: Bytes, out: memoryview) -> None:
    """The bytes as they were, into a buffer of as many as there must be.

    >>> out = bytearray(3)
    >>> decode([Gzip()], encode([Gzip()], b"abc"), memoryview(out))
    >>> out
    bytearray(b'abc')
    """
    for codec in reversed(codecs[1:]):
        data = codec.decode(data, most_stored(codecs, len(out)))
    if codecs:
        codecs[0].decode_into(data, out)
    else:
        _copy(data, out)


def most_stored(codecs: Sequence[Codec], size: int) -> int:
    """The most bytes that a chunk of some size is stored as: more is not read.

    No codec makes much more of bytes than they were, and a file may claim anything.
    """
    return 2 * size + 4096 if codecs else size


def _check_claim(what: str, claimed: int, most: int) -> None:
    if claimed > most:
        raise CodecError(f"{what} claims {claimed} B, and a chunk has {most} B")


def _copy(data: Bytes, out: memoryview) -> None:
    if len(data) != len(out):
        raise CodecError(f"a chunk of {len(out)} B was stored as {len(data)} B")
    out[:] = data
