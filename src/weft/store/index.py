"""The index of a shard: where each of its chunks lies, and a checksum of all that."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

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

    offsets: array[int]
    sizes: array[int]

    @classmethod
    def empty(cls, slots: int) -> Index:
        """The index of a shard without chunks."""
        return cls(array("Q", [ABSENT]) * slots, array("Q", [ABSENT]) * slots)

    def to_bytes(self, *, has_checksum: bool = True, endian: str = "little") -> bytes:
        """The index as it is stored.

        >>> len(Index.empty(4).to_bytes())
        68
        """
        kind = ">u8" if endian == "big" else "<u8"
        body = np.stack([self.offsets, self.sizes], axis=1).astype(kind).tobytes()
        return body + checksum(body) if has_checksum else body

    @classmethod
    def from_bytes(
        cls,
        data: Bytes,
        slots: int,
        limit: int,
        *,
        start: int = 0,
        has_checksum: bool = True,
        endian: str = "little",
    ) -> Index:
        """Read an index, of a shard of so many bytes; no chunk may lie outside of `start:limit`."""
        index = cls.parse(data, slots, has_checksum=has_checksum, endian=endian)
        slot = index.misplaced(start, limit)
        if slot is not None:
            raise ShardError(f"chunk {slot} is said to lie at {index.said(slot)} of {limit} B")
        return index

    @classmethod
    def parse(
        cls, data: Bytes, slots: int, *, has_checksum: bool = True, endian: str = "little"
    ) -> Index:
        """Read an index, wherever its chunks are said to lie."""
        wanted = length(slots, has_checksum)
        if len(data) != wanted:
            raise ShardError(f"an index of {slots} chunks has {wanted} B, got {len(data)} B")
        body = memoryview(data)[: 16 * slots]
        if has_checksum and checksum(body) != bytes(data[-4:]):
            raise ShardError("the checksum of the index is not that of its bytes")
        table = np.frombuffer(body, ">u8" if endian == "big" else "<u8").reshape(slots, 2)
        return cls(*(array("Q", column.astype("=u8").tobytes()) for column in table.T))

    def misplaced(self, start: int, stop: int) -> int | None:
        """The first slot whose chunk does not lie between two places, if there is one."""
        offsets, sizes = np.frombuffer(self.offsets, "u8"), np.frombuffer(self.sizes, "u8")
        low, high = np.uint64(start), np.uint64(max(start, stop))
        inside = (offsets >= low) & (offsets <= high)
        inside &= sizes <= high - np.minimum(offsets, high)
        inside |= (offsets == ABSENT) & (sizes == ABSENT)
        return None if inside.all() else int(inside.argmin())

    def overlapping(self) -> tuple[int, int] | None:
        """Return two slots whose chunks share bytes, if there are two.

        >>> Index(array("Q", [0, 8, 4]), array("Q", [4, 4, 5])).overlapping()
        (2, 1)
        """
        slots = self._stored()
        offsets, sizes = np.frombuffer(self.offsets, "u8"), np.frombuffer(self.sizes, "u8")
        order = slots[np.lexsort((sizes[slots], offsets[slots]))]
        ends = offsets[order] + sizes[order]
        hits = np.flatnonzero(ends[:-1] > offsets[order][1:])
        return (int(order[hits[0]]), int(order[hits[0] + 1])) if len(hits) else None

    def stored_bytes(self) -> int:
        """Return the bytes of all chunks."""
        return int(np.frombuffer(self.sizes, "u8")[self._stored()].sum())

    def _stored(self) -> np.ndarray[Any, Any]:
        """The slots that have a chunk, as an array."""
        return np.flatnonzero(np.frombuffer(self.offsets, "u8") != ABSENT)

    def said(self, slot: int) -> str:
        """Where the chunk of a slot is said to lie."""
        return f"{self.offsets[slot]}, {self.sizes[slot]} B"

    def present(self) -> Iterable[int]:
        """The slots that have a chunk."""
        return (n for n, offset in enumerate(self.offsets) if offset != ABSENT)


def length(slots: int, has_checksum: bool = True) -> int:
    """The bytes of an index of so many chunks."""
    return 16 * slots + 4 * has_checksum
