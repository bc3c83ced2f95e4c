"""Fetching boxes: what cells need of an array and do not hold, where no sharding says it.

A convolution's cell needs a halo of its neighbours; a slice needs what lies elsewhere. Each cell
takes what is missing from the nearest that hold it, and nothing else moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import le

from weft.layout import ShardingSpec
from weft.plan.placed import Placed
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
        return tuple(t for rank in range(len(self.needs)) for t in self._pieces(rank))

    @cached_property
    def received(self) -> tuple[int, ...]:
        """The elements that each cell receives, in rank order."""
        counts = dict.fromkeys(map(self.src.mesh.device, range(len(self.needs))), 0)
        for sender, receiver, box, _ in self.transfers:
            counts[receiver] += box.size * (sender != receiver)
        return tuple(counts.values())

    def _pieces(self, rank: int) -> Iterator[Transfer]:
        src, mesh, need = self.src, self.src.mesh, self.needs[rank]
        if need.is_empty:
            return
        at, own = mesh.coord(rank), src.block(rank)
        extents = src.shard_shape(self.shape)
        spans = zip(need.start, need.stop, extents)
        for block in product(*(range(low // e, (high - 1) // e + 1) for low, high, e in spans)):
            sender = rank if block == own else self._nearest(block, at)
            box = src.box(self.shape, block) & need
            yield Transfer(mesh.device(sender), mesh.device(rank), box)

    def _nearest(self, block: Point, at: Point) -> int:
        """The holder of a block, and of the same part of it, that shares most coordinates."""
        mesh = self.src.mesh
        parts = [mesh.digit(axis) for axis in self.src.partial]

        def part(cell: Point) -> list[int]:
            return [cell[d.dim] // d.divisor % d.radix for d in parts]

        holders = [cell for cell in self.src.holders(block) if part(cell) == part(at)]
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
    return ShardingSpec(src.mesh, dims, (), parts)


def holds(boxes: Sequence[ZRange], needs: Sequence[ZRange]) -> bool:
    """Whether every cell has what it needs; an empty box needs room of its shape.

    >>> holds([ZRange((0,), (4,))], [ZRange((1,), (3,))])
    True
    """
    return all(
        all(map(le, need.shape, box.shape)) if need.is_empty else need in box
        for box, need in zip(boxes, needs)
    )
