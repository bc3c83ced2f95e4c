"""Meshes of chips as `DeviceMesh`: from shapes or text, parts of them, rows and columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.space import ZRange
from weft.values import Point, as_point

Mesh: TypeAlias = DeviceMesh | str | Sequence[int]
"""A mesh, its shape, or text: `@m = <["x"=2]>` or `2x4`."""


def as_mesh(mesh: Mesh) -> DeviceMesh:
    """Return a mesh from a mesh, a shape or text.

    >>> print(as_mesh((2, 4)), as_mesh("2x2x2"), as_mesh('@m = <["x"=2]>'))
    @mesh = <["rows"=2, "columns"=4]> @mesh = <["axis0"=2, "axis1"=2, "axis2"=2]> @m = <["x"=2]>
    """
    if isinstance(mesh, DeviceMesh):
        return mesh
    if isinstance(mesh, str):
        if mesh.lstrip().startswith("@"):
            return DeviceMesh.parse(mesh)
        if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", mesh.strip()):
            raise WeftError(
                f"invalid mesh: {mesh!r}", hint="""write 2x4, (2, 4) or '@m = <["x"=2, "y"=4]>'"""
            )
        mesh = [int(size) for size in mesh.split("x")]
    shape = as_point(mesh, "mesh shape")
    if not shape:
        raise WeftError("a mesh of chips needs an axis")
    return DeviceMesh("mesh", shape, axis_names(len(shape)))


def axis_names(ndim: int) -> tuple[str, ...]:
    """Return the axis names of a mesh that is given by its shape."""
    return ("rows", "columns") if ndim == 2 else tuple(f"axis{n}" for n in range(ndim))


def fits(shape: Point, mesh: Point) -> bool:
    """Whether a mesh of one shape is a part of another, axis by axis."""
    return len(shape) == len(mesh) and all(map(int.__le__, shape, mesh))


def sub_mesh(mesh: DeviceMesh, over: Point, offset: Point | None = None) -> DeviceMesh:
    """Return the chips of a mesh that a distribution of shape `over` uses.

    If `over` fits the mesh axis by axis, it is the part of the mesh at `offset`; else the chips
    of the mesh in order, arranged in that shape.

    >>> print(sub_mesh(as_mesh((2, 4)), (1, 2), (1, 1)))
    @mesh = <["rows"=1, "columns"=2], device_ids=[5, 6]>
    """
    if offset is not None or fits(over, mesh.shape):
        start = (0,) * mesh.ndim if offset is None else as_point(offset, "offset", mesh.ndim)
        if len(over) != mesh.ndim or min(over) < 1:
            raise WeftError(f"shape {over} is not a part of {mesh}")
        for name, low, length, size in zip(mesh.axis_names, start, over, mesh.shape):
            if low < 0 or low + length > size:
                raise WeftError(
                    f'a part from {low} to {low + length} does not fit mesh axis "{name}"={size}'
                )
        return box_of(mesh, ZRange.of(over, start))
    if prod(over) > mesh.size or min(over, default=1) < 1:
        raise WeftError(f"a distribution over {over} needs {prod(over)} chips: {mesh}")
    names = mesh.axis_names if len(over) == mesh.ndim else axis_names(len(over))
    return DeviceMesh(mesh.name, over, names, map(mesh.device, range(prod(over))))


def box_of(mesh: DeviceMesh, box: ZRange) -> DeviceMesh:
    """Return a box of a mesh as a mesh with the same devices."""
    if box.shape == mesh.shape:
        return mesh
    return DeviceMesh(mesh.name, box.shape, mesh.axis_names, map(mesh.device, box))


def as_rows_and_columns(mesh: DeviceMesh, row_axes: int) -> DeviceMesh:
    """Return the mesh with its first `row_axes` axes joined as rows and the others as columns.

    >>> print(as_rows_and_columns(as_mesh((2, 2, 2)), 1))
    @mesh = <["rows"=2, "columns"=4]>
    """
    if mesh.ndim == 2 and row_axes == 1:
        return mesh
    shape = prod(mesh.shape[:row_axes]), prod(mesh.shape[row_axes:])
    return DeviceMesh(mesh.name, shape, axis_names(2), mesh.device_ids)
