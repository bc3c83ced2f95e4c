"""Batches of epochs on a GPU: their buffers, and the order in which their chunks are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from weft.store.chunk_layout import FrameLayout
from weft.store.cuda.device import DeviceMemory
from weft.store.cuda.encoders import Checksums, TileEncoder
from weft.values import Point

EVENTS = ("arrived", "begun", "compressed", "computed", "placed", "leaving", "left")
"""The events of a batch, from the arrival of its elements to its chunks on the host."""


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of the buffers of a batch."""

    epochs: int
    tiles: int
    tile: int
    """Bytes of a tile."""
    elements: int
    """Bytes of the elements of an epoch."""
    chunk: int
    """The most bytes of a chunk with its checksum."""
    scratch: int
    sums: int
    """Bytes of memory that checksums take."""

    @classmethod
    def of(
        cls, epochs: int, tiles: int, elements: int, encoder: TileEncoder, checksums: Checksums
    ) -> BatchSizes:
        """Return the sizes of a batch for an encoder and the checksums of its chunks."""
        count, chunk = epochs * tiles, encoder.most + checksums.extra
        scratch, sums = encoder.scratch(count), checksums.scratch(count)
        return cls(epochs, tiles, encoder.tile, elements, chunk, scratch, sums)

    @property
    def count(self) -> int:
        """The number of tiles."""
        return self.epochs * self.tiles

    @property
    def pool(self) -> int:
        """The bytes of all tiles, rounded up to 16, which are read at a time."""
        return -(-self.count * self.tile // 16) * 16

    @property
    def device(self) -> int:
        """The bytes of the GPU that a batch takes."""
        buffers = self.epochs * self.elements + self.pool + self.count * self.chunk
        return buffers + self.scratch + self.sums + self.count * (4 + 4 + 8 + 8 + 8) + 8

    @property
    def pinned(self) -> int:
        """The pinned bytes of the host that a batch takes."""
        moved = self.epochs * self.elements + self.count * self.chunk
        return moved + 4 * self.count + 8 * (self.count + 1)


class BatchBuffers:
    """The buffers of one batch."""

    def __init__(self, cp: Any, memory: DeviceMemory, sizes: BatchSizes) -> None:
        count = sizes.count
        self.staged = memory.on_device(sizes.epochs * sizes.elements)
        """Elements as they arrived from the host."""
        self.pool = memory.on_device(sizes.pool)
        self.out = memory.on_device(count * sizes.chunk)
        self.scratch = memory.on_device(sizes.scratch)
        self.sums = memory.on_device(sizes.sums)
        self.stored = memory.on_device(4 * count).view(cp.uint32)
        self.order = memory.on_device(4 * count).view(cp.uint32)
        self.sizes = memory.on_device(8 * count).view(cp.uint64)
        self.offsets = memory.on_device(8 * count).view(cp.uint64)
        self.placed = memory.on_device(8 * (count + 1)).view(cp.uint64)
        self._host_in: np.ndarray[Any, Any] | None = None
        self._memory, self._in = memory, sizes.epochs * sizes.elements
        self.host_out = memory.on_host(count * sizes.chunk)
        self.host_order = memory.on_host(4 * count).view(np.uint32)
        self.host_placed = memory.on_host(8 * (count + 1)).view(np.int64)
        self.events = {name: cp.cuda.Event() for name in EVENTS}
        self.guess = 0
        """Bytes of chunks that were sent to the host before their number was known."""

    @property
    def host_in(self) -> np.ndarray[Any, Any]:
        """Pinned memory for blocks that are not pinned, allocated for the first of them."""
        if self._host_in is None:
            self._host_in = self._memory.on_host(self._in)
        return self._host_in


class ShardPart(NamedTuple):
    """The part of a batch that belongs to one shard: the slots of consecutive chunks."""

    shard: Point
    slots: np.ndarray[Any, Any]


class BatchPlan(NamedTuple):
    """The tiles of a batch in the order of their shards, then of epochs, then of slots."""

    order: np.ndarray[Any, Any]
    parts: list[ShardPart]


class BatchPlanner:
    """Plans batches of epochs of a layout; tiles lie epoch by epoch, in the order of shards."""

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        self._slots = [np.array(slots, np.int64) for _, _, slots in layout.inner_shards]
        ends = np.cumsum([0, *map(len, self._slots)])
        self._tiles = [np.arange(a, b, dtype=np.uint32) for a, b in pairwise(ends)]

    def plan(self, epochs: Sequence[Point]) -> BatchPlan:
        """Return the plan of a batch of epochs, each given by its chunk up to the buffered axis.

        >>> planner = BatchPlanner(FrameLayout((None, 4), (1, 1), (2, 2), whole_planes=True))
        >>> order, parts = planner.plan([(0,), (1,)])
        >>> order.tolist(), [(shard, slots.tolist()) for shard, slots in parts]
        ([0, 1, 4, 5, 2, 3, 6, 7], [((0, 0), [0, 1, 2, 3]), ((0, 1), [0, 1, 2, 3])])
        """
        rows: dict[Point, list[int]] = {}
        for number, at in enumerate(epochs):
            head = tuple(
                t // self.layout.slot_grid.counts[dim] for t, dim in zip(at, self.layout.axis_order)
            )
            rows.setdefault(head, []).append(number)
        firsts = np.array([self.layout.first_slot(at) for at in epochs], np.int64)
        order, parts = [], []
        for numbers in rows.values():
            base = np.array(numbers, np.uint32)[:, None] * np.uint32(self.layout.tiles_per_epoch)
            added = firsts[numbers][:, None]
            for place, (inner, _, _) in enumerate(self.layout.inner_shards):
                order.append((base + self._tiles[place]).reshape(-1))
                slots = (added + self._slots[place]).reshape(-1)
                parts.append(ShardPart(self.layout.shard_of(epochs[numbers[0]], inner), slots))
        return BatchPlan(np.concatenate(order), parts)
