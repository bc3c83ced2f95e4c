"""`Delivery`: how an operand comes to an application: lowered by `lower`, priced by the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed, layout_of
from weft.plan.resharding.reshard import Made, plan_reshard
from weft.plan.resharding.step import Step
from weft.program import CellClasses, Layout, Route
from weft.program.count import received_elements
from weft.program.layout_rule import Parts, lies_inside, same_boxes
from weft.program.messages import messages
from weft.values import Point


@dataclass(frozen=True)
class Delivery:
    """The movement of one operand: it is resharded, then boxes are taken, then copies are masked.

    >>> from weft.lang import Signature
    >>> from weft.plan.placed import place
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> conv = Signature.of("y+u, u -> y  sum: u", [(10,), (3,)], {"y": 8})
    >>> cut = ShardingSpec.parse('<@m, [{"x"}]>', mesh)
    >>> delivery = deliver(place(mesh, conv, {"y": ["x"]}), 0, cut, itemsize=4)
    >>> delivery.received, list(delivery.fetched)
    ((4, 4), [(1, 0, 1), (0, 1, 1)])
    """

    steps: tuple[Step, ...]
    """The steps of the reshard."""
    held: Layout
    """The layout of the operand after them."""
    need: Layout
    """The boxes that cells need: those that they have, parts of them, or halos."""
    masked: Parts
    """The parts that copies become: all but the first have the identity of the monoid."""
    itemsize: int

    @cached_property
    def takes_boxes(self) -> bool:
        """Whether some cell needs another box than it has."""
        return self.need is not self.held and not same_boxes(self.need, self.held)

    @cached_property
    def fetches(self) -> bool:
        """Whether some cell needs anything that it does not have."""
        return self.takes_boxes and not lies_inside(self.need, self.held)

    @property
    def is_nothing(self) -> bool:
        """Whether the operand is used as it lies."""
        return not (self.steps or self.takes_boxes or self.masked)

    @property
    def fetched(self) -> Iterator[tuple[int, int, int]]:
        """The sender, the receiver and the number of elements of each box that is fetched."""
        route = Route(self.held, self.need)
        for m in messages(route) if self.fetches else ():
            if m.sender != m.receiver:
                yield m.sender, m.receiver, m.box.size

    @cached_property
    def fetched_by_cell(self) -> Point:
        """The bytes of boxes that each cell receives; nothing at all if none are fetched."""
        if not self.fetches:
            return ()
        classes = CellClasses(self.held.cells)
        for dim in range(len(self.held.shape)):
            classes.refine_spans(self.need.rule(dim), self.held.rule(dim))
        return classes.expand(
            [
                received_elements(self.held, self.need, 1, at) * self.itemsize
                for at in classes.representatives
            ]
        )

    @property
    def received(self) -> Point:
        """The bytes that each cell receives; nothing at all if nothing moves."""
        counts = [step.received for step in self.steps]
        counts += [self.fetched_by_cell] if self.fetches else []
        return tuple(map(sum, zip(*counts)))

    @property
    def made(self) -> Iterator[Made]:
        """The arrays that cells make, step by step."""
        yield from (step.made for step in self.steps)
        if self.fetches or self.masked:
            sizes = [box.size * self.itemsize for box in self.need.boxes()]
            if self.fetches:
                yield [size if got else None for size, got in zip(sizes, self.fetched_by_cell)]
            if self.masked:
                yield masked_sizes(self.masked, self.need, sizes)


def masked_sizes(masked: Parts, layout: Layout, sizes: list[int]) -> Made:
    """Return the sizes of the copies that a mask makes; None on the cells that keep theirs."""
    cells = zip(sizes, layout.cells.coordinates())
    return [size if any(d.of(at) for d, _ in masked) else None for size, at in cells]


def deliver(
    placed: Placed, number: int, src: ShardingSpec, itemsize: int, machine: Machine | None = None
) -> Delivery:
    """Return the delivery of an operand to a placed application."""
    shape, spec = placed.signature.operand_shapes[number], placed.operands[number]
    lands = landing(src, placed, number)
    steps = () if lands == src else plan_reshard(src, lands, shape, itemsize, machine).steps
    held = layout_of(lands, shape)
    need = held if spec is not None else placed.needed(number).with_parts(held.parts)
    return Delivery(steps, held, need, placed.operand_parts(number, lands.partial), itemsize)


def landing(src: ShardingSpec, placed: Placed, number: int) -> ShardingSpec:
    """Return the sharding to which an operand is resharded before boxes are taken.

    What else must be partial, or count once, is masked on all cells but the first. Where boxes are
    taken, nothing but the parts changes before.
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
