"""Strands: applications that a cell can run through in one task, from end to end.

An operand that lies on its cell as it is needed binds two applications together, and so does one of
which the cell needs more than it holds, a halo, where it can compute that too: where all comes from
storage, from which any box can be read. Everything else comes from other cells, or is read by
several strands, and is a block in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from weft.errors import WeftError
from weft.lang import Signature
from weft.plan import Plan

T = TypeVar("T")

MOST = 1.5
"""A halo is computed again where a cell computes no more than so many times its own box."""


@dataclass(frozen=True, slots=True)
class Strand:
    """Applications, in their order, and which of their results others need."""

    applications: tuple[int, ...]
    inner: frozenset[tuple[int, int]]
    """The operands, as application and place, that come from inside."""
    wanted: frozenset[str]
    """The values that are needed outside."""
    ends: frozenset[int]
    """The applications with such a value, and those of which nobody reads anything."""


def strands(plan: Plan, stored: Collection[str]) -> tuple[Strand, ...]:
    """The applications of a plan as strands, each behind those that it needs.

    >>> from weft import propagate, trace
    >>> graph = trace(lambda x, w: ((x + x) @ w).sum() * 2, (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'})
    >>> [strand.applications for strand in strands(Plan.of(propagate(graph)), ())]
    [(0, 1, 2), (3, 4)]
    """
    return tuple(_Spinner(plan, stored).strands())


class _Spinner:
    def __init__(self, plan: Plan, stored: Collection[str]) -> None:
        self.plan, self.stored = plan, stored
        self.maker = {
            name: number
            for number, application in enumerate(plan.graph.applications)
            for name in application.results
        }
        self.readers: dict[str, list[tuple[int, int]]] = {}
        for number, application in enumerate(plan.graph.applications):
            for place, name in enumerate(application.operands if application.results else ()):
                self.readers.setdefault(name, []).append((number, place))
        self.level: dict[int, int] = {}
        self.grows: dict[int, bool] = {}
        self.inner: set[tuple[int, int]] = set()

    def strands(self) -> Iterator[Strand]:
        """Levels are cut where something comes from elsewhere; a strand lies in one of them."""
        for number, application in enumerate(self.plan.graph.applications):
            _check(application.operator, application.results, bool(application.regions))
            self._place(number, application.operands if application.results else ())
        for number in range(len(self.plan.graph.applications)):
            if number not in self.level:
                self._settle(number, 0)
        for members in self._components():
            edges = ((n, k) for n in members for k in range(len(self._operands(n))))
            yield Strand(
                tuple(members),
                frozenset(edge for edge in edges if edge in self.inner),
                frozenset(filter(self._is_wanted, self._results(members))),
                frozenset(filter(self._is_end, members)),
            )

    def _place(self, number: int, operands: Sequence[str]) -> None:
        """The level of an application, and which of its operands are there without a move."""
        makers = [(n, self.maker.get(name)) for n, name in enumerate(operands)]
        near = {n for n, maker in makers if maker is not None and self._is_near(number, n, maker)}
        halos = {n for n in near if self.plan.deliveries[number][n].fetch is not None}
        while True:
            above = [self.level[m] + (n not in near) for n, m in makers if m in self.level]
            level = max(above, default=0)
            # A halo that is computed again is computed in the same task.
            late = {n for n in halos & near if self._is_late(self.maker[operands[n]], level)}
            if not late:
                break
            near -= late
        if all(m is not None and m not in self.level and n in near for n, m in makers):
            self.inner |= {(number, n) for n, _ in makers}  # made of nothing: it goes anywhere
        else:
            self._settle(number, level)
            for n, m in makers:
                if m is not None and n in near and self.level.setdefault(m, level) == level:
                    self._settle(m, level)
                    self.inner.add((number, n))
        self.grows[number] = self._can_grow(number, operands)

    def _is_late(self, maker: int, level: int) -> bool:
        return self.level.get(maker, level) < level

    def _settle(self, number: int, level: int) -> None:
        """Put an application on a level, and with it what was made of nothing for it."""
        self.level[number] = level
        for place, name in enumerate(self.plan.graph.applications[number].operands):
            maker = self.maker.get(name)
            if (number, place) not in self.inner or maker is None:
                continue
            if maker not in self.level:
                self._settle(maker, level)
            elif self.level[maker] != level:
                self.inner.discard((number, place))

    def _is_near(self, number: int, place: int, maker: int) -> bool:
        """Whether an operand is on its cell as it was made, or could be made there in full."""
        way = self.plan.deliveries[number][place]
        value = self.plan.graph.applications[number].operands[place]
        made = self.plan.graph.applications[maker].results.index(value)
        if way.reshard is not None or self.plan.result_reshards[maker][made].steps:
            return False
        if way.fetch is None:
            return True
        held = self.plan.placed[maker].results[made].regions(self.plan.graph.values[value].shape)
        most = sum(box.size for box in way.fetch.need.boxes())
        return self.grows[maker] and most <= MOST * sum(prod(box.shape) for box in held)

    def _can_grow(self, number: int, operands: Sequence[str]) -> bool:
        """Whether a cell could compute more than its box: all that it needs more of is stored."""
        placed = self.plan.placed[number]
        if not operands or not is_dense(placed.signature):
            return False
        return all(
            name in self.stored
            or _is_fixed(placed.signature, place)
            or ((number, place) in self.inner and self.grows[self.maker[name]])
            for place, name in enumerate(operands)
        )

    def _components(self) -> list[list[int]]:
        """Applications that hang together, in the order of their levels."""
        found: dict[int, list[int]] = {}
        for number in range(len(self.plan.graph.applications)):
            found[number] = [number]
            for place, name in enumerate(self._operands(number)):
                if (number, place) in self.inner:
                    unite(found, number, self.maker[name])
        unique = {id(members): sorted(members) for members in found.values()}.values()
        return sorted(unique, key=lambda members: (self.level[members[0]], members))

    def _operands(self, number: int) -> Sequence[str]:
        return self.plan.graph.applications[number].operands

    def _results(self, members: Sequence[int]) -> Iterator[str]:
        return (name for n in members for name in self.plan.graph.applications[n].results)

    def _is_wanted(self, name: str) -> bool:
        readers = self.readers.get(name, ())
        is_read = any(reader not in self.inner for reader in readers)
        return is_read or name in self.plan.graph.outputs

    def _is_end(self, number: int) -> bool:
        results = self.plan.graph.applications[number].results
        return not any(map(self.readers.get, results)) or any(map(self._is_wanted, results))


def unite(sets: dict[T, list[T]], one: T, two: T) -> None:
    """Make two sets one, of which each member knows its own: the smaller goes into the larger.

    >>> sets = {n: [n] for n in range(3)}
    >>> unite(sets, 0, 2)
    >>> sets
    {0: [0, 2], 1: [1], 2: [0, 2]}
    """
    small, large = sorted((sets[two], sets[one]), key=len)
    if small is not large:
        large += small
        sets |= dict.fromkeys(small, large)


def _check(operator: str, results: Sequence[str], has_regions: bool) -> None:
    if has_regions:
        raise WeftError(
            f"{operator} {', '.join(results)} runs a graph of its own, which the grid cannot",
            hint="run the plan in one process or with weft.runtime.torch",
        )


def _is_fixed(signature: Signature, place: int) -> bool:
    """Whether an operand is needed alike, whatever box of the results is made."""
    made = {dim for rows in signature.notation.results for row in rows for dim in row.dims}
    return made.isdisjoint(dim for row in signature.notation.operands[place] for dim in row.dims)


def is_dense(line: Signature) -> bool:
    """Whether any box of the results is made by a box of the index space, side by side."""
    for rows in line.notation.results:
        named = [row.plain for row in rows if row.dims]
        if None in named or len(named) != len(set(named)):
            return False
    return True
