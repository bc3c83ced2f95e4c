"""`Plan`: the order in which the chunks of a batch leave, and what each shard gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from weft.store.tiling import Tiling
from weft.values import Point


class Part(NamedTuple):
    """What a shard gets of a batch: so many chunks one behind the other, and their slots."""

    shard: Point
    slots: np.ndarray[Any, Any]


class Plan(NamedTuple):
    """The tiles of a batch in the order of their shards, then of epochs, then of slots."""

    order: np.ndarray[Any, Any]
    parts: list[Part]


class Planner:
    """Plans batches of epochs of a tiling; tiles lie epoch by epoch, in the order of shards."""

    def __init__(self, tiling: Tiling) -> None:
        self.tiling = tiling
        self._slots = [np.array(slots, np.int64) for _, _, slots in tiling.inner_groups]
        ends = np.cumsum([0, *map(len, self._slots)])
        self._tiles = [np.arange(a, b, dtype=np.uint32) for a, b in pairwise(ends)]

    def plan(self, epochs: Sequence[Point]) -> Plan:
        """The plan of a batch of epochs, each given by its chunk up to the grain.

        >>> planner = Planner(Tiling((None, 4), (1, 1), (2, 2), is_coarse=True))
        >>> order, parts = planner.plan([(0,), (1,)])
        >>> order.tolist(), [(shard, slots.tolist()) for shard, slots in parts]
        ([0, 1, 4, 5, 2, 3, 6, 7], [((0, 0), [0, 1, 2, 3]), ((0, 1), [0, 1, 2, 3])])
        """
        rows: dict[Point, list[int]] = {}
        for number, at in enumerate(epochs):
            head = tuple(t // self.tiling.per_shard[dim] for t, dim in zip(at, self.tiling.dims))
            rows.setdefault(head, []).append(number)
        firsts = np.array([self.tiling.first_slot(at) for at in epochs], np.int64)
        order, parts = [], []
        for numbers in rows.values():
            base = np.array(numbers, np.uint32)[:, None] * np.uint32(self.tiling.tiles)
            added = firsts[numbers][:, None]
            for place, (behind, _, _) in enumerate(self.tiling.inner_groups):
                order.append((base + self._tiles[place]).reshape(-1))
                slots = (added + self._slots[place]).reshape(-1)
                parts.append(Part(self.tiling.shard(epochs[numbers[0]], behind), slots))
        return Plan(np.concatenate(order), parts)
