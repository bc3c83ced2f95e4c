"""`Model`: a problem in which some decisions are taken as one, priced by a weighted sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from weft.plan.searching.problem import Found, Problem, Table

Matrix = list[list[float]]


class Weights(NamedTuple):
    """What a second, and a byte received, count for in a sum."""

    seconds: float = 1.0
    received: float = 0.0


class Model:
    """The classes of decisions, and what lies between them."""

    def __init__(self, problem: Problem, classes: Sequence[int]) -> None:
        self.problem, self.of = problem, classes
        self.members: list[list[int]] = [[] for _ in range(max(classes, default=-1) + 1)]
        for decision, number in enumerate(classes):
            self.members[number].append(decision)
        self._matrices: dict[object, Matrix] = {}

    @cached_property
    def sizes(self) -> list[int]:
        """How many choices there are in each class."""
        return [len(self.problem.decisions[members[0]].choices) for members in self.members]

    @cached_property
    def between(self) -> Mapping[tuple[int, int], list[tuple[Table, int]]]:
        """For two classes, the first one first, the tables between them and how often they are."""
        tables = {id(link.table): link.table for link in self.problem.links}
        counts: dict[tuple[int, int], Counter[int]] = {}
        for first, second, table in self.problem.links:
            counts.setdefault((self.of[first], self.of[second]), Counter())[id(table)] += 1
        return {
            pair: [(tables[number], count) for number, count in counted.items()]
            for pair, counted in counts.items()
        }

    def found(self, chosen: Found) -> list[int]:
        """The choice of every decision, from that of every class."""
        return [chosen[number] for number in self.of]

    def chosen(self, found: Found) -> list[int]:
        """The choice of every class: that of its first decision."""
        return [found[members[0]] for members in self.members]

    def priced(self, weights: Weights) -> Priced:
        """The model with one number for every choice and every pair."""
        alone = [
            [
                len(members)
                * (
                    weights.seconds * (price.compute + self._share * price.communicate)
                    + weights.received * price.received
                )
                for price in self.problem.decisions[members[0]].prices
            ]
            for members in self.members
        ]
        pairs: dict[tuple[int, int], Matrix] = {}
        for pair, tables in self.between.items():
            first, second = sorted(pair)
            matrix = self._matrix(tables, weights)
            if first == second:
                alone[first] = [a + matrix[n][n] for n, a in enumerate(alone[first])]
                continue
            turned = matrix if pair == (first, second) else _turned(matrix)
            known = pairs.get((first, second))
            pairs[first, second] = turned if known is None else _sum(known, turned)
        return Priced(alone, pairs)

    def room(self, level: int | None = None) -> list[list[int]]:
        """For every choice of every class the bytes on a cell of what lives at a level, or ever."""
        found = [[0] * count for count in self.sizes]
        for name, (first, last) in self.problem.lives.items():
            if level is None or first <= level <= last:
                kept = self.problem.kept[name]
                row = found[self.of[kept.decision]]
                row[:] = [old + max(size) for old, size in zip(row, kept.sizes)]
        return found

    @property
    def _share(self) -> float:
        """The part of communication that does not hide behind computation."""
        return 1.0 - self.problem.machine.overlap

    def _matrix(self, tables: Sequence[tuple[Table, int]], weights: Weights) -> Matrix:
        key = (weights, *((id(table), count) for table, count in tables))
        if key not in self._matrices:
            seconds, received = weights.seconds * self._share, weights.received
            found: Matrix | None = None
            for table, count in tables:
                each = [
                    [count * (seconds * move[0] + received * move[1]) for move in row]
                    for row in table
                ]
                found = each if found is None else _sum(found, each)
            self._matrices[key] = found or []
        return self._matrices[key]


class Priced:
    """Numbers for every choice of every class, and for every pair of choices of two classes."""

    def __init__(
        self,
        alone: Sequence[Sequence[float]],
        pairs: Mapping[tuple[int, int], Matrix],
        near: list[list[tuple[int, Matrix]]] | None = None,
    ) -> None:
        self.alone, self.pairs = alone, pairs
        self.near = near if near is not None else _near(len(alone), pairs)
        """For each class its neighbours, and what a choice of theirs costs beside each of its."""

    def plus(self, more: Sequence[Sequence[int]], weight: float) -> Priced:
        """The same, and something more for every choice."""
        alone = [[a + weight * b for a, b in zip(*both)] for both in zip(self.alone, more)]
        return Priced(alone, self.pairs, self.near)

    def total(self, chosen: Found) -> float:
        """The sum of everything."""
        total = sum(row[choice] for row, choice in zip(self.alone, chosen))
        for (first, second), matrix in self.pairs.items():
            total += matrix[chosen[first]][chosen[second]]
        return total


def _near(count: int, pairs: Mapping[tuple[int, int], Matrix]) -> list[list[tuple[int, Matrix]]]:
    near: list[list[tuple[int, Matrix]]] = [[] for _ in range(count)]
    for (first, second), matrix in pairs.items():
        near[first].append((second, _turned(matrix)))
        near[second].append((first, matrix))
    return near


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix)]


def _sum(one: Matrix, two: Matrix) -> Matrix:
    return [[a + b for a, b in zip(*rows)] for rows in zip(one, two)]
