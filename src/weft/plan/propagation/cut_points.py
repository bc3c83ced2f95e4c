"""Spread the cut points that are written on values to the index spaces and values cut alike.

Axes are propagated first. Where the same axes then cut a dimension of a value and the index
dimension that runs over it, the two are cut at the same points; from there the points go on to the
other operands and results. In a dimension that a reshape merges, such as `32*i0+i1`, the points of
`i0` are those of the dimension divided by 32. A dimension that is written without cut points keeps
blocks of one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.errors import WeftError
from weft.lang import Row
from weft.layout import Axis, DimSpec, ShardingSpec
from weft.plan.propagation.flatten import RuledApplication
from weft.values import Point

CutPoints = Mapping[str, Point]
"""For index dimensions of an application that are not cut into blocks of one size, the points."""


def with_cut_points(spec: ShardingSpec, points: Mapping[int, Point]) -> ShardingSpec:
    """Return a sharding whose dimensions are cut at points; those dimensions are closed."""
    if not points:
        return spec
    dims = [
        DimSpec(dim.axes, False, dim.priority, points[number]) if number in points else dim
        for number, dim in enumerate(spec.dim_specs)
    ]
    return ShardingSpec(spec.mesh, dims, spec.replicated_axes, spec.partial)


def cut_points_of(spec: ShardingSpec, shape: Point) -> dict[int, Point]:
    """Return the cut points of the dimensions of an array that are not cut by the rule."""
    dims = spec.canonical(shape).dim_specs
    return {n: dim.cut_points for n, dim in enumerate(dims) if dim.cut_points is not None}


def spread_cut_points(
    applications: Sequence[RuledApplication],
    placements: Sequence[Mapping[str, tuple[Axis, ...]]],
    specs: Mapping[str, ShardingSpec],
    written: Mapping[str, ShardingSpec],
    shapes: Mapping[str, Point],
    wanted: Mapping[str, ShardingSpec],
) -> tuple[dict[str, dict[int, Point]], tuple[CutPoints, ...]]:
    """Return the cut points of values, by dimension, and those of every application.

    `written` are the shardings that values were given, `wanted` those of outputs.
    """
    if any(one.application.operator == "manual_computation" for one in applications):
        raise WeftError("cut points cannot be given together with manual computations")
    found = _given(specs, written, shapes, wanted)
    closed = {
        name: {dim for dim, cut in enumerate(spec.dim_specs) if not cut.is_open}
        for name, spec in written.items()
    }
    chosen: list[dict[str, Point]] = [{} for _ in applications]
    changes = True
    while changes:
        changes = False
        for one, placement, own in zip(applications, placements, chosen):
            for index, axes in placement.items():
                places = [
                    (name, dim, stride)
                    for name, dim, stride in _strides(one, index, shapes)
                    if axes and specs[name].dim_specs[dim].axes == axes
                ]
                known = [
                    tuple(point // stride for point in found[name][dim])
                    for name, dim, stride in places
                    if dim in found[name] and not any(p % stride for p in found[name][dim])
                ]
                if not known:
                    continue
                points = own.setdefault(index, known[0])
                for name, dim, stride in places:
                    if dim not in found[name] and dim not in closed.get(name, ()):
                        found[name][dim] = tuple(point * stride for point in points)
                        changes = True
    return found, tuple(chosen)


def _given(
    specs: Mapping[str, ShardingSpec],
    written: Mapping[str, ShardingSpec],
    shapes: Mapping[str, Point],
    wanted: Mapping[str, ShardingSpec],
) -> dict[str, dict[int, Point]]:
    """Return the cut points that are written on values, or on outputs that are cut alike."""
    found: dict[str, dict[int, Point]] = {name: {} for name in specs}
    for name, spec in written.items():
        found[name] = cut_points_of(spec, shapes[name])
        for dim in found[name]:
            if specs[name].dim_specs[dim].axes != spec.dim_specs[dim].axes:
                raise WeftError(f"{name} is to be cut as {spec}, and lies as {specs[name]}")
    for name, spec in wanted.items():
        if name not in written:
            for dim, points in cut_points_of(spec, shapes[name]).items():
                if specs[name].dim_specs[dim].axes == spec.dim_specs[dim].axes:
                    found[name][dim] = points
    return found


def _strides(
    one: RuledApplication, index: str, shapes: Mapping[str, Point]
) -> Iterator[tuple[str, int, int]]:
    """Yield the dimensions of operands and results that an index dimension cuts, with a stride.

    The index dimension runs over all of such a dimension: by itself, or as its major digit.
    """
    sizes = one.signature.sizes
    if index not in sizes or one.application.regions:
        return
    names = one.application.operands + one.application.results
    line = one.signature.notation
    rows: Sequence[Sequence[Row]] = (*line.operands, *line.results)
    for name, of_value in zip(names, rows):
        for dim, row in enumerate(of_value):
            stride = dict(row.terms).get(index, 0)
            below = sum(a * (sizes[other] - 1) for other, a in row.terms if other != index)
            is_digit = row == Row(row.terms, whole=row.whole) and below == stride - 1
            is_major = all(0 < a <= stride for _, a in row.terms)
            if is_digit and is_major and stride * sizes[index] == shapes[name][dim]:
                yield name, dim, stride
