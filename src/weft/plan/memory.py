"""The bytes that each cell holds while a plan runs, event by event, in the order of the program.

A value lies on its cells from when it is made until its last use; an input from the beginning. What
is brought to an application lies beside it until that has run; what is only a part of a shard is
not copied. The results of an application lie beside its operands, and each once more where it is
kept otherwise than it was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.layout import ShardingSpec
from weft.plan.delivery import Delivery
from weft.plan.placed import Placed
from weft.plan.resharding.counts import sizes
from weft.plan.resharding.reshard import Reshard
from weft.values import Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan


class Held(NamedTuple):
    """What the cells hold at one moment."""

    what: str
    """Which application, and what it is doing."""
    cells: Point
    """The bytes of every cell, in rank order."""


def moments(plan: Plan) -> Iterator[Held]:
    """The moments at which the cells may hold most."""
    return _Walk(plan).moments()


def peak(plan: Plan) -> Point:
    """The most bytes that each cell ever holds."""
    return tuple(map(max, zip(*(held.cells for held in moments(plan)))))


def last_uses(plan: Plan) -> list[list[str]]:
    """For every application the values that nobody needs after it."""
    last: dict[str, int] = {}
    for number, application in enumerate(plan.graph.applications):
        last |= dict.fromkeys((*application.results, *application.operands), number)
    ends: list[list[str]] = [[] for _ in plan.graph.applications]
    for name, number in last.items():
        if name not in plan.graph.outputs:
            ends[number].append(name)
    return ends


def held_by(spec: ShardingSpec, shape: Point, itemsize: int) -> list[int]:
    """The bytes of an array on every cell."""
    return [count * itemsize for count in sizes(spec, shape)]


def moving(reshard: Reshard) -> list[int]:
    """The most that cells hold on the way beyond the source; what is between lies inside that."""
    if not reshard.steps:
        return [0] * reshard.dst.mesh.size
    return held_by(reshard.dst, reshard.shape, reshard.itemsize)


def beside(delivery: Delivery, placed: Placed, number: int) -> list[int]:
    """What an operand adds once it is where it is needed."""
    extra = [0] * placed.mesh.size
    if delivery.reshard is not None:
        reshard = delivery.reshard
        extra = held_by(reshard.dst, reshard.shape, reshard.itemsize)
    needs = [box.size * delivery.itemsize for box in placed.needs[number]]
    if delivery.fetch is not None:
        extra = [a + b for a, b in zip(extra, needs)]
    hidden = [n if monoid else 0 for n, monoid in zip(needs, delivery.hidden)]
    return [a + b for a, b in zip(extra, hidden)]


class _Walk:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.size = plan, plan.mesh.size
        self.live = [0] * self.size

    def moments(self) -> Iterator[Held]:
        plan, graph = self.plan, self.plan.graph
        for value in graph.inputs:
            self._add(self._bytes(value.name, plan.specs[value.name]))
        yield self._held("inputs")
        ends = last_uses(plan)
        for number in range(len(graph.applications)):
            yield from self._application(number)
            for name in ends[number]:
                self._add(self._bytes(name, plan.specs[name]), -1)
        for name, reshard in zip(graph.outputs, plan.returns):
            made = self._bytes(name, reshard.dst) if reshard.steps else [0] * self.size
            yield from self._moving(f"output {name}", reshard)
            self._add(made)
        yield self._held("outputs")

    def _application(self, number: int) -> Iterator[Held]:
        plan, application = self.plan, self.plan.graph.applications[number]
        name = ", ".join(application.results)
        brought = []
        for operand, delivery in plan.brought(number):
            if delivery.reshard is not None:
                yield from self._moving(f"{operand} for {name}", delivery.reshard)
            place = application.operands.index(operand)
            brought.append(beside(delivery, plan.placed[number], place))
            self._add(brought[-1])
        made = [
            self._bytes(result, spec)
            for result, spec in zip(application.results, plan.placed[number].results)
        ]
        for each in made:
            self._add(each)
        yield self._held(name)
        for each in brought:
            self._add(each, -1)
        for result, reshard, each in zip(application.results, plan.settlings[number], made):
            if reshard.steps:
                yield from self._moving(f"{result} settled", reshard)
                self._add(self._bytes(result, reshard.dst))
                self._add(each, -1)

    def _moving(self, what: str, reshard: Reshard) -> Iterator[Held]:
        if reshard.steps:
            yield Held(what, tuple(map(sum, zip(self.live, moving(reshard)))))

    def _held(self, what: str) -> Held:
        return Held(what, tuple(self.live))

    def _add(self, sizes: Sequence[int], sign: int = 1) -> None:
        self.live = [a + sign * b for a, b in zip(self.live, sizes)]

    def _bytes(self, name: str, spec: ShardingSpec) -> list[int]:
        return held_by(spec, self.plan.graph.values[name].shape, self.plan.itemsize(name))
