"""`Mapper`: what each axis of a mesh does to a tensor, and which boxes of it chips then hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

from weft.errors import LayoutError, WeftError
from weft.layout import DeviceMesh
from weft.space import ZRange
from weft.ttmesh.cut import Cut
from weft.ttmesh.grid import Mesh, as_mesh, placed
from weft.values import Point, as_point, as_shape, freeze


@dataclass(frozen=True, slots=True, init=False)
class Shard:
    """An axis of the mesh cuts a dimension of the tensor; -1 is the last.

    With `groups`, a number or sizes, the dimension is made of parts laid end to end, and each chip
    gets its block of every part: queries, keys and values in one tensor, or gates and ups.

    >>> Shard(3), Shard(-1, groups=(8192, 1024, 1024))
    (Shard(dim=3, groups=1), Shard(dim=-1, groups=(8192, 1024, 1024)))
    """

    dim: int
    groups: int | Point

    def __init__(self, dim: int, groups: int | Iterable[int] = 1) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise WeftError(f"Shard needs the number of a dimension, got {dim!r}")
        many = groups if isinstance(groups, int) else as_point(groups, "groups")
        sizes = (many,) if isinstance(many, int) else many
        if not sizes or min(sizes) < 1:
            raise WeftError(f"groups of a dimension are 1 and more: {groups!r}")
        freeze(self, dim=dim, groups=many if isinstance(many, int) or len(many) > 1 else 1)


@dataclass(frozen=True, slots=True)
class Replicate:
    """All chips along an axis of the mesh hold the same."""


Placement: TypeAlias = Shard | Replicate

MAX_CHIPS = 1_000_000
"""Chips of the largest mesh; far above any machine, and quickly listed."""


@dataclass(frozen=True, slots=True, init=False)
class Mapper:
    """One placement for each axis of a mesh: `Shard(dim)` or `Replicate()`; or `dim`, or None.

    `over` is the shape of the distribution where it is not that of the mesh: a part of the mesh at
    `offset`, or another arrangement of its chips in order. Where several axes cut one dimension,
    the earlier is the major one, unless `order` lists them otherwise.

    >>> mapper = Mapper((2, 4), [None, 0])
    >>> print(*mapper.boxes((4, 3))[1])
    [1:2, 0:3]
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    over: Point
    offset: Point | None
    order: Point

    def __init__(
        self,
        mesh: Mesh,
        placements: Iterable[Placement | int | None],
        over: Iterable[int] | None = None,
        offset: Iterable[int] | None = None,
        order: Iterable[int] | None = None,
    ) -> None:
        chips, each = as_mesh(mesh), tuple(map(as_placement, placements))
        if chips.size > MAX_CHIPS:
            raise WeftError(f"a mesh of {chips.size} chips: at most {MAX_CHIPS} are supported")
        shape = chips.shape if over is None else as_point(over, "over")
        at = None if offset is None else as_point(offset, "offset", chips.ndim)
        placed(chips, shape, at)
        if len(each) != len(shape):
            raise WeftError(
                f"{len(each)} placements for the {len(shape)} axes of a mesh of shape {shape}",
                hint="one for each axis: a dimension, or None to replicate",
            )
        axes = tuple(range(len(each))) if order is None else as_point(order, "order")
        if sorted(axes) != list(range(len(each))):
            raise WeftError(f"order lists each of {len(each)} axes once, majors first: {axes}")
        freeze(self, mesh=chips, placements=each, over=shape, offset=at, order=_spelled(each, axes))

    @property
    def cells(self) -> DeviceMesh:
        """The chips that get something, arranged as the distribution is."""
        return placed(self.mesh, self.over, self.offset)

    def cuts(self, shape: Sequence[int]) -> tuple[Cut, ...]:
        """How each dimension of a tensor of that shape is cut; what does not fit is refused."""
        sizes, cells = as_shape(shape), self.cells
        axes: list[list[int]] = [[] for _ in sizes]
        groups: list[Point] = [(size,) for size in sizes]
        for axis in self.order:
            if isinstance(placement := self.placements[axis], Shard):
                dim = _dimension(placement, sizes, cells, axis)
                parts = _groups(placement, dim, sizes[dim], cells, axis)
                if len(parts) > 1 and len(groups[dim]) > 1 and parts != groups[dim]:
                    raise LayoutError(
                        f"dimension {dim} of size {sizes[dim]} is made of groups {groups[dim]}, "
                        f"and of {parts} for mesh axis {_named(cells, axis)}"
                    )
                groups[dim] = parts if len(parts) > 1 else groups[dim]
                axes[dim].append(axis)
        ways = [tuple(cells.shape[axis] for axis in by) for by in axes]
        cut = [prod(by) > 1 for by in ways]
        return tuple(
            Cut(dim, groups[dim] if cut[dim] else (size,), tuple(axes[dim]), ways[dim])
            for dim, size in enumerate(sizes)
        )

    def boxes(self, shape: Sequence[int]) -> list[tuple[ZRange, ...]]:
        """For each chip of the mesh in order, the boxes of the tensor it holds.

        There is one box, or with interleaved shards one for each group, the last dimension's groups
        running fastest. A chip outside the distribution holds none.
        """
        cells, cuts = self.cells, self.cuts(shape)
        held: dict[int, tuple[ZRange, ...]] = {}
        for coord in cells.cells():
            runs = product(*(cut.runs(block_at(cut, coord)) for cut in cuts))
            boxes = (ZRange([a for a, _ in run], [b for _, b in run]) for run in runs)
            held[cells.device(coord)] = tuple(boxes)
        return [held.get(self.mesh.device(rank), ()) for rank in range(self.mesh.size)]

    def local_shape(self, shape: Sequence[int], coord: Sequence[int]) -> Point:
        """The shape of what the chip at a coordinate of the distribution holds."""
        return tuple(cut.local(block_at(cut, tuple(coord))) for cut in self.cuts(shape))


def as_placement(placement: Placement | int | None) -> Placement:
    """A placement; a number is the dimension that is cut, None replicates."""
    if isinstance(placement, Shard | Replicate):
        return placement
    return Replicate() if placement is None else Shard(placement)


def block_at(cut: Cut, coord: Point) -> int:
    """Which block of a dimension the chip at a coordinate holds."""
    block = 0
    for axis, ways in zip(cut.axes, cut.ways):
        block = block * ways + coord[axis]
    return block


def _spelled(placements: Sequence[Placement], order: Point) -> Point:
    """The order in one spelling: only axes that cut the same dimension change places.

    Where some dimensions count from the end and some from the start, none is moved: which are the
    same is not known.
    """
    if len({each.dim < 0 for each in placements if isinstance(each, Shard)}) > 1:
        return order
    spelled = list(range(len(order)))
    by_dim: dict[int, list[int]] = {}
    for axis in order:
        if isinstance(placement := placements[axis], Shard):
            by_dim.setdefault(placement.dim, []).append(axis)
    for axes in by_dim.values():
        for place, axis in zip(sorted(axes), axes):
            spelled[place] = axis
    return tuple(spelled)


def _named(mesh: DeviceMesh, axis: int) -> str:
    return f'"{mesh.axis_names[axis]}"={mesh.shape[axis]}'


def _dimension(shard: Shard, shape: Point, mesh: DeviceMesh, axis: int) -> int:
    dim = shard.dim + len(shape) * (shard.dim < 0)
    if not 0 <= dim < len(shape):
        raise LayoutError(
            f"mesh axis {_named(mesh, axis)} cuts dimension {shard.dim}, "
            f"and a tensor of shape {shape} has no more than {len(shape)}",
            hint=f"dimensions count from 0 to {len(shape) - 1}, or from -{len(shape)} to -1",
        )
    return dim


def _groups(shard: Shard, dim: int, size: int, mesh: DeviceMesh, axis: int) -> Point:
    what = f"dimension {dim} of size {size}, cut by mesh axis {_named(mesh, axis)},"
    if isinstance(shard.groups, int):
        if size % shard.groups:
            rest = f"{size} = {shard.groups} x {size // shard.groups} + {size % shard.groups}"
            raise LayoutError(f"{what} does not have {shard.groups} equal groups: {rest}")
        return (size // shard.groups,) * shard.groups
    if sum(shard.groups) != size:
        total = " + ".join(map(str, shard.groups))
        raise LayoutError(f"{what} is not made of its groups: {total} = {sum(shard.groups)}")
    return shard.groups
