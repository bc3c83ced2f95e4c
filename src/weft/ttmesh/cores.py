"""Cores of a chip: points of a grid, and ranges of them in the order shards are given out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

from weft.errors import WeftError
from weft.ttmesh.config import ShardOrientation
from weft.values import as_count, as_tuple, freeze


class Core(NamedTuple):
    """A core by its column `x` and its row `y`."""

    x: int
    y: int


@dataclass(frozen=True, slots=True, init=False)
class CoreRange:
    """A rectangle of cores, both corners in it.

    >>> CoreRange(Core(0, 0), Core(3, 1)).columns
    4
    """

    first: Core
    last: Core

    def __init__(self, first: Iterable[int], last: Iterable[int]) -> None:
        low, high = (Core(*(as_count(c, "core") for c in corner)) for corner in (first, last))
        for name, start, stop in zip("xy", low, high):
            if stop < start:
                raise WeftError(f"a range of cores ends at {name}={stop}, before {name}={start}")
        freeze(self, first=low, last=high)

    @property
    def columns(self) -> int:
        """How many cores wide it is."""
        return self.last.x - self.first.x + 1

    @property
    def rows(self) -> int:
        """How many cores high it is."""
        return self.last.y - self.first.y + 1

    def cores(self, orientation: ShardOrientation) -> list[Core]:
        """The cores, row by row or column by column."""
        xs = range(self.first.x, self.last.x + 1)
        ys = range(self.first.y, self.last.y + 1)
        if orientation is ShardOrientation.ROW_MAJOR:
            return [Core(x, y) for y, x in product(ys, xs)]
        return [Core(x, y) for x, y in product(xs, ys)]

    def __str__(self) -> str:
        return f"({self.first.x}, {self.first.y})-({self.last.x}, {self.last.y})"


@dataclass(frozen=True, slots=True, init=False)
class CoreGrid:
    """Ranges of cores that do not overlap, one after another.

    >>> grid = CoreGrid([CoreRange((0, 0), (1, 1)), CoreRange((4, 0), (4, 0))])
    >>> [tuple(core) for core in grid.cores(ShardOrientation.COL_MAJOR)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (4, 0)]
    """

    ranges: tuple[CoreRange, ...]

    def __init__(self, ranges: Iterable[CoreRange]) -> None:
        found = as_tuple(ranges, "ranges", CoreRange)
        if not found:
            raise WeftError("a grid of no cores holds nothing")
        for one, two in combinations(found, 2):
            if all(
                a <= d and c <= b for a, b, c, d in zip(one.first, one.last, two.first, two.last)
            ):
                raise WeftError(f"ranges of cores {one} and {two} overlap")
        freeze(self, ranges=found)

    @classmethod
    def of(cls, columns: int, rows: int) -> CoreGrid:
        """The rectangle of that size at the origin.

        >>> len(CoreGrid.of(columns=8, rows=7))
        56
        """
        return cls([CoreRange((0, 0), (columns - 1, rows - 1))])

    def cores(self, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR) -> tuple[Core, ...]:
        """All cores, range by range."""
        return tuple(core for each in self.ranges for core in each.cores(orientation))

    def __len__(self) -> int:
        return sum(each.rows * each.columns for each in self.ranges)

    def __str__(self) -> str:
        return " + ".join(map(str, self.ranges))
