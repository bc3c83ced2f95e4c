"""Shardings and plans as DTensor placements, and back, where both can express them.

DTensor has one placement for each mesh dimension, and cuts by one after the other. Open dimensions
and priorities have no placement and are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from weft.errors import LayoutError
from weft.lang.graph import located
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.layout.sharding import refuse_cut_points
from weft.layout.shardy_text import write_axis
from weft.plan import Plan
from weft.space import BlockGrid
from weft.values import Point, as_shape

try:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "DTensor's placements need torch, which is not installed: pip install 'weft[torch]'",
        name=error.name,
    ) from None

_REDUCTIONS = {"sum": "sum", "prod": "product", "max": "max", "min": "min"}
"""DTensor's names of monoids."""


class Placements(NamedTuple):
    """The placements of a plan's inputs and outputs: one for each axis of the mesh."""

    inputs: Mapping[str, tuple[Any, ...]]
    """By the names of the graph's inputs: parameters, buffers and arguments."""
    outputs: tuple[tuple[Any, ...], ...]


def to_dtensor(plan: Plan) -> Placements:
    """Return the placements of a plan's inputs and outputs, on a mesh of ranks of its shape.

    A sharding that DTensor cannot express is an error that names the value.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 16), (16, 4),
    ...     meshes=['@m = <["dp"=2, "tp"=2]>'],
    ...     shardings={"x": '<@m, [{"dp"}, {}]>', "w": '<@m, [{}, {"tp"}]>'},
    ... )
    >>> placements = to_dtensor(Plan.of(propagate(graph)))
    >>> placements.inputs["w"], placements.outputs[0]
    ((Replicate(), Shard(dim=1)), (Shard(dim=0), Shard(dim=1)))
    """
    values = plan.graph.values

    def placements(what: str, name: str, spec: ShardingSpec) -> tuple[Any, ...]:
        with located(f"{what} {name}"):
            return to_dtensor_placements(spec, values[name].shape)

    inputs = {v.name: placements("input", v.name, plan.specs[v.name]) for v in plan.graph.inputs}
    returned = zip(plan.graph.outputs, plan.outputs)
    return Placements(inputs, tuple(placements("output", name, spec) for name, spec in returned))


def to_dtensor_placements(
    spec: ShardingSpec, shape: Iterable[int] | None = None
) -> tuple[Any, ...]:
    """Return the placements of a sharding, one for each axis of its mesh.

    Axes that cut a dimension in another order than the mesh's need DTensor's `_StridedShard`.
    With a shape, it is checked that both give the same boxes to the same cells: they do if shards
    are even, and not always if two axes cut one dimension unevenly.

    >>> mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    >>> to_dtensor_placements(ShardingSpec.parse('<@m, [{}, {"tp"}], unreduced={"dp"}>', mesh))
    (Partial(sum), Shard(dim=1))
    """
    refuse_cut_points(spec, "DTensor")
    mesh = spec.mesh
    by_axis: dict[Axis, Any] = {name: Replicate() for name in mesh.axis_names}
    for dim, cut in enumerate(spec.dim_specs):
        for place, axis in enumerate(cut.axes):
            _check_whole(axis, f"cuts dimension {dim}")
            later = mesh.axis_names[mesh.axis_names.index(str(axis)) :]
            factor = prod(mesh.axis_size(major) for major in cut.axes[:place] if major in later)
            by_axis[axis] = Shard(dim) if factor == 1 else _StridedShard(dim, split_factor=factor)
    _check_one_monoid(spec)
    for axis, monoid in spec.partial.items():
        _check_whole(axis, f"is unreduced by {monoid}")
        if monoid not in _REDUCTIONS:
            raise LayoutError(
                f"axis {write_axis(axis)} is unreduced by {monoid}, and DTensor reduces by "
                f"{', '.join(_REDUCTIONS)} only"
            )
        by_axis[axis] = Partial(_REDUCTIONS[monoid])
    if shape is not None:
        _check_blocks(spec, as_shape(shape, spec.ndim))
    return tuple(by_axis.values())


def from_dtensor_placements(
    mesh: DeviceMesh | str, placements: Sequence[Any], ndim: int, shape: Iterable[int] | None = None
) -> ShardingSpec:
    """Return the sharding of an array of that rank that placements on a mesh describe.

    >>> mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    >>> print(from_dtensor_placements(mesh, [Partial("max"), Shard(-1)], ndim=2))
    <@m, [{}, {"tp"}], unreduced=max{"dp"}>
    """
    mesh = DeviceMesh.parse(mesh)
    if len(placements) != len(mesh.shape):
        raise LayoutError(
            f"{len(placements)} placements are given for the {len(mesh.shape)} axes of {mesh}"
        )
    cuts: list[list[str]] = [[] for _ in range(ndim)]
    partial: dict[Axis, str] = {}
    for axis, placement in reversed(list(zip(mesh.axis_names, placements))):
        if isinstance(placement, Shard | _StridedShard):
            cut = cuts[_dim(axis, placement, ndim)]
            cut.insert(_position(mesh, axis, placement, cut), axis)
        elif isinstance(placement, Partial):
            partial[axis] = _monoid(axis, placement)
        elif not isinstance(placement, Replicate):
            raise LayoutError(f'the placement of axis "{axis}" is {placement!r}, which is unknown')
    spec = ShardingSpec(mesh, map(DimSpec, cuts), (), partial)
    _check_one_monoid(spec)
    if shape is not None:
        _check_blocks(spec, as_shape(shape, ndim))
    return spec


def _dim(axis: str, placement: Any, ndim: int) -> int:
    dim = int(placement.dim)
    if not -ndim <= dim < ndim:
        raise LayoutError(f'axis "{axis}" cuts dimension {dim} of an array of rank {ndim}')
    return dim % ndim


def _position(mesh: DeviceMesh, axis: str, placement: Any, later: list[str]) -> int:
    """Return the number of later axes of the mesh that are major to this one."""
    factor, before = int(getattr(placement, "split_factor", 1)), 1
    for place, name in enumerate([*later, ""]):
        if before == factor:
            return place
        before *= mesh.axis_size(name) if name else 1
    sizes = ", ".join(f'"{name}"={mesh.axis_size(name)}' for name in later) or "none"
    raise LayoutError(
        f'axis "{axis}" cuts after {factor} parts, and the later axes of the dimension are {sizes}'
    )


def _monoid(axis: str, placement: Any) -> str:
    for monoid, name in _REDUCTIONS.items():
        if placement.reduce_op == name and not isinstance(placement, _MaskPartial):
            return monoid
    raise LayoutError(f'axis "{axis}" is {placement!r}, which is not a monoid of the values alone')


def _check_whole(axis: Axis, role: str) -> None:
    if not isinstance(axis, str):
        raise LayoutError(
            f"axis {write_axis(axis)} {role}, and DTensor has a placement for whole axes only",
            hint="make the parts of the axis axes of the mesh",
        )


def _check_one_monoid(spec: ShardingSpec) -> None:
    monoids = list(dict.fromkeys(spec.partial.values()))
    if len(monoids) > 1:
        raise LayoutError(
            f"{spec} is unreduced by {' and '.join(monoids)}: minor axes are combined first, and "
            "DTensor does not say which are"
        )


def _check_blocks(spec: ShardingSpec, shape: Point) -> None:
    """Raise for a shape of which DTensor would give the cells other boxes."""
    names, padded = spec.mesh.axis_names, spec.shard_shape(shape)
    for dim, (n, count, cut) in enumerate(zip(shape, spec.grid, spec.dim_specs)):
        axes = [str(axis) for axis in cut.axes if spec.mesh.axis_size(axis) > 1]
        if n % count and axes != sorted(axes, key=names.index):
            raise LayoutError(
                f"dimension {dim} of size {n} is cut by {cut}, not in the order of the mesh, and "
                f"{n} = {count} x {n // count} + {n % count}: DTensor's strided shards are not "
                "boxes",
                hint=f"pad to {padded[dim] * count}, or cut in the order of the mesh",
            )
        theirs = [(0, n)]
        for axis in axes:
            theirs = [part for one in theirs for part in _chunks(*one, spec.mesh.axis_size(axis))]
        for k, (mine, other) in enumerate(zip(_chunks(0, n, count), theirs)):
            if mine != other and (mine[0] < mine[1] or other[0] < other[1]):
                raise LayoutError(
                    f"block {k} of dimension {dim} of size {n}, cut by {cut}, is "
                    f"[{mine[0]}:{mine[1]}], and [{other[0]}:{other[1]}] in DTensor, which cuts by "
                    "one axis after the other",
                    hint=f"pad to {padded[dim] * count}, or cut by one axis",
                )


def _chunks(low: int, high: int, count: int) -> list[tuple[int, int]]:
    """Return a range in blocks, as `torch.chunk` cuts it."""
    edges = BlockGrid.cut((high - low,), (count,)).edges_of(0)
    return [(low + a, low + b) for a, b in pairwise(edges)]
