"""Fetching boxes that no sharding describes: halos, and slices that lie elsewhere.

Each cell takes what is missing from the nearest cells that have it, and nothing else moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.placed import Placed, layout_of
from weft.plan.resharding.reshard import plan_reshard
from weft.program import CellClasses, Layout, Message, Route
from weft.program.count import received_elements
from weft.program.messages import messages
from weft.values import Point


@dataclass(frozen=True)
class Fetch:
    """Every cell of a mesh gets the box that it needs.

    >>> from weft import DeviceMesh
    >>> from weft.lang import Signature
    >>> from weft.plan.placed import place
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> conv = Signature.of("y+u, u -> y  sum: u", [(10,), (3,)], {"y": 8})
    >>> need = place(mesh, conv, {"y": ["x"]}).needed(0)
    >>> fetch = Fetch(ShardingSpec.parse('<@m, [{"x"}]>', mesh), (10,), need)
    >>> print(*fetch.transfers, sep=", ")
    0 -> 0 [0:5], 1 -> 0 [5:6], 0 -> 1 [4:5], 1 -> 1 [5:10]
    """

    src: ShardingSpec
    shape: Point
    need: Layout
    """The box that each cell needs."""

    @property
    def route(self) -> Route:
        """The layouts and digits that determine the messages."""
        source = layout_of(self.src, self.shape)
        return Route(source, self.need.with_parts(source.parts))

    @cached_property
    def transfers(self) -> tuple[Message, ...]:
        """The pieces of every cell's box, its own included, cell by cell."""
        return tuple(messages(self.route))

    @property
    def elements(self) -> list[tuple[int, int, int]]:
        """Who sends how many elements to whom."""
        return [
            (m.sender, m.receiver, m.box.size) for m in self.transfers if m.sender != m.receiver
        ]

    @cached_property
    def received(self) -> Point:
        """The elements that each cell receives, in rank order."""
        route = self.route
        classes = CellClasses(route.before.cells)
        for dim in range(len(self.shape)):
            classes.refine_spans(route.after.rule(dim), route.before.rule(dim))
        return classes.expand(
            [received_elements(route.before, route.after, 1, at) for at in classes.representatives]
        )


def moved_bytes(src: ShardingSpec, placed: Placed, number: int, itemsize: int) -> int:
    """Return the bytes that all cells receive for an operand of a placed application."""
    shape, held = placed.signature.operand_shapes[number], landing(src, placed, number)
    moved = 0 if held == src else sum(plan_reshard(src, held, shape, itemsize).received)
    if placed.operands[number] is None:
        moved += itemsize * sum(Fetch(held, shape, placed.needed(number)).received)
    return moved


def landing(src: ShardingSpec, placed: Placed, number: int) -> ShardingSpec:
    """Return the sharding to which an operand is resharded before boxes are fetched.

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
    """Return a sharding, made once."""
    return ShardingSpec(mesh, dims, (), parts)
