"""What is ahead of a partial plan costs at least so much: bounds that leave out the hopeless.

Of the links between what is still to be decided as many are dropped as leave trees, each hanging
on one decision that has been taken; what the trees cost at least, for each choice of that one, is
found exactly, and nothing that is dropped can cost less than nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple

from weft.plan.searching.problem import Link, Problem

Matrix = list[list[float]]


class Goal(NamedTuple):
    """What is to be small."""

    time: bool = True
    received: bool = True
    memory: bool = True


ALL = Goal()


class Least(NamedTuple):
    """What must still come."""

    seconds: float
    received: float
    waiting: Sequence[int]
    """The bytes of inputs that are not decided yet: they add to all that was."""
    room: int
    """What some cell holds at some moment that is to come."""


class Ahead:
    """The bounds for a problem whose decisions are taken in an order."""

    def __init__(self, problem: Problem, goal: Goal, order: Sequence[int]) -> None:
        self.problem, self.goal = problem, goal
        self.rank = {decision: number for number, decision in enumerate(order)}
        self.order = order
        self.near: list[list[tuple[int, Link]]] = [[] for _ in problem.decisions]
        for link in problem.links:
            self.near[link.first].append((link.second, link))
            self.near[link.second].append((link.first, link))
        self.share = 1.0 - problem.machine.overlap
        self.inputs = {problem.kept[value.name].decision for value in problem.graph.inputs}
        self.smallest = {
            name: tuple(map(min, zip(*kept.sizes))) for name, kept in problem.kept.items()
        }
        self.room = self._rooms() if goal.memory else [0]

    def after(
        self, order: Sequence[int], state: Sequence[int]
    ) -> Callable[[tuple[int, ...]], Least]:
        """The bounds when so many decisions have been taken, and those of a state matter."""
        taken, roots = len(order), list(state)
        trees = self._trees(taken, roots)
        seconds = [self._least(root, trees, self._seconds) for root in roots]
        received = [self._least(root, trees, self._received) for root in roots]
        free = [d for d in self.order[taken:] if trees[d] < 0]
        base = sum(min(self._least(d, trees, self._seconds)) for d in free)
        bytes_ = sum(min(self._least(d, trees, self._received)) for d in free)
        waiting = self._waiting(taken)
        room = self._room_after(taken)

        def least(choices: tuple[int, ...]) -> Least:
            more = base + sum(table[choice] for table, choice in zip(seconds, choices))
            moved = bytes_ + sum(table[choice] for table, choice in zip(received, choices))
            return Least(more, moved, waiting, room)

        return least

    def _trees(self, taken: int, roots: Sequence[int]) -> dict[int, int]:
        """For every decision that is ahead the one on which it hangs; -1 if on none."""
        parents = dict.fromkeys(self.order[taken:], -1)
        seen = set(roots)
        queue = list(roots)
        for start in (None, *self.order[taken:]):
            if start is not None and start not in seen:
                seen.add(start)
                queue = [start]
            while queue:
                decision = queue.pop(0)
                for other, _ in self.near[decision]:
                    if other in parents and other not in seen:
                        seen.add(other)
                        parents[other] = decision
                        queue.append(other)
        return parents

    def _least(
        self,
        root: int,
        parents: dict[int, int],
        cost: Callable[[int, Link | None], Matrix],
    ) -> list[float]:
        """What a tree costs at least for every choice of its root; a root that is taken is free."""
        total = [0.0] * len(self.problem.decisions[root].choices)
        if root in parents:
            total = cost(root, None)[0]
        for other, link in self.near[root]:
            if parents.get(other) == root and self._first_link(root, other) is link:
                below = self._least(other, parents, cost)
                table = cost(root, link)
                total = [a + min(map(add, row, below)) for a, row in zip(total, table)]
        return total

    def _first_link(self, one: int, other: int) -> Link:
        return next(link for near, link in self.near[one] if near == other)

    def _seconds(self, decision: int, link: Link | None) -> Matrix:
        if not self.goal.time:
            return self._nothing(decision, link)
        if link is None:
            prices = self.problem.decisions[decision].prices
            return [[price.compute + self.share * price.communicate for price in prices]]
        return self._oriented(decision, link, [[self.share * m[0] for m in r] for r in link.table])

    def _received(self, decision: int, link: Link | None) -> Matrix:
        if not self.goal.received:
            return self._nothing(decision, link)
        if link is None:
            return [[price.received for price in self.problem.decisions[decision].prices]]
        return self._oriented(decision, link, [[float(m[1]) for m in row] for row in link.table])

    def _nothing(self, decision: int, link: Link | None) -> Matrix:
        count = len(self.problem.decisions[decision].choices)
        if link is None:
            return [[0.0] * count]
        other = link.second if link.first == decision else link.first
        return [[0.0] * len(self.problem.decisions[other].choices)] * count

    def _oriented(self, decision: int, link: Link, table: Matrix) -> Matrix:
        """The table with a row for every choice of a decision."""
        return table if link.first == decision else [list(column) for column in zip(*table)]

    # -- room

    def _waiting(self, taken: int) -> Sequence[int]:
        problem = self.problem
        waiting = [0] * problem.cells
        for value in problem.graph.inputs:
            if self.rank[problem.kept[value.name].decision] >= taken:
                waiting = list(map(add, waiting, self.smallest[value.name]))
        return waiting

    def _room_after(self, taken: int) -> int:
        """The most of what the moments that are to come hold at least."""
        return max(
            (
                room
                for room, moment in zip(self.room, self.problem.moments)
                if self.rank[moment.decision] >= taken
            ),
            default=0,
        )

    def _rooms(self) -> list[int]:
        """What every moment holds at least: every value as small as it can be."""
        problem = self.problem
        found = []
        for number, moment in enumerate(problem.moments, 1):
            held = [0] * problem.cells
            made = {one.name for one in moment.made}
            for name, (first, last) in problem.lives.items():
                if first <= number <= last and name not in made:
                    held = list(map(add, held, self.smallest[name]))
            least = [
                max(map(add, held, map(sum, zip(*(one.sizes[choice] for one in moment.made)))))
                for choice in range(len(problem.decisions[moment.decision].choices))
                if moment.made
            ]
            found.append(min(least, default=max(held, default=0)))
        return found
