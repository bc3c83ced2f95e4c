"""What codecs have made bytes of, made bytes again: bounded by what a chunk can have.

Each `…_into` fills a buffer of as many bytes as there must be. Where not all of them are wanted,
those in `first:stop` are there in the end, and what is stored may have been changed.
"""

from __future__ import annotations

import struct
import threading
import zlib
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes

ZSTD_BLOCK = 1 << 17
"""The most bytes of a block of a zstd frame."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_LOCAL = threading.local()
_UINT = struct.Struct("<I")
_SIZES = struct.Struct("<III")
"""Of a blosc header: the bytes of the data, of a block, and of all that is stored."""


class CodecError(WeftError):
    """Bytes that are not what a codec makes."""


def copy_into(data: Bytes, out: memoryview) -> None:
    """What is stored as it is."""
    if len(data) != len(out):
        raise CodecError(f"a chunk of {len(out)} B was stored as {len(data)} B")
    out[:] = data


def _check_claim(what: str, claimed: int, most: int) -> None:
    if claimed > most:
        raise CodecError(f"{what} claims {claimed} B, and a chunk has {most} B")


# -- zstd


def unzstd(data: Bytes, most: int) -> bytes:
    """The bytes of a zstd frame, at most so many."""
    zstandard = needed("zstandard", "store")
    try:
        _check_claim("a zstd frame", zstandard.frame_content_size(data), most)
        made: bytes = _decompressor().decompress(data, max_output_size=most)
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from None
    return made


def unzstd_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """The same into a buffer; blocks that nobody wants at the end are left out."""
    if len(out) - stop >= ZSTD_BLOCK and _can_stop(data, len(out)):
        _unzstd_start(data, out[:stop])
        return
    try:
        needed("numcodecs.zstd", "store").decompress(data, out)
    except (RuntimeError, ValueError) as error:
        unzstd(data, len(out))  # says more where the frame claims too much
        raise CodecError(f"not a zstd frame of {len(out)} B: {error}") from None


def _can_stop(data: Bytes, size: int) -> bool:
    """Whether it is one frame of all bytes, without a checksum that only its end could prove."""
    if len(data) < 5 or data[:4] != _ZSTD_MAGIC or data[4] & 4:
        return False
    zstandard = needed("zstandard", "store")
    try:
        claimed: int = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        return False
    return claimed == size


def _unzstd_start(data: Bytes, out: memoryview) -> None:
    zstandard = needed("zstandard", "store")
    try:
        made = _decompressor().stream_reader(data).readinto(out)
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from None
    if made != len(out):
        raise CodecError(f"a zstd frame ends at {made} B, and {len(out)} B are wanted")


def _decompressor() -> Any:
    """One for each thread: to make one takes as long as to decode a small chunk."""
    if not hasattr(_LOCAL, "unzstd"):
        _LOCAL.unzstd = needed("zstandard", "store").ZstdDecompressor()
    return _LOCAL.unzstd


# -- gzip


def ungzip(data: Bytes, most: int) -> bytes:
    """The bytes of a gzip stream, at most so many; it may have several members."""
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


# -- blosc


def unblosc(data: Bytes, most: int) -> bytearray:
    """The bytes of a blosc buffer, at most so many."""
    out = bytearray(_blosc_claim(data, most))
    _unblosc(data, memoryview(out))
    return out


def unblosc_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """The same into a buffer; blocks that nobody wants are left out."""
    claimed = _blosc_claim(data, len(out))
    if claimed != len(out):
        raise CodecError(f"a blosc buffer of {claimed} B, and a chunk has {len(out)} B")
    if stop - first < claimed:
        data, first, stop = _narrowed(data, claimed, first, stop)
        out = out[first:stop]
    _unblosc(data, out)


def _blosc_claim(data: Bytes, most: int) -> int:
    """The bytes that a buffer says it has: the library trusts what its header says."""
    if len(data) < 16:
        raise CodecError(f"{len(data)} B are no blosc buffer")
    claimed, _, stored = _SIZES.unpack_from(data, 4)
    _check_claim("a blosc buffer", claimed, most)
    if not 16 <= stored <= len(data):
        raise CodecError(f"a blosc buffer claims {stored} B, and {len(data)} B are stored")
    return int(claimed)


def _unblosc(data: Bytes, out: memoryview) -> None:
    try:
        needed("numcodecs.blosc", "store").decompress(data, out)
    except (RuntimeError, ValueError) as error:
        raise CodecError(f"not a blosc buffer: {error}") from None


def _narrowed(data: Bytes, size: int, first: int, stop: int) -> tuple[Bytes, int, int]:
    """A buffer of just the blocks that hold some bytes, and which bytes those are.

    Blocks do not depend on each other, and a table says where each begins: what is not wanted is
    left out of the table.
    """
    _, block, stored = _SIZES.unpack_from(data, 4)
    count = -(-size // block) if block else 0
    if data[2] & 2 or count < 2 or 16 + 4 * count > stored:  # as it was, one block, or damaged
        return data, 0, size
    low, high = first // block, -(-stop // block)
    low -= low == count - 1 and size % block > 0  # a short block does not stand alone
    made = data if isinstance(data, memoryview) else memoryview(data)
    if made.readonly:
        made = memoryview(bytearray(data))
    made[16 : 16 + 4 * (high - low)] = bytes(made[16 + 4 * low : 16 + 4 * high])
    low, high = low * block, min(high * block, size)
    _UINT.pack_into(made, 4, high - low)
    return made, low, high


# -- lz4


def unlz4(data: Bytes, most: int) -> bytearray:
    """The bytes of an lz4 block behind its size, at most so many."""
    out = bytearray(_lz4_claim(data, most))
    _unlz4(data, memoryview(out))
    return out


def unlz4_into(data: Bytes, out: memoryview) -> None:
    """The same into a buffer."""
    claimed = _lz4_claim(data, len(out))
    if claimed != len(out):
        raise CodecError(f"an lz4 block of {claimed} B, and a chunk has {len(out)} B")
    _unlz4(data, out)


def _lz4_claim(data: Bytes, most: int) -> int:
    if len(data) < 4:
        raise CodecError(f"{len(data)} B are no lz4 block")
    claimed: int = _UINT.unpack_from(data)[0]
    _check_claim("an lz4 block", claimed, most)
    return claimed


def _unlz4(data: Bytes, out: memoryview) -> None:
    try:
        needed("numcodecs.lz4", "store").decompress(data, out)
    except (RuntimeError, ValueError) as error:
        raise CodecError(f"not an lz4 block: {error}") from None
