"""Spread the cut points that are written on values to the index spaces and values cut alike.

Axes are propagated first. Where the same axes then cut a dimension of a value and the index
dimension that runs over it, the two are cut at the same points; from there the points go on to the
other operands and results. A dimension that is written without cut points keeps blocks of one size.
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
                    (name, dim)
                    for name, dim in _plain(one, index, shapes)
                    if axes and specs[name].dim_specs[dim].axes == axes
                ]
                known = [found[name][dim] for name, dim in places if dim in found[name]]
                if not known:
                    continue
                points = own.setdefault(index, known[0])
                for name, dim in places:
                    if dim not in found[name] and dim not in closed.get(name, ()):
                        found[name][dim] = points
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


def _plain(
    one: RuledApplication, index: str, shapes: Mapping[str, Point]
) -> Iterator[tuple[str, int]]:
    """Yield the dimensions of operands and results that an index dimension runs over as it is."""
    line = one.signature
    if index not in line.sizes or one.application.regions:
        return
    names = one.application.operands + one.application.results
    rows: Sequence[Sequence[Row]] = (*line.notation.operands, *line.notation.results)
    for name, of_value in zip(names, rows):
        for dim, row in enumerate(of_value):
            if row.plain == index and line.sizes[index] == shapes[name][dim]:
                yield name, dim
