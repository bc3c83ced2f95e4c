"""Descent by forests: many decisions at once, exactly, while the others stand still.

Classes whose links form no circle are decided together by dynamic programming; which they are
changes from pass to pass, and no pass makes anything worse. Nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from random import Random

from weft.plan.searching.model import Priced

PATIENCE = 6
"""After so many passes that found nothing better, the descent is over."""

BETTER = 1 - 1e-12


def descend(
    priced: Priced,
    start: Sequence[int],
    rng: Random,
    patience: int = PATIENCE,
) -> list[int]:
    """Choices that no forest can better, from a start.

    >>> apart = [[0.0, 5.0], [5.0, 0.0]]
    >>> priced = Priced([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0]], {(0, 1): apart, (1, 2): apart})
    >>> descend(priced, [0, 0, 0], Random(0))
    [1, 1, 1]
    """
    chosen, best, waited = list(start), priced.total(start), 0
    while waited < patience:
        for forest in _forests(priced, rng):
            _decide(priced, forest, chosen)
        total = priced.total(chosen)
        waited = 0 if total < best * BETTER else waited + 1
        best = min(best, total)
    return chosen


def _forests(priced: Priced, rng: Random) -> Iterator[list[tuple[int, int]]]:
    """Forests that cover all classes, each as classes and their parents, parents first."""
    left = set(range(len(priced.alone)))
    while left:
        order = list(range(len(priced.alone)))
        rng.shuffle(order)
        order.sort(key=lambda number: number not in left)
        forest = _grow(priced, order)
        yield forest
        left -= {number for number, _ in forest}


def _grow(priced: Priced, order: Sequence[int]) -> list[tuple[int, int]]:
    """As many classes as go without a circle, in an order; each with its parent, or -1."""
    trees: dict[int, int] = {}

    def root(number: int) -> int:
        while trees[number] != number:
            trees[number] = trees[trees[number]]
            number = trees[number]
        return number

    inside: dict[int, list[int]] = {}
    for number in order:
        near = [other for other, _ in priced.near[number] if other in inside]
        roots = {root(other) for other in near}
        if len(roots) < len(near):
            continue
        trees[number], inside[number] = number, near
        for other in near:
            inside[other].append(number)
            trees[root(other)] = number
    return _rooted(inside)


def _rooted(near: dict[int, list[int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    for start in near:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, -1)]
        while stack:
            number, parent = stack.pop()
            found.append((number, parent))
            for other in near[number]:
                if other != parent:
                    seen.add(other)
                    stack.append((other, number))
    return found


def redecide(priced: Priced, numbers: Sequence[int], chosen: list[int]) -> None:
    """Take the decisions of some classes anew, as many at once as go, while others stand still."""
    _decide(priced, _grow(priced, numbers), chosen)


def _decide(priced: Priced, forest: Sequence[tuple[int, int]], chosen: list[int]) -> None:
    """The best choices of a forest while all others stand still."""
    inside = {number for number, _ in forest}
    costs: dict[int, list[float]] = {}
    for number in inside:
        cost = list(priced.alone[number])
        for other, rows in priced.near[number]:
            if other not in inside:
                cost = list(map(add, cost, rows[chosen[other]]))
        costs[number] = cost
    rows_of = {number: dict(priced.near[number]) for number, parent in forest if parent >= 0}
    for number, parent in reversed(forest):
        if parent >= 0:
            cost, rows = costs[number], rows_of[number][parent]
            message = [min(map(add, cost, row)) for row in rows]
            costs[parent] = list(map(add, costs[parent], message))
    for number, parent in forest:
        cost = costs[number]
        if parent >= 0:
            cost = list(map(add, cost, rows_of[number][parent][chosen[parent]]))
        chosen[number] = cost.index(min(cost))
