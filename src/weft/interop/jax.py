"""Shardings as `jax.sharding.NamedSharding`, and back, where both can say the same.

What propagation may still add to a sharding is left out, but for a dimension that JAX leaves
unconstrained: it is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weft.errors import LayoutError
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.text.shardy import write_axis
from weft.values import Point, as_shape

try:
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"JAX's shardings need {error.name}, which is not installed: pip install 'weft[jax]'",
        name=error.name,
    ) from None


def to_named_sharding(
    spec: ShardingSpec, devices: Sequence[Any] | None = None, shape: Iterable[int] | None = None
) -> Any:
    """The `NamedSharding` of a sharding; device k of the mesh is the k-th of the devices.

    Sums over axes become JAX's `unreduced`, which wants these axes to be explicit. With the shape
    of the array, one that JAX cannot cut is refused: its shards have one size.

    >>> mesh = DeviceMesh("m", (1, 1), ("dp", "tp"))
    >>> spec = ShardingSpec.parse('<@m, [{"dp", "tp"}, {}]>', mesh)
    >>> to_named_sharding(spec).spec
    P(('dp', 'tp'), None)
    """
    parts = [_part(dim, cut) for dim, cut in enumerate(spec.dim_specs)]
    for axis, monoid in spec.partial.items():
        name = _whole(axis, f"is unreduced by {monoid}")
        if monoid != "sum":
            raise LayoutError(
                f'axis "{name}" is unreduced by {monoid}, and unreduced is a sum in JAX'
            )
    if shape is not None:
        _check_even(spec, as_shape(shape, spec.ndim))
    unreduced = frozenset(map(str, spec.partial))
    mesh = _mesh(spec.mesh, jax.devices() if devices is None else devices, unreduced)
    return NamedSharding(mesh, PartitionSpec(*parts, unreduced=unreduced))


def from_named_sharding(sharding: Any, ndim: int | None = None, name: str = "mesh") -> ShardingSpec:
    """The sharding that a `NamedSharding` describes, for an array of rank `ndim` if that is more.

    The mesh gets a name, which JAX does not give it. Its devices are known by their ids.

    >>> from jax.sharding import AbstractMesh
    >>> sharding = NamedSharding(AbstractMesh((2, 4), ("x", "y")), PartitionSpec(None, ("y", "x")))
    >>> print(from_named_sharding(sharding, ndim=3))
    <@mesh, [{}, {"y", "x"}, {}]>
    """
    if not isinstance(sharding, NamedSharding):
        raise LayoutError(
            f"a {type(sharding).__name__} names no axes of a mesh, got {sharding}",
            hint="give a jax.sharding.NamedSharding",
        )
    said, parts = sharding.spec, sharding.spec.partitions
    rank = len(parts) if ndim is None else ndim
    if rank < len(parts):
        raise LayoutError(f"{said} speaks of {len(parts)} dimensions, and the array has {rank}")
    dims = [_dim_spec(part) for part in parts] + [DimSpec()] * (rank - len(parts))
    partial = [(str(axis), "sum") for axis in said.unreduced]
    return ShardingSpec(_device_mesh(sharding.mesh, name), dims, sorted(said.reduced), partial)


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
                hint=f"pad to {-(-n // count) * count}",
            )


def _mesh(mesh: DeviceMesh, devices: Sequence[Any], explicit: frozenset[str]) -> Any:
    ids = mesh.device_ids or range(mesh.size)
    most = max(ids, default=-1)
    if most >= len(devices):
        raise LayoutError(
            f"{mesh} has device {most}, and JAX has {len(devices)} devices",
            hint="for tries on a CPU: XLA_FLAGS=--xla_force_host_platform_device_count=8",
        )
    grid = np.empty(mesh.size, dtype=object)
    grid[:] = [devices[k] for k in ids]
    types = [AxisType.Explicit if axis in explicit else AxisType.Auto for axis in mesh.axis_names]
    return Mesh(grid.reshape(mesh.shape), mesh.axis_names, axis_types=tuple(types))


def _device_mesh(mesh: Any, name: str) -> DeviceMesh:
    for axis in mesh.axis_names:
        if not isinstance(axis, str):
            raise LayoutError(f"axis {axis!r} of {mesh} is no name")
    shape = tuple(mesh.shape.values())
    ids = [device.id for device in mesh.devices.flat] if isinstance(mesh, Mesh) else None
    in_order = ids == list(range(len(ids or ())))
    return DeviceMesh(name, shape, mesh.axis_names, None if in_order else ids)


def _dim_spec(part: Any) -> DimSpec:
    if part is PartitionSpec.UNCONSTRAINED:
        return DimSpec(is_open=True)
    return DimSpec(() if part is None else (part,) if isinstance(part, str) else part)
