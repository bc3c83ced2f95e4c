"""`Tree`: along which rotations the steps of a split are reached, and with how few keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd

from weft.ckks.packing import Integers
from weft.errors import WeftError

MOST = 64
"""How many new differences are tried at a time."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Steps, each with the step that it is reached from; a parent stands before its children.

    `edges` has (step, parent, difference) and leaves out zero, where all begins. Steps that lead
    to others only are `passed`.

    >>> tree = star([0, 3, 5])
    >>> len(tree), sorted(tree.steps)
    (2, [3, 5])
    """

    edges: tuple[tuple[int, int, int], ...]
    passed: frozenset[int] = frozenset()

    @cached_property
    def steps(self) -> frozenset[int]:
        """The differences: the keys that are needed."""
        return frozenset(step for _, _, step in self.edges)

    @cached_property
    def children(self) -> dict[int, list[tuple[int, int]]]:
        """For each step those that are reached from it, with the difference."""
        found = dict[int, list[tuple[int, int]]]()
        for node, parent, step in self.edges:
            found.setdefault(parent, []).append((node, step))
        return found

    def __len__(self) -> int:
        return len(self.edges)


def star(nodes: Iterable[int]) -> Tree:
    """Every step straight from zero, with a key of its own."""
    return Tree(tuple((int(node), 0, int(node)) for node in nodes if node))


def chain(
    sets: Sequence[Integers], keys: int | Collection[int], units: Iterable[int], period: int
) -> list[Tree]:
    """Trees with few keys: `keys` says how many there may be, or which there are.

    Steps are reached from their neighbours by the unit of an axis, so that there are as many
    rotations as steps. Where that takes too many keys, further steps are passed on the way.

    >>> import numpy as np
    >>> (tree,) = chain([np.array([0, 1, 2, 3, 9])], 2, [1], 64)
    >>> tree.edges
    ((1, 0, 1), (2, 1, 1), (3, 2, 1), (9, 0, 9))
    """
    if not isinstance(keys, int):
        known = sorted({key % period for key in keys} - {0})
        return [_route(nodes, known, period) for nodes in sets]
    if keys < 1:
        raise WeftError(f"{keys} rotation keys reach nothing; at least 1 is needed")
    units = [unit % period for unit in units]
    grown = [
        _grow_all(sets, signs, period) for signs in (units, [*units, *(-u % period for u in units)])
    ]
    trees = min(grown, key=lambda each: len(_used(each)))
    if len(_used(trees)) <= keys:
        return trees
    return _shortest(sets, [_favourites(each, keys) for each in grown], keys, period)


def _used(trees: Iterable[Tree]) -> dict[int, int]:
    """The keys of some trees, with how often each is used."""
    counts = dict[int, int]()
    for tree in trees:
        for _, _, step in tree.edges:
            counts[step] = counts.get(step, 0) + 1
    return counts


def _favourites(trees: Iterable[Tree], keys: int) -> list[int]:
    counts = _used(trees)
    return sorted(counts, key=lambda step: (-counts[step], step))[:keys]


def _shortest(
    sets: Sequence[Integers], tried: Iterable[Sequence[int]], keys: int, period: int
) -> list[Tree]:
    """Routes along so few keys, the best of what is tried and of the powers of a base."""
    unit = gcd(period, *(int(node) for nodes in sets for node in nodes))
    found = list[list[Tree]]()
    for steps in (*tried, _base(keys, period, unit)):
        if gcd(period, *steps) == unit:
            found.append([_route(nodes, steps, period) for nodes in sets])
    return min(found, key=lambda trees: sum(map(len, trees)))


def _grow_all(sets: Sequence[Integers], units: Sequence[int], period: int) -> list[Tree]:
    chosen = list(dict.fromkeys(units))
    return [_grow(nodes, chosen, period) for nodes in sets]


def _grow(nodes: Integers, steps: list[int], period: int) -> Tree:
    """Reach all steps from each other by those differences, and by new ones where they do not lead.

    New differences are added to the list, so that the next tree tries them as well.
    """
    left, edges = {int(node) for node in nodes} - {0}, list[tuple[int, int, int]]()
    found = _closure([0], left, steps, period)
    edges += found
    while left := left - {node for node, _, _ in found}:
        steps.append(
            max(sorted(left)[:MOST], key=lambda step: len(_closure([step], left, steps, period)))
        )
        found = [(steps[-1], 0, steps[-1])]
        found += _closure(
            [0, *(node for node, _, _ in edges), steps[-1]], left - {steps[-1]}, steps, period
        )
        edges += found
    return Tree(tuple(edges))


def _closure(
    start: Iterable[int], left: Collection[int], steps: Sequence[int], period: int
) -> list[tuple[int, int, int]]:
    """What can be reached among `left`, neighbour by neighbour."""
    queue, free, edges = deque(start), set(left), list[tuple[int, int, int]]()
    while queue:
        at = queue.popleft()
        for step in steps:
            node = (at + step) % period
            if node in free:
                free.remove(node)
                edges.append((node, at, step))
                queue.append(node)
    return edges


def _base(keys: int, period: int, unit: int) -> list[int]:
    """So many steps by which all others can be made: the powers of a base."""
    base = 2
    while base**keys * unit < period:
        base += 1
    return [unit * base**place for place in range(keys) if unit * base**place < period]


def _route(nodes: Integers, steps: Sequence[int], period: int) -> Tree:
    """Reach all steps by those differences only, each from the nearest that is reached already."""
    left, edges, passed = {int(n) for n in nodes} - {0}, list[tuple[int, int, int]](), set[int]()
    reached = {0}
    while left:
        found = _nearest(reached, left, steps, period)
        if found is None:
            raise WeftError(
                f"a rotation by {min(left)} cannot be made of {list(steps)}, modulo {period}",
                hint="add a key",
            )
        for edge in found:
            edges.append(edge)
            reached.add(edge[0])
            (left.remove if edge[0] in left else passed.add)(edge[0])
    return Tree(tuple(edges), frozenset(passed))


def _nearest(
    reached: Collection[int], left: Collection[int], steps: Sequence[int], period: int
) -> list[tuple[int, int, int]] | None:
    """The shortest way from what is reached to something that is left."""
    came: dict[int, tuple[int, int]] = {}
    queue, seen = deque(sorted(reached)), set(reached)
    while queue:
        at = queue.popleft()
        for step in steps:
            node = (at + step) % period
            if node in seen:
                continue
            seen.add(node)
            came[node] = at, step
            if node in left:
                return _way(node, came)
            queue.append(node)
    return None


def _way(node: int, came: dict[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    way = list[tuple[int, int, int]]()
    while node in came:
        at, step = came[node]
        way.append((node, at, step))
        node = at
    return way[::-1]
