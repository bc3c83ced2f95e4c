"""The choice of one candidate for each of several values, such that the costs add up to the least.

Costs are tables over two values, or over one; values that must be alike are one value. One value
after the other is eliminated: its tables are summed, and only the best choice for each of its
neighbours' is kept. It is exact, and quick where a graph is nearly a chain, as networks are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError

Table = NDArray[np.float64]
WIDE = 1 << 24
"""Entries of a table from which on it is too large."""


class NoChoiceError(WeftError):
    """There is no choice at a cost that is finite."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """The costs of choices of some values: an axis for each."""

    names: tuple[str, ...]
    table: Table


def choose(sizes: Mapping[str, int], factors: Sequence[Factor]) -> dict[str, int]:
    """The choices whose costs add up to the least.

    >>> costs = np.array([[5.0, 1.0], [2.0, 9.0]])
    >>> choose({"a": 2, "b": 2}, [Factor(("a", "b"), costs), Factor(("b",), np.array([0.0, 3.0]))])
    {'b': 0, 'a': 1}
    """
    left, order = list(factors), list[Factor]()
    names = set(sizes)
    while names:
        name = min(sorted(names), key=lambda each: _width(each, left, sizes))
        names.remove(name)
        mine = [factor for factor in left if name in factor.names]
        left = [factor for factor in left if name not in factor.names]
        joint = _joined(name, mine, sizes)
        order.append(joint)
        if len(joint.names) > 1:
            left.append(Factor(joint.names[1:], joint.table.min(axis=0)))
    chosen: dict[str, int] = {}
    for joint in reversed(order):
        at = tuple(chosen[name] for name in joint.names[1:])
        costs = np.moveaxis(joint.table, 0, -1)[at]
        if not np.isfinite(costs).any():
            raise NoChoiceError(f"no packing of {joint.names[0]} goes with those of its neighbours")
        chosen[joint.names[0]] = int(costs.argmin())
    return chosen


def _neighbours(name: str, factors: Sequence[Factor]) -> list[str]:
    found = {other for each in factors if name in each.names for other in each.names}
    return sorted(found - {name})


def _width(name: str, factors: Sequence[Factor], sizes: Mapping[str, int]) -> int:
    return sizes[name] * prod(sizes[other] for other in _neighbours(name, factors))


def _joined(name: str, factors: Sequence[Factor], sizes: Mapping[str, int]) -> Factor:
    """All tables of a value as one, whose first axis is the value's."""
    names = (name, *_neighbours(name, factors))
    shape = [sizes[each] for each in names]
    if prod(shape) > WIDE:
        raise WeftError(f"{name} has too many neighbours to choose for: a table of {shape}")
    total = np.zeros(shape)
    for factor in factors:
        axes = sorted(range(len(factor.names)), key=lambda n: names.index(factor.names[n]))
        place = [sizes[each] if each in factor.names else 1 for each in names]
        total = total + factor.table.transpose(axes).reshape(place)
    return Factor(names, total)
