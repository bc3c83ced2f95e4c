"""Meshes of chips as `DeviceMesh`: by shape, cut to a part, folded to rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.values import Point, as_point

Mesh: TypeAlias = DeviceMesh | Sequence[int]
"""A mesh, or its shape."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""For each axis of a mesh, from which coordinate to which."""


def as_mesh(mesh: Mesh) -> DeviceMesh:
    """A mesh, or the one of that shape.

    >>> print(as_mesh((2, 4)), as_mesh((2, 2, 2)))
    @mesh = <["rows"=2, "columns"=4]> @mesh = <["axis0"=2, "axis1"=2, "axis2"=2]>
    """
    if isinstance(mesh, DeviceMesh):
        return mesh
    shape = as_point(mesh, "mesh shape")
    if not shape:
        raise WeftError("a mesh of chips needs an axis", hint="a single chip is the mesh (1, 1)")
    return DeviceMesh("mesh", shape, axis_names(len(shape)))


def axis_names(ndim: int) -> tuple[str, ...]:
    """What the axes are called where nobody named them."""
    return ("rows", "columns") if ndim == 2 else tuple(f"axis{n}" for n in range(ndim))


def placed(mesh: DeviceMesh, over: Point, offset: Point | None) -> DeviceMesh:
    """The cells of a mesh that a distribution of shape `over` uses, with their devices.

    Where it fits axis by axis it is a part of the mesh, at `offset`; else it takes the cells of the
    mesh in order.

    >>> print(placed(as_mesh((2, 4)), (1, 2), (1, 1)))
    @mesh = <["rows"=1, "columns"=2], device_ids=[5, 6]>
    """
    fits = len(over) == mesh.ndim and all(map(int.__le__, over, mesh.shape))
    if fits or offset is not None:
        at = (0,) * mesh.ndim if offset is None else as_point(offset, "offset", mesh.ndim)
        if len(over) != mesh.ndim or min(over) < 1:
            raise WeftError(f"a part of shape {over} is no part of {mesh}")
        ranges = tuple((low, low + size) for low, size in zip(at, over))
        for name, (low, high), size in zip(mesh.axis_names, ranges, mesh.shape):
            if low < 0 or high > size:
                raise WeftError(
                    f'a part from {low} to {high} does not fit mesh axis "{name}"={size}'
                )
        return part_of(mesh, ranges)
    if prod(over) > mesh.size or min(over, default=1) < 1:
        raise WeftError(f"a distribution over {over} needs {prod(over)} chips: {mesh}")
    names = mesh.axis_names if len(over) == mesh.ndim else axis_names(len(over))
    return DeviceMesh(mesh.name, over, names, map(mesh.device, range(prod(over))))


def part_of(mesh: DeviceMesh, ranges: Ranges) -> DeviceMesh:
    """A box of a mesh as a mesh, with the devices it has there."""
    shape = tuple(high - low for low, high in ranges)
    if shape == mesh.shape:
        return mesh
    cells = product(*(range(low, high) for low, high in ranges))
    return DeviceMesh(mesh.name, shape, mesh.axis_names, map(mesh.device, cells))


def folded(mesh: DeviceMesh, fold: int) -> DeviceMesh:
    """The mesh as rows and columns: the axes before `fold` are the rows, the others the columns.

    >>> print(folded(as_mesh((2, 2, 2)), 1))
    @mesh = <["rows"=2, "columns"=4]>
    """
    if mesh.ndim == 2 and fold == 1:
        return mesh
    shape = prod(mesh.shape[:fold]), prod(mesh.shape[fold:])
    return DeviceMesh(mesh.name, shape, axis_names(2), mesh.device_ids)
