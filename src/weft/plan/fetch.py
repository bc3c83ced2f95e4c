"""Fetching boxes: what cells need of an array and do not hold, where no sharding says it.

A convolution's cell needs a halo of its neighbours; a slice needs what lies elsewhere. Each cell
takes what is missing from the nearest that hold it, and nothing else moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import le

from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.placed import Placed
from weft.plan.resharding.media import Message
from weft.plan.resharding.moves import Transfer
from weft.plan.resharding.reshard import plan_reshard
from weft.space import ZRange
from weft.values import Point


@dataclass(frozen=True, eq=False)
class Fetch:
    """Who sends what to whom, so that every cell of a mesh has the box that it needs.

    >>> from weft import DeviceMesh
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> fetch = Fetch(ShardingSpec.parse('<@m, [{"x"}]>', mesh), (8,), (ZRange((0,), (5,)),) * 2)
    >>> print(*fetch.transfers, sep=", ")
    0 -> 0 [0:4], 1 -> 0 [4:5], 0 -> 1 [0:4], 1 -> 1 [4:5]
    """

    src: ShardingSpec
    shape: Point
    needs: tuple[ZRange, ...]
    """The box that each cell needs, in rank order."""

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The pieces of every cell's box, its own included, cell by cell."""
        src, devices, found = self.src, self._devices, []
        for rank, need in enumerate(self.needs):
            for pieces in product(*self._overlaps(need)):
                block = tuple(number for number, _ in pieces)
                box = src.box(self.shape, block) & need
                found.append(Transfer(devices[_nearest(src, block, rank)], devices[rank], box))
        return tuple(found)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Who sends how many elements to whom."""
        src, devices, found = self.src, self._devices, []
        for rank, need in enumerate(self.needs):
            for pieces in product(*self._overlaps(need)):
                sender = _nearest(src, tuple(block for block, _ in pieces), rank)
                if sender != rank:
                    size = prod(length for _, length in pieces)
                    found.append(Message(devices[sender], devices[rank], size))
        return tuple(found)

    @cached_property
    def received(self) -> tuple[int, ...]:
        """The elements that each cell receives, in rank order."""
        counts = dict.fromkeys(self._devices, 0)
        for _, receiver, size in self.messages:
            counts[receiver] += size
        return tuple(counts.values())

    @property
    def _devices(self) -> Sequence[int]:
        return self.src.mesh.device_ids or range(self.src.mesh.size)

    def _overlaps(self, need: ZRange) -> Iterator[list[tuple[int, int]]]:
        """For every dimension the blocks that a box touches, and how much of it lies in each."""
        if need.is_empty:
            yield []
            return
        for span in zip(need.start, need.stop, self._extents):
            if span not in self._known:
                low, high, extent = span
                self._known[span] = [
                    (k, min(high, (k + 1) * extent) - max(low, k * extent))
                    for k in range(low // extent, (high - 1) // extent + 1)
                ]
            yield self._known[span]

    @cached_property
    def _extents(self) -> Point:
        return self.src.shard_shape(self.shape)

    @cached_property
    def _known(self) -> dict[tuple[int, ...], list[tuple[int, int]]]:
        """The overlaps of spans: cells have many in common."""
        return {}


@lru_cache(maxsize=1 << 16)
def _nearest(src: ShardingSpec, block: Point, rank: int) -> int:
    """The holder of a block, and of the same part of it, that shares most coordinates."""
    mesh, at = src.mesh, src.mesh.coord(rank)
    if block == src.block(rank):
        return rank
    parts = [mesh.digit(axis) for axis in src.partial]

    def part(cell: Point) -> list[int]:
        return [d.of(cell) for d in parts]

    holders = [cell for cell in src.holders(block) if part(cell) == part(at)]
    return mesh.rank(min(holders, key=lambda c: (sum(x != y for x, y in zip(c, at)), c)))


def moved_bytes(src: ShardingSpec, placed: Placed, number: int, itemsize: int) -> int:
    """The bytes that all cells receive to have an operand as a placement needs it."""
    shape, held = placed.signature.operand_shapes[number], landing(src, placed, number)
    moved = 0 if held == src else sum(plan_reshard(src, held, shape, itemsize).received)
    if placed.operands[number] is None:
        moved += itemsize * sum(Fetch(held, shape, placed.needs[number]).received)
    return moved


def landing(src: ShardingSpec, placed: Placed, number: int) -> ShardingSpec:
    """The sharding to which an operand is brought: partial only where it is so already.

    What else must be partial, or count once, is hidden from all cells but the first by themselves.
    Where boxes are fetched, nothing but the parts changes before.
    """
    kept, dst = placed.partials[number], placed.operands[number]
    parts = {axis: monoid for axis, monoid in src.partial.items() if kept.get(axis) == monoid}
    if dst is None and len(parts) == len(src.partial):
        return src
    if dst is not None and dst.partial == parts:
        return dst
    dims = src.dim_specs if dst is None else dst.dim_specs
    return _landing(src.mesh, dims, tuple(parts.items()))


@lru_cache(maxsize=4096)
def _landing(
    mesh: DeviceMesh, dims: tuple[DimSpec, ...], parts: tuple[tuple[Axis, str], ...]
) -> ShardingSpec:
    """A sharding, made once."""
    return ShardingSpec(mesh, dims, (), parts)


def holds(boxes: Sequence[ZRange], needs: Sequence[ZRange]) -> bool:
    """Whether every cell has what it needs; an empty box needs room of its shape.

    >>> holds([ZRange((0,), (4,))], [ZRange((1,), (3,))])
    True
    """
    return all(
        all(map(le, need.shape, box.shape)) if need.is_empty else need in box
        for box, need in zip(boxes, needs)
    )
