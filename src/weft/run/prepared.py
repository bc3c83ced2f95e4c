"""`Prepared`: an application that is placed, with everything worked out that its runs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.lang import Block, Operator
from weft.lang.block import Attributes
from weft.layout import ShardingSpec
from weft.plan.delivery import Delivery, deliver
from weft.plan.placed import Placed
from weft.run.arrays import Array, masked
from weft.run.blocks import run_block
from weft.run.exchange import Counts, by_device, run_fetch, run_reshard
from weft.run.ledger import Movement, active
from weft.run.threads import each
from weft.values import Point

Shards = Sequence[Array]
"""The arrays of all cells in rank order; one alone stands for all."""


@dataclass(slots=True)
class Prepared:
    """An application on a mesh, ready to run on arrays that lie as they were said to."""

    operator: Operator
    attributes: Attributes
    placed: Placed
    deliveries: tuple[Delivery, ...]
    names: tuple[str, ...]
    """What messages call the operands."""
    leaders: tuple[int, ...]
    """For each cell the first that computes the same from the same."""
    blocks: dict[int, list[Block]] = field(default_factory=dict)

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The shards of every result."""
        inputs = [
            self._deliver(xp, name, delivery, shards)
            for name, delivery, shards in zip(self.names, self.deliveries, operands)
        ]
        blocks = self.blocks_for(xp)
        size = self.placed.mesh.size

        def compute(rank: int) -> tuple[Array, ...]:
            boxes = [shards[rank if len(shards) > 1 else 0] for shards in inputs]
            return run_block(self.operator, blocks[rank], boxes)

        leading = [rank for rank in range(size) if self.leaders[rank] == rank]
        made = dict(zip(leading, each(compute, leading, self._work())))
        results = [made[leader] for leader in self.leaders]
        return [list(shards) for shards in zip(*results)]

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
        return max((box.size for box in self.placed.boxes), default=0)

    def blocks_for(self, xp: Any) -> list[Block]:
        """The blocks of all cells."""
        key = id(xp)
        if key not in self.blocks:
            line, boxes = self.placed.signature, self.placed.boxes
            found = {box: Block(xp, line, self.attributes, box) for box in dict.fromkeys(boxes)}
            self.blocks[key] = [found[box] for box in boxes]
        return self.blocks[key]

    def _deliver(self, xp: Any, name: str, delivery: Delivery, shards: Shards) -> Shards:
        mesh, ledgers = self.placed.mesh, active()
        if delivery.reshard is not None or delivery.fetch is not None:
            for ledger in ledgers:
                ledger.allow(sum(delivery.received), self.operator.name, name)
            held: Any = by_device(mesh, shards)
            if delivery.reshard is not None:
                held, counts = run_reshard(xp, held, delivery.reshard)
                kinds = [step.kind for step in delivery.reshard.steps]
                self._note(name, kinds, counts)
            if delivery.fetch is not None:
                held, counted = run_fetch(xp, held, delivery.fetch)
                self._note(name, ["fetch"], [counted])
            shards = [held[device] for device in mesh.device_ids or range(mesh.size)]
        if any(delivery.slices):
            shards = [
                shards[rank if len(shards) > 1 else 0][part or ...]
                for rank, part in enumerate(delivery.slices)
            ]
        if any(delivery.hidden):
            every = shards if len(shards) > 1 else [shards[0]] * mesh.size
            shards = [
                masked(xp, array, monoid) if monoid else array
                for array, monoid in zip(every, delivery.hidden)
            ]
        return shards

    def _note(self, name: str, kinds: Sequence[str], counts: Sequence[Counts]) -> None:
        """Write down what moved."""
        devices = self.placed.mesh.device_ids or range(self.placed.mesh.size)
        for ledger in active():
            for kind, (sent, received) in zip(kinds, counts):
                if kind not in ("slice", "mask"):
                    bytes_ = [tuple(c.get(d, 0) for d in devices) for c in (sent, received)]
                    note = Movement(self.operator.name, name, kind, *bytes_)
                    ledger.movements.append(note)


def prepare(
    operator: Operator,
    attributes: Attributes,
    placed: Placed,
    specs: Sequence[ShardingSpec | None],
    itemsizes: Sequence[int],
    names: Sequence[str],
) -> Prepared:
    """Work out how an application runs on operands that lie so; None is whole on every cell."""
    deliveries = tuple(
        deliver(placed, number, spec, itemsize)
        for number, (spec, itemsize) in enumerate(zip(specs, itemsizes))
    )
    return Prepared(operator, attributes, placed, deliveries, tuple(names), leaders(placed))


def leaders(placed: Placed) -> tuple[int, ...]:
    """The first cell with the same box, and the same part of what is partial."""
    mesh = placed.mesh
    axes = list(dict.fromkeys(axis for parts in placed.partials for axis in parts))
    digits = [mesh.digit(axis) for axis in axes]
    first: dict[object, int] = {}
    leaders = []
    for rank, cell in enumerate(mesh.cells()):
        part = tuple(cell[d.dim] // d.divisor % d.radix for d in digits)
        leaders.append(first.setdefault((placed.boxes[rank], part), rank))
    return tuple(leaders)
