"""Mixed-radix digits of coordinates.

A tile of a shard, a sub-axis of a mesh and a slot of a ciphertext are digits of the same
coordinates in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from weft.values import Point, points


class Digit(NamedTuple):
    """One digit of a coordinate: `x[dim] // divisor % radix`, worth `stride` in an address.

    >>> Digit(dim=0, divisor=2, radix=3, stride=8).of((5, 0))
    2
    """

    dim: int
    divisor: int
    radix: int
    stride: int

    def of(self, point: Sequence[int]) -> int:
        """Return the digit of a point."""
        return point[self.dim] // self.divisor % self.radix


def digits_of(radices: Iterable[Point], strides: Iterable[int]) -> tuple[Digit, ...]:
    """Return the digits of dimensions that are split, each with its stride.

    >>> [digit.divisor for digit in digits_of([(3, 2), (2, 2)], (8, 2, 4, 1))]
    [2, 1, 2, 1]
    """
    each = iter(strides)
    return tuple(
        Digit(dim, prod(split[place + 1 :]), radix, next(each))
        for dim, split in enumerate(radices)
        for place, radix in enumerate(split)
    )


def weigh(shape: Sequence[int], digits: Iterable[Digit]) -> list[int]:
    """Return the sum of digits times strides, at every point of a grid of a shape.

    >>> weigh((2, 3), [Digit(0, 1, 2, stride=10), Digit(1, 1, 3, stride=1)])
    [0, 1, 2, 10, 11, 12]
    """
    terms = [[0] * size for size in shape]
    for dim, divisor, radix, stride in digits:
        terms[dim] = [t + x // divisor % radix * stride for x, t in enumerate(terms[dim])]
    sums = [0]
    for column in terms:
        sums = [total + term for total in sums for term in column]
    return sums


def matching(shape: Sequence[int], fixed: Iterable[tuple[Digit, int]]) -> Iterator[Point]:
    """Yield the points of a grid of a shape whose digits have given values, in order.

    >>> list(matching((4, 2), [(Digit(dim=0, divisor=2, radix=2, stride=1), 1)]))
    [(2, 0), (2, 1), (3, 0), (3, 1)]
    """
    first, free, rests = [0] * len(shape), list[Digit](), list(shape)
    for (dim, divisor, radix, _), value in sorted(fixed, key=lambda each: -each[0].divisor):
        free.append(Digit(dim, divisor * radix, rests[dim] // (divisor * radix), 1))
        first[dim] += value * divisor
        rests[dim] = divisor
    free += [Digit(dim, 1, rest, 1) for dim, rest in enumerate(rests)]
    free = sorted((d for d in free if d.radix > 1), key=lambda d: (d.dim, -d.divisor))
    for values in points((0,) * len(free), tuple(digit.radix for digit in free)):
        point = first.copy()
        for digit, value in zip(free, values):
            point[digit.dim] += value * digit.divisor
        yield tuple(point)
