"""Where a regular part is folded to rows and columns, and what must be written by itself.

A config reads a buffer as (shards down, rows of a shard, shards across, columns of a shard). So the
factors of a part must be, on either side of the pivot, first those that are spread and then those
that are kept; and those that are spread must count chips as the mesh does, by rows or by columns.
What stands in the way at the front is separated: a write for each of its indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise
from math import prod
from typing import NamedTuple

from weft.ttmesh.config import Extent, ShardOrientation
from weft.ttmesh.parts import Factor
from weft.values import Point


class Fold(NamedTuple):
    """One way to write a part: what is separated, and the config of each write."""

    separated: tuple[Factor, ...]
    apart: Point
    """Axes of the mesh that hold copies, and are written one coordinate at a time."""
    axes: int
    """How many leading axes of the mesh are its rows."""
    orientation: ShardOrientation
    pivot: int
    whole: Extent
    shard: Extent


def fold(
    view: Point, factors: Sequence[Factor], mesh: Point, datum: int, strict: bool = False
) -> Fold | None:
    """The fold with the fewest writes; of those one whose rows are whole words, at the last pivot.

    `strict` is the seed's: one write, folded before the last dimension.
    """
    spread = {factor.axis for factor in factors}
    copies = [axis for axis, size in enumerate(mesh) if size > 1 and axis not in spread]
    ways = _separations(factors, copies, mesh)
    for _, first, apart in ways[:1] if strict else ways:
        rest = factors[first:]
        inside = {axis for axis in spread if axis not in {f.axis for f in rest}}
        live = [a for a, size in enumerate(mesh) if size > 1 and a not in inside and a not in apart]
        found = list(_folds(view, rest, live, len(mesh), strict))
        if found:
            best = min(found, key=lambda each: _worse(each, datum))
            return Fold(tuple(factors[:first]), apart, *best)
    return None


def _separations(
    factors: Sequence[Factor], copies: Sequence[int], mesh: Point
) -> list[tuple[int, int, Point]]:
    """How many writes, how many leading factors and which copies apart: the fewest writes first."""
    subsets = list(chain.from_iterable(combinations(copies, n) for n in range(len(copies) + 1)))
    found = []
    for first in range(len(factors) + 1):
        writes = prod(factor.size for factor in factors[:first])
        found += [(writes * prod(mesh[a] for a in apart), first, apart) for apart in subsets]
    return sorted(found, key=lambda each: (each[0], each[1], len(each[2]), each[2]))


_Found = tuple[int, ShardOrientation, int, Extent, Extent]


def _worse(found: _Found, datum: int) -> tuple[bool, int]:
    _, _, pivot, whole, shard = found
    return (shard.width or whole.width) * datum % 4 > 0, -pivot


def _folds(
    view: Point, factors: Sequence[Factor], live: Sequence[int], ndim: int, strict: bool
) -> Iterator[_Found]:
    """All configs that write these factors at once, on the axes that are left."""
    order = [factor.axis for factor in factors if factor.axis is not None]
    last = max(len(view) - 1, 0)
    for axes, orientation in _orders(order, live, ndim):
        for pivot in range(last, last - 1 if strict else -1, -1):
            rows = [factor for factor in factors if factor.dim < pivot]
            columns = factors[len(rows) :]
            if _leads(rows) and _leads(columns):
                whole = Extent(height=_size(rows), width=_size(columns))
                if shard := _shard(rows, columns, live, axes):
                    yield axes, orientation, pivot, whole, shard


def _orders(
    order: Sequence[int], live: Sequence[int], ndim: int
) -> Iterator[tuple[int, ShardOrientation]]:
    """Where the mesh is folded, and the orientation, for chips to be counted in that order."""
    for axes in _folding(ndim):
        rows = [axis for axis in live if axis < axes]
        columns = live[len(rows) :]
        if order in (list(columns), []) or (rows and columns and order == [*rows, *columns]):
            yield axes, ShardOrientation.ROW_MAJOR
        elif order in (rows, [*columns, *rows]):
            yield axes, ShardOrientation.COL_MAJOR


def _folding(ndim: int) -> Sequence[int]:
    """A mesh of rows and columns is what it is; one of more axes is folded as suits."""
    return [ndim - 1] if ndim < 3 else [*range(ndim - 1, -1, -1), ndim]


def _leads(factors: Sequence[Factor]) -> bool:
    """Whether what is spread comes before what is kept."""
    kept = [factor.axis is None for factor in factors]
    return all(before <= behind for before, behind in pairwise(kept))


def _size(factors: Iterable[Factor]) -> int:
    return prod(factor.size for factor in factors)


def _shard(
    rows: Sequence[Factor], columns: Sequence[Factor], live: Sequence[int], axes: int
) -> Extent | None:
    """The extents of a shard; 0 where nothing is cut and shards go in one direction of the mesh."""
    high, wide = (_size(f for f in side if f.axis is None) for side in (rows, columns))
    down, across = (any(f.axis is not None for f in side) for side in (rows, columns))
    spread = {factor.axis for factor in (*rows, *columns)}
    copied = [axis for axis in live if axis not in spread]
    wraps = not copied and 0 < sum(axis < axes for axis in live) < len(live)
    if down and across and copied:  # a buffer cut both ways has a shard for every chip
        return None
    if wraps or (down and across):
        return Extent(height=high, width=wide)
    return Extent(height=high * down, width=wide * across)
