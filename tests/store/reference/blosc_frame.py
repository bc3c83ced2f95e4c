"""Blosc 1 frames of blocks that are compressed already.

A frame is a header of 16 bytes, the offsets of its blocks, and each block after its size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.store.dtypes import Bytes

Array: TypeAlias = np.ndarray[Any, Any]

NO_SPLIT, STORED = 0x10, 0x02
_HEAD = struct.Struct("<BBBBIII")


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
