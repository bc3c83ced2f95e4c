"""Repeated layers: decisions that look alike, with all that is around them, are taken as one."""

from __future__ import annotations

from collections.abc import Sequence

from weft.plan.searching.problem import Problem

ROUNDS = 4
"""How far around a decision is looked; what is nearer to the end of a graph stands alone."""


def share(problem: Problem, rounds: int = ROUNDS) -> list[int]:
    """For every decision the number of its class.

    >>> from weft import DeviceMesh, Machine, trace
    >>> from weft.plan.searching.build import pose
    >>> def layers(x, w):
    ...     for _ in range(20):
    ...         x = x @ w
    ...     return x
    >>> problem = pose(trace(layers, (8, 8), (8, 8)), DeviceMesh("m", (2,), ("x",)), Machine())
    >>> len(problem.decisions), max(share(problem)) + 1
    (23, 12)
    """
    links: dict[int, int] = {}
    around: list[list[tuple[int, int, int]]] = [[] for _ in problem.decisions]
    for first, second, table in problem.links:
        number = links.setdefault(id(table), len(links))
        around[first].append((0, number, second))
        around[second].append((1, number, first))
    colours = _numbered([decision.kind for decision in problem.decisions])
    for _ in range(rounds):
        seen = [
            (colour, tuple(sorted({(way, link, colours[other]) for way, link, other in near})))
            for colour, near in zip(colours, around)
        ]
        colours = _numbered(seen)
    return colours


def _numbered(kinds: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]
