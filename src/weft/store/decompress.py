"""Decompression, bounded by the size of a chunk.

Each `…_into` fills a buffer of the exact size. Where only `first:stop` is needed, other bytes may
be left out, and the stored bytes may be changed.

Blosc and zstd are called with addresses, through ctypes, where `numcodecs` exports their functions:
without the interpreter lock, without threads of their own, with a context that a thread keeps.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store.dtypes import Bytes
from weft.store.threads import scratch

ZSTD_BLOCK = 1 << 17
"""The most bytes of a block of a zstd frame."""

ZSTD_WINDOW = 1 << 27
"""The most bytes of a frame that is decoded in part."""

GZIP_PIECE, GZIP_OUT = 1 << 14, 1 << 20
"""Bytes of a gzip stream that are decoded at a time, and the most bytes that these give."""

_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_FORMAT = 4
"""The number of zstd among the codecs of a Blosc frame, in the upper bits of its flags."""

_LOCAL = threading.local()
_UINT = struct.Struct("<I")
_SIZES = struct.Struct("<III")
"""Of a Blosc header: the bytes of the data, of a block, and of the stored frame."""


class CodecError(WeftError):
    """Bytes that a codec cannot decode."""


def copy_into(data: Bytes, out: memoryview) -> None:
    """Copy bytes that are stored as they are."""
    if len(data) != len(out):
        raise CodecError(f"a chunk of {len(out)} B was stored as {len(data)} B")
    out[:] = data


_FUNCTIONS = {
    "blosc_decompress_ctx": (c_int, (c_void_p, c_void_p, c_size_t, c_int)),
    "ZSTD_createDCtx": (c_void_p, ()),
    "ZSTD_freeDCtx": (c_size_t, (c_void_p,)),
    "ZSTD_decompressDCtx": (c_size_t, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)),
}
"""Result and arguments of the functions, as their headers declare them."""


@cache
def blosc_library() -> Any:
    """Return the library of Blosc and zstd, if it exports the functions that are used."""
    try:
        library = ctypes.CDLL(needed("numcodecs.blosc", "store").__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def _address(buffer: Bytes) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except TypeError:  # it cannot be written
        address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        return address


class _ZstdContext:
    """The context with which a thread decodes zstd; it is freed with the thread."""

    def __init__(self, library: Any) -> None:
        self._library, self.handle = library, library.ZSTD_createDCtx()
        if not self.handle:
            raise MemoryError("zstd could not allocate a context")

    def __del__(self) -> None:
        self._library.ZSTD_freeDCtx(self.handle)


def _check_claim(what: str, claimed: int, limit: int) -> None:
    if claimed > limit:
        raise CodecError(f"{what} claims {claimed} B, and a chunk has {limit} B")


# -- zstd


def unzstd(data: Bytes, limit: int) -> bytes:
    """Return the content of zstd frames, at most `limit` bytes."""
    _check_claim("a zstd frame", _zstd_claim(data), limit)
    with _zstd_errors():
        content: bytes = _frames(data).read(limit + 1)
    if len(content) > limit:
        raise CodecError(f"zstd frames have more than {limit} B")
    return content


def unzstd_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """Fill a buffer with the content of zstd frames, of exactly its size.

    Where one frame claims to be all of it, blocks at the end that are not needed are left out.
    """
    claimed = _zstd_claim(data)
    _check_claim("a zstd frame", claimed, len(out))
    if claimed != len(out):
        _unzstd_frames(data, out)
    elif len(out) - stop < ZSTD_BLOCK or not _unzstd_start(data, out, stop):
        _unzstd_whole(data, out)


def _unzstd_whole(data: Bytes, out: memoryview) -> None:
    """Decode one frame that claims the size of the buffer."""
    library, size = blosc_library(), len(out)
    if library is None or not size:
        try:
            needed("numcodecs.zstd", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not a zstd frame of {size} B: {error}") from None
        return
    count = _unzstd_native(library, data, out)
    if count != size:  # the codes of errors are the largest numbers
        code = (1 << 64) - count
        why = f"error {code}" if code < 1 << 16 else f"it has {count} B"
        raise CodecError(f"not a zstd frame of {size} B: {why}")


def _unzstd_native(library: Any, data: Bytes, out: memoryview) -> int:
    """Decode a frame into a buffer; return its bytes, or the code of an error."""
    if not hasattr(_LOCAL, "context"):
        _LOCAL.context = _ZstdContext(library)
    place = _address(out), len(out), _address(data), len(data)
    count: int = library.ZSTD_decompressDCtx(_LOCAL.context.handle, *place)
    return count


def _unzstd_start(data: Bytes, out: memoryview, stop: int) -> bool:
    """Decode the first blocks of a frame, which hold `stop` bytes; return whether it was possible.

    They are decoded as a frame of their own: its header does not say the size of its content, and
    the last of them is marked as the last. A frame with a checksum is not cut: only all of it can
    prove that.
    """
    library, size = blosc_library(), len(out)
    flags = data[4] if data[:4] == _ZSTD_MAGIC else 4
    if library is None or flags & 15 or size > ZSTD_WINDOW:  # with a checksum or a dictionary
        return False
    is_single = bool(flags & 32)  # of a window as large as its content
    begin = 5 + (not is_single) + (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    ends, at, head, most = [begin], begin, 0, 4 + 4 * size // ZSTD_BLOCK
    while not head & 1 and len(ends) <= most:
        head = int.from_bytes(data[at : at + 3], "little")
        at += 3 + (1 if head & 6 == 2 else head >> 3)  # one byte that is repeated, or a block
        if at > len(data):
            return False
        ends.append(at)
    count = len(ends) - 1 - (size - stop) // ZSTD_BLOCK  # each of the others has at most so much
    if not head & 1 or count < 1:
        return False
    frame = memoryview(data)
    if frame.readonly:
        frame = memoryview(bytearray(data))
    window = (size - 1).bit_length() - 10 << 3 if is_single else frame[5]
    frame[begin - 6 : begin] = _ZSTD_MAGIC + bytes([0, window])
    frame[ends[count - 1]] |= 1
    done = _unzstd_native(library, frame[begin - 6 : ends[count]], out)
    if not stop <= done <= size:
        raise CodecError(f"not a zstd frame of {size} B: {stop} B cannot be decoded")
    return True


def _zstd_claim(data: Bytes) -> int:
    """Return the size that the first frame claims; -1 where it claims none."""
    with _zstd_errors():
        claimed: int = needed("zstandard", "store").frame_content_size(data)
    return claimed


def _unzstd_frames(data: Bytes, out: memoryview) -> None:
    """Decode several frames, or one that does not claim its size."""
    with _zstd_errors():
        frames, done = _frames(data), 0
        while done < len(out) and (count := frames.readinto(out[done:])):
            done += count
        if done < len(out) or frames.read(1):
            more = "more" if done == len(out) else str(done)
            raise CodecError(f"zstd frames of {more} B, and a chunk has {len(out)} B")


def _frames(data: Bytes) -> Any:
    """Return a reader of consecutive frames."""
    return _decompressor().stream_reader(data, read_across_frames=True)


@contextmanager
def _zstd_errors() -> Iterator[None]:
    try:
        yield
    except needed("zstandard", "store").ZstdError as error:
        raise CodecError(f"not a zstd frame: {error}") from None


def _decompressor() -> Any:
    """Return this thread's decompressor: creating one takes as long as decoding a small chunk."""
    if not hasattr(_LOCAL, "unzstd"):
        _LOCAL.unzstd = needed("zstandard", "store").ZstdDecompressor()
    return _LOCAL.unzstd


# -- gzip


def ungzip(data: Bytes, limit: int) -> bytearray:
    """Return the content of a gzip stream of one or more members, at most `limit` bytes."""
    out = bytearray()
    for part in inflate(data, limit):
        out += part
    return out


def ungzip_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """Fill a buffer with the content of a gzip stream, of exactly its size."""
    done = 0
    for part in inflate(data, len(out)):
        out[done : done + len(part)] = part
        done += len(part)
    if done != len(out):
        raise CodecError(f"a chunk of {len(out)} B was stored as {done} B")


def inflate(data: Bytes, limit: int, window: int = 31) -> Iterator[bytes]:
    """Yield the content of all members, some bytes at a time, at most `limit`.

    The stream is fed in pieces: zlib copies what follows a member, and there may be many. `window`
    is that of zlib: 31 for gzip streams, 15 for zlib streams.
    """
    what = "gzip" if window == 31 else "zlib"
    whole, unpacker, left = memoryview(data), zlib.decompressobj(window), limit
    pieces = (bytes(whole[at : at + GZIP_PIECE]) for at in range(0, len(whole), GZIP_PIECE))
    try:
        for piece in pieces:
            while piece:
                if unpacker.eof:  # another member, or zeros that some pad with
                    piece = piece.lstrip(b"\0")  # noqa: PLW2901 - what is left of it
                    if not piece:
                        break
                    unpacker = zlib.decompressobj(window)
                part = unpacker.decompress(piece, min(left + 1, GZIP_OUT))
                piece = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail  # noqa: PLW2901
                left = _left(what, left, part, limit)
                yield part
        while not unpacker.eof and (part := unpacker.decompress(b"", min(left + 1, GZIP_OUT))):
            left = _left(what, left, part, limit)
            yield part
    except zlib.error as error:
        raise CodecError(f"not a {what} stream: {error}") from None
    if not unpacker.eof:
        raise CodecError(f"a {what} stream has no end")


def _left(what: str, left: int, part: bytes, limit: int) -> int:
    if len(part) > left:
        raise CodecError(f"a {what} stream has more than {limit} B")
    return left - len(part)


# -- blosc


def unblosc(data: Bytes, limit: int) -> bytearray:
    """Return the content of a Blosc frame, at most `limit` bytes."""
    out = bytearray(_blosc_claim(data, limit))
    unblosc_into(data, memoryview(out), 0, len(out))
    return out


def unblosc_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """Decode a Blosc frame into a buffer; blocks that are not needed are left out."""
    claimed = _blosc_claim(data, len(out))
    if claimed != len(out):
        raise CodecError(f"a Blosc frame of {claimed} B, and a chunk has {len(out)} B")
    if stop - first < claimed:
        data, low, high = _narrowed(data, claimed, first, stop)
        out = out[low:high]
        if _unblosc_part(data, out, first - low, stop - low):
            return
    library = blosc_library()
    if library is None or not len(out):
        try:
            needed("numcodecs.blosc", "store").decompress(data, out)
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"not a Blosc frame: {error}") from None
        return
    count = library.blosc_decompress_ctx(_address(data), _address(out), len(out), 1)
    if count != len(out):
        raise CodecError(f"not a Blosc frame: error {count}")


def _blosc_claim(data: Bytes, limit: int) -> int:
    """Return the size that a frame claims, after checking its header, which the library trusts."""
    if len(data) < 16:
        raise CodecError(f"{len(data)} B are too few for a Blosc frame")
    claimed, _, stored = _SIZES.unpack_from(data, 4)
    _check_claim("a Blosc frame", claimed, limit)
    if stored != len(data) or stored < 16:
        raise CodecError(f"a Blosc frame claims {stored} B, and {len(data)} B are stored")
    return int(claimed)


def _narrowed(data: Bytes, size: int, first: int, stop: int) -> tuple[Bytes, int, int]:
    """Return a frame of just the blocks that hold some bytes, and the range of those bytes.

    Blocks are independent, and a table says where each begins: the others are left out of it.
    """
    _, block, stored = _SIZES.unpack_from(data, 4)
    count = -(-size // block) if block else 0
    if data[2] & 2 or count < 2 or 16 + 4 * count > stored:  # stored raw, one block, or damaged
        return data, 0, size
    low, high = first // block, -(-stop // block)
    low -= low == count - 1 and size % block > 0  # a short block does not stand alone
    frame = data if isinstance(data, memoryview) else memoryview(data)
    if frame.readonly:
        frame = memoryview(bytearray(data))
    frame[16 : 16 + 4 * (high - low)] = bytes(frame[16 + 4 * low : 16 + 4 * high])
    low, high = low * block, min(high * block, size)
    _UINT.pack_into(frame, 4, high - low)
    return frame, low, high


def _unblosc_part(data: Bytes, out: memoryview, first: int, stop: int) -> bool:
    """Decode a part of one block that zstd compressed, if the end of the zstd frame is not needed.

    Bytes are shuffled before they are compressed: the block has the first byte of every element,
    then the second byte of every element, and so on. Of the last of these planes, the end may not
    be needed; for small numbers, that plane takes the longest.
    """
    flags, width, size = data[2], data[3], len(out)
    _, block, stored = _SIZES.unpack_from(data, 4)
    is_shuffled = bool(flags & 1) and width > 1
    is_one_frame = flags >> 5 == _ZSTD_FORMAT and flags & 16 and not flags & 6
    if not is_one_frame or size > block or stored < 24 or sys.byteorder != "little":
        return False
    if is_shuffled and (width not in (2, 4, 8) or size % width):
        return False
    count = size // width if is_shuffled else size
    low, high = (first // width, -(-stop // width)) if is_shuffled else (first, stop)
    end = size - count + high
    if size - end < ZSTD_BLOCK:
        return False
    at = _UINT.unpack_from(data, 16)[0]
    length = _UINT.unpack_from(data, at)[0] if 20 <= at <= stored - 4 else stored
    if length >= size or at + 4 + length > stored:  # bytes as they are, or damaged
        return False
    frame = memoryview(data)[at + 4 : at + 4 + length]
    if not is_shuffled:
        unzstd_into(frame, out, first, stop)
        return True
    planes = scratch("planes", size)
    unzstd_into(frame, planes, 0, end)
    rows = np.frombuffer(planes, np.uint8).reshape(width, count)[:, low:high]
    words = np.frombuffer(out, f"u{width}")[low:high]
    np.copyto(words, rows[-1])
    for row in rows[-2::-1]:
        np.left_shift(words, 8, out=words)
        np.bitwise_or(words, row, out=words)
    return True


# -- lz4


def unlz4(data: Bytes, limit: int) -> bytearray:
    """Return the content of an LZ4 block after its size, at most `limit` bytes."""
    out = bytearray(_lz4_claim(data, limit))
    unlz4_into(data, memoryview(out), 0, len(out))
    return out


def unlz4_into(data: Bytes, out: memoryview, first: int, stop: int) -> None:
    """Decode an LZ4 block into a buffer."""
    claimed = _lz4_claim(data, len(out))
    if claimed != len(out):
        raise CodecError(f"an LZ4 block of {claimed} B, and a chunk has {len(out)} B")
    try:
        needed("numcodecs.lz4", "store").decompress(data, out)
    except (RuntimeError, ValueError) as error:
        raise CodecError(f"not an LZ4 block: {error}") from None


def _lz4_claim(data: Bytes, limit: int) -> int:
    if len(data) < 4:
        raise CodecError(f"{len(data)} B are too few for an LZ4 block")
    claimed: int = _UINT.unpack_from(data)[0]
    _check_claim("an LZ4 block", claimed, limit)
    return claimed
