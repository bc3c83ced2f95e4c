"""Scouting: the ends of the front and points between them, each by descent on a weighted sum."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from weft.plan.searching.ahead import Goal
from weft.plan.searching.descend import PATIENCE, descend
from weft.plan.searching.model import Model, Priced, Weights
from weft.plan.searching.seeds import Seeds

STARTS = 6
"""So many seeds are followed down."""

MANY = 200
"""With so many classes a pass decides much at once, and fewer seeds and passes are enough."""

HARDLY = 1e-9
"""So little that it decides between equals only."""

ROOM = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
RECEIVED = (0.1, 1.0, 10.0)
"""How much room, and bytes, weigh against time in the sums: as shares of the fastest plan."""


class Scout:
    """The plans that descent finds for one model."""

    def __init__(self, model: Model, goal: Goal, rng: Random) -> None:
        self.model, self.goal, self.rng = model, goal, rng
        self.problem = model.problem
        self.found: list[list[int]] = []
        """For every plan the choices of the classes, as they were found."""
        self.sums: list[Priced] = []
        """The weighted sums that were used."""
        self.bandwidth = min(self.problem.machine.bandwidth, 1e18)

    def tidy(self, weights: Weights) -> Priced:
        """A weighted sum that tells equals apart: by bytes, seconds and room, hardly weighed."""
        seconds = weights.seconds or HARDLY * self.bandwidth
        received = weights.received or HARDLY / self.bandwidth
        priced = self.model.priced(Weights(seconds, received))
        room = self.model.room()
        most = sum(map(max, room)) or 1
        total = sum(map(min, priced.alone)) + seconds / self.bandwidth
        return priced.plus(room, HARDLY * total / most)

    def look(self) -> None:
        """Find the ends of the front, and points between."""
        fastest = self.fastest()
        price = self.problem.price(self.model.found(fastest))
        seconds = self.problem.seconds(price) or 1.0
        weights = [Weights(0.0, 1.0)] if self.goal.received else []
        if self.goal.received and self.goal.time:
            total = price.received or 1
            weights += [Weights(1.0, share * seconds / total) for share in RECEIVED]
        for weight in weights:
            self._follow(self.tidy(weight), [fastest])
        if self.goal.memory:
            self.smaller()

    def fastest(self) -> list[int]:
        """The choices that take the least time, or move the fewest bytes if time is no matter."""
        weights = Weights() if self.goal.time else Weights(0.0, 1.0)
        priced = self.tidy(weights)
        start = self.model.chosen(self.problem.start)
        count = STARTS if len(start) < MANY else 2
        return self._follow(priced, [start, *Seeds(self.model).best(priced, count)])

    def smaller(self) -> None:
        """From the best plan of the first sum to ever smaller ones."""
        priced = self.sums[0]
        chosen = min(self.found, key=priced.total)
        peak = self.problem.peak(self.model.found(chosen)) or 1
        total = max(priced.total(chosen), peak / self.bandwidth)
        for share in ROOM:
            for _ in range(2):
                level = self._fullest(chosen)
                heavier = priced.plus(self.model.room(level), share * total / peak)
                chosen = self._follow(heavier, [chosen])

    def _fullest(self, chosen: list[int]) -> int:
        levels = [max(held, default=0) for held in self.problem.levels(self.model.found(chosen))]
        return levels.index(max(levels))

    def _follow(self, priced: Priced, starts: Iterable[list[int]]) -> list[int]:
        """Where the best of some starts leads."""
        self.sums.append(priced)
        ends = [descend(priced, start, self.rng, 1) for start in starts]
        best = min(ends, key=priced.total)
        best = descend(priced, best, self.rng, PATIENCE if len(best) < MANY else 2)
        self.found += [*ends, best]
        return best
