"""JAX functions as graphs, and shardings as `jax.sharding.NamedSharding`, and back.

Open dimensions and priorities are dropped, except that a dimension that JAX leaves unconstrained is
open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from weft.errors import LayoutError, WeftError
from weft.interop.stablehlo import Builder, parse
from weft.lang import Graph
from weft.lang.graph import located
from weft.lang.size import Size
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.layout.sharding import refuse_cut_points
from weft.layout.shardy_text import write_axis
from weft.plan import Plan
from weft.values import Point, as_shape

try:
    import jax
    import numpy as np
    from jax.export import Exported, export, is_symbolic_dim
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"JAX shardings need {error.name}, which is not installed: pip install 'weft[jax]'",
        name=error.name,
    ) from None


class JaxShardings(NamedTuple):
    """The shardings of a function's arguments and results."""

    inputs: Mapping[str, Any]
    """By the names of the graph's inputs, in their order."""
    outputs: tuple[Any, ...]


def from_jax(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
    """Return a JAX function, jitted or not, as a graph; arguments may be shapes and dtypes only.

    Inputs are named by the parameters of the function and the keys of pytrees. Shardings given to
    JAX are kept. Operations that no operator describes are opaque; `stablehlo.opaque` lists them.

    Shapes may be symbolic (`jax.export.symbolic_shape`): they become sizes that are not known yet,
    and their constraints conditions of the graph. A function of `jax.export` is read as it is.

    >>> layer = lambda p, x: jax.numpy.tanh(x @ p["w"])
    >>> given = {"w": jax.ShapeDtypeStruct((16, 4), "float32")}
    >>> graph = from_jax(layer, given, jax.ShapeDtypeStruct((8, 16), "float32"))
    >>> print(*graph.inputs, [application.operator for application in graph.applications])
    p.w: float32[16, 4] x: float32[8, 16] ['dot_general', 'tanh']
    """
    if isinstance(function, Exported):
        if args or kwargs:
            raise WeftError(
                "an exported function has its arguments already", hint="give it to from_jax alone"
            )
        return _read_exported(function)
    jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
    leaves = jax.tree.leaves((args, kwargs))
    if any(is_symbolic_dim(n) for leaf in leaves for n in getattr(leaf, "shape", ())):
        return _read_exported(export(jitted)(*args, **kwargs))
    return Builder(
        parse(jitted.lower(*args, **kwargs).as_text(debug_info=True)), labelled=True
    ).graph()


def _read_exported(exported: Any) -> Graph:
    """Return an exported function as a graph; the sizes of its arguments are those of its avals."""
    avals = [exported.in_avals[n] for n in exported.module_kept_var_idx]
    shapes = [tuple(map(_size, aval.shape)) for aval in avals]
    return Builder(parse(exported.mlir_module()), shapes=shapes, labelled=True).graph()


def _size(size: Any) -> Any:
    """Return a size of JAX, which may be an expression in names."""
    try:
        return size if isinstance(size, int) else Size.parse(str(size).replace("^", "**"))
    except WeftError:
        raise WeftError(
            f"an argument has the size {size}, which Weft does not read",
            hint="give its dimensions names, and products of names and numbers",
        ) from None


def to_jax(plan: Plan, mesh: Any = None) -> JaxShardings:
    """Return the shardings of a plan's inputs and outputs, on a JAX mesh or on the plan's.

    A given mesh must have the axes of the plan's, by name and size, on any devices.
    `jax.tree.unflatten(jax.tree.structure(args), shardings.inputs.values())` is what
    `jax.jit` takes as `in_shardings` for a function that was read by `from_jax`.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 16), (16, 4),
    ...     meshes=['@m = <["dp"=1]>'], shardings={"x": '<@m, [{"dp"}, {}]>'},
    ... )
    >>> shardings = to_jax(Plan.of(propagate(graph)))
    >>> shardings.inputs["x"].spec, shardings.outputs[0].spec
    (P('dp', None), P('dp', None))
    """
    if mesh is not None:
        _check_mesh(plan.mesh, mesh)

    def sharding(what: str, name: str, spec: ShardingSpec) -> Any:
        with located(f"{what} {name}"):
            shape = plan.graph.values[name].shape
            if mesh is None:
                return to_named_sharding(spec, shape=shape)
            return NamedSharding(mesh, _partition(spec, shape))

    inputs = {v.name: sharding("input", v.name, plan.specs[v.name]) for v in plan.graph.inputs}
    returned = zip(plan.graph.outputs, plan.outputs)
    return JaxShardings(inputs, tuple(sharding("output", name, spec) for name, spec in returned))


def to_named_sharding(
    spec: ShardingSpec, devices: Sequence[Any] | None = None, shape: Iterable[int] | None = None
) -> Any:
    """Return the `NamedSharding` of a sharding; device k of the mesh is the k-th of the devices.

    Sums over axes become JAX's `unreduced`, which needs these axes to be explicit. With a shape, a
    sharding with uneven shards is an error: JAX has none.

    >>> mesh = DeviceMesh("m", (1, 1), ("dp", "tp"))
    >>> spec = ShardingSpec.parse('<@m, [{"dp", "tp"}, {}]>', mesh)
    >>> to_named_sharding(spec).spec
    P(('dp', 'tp'), None)
    """
    partition = _partition(spec, shape)
    given = jax.devices() if devices is None else devices
    return NamedSharding(_mesh(spec.mesh, given, partition.unreduced), partition)


def from_named_sharding(sharding: Any, ndim: int | None = None, name: str = "mesh") -> ShardingSpec:
    """Return the sharding that a `NamedSharding` describes, for an array of rank `ndim`.

    The mesh gets a name, because JAX's has none, and the ids of its devices.

    >>> from jax.sharding import AbstractMesh
    >>> sharding = NamedSharding(AbstractMesh((2, 4), ("x", "y")), PartitionSpec(None, ("y", "x")))
    >>> print(from_named_sharding(sharding, ndim=3))
    <@mesh, [{}, {"y", "x"}, {}]>
    """
    if not isinstance(sharding, NamedSharding):
        raise LayoutError(
            f"expected a NamedSharding, got {sharding}",
            hint="convert it to a jax.sharding.NamedSharding",
        )
    partition, parts = sharding.spec, sharding.spec.partitions
    rank = len(parts) if ndim is None else ndim
    if rank < len(parts):
        raise LayoutError(f"{partition} has {len(parts)} dimensions, and the array has {rank}")
    dims = [_dim_spec(part) for part in parts] + [DimSpec()] * (rank - len(parts))
    partial = [(str(axis), "sum") for axis in partition.unreduced]
    return ShardingSpec(_device_mesh(sharding.mesh, name), dims, sorted(partition.reduced), partial)


def _check_mesh(mine: DeviceMesh, theirs: Any) -> None:
    wanted, given = dict(zip(mine.axis_names, mine.shape)), dict(theirs.shape)
    if wanted != given:
        raise LayoutError(
            f"the plan is for {mine}, and the JAX mesh has {given or 'no axes'}",
            hint="make a mesh with the same axes: jax.make_mesh",
        )


def _partition(spec: ShardingSpec, shape: Iterable[int] | None) -> Any:
    refuse_cut_points(spec, "JAX")
    parts = [_part(dim, cut) for dim, cut in enumerate(spec.dim_specs)]
    for axis, monoid in spec.partial.items():
        name = _whole(axis, f"is unreduced by {monoid}")
        if monoid != "sum":
            raise LayoutError(
                f'axis "{name}" is unreduced by {monoid}, and unreduced is a sum in JAX'
            )
    if shape is not None:
        _check_even(spec, as_shape(shape, spec.ndim))
    return PartitionSpec(*parts, unreduced=frozenset(map(str, spec.partial)))


def _part(dim: int, cut: DimSpec) -> Any:
    axes = tuple(_whole(axis, f"cuts dimension {dim}") for axis in cut.axes)
    return axes if len(axes) > 1 else axes[0] if axes else None


def _whole(axis: Axis, role: str) -> str:
    if isinstance(axis, str):
        return axis
    raise LayoutError(
        f"axis {write_axis(axis)} {role}, and JAX names whole axes only",
        hint="make the parts of the axis axes of the mesh",
    )


def _check_even(spec: ShardingSpec, shape: Point) -> None:
    for dim, (n, count, cut) in enumerate(zip(shape, spec.grid, spec.dim_specs)):
        if n % count:
            raise LayoutError(
                f"dimension {dim} of size {n} is cut by {cut}, and JAX has shards of one size: "
                f"{n} = {count} x {n // count} + {n % count}",
                hint=f"pad to {spec.shard_shape(shape)[dim] * count}",
            )


def _mesh(mesh: DeviceMesh, devices: Sequence[Any], explicit: frozenset[str]) -> Any:
    ids = mesh.device_ids or range(mesh.size)
    most = max(ids, default=-1)
    if most >= len(devices):
        raise LayoutError(
            f"{mesh} has device {most}, and JAX has {len(devices)} devices",
            hint="to try it on a CPU: XLA_FLAGS=--xla_force_host_platform_device_count=8",
        )
    grid = np.empty(mesh.size, dtype=object)
    grid[:] = [devices[k] for k in ids]
    types = [AxisType.Explicit if axis in explicit else AxisType.Auto for axis in mesh.axis_names]
    return Mesh(grid.reshape(mesh.shape), mesh.axis_names, axis_types=tuple(types))


def _device_mesh(mesh: Any, name: str) -> DeviceMesh:
    for axis in mesh.axis_names:
        if not isinstance(axis, str):
            raise LayoutError(f"axis {axis!r} of {mesh} is not a name")
    shape = tuple(mesh.shape.values())
    ids = [device.id for device in mesh.devices.flat] if isinstance(mesh, Mesh) else None
    in_order = ids == list(range(len(ids or ())))
    return DeviceMesh(name, shape, mesh.axis_names, None if in_order else ids)


def _dim_spec(part: Any) -> DimSpec:
    if part is PartitionSpec.UNCONSTRAINED:
        return DimSpec(is_open=True)
    return DimSpec(() if part is None else (part,) if isinstance(part, str) else part)
