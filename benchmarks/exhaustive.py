"""The fewest bytes of any plan, by enumeration, without the prices of the search.

Every placement of every application is combined with every other, in program order. Once the
applications are placed, each value has the sharding that moves the fewest bytes. Lower bounds of
the values, with some of their applications placed, prune the enumeration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf

from weft.errors import LayoutError
from weft.lang.dtype import itemsize
from weft.layout import ShardingSpec
from weft.plan import plan_reshard
from weft.plan.delivery import Delivery, deliver
from weft.plan.placed import Placed
from weft.plan.searching.problem import Problem


def fewest_bytes(problem: Problem) -> float:
    """Return the bytes of the best plan of a problem without a machine."""
    return _Enumeration(problem).best


class _Value:
    """The bytes that move for one value, by the placements of its producer and its readers."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.problem, self.name = problem, name
        graph = problem.graph
        self.shape = graph.values[name].shape
        self.itemsize = itemsize(graph.values[name].dtype)
        apps = list(enumerate(graph.applications))
        self.producer = next((n for n, app in apps if name in app.results), None)
        self.readers = [n for n, app in apps if name in app.operands and app.results]
        self.applications = sorted(
            {*self.readers, *([] if self.producer is None else [self.producer])}
        )
        self.choices = [_placements(problem, number) for number in self.applications]
        self.bounds: dict[tuple[int, ...], float] = {}
        decision = problem.decisions[problem.values[name].decision]
        self.stays = isinstance(decision.subject, int)
        self.specs = list(dict.fromkeys(problem.values[name].specs))

    def least(self, chosen: Sequence[int]) -> float:
        """Return a lower bound, with the applications of lower numbers placed."""
        known = tuple(chosen[number] for number in self.applications if number < len(chosen))
        return self._least(known)

    def _least(self, known: tuple[int, ...]) -> float:
        if known not in self.bounds:
            place = len(known)
            if place == len(self.applications):
                self.bounds[known] = self._cost(known)
            else:
                more = range(len(self.choices[place]))
                self.bounds[known] = min(self._least((*known, choice)) for choice in more)
        return self.bounds[known]

    def _cost(self, known: tuple[int, ...]) -> float:
        """Return the bytes in the best sharding."""
        if self.stays:
            computed = self._computed(self.choices[0][known[0]])
            readers = zip(self.applications[1:], self.choices[1:], known[1:])
            return sum(
                self._delivered(number, of[choice], computed) for number, of, choice in readers
            )
        rows = [rows[choice] for rows, choice in zip(self._rows, known)]
        return min(map(sum, zip(self._returned, *rows)))

    def _computed(self, placed: Placed) -> ShardingSpec:
        assert self.producer is not None
        application = self.problem.graph.applications[self.producer]
        return placed.results[application.results.index(self.name)]

    @cached_property
    def _rows(self) -> list[list[list[float]]]:
        """For every application and placement, the bytes of each sharding."""
        return [
            [
                [
                    self._moved(self._computed(placed), spec)
                    if number == self.producer
                    else self._delivered(number, placed, spec)
                    for spec in self.specs
                ]
                for placed in choices
            ]
            for number, choices in zip(self.applications, self.choices)
        ]

    @cached_property
    def _returned(self) -> list[float]:
        """For every sharding the bytes to return annotated outputs."""
        places = [n for n, name in enumerate(self.problem.graph.outputs) if name == self.name]
        wanted = [
            set(self.problem.return_specs[place])
            for place in places
            if place in self.problem.return_memory
        ]
        return [
            sum(min(self._moved(spec, dst) for dst in targets) for targets in wanted)
            for spec in self.specs
        ]

    def _delivered(self, number: int, placed: Placed, spec: ShardingSpec) -> float:
        operands = self.problem.graph.applications[number].operands
        seen: list[Delivery] = []
        try:
            for slot, name in enumerate(operands):
                if name == self.name:
                    delivery = deliver(placed, slot, spec, self.itemsize)
                    if delivery not in seen:
                        seen.append(delivery)
        except LayoutError:
            return inf
        return sum(sum(delivery.received) for delivery in seen)

    def _moved(self, src: ShardingSpec, dst: ShardingSpec) -> float:
        try:
            return sum(plan_reshard(src, dst, self.shape, self.itemsize).received)
        except LayoutError:
            return inf


def _placements(problem: Problem, number: int) -> list[Placed]:
    (decision,) = (d for d in problem.decisions if d.subject == number)
    return [choice for choice in decision.options if isinstance(choice, Placed)]


class _Enumeration:
    def __init__(self, problem: Problem) -> None:
        self.values = [_Value(problem, name) for name in problem.graph.values]
        self.counts = [
            len(_placements(problem, number)) for number in range(len(problem.graph.applications))
        ]
        self.best = inf
        self._try([])

    def _try(self, chosen: list[int]) -> None:
        """Try the placements of the next application that may still be better, the best first."""
        if len(chosen) == len(self.counts):
            self.best = min(self.best, self._least(chosen))
            return
        options = [[*chosen, choice] for choice in range(self.counts[len(chosen)])]
        for bound, option in sorted((self._least(option), option) for option in options):
            if bound >= self.best:
                break
            self._try(option)

    def _least(self, chosen: Sequence[int]) -> float:
        return sum(value.least(chosen) for value in self.values)
