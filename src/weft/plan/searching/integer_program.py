"""The minimum of a pairwise model as an integer program, by HiGHS. Needs the extra `search`.

This is the local-polytope formulation: a 0-1 variable for every option of every class, of which
one is 1, and for every two classes that interact a variable for each pair of options, whose sums
over either side are the variables of the other. Options with equal rows share their pair variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from threading import Thread
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.extra import needed
from weft.plan.searching.problem import Matrix, PairwiseModel, transposed


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
    optimize, sparse = needed("scipy.optimize", "search"), needed("scipy.sparse", "search")
    program = _IntegerProgram(model)
    costs, sides = program.costs, program.sides
    scale = max(max(map(abs, costs), default=0.0), 1e-300)
    places = (program.rows, program.columns)
    matrix = sparse.coo_array((program.values, places), shape=(len(sides), len(costs)))
    result = _interruptible(
        lambda: optimize.milp(
            [cost / scale for cost in costs],
            integrality=[int(number < program.pair_start) for number in range(len(costs))],
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix.tocsr(), sides, sides),
            options={"time_limit": min(seconds, 1e6), "mip_rel_gap": gap},
        )
    )
    if result.x is None:
        raise WeftError(f"HiGHS found no solution: {result.message}")
    choices = []
    for first, row in zip(program.firsts, model.unary):
        shares = list(result.x[first : first + len(row)])
        choices.append(shares.index(max(shares)))
    bound = result.mip_dual_bound * scale if result.mip_dual_bound is not None else -inf
    return Optimum(choices, model.total(choices), bound, result.status == 0)


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
    """The costs of the variables, and the constraints as a sparse matrix with equal sides."""

    def __init__(self, model: PairwiseModel) -> None:
        self.costs: list[float] = []
        self.firsts: list[int] = []
        """For each class the variable of its first option."""
        self.rows, self.columns = list[int](), list[int]()
        self.values, self.sides = list[float](), list[float]()
        for row in model.unary:
            self.firsts.append(len(self.costs))
            self._constrain([(range(len(self.costs), len(self.costs) + len(row)), 1.0)], 1.0)
            self.costs += row
        self.pair_start = len(self.costs)
        for (first, second), matrix in model.pairwise.items():
            self._add_pair(first, second, matrix)

    def _constrain(self, terms: Sequence[tuple[Sequence[int], float]], side: float) -> None:
        for variables, value in terms:
            self.rows += [len(self.sides)] * len(variables)
            self.columns += variables
            self.values += [value] * len(variables)
        self.sides.append(side)

    def _add_pair(self, first: int, second: int, matrix: Matrix) -> None:
        left, right = _equal_rows(matrix), _equal_rows(transposed(matrix))
        if len(left) == 1 or len(right) == 1:  # the cost depends on one side only
            owner, row = (second, matrix[0]) if len(left) == 1 else (first, transposed(matrix)[0])
            for n, cost in enumerate(row):
                self.costs[self.firsts[owner] + n] += cost
            return
        start, wide = len(self.costs), len(right)
        self.costs += [matrix[a[0]][b[0]] for a in left for b in right]
        for number, same in enumerate(left):
            pairs = range(start + number * wide, start + (number + 1) * wide)
            self._constrain([(pairs, 1.0), ([self.firsts[first] + n for n in same], -1.0)], 0.0)
        for number, same in enumerate(right):
            pairs = range(start + number, start + len(left) * wide, wide)
            self._constrain([(pairs, 1.0), ([self.firsts[second] + n for n in same], -1.0)], 0.0)


def _equal_rows(rows: Matrix) -> list[list[int]]:
    """Return the numbers of equal rows together."""
    groups: dict[tuple[float, ...], list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(number)
    return list(groups.values())
