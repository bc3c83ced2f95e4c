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
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.frames import blosc_frame


class CodecError(WeftError):
    """Bytes that are not what a codec makes."""


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
        frames within half a percent of the level's, in three quarters of the time.
        """
        if self.table or self.level not in (1, 2) or len(sample) < _LEAST:
            return self
        quick = replace(self, table=_NEAR)
        return quick if len(quick.encode(sample)) <= 1.005 * len(self.encode(sample)) else self

    def decode(self, data: Bytes, size: int) -> Bytes:
        """The bytes as they were, at most so many."""
        zstandard = needed("zstandard", "store")
        try:
            claimed = zstandard.frame_content_size(data)
            if claimed > size:
                raise CodecError(f"a zstd frame claims {claimed} B, and a chunk has {size} B")
            made: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise CodecError(f"not a zstd frame: {error}") from None
        return made


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

    def decode(self, data: Bytes, size: int) -> Bytes:
        """The bytes as they were, at most so many."""
        try:
            unpacker = zlib.decompressobj(31)
            made = unpacker.decompress(data, size + 1)
        except zlib.error as error:
            raise CodecError(f"not a gzip stream: {error}") from None
        if len(made) > size or not unpacker.eof:
            raise CodecError(f"a gzip stream has more than the {size} B of a chunk, or no end")
        return made


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
        size = self.typesize or 1
        is_ours = self.cname == "zstd" and self.clevel and self.shuffle != "bitshuffle"
        if is_ours and len(data) and len(data) % size == 0:
            level = 2 * self.clevel - 1 if self.clevel < 9 else 22
            shuffle, compress = self.shuffle == "shuffle", Zstd(level).encode
            return blosc_frame(
                data, size, shuffle=shuffle, compress=compress, blocksize=self.blocksize
            )
        blosc = needed("numcodecs.blosc", "store")
        kinds = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE}
        kind = kinds.get(self.shuffle, blosc.BITSHUFFLE)
        array = np.frombuffer(data, dtype=f"V{size}" if len(data) % size == 0 else "V1")
        made: bytes = blosc.compress(array, self.cname.encode(), self.clevel, kind, self.blocksize)
        return made

    def decode(self, data: Bytes, size: int) -> Bytes:
        """The bytes as they were, at most so many."""
        if len(data) < 16:
            raise CodecError(f"{len(data)} B are no blosc buffer")
        claimed, _, stored = struct.unpack("<III", bytes(data[4:16]))
        if claimed > size or stored > len(data):
            raise CodecError(f"a blosc buffer claims {claimed} B, and a chunk has {size} B")
        try:
            made: bytes = needed("numcodecs.blosc", "store").decompress(bytes(data[:stored]))
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not a blosc buffer: {error}") from None
        return made


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

    def decode(self, data: Bytes, size: int) -> Bytes:
        """The bytes as they were, at most so many."""
        claimed = int.from_bytes(bytes(data[:4]), "little")
        if len(data) < 4 or claimed > size:
            raise CodecError(f"an lz4 block claims {claimed} B, and a chunk has {size} B")
        try:
            made: bytes = needed("numcodecs.lz4", "store").decompress(bytes(data))
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not an lz4 block: {error}") from None
        return made


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

    def decode(self, data: Bytes, size: int) -> Bytes:
        """The bytes as they were."""
        body, end = data[:-4], bytes(data[-4:])
        if len(data) < 4 or checksum(body) != end:
            raise CodecError("the checksum is not that of the bytes before it")
        return body


Codec: TypeAlias = Zstd | Gzip | Blosc | Lz4 | Crc32c
"""What makes bytes of bytes."""

_LOCAL = threading.local()

_NEAR = 12
"""The logarithm of a table of 16 KiB."""

_LEAST = 1 << 16
"""Bytes below which a table of the level's size is small as well."""


def checksum(data: Bytes) -> bytes:
    """The CRC32C of bytes, as it is stored.

    >>> checksum(b"123456789").hex()
    '839206e3'
    """
    value: int = needed("google_crc32c", "store").value(bytes(data))
    return value.to_bytes(4, "little")


def encode(codecs: Sequence[Codec], data: Bytes) -> Bytes:
    """Bytes through all codecs, the first first.

    >>> bytes(decode([Gzip()], encode([Gzip()], b"abc"), 3))
    b'abc'
    """
    for codec in codecs:
        data = codec.encode(data)
    return data


def decode(codecs: Sequence[Codec], data: Bytes, size: int) -> Bytes:
    """The bytes as they were; a codec may claim no more than a chunk can have."""
    for number, codec in reversed(list(enumerate(codecs))):
        data = codec.decode(data, size if number == 0 else 2 * size + 4096)
    if len(data) != size:
        raise CodecError(f"a chunk of {size} B was stored as {len(data)} B")
    return data
