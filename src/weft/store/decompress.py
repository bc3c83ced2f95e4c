"""What codecs have made bytes of, made bytes again: bounded by what a chunk can have.

Each `…_into` fills a buffer of as many bytes as there must be. Where not all of them are wanted,
those in `first:stop` are there in the end, and what is stored may have been changed.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes

ZSTD_BLOCK = 1 << 17
"""The most bytes of a block of a zstd frame."""

ZSTD_WINDOW = 1 << 27
"""The most bytes of a frame that is decoded piece by piece: it has to look back as far as that."""

GZIP_PIECE, GZIP_OUT = 1 << 14, 1 << 20
"""Bytes of a gzip stream that are decoded at a time, and the most that are made of them."""

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
    """Return the bytes of zstd frames, at most so many."""
    _check_claim("a zstd frame", _zstd_claim(data), most)
    with _zstd_errors():
        made: bytes = _frames(data).read(most + 1)
    if len(made) > most:
        raise CodecError(f"zstd frames have more than {most} B")
    return made


def unzstd_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """Fill a buffer with the bytes of zstd frames, of which there must be just as many.

    Where one frame claims to be all of it, blocks that nobody wants at the end are left out.
    """
    claimed = _zstd_claim(data)
    _check_claim("a zstd frame", claimed, len(out))
    if claimed != len(out):
        _unzstd_frames(data, out)
    elif len(out) - stop >= ZSTD_BLOCK and _can_stop(data, len(out)):
        _unzstd_start(data, out[:stop])
    else:
        try:
            needed("numcodecs.zstd", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not a zstd frame of {len(out)} B: {error}") from None


def _zstd_claim(data: Bytes) -> int:
    """Return the bytes that the first frame says it has; -1 where it does not say."""
    with _zstd_errors():
        claimed: int = needed("zstandard", "store").frame_content_size(data)
    return claimed


def _can_stop(data: Bytes, size: int) -> bool:
    """Whether it is one frame, without a checksum that only its end could prove."""
    return size <= ZSTD_WINDOW and data[:4] == _ZSTD_MAGIC and not data[4] & 4


def _unzstd_start(data: Bytes, out: memoryview) -> None:
    with _zstd_errors():
        made = _decompressor().stream_reader(data).readinto(out)
    if made != len(out):
        raise CodecError(f"a zstd frame ends at {made} B, and {len(out)} B are wanted")


def _unzstd_frames(data: Bytes, out: memoryview) -> None:
    """Several frames, or one that does not say its size."""
    with _zstd_errors():
        frames, done = _frames(data), 0
        while done < len(out) and (made := frames.readinto(out[done:])):
            done += made
        if done < len(out) or frames.read(1):
            more = "more" if done == len(out) else str(done)
            raise CodecError(f"zstd frames of {more} B, and a chunk has {len(out)} B")


def _frames(data: Bytes) -> Any:
    """A reader of frames that lie one behind the other."""
    return _decompressor().stream_reader(data, read_across_frames=True)


@contextmanager
def _zstd_errors() -> Iterator[None]:
    try:
        yield
    except needed("zstandard", "store").ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from None


def _decompressor() -> Any:
    """One for each thread: to make one takes as long as to decode a small chunk."""
    if not hasattr(_LOCAL, "unzstd"):
        _LOCAL.unzstd = needed("zstandard", "store").ZstdDecompressor()
    return _LOCAL.unzstd


# -- gzip


def ungzip(data: Bytes, most: int) -> bytearray:
    """Return the bytes of a gzip stream, at most so many; it may have several members."""
    out = bytearray()
    for part in _inflated(data, most):
        out += part
    return out


def ungzip_into(data: Bytes, out: memoryview) -> None:
    """Fill a buffer with the bytes of a gzip stream, of which there must be just as many."""
    done = 0
    for part in _inflated(data, len(out)):
        out[done : done + len(part)] = part
        done += len(part)
    if done != len(out):
        raise CodecError(f"a chunk of {len(out)} B was stored as {done} B")


def _inflated(data: Bytes, most: int) -> Iterator[bytes]:
    """Yield the bytes of all members, some at a time, at most so many.

    The stream is fed in pieces: zlib copies what lies behind a member, and there may be many.
    """
    whole, unpacker, left = memoryview(data), zlib.decompressobj(31), most
    pieces = (bytes(whole[at : at + GZIP_PIECE]) for at in range(0, len(whole), GZIP_PIECE))
    try:
        for piece in pieces:
            while piece:
                if unpacker.eof:  # another member, or zeros that some pad with
                    piece = piece.lstrip(b"\0")  # noqa: PLW2901 - what is left of it
                    if not piece:
                        break
                    unpacker = zlib.decompressobj(31)
                part = unpacker.decompress(piece, min(left + 1, GZIP_OUT))
                piece = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail  # noqa: PLW2901
                left = _left(left, part, most)
                yield part
        while not unpacker.eof and (part := unpacker.decompress(b"", min(left + 1, GZIP_OUT))):
            left = _left(left, part, most)
            yield part
    except zlib.error as error:
        raise CodecError(f"not a gzip stream: {error}") from None
    if not unpacker.eof:
        raise CodecError("a gzip stream has no end")


def _left(left: int, part: bytes, most: int) -> int:
    if len(part) > left:
        raise CodecError(f"a gzip stream has more than {most} B")
    return left - len(part)


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
    if stored != len(data) or stored < 16:
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
