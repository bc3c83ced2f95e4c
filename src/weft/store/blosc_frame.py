"""Blosc 1 frames whose blocks are compressed by `zstandard`, with larger blocks.

A frame is a header of 16 bytes, the offsets of its blocks, and each block after its size. The bytes
of a block's elements are shuffled to planes first. The Blosc library cuts a chunk into blocks of
32 KiB at its lowest level and creates a context for each: with blocks of up to 1 MiB and one
context for each thread, frames are smaller and encoded in less time. Any Blosc reader reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.store.dtypes import Bytes

Array: TypeAlias = np.ndarray[Any, Any]

BLOCK = 1 << 20
"""The most bytes of a block, unless given."""

NO_SPLIT, STORED = 0x10, 0x02
_ZSTD, _SHUFFLED = 4 << 5, 0x01
_HEAD = struct.Struct("<BBBBIII")


def blosc_frame(
    data: Bytes,
    typesize: int,
    *,
    shuffle: bool,
    compress: Callable[[Bytes], Bytes],
    blocksize: int = 0,
) -> bytes:
    """Return a Blosc frame of bytes; `typesize` divides their number.

    >>> import zstandard
    >>> compress = zstandard.ZstdCompressor(1).compress
    >>> frame = blosc_frame(bytes(1000), 2, shuffle=True, compress=compress)
    >>> frame[:4].hex(), int.from_bytes(frame[4:8], "little"), len(frame) < 60
    ('02019102', 1000, True)
    """
    whole = np.frombuffer(data, np.uint8)
    size = min(blocksize or BLOCK, len(whole)) // typesize * typesize or typesize
    packed = list[Bytes]()
    for first in range(0, len(whole), size):
        block = whole[first : first + size]
        shuffled = planes(block, typesize) if shuffle and typesize > 1 else block
        shorter: Bytes = compress(shuffled.data)
        packed.append(shorter if len(shorter) < len(shuffled) else shuffled.data)
    return framed(packed, whole, typesize, size, _ZSTD | (_SHUFFLED if shuffle else 0))


def framed(
    packed: Sequence[Bytes], data: Array, typesize: int, blocksize: int, flags: int
) -> bytes:
    """Return the frame of compressed blocks, or of the raw bytes if that is not longer.

    A block that is as long as its bytes counts as stored raw.
    """
    at, starts = _HEAD.size + 4 * len(packed), []
    for block in packed:
        starts.append(at)
        at += 4 + len(block)
    if at >= _HEAD.size + len(data):
        stored = flags | NO_SPLIT | STORED
        head = _HEAD.pack(2, 1, stored, typesize, len(data), blocksize, 16 + len(data))
        return head + data.tobytes()
    head = _HEAD.pack(2, 1, flags | NO_SPLIT, typesize, len(data), blocksize, at)
    parts = [part for block in packed for part in (struct.pack("<I", len(block)), block)]
    return b"".join([head, struct.pack(f"<{len(starts)}I", *starts), *parts])


def planes(data: Array, size: int) -> Array:
    """Return all first bytes of elements, then all second ones, and so on.

    >>> planes(np.arange(6, dtype="u1"), 2).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    shuffled = np.empty((size, len(data) // size), np.uint8)
    if size not in (2, 4, 8):
        shuffled[...] = data.reshape(-1, size).T
        return shuffled.reshape(-1)
    words = data.view(f"<u{size}")
    shifted = np.empty_like(words)
    for place in range(size):
        source = words if place == 0 else np.right_shift(words, 8 * place, out=shifted)
        np.copyto(shuffled[place], source, casting="unsafe")
    return shuffled.reshape(-1)
