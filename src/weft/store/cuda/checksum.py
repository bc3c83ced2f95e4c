"""`Checksums`: a CRC32C behind every chunk of a batch, computed on the GPU. See `checksum.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.store.codecs import Codec, Crc32c
from weft.store.cuda.device import module
from weft.store.cuda.stages import THREADS

PART = THREADS * 256
"""Bytes of a chunk that a block of threads reads."""

SIZE = 4
"""Bytes of a checksum."""


def before_checksum(codecs: Sequence[Codec]) -> Sequence[Codec]:
    """Return the codecs without a checksum at their end."""
    return codecs[:-1] if codecs and isinstance(codecs[-1], Crc32c) else codecs


class Checksums:
    """Puts checksums behind chunks, or does nothing where the codecs do not ask for them.

    Chunks are `extra` bytes apart, where their checksums go.
    """

    def __init__(self, codecs: Sequence[Codec], most: int) -> None:
        is_last = len(before_checksum(codecs)) < len(codecs)
        self.extra = SIZE if is_last else 0
        self._parts = -(-most // PART) if is_last else 0
        if is_last:
            kernels = module("checksum.cu")
            self._sum, self._put = (kernels.get_function(f"weft_crc_{n}") for n in ("parts", "put"))

    def scratch(self, count: int) -> int:
        """Return the bytes of memory that so many chunks take: a sum for every part."""
        return 4 * self._parts * count

    def put(self, count: int, out: Any, sizes: Any, offsets: Any, scratch: Any) -> None:
        """Compute checksums of chunks that are in their places, on the current stream."""
        if not self.extra:
            return
        given = out, sizes, offsets, scratch, np.uint32(self._parts)
        self._sum((count * self._parts,), (THREADS,), given)
        self._put((-(-count // THREADS),), (THREADS,), (*given, np.uint64(count)))
