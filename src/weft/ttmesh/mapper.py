"""Mappers: which axis of a mesh cuts which dimension of a tensor, and what each chip then holds.

A `Mapper` is a `ShardingSpec` on the chips that it uses (`Mapper.spec`), with one addition: a
dimension may consist of groups, each of which is cut by itself (interleaved shards). Blocks are
those of `BlockGrid`. Only `runtime_shards` differs: it refuses what ttnn's own mapper refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product
from math import prod
from typing import TypeAlias

from weft.errors import LayoutError, WeftError
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.layout.sharding import refuse_cut_points
from weft.space import BlockGrid, Digit, ZRange
from weft.ttmesh.mesh import Mesh, as_mesh, fits, sub_mesh
from weft.values import Point, as_count, as_point, as_shape, freeze

MAX_CHIPS = 1_000_000
"""The largest number of chips in a mesh: far above any machine, and quickly listed."""


@dataclass(frozen=True, slots=True, init=False)
class Shard:
    """A mesh axis cuts a dimension of the tensor; -1 is the last dimension.

    With `groups` (a number of equal groups, or their sizes) each chip gets its block of every
    group: queries, keys and values in one tensor, or gate and up projections.

    >>> Shard(3), Shard(-1, groups=(8192, 1024, 1024))
    (Shard(dim=3, groups=1), Shard(dim=-1, groups=(8192, 1024, 1024)))
    """

    dim: int
    groups: int | Point

    def __init__(self, dim: int, groups: int | Iterable[int] = 1) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise WeftError(f"Shard needs the number of a dimension, got {dim!r}")
        given = groups if isinstance(groups, int) else as_point(groups, "groups")
        sizes = (given,) if isinstance(given, int) else given
        if not sizes or min(sizes) < 1:
            raise WeftError(f"groups must be at least 1: {groups!r}")
        freeze(self, dim=dim, groups=given if isinstance(given, int) or len(given) > 1 else 1)


@dataclass(frozen=True, slots=True)
class Replicate:
    """All chips along a mesh axis hold the same data."""


Placement: TypeAlias = Shard | Replicate


def as_placement(placement: Placement | int | None) -> Placement:
    """Return a placement; an integer is the dimension that is cut, None replicates."""
    if isinstance(placement, Shard | Replicate):
        return placement
    return Replicate() if placement is None else Shard(placement)


@dataclass(frozen=True, slots=True)
class ShardedDim:
    """One dimension of a tensor on a mesh: the blocks of its groups, and who holds them.

    The grid has one dimension for each group, all cut into the same number of blocks; a plain
    shard has one group. `digits` are the digits of a chip's coordinate that number its block.

    >>> dim = Mapper((4,), [Shard(0, groups=(8, 4))]).sharded_dims((12,))[0]
    >>> dim.size, dim.spans(1), dim.extents(1)
    (12, [(2, 4), (9, 10)], (2, 1))
    """

    dim: int
    grid: BlockGrid
    digits: tuple[Digit, ...]

    @property
    def groups(self) -> Point:
        """The sizes of the groups."""
        return self.grid.shape

    @property
    def size(self) -> int:
        """The size of the dimension."""
        return sum(self.grid.shape)

    @property
    def count(self) -> int:
        """The number of blocks of each group."""
        return self.grid.counts[0]

    @property
    def axes(self) -> Point:
        """The mesh axes that cut the dimension, major to minor."""
        return tuple(digit.dim for digit in self.digits)

    @property
    def is_regular(self) -> bool:
        """Whether the dimension can be viewed as (groups, blocks, elements), all of equal size."""
        return self.grid.is_even and len(set(self.groups)) == 1

    def block(self, coord: Point) -> int:
        """Return the number of the block that the chip at a coordinate holds."""
        return sum(digit.of(coord) * digit.stride for digit in self.digits)

    def spans(self, block: int) -> list[tuple[int, int]]:
        """Return the ranges of the dimension that a block holds, one for each group."""
        starts = accumulate(self.groups, initial=0)
        spans = (self.grid.span(group, block) for group in range(self.grid.ndim))
        return [(start + low, start + high) for start, (low, high) in zip(starts, spans)]

    def extents(self, block: int) -> Point:
        """Return how many elements of each group a block holds."""
        return tuple(high - low for low, high in self.spans(block))

    def padded(self) -> ShardedDim:
        """Return the dimension with every group padded to full blocks."""
        groups = (extent * self.count for extent in self.grid.block_shape)
        return ShardedDim(self.dim, BlockGrid.cut(groups, self.grid.counts), self.digits)

    def describe(self, mesh: DeviceMesh) -> str:
        """Return which mesh axes cut the dimension, for messages."""
        axes = " x ".join(_named(mesh, axis) for axis in self.axes)
        if len(self.axes) > 1:
            axes += f" = {self.count}"
        plural = "axes" if len(self.axes) > 1 else "axis"
        return f"dimension {self.dim} of size {self.size} is cut by mesh {plural} {axes}"

    def check_even(self, mesh: DeviceMesh) -> None:
        """Raise unless all blocks are full."""
        for number, size in enumerate(self.groups):
            if size % self.count:
                group = f"group {number} of {size} is" if len(self.groups) > 1 else "is"
                raise LayoutError(
                    f"{self.describe(mesh)}, and {group} not a multiple of it: "
                    f"{size} = {self.count} x {size // self.count} + {size % self.count}",
                    hint=f"pad to {self.padded().size} (uneven='pad'), "
                    "or allow short shards (uneven='ragged')",
                )


@dataclass(frozen=True, slots=True, init=False)
class Mapper:
    """One placement for each axis of a mesh: `Shard(dim)` or `Replicate()`, or `dim` or None.

    `over` is the shape of the distribution if it is not that of the mesh: a part of the mesh at
    `offset`, or its chips in order in another arrangement. If several axes cut one dimension, the
    earlier axis is the major one, unless `order` lists them differently.

    >>> mapper = Mapper((2, 4), [None, 0])
    >>> print(mapper.spec(2), *mapper.boxes((4, 3))[1])
    <@mesh, [{"columns"}, {}]> [1:2, 0:3]
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
        start = None if offset is None else as_point(offset, "offset", chips.ndim)
        sub_mesh(chips, shape, start)
        if len(each) != len(shape):
            raise WeftError(
                f"{len(each)} placements for the {len(shape)} axes of a mesh of shape {shape}",
                hint="give one for each axis: a dimension, or None to replicate",
            )
        axes = tuple(range(len(each))) if order is None else as_point(order, "order")
        if sorted(axes) != list(range(len(each))):
            raise WeftError(f"order must list each of {len(each)} axes once, major first: {axes}")
        ordered = _normal_order(each, axes)
        freeze(self, mesh=chips, placements=each, over=shape, offset=start, order=ordered)

    @property
    def cells(self) -> DeviceMesh:
        """The chips of the distribution, in the shape `over`."""
        return sub_mesh(self.mesh, self.over, self.offset)

    def spec(self, ndim: int) -> ShardingSpec:
        """Return the sharding of a tensor of that rank on `cells`; it leaves groups out."""
        return _spec(self, as_count(ndim, "ndim"))

    def sharded_dims(self, shape: Sequence[int]) -> tuple[ShardedDim, ...]:
        """Return how each dimension of a tensor of that shape is cut."""
        sizes = as_shape(shape)
        spec = self.spec(len(sizes))
        dims = []
        for dim, (size, count, digits) in enumerate(zip(sizes, spec.grid, spec.digits)):
            groups: Point = (size,)
            for axis in (digit.dim for digit in digits):
                more = _groups(self.placements[axis], dim, size, spec.mesh, axis)
                if len(more) > 1 and len(groups) > 1 and more != groups:
                    raise LayoutError(
                        f"dimension {dim} of size {size} has groups {groups}, "
                        f"and {more} for mesh axis {_named(spec.mesh, axis)}"
                    )
                groups = more if len(more) > 1 else groups
            groups = groups if count > 1 else (size,)
            dims.append(ShardedDim(dim, BlockGrid.cut(groups, (count,) * len(groups)), digits))
        return tuple(dims)

    def boxes(self, shape: Sequence[int]) -> list[tuple[ZRange, ...]]:
        """Return, for each chip of the mesh in order, the boxes of the tensor that it holds.

        A chip holds one box, or with interleaved shards one for each group, the groups of the last
        dimension running fastest. A chip outside the distribution holds none.
        """
        cells, dims = self.cells, self.sharded_dims(shape)
        if all(len(each.groups) == 1 for each in dims):
            by_cell: list[tuple[ZRange, ...]] = [(b,) for b in self.spec(len(dims)).regions(shape)]
        else:
            by_cell = [boxes_at(dims, coord) for coord in cells.cells()]
        boxes = dict(zip(map(cells.device, range(cells.size)), by_cell))
        return [boxes.get(self.mesh.device(rank), ()) for rank in range(self.mesh.size)]

    def local_shape(self, shape: Sequence[int], coord: Sequence[int]) -> Point:
        """Return the shape of the shard of the chip at a coordinate of the distribution."""
        at = self.cells.coord(tuple(coord))
        return tuple(sum(each.extents(each.block(at))) for each in self.sharded_dims(shape))


@lru_cache(maxsize=64)
def _spec(mapper: Mapper, ndim: int) -> ShardingSpec:
    cells = mapper.cells
    axes: list[list[str]] = [[] for _ in range(ndim)]
    for axis in mapper.order:
        if isinstance(placement := mapper.placements[axis], Shard):
            if not -ndim <= placement.dim < ndim:
                raise LayoutError(
                    f"mesh axis {_named(cells, axis)} cuts dimension {placement.dim} of a "
                    f"tensor that has {ndim} dimensions",
                    hint=f"dimensions count from 0 to {ndim - 1}, or from -{ndim} to -1",
                )
            axes[placement.dim].append(cells.axis_names[axis])
    return ShardingSpec(cells, map(DimSpec, axes))


def boxes_at(dims: Iterable[ShardedDim], coord: Point) -> tuple[ZRange, ...]:
    """Return the boxes of a tensor that the chip at a coordinate of the distribution holds."""
    sides = product(*(each.spans(each.block(coord)) for each in dims))
    return tuple(ZRange([low for low, _ in side], [high for _, high in side]) for side in sides)


def _normal_order(placements: Sequence[Placement], order: Point) -> Point:
    """Return the order with only those axes moved that cut the same dimension.

    If some dimensions count from the end and some from the start, all stay as given: without the
    rank of the tensor it is unknown which are the same.
    """
    if len({each.dim < 0 for each in placements if isinstance(each, Shard)}) > 1:
        return order
    normal = list(range(len(order)))
    by_dim: dict[int, list[int]] = {}
    for axis in order:
        if isinstance(placement := placements[axis], Shard):
            by_dim.setdefault(placement.dim, []).append(axis)
    for axes in by_dim.values():
        for place, axis in zip(sorted(axes), axes):
            normal[place] = axis
    return tuple(normal)


def _named(mesh: DeviceMesh, axis: int) -> str:
    return f'"{mesh.axis_names[axis]}"={mesh.shape[axis]}'


def _groups(placement: Placement, dim: int, size: int, mesh: DeviceMesh, axis: int) -> Point:
    """Return the sizes of the groups that a placement gives a dimension."""
    groups = placement.groups if isinstance(placement, Shard) else 1
    what = f"dimension {dim} of size {size}, cut by mesh axis {_named(mesh, axis)},"
    if isinstance(groups, int):
        if size % groups:
            rest = f"{size} = {groups} x {size // groups} + {size % groups}"
            raise LayoutError(f"{what} does not have {groups} equal groups: {rest}")
        return (size // groups,) * groups
    if sum(groups) != size:
        total = " + ".join(map(str, groups))
        raise LayoutError(f"{what} is not the sum of its groups: {total} = {sum(groups)}")
    return groups


# -- the mappers of ttnn


def ShardTensorToMesh(mesh_device: Mesh, dim: int) -> Mapper:  # noqa: N802
    """Cut one dimension over all chips of a mesh, row by row.

    >>> [len(boxes) for boxes in ShardTensorToMesh((2, 4), dim=0).boxes((8, 3))]
    [1, 1, 1, 1, 1, 1, 1, 1]
    """
    mesh = as_mesh(mesh_device)
    return Mapper(mesh, [Shard(dim)] * mesh.ndim)


def ShardTensor2dMesh(  # noqa: N802
    mesh_device: Mesh,
    mesh_shape: Sequence[int] | None = None,
    dims: Sequence[Placement | int | None] = (),
) -> Mapper:
    """Cut `dims[0]` over the rows of a mesh and `dims[1]` over its columns; None replicates.

    >>> mapper = ShardTensor2dMesh((2, 4), dims=[None, 0])
    >>> print(*mapper.boxes((4, 32))[6])
    [2:3, 0:32]
    """
    if len(dims) != 2:
        raise WeftError(f"a 2-D mesh needs two dims, for its rows and its columns: {dims!r}")
    return Mapper(mesh_device, dims, over=mesh_shape)


def ReplicateTensorToMesh(mesh_device: Mesh) -> Mapper:  # noqa: N802
    """Give every chip of a mesh the whole tensor.

    >>> {str(box) for (box,) in ReplicateTensorToMesh((2, 4)).boxes((5,))}
    {'[0:5]'}
    """
    mesh = as_mesh(mesh_device)
    return Mapper(mesh, [Replicate()] * mesh.ndim)


# -- shardings


def to_spec(mapper: Mapper, ndim: int) -> ShardingSpec:
    """Return a mapper as the sharding of a tensor of that rank, on the chips that it uses.

    >>> print(to_spec(ShardTensor2dMesh((2, 4), dims=[3, None]), ndim=4))
    <@mesh, [{}, {}, {}, {"rows"}]>
    """
    for placement in mapper.placements:
        if isinstance(placement, Shard) and placement.groups != 1:
            raise LayoutError(
                f"{placement} is interleaved, and a sharding cuts a dimension in one piece",
                hint="plain(mapper, shape) makes the groups a dimension",
            )
    return mapper.spec(ndim)


def from_spec(sharding: ShardingSpec | str, mesh: Mesh | None = None) -> Mapper:
    """Return a sharding as a mapper: one placement for each axis, or part of an axis, of its mesh.

    The mesh is needed if the sharding is given as text.

    >>> from_spec('<@m, [{"y"}, {"x"}]>', '@m = <["x"=2, "y"=4]>').placements
    (Shard(dim=1, groups=1), Shard(dim=0, groups=1))
    """
    spec = sharding
    if not isinstance(spec, ShardingSpec):
        spec = ShardingSpec.parse(spec, () if mesh is None else as_mesh(mesh))
    refuse_cut_points(spec, "a mapper")
    if spec.partial:
        axes = ", ".join(map(str, spec.partial))
        raise LayoutError(
            f"{spec} holds parts that are not combined yet, along {axes}",
            hint="reshard it first",
        )
    # Sub-axes become axes of the mapper: cut each mesh axis at the ends of its digits.
    mapper_axes: list[Digit] = []
    for axis, size in enumerate(spec.mesh.shape):
        digits = [digit for cut in spec.digits for digit in cut if digit.dim == axis]
        ends = {size, 1, *(d.divisor for d in digits), *(d.divisor * d.radix for d in digits)}
        edges = sorted(ends, reverse=True) if size > 1 else [1, 1]
        mapper_axes += [Digit(axis, low, high // low, 1) for high, low in pairwise(edges)]
    placements: list[Shard | Replicate] = [Replicate()] * len(mapper_axes)
    order: list[int] = []
    for dim, cut in enumerate(spec.digits):
        for digit in cut:
            for place, each in enumerate(mapper_axes):
                if each.dim == digit.dim and (
                    digit.divisor <= each.divisor
                    and each.divisor * each.radix <= digit.divisor * digit.radix
                ):
                    placements[place] = Shard(dim)
                    order.append(place)
    order += [place for place in range(len(mapper_axes)) if place not in order]
    return Mapper(spec.mesh, placements, [axis.radix for axis in mapper_axes], order=order)


def plain(mapper: Mapper, shape: Sequence[int]) -> tuple[Mapper, Point]:
    """Return an interleaved mapper without groups, and the shape that has them as dimensions.

    >>> mapper, shape = plain(Mapper((4,), [Shard(1, groups=3)]), (8, 24))
    >>> print(shape, mapper.placements)
    (8, 3, 8) (Shard(dim=2, groups=1),)
    """
    view: list[int] = []
    moved: list[int] = []
    for each in mapper.sharded_dims(shape):
        if not each.is_regular:
            raise LayoutError(
                f"{each.describe(mapper.cells)}; its groups {each.groups} are not a plain view"
            )
        view += [len(each.groups)] * (len(each.groups) > 1) + [each.groups[0]]
        moved.append(len(view) - 1)
    placements = [
        Shard(moved[each.dim]) if isinstance(each, Shard) else each for each in mapper.placements
    ]
    plain_mapper = Mapper(mapper.mesh, placements, mapper.over, mapper.offset, mapper.order)
    return plain_mapper, tuple(view)


# -- what ttnn's own mapper does


def runtime_shards(
    shape: Iterable[int],
    mesh: Mesh,
    placements: Iterable[Placement | int | None],
    mesh_shape_override: Iterable[int] | None = None,
    mesh_offset_override: Iterable[int] = (),
) -> list[tuple[Point, ZRange]]:
    """Return the coordinate and box of every chip that gets a shard from ttnn's own mapper.

    Weft distributes more than ttnn does: one dimension over several axes, short and empty shards.
    Here those are refused, rule by rule in ttnn's order; `make parity` compares the two.

    >>> for coord, box in runtime_shards((4, 6), (2, 2), [None, 1]):
    ...     print(coord, box)
    (0, 0) [0:4, 0:3]
    (0, 1) [0:4, 3:6]
    (1, 0) [0:4, 0:3]
    (1, 1) [0:4, 3:6]
    """
    chips, each = as_mesh(mesh), tuple(map(as_placement, placements))
    over = chips.shape if mesh_shape_override is None else as_point(mesh_shape_override, "override")
    offset = as_point(mesh_offset_override, "offset")
    _check_override(chips.shape, each, over, offset)
    mapper = Mapper(chips, each, over, offset if any(offset) else None)
    dims = mapper.sharded_dims(as_shape(shape))
    cut = [dim for dim in dims if dim.axes]
    _check_chunks(cut, len(each))
    spec = mapper.spec(len(dims))
    devices = map(spec.mesh.device, range(spec.mesh.size))
    shards = list(zip(map(chips.coord, devices), spec.regions([dim.size for dim in dims])))
    return shards[: prod(map(_chunk_count, cut))] if cut and len(over) == 1 else shards


def _check_override(
    mesh: Point, placements: Sequence[Placement], over: Point, offset: Point
) -> None:
    """Raise for what ttnn refuses when a mapper is created."""
    if prod(over) > prod(mesh):
        raise LayoutError(f"a distribution over {over} needs {prod(over)} chips of {prod(mesh)}")
    if len(placements) != len(over):
        raise LayoutError(f"{len(placements)} placements for the {len(over)} axes of {over}")
    if not any(offset):
        return
    if not fits(over, mesh):
        raise LayoutError(
            f"a distribution over {over} rearranges the chips of a mesh {mesh}, "
            f"which allows no offset: {offset}"
        )
    if len(offset) != len(mesh):
        raise LayoutError(
            f"offset {offset} has {len(offset)} axes; the mesh {mesh} has {len(mesh)}"
        )
    for axis, (low, size, most) in enumerate(zip(offset, over, mesh)):
        if low + size > most:
            raise LayoutError(f"mesh axis {axis} of size {most} ends before {low} + {size}")


def _check_chunks(cut: Sequence[ShardedDim], mapper_axes: int) -> None:
    """Raise for what ttnn refuses when a tensor is distributed."""
    for each in cut:
        if len(each.groups) > 1:
            raise LayoutError(f"dimension {each.dim} is interleaved, which ttnn does not support")
        if len(each.axes) > 1:
            raise LayoutError(
                f"dimension {each.dim} is cut by mesh axes {each.axes}; ttnn's mapper cuts "
                "each dimension by one",
                hint="lower it with Weft, or give the mesh as one axis",
            )
    for each in cut:
        if each.size == 0:
            raise LayoutError(f"dimension {each.dim} of size 0 has no chunks")
    for each in cut:
        if mapper_axes > 1 and _chunk_count(each) != each.count:
            raise LayoutError(
                f"dimension {each.dim} of size {each.size} makes {_chunk_count(each)} chunks for "
                f"the {each.count} chips of mesh axis {each.axes[0]}"
            )
    for each in cut:
        if each.size % _chunk_count(each):
            raise LayoutError(
                f"dimension {each.dim} of size {each.size} makes chunks of "
                f"{each.grid.block_shape[0]} and a shorter last one over mesh axis "
                f"{each.axes[0]}={each.count}"
            )


def _chunk_count(each: ShardedDim) -> int:
    """Return the number of blocks that are not empty: ttnn creates only those."""
    return sum(blocks.count for blocks in each.grid.classes(0) if blocks.extent)
