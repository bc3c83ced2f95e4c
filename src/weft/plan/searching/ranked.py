"""One number for several that count one before the other: bytes, then time, then what is computed.

Numbers are whole, and a unit of one is more than all that comes after it can ever be, so the least
sum is the least in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from weft.plan.placed import Placed
from weft.plan.searching.prices import Move
from weft.plan.searching.problem import Choice, Decision, Link, Price, Problem, Table

BITS = 40
"""Time and work are counted in so many bits each, of the most that there can be of them."""


class Costs(NamedTuple):
    """What is to be small, the first before all."""

    received: int
    seconds: float = 0.0
    work: int = 0
    """What the busiest cell computes, in sub-problems, and what the fullest holds, in bytes."""


def ranked(problem: Problem) -> Problem:
    """The problem with all that counts in the bytes received, and nothing else priced."""
    return _Ranking(problem).problem()


class _Ranking:
    def __init__(self, problem: Problem) -> None:
        self.given = problem
        self.share = 1.0 - problem.machine.overlap
        self.tables = {id(link.table): link.table for link in problem.links}
        alone = [self._most(self._prices(decision)) for decision in problem.decisions]
        moved = {key: self._slowest(table) for key, table in self.tables.items()}
        every = [*alone, *(moved[id(link.table)] for link in problem.links)]
        self.seconds = sum(cost.seconds for cost in every) or 1.0
        self.work = sum(cost.work for cost in every) or 1
        self.made: dict[int, Table] = {}
        self.moves: dict[tuple[int, float], Move] = {}

    def problem(self) -> Problem:
        given = self.given
        return replace(
            given,
            decisions=tuple(map(self._decision, given.decisions)),
            links=tuple(map(self._link, given.links)),
            moments=tuple(
                moment._replace(
                    brought=tuple(map(self._link, moment.brought)),
                    made=tuple(
                        made._replace(settled=made.settled and self._link(made.settled))
                        for made in moment.made
                    ),
                )
                for moment in given.moments
            ),
        )

    def _number(self, cost: Costs) -> int:
        """The one number; each part is less than the unit of the one before."""
        ticks = int(cost.seconds / self.seconds * (1 << BITS))
        work = (cost.work << BITS) // self.work
        return (cost.received << 2 * BITS + 2) + (ticks << BITS + 1) + work

    def _decision(self, decision: Decision) -> Decision:
        prices = [Price(received=self._number(cost)) for cost in self._prices(decision)]
        return decision._replace(prices=tuple(prices))

    def _link(self, link: Link) -> Link:
        key = id(link.table)
        if key not in self.made:
            self.made[key] = [[self._move(move) for move in row] for row in link.table]
        return link._replace(table=self.made[key])

    def _move(self, move: Move) -> Move:
        """A move with all that counts in its bytes, made once for all that are equal."""
        key = move.received, move.seconds
        if key not in self.moves:
            number = self._number(Costs(move.received, self.share * move.seconds))
            self.moves[key] = Move(0.0, number, (), (), ())
        return self.moves[key]

    def _slowest(self, table: Table) -> Costs:
        longest = max((move.seconds for row in table for move in row), default=0.0)
        return Costs(0, self.share * longest)

    def _prices(self, decision: Decision) -> list[Costs]:
        return [
            Costs(
                price.received,
                price.compute + self.share * price.communicate,
                self._work(decision.what, choice, number),
            )
            for number, (choice, price) in enumerate(zip(decision.choices, decision.prices))
        ]

    def _work(self, what: str | int, choice: Choice, number: int) -> int:
        if isinstance(choice, Placed):
            return max((box.size for box in choice.boxes), default=0)
        return max(self.given.kept[str(what)].sizes[number], default=0)

    def _most(self, costs: Iterable[Costs]) -> Costs:
        every = list(costs)
        return Costs(
            0,
            max((cost.seconds for cost in every), default=0.0),
            max((cost.work for cost in every), default=0),
        )
