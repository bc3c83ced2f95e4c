"""`Delivery`: how one array comes to where an application needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.layout import Axis, ShardingSpec
from weft.plan.fetch import Fetch, landing
from weft.plan.machine import Machine
from weft.plan.placed import Placed, layout_of
from weft.plan.resharding.reshard import Reshard, plan_reshard
from weft.program.layout_rule import lies_inside
from weft.space import ZRange
from weft.values import Point

Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The movement of one operand to an application."""

    reshard: Reshard | None
    fetch: Fetch | None
    slices: tuple[Slices | None, ...]
    """For each cell the part of its array that it uses; None for all of it."""
    hidden: tuple[str, ...]
    """For each cell the monoid by whose identity its copy is replaced, or nothing."""
    itemsize: int

    @property
    def received(self) -> Point:
        """The bytes that each device receives; nothing at all if nothing moves."""
        total = list(self.reshard.received) if self.reshard else []
        if self.fetch:
            more = [count * self.itemsize for count in self.fetch.received]
            total = [a + b for a, b in zip(total, more)] if total else more
        return tuple(total)


def deliver(
    placed: Placed,
    number: int,
    src: ShardingSpec | None,
    itemsize: int,
    machine: Machine | None = None,
) -> Delivery:
    """Return the delivery of an operand to a placed application.

    >>> from weft import DeviceMesh
    >>> from weft.lang import Signature
    >>> from weft.plan.placed import place
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> conv = Signature.of("y+u, u -> y  sum: u", [(10,), (3,)], {"y": 8})
    >>> cut = ShardingSpec.parse('<@m, [{"x"}]>', mesh)
    >>> deliver(place(mesh, conv, {"y": ["x"]}), 0, cut, itemsize=4).received
    (4, 4)
    """
    shape, needs = placed.signature.operand_shapes[number], placed.needs[number]
    if src is None:
        whole = [ZRange.of(shape)] * placed.mesh.size
        hidden = _hidden(placed, number, {})
        return Delivery(None, None, _slices(whole, needs), hidden, itemsize)
    held = landing(src, placed, number)
    plan = None if held == src else plan_reshard(src, held, shape, itemsize, machine)
    moved = plan if plan and plan.steps else None
    hidden = _hidden(placed, number, held.partial)
    if placed.operands[number] is not None:
        return Delivery(moved, None, (None,) * placed.mesh.size, hidden, itemsize)
    boxes: Sequence[ZRange] = held.regions(shape)
    need = placed.needed(number)
    fetch = None if lies_inside(need, layout_of(held, shape)) else Fetch(held, shape, need)
    return Delivery(moved, fetch, _slices(needs if fetch else boxes, needs), hidden, itemsize)


def _slices(boxes: Sequence[ZRange], needs: Sequence[ZRange]) -> tuple[Slices | None, ...]:
    return tuple(
        None if box == need else need.slices(need.start if need.is_empty else box.start)
        for box, need in zip(boxes, needs)
    )


def masks(placed: Placed, number: int, held: ShardingSpec) -> tuple[str, ...]:
    """Return for each cell the monoid by whose identity its copy is replaced, or nothing."""
    return _hidden(placed, number, held.partial)


def _hidden(placed: Placed, number: int, already: Mapping[Axis, str]) -> tuple[str, ...]:
    """Return the cells on which an operand outside the reduction is masked."""
    mesh = placed.mesh
    parts = [
        (mesh.digit(axis), monoid)
        for axis, monoid in placed.partials[number].items()
        if axis not in already
    ]
    if not parts:
        return ("",) * mesh.size
    return tuple(next((m for d, m in parts if d.of(cell)), "") for cell in mesh.cells())
