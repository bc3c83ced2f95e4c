"""One dimension of a picture: the cuts that are drawn, and their columns or rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class Scale(NamedTuple):
    """One dimension of a picture: the coordinates drawn, and the gaps that stand for others.

    `elided` holds the numbers of the steps drawn as a gap. `names` label the steps; without them
    the cuts carry their coordinates.
    """

    cuts: tuple[int, ...]
    elided: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    @classmethod
    def through(cls, cuts: Iterable[int], limit: int) -> Scale:
        """Return all cuts, or the outer ones with a gap between if there are more than `limit`.

        >>> Scale.through(range(0, 100, 10), limit=4)
        Scale(cuts=(0, 10, 20, 70, 80, 90), elided=frozenset({2}), names=())
        """
        every = sorted(set(cuts))
        head, tail = _outer(len(every) - 1, limit)
        if head + tail == len(every) - 1:
            return cls(tuple(every))
        return cls((*every[: head + 1], *every[-tail - 1 :]), frozenset({head}))

    @classmethod
    def of_blocks(cls, size: int, block: int, limit: int) -> Scale:
        """Return a dimension cut into blocks, of which only the outer ones are drawn if many.

        >>> Scale.of_blocks(1000, 10, limit=3)
        Scale(cuts=(0, 10, 20, 990, 1000), elided=frozenset({2}), names=())
        """
        count = -(-size // block) if block else 0
        head, tail = _outer(count, limit)
        first = [n * block for n in range(head + 1)]
        last = [(count - n) * block for n in range(tail, 0, -1)]
        if head + tail == count:
            return cls((*first[:-1], *last, size) if size else (0,))
        return cls((*first, *last, size), frozenset({head}))

    @property
    def steps(self) -> list[tuple[int, int]]:
        """The drawn steps, without gaps."""
        return [step for n, step in enumerate(pairwise(self.cuts)) if n not in self.elided]

    def steps_in(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the drawn steps that [start, stop) intersects."""
        steps = enumerate(pairwise(self.cuts))
        return [n for n, (a, b) in steps if n not in self.elided and start < b and a < stop]


def _outer(count: int, limit: int) -> tuple[int, int]:
    """Return how many of `count` steps are drawn at the two ends."""
    if count <= limit:
        return count, 0
    return (limit + 1) // 2, limit // 2


def limits(ndim: int) -> tuple[int, ...]:
    """Return how many steps of each dimension fit a picture of that rank.

    >>> limits(2), limits(5)
    ((8, 8), (1, 2, 3, 4, 3))
    """
    if ndim <= 2:
        return (8,) * ndim
    return (6, 4, 3) if ndim == 3 else (*(1,) * (ndim - 4), 2, 3, 4, 3)


class Ruler(NamedTuple):
    """A scale with the column, or the row, of each of its cuts."""

    scale: Scale
    at: tuple[int, ...]

    @classmethod
    def fit(cls, scale: Scale, least: Sequence[int], longest: int, gap: int) -> Ruler:
        """Return steps in proportion to their sizes: at most `longest`, each at least its least.

        >>> Ruler.fit(Scale((0, 4, 6)), least=[2, 2], longest=8, gap=4).at
        (0, 8, 12)
        """
        most = max((high - low for low, high in scale.steps), default=1)
        steps = (
            max(least[n], gap if n in scale.elided else round(longest * (high - low) / most))
            for n, (low, high) in enumerate(pairwise(scale.cuts))
        )
        return cls(scale, tuple(accumulate(steps, initial=0)))

    @property
    def ticks(self) -> list[tuple[int, str]]:
        """Return the names in the middle of the steps, or the coordinates at the cuts."""
        if self.scale.names:
            return [(at, name) for at, name in zip(self.middles, self.scale.names) if name]
        return list(zip(self.at, map(str, self.scale.cuts)))

    @property
    def middles(self) -> list[int]:
        """Return the middle of each step."""
        return [(a + b) // 2 for a, b in pairwise(self.at)]

    def span(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the places of a box; None if it lies in a gap."""
        inside = self.scale.steps_in(start, stop)
        return (self.at[inside[0]], self.at[inside[-1] + 1]) if inside else None
