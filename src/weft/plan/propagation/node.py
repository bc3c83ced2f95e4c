"""What the engine works on: applications and edges as nodes, values as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from weft.lang.rule import FactorRule, Kind
from weft.plan.propagation.manual import Border
from weft.plan.propagation.merge import Direction

EMPTY = -1
"""The kind of a mesh without axes and devices."""


class Node(NamedTuple):
    """An application for propagation: its rule, and the numbers of its values."""

    rule: FactorRule
    operands: tuple[int, ...]
    results: tuple[int, ...]
    early: Direction = Direction.NONE
    """Where axes go before all others: through what is pointwise, a reshape or a transpose."""
    late: Direction = Direction.BOTH
    """Where they go after that, before they go everywhere: not from a broadcast to its result."""
    is_pointwise: bool = False
    """Whether its tensors are all alike: then an operand takes no axis that the result does not."""
    shared: bool = False
    """Whether an operand has other uses: then its operators settle it together, a round later."""
    limit: Direction = Direction.BOTH
    """Where axes may go at all: a barrier lets them pass in one direction, or in none."""
    border: Border | None = None
    """The border of a manual computation, if the result lies beyond it."""


class Group(NamedTuple):
    """Values that lie alike: when one of `leaders` changes, all `members` follow."""

    members: tuple[tuple[int, Sequence[int]], ...]
    """Each with the nodes to look at again when it follows, the most urgent last."""
    leaders: frozenset[int]


class Event(NamedTuple):
    """A node that gave its values other shardings: all their numbers, before and after.

    Where a value followed another of its group, the node is -1, and `before` are both values,
    `after` the shardings that the one which followed had and has.
    """

    node: int
    before: tuple[int, ...]
    after: tuple[int, ...]


def neighbours(nodes: Sequence[Node], count: int) -> list[list[int]]:
    """For each value the node that makes it, then those that use it, the last one first."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number, node in reversed(list(enumerate(nodes))):
        for value in dict.fromkeys(node.operands):
            found[value].append(number)
    for number, node in enumerate(nodes):
        for value in node.results:
            found[value].insert(0, number)
    return found


@lru_cache(maxsize=256)
def identity(rank: int, operands: int = 1) -> FactorRule:
    """The rule of values that lie alike."""
    dims = tuple((dim,) for dim in range(rank))
    kinds: list[Kind] = ["parallel"] * rank
    return FactorRule((), (1 << 60,) * rank, tuple(kinds), (dims,) * operands, (dims,))
