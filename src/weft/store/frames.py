"""Blosc 1 frames whose blocks are compressed by `zstandard`: larger blocks, contexts kept.

A frame is a header of 16 bytes, the offsets of its blocks, and each block behind its size. The
bytes of a block's elements are shuffled to planes before. The library's own encoder cuts a chunk
into blocks of 32 KiB at its lowest level and makes a context for each: with blocks of up to 1 MiB
and one context for each thread, frames are smaller and made in less time. Any reader of Blosc reads
them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.store.dtypes import Bytes

BLOCK = 1 << 20
"""The most bytes of a block, where none is said."""

_ZSTD, _NO_SPLIT, _SHUFFLED, _STORED = 4 << 5, 0x10, 0x01, 0x02
_HEAD = struct.Struct("<BBBBIII")


def blosc_frame(
    data: Bytes,
    typesize: int,
    *,
    shuffle: bool,
    compress: Callable[[Bytes], Bytes],
    blocksize: int = 0,
) -> bytes:
    """A Blosc frame of bytes, of elements of a size that divides them.

    >>> import zstandard
    >>> compress = zstandard.ZstdCompressor(1).compress
    >>> frame = blosc_frame(bytes(1000), 2, shuffle=True, compress=compress)
    >>> frame[:4].hex(), int.from_bytes(frame[4:8], "little"), len(frame) < 60
    ('02019102', 1000, True)
    """
    whole = np.frombuffer(data, np.uint8)
    size = min(blocksize or BLOCK, len(whole)) // typesize * typesize or typesize
    count = -(-len(whole) // size)
    at, starts, parts = _HEAD.size + 4 * count, [], list[Bytes]()
    for first in range(0, len(whole), size):
        block = whole[first : first + size]
        made = planes(block, typesize) if shuffle and typesize > 1 else block
        packed: Bytes = compress(made.data)
        if len(packed) >= len(made):  # a block that is as long as its elements is stored
            packed = made.data
        starts.append(at)
        parts += [struct.pack("<I", len(packed)), packed]
        at += 4 + len(packed)
    flags = _ZSTD | _NO_SPLIT | (_SHUFFLED if shuffle else 0)
    if at >= _HEAD.size + len(whole):
        head = _HEAD.pack(2, 1, flags | _STORED, typesize, len(whole), size, 16 + len(whole))
        return b"".join([head, whole.data])
    head = _HEAD.pack(2, 1, flags, typesize, len(whole), size, at)
    return b"".join([head, struct.pack(f"<{count}I", *starts), *parts])


def planes(data: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """All first bytes of elements, all second ones, and so on.

    >>> planes(np.arange(6, dtype="u1"), 2).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    made = np.empty((size, len(data) // size), np.uint8)
    if size not in (2, 4, 8):
        made[...] = data.reshape(-1, size).T
        return made.reshape(-1)
    words = data.view(f"<u{size}")
    shifted = np.empty_like(words)
    for place in range(size):
        source = words if place == 0 else np.right_shift(words, 8 * place, out=shifted)
        np.copyto(made[place], source, casting="unsafe")
    return made.reshape(-1)
