"""Two shardings in common digits, and the collective that takes one to the other.

Meshes that count the same devices, row by row or transposed, give every device one number, and an
axis of either mesh is a digit of it: `number // stride % radix`. Spelled with the same digits,
shardings on different meshes can be compared dimension by dimension; which digits stop and which
begin to cut a dimension says which collective it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from weft.layout import DeviceMesh, ShardingSpec
from weft.space import BlockGrid, Digit
from weft.values import Point

Edges: TypeAlias = tuple[int, int]  # the stride of a digit, and of what comes above it


class DigitLayout(NamedTuple):
    """The common digits that cut each dimension of an array, and those of its parts.

    Digits stand major to minor; those of the parts in the order of the mesh.
    """

    cuts: tuple[Point, ...]
    parts: Point = ()
    points: tuple[Point | None, ...] | None = None
    """The cut points of each dimension, as in `ShardingSpec.cut_points`."""

    def cut_points(self, dim: int) -> Point | None:
        """Return where a dimension is cut; None where blocks have one size."""
        return None if self.points is None else self.points[dim]


class CommonDigits(NamedTuple):
    """Source and destination in the digits that both are made of."""

    src: DigitLayout
    dst: DigitLayout
    radix: Mapping[int, int]

    def count(self, digits: Iterable[int]) -> int:
        """Return the number of values that digits have together."""
        return prod(map(self.radix.__getitem__, digits))


def common_digits(
    src: ShardingSpec, dst: ShardingSpec, by_axis: bool = False
) -> CommonDigits | None:
    """Return the common digits of two shardings; None where their cells do not correspond.

    With `by_axis` no digit reaches beyond one axis of either mesh, and all axes are there.

    >>> mesh, line = DeviceMesh("m", (2, 4), ("x", "y")), DeviceMesh("l", (8,), ("z",))
    >>> src = ShardingSpec.parse('<@m, [{"x"}, {"y"}]>', mesh)
    >>> dst = ShardingSpec.parse('<@l, [{}, {"z"}]>', line)
    >>> common = common_digits(src, dst)
    >>> common.src.cuts, common.dst.cuts, common.radix
    (((4,), (1,)), ((), (4, 1)), {4: 2, 1: 4})
    """
    strides = _strides(src.mesh, dst.mesh)
    if strides is None:
        return None
    ours, theirs = strides
    have = [_edges(digits, ours) for digits in src.digits]
    want = [_edges(digits, theirs) for digits in dst.digits]
    edges = {edge for each in (*have, *want) for pair in each for edge in pair}
    parts, wanted = list[Edges](), list[Edges]()
    if src.partial or dst.partial:
        parts = _edges((digit for digit, _ in src.parts), ours)
        wanted = _edges((digit for digit, _ in dst.parts), theirs)
        edges.update(edge for pair in (*parts, *wanted) for edge in pair)
    if by_axis:
        for mesh, weights in ((src.mesh, ours), (dst.mesh, theirs)):
            edges.update(weights)
            edges.update(map(int.__mul__, weights, mesh.shape))
    down = sorted(edges, reverse=True)
    radix = dict[int, int]()
    for high, low in pairwise(down):
        if high % low:
            return None
        radix[low] = high // low
    return CommonDigits(
        DigitLayout(
            tuple([_spell(each, down) for each in have]), _spell(parts, down), src.cut_points
        ),
        DigitLayout(
            tuple([_spell(each, down) for each in want]), _spell(wanted, down), dst.cut_points
        ),
        radix,
    )


def _edges(digits: Iterable[Digit], strides: Point) -> list[Edges]:
    return [
        (strides[dim] * divisor, strides[dim] * divisor * radix)
        for dim, divisor, radix, _ in digits
        if radix > 1
    ]


def _spell(digits: list[Edges], down: list[int]) -> Point:
    """The finest digits that make up these, major to minor."""
    if not digits:
        return ()
    return tuple([stride for low, high in digits for stride in down if low <= stride < high])


def monoids_of(spec: ShardingSpec, strides: Point, radix: Mapping[int, int]) -> dict[int, str]:
    """The monoid of each common digit over which a sharding is unreduced, in mesh order."""
    down = sorted(radix, reverse=True)
    return {
        stride: monoid
        for digit, monoid in spec.parts
        for stride in _spell(_edges([digit], strides), down)
    }


def digit_of(mesh: DeviceMesh, strides: Point, stride: int, radix: int) -> Digit:
    """A common digit, which must lie within one axis, as a digit of a mesh's coordinates."""
    for dim, (weight, size) in enumerate(zip(strides, mesh.shape)):
        if weight <= stride < weight * size:
            return Digit(dim, stride // weight, radix, 1)
    raise KeyError(stride)


def _strides(one: DeviceMesh, two: DeviceMesh) -> tuple[Point, Point] | None:
    """Return what a step along each axis adds to a device's number, if there is a rule."""
    if one is two or (one.shape == two.shape and one.device_ids == two.device_ids):
        same = row_major(one.shape)
        return same, same
    if one.size != two.size:
        return None
    if one.device_ids == two.device_ids:
        return row_major(one.shape), row_major(two.shape)
    first, second = _device_strides(one), _device_strides(two)
    if first is None or second is None or first[0] != second[0]:
        return None
    return first[1], second[1]


def strides_between(src: ShardingSpec, dst: ShardingSpec) -> tuple[Point, Point]:
    """Return what a step along each axis adds to a device's number, on both meshes."""
    strides = _strides(src.mesh, dst.mesh)
    if strides is None:
        raise KeyError("the shardings have no common digits")
    return strides


@lru_cache(maxsize=1024)
def row_major(shape: Point) -> Point:
    """Return what a step along each axis adds to the rank of a cell.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


@lru_cache(maxsize=256)
def _device_strides(mesh: DeviceMesh) -> tuple[int, Point] | None:
    """The first device and what each axis adds to it, if the devices are numbered so."""
    if mesh.device_ids is None:
        return 0, row_major(mesh.shape)
    ids, ranks = mesh.device_ids, row_major(mesh.shape)
    strides = [ids[rank] - ids[0] if size > 1 else 1 for rank, size in zip(ranks, mesh.shape)]
    stride = 1
    for step, size in sorted(pair for pair in zip(strides, mesh.shape) if pair[1] > 1):
        if step != stride:
            return None
        stride *= size
    if any(ids[rank] != ids[0] + offset for rank, offset in enumerate(_offsets(mesh, strides))):
        return None
    return ids[0], tuple(strides)


def _offsets(mesh: DeviceMesh, strides: Iterable[int]) -> Iterator[int]:
    steps = tuple(strides)
    return (sum(map(int.__mul__, cell, steps)) for cell in mesh.cells())


Kind: TypeAlias = Literal[
    "slice",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "reduce_scatter",
    "all_reduce",
    "exchange",
    "mask",
]
"""Kinds of steps; `exchange` is the general exchange of blocks."""


class Change(NamedTuple):
    """The digits that change between two layouts."""

    gone: tuple[Point, ...]
    """For each dimension the digits that no longer cut it."""
    new: tuple[Point, ...]
    """For each dimension the digits that begin to."""
    reduced: Point
    """The digits whose parts are combined."""


def find_change(before: DigitLayout, after: DigitLayout) -> Change:
    """The digits behind the longest common beginning, in each dimension.

    Where the cut points differ, blocks with the same digits are not the same: all digits change.
    """
    gone, new = list[Point](), list[Point]()
    for dim, (had, has) in enumerate(zip(before.cuts, after.cuts)):
        if before.cut_points(dim) != after.cut_points(dim):
            gone.append(had)
            new.append(has)
            continue
        if had == has:
            gone.append(())
            new.append(())
            continue
        same = 0
        for a, b in zip(had, has):
            if a != b:
                break
            same += 1
        gone.append(had[same:])
        new.append(has[same:])
    reduced = tuple([digit for digit in before.parts if digit not in after.parts])
    return Change(tuple(gone), tuple(new), reduced)


def name_pattern(change: Change, src: BlockGrid, dst: BlockGrid) -> Kind | None:
    """The collective that takes one layout to the other; None if there is nothing to do."""
    gone = {digit for each in change.gone for digit in each}
    new = {digit for each in change.new for digit in each}
    if not gone and not new:
        return "all_reduce" if change.reduced else None
    if _is_nested(change, src, dst):
        if change.reduced:
            return "reduce_scatter" if not gone and new.issuperset(change.reduced) else "exchange"
        if not gone:
            return "slice"
        if not new:
            return "all_gather"
        if gone == new:
            return "all_to_all"
    return "collective_permute" if src == dst and not change.reduced else "exchange"


def _is_nested(change: Change, src: BlockGrid, dst: BlockGrid) -> bool:
    """Whether every dimension is only cut or only joined, and all blocks lie inside blocks."""
    sides = zip(src.shape, change.gone, change.new, src.counts, dst.counts)
    for dim, (n, gone, new, had, has) in enumerate(sides):
        if gone and new:
            return False
        if not (gone or new) or min(had, has) == 1:
            continue
        if src.edges[dim] is not None or dst.edges[dim] is not None:
            return False
        if (gone and not nests(n, has, had)) or (new and not nests(n, had, has)):
            return False
    return True


def nests(n: int, outer: int, inner: int) -> bool:
    """Whether each of `inner` blocks of n lies in one of `outer` blocks, for the same cell.

    >>> nests(10, 1, 4), nests(10, 2, 4), nests(7, 4, 8)
    (True, False, True)
    """
    return outer == 1 or -(-n // outer) == -(-n // inner) * (inner // outer)


def most_received(change: Change, count: int, src: Point, dst: Point, shape: Point) -> int | None:
    """Return the most elements that a cell receives; None if shards are uneven.

    `count` parts of each element are combined.

    Where a dimension loses digits and gets others, some cell has nothing of what it wants; else
    the smaller of the two blocks lies inside the other, on every cell.
    """
    wanted = held = 1
    for n, had, has in zip(shape, src, dst):
        if n % had or n % has:
            return None
        block = n // has
        wanted *= block
        held *= block if has >= had else n // had
    for gone, new in zip(change.gone, change.new):
        if gone and new:
            held = 0
    return wanted * count - held
