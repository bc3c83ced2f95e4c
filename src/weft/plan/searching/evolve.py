"""A stochastic search for the front: NSGA-II, by pymoo. Needs the extra `search`.

Plans are bred by patches: a part of a graph is taken from another plan, and decided anew by one of
the sums that scouting used, so that what is around it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Any

from weft.extra import needed
from weft.plan.searching.ahead import Goal
from weft.plan.searching.descend import redecide
from weft.plan.searching.evaluate import Evaluator
from weft.plan.searching.model import Model, Priced

CROWD = 64
"""Plans in a generation."""


def evolve(
    model: Model,
    goal: Goal,
    first: Sequence[Sequence[int]],
    sums: Sequence[Priced],
    budget: int,
    rng: Random,
) -> Iterator[list[list[int]]]:
    """Generation after generation the choices of the best plans, until so many were looked at."""
    crowd = _Crowd(model, goal, sums, rng)
    yield crowd.begin(first)
    while crowd.evaluate.count + CROWD <= budget:
        yield crowd.breed()


class _Crowd:
    def __init__(self, model: Model, goal: Goal, sums: Sequence[Priced], rng: Random) -> None:
        self.model, self.goal, self.sums, self.rng = model, goal, list(sums), rng
        self.evaluate = Evaluator(model)
        self.np = self.evaluate.np
        self.columns = [
            n for n, wanted in enumerate((goal.time, goal.memory, goal.received)) if wanted
        ]
        self.near = [[other for other, _ in near] for near in self.sums[0].near]
        self.free = [number for number, count in enumerate(model.sizes) if count > 1]

    def begin(self, first: Sequence[Sequence[int]]) -> list[list[int]]:
        plans = [list(plan) for plan in dict.fromkeys(map(tuple, first))]
        while len(plans) < CROWD:
            plans.append(self._child(self.rng.choice(plans), self.rng.choice(plans)))
        core = needed("pymoo.core.problem", "search")
        self.problem = core.Problem(
            n_var=len(self.model.sizes),
            n_obj=len(self.columns),
            n_ieq_constr=1,
            xl=self.np.zeros(len(self.model.sizes)),
            xu=self.np.array(self.model.sizes) - 1,
        )
        self.algorithm = needed("pymoo.algorithms.moo.nsga2", "search").NSGA2(
            pop_size=CROWD, sampling=self.np.array(plans)
        )
        seed = self.rng.randrange(1 << 31)
        self.algorithm.setup(self.problem, termination=("n_gen", 1 << 30), seed=seed, verbose=False)
        self.algorithm.ask()
        return self._tell(plans)

    def breed(self) -> list[list[int]]:
        """One generation more."""
        population = self.algorithm.pop
        plans = population.get("X").astype(int).tolist()
        order = list(map(_order, population.get("rank"), population.get("crowding")))

        def parent() -> list[int]:
            one, two = self.rng.randrange(len(plans)), self.rng.randrange(len(plans))
            return list(plans[min(one, two, key=lambda n: order[n])])

        return self._tell([self._child(parent(), parent()) for _ in range(CROWD)])

    def _tell(self, plans: list[list[int]]) -> list[list[int]]:
        """Price plans, and leave the choice of survivors to NSGA-II."""
        costs = self.evaluate(plans)
        over = costs[:, 1:2] - min(self.model.problem.machine.capacity, 1e300)
        population = needed("pymoo.core.population", "search").Population.new(
            "X", self.np.array(plans)
        )
        static = needed("pymoo.problems.static", "search").StaticProblem(
            self.problem, F=costs[:, self.columns], G=over
        )
        needed("pymoo.core.evaluator", "search").Evaluator().eval(static, population)
        self.algorithm.tell(infills=population)
        best: Any = self.algorithm.opt
        return [list(map(int, plan)) for plan in best.get("X")]

    def _child(self, one: Sequence[int], two: Sequence[int]) -> list[int]:
        """A plan with a patch of another, or with a patch that is decided anew."""
        child = list(one)
        if not self.free:
            return child
        patch = self._patch()
        for number in patch:
            child[number] = two[number]
        if self.rng.random() < 0.5:
            number = self.rng.choice(self.free)
            child[number] = self.rng.randrange(self.model.sizes[number])
            patch = [other for other in self._patch(number) if other != number]
        if self.rng.random() < 0.8:
            self.rng.shuffle(patch)
            redecide(self.rng.choice(self.sums), patch, child)
        return child

    def _patch(self, start: int | None = None) -> list[int]:
        """Some classes that are near each other."""
        seen = [self.rng.choice(self.free) if start is None else start]
        size, known = self.rng.choice((2, 4, 8, 16, 32, 64)), set(seen)
        for number in seen:
            for other in self.near[number]:
                if other not in known and len(seen) < size:
                    known.add(other)
                    seen.append(other)
        return seen


def _order(rank: int | None, room: float | None) -> tuple[float, float]:
    """Where a plan stands among others; one that does not fit has no rank, and stands last."""
    return (inf if rank is None else int(rank), -float(room or 0))
