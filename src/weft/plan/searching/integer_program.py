"""Integer programs, solved by HiGHS: a pairwise model, or a choice graph. Needs the extra `search`.

A pairwise model is formulated by the local polytope: a 0-1 variable for every option of every
class, of which one is 1, and for every two classes that interact a variable for each pair of
options, whose sums over either side are the variables of the other. Options with equal rows share
their pair variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Thread
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.extra import needed
from weft.plan.searching.choice_graph import ChoiceGraph
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.plan.searching.problem import Matrix, ObjectiveWeights, PairwiseModel, transposed


class Optimum(NamedTuple):
    """The best choices that were found, their cost, and a lower bound on the cost of any."""

    choices: list[int]
    total: float
    bound: float
    is_optimal: bool
    """Whether HiGHS proved them optimal, within the gap."""


def solve_integer_program(model: PairwiseModel, seconds: float = inf, gap: float = 0.0) -> Optimum:
    """Return the cheapest choices; at the time limit the best so far, with a bound.

    >>> apart = [[0.0, 5.0], [5.0, 0.0]]
    >>> solve_integer_program(PairwiseModel([[1.0, 0.0], [0.0, 0.5]], {(0, 1): apart})).choices
    [1, 1]
    """
    program = _PairwiseProgram(model)
    shares, bound, is_optimal = program.solve(seconds, gap)
    choices = []
    for first, row in zip(program.firsts, model.unary):
        own = shares[first : first + len(row)]
        choices.append(own.index(max(own)))
    return Optimum(choices, model.total(choices), bound, is_optimal)


class OptimalChoice(NamedTuple):
    """The steps of the best plan with their placements, and the shardings of its values."""

    steps: list[tuple[int, int]]
    specs: dict[str, int]
    is_optimal: bool


def solve_choices(
    choices: ChoiceGraph, weights: ObjectiveWeights, seconds: float = inf
) -> OptimalChoice:
    """Return the cheapest choice of steps, placements and shardings; capacity is ignored."""
    program = _ChoiceProgram(choices, weights)
    shares, _, is_optimal = program.solve(seconds)
    taken = [
        (number, max(range(count), key=lambda n: shares[first + n]))
        for number, (first, count) in enumerate(program.steps)
        if sum(shares[first : first + count]) > 0.5
    ]
    needed_values = {*choices.graph.outputs, *program.unread}
    steps = list[tuple[int, int]]()
    for number, option in reversed(taken):  # a step that costs nothing may run for nothing
        application = choices.steps[number].application
        if not application.results or needed_values & {*application.results}:
            needed_values |= {*application.operands}
            steps.insert(0, (number, option))
    specs = {}
    inputs = {value.name for value in choices.graph.inputs}
    for name, first in program.values.items():
        own = shares[first : first + choices.values[name].kept]
        if own and max(own) > 0.5 and name in needed_values | inputs:
            specs[name] = own.index(max(own))
    return OptimalChoice(steps, specs, is_optimal)


def _interruptible(call: Callable[[], Any]) -> Any:
    """Call a function in a thread, so that an interrupt is noticed while it runs.

    HiGHS does not return to Python before it is done. A call that is interrupted is abandoned: its
    thread ends by itself, or with the process.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = Thread(target=run, name="weft-highs", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if errors:
        raise errors[0]
    return results[0]


class _IntegerProgram:
    """The costs of variables between 0 and 1, and linear constraints as a sparse matrix."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.whole: list[int] = []
        """For every variable 1 if it must be 0 or 1."""
        self._rows, self._columns, self._factors = list[int](), list[int](), list[float]()
        self._low, self._high = list[float](), list[float]()

    def add(self, costs: Sequence[float], is_whole: bool = False) -> int:
        """Add variables with these costs, and return the first."""
        self.costs += costs
        self.whole += [int(is_whole)] * len(costs)
        return len(self.costs) - len(costs)

    def constrain(
        self, terms: Iterable[tuple[Iterable[int], float]], low: float, high: float
    ) -> None:
        """Bound a sum of variables with factors."""
        for variables, factor in terms:
            columns = list(variables)
            self._rows += [len(self._low)] * len(columns)
            self._columns += columns
            self._factors += [factor] * len(columns)
        self._low.append(low)
        self._high.append(high)

    def solve(self, seconds: float = inf, gap: float = 0.0) -> tuple[list[float], float, bool]:
        """Return the variables, a lower bound on the cost, and whether they are optimal."""
        optimize, sparse = needed("scipy.optimize", "search"), needed("scipy.sparse", "search")
        scale = max(max(map(abs, self.costs), default=0.0), 1e-300)
        shape = (len(self._low), len(self.costs))
        matrix = sparse.coo_array((self._factors, (self._rows, self._columns)), shape=shape)
        result = _interruptible(
            lambda: optimize.milp(
                [cost / scale for cost in self.costs],
                integrality=self.whole,
                bounds=optimize.Bounds(0, 1),
                constraints=optimize.LinearConstraint(matrix.tocsr(), self._low, self._high),
                options={"time_limit": min(seconds, 1e6), "mip_rel_gap": gap},
            )
        )
        if result.x is None:
            raise WeftError(f"HiGHS found no solution: {result.message}")
        bound = result.mip_dual_bound * scale if result.mip_dual_bound is not None else -inf
        return list(result.x), bound, result.status == 0


class _PairwiseProgram(_IntegerProgram):
    def __init__(self, model: PairwiseModel) -> None:
        super().__init__()
        self.firsts: list[int] = []
        """For each class the variable of its first option."""
        for row in model.unary:
            self.firsts.append(self.add(row, is_whole=True))
            self.constrain([(range(self.firsts[-1], len(self.costs)), 1.0)], 1.0, 1.0)
        for (first, second), matrix in model.pairwise.items():
            self._add_pair(first, second, matrix)

    def _add_pair(self, first: int, second: int, matrix: Matrix) -> None:
        left, right = _equal_rows(matrix), _equal_rows(transposed(matrix))
        if len(left) == 1 or len(right) == 1:  # the cost depends on one side only
            owner, row = (second, matrix[0]) if len(left) == 1 else (first, transposed(matrix)[0])
            for n, cost in enumerate(row):
                self.costs[self.firsts[owner] + n] += cost
            return
        wide = len(right)
        start = self.add([matrix[a[0]][b[0]] for a in left for b in right])
        for number, same in enumerate(left):
            pairs = range(start + number * wide, start + (number + 1) * wide)
            own = [self.firsts[first] + n for n in same]
            self.constrain([(pairs, 1.0), (own, -1.0)], 0.0, 0.0)
        for number, same in enumerate(right):
            pairs = range(start + number, start + len(left) * wide, wide)
            own = [self.firsts[second] + n for n in same]
            self.constrain([(pairs, 1.0), (own, -1.0)], 0.0, 0.0)


class _ChoiceProgram(_IntegerProgram):
    """A variable for every placement of every step, and for every sharding of every value.

    A step runs if one of its placements is 1; a value is there if one of its shardings is.
    Variables for pairs carry the costs to deliver operands and to reshard results.
    """

    def __init__(self, choices: ChoiceGraph, weights: ObjectiveWeights) -> None:
        super().__init__()
        self.choices, self.weights = choices, weights
        self.share = 1.0 - choices.machine.overlap
        self.steps: list[tuple[int, int]] = []
        """For every step the variable of its first placement, and how many there are."""
        for step in choices.steps:
            count = len(step.options)
            self.steps.append((self.add(list(map(self._option, step.costs)), True), count))
        self.values: dict[str, int] = {}
        for name, value in choices.values.items():
            rest = [0.0] * (len(value.specs) - value.kept)
            self.values[name] = self.add([*map(self._option, value.costs), *rest], True)
        read = {name for step in choices.steps for name in step.application.operands}
        made = {name for step in choices.steps for name in step.application.results}
        self.unread = made - read - {*choices.graph.outputs}
        for name in choices.values:
            self._constrain_value(name, name in made)
        for number, step in enumerate(choices.steps):
            if not step.application.results:
                self.constrain([(self._runs(number), 1.0)], 1.0, 1.0)
            for name in dict.fromkeys(step.application.operands):
                self._read(number, name)

    def _option(self, cost: OptionCost) -> float:
        seconds, received = self.weights
        return seconds * (cost.compute + self.share * cost.communicate) + received * cost.received

    def _moves(self, moves: Iterable[MoveCost]) -> float:
        seconds, received = self.weights
        return sum(seconds * self.share * m.seconds + received * m.received for m in moves)

    def _runs(self, number: int) -> range:
        first, count = self.steps[number]
        return range(first, first + count)

    def _specs(self, name: str, start: int = 0, stop: int | None = None) -> range:
        count = len(self.choices.values[name].specs) if stop is None else stop
        return range(self.values[name] + start, self.values[name] + count)

    def _constrain_value(self, name: str, is_made: bool) -> None:
        """Let one step at most make a value, in one sharding, for as many readers as it allows."""
        choices, value = self.choices, self.choices.values[name]
        if not is_made:
            self.constrain([(self._specs(name), 1.0)], 1.0, 1.0)
            return
        makers = [n for n, step in enumerate(choices.steps) if name in step.application.results]
        inliners = [n for n, step in enumerate(choices.steps) if name in step.inlined]
        runs = [(self._runs(n), 1.0) for n in makers]
        is_wanted = name in choices.graph.outputs or name in self.unread
        others = [(self._runs(n), 1.0) for n in inliners]
        self.constrain([*runs, *others], 1.0 if is_wanted else 0.0, 1.0)
        kept: list[list[int]] = [[] for _ in range(value.kept)]
        computed: list[list[int]] = [[] for _ in value.specs]
        for number in makers:
            step = choices.steps[number]
            result = next(one for one in step.results if one.value == name)
            for choice, run in enumerate(self._runs(number)):
                pairs = list[int]()
                if result.reshard is not None:
                    moves = [self._moves([m]) for m in result.reshard[choice][: value.kept]]
                    start = self.add(moves)
                    pairs += range(start, start + value.kept)
                    for option, variable in enumerate(pairs):
                        kept[option].append(variable)
                if result.computed:
                    pairs.append(self.add([0.0]))
                    computed[result.computed[choice]].append(pairs[-1])
                self.constrain([(pairs, 1.0), ([run], -1.0)], 0.0, 0.0)
        for option, variable in enumerate(self._specs(name)):
            pairs = kept[option] if option < value.kept else computed[option]
            self.constrain([(pairs, 1.0), ([variable], -1.0)], 0.0, 0.0)
        reads = [
            (self._runs(n), float(step.application.operands.count(name)))
            for n, step in enumerate(choices.steps)
            if name in step.application.operands
        ]
        if reads and value.kept < len(value.specs):
            most = sum(count for _, count in reads)
            alone = self._specs(name, value.kept)
            self.constrain([*reads, (alone, most)], -inf, 1.0 + most)
        if value.several and value.kept:
            self.constrain([*reads, (self._specs(name, 0, value.kept), -2.0)], 0.0, inf)

    def _read(self, number: int, name: str) -> None:
        """Let a step read a value that is there, at the cost to deliver it."""
        step, specs = self.choices.steps[number], self._specs(name)
        tables = [t for n, t in zip(step.application.operands, step.deliveries) if n == name]
        matrix = [
            [self._moves(t[option][choice] for t in tables) for choice in range(len(step.options))]
            for option in range(len(specs))
        ]
        left, right = _equal_rows(matrix), _equal_rows(transposed(matrix))
        wide, runs = len(right), self._runs(number)
        start = self.add([matrix[a[0]][b[0]] for a in left for b in right])
        for at, same in enumerate(left):
            pairs = range(start + at * wide, start + (at + 1) * wide)
            self.constrain([(pairs, 1.0), ([specs[n] for n in same], -1.0)], -inf, 0.0)
        for at, same in enumerate(right):
            pairs = range(start + at, start + len(left) * wide, wide)
            self.constrain([(pairs, 1.0), ([runs[n] for n in same], -1.0)], 0.0, 0.0)


def _equal_rows(rows: Matrix) -> list[list[int]]:
    """Return the numbers of equal rows together."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(number)
    return list(groups.values())
