"""The optimum of a weighted sum as an integer programme, by HiGHS: how far the others are from it.

Every class takes one of its choices; for every two classes that are linked a share of each pair of
choices, which adds up to the choices of both. Needs the extra `search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from threading import Thread
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.extra import needed
from weft.plan.searching.model import Matrix, Priced


class Optimum(NamedTuple):
    """The best choices that were found, what they cost, and what nothing can cost less than."""

    chosen: list[int]
    total: float
    bound: float
    is_optimal: bool
    """Whether HiGHS proved them to be the best, within the gap."""


def solve(priced: Priced, seconds: float = inf, gap: float = 0.0) -> Optimum:
    """The cheapest choices; with too little time the best so far, and a bound.

    >>> apart = [[0.0, 5.0], [5.0, 0.0]]
    >>> solve(Priced([[1.0, 0.0], [0.0, 0.5]], {(0, 1): apart})).chosen
    [1, 1]
    """
    optimize, sparse = needed("scipy.optimize", "search"), needed("scipy.sparse", "search")
    layout = _Layout(priced)
    rows, columns, values, sides = layout.constraints()
    scale = max(max(map(abs, layout.costs), default=0.0), 1e-300)
    matrix = sparse.coo_array((values, (rows, columns)), shape=(len(sides), len(layout.costs)))
    found = _interruptible(
        lambda: optimize.milp(
            [cost / scale for cost in layout.costs],
            integrality=[int(is_choice) for is_choice in layout.is_choice],
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix.tocsr(), sides, sides),
            options={"time_limit": min(seconds, 1e6), "mip_rel_gap": gap},
        )
    )
    if found.x is None:
        raise WeftError(f"HiGHS found nothing: {found.message}")
    chosen = []
    for first, row in zip(layout.firsts, priced.alone):
        shares = list(found.x[first : first + len(row)])
        chosen.append(shares.index(max(shares)))
    bound = found.mip_dual_bound * scale if found.mip_dual_bound is not None else -inf
    return Optimum(chosen, priced.total(chosen), bound, found.status == 0)


def _interruptible(call: Callable[[], Any]) -> Any:
    """Call a function in a thread, so that an interrupt is noticed while it runs.

    HiGHS does not return to Python before it is done. A call that is interrupted is abandoned: its
    thread ends by itself, or with the process.
    """
    answers: list[Any] = []
    errors: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # raised again where the answer is waited for
            errors.append(error)

    thread = Thread(target=answer, name="weft-highs", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
    if errors:
        raise errors[0]
    return answers[0]


class _Layout:
    """Where every unknown stands: the choices of the classes, then the shares of pairs."""

    def __init__(self, priced: Priced) -> None:
        self.priced = priced
        self.costs: list[float] = []
        self.firsts: list[int] = []
        for row in priced.alone:
            self.firsts.append(len(self.costs))
            self.costs += row
        self.is_choice = [True] * len(self.costs)
        self.pairs: list[tuple[int, int, int, list[list[int]], list[list[int]]]] = []
        for (first, second), matrix in priced.pairs.items():
            one, two = _equal(matrix), _equal([list(column) for column in zip(*matrix)])
            if len(one) == 1 or len(two) == 1:
                self._alone(first, second, matrix, len(one) == 1)
                continue
            self.pairs.append((first, second, len(self.costs), one, two))
            self.costs += [matrix[a[0]][b[0]] for a in one for b in two]
        self.is_choice += [False] * (len(self.costs) - len(self.is_choice))

    def _alone(self, first: int, second: int, matrix: Matrix, is_second: bool) -> None:
        """A pair of which one side does not matter."""
        row = matrix[0] if is_second else [line[0] for line in matrix]
        for n, cost in enumerate(row):
            self.costs[self.firsts[second if is_second else first] + n] += cost

    def constraints(self) -> tuple[list[int], list[int], list[float], list[float]]:
        """Rows, columns and values of a matrix, and what each row must come to."""
        rows, columns, values = list[int](), list[int](), list[float]()
        sides: list[float] = []

        def put(places: Sequence[int], value: float) -> None:
            rows.extend([len(sides)] * len(places))
            columns.extend(places)
            values.extend([value] * len(places))

        for first, row in zip(self.firsts, self.priced.alone):
            put(range(first, first + len(row)), 1.0)
            sides.append(1.0)
        for one, two, start, left, right in self.pairs:
            wide = len(right)
            for number, same in enumerate(left):
                put(range(start + number * wide, start + (number + 1) * wide), 1.0)
                put([self.firsts[one] + n for n in same], -1.0)
                sides.append(0.0)
            for number, same in enumerate(right):
                put(range(start + number, start + len(left) * wide, wide), 1.0)
                put([self.firsts[two] + n for n in same], -1.0)
                sides.append(0.0)
        return rows, columns, values, sides


def _equal(rows: Matrix) -> list[list[int]]:
    """The numbers of the rows that are equal, together."""
    found: dict[tuple[float, ...], list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(tuple(row), []).append(number)
    return list(found.values())
