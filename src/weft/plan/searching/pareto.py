"""Points none of which is better in everything than another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import le
from typing import TypeVar

T = TypeVar("T")
Point = Sequence[float]


def dominates(one: Point, other: Point) -> bool:
    """Whether a point is no worse than another in anything.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (0, 3)), dominates((1, 2), (1, 2))
    (True, False, True)
    """
    return all(map(le, one, other))


def best(points: Iterable[tuple[Point, T]]) -> list[tuple[Point, T]]:
    """The points that no other dominates, each once, in order.

    >>> best([((2, 1), "a"), ((1, 2), "b"), ((2, 2), "c"), ((1, 2), "d")])
    [((1, 2), 'b'), ((2, 1), 'a')]
    """
    found: list[tuple[Point, T]] = []
    for point, what in sorted(points, key=lambda pair: tuple(pair[0])):
        if not any(dominates(other, point) for other, _ in found):
            found.append((point, what))
    return found


def volume(points: Iterable[Point], worst: Point) -> float:
    """What a front leaves behind it: the volume of what is no better than some point of it.

    >>> volume([(1, 2), (2, 1)], (3, 3))
    3.0
    """
    inside = [tuple(point) for point in points if all(a < b for a, b in zip(point, worst))]
    return _volume(sorted(set(inside)), tuple(worst))


def _volume(points: Sequence[tuple[float, ...]], worst: tuple[float, ...]) -> float:
    """By slices along the first coordinate; points stand in order."""
    if not points:
        return 0.0
    if len(worst) == 1:
        return float(worst[0] - points[0][0])
    total = 0.0
    for number, point in enumerate(points):
        end = points[number + 1][0] if number + 1 < len(points) else worst[0]
        if end > point[0]:
            rest = best((other[1:], None) for other in points[: number + 1])
            total += (end - point[0]) * _volume([tuple(p) for p, _ in rest], worst[1:])
    return total
