"""Two shardings in one frame: both spelled with the digits of one number for each device.

Meshes that count the same devices, row by row or transposed, give every device one number, and an
axis of either mesh is a digit of it: `number // worth % radix`. In a frame a digit is known by its
worth, so that shardings on different meshes can be compared dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeAlias

from weft.layout import DeviceMesh, ShardingSpec
from weft.space import Digit
from weft.values import Point

Edges: TypeAlias = tuple[int, int]  # the worth of a digit, and of what comes above it


class Layout(NamedTuple):
    """How an array lies, in a frame: the digits that cut each dimension, and those of its parts.

    Digits stand major to minor; those of the parts in the order of the mesh.
    """

    cuts: tuple[Point, ...]
    parts: Point = ()


class Frame(NamedTuple):
    """Source and destination in the digits that both are made of."""

    src: Layout
    dst: Layout
    radix: Mapping[int, int]

    def count(self, digits: Iterable[int]) -> int:
        """How many values the digits have together."""
        return prod(map(self.radix.__getitem__, digits))


def find_frame(src: ShardingSpec, dst: ShardingSpec, by_axis: bool = False) -> Frame | None:
    """The frame of two shardings; None where their cells do not correspond digit by digit.

    With `by_axis` no digit reaches beyond one axis of either mesh, and all axes are there.

    >>> mesh, line = DeviceMesh("m", (2, 4), ("x", "y")), DeviceMesh("l", (8,), ("z",))
    >>> src = ShardingSpec.parse('<@m, [{"x"}, {"y"}]>', mesh)
    >>> dst = ShardingSpec.parse('<@l, [{}, {"z"}]>', line)
    >>> frame = find_frame(src, dst)
    >>> frame.src.cuts, frame.dst.cuts, frame.radix
    (((4,), (1,)), ((), (4, 1)), {4: 2, 1: 4})
    """
    worths = _worths(src.mesh, dst.mesh)
    if worths is None:
        return None
    ours, theirs = worths
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
    return Frame(
        Layout(tuple([_spell(each, down) for each in have]), _spell(parts, down)),
        Layout(tuple([_spell(each, down) for each in want]), _spell(wanted, down)),
        radix,
    )


def _edges(digits: Iterable[Digit], worths: Point) -> list[Edges]:
    return [
        (worths[dim] * divisor, worths[dim] * divisor * radix)
        for dim, divisor, radix, _ in digits
        if radix > 1
    ]


def _spell(digits: list[Edges], down: list[int]) -> Point:
    """The finest digits that make up these, major to minor."""
    if not digits:
        return ()
    return tuple([worth for low, high in digits for worth in down if low <= worth < high])


def monoids_of(spec: ShardingSpec, worths: Point, radix: Mapping[int, int]) -> dict[int, str]:
    """The monoid of each digit of a frame over which a sharding is unreduced, in mesh order."""
    down = sorted(radix, reverse=True)
    return {
        worth: monoid
        for digit, monoid in spec.parts
        for worth in _spell(_edges([digit], worths), down)
    }


def digit_of(mesh: DeviceMesh, worths: Point, worth: int, radix: int) -> Digit:
    """A digit of a frame, which must lie within one axis, as a digit of a mesh's coordinates."""
    for dim, (weight, size) in enumerate(zip(worths, mesh.shape)):
        if weight <= worth < weight * size:
            return Digit(dim, worth // weight, radix, 1)
    raise KeyError(worth)


def _worths(one: DeviceMesh, two: DeviceMesh) -> tuple[Point, Point] | None:
    """What a step along each axis of the meshes adds to the number of the device."""
    if one is two or (one.shape == two.shape and one.device_ids == two.device_ids):
        same = row_major(one.shape)
        return same, same
    if one.size != two.size:
        return None
    if one.device_ids == two.device_ids:
        return row_major(one.shape), row_major(two.shape)
    first, second = _device_worths(one), _device_worths(two)
    if first is None or second is None or first[0] != second[0]:
        return None
    return first[1], second[1]


def worths_between(src: ShardingSpec, dst: ShardingSpec) -> tuple[Point, Point]:
    """What a step along each axis adds to a device's number, for shardings that have a frame."""
    worths = _worths(src.mesh, dst.mesh)
    if worths is None:
        raise KeyError("the shardings have no frame")
    return worths


@lru_cache(maxsize=1024)
def row_major(shape: Point) -> Point:
    """What a step along each axis adds to the rank of a cell.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    worths, worth = [], 1
    for size in reversed(shape):
        worths.append(worth)
        worth *= size
    return tuple(reversed(worths))


@lru_cache(maxsize=256)
def _device_worths(mesh: DeviceMesh) -> tuple[int, Point] | None:
    """The first device and what each axis adds to it, if the devices are numbered so."""
    if mesh.device_ids is None:
        return 0, row_major(mesh.shape)
    ids, ranks = mesh.device_ids, row_major(mesh.shape)
    worths = [ids[rank] - ids[0] if size > 1 else 1 for rank, size in zip(ranks, mesh.shape)]
    worth = 1
    for step, size in sorted(pair for pair in zip(worths, mesh.shape) if pair[1] > 1):
        if step != worth:
            return None
        worth *= size
    if any(ids[rank] != ids[0] + offset for rank, offset in enumerate(_offsets(mesh, worths))):
        return None
    return ids[0], tuple(worths)


def _offsets(mesh: DeviceMesh, worths: Iterable[int]) -> Iterator[int]:
    steps = tuple(worths)
    return (sum(map(int.__mul__, cell, steps)) for cell in mesh.cells())
