"""`Prepared`: an application that is placed, with everything worked out that its runs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.lang import Block, Operator
from weft.lang.kernel import Attributes
from weft.layout import ShardingSpec
from weft.plan.delivery import Delivery, deliver
from weft.plan.placed import Placed
from weft.runtime.arrays import Array, masked
from weft.runtime.blocks import run_block
from weft.runtime.cells import ALL, Cause, Cells, Shards
from weft.runtime.hops import hops_of
from weft.runtime.ledger import active
from weft.runtime.meter import Trail
from weft.runtime.threads import each
from weft.space import ZRange
from weft.values import Point


@dataclass(slots=True)
class Prepared:
    """An application on a mesh, ready to run on arrays that lie as they were said to."""

    operator: Operator
    attributes: Attributes
    placed: Placed
    cells: Cells
    """Those of the mesh that run here; what follows is said of them, in rank order."""
    boxes: tuple[ZRange, ...]
    """The box of the index space that each computes."""
    leaders: tuple[int, ...]
    """For each the place of the first that computes the same from the same."""
    deliveries: tuple[Delivery, ...]
    causes: tuple[Cause, ...]
    """What messages say when an operand moves."""
    alike: tuple[tuple[int, ...], ...]
    """For each operand those before it that are brought in the same way."""
    blocks: dict[int, list[Block]] = field(default_factory=dict)

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The shards of every result."""
        if active():
            self._allow(operands)
        meter = self.cells.meter
        mark = meter.mark() if meter is not None else {}
        inputs: list[Shards] = []
        for number, shards in enumerate(operands):
            there = self._is_there(number, operands)
            inputs.append(self._deliver(xp, number, shards) if there is None else inputs[there])
        blocks = self.blocks_for(xp)

        def compute(place: int) -> tuple[Array, ...]:
            boxes = [shards[place if len(shards) > 1 else 0] for shards in inputs]
            return run_block(self.operator, blocks[place], boxes)

        leading = [place for place, leader in enumerate(self.leaders) if leader == place]
        made = dict(zip(leading, each(compute, leading, self._work())))
        results = [list(shards) for shards in zip(*(made[leader] for leader in self.leaders))]
        if meter is not None:
            held = [self.cells.held(self.placed.mesh, shards) for shards in results]
            for arrays in held:
                meter.hold(arrays)
            meter.back(mark, hold=held)
        return results

    @property
    def shapes(self) -> tuple[Point, ...]:
        """The shapes of the results."""
        return self.placed.signature.result_shapes

    @property
    def specs(self) -> Sequence[ShardingSpec]:
        """How the results lie."""
        return self.placed.results

    def _work(self) -> int:
        """The elements that the largest box makes."""
        return max((box.size for box in self.boxes), default=0)

    def blocks_for(self, xp: Any) -> list[Block]:
        """The blocks of all cells."""
        key = id(xp)
        if key not in self.blocks:
            line, boxes = self.placed.signature, self.boxes
            found = {box: Block(xp, line, self.attributes, box) for box in dict.fromkeys(boxes)}
            self.blocks[key] = [found[box] for box in boxes]
        return self.blocks[key]

    def _allow(self, operands: Sequence[Shards]) -> None:
        """Refuse what would go beyond a budget before anything moves."""
        moving = {
            number: sum(delivery.received)
            for number, delivery in enumerate(self.deliveries)
            if delivery.received and self._is_there(number, operands) is None
        }
        tensors = " and ".join(str(self.causes[number].tensor) for number in moving)
        for ledger in active():
            ledger.allow(sum(moving.values()), self.operator.name, tensors)

    def _is_there(self, number: int, operands: Sequence[Shards]) -> int | None:
        """The operand before this one that is the same tensor, brought in the same way, if any."""
        mine = operands[number]
        return next((first for first in self.alike[number] if operands[first] is mine), None)

    def _deliver(self, xp: Any, number: int, shards: Shards) -> Shards:
        """What the cells compute with: what moved, of that what they need, hidden where it must."""
        cause, delivery, mesh = self.causes[number], self.deliveries[number], self.placed.mesh
        steps, takes, hides = tuple(hops_of(delivery)), any(delivery.slices), any(delivery.hidden)
        if not (steps or takes or hides):
            return shards
        trail = Trail(self.cells.held(mesh, shards), self.cells.meter)
        if steps:
            self.cells.travel(xp, trail, steps, cause)
        if takes:
            pairs = zip(trail.held.items(), delivery.slices)
            trail.step({device: array[part or ...] for (device, array), part in pairs}, ())
        if hides:
            hidden = dict(zip(trail.held, delivery.hidden))
            fresh = {d: masked(xp, trail.held[d], m) for d, m in hidden.items() if m}
            trail.step({**trail.held, **fresh}, fresh)
        return list(trail.held.values())


def prepare(
    operator: Operator,
    attributes: Attributes,
    placed: Placed,
    deliveries: Sequence[Delivery],
    names: Sequence[str],
    cells: Cells = ALL,
) -> Prepared:
    """Work out how an application runs on the cells that are here; messages use the names."""
    ranks = cells.ranks(placed.mesh)
    return Prepared(
        operator,
        attributes,
        placed,
        cells,
        tuple(placed.boxes[rank] for rank in ranks),
        leaders(placed, ranks),
        tuple(_on(ranks, delivery) for delivery in deliveries),
        tuple(Cause(operator.name, name) for name in names),
        tuple(
            tuple(first for first in range(number) if deliveries[first] == delivery)
            for number, delivery in enumerate(deliveries)
        ),
    )


def deliver_all(
    placed: Placed, specs: Sequence[ShardingSpec | None], itemsizes: Sequence[int]
) -> list[Delivery]:
    """How operands that lie so come to an application; None is whole on every cell."""
    return [
        deliver(placed, number, spec, itemsize)
        for number, (spec, itemsize) in enumerate(zip(specs, itemsizes))
    ]


def _on(ranks: Sequence[int], delivery: Delivery) -> Delivery:
    """A delivery as the cells of these ranks see it."""
    if len(ranks) == len(delivery.slices):
        return delivery
    slices = tuple(delivery.slices[rank] for rank in ranks)
    return replace(delivery, slices=slices, hidden=tuple(delivery.hidden[rank] for rank in ranks))


def leaders(placed: Placed, ranks: Sequence[int]) -> tuple[int, ...]:
    """For each rank the place of the first that computes the same from the same."""
    every = placed.leaders
    first: dict[int, int] = {}
    return tuple(first.setdefault(every[rank], place) for place, rank in enumerate(ranks))
