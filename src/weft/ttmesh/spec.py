"""Mappers as shardings of Weft and back, so that what is planned can be delivered to a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.errors import LayoutError
from weft.layout import DimSpec, ShardingSpec
from weft.ttmesh.mapper import Mapper, Replicate, Shard
from weft.ttmesh.parts import parts_of
from weft.values import Point, as_count


def to_spec(mapper: Mapper, ndim: int) -> ShardingSpec:
    """A mapper as the sharding of a tensor of that rank, on the chips that it uses.

    >>> from weft.ttmesh import ShardTensor2DMesh
    >>> print(to_spec(ShardTensor2DMesh((2, 4), dims=[3, None]), ndim=4))
    <@mesh, [{}, {}, {}, {"rows"}]>
    """
    cells, rank = mapper.cells, as_count(ndim, "ndim")
    for placement in mapper.placements:
        if isinstance(placement, Shard) and placement.groups != 1:
            raise LayoutError(
                f"{placement} is interleaved, and a sharding cuts a dimension in one piece",
                hint="plain(mapper, shape) has the groups as a dimension",
            )
    # The sizes do not matter; a rank that does not fit is refused here.
    cuts = mapper.cuts((1,) * rank)
    return ShardingSpec(cells, [DimSpec(cells.axis_names[a] for a in cut.axes) for cut in cuts])


def from_spec(spec: ShardingSpec) -> Mapper:
    """A sharding as a mapper: one placement for each axis, or part of an axis, of its mesh.

    >>> from weft.layout import DeviceMesh
    >>> mesh = DeviceMesh("m", (2, 4), ("x", "y"))
    >>> from_spec(ShardingSpec.parse('<@m, [{"y"}, {"x"}]>', mesh)).placements
    (Shard(dim=1, groups=1), Shard(dim=0, groups=1))
    """
    if spec.partial:
        axes = ", ".join(map(str, spec.partial))
        raise LayoutError(
            f"{spec} holds parts that are not combined yet, along {axes}",
            hint="reshard it first",
        )
    mesh, over = spec.mesh, list[int]()
    number: dict[tuple[int, int], int] = {}  # axis and divisor of a digit: the axis of the mapper
    for axis, size in enumerate(mesh.shape):
        digits = [digit for cut in spec.digits for digit in cut if digit.dim == axis]
        ends = {size, 1, *(d.divisor for d in digits), *(d.divisor * d.radix for d in digits)}
        edges = sorted(ends, reverse=True)
        for high, low in pairwise(edges) if size > 1 else [(1, 1)]:
            number[axis, low] = len(over)
            over.append(high // low)
    placements: list[Shard | Replicate] = [Replicate()] * len(over)
    order = list[int]()
    for dim, cut in enumerate(spec.digits):
        for digit in cut:
            end = digit.divisor * digit.radix if mesh.shape[digit.dim] > 1 else 2  # of 1: its digit
            for place in _places(number, digit.dim, digit.divisor, end):
                placements[place] = Shard(dim)
                order.append(place)
    order += [place for place in range(len(over)) if place not in order]
    return Mapper(mesh, placements, over, order=order)


def _places(number: dict[tuple[int, int], int], axis: int, first: int, end: int) -> list[int]:
    """The mapper's axes inside a digit, major to minor."""
    inside = [low for at, low in number if at == axis and first <= low < end]
    return [number[axis, low] for low in sorted(inside, reverse=True)]


def plain(mapper: Mapper, shape: Sequence[int]) -> tuple[Mapper, Point]:
    """An interleaved mapper without groups, on a tensor that has them as dimensions of their own.

    >>> mapper, shape = plain(Mapper((4,), [Shard(1, groups=3)]), (8, 24))
    >>> print(shape, mapper.placements)
    (8, 3, 8) (Shard(dim=2, groups=1),)
    """
    cuts = mapper.cuts(shape)
    for cut in cuts:
        if not cut.is_regular:
            raise LayoutError(
                f"{cut.told(mapper.cells)} and is no plain view: its groups are {cut.groups}"
            )
    (part,) = parts_of(cuts, mapper.cells.shape)
    dims, at = dict[int, int](), -1
    for cut in cuts:
        at += 2 if len(cut.groups) > 1 else 1
        dims[cut.dim] = at
    rank = len(cuts)
    placements = [
        Shard(dims[each.dim % rank]) if isinstance(each, Shard) else each
        for each in mapper.placements
    ]
    return Mapper(mapper.mesh, placements, mapper.over, mapper.offset, mapper.order), part.view
