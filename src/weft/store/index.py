"""The index of a shard: where each of its chunks lies, and a checksum of all that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import checksum
from weft.store.dtypes import Bytes

ABSENT = 0xFFFF_FFFF_FFFF_FFFF
"""Offset and size of a chunk that is not there: it is all fill value."""


class ShardError(WeftError):
    """A shard that is not what it should be."""


class Index(NamedTuple):
    """For each slot of a shard the offset and the bytes of its chunk; both `ABSENT` for none."""

    offsets: list[int]
    sizes: list[int]

    @classmethod
    def empty(cls, slots: int) -> Index:
        """The index of a shard without chunks."""
        return cls([ABSENT] * slots, [ABSENT] * slots)

    def to_bytes(self) -> bytes:
        """The index as it is stored.

        >>> len(Index.empty(4).to_bytes())
        68
        """
        pairs = zip(self.offsets, self.sizes)
        body = b"".join(n.to_bytes(8, "little") for pair in pairs for n in pair)
        return body + checksum(body)

    @classmethod
    def from_bytes(cls, data: Bytes, slots: int, limit: int) -> Index:
        """Read an index, of a shard of so many bytes; no chunk may lie outside of it."""
        if len(data) != length(slots):
            raise ShardError(f"an index of {slots} chunks has {length(slots)} B, got {len(data)} B")
        body = bytes(data[:-4])
        if checksum(body) != bytes(data[-4:]):
            raise ShardError("the checksum of the index is not that of its bytes")
        numbers = np.frombuffer(body, "<u8").tolist()
        index = cls(numbers[::2], numbers[1::2])
        for slot in index.present():
            offset, size = index.offsets[slot], index.sizes[slot]
            if offset + size > limit:
                raise ShardError(f"chunk {slot} is said to lie at {offset}, {size} B of {limit} B")
        return index

    def present(self) -> Iterable[int]:
        """The slots that have a chunk."""
        return (n for n, offset in enumerate(self.offsets) if offset != ABSENT)


def length(slots: int) -> int:
    """The bytes of an index of so many chunks."""
    return 16 * slots + 4
