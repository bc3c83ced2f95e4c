"""The exact Pareto front: dynamic programming over the program, pruned by lower bounds.

Decisions are taken in the order of the program. The state of the dynamic program is the option of
every decision that still interacts with a later one (variable elimination along a path
decomposition); for each state the partial plans are kept that no other of that state dominates.
As in branch and bound, a partial plan is pruned if a known plan dominates the lower bounds of all
its completions. An input occupies memory from the beginning though it is decided at its first use:
its bytes are added to all peaks before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, prod
from operator import add
from typing import NamedTuple

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh
from weft.plan.memory import sizes_of
from weft.plan.placed import Placed
from weft.plan.propagation.shardings import Meshes
from weft.plan.searching.pareto import dominates, pareto_front
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.plan.searching.problem import (
    ApplicationStep,
    Assignment,
    Matrix,
    PairCost,
    PairwiseModel,
    Problem,
    ResultOptions,
    matrix_sum,
)
from weft.values import Point

State = tuple[int, ...]
Memory = Callable[[State, int], Point | None]
"""The most bytes of the cells, by the state before a decision and the option that is taken."""

ROUNDING = 1 + 1e-12
"""Sums in another order differ by rounding."""


class TooWideError(Exception):
    """The graph is too wide: there are more partial plans than the limit."""


class Goal(NamedTuple):
    """The objectives to minimize."""

    time: bool = True
    received: bool = True
    memory: bool = True


ALL = Goal()


class LowerBound(NamedTuple):
    """A lower bound on what is added by the decisions that are not taken yet."""

    seconds: float
    received: float
    inputs: Sequence[int]
    """The bytes of the inputs that are not decided yet, by cell."""
    peak: int
    """The bytes that some cell holds at some later step."""


class LowerBounds:
    """Lower bounds for the completions of partial plans, in a given order of decisions.

    Of the interactions between decisions that are not taken yet, only those of a spanning forest
    are kept, rooted in the decisions of the state. The minimum of each tree, for each option of its
    root, follows by dynamic programming; what is dropped costs at least nothing.
    """

    def __init__(self, problem: Problem, goal: Goal, order: Sequence[int]) -> None:
        self.problem, self.order = problem, order
        self.rank = {decision: number for number, decision in enumerate(order)}
        share = 1.0 - problem.machine.overlap
        self.seconds = self.received = None
        if goal.time:
            self.seconds = _pairwise(
                problem,
                lambda cost: cost.compute + share * cost.communicate,
                lambda move: share * move.seconds,
            )
        if goal.received:
            self.received = _pairwise(
                problem, lambda cost: cost.received, lambda move: move.received
            )
        self.near: list[list[int]] = [[] for _ in problem.decisions]
        for first, second, _ in problem.pairs:
            self.near[first].append(second)
            self.near[second].append(first)
        self.smallest = {
            name: tuple(map(min, zip(*value.sizes))) for name, value in problem.values.items()
        }
        self.step_memory = self._step_memory() if goal.memory else []

    def after(self, taken: int, state: Sequence[int]) -> Callable[[State], LowerBound]:
        """Return the bounds by state, once so many decisions have been taken."""
        forest = self._forest(taken, state)
        sums = [self._tree_minima(model, forest, state) for model in (self.seconds, self.received)]
        (seconds, free_seconds), (received, free_received) = sums
        problem = self.problem
        inputs = [0] * problem.cells
        for value in problem.graph.inputs:
            if self.rank[problem.values[value.name].decision] >= taken:
                inputs = list(map(add, inputs, self.smallest[value.name]))
        steps = zip(self.step_memory, problem.steps)
        peak = max((n for n, step in steps if self.rank[step.decision] >= taken), default=0)

        def bound(state: State) -> LowerBound:
            return LowerBound(
                free_seconds + sum(table[choice] for table, choice in zip(seconds, state)),
                free_received + sum(table[choice] for table, choice in zip(received, state)),
                inputs,
                peak,
            )

        return bound

    def _forest(self, taken: int, roots: Sequence[int]) -> dict[int, int]:
        """Return the parent of every later decision, or -1, parents first: breadth-first search."""
        later = set(self.order[taken:])
        parents: dict[int, int] = {}
        queue = list(roots)
        for start in (None, *self.order[taken:]):
            if start is not None and start not in parents:
                parents[start] = -1
                queue = [start]
            for decision in queue:
                for other in self.near[decision]:
                    if other in later and other not in parents:
                        parents[other] = decision
                        queue.append(other)
            queue = []
        return parents

    def _tree_minima(
        self, model: PairwiseModel | None, forest: dict[int, int], roots: Sequence[int]
    ) -> tuple[list[list[float]], float]:
        """Return the minimum of the trees of each root by its option, and the sum of the others."""
        if model is None:
            return [], 0.0
        costs: dict[int, list[float]] = {d: [0] * len(model.unary[d]) for d in roots}
        costs |= {d: list(model.unary[d]) for d in forest}
        free: float = 0
        for decision, parent in reversed(forest.items()):
            if parent < 0:
                free += min(costs[decision])
                continue
            rows = next(rows for other, rows in model.neighbours[decision] if other == parent)
            message = [min(map(add, row, costs[decision])) for row in rows]
            costs[parent] = list(map(add, costs[parent], message))
        return [costs[root] for root in roots], free

    def _step_memory(self) -> list[int]:
        """Return for every step a lower bound on the bytes of its fullest cell."""
        problem, bounds = self.problem, []
        for number, step in enumerate(problem.steps, 1):
            held = [0] * problem.cells
            results = {result.name for result in step.results}
            for name, (first, last) in problem.lifetimes.items():
                if first <= number <= last and name not in results:
                    held = list(map(add, held, self.smallest[name]))
            options = [
                max(map(add, held, map(sum, zip(*(one.sizes[option] for one in step.results)))))
                for option in range(len(problem.decisions[step.decision].options))
                if step.results
            ]
            bounds.append(min(options, default=max(held, default=0)))
        return bounds


def _pairwise(
    problem: Problem, unary: Callable[[OptionCost], float], pair: Callable[[MoveCost], float]
) -> PairwiseModel:
    """Return one number for every option and every pair of options; integers stay exact."""
    matrices: dict[int, Matrix] = {}
    pairwise: dict[tuple[int, int], Matrix] = {}
    for first, second, table in problem.pairs:
        if id(table) not in matrices:
            matrices[id(table)] = [[pair(move) for move in row] for row in table]
        matrix, known = matrices[id(table)], pairwise.get((first, second))
        pairwise[first, second] = matrix if known is None else matrix_sum(known, matrix)
    return PairwiseModel([[unary(c) for c in d.costs] for d in problem.decisions], pairwise)


class _PartialPlan(NamedTuple):
    """The costs of a partial plan, and how it was reached."""

    costs: tuple[float, float, int]
    """Computation with communication that cannot overlap, all communication, and bytes."""
    peak: Point
    retired: Point
    """The bytes of outputs that no later decision concerns, by cell."""
    before: _PartialPlan | None
    choice: int


PartialPlans = dict[State, list[_PartialPlan]]


def _undominated(plans: list[_PartialPlan]) -> list[_PartialPlan]:
    points = (((*plan.costs, *plan.peak, *plan.retired), plan) for plan in plans)
    return [plan for _, plan in pareto_front(points)]


def exact_front(
    problem: Problem,
    goal: Goal = ALL,
    known: Sequence[Assignment] = (),
    limit: int = 200_000,
    tries: float = inf,
) -> list[list[int]]:
    """Return an assignment for every point of the exact front.

    Plans that are `known` prune what they dominate. A `TooWideError` is raised if more than `limit`
    partial plans would be kept at once, or more than `tries` were priced in all.
    """
    return _FrontierSearch(problem, goal, known, limit, tries).front()


class _FrontierSearch:
    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        known: Sequence[Assignment],
        limit: int,
        tries: float,
    ) -> None:
        self.problem, self.goal, self.limit, self.tries = problem, goal, limit, tries
        self.none = (0,) * (problem.cells if goal.memory else 0)
        self.taken: list[int] = []
        """The decisions that have been taken, first to last."""
        self.state: list[int] = []
        """Those that still interact with later ones, in the order of a state."""
        self.live: list[str] = []
        """The live values whose decision is in the state."""
        self.pending = [0] * len(problem.decisions)
        """For every decision how many of its pairs are not complete yet."""
        for pair in problem.pairs:
            self.pending[pair.first] += 1
            self.pending[pair.second] += 1
        self.bounds = LowerBounds(problem, goal, list(self._decisions()))
        if goal.memory and problem.machine.capacities(problem.mesh) is not None:
            # a plan that is too large for a small cell does not replace one that fits
            known = [one for one in known if not problem.excess(one)]
        self.known = [(self._point(one), list(one)) for one in known]
        start = _PartialPlan((0.0, 0.0, 0), self.none, self.none, None, -1)
        self.plans: PartialPlans = {(): [start]}

    # -- the order of decisions

    def _events(self) -> Iterator[str | ApplicationStep]:
        """Yield the inputs, each where it is first read, and the steps, in program order."""
        waiting = {value.name for value in self.problem.graph.inputs} - {*self.problem.unused}
        yield from self.problem.unused
        for step, application in zip(self.problem.steps, self.problem.graph.applications):
            for name in application.operands:
                if name in waiting:
                    waiting.discard(name)
                    yield name
            yield step
        yield from sorted(waiting)

    def _decisions(self) -> Iterator[int]:
        for event in self._events():
            if isinstance(event, str):
                yield self.problem.values[event].decision
            else:
                yield event.decision
                yield from (r.reshard.second for r in event.results if r.reshard is not None)

    def front(self) -> list[list[int]]:
        for event in self._events():
            if isinstance(event, str):
                self._take(self.problem.values[event].decision, (), lambda state, choice: None)
                self.live += [event] * (event not in self.problem.unused)
            else:
                self._take_step(event)
        points = [*self.known]
        for plans in self.plans.values():
            for plan in plans:
                assignment = self._assignment(plan)
                points.append((self._point(assignment), assignment))
        return [assignment for _, assignment in pareto_front(points)]

    def _take_step(self, step: ApplicationStep) -> None:
        self._take(step.decision, step.deliveries, self._kernel_memory(step))
        self.live += [result.name for result in step.results if result.reshard is None]
        moved = [result for result in step.results if result.reshard is not None]
        for number, result in enumerate(moved):
            assert result.reshard is not None
            memory = self._reshard_memory(result.reshard, moved[number:])
            self._take(result.reshard.second, (result.reshard,), memory)
            self.live.append(result.name)
        for name in step.ends:
            self.live.remove(name)
        self._eliminate()

    # -- one decision

    def _take(self, decision: int, pairs: Sequence[PairCost], memory: Memory) -> None:
        """Extend every partial plan by every option of a decision."""
        places = [self.state.index(pair.first) for pair in pairs]
        subject, options, costs, _ = self.problem.decisions[decision]
        share, goal = 1.0 - self.problem.machine.overlap, self.goal
        overlaps = self.problem.machine.overlap > 0
        is_input = isinstance(subject, str) and not pairs and goal.memory
        sizes = self.problem.values[str(subject)].sizes if is_input else None
        self.taken.append(decision)
        self.state.append(decision)
        for pair in pairs:
            self.pending[pair.first] -= 1
            self.pending[pair.second] -= 1
        bounds = self.bounds.after(len(self.taken), self.state)
        # options that leave their results in the same shardings lead to the same state
        firsts: dict[object, int] = {}
        same = [
            firsts.setdefault(option.results if isinstance(option, Placed) else option, number)
            for number, option in enumerate(options)
        ]
        extended: PartialPlans = {}
        count = 0
        for state, plans in self.plans.items():
            for choice, cost in enumerate(costs):
                moves = [pair.table[state[at]][choice] for pair, at in zip(pairs, places)]
                communicate = cost.communicate + sum(move.seconds for move in moves)
                received = cost.received + sum(move.received for move in moves)
                more = (
                    cost.compute + share * communicate if goal.time else 0.0,
                    communicate if goal.time and overlaps else 0.0,
                    received if goal.received else 0,
                )
                top = memory(state, choice) if goal.memory else None
                bound, kept = bounds((*state, choice)), []
                for plan in plans:
                    peak = plan.peak
                    if sizes is not None:
                        peak = tuple(map(add, peak, sizes[choice]))
                    if top is not None:
                        peak = tuple(map(max, peak, map(add, top, plan.retired)))
                    a, b, c = plan.costs
                    total = (a + more[0], b + more[1], c + more[2])
                    new = _PartialPlan(total, peak, plan.retired, plan, choice)
                    if not self._is_pruned(new, bound):
                        kept.append(new)
                if kept:
                    extended.setdefault((*state, same[choice]), []).extend(kept)
                    count += len(kept)
            self.tries -= len(plans) * len(costs)
            if count > self.limit or self.tries < 0:
                raise TooWideError
        if len(firsts) < len(options):
            extended = {state: _undominated(plans) for state, plans in extended.items()}
        self.plans = extended

    def _is_pruned(self, plan: _PartialPlan, bound: LowerBound) -> bool:
        """Whether no completion fits the machine, or a known plan dominates all of them."""
        cost, communicate, received = plan.costs
        held = list(map(add, plan.peak, bound.inputs))
        if self.goal.memory and any(n > room for n, room in zip(held, self.problem.rooms)):
            return True
        peak = max(held, default=0)
        point = (
            max((cost + bound.seconds) * ROUNDING, communicate),
            max(peak, bound.peak),
            received + bound.received,
        )
        return any(dominates(known, point) for known, _ in self.known)

    def _eliminate(self) -> None:
        """Drop decisions from the state that concern no later one; partial plans then compete."""
        problem = self.problem
        decision_of = {name: problem.values[name].decision for name in self.live}
        retired = {
            name: decision
            for name, decision in decision_of.items()
            if not self.pending[decision]
            and not self._is_moved_at_the_end(name)
            and problem.lifetimes[name][1] > len(problem.steps)
        }
        gone = set(retired.values())
        kept = {decision for decision in decision_of.values() if decision not in gone}
        stay = [at for at, d in enumerate(self.state) if self.pending[d] or d in kept]
        if len(stay) == len(self.state):
            return
        sizes = [(self.state.index(d), problem.values[name].sizes) for name, d in retired.items()]
        self.live = [name for name in self.live if decision_of[name] not in gone]
        merged: PartialPlans = {}
        for state, plans in self.plans.items():
            left = merged.setdefault(tuple(state[at] for at in stay), [])
            if sizes and self.goal.memory:
                total = tuple(map(sum, zip(*(size[state[at]] for at, size in sizes))))
                left += [
                    plan._replace(retired=tuple(map(add, plan.retired, total))) for plan in plans
                ]
            else:
                left += plans
        self.state = [self.state[at] for at in stay]
        self.plans = {state: _undominated(plans) for state, plans in merged.items()}

    def _is_moved_at_the_end(self, name: str) -> bool:
        """Whether a value is resharded or copied when it is returned."""
        outputs = self.problem.graph.outputs
        is_resharded = any(outputs[place] == name for place in self.problem.return_memory)
        return is_resharded or outputs.count(name) > 1

    # -- memory

    def _kernel_memory(self, step: ApplicationStep) -> Memory:
        """Return the memory while operands are delivered and the kernel runs."""
        live = self._live_memory()
        places = [self.state.index(pair.first) for pair in step.deliveries]

        def memory(state: State, choice: int) -> Point:
            held = live(state)
            most = held
            for pair, at in zip(step.deliveries, places):
                move = pair.table[state[at]][choice]
                most = tuple(map(max, most, map(add, held, move.peak)))
                held = tuple(map(add, held, move.added))
            for result in step.results:
                held = tuple(map(add, held, result.sizes[choice]))
            return tuple(map(max, most, held))

        return memory

    def _reshard_memory(self, pair: PairCost, unmoved: Sequence[ResultOptions]) -> Memory:
        """Return the memory while a result is resharded beside others that are yet to be."""
        live, at = self._live_memory(), self.state.index(pair.first)

        def memory(state: State, choice: int) -> Point:
            results = map(sum, zip(*(result.sizes[state[at]] for result in unmoved)))
            held = map(add, live(state), results)
            return tuple(map(add, held, pair.table[state[at]][choice].reshard_peak))

        return memory

    def _live_memory(self) -> Callable[[State], Point]:
        values = [self.problem.values[name] for name in self.live]
        places = [(self.state.index(value.decision), value.sizes) for value in values]

        def live(state: State) -> Point:
            held = self.none
            for at, sizes in places:
                held = tuple(map(add, held, sizes[state[at]]))
            return held

        return live

    # -- results

    def _point(self, assignment: Assignment) -> tuple[float, float, float]:
        cost = self.problem.cost(assignment)
        return (
            self.problem.seconds(cost) if self.goal.time else 0.0,
            self.problem.peak(assignment) if self.goal.memory else 0,
            cost.received if self.goal.received else 0,
        )

    def _assignment(self, plan: _PartialPlan) -> list[int]:
        assignment = [0] * len(self.problem.decisions)
        step: _PartialPlan | None = plan
        for decision in reversed(self.taken):
            assert step is not None
            assignment[decision] = step.choice
            step = step.before
        return assignment


def peak_lower_bound(graph: Graph, mesh: DeviceMesh) -> int:
    """Return a lower bound on the bytes of the fullest cell, for every plan of a graph on a mesh.

    Inputs are on the cells before anything runs, and outputs afterwards, however the graph is
    rewritten, fused and cut. Each is somewhere at least once; an input that is annotated with
    closed dimensions is sharded as annotated.

    >>> from weft import trace
    >>> peak_lower_bound(trace(lambda x: x[:4] * 1, (1024,)), DeviceMesh("m", (8,), ("x",)))
    512
    """
    inputs, meshes = [value.name for value in graph.inputs], Meshes(graph)

    def bound(names: Iterable[str]) -> int:
        total, held = 0, [0] * mesh.size
        for name in names:
            value, text = graph.values[name], graph.shardings.get(name)
            spec = meshes.parse(value, text) if text is not None and name in inputs else None
            width = itemsize(value.dtype)
            if spec is not None and not any(dim.is_open for dim in spec.dim_specs):
                sizes = sizes_of(spec, value.shape, width)
                held = list(map(add, held, sizes)) if len(sizes) == len(held) else held
            else:
                total += prod(value.shape) * width
        return max(*held, -(-(sum(held) + total) // mesh.size))

    return max(bound(inputs), bound(dict.fromkeys(graph.outputs)))
