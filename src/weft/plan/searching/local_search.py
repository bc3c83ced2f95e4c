"""Local search: block coordinate descent on weighted sums of the objectives.

A block is a forest: classes of decisions that form no cycle are optimized together, exactly, by
dynamic programming (min-sum belief propagation on trees) while the others are fixed. The forests
change from pass to pass, and no pass makes the sum larger. Points of the Pareto front come from
sums with different weights (scalarization); the descent starts from propagation's plan and from
plans in which every axis of the mesh cuts one group of dimensions all over the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from math import comb, prod
from operator import add
from random import Random

from weft.layout import Axis
from weft.plan.placed import Placed
from weft.plan.searching.bounds import Goal
from weft.plan.searching.choices import Symmetry
from weft.plan.searching.problem import (
    DecisionClasses,
    ObjectiveWeights,
    PairwiseModel,
    fullest,
)

PATIENCE = 6
"""The descent ends after so many passes without an improvement."""

IMPROVEMENT = 1 - 1e-12
"""The factor by which a sum must become smaller to count as improved."""

STARTS = 6
"""The descent starts from at most so many of the best starting points."""

MANY = 200
"""With so many classes a pass decides much at once, and fewer starts and passes are enough."""

TIE_BREAK = 1e-9
"""A relative weight that decides only between equals."""

MEMORY_WEIGHTS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
BYTES_WEIGHTS = (0.1, 1.0, 10.0)
"""The weights of memory and of bytes against time, relative to the fastest plan."""

MAX_GROUPS = 6
"""The most groups of dimensions that starting points cut: those over which most is computed."""

MAX_STARTING_POINTS = 120


def block_descent(
    model: PairwiseModel, start: Sequence[int], rng: Random, patience: int = PATIENCE
) -> list[int]:
    """Return choices that no tried forest improves, from a start.

    >>> apart = [[0.0, 5.0], [5.0, 0.0]]
    >>> model = PairwiseModel([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], {(0, 1): apart, (1, 2): apart})
    >>> block_descent(model, [0, 0, 0], Random(0))
    [1, 1, 1]
    """
    choices, best, waited = list(start), model.total(start), 0
    while waited < patience:
        left = set(range(len(model.unary)))
        while left:
            order = list(range(len(model.unary)))
            rng.shuffle(order)
            order.sort(key=lambda number: number not in left)
            left -= optimize_forest(model, order, choices)
        total = model.total(choices)
        waited = 0 if total < best * IMPROVEMENT else waited + 1
        best = min(best, total)
    return choices


def optimize_forest(model: PairwiseModel, order: Sequence[int], choices: list[int]) -> set[int]:
    """Choose anew for a maximal forest of the classes in `order`, optimally while others are fixed.

    Return the classes of the forest.
    """
    forest = _rooted(_maximal_forest(model, order))
    inside = {number for number, _ in forest}
    costs: dict[int, list[float]] = {}
    for number in inside:
        cost = list(model.unary[number])
        for other, rows in model.neighbours[number]:
            if other not in inside:
                cost = list(map(add, cost, rows[choices[other]]))
        costs[number] = cost
    rows_to = {n: dict(model.neighbours[n])[parent] for n, parent in forest if parent >= 0}
    for number, parent in reversed(forest):
        if parent >= 0:
            message = [min(map(add, costs[number], row)) for row in rows_to[number]]
            costs[parent] = list(map(add, costs[parent], message))
    for number, parent in forest:
        cost = costs[number]
        if parent >= 0:
            cost = list(map(add, cost, rows_to[number][choices[parent]]))
        choices[number] = cost.index(min(cost))
    return inside


def _maximal_forest(model: PairwiseModel, order: Sequence[int]) -> dict[int, list[int]]:
    """Return the classes of an order that close no cycle, each with its neighbours."""
    trees: dict[int, int] = {}

    def root(number: int) -> int:
        while trees[number] != number:
            trees[number] = trees[trees[number]]
            number = trees[number]
        return number

    forest: dict[int, list[int]] = {}
    for number in order:
        near = [other for other, _ in model.neighbours[number] if other in forest]
        if len({root(other) for other in near}) < len(near):
            continue
        trees[number], forest[number] = number, near
        for other in near:
            forest[other].append(number)
            trees[root(other)] = number
    return forest


def _rooted(forest: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Return the classes of a forest with their parents, or -1, parents first."""
    pairs: list[tuple[int, int]] = []
    seen: set[int] = set()
    for start in forest:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, -1)]
        while stack:
            number, parent = stack.pop()
            pairs.append((number, parent))
            for other in forest[number]:
                if other != parent:
                    seen.add(other)
                    stack.append((other, number))
    return pairs


class LocalSearch:
    """Descent for one problem, with various weights."""

    def __init__(self, classes: DecisionClasses, goal: Goal, rng: Random) -> None:
        self.classes, self.goal, self.rng = classes, goal, rng
        self.problem = classes.problem
        self.solutions: list[list[int]] = []
        """The choices of the classes, in the order in which they were found."""
        self.models: list[PairwiseModel] = []
        """The weighted sums that were minimized."""
        self.bandwidth = min(self.problem.machine.bandwidth, 1e18)

    def model(self, weights: ObjectiveWeights) -> PairwiseModel:
        """Return a weighted sum that breaks ties by seconds, bytes and memory."""
        seconds = weights.seconds or TIE_BREAK * self.bandwidth
        received = weights.received or TIE_BREAK / self.bandwidth
        model = self.classes.weighted(ObjectiveWeights(seconds, received))
        memory = self.classes.memory()
        most = sum(map(max, memory)) or 1
        total = sum(map(min, model.unary)) + seconds / self.bandwidth
        return model.plus(memory, TIE_BREAK * total / most)

    def explore(self) -> None:
        """Find the ends of the Pareto front, and points between."""
        first = self.minimize()
        cost = self.problem.cost(self.classes.assignment(first))
        weights = [ObjectiveWeights(0.0, 1.0)] if self.goal.received else []
        if self.goal.received and self.goal.time:
            seconds, received = self.problem.seconds(cost) or 1.0, cost.received or 1
            weights += [ObjectiveWeights(1.0, n * seconds / received) for n in BYTES_WEIGHTS]
        for weight in weights:
            self._descend(self.model(weight), [first])
        if self.goal.memory:
            self.reduce_memory(capacities=False)
            if self.problem.machine.capacities(self.problem.mesh) is not None:
                self.reduce_memory()

    def minimize(self) -> list[int]:
        """Return the choices with the least time, or the fewest bytes if time does not matter."""
        model = self.model(ObjectiveWeights() if self.goal.time else ObjectiveWeights(0.0, 1.0))
        start = self.classes.choices(self.problem.start)
        count = STARTS if len(start) < MANY else 2
        totals = {tuple(one): model.total(one) for one in starting_points(self.classes)}
        best = sorted(totals, key=lambda one: totals[one])[:count]
        return self._descend(model, [start, *map(list, best)])

    def descend(self, start: Sequence[int]) -> None:
        """Go down from one assignment only, for the first of the objectives."""
        model = self.model(ObjectiveWeights() if self.goal.time else ObjectiveWeights(0.0, 1.0))
        self._descend(model, [self.classes.choices(start)])

    def reduce_memory(self, capacities: bool = True) -> None:
        """Go from the best plan of the first sum to ones that need less and less memory.

        With `capacities` the bytes of a cell count for more the smaller it is.
        """
        scales = self.problem.scales if capacities else None
        model = self.models[0]
        choices = min(self.solutions, key=model.total)
        peak = self.problem.peak(self.classes.assignment(choices)) or 1
        total = max(model.total(choices), peak / self.bandwidth)
        for weight in MEMORY_WEIGHTS:
            for _ in range(2):
                profile = self.problem.memory_profile(self.classes.assignment(choices))
                levels = [fullest(held, scales) for held in profile]
                memory = self.classes.memory(levels.index(max(levels)), scales)
                choices = self._descend(model.plus(memory, weight * total / peak), [choices])

    def _descend(self, model: PairwiseModel, starts: Iterable[list[int]]) -> list[int]:
        """Return the end of the descent from the best of some starts."""
        self.models.append(model)
        ends = [block_descent(model, start, self.rng, 1) for start in starts]
        best = min(ends, key=model.total)
        best = block_descent(model, best, self.rng, PATIENCE if len(best) < MANY else 2)
        self.solutions += [*ends, best]
        return best


def starting_points(classes: DecisionClasses) -> Iterator[list[int]]:
    """Yield the choices in which every axis cuts one of the large groups of dimensions.

    Dimensions that are the same one in the arrays of a graph (its batch, its heads, its features)
    form a group. Every decision follows as far as it can: it cuts what is wanted, and nothing else.
    """
    problem = classes.problem
    axes = [axis for axis in problem.mesh.axis_names if problem.mesh.axis_size(axis) > 1]
    symmetry = Symmetry(problem.graph, problem.mesh, problem.machine)

    def groups_cut(decision: int, number: int) -> tuple[int, ...]:
        """Return for each axis the group that an option cuts with it, or -1."""
        subject, options, *_ = problem.decisions[decision]
        option = options[number]
        by: Iterable[tuple[str | int, Sequence[Axis]]]
        if isinstance(option, Placed):
            by = option.placement.items()
        else:
            by = enumerate(dim.axes for dim in option.dim_specs)
        groups = {axis: symmetry.groups[subject, dim] for dim, cut in by for axis in cut}
        return tuple(groups.get(axis, -1) for axis in axes)

    cuts = [
        tuple(groups_cut(members[0], number) for number in range(count))
        for members, count in zip(classes.members, classes.sizes)
    ]
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(cuts))}

    groups, axis_classes = _large_groups(classes, symmetry), symmetry.classes_of(axes)
    while (
        groups
        and prod(comb(len(groups) + len(c) - 1, len(c)) for c in axis_classes) > MAX_STARTING_POINTS
    ):
        groups.pop()
    ways = [combinations_with_replacement(sorted(groups), len(same)) for same in axis_classes]
    for picked in product(*ways):
        group_of = {a: g for same, given in zip(axis_classes, picked) for a, g in zip(same, given)}
        wanted = [group_of[axis] for axis in axes]
        best = []
        for kind in kinds:
            fits = [sum((a == b) - (a != b and a >= 0) for a, b in zip(c, wanted)) for c in kind]
            best.append(fits.index(max(fits)))
        yield [best[kinds[cut]] for cut in cuts]


def _large_groups(classes: DecisionClasses, symmetry: Symmetry) -> list[int]:
    """Return the groups of dimensions over which most is computed, the largest first."""
    problem, weights = classes.problem, dict[int, float]()
    for subject, _, costs, _ in problem.decisions:
        if isinstance(subject, int):
            signature = problem.graph.signatures[subject]
            cost = max(one.compute for one in costs) or float(prod(signature.sizes.values()))
            for name, size in signature.sizes.items():
                if name not in signature.fixed and size > 1:
                    group = symmetry.groups[subject, name]
                    weights[group] = weights.get(group, 0.0) + cost
    return sorted(weights, key=lambda group: -weights[group])[:MAX_GROUPS]
