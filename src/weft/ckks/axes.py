"""Diagonals written in the mixed radix of slot strides, and each axis cut into blocks of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

from weft.ckks.packing import Integers

LONG = 64
"""How many sizes of a block are tried where there are more than the square of it."""


class Option(NamedTuple):
    """A way to part the steps along an axis: `size` to a block, zero at place `zero` of its block.

    A step is its place in its block, counted from zero's place, and the rest, whole blocks.
    """

    size: int
    zero: int
    babies: int
    """How many different places there are."""
    giants: int
    """How many different blocks there are."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One digit of all diagonals: `steps[n] * stride` is what it adds to diagonal n."""

    stride: int
    steps: Integers

    @property
    def options(self) -> list[Option]:
        """The ways to part the steps that are not worse than others in both counts.

        >>> [tuple(option) for option in Axis(1, np.arange(-2, 3)).options]
        [(1, 0, 1, 5), (2, 0, 2, 3), (3, 2, 3, 2), (5, 2, 5, 1)]
        """
        values = np.unique(self.steps)
        low, high = int(values[0]), int(values[-1])
        found = [Option(1, 0, 1, len(values))]
        for size in _sizes(high - low + 1):
            zero = -low % size
            block, place = np.divmod(values + zero, size)
            found.append(Option(size, zero, _different(place), _different(block - block[0])))
        if found[-1].giants > 1 or not low <= 0 <= high:
            # Zero is outside: one block that holds it too.
            reach = max(high, 0) - min(low, 0) + 1
            found.append(Option(reach, max(0, -low), len(values), 1))
        return found

    def babies(self, option: Option) -> Integers:
        """The part of each diagonal along this axis that is a place in a block."""
        return ((self.steps + option.zero) % option.size - option.zero) * self.stride


def _sizes(length: int) -> list[int]:
    """The block sizes that give different numbers of blocks; of very many, some."""
    counts: Iterable[int] = range(1, length + 1)
    if length > LONG**2:
        counts = sorted({round(length ** (place / LONG)) for place in range(LONG + 1)})
    return sorted({-(-length // count) for count in counts} - {1})


def _different(values: Integers) -> int:
    """How many different ones there are among values that are not negative."""
    return int(np.count_nonzero(np.bincount(values)))


def decode(diagonals: Integers, strides: Iterable[int], period: int) -> list[Axis]:
    """The diagonals in the mixed radix of the strides, the longest first; single digits left out.

    Each digit is the nearest one, so that steps backwards are small numbers below zero.

    >>> [(axis.stride, axis.steps.tolist()) for axis in decode(np.array([0, 7, 9]), [8, 1], 64)]
    [(8, [0, 1, 1]), (1, [0, -1, 1])]
    """
    axes, rest = list[Axis](), _around(diagonals, period, period)
    for stride in sorted({*strides, 1}, reverse=True):
        steps = np.floor_divide(rest + stride // 2, stride)
        rest = rest - steps * stride
        if period % stride == 0 and not axes:
            steps = _around(steps, period // stride, period // stride)
        axis = _plain(Axis(stride, steps))
        if axis is not None:
            axes.append(axis)
    return axes


def _around(values: Integers, count: int, period: int) -> Integers:
    """Values of a circle, cut open where the longest gap between them is."""
    values = values % period
    known = np.unique(values)
    gaps = np.diff(known, append=known[0] + count)[::-1]
    start = known[-int(gaps.argmax())]
    opened = (values - start) % period + start
    # Zero should be among the values or near: turn the whole by one circle where that helps.
    turns = int(opened.min() > period // 2 or opened.max() >= period)
    found: Integers = opened - turns * period
    return found


def _plain(axis: Axis) -> Axis | None:
    """The axis in its largest step; nothing if it does not move."""
    largest = int(reduce(np.gcd, np.unique(axis.steps), 0))
    return Axis(axis.stride * largest, axis.steps // largest) if largest else None


def combinations(
    axes: Sequence[Axis], inputs: float, outputs: float, most: int
) -> list[tuple[Option, ...]]:
    """The options of all axes that promise the fewest rotations, the best first.

    What is promised is the product of the counts; the babies of every input and the giants of
    every output are counted.
    """
    if not axes:
        return [()]
    options = [axis.options for axis in axes]
    babies = giants = np.ones(())
    for each in options:
        babies = babies[..., None] * np.array([option.babies for option in each])
        giants = giants[..., None] * np.array([option.giants for option in each])
    promised = (inputs * (babies - 1) + outputs * (giants - 1)).ravel()
    # Of equal ones the one with fewer babies, which are all held at once.
    order = np.lexsort((babies.ravel(), promised))[:most]
    chosen = np.array(np.unravel_index(order, babies.shape)).T
    return [tuple(each[n] for each, n in zip(options, row)) for row in chosen]
