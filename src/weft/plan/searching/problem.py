"""`Problem`: what a search decides, and what every decision costs beside its neighbours'.

Three kinds of thing are decided: how an input lies, how the index space of an application is
placed, and, of a result that several read or that is an output, how it is kept. A result that one
application reads stays as it is made until that one needs it. Everything else follows, and so the
cost of a plan is a sum over decisions and over pairs of them: what an application computes, what
moves to it, and what moves from it to where it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from weft.lang import Graph
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed
from weft.plan.plan import Plan
from weft.plan.searching.prices import Move
from weft.values import FrozenMap, Point

Choice: TypeAlias = ShardingSpec | Placed
Table: TypeAlias = Sequence[Sequence[Move]]
"""For each choice of one decision and each of another, what moves between them."""

Found: TypeAlias = Sequence[int]
"""For every decision the number of the choice that is taken."""


class Price(NamedTuple):
    """What one choice takes by itself."""

    compute: float = 0.0
    communicate: float = 0.0
    received: int = 0


class Decision(NamedTuple):
    """One thing to decide: how a value lies, or how the application of some number is placed."""

    what: str | int
    choices: tuple[Choice, ...]
    prices: tuple[Price, ...]
    kind: object
    """What is equal for decisions that may be taken as one."""


class Link(NamedTuple):
    """What moves from one decision to another."""

    first: int
    second: int
    table: Table

    def move(self, found: Found) -> Move:
        """What moves when choices are taken."""
        return self.table[found[self.first]][found[self.second]]


class Kept(NamedTuple):
    """Which decision says how a value lies, and the bytes that it then has on the cells counted."""

    decision: int
    specs: tuple[ShardingSpec, ...]
    sizes: tuple[Point, ...]


class Made(NamedTuple):
    """A result: its bytes as made, by choice, and the way to where it is kept, if that differs."""

    name: str
    sizes: tuple[Point, ...]
    settled: Link | None


class Moment(NamedTuple):
    """An application as memory sees it: what comes, what is made, what goes."""

    decision: int
    brought: tuple[Link, ...]
    made: tuple[Made, ...]
    ends: tuple[str, ...]


class Return(NamedTuple):
    """The room on the way to an output: where the value is gone then, where it stays, and after."""

    gone: Point
    kept: Point
    final: Point


@dataclass(frozen=True, eq=False)
class Problem:
    """The decisions for a graph on a mesh, with the prices of a machine."""

    graph: Graph
    mesh: DeviceMesh
    machine: Machine
    base: Plan
    """What propagation alone would do: always one of the plans that are looked at."""
    decisions: tuple[Decision, ...]
    links: tuple[Link, ...]
    kept: FrozenMap[str, Kept]
    moments: tuple[Moment, ...]
    wanted: FrozenMap[int, tuple[Return, ...]]
    """Of an output that is wanted in one sharding, the room it takes from every way it may lie."""
    returned: FrozenMap[int, tuple[ShardingSpec, ...]]
    """Of such an output how it is returned, by the way it lies."""
    unused: tuple[str, ...]
    """The inputs that nobody needs."""

    @cached_property
    def start(self) -> list[int]:
        """The choices that propagation alone takes."""
        return [
            decision.choices.index(
                self.base.placed[decision.what]
                if isinstance(decision.what, int)
                else self.base.specs[decision.what]
            )
            for decision in self.decisions
        ]

    def plan(self, found: Found) -> Plan:
        """The plan that choices stand for."""
        placed: dict[int, Placed] = {}
        for decision, chosen in zip(self.decisions, found):
            choice = decision.choices[chosen]
            if isinstance(decision.what, int) and isinstance(choice, Placed):
                placed[decision.what] = choice
        specs = {name: kept.specs[found[kept.decision]] for name, kept in self.kept.items()}
        outputs = tuple(
            self.returned[place][found[self.kept[name].decision]]
            if place in self.wanted
            else specs[name]
            for place, name in enumerate(self.graph.outputs)
        )
        return Plan(
            self.graph,
            self.mesh,
            FrozenMap((name, specs[name]) for name in self.graph.values),
            outputs,
            tuple(placed[number] for number in range(len(placed))),
            self.base.machine,
            self.base.regions,
        )

    def price(self, found: Found) -> Price:
        """What choices take in all: the sums of an estimate, without making the plan."""
        compute = communicate = 0.0
        received = 0
        for decision, chosen in zip(self.decisions, found):
            price = decision.prices[chosen]
            compute += price.compute
            communicate += price.communicate
            received += price.received
        for link in self.links:
            move = link.move(found)
            communicate += move.seconds
            received += move.received
        return Price(compute, communicate, received)

    def peak(self, found: Found) -> int:
        """The most bytes that any cell holds: `Plan.peak`, without making the plan."""
        return max(max(held, default=0) for held in self.levels(found))

    def levels(self, found: Found) -> list[Point]:
        """The most that cells hold: before all, while each application runs, and after."""
        live = [0] * self.cells
        none = (0,) * self.cells
        most = live[:]
        levels: list[Point] = []

        def add(amount: Point, sign: int = 1) -> None:
            for cell, size in enumerate(amount):
                live[cell] += sign * size

        def note(more: Point) -> None:
            most[:] = map(max, most, map(int.__add__, live, more))

        def end() -> None:
            levels.append(tuple(most))
            most[:] = none

        for value in self.graph.inputs:
            add(self.size(value.name, found))
        note(none)
        end()
        for name in self.unused:
            add(self.size(name, found), -1)
        for moment in self.moments:
            moves = [link.move(found) for link in moment.brought]
            for move in moves:
                note(move.most)
                add(move.beside)
            for made in moment.made:
                add(made.sizes[found[moment.decision]])
            note(none)
            for move in moves:
                add(move.beside, -1)
            for made in moment.made:
                if made.settled is not None:
                    note(made.settled.move(found).settled)
                    add(self.size(made.name, found))
                    add(made.sizes[found[moment.decision]], -1)
            for name in moment.ends:
                add(self.size(name, found), -1)
            end()
        outputs = self.graph.outputs
        for place, name in enumerate(outputs):
            gone = name not in outputs[place + 1 :]
            size = self.size(name, found)
            if place in self.wanted:
                way = self.wanted[place][found[self.kept[name].decision]]
                note(way.gone if gone else way.kept)
                add(size, -gone)
                add(way.final)
            elif not gone:
                note(size)
                add(size)
        note(none)
        end()
        return levels

    @cached_property
    def lives(self) -> FrozenMap[str, tuple[int, int]]:
        """For every value the first and the last level at which it lies on the cells."""
        begin = {value.name: 0 for value in self.graph.inputs}
        end = dict[str, int]()
        for number, moment in enumerate(self.moments, 1):
            begin |= {made.name: number for made in moment.made}
            end |= dict.fromkeys(moment.ends, number)
        end |= dict.fromkeys(self.unused, 0)
        last = len(self.moments) + 1
        return FrozenMap((name, (first, end.get(name, last))) for name, first in begin.items())

    @cached_property
    def cells(self) -> int:
        """On how many cells room is counted."""
        return max((len(kept.sizes[0]) for kept in self.kept.values()), default=0)

    def size(self, name: str, found: Found) -> Point:
        """The bytes of a value as it is kept."""
        kept = self.kept[name]
        return kept.sizes[found[kept.decision]]

    def seconds(self, price: Price) -> float:
        """The seconds of a price: what of communication does not hide is added."""
        hidden = min(self.machine.overlap * price.communicate, price.compute)
        return price.compute + price.communicate - hidden
