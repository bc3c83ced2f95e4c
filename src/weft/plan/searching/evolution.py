"""Evolutionary search for the Pareto front: NSGA-II, by pymoo. Needs the extra `search`.

Children combine two parents by patches: neighbouring decisions are taken from the other parent,
and then optimized again by one of the weighted sums of the local search, so that the patch fits
its surroundings. Populations are priced together with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Any

from weft.extra import needed
from weft.plan.searching.bounds import Goal
from weft.plan.searching.local_search import optimize_forest
from weft.plan.searching.problem import (
    ApplicationStep,
    DecisionClasses,
    PairCost,
    PairwiseModel,
    Table,
)

POPULATION = 64


def evolutionary_search(
    classes: DecisionClasses,
    goal: Goal,
    first: Sequence[Sequence[int]],
    models: Sequence[PairwiseModel],
    budget: int,
    rng: Random,
) -> Iterator[list[list[int]]]:
    """Yield the best choices after each generation, until `budget` plans have been priced."""
    population = _Population(classes, goal, models, rng)
    yield population.start(first)
    while population.evaluate.count + POPULATION <= budget:
        yield population.breed()


class _Population:
    def __init__(
        self, classes: DecisionClasses, goal: Goal, models: Sequence[PairwiseModel], rng: Random
    ) -> None:
        self.classes, self.models, self.rng = classes, list(models), rng
        self.evaluate = BatchEvaluator(classes)
        self.np = self.evaluate.np
        wanted = (goal.time, goal.memory, goal.received)
        self.columns = [number for number, is_wanted in enumerate(wanted) if is_wanted]
        self.free = [number for number, count in enumerate(classes.sizes) if count > 1]

    def start(self, first: Sequence[Sequence[int]]) -> list[list[int]]:
        """Price the first generation: the given plans and children of them."""
        plans = [list(plan) for plan in dict.fromkeys(map(tuple, first))]
        while len(plans) < POPULATION:
            plans.append(self._child(self.rng.choice(plans), self.rng.choice(plans)))
        sizes = self.classes.sizes
        self.problem = needed("pymoo.core.problem", "search").Problem(
            n_var=len(sizes),
            n_obj=len(self.columns),
            n_ieq_constr=1,
            xl=self.np.zeros(len(sizes)),
            xu=self.np.array(sizes) - 1,
        )
        self.algorithm = needed("pymoo.algorithms.moo.nsga2", "search").NSGA2(
            pop_size=POPULATION, sampling=self.np.array(plans)
        )
        seed = self.rng.randrange(1 << 31)
        self.algorithm.setup(self.problem, termination=("n_gen", 1 << 30), seed=seed, verbose=False)
        self.algorithm.ask()
        return self._select(plans)

    def breed(self) -> list[list[int]]:
        """Price one more generation."""
        population = self.algorithm.pop
        plans = population.get("X").astype(int).tolist()
        # plans that do not fit the machine have no rank, and come last
        order = [
            (inf if rank is None else int(rank), -float(crowding or 0))
            for rank, crowding in zip(population.get("rank"), population.get("crowding"))
        ]

        def parent() -> list[int]:
            one, two = self.rng.randrange(len(plans)), self.rng.randrange(len(plans))
            return list(plans[min(one, two, key=lambda n: order[n])])

        return self._select([self._child(parent(), parent()) for _ in range(POPULATION)])

    def _select(self, plans: list[list[int]]) -> list[list[int]]:
        """Price plans, let NSGA-II choose the survivors, and return the best of them."""
        costs = self.evaluate(plans)
        excess = costs[:, 3:]
        new = needed("pymoo.core.population", "search").Population.new("X", self.np.array(plans))
        static = needed("pymoo.problems.static", "search").StaticProblem(
            self.problem, F=costs[:, self.columns], G=excess
        )
        needed("pymoo.core.evaluator", "search").Evaluator().eval(static, new)
        self.algorithm.tell(infills=new)
        best: Any = self.algorithm.opt
        return [list(map(int, plan)) for plan in best.get("X")]

    def _child(self, one: Sequence[int], two: Sequence[int]) -> list[int]:
        """Return a plan with a patch of another, mutated and optimized around it at random."""
        child = list(one)
        if not self.free:
            return child
        patch = self._patch(self.rng.choice(self.free))
        for number in patch:
            child[number] = two[number]
        if self.rng.random() < 0.5:
            number = self.rng.choice(self.free)
            child[number] = self.rng.randrange(self.classes.sizes[number])
            patch = [other for other in self._patch(number) if other != number]
        if self.rng.random() < 0.8:
            self.rng.shuffle(patch)
            optimize_forest(self.rng.choice(self.models), patch, child)
        return child

    def _patch(self, start: int) -> list[int]:
        """Return classes near a class, in breadth-first order."""
        patch = [start]
        size, known = self.rng.choice((2, 4, 8, 16, 32, 64)), {start}
        for number in patch:
            for other, _ in self.models[0].neighbours[number]:
                if other not in known and len(patch) < size:
                    known.add(other)
                    patch.append(other)
        return patch


class BatchEvaluator:
    """Seconds, peak and bytes of many plans at once, each given as the choices of classes."""

    def __init__(self, classes: DecisionClasses) -> None:
        self.classes, self.problem = classes, classes.problem
        self.np = needed("numpy", "search")
        self.count = 0
        """How many plans have been priced."""
        self._tables: dict[int, tuple[Any, ...]] = {}
        self._unary = [
            len(members) * self.np.array(self.problem.decisions[members[0]].costs, dtype=float)
            for members in classes.members
        ]
        self._kinds: dict[tuple[int, int], tuple[int, Any]] = {}
        """Values by class and sizes: the number of their kind, and the sizes as an array."""
        self._steps, self._step_of = self._distinct_steps()
        self._live = self._live_counts()

    def __call__(self, plans: Any) -> Any:
        """Return a row of seconds, peak, bytes and excess memory for every row of choices."""
        np = self.np
        plans = np.asarray(plans, dtype=int)
        self.count += len(plans)
        total = np.zeros((len(plans), 3))
        for number, costs in enumerate(self._unary):
            total += costs[plans[:, number]]
        for (first, second), tables in self.classes.tables.items():
            for table, count in tables:
                moved, *_ = self._arrays(table)
                total[:, 1:] += count * moved[plans[:, first], plans[:, second]]
        compute, communicate, received = total.T
        hidden = np.minimum(self.problem.machine.overlap * communicate, compute)
        seconds = compute + communicate - hidden
        most, excess = self.peak(plans)
        return np.stack([seconds, most, received, excess], axis=1)

    def peak(self, plans: Any) -> tuple[Any, Any]:
        """Return the most bytes of any cell and beyond the capacity of one, for every plan."""
        np = self.np
        most, excess = np.zeros(len(plans)), np.full(len(plans), -np.inf)
        for cell in range(self.problem.cells):
            peaks = np.zeros(len(plans))
            sizes = np.stack(
                [table[plans[:, number], cell] for (number, _), (_, table) in self._kinds.items()],
                axis=1,
            )
            live = sizes @ self._live
            held = live
            if self._step_of:
                above = np.stack([self._above(step, plans, cell) for step in self._steps], axis=1)
                held = live[:, 1:-1] + above[:, self._step_of]
            peaks = np.maximum(peaks, np.maximum(held.max(1), live.max(1)))
            peaks = np.maximum(peaks, self._return_peak(plans, cell, live[:, -1]))
            most = np.maximum(most, peaks)
            excess = np.maximum(excess, peaks - min(self.problem.rooms[cell], 1e300))
        return most, excess

    def _arrays(self, table: Table) -> tuple[Any, ...]:
        """Return a table as arrays: seconds and bytes, peak, added, and peak of the reshard."""
        if id(table) not in self._tables:
            np = self.np
            moved = np.array([[(m.seconds, m.received) for m in row] for row in table], float)
            memory = [
                np.array([[getattr(m, field) for m in row] for row in table], float)
                for field in ("peak", "added", "reshard_peak")
            ]
            self._tables[id(table)] = (moved, *memory)
        return self._tables[id(table)]

    def _distinct_steps(self) -> tuple[list[ApplicationStep], list[int]]:
        """Return the steps that differ, and which of them each step is."""
        class_of = self.classes.class_of

        def key(pair: PairCost | None) -> object:
            return pair and (class_of[pair.first], class_of[pair.second], id(pair.table))

        numbers: dict[object, int] = {}
        steps: list[ApplicationStep] = []
        step_of: list[int] = []
        for step in self.problem.steps:
            kind = (
                class_of[step.decision],
                *(key(pair) for pair in step.deliveries),
                *((key(result.reshard), id(result.sizes)) for result in step.results),
            )
            number = numbers.setdefault(kind, len(numbers))
            steps += [step] * (number == len(steps))
            step_of.append(number)
        return steps, step_of

    def _live_counts(self) -> Any:
        """Return for every kind of value how many are live at every level; results one later."""
        np, problem = self.np, self.problem
        inputs = {value.name for value in problem.graph.inputs}
        rows = []
        for name, (first, last) in problem.lifetimes.items():
            value = problem.values[name]
            key = (self.classes.class_of[value.decision], id(value.sizes))
            if key not in self._kinds:
                self._kinds[key] = len(self._kinds), np.array(value.sizes, float)
            rows.append((self._kinds[key][0], first + (name not in inputs), last + 1))
        live = np.zeros((len(self._kinds), len(problem.steps) + 2))
        for kind, first, end in rows:
            live[kind, first:end] += 1
        return live

    def _above(self, step: ApplicationStep, plans: Any, cell: int) -> Any:
        """Return the most bytes of a step beyond the values that are live before it."""
        np, class_of = self.np, self.classes.class_of
        held = np.zeros(len(plans))
        most = np.zeros(len(plans))
        own = plans[:, class_of[step.decision]]
        for pair in step.deliveries:
            _, peak, added, _ = self._arrays(pair.table)
            at = plans[:, class_of[pair.first]], own, cell
            most = np.maximum(most, held + peak[at])
            held = held + added[at]
        sizes = [np.array(result.sizes, float)[own, cell] for result in step.results]
        most = np.maximum(most, held + sum(sizes))
        held = sum(sizes)
        for result, size in zip(step.results, sizes):
            if result.reshard is not None:
                kept = plans[:, class_of[result.reshard.second]]
                reshard_peak = self._arrays(result.reshard.table)[3]
                most = np.maximum(most, held + reshard_peak[own, kept, cell])
                held = (
                    held
                    - size
                    + np.array(self.problem.values[result.name].sizes, float)[kept, cell]
                )
        return most

    def _return_peak(self, plans: Any, cell: int, live: Any) -> Any:
        np, outputs = self.np, self.problem.graph.outputs
        most = live
        for place, name in enumerate(outputs):
            value, is_last = self.problem.values[name], name not in outputs[place + 1 :]
            choices = plans[:, self.classes.class_of[value.decision]]
            size = np.array(value.sizes, float)[choices, cell]
            if place in self.problem.return_memory:
                memory = np.array(self.problem.return_memory[place], float)[choices, :, cell]
                most = np.maximum(most, live + memory[:, 0 if is_last else 1])
                live = live - is_last * size + memory[:, 2]
            elif not is_last:
                most = np.maximum(most, live + size)
                live = live + size
        return np.maximum(most, live)
