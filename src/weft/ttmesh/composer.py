"""Composers of ttnn: join the shards of a mesh into one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.space import ZRange
from weft.ttmesh.distribution import ShardArray
from weft.ttmesh.mesh import Mesh, as_mesh
from weft.values import as_point, freeze


@dataclass(frozen=True, slots=True, init=False)
class Composer:
    """For each axis of a mesh, the dimension along which shards are joined; None takes the first.

    >>> composer = Composer("1x2", (0, 1))
    >>> composer.compose([np.zeros((2, 3)), np.ones((2, 1))]).shape
    (2, 4)
    """

    mesh: DeviceMesh
    dims: tuple[int | None, ...]

    def __init__(self, mesh: Mesh, dims: Sequence[int | None]) -> None:
        freeze(self, mesh=as_mesh(mesh), dims=tuple(dims))
        if len(self.dims) != self.mesh.ndim:
            raise WeftError(f"{len(self.dims)} dims for the {self.mesh.ndim} axes of {self.mesh}")

    def compose(self, shards: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Join the shards of all chips, given in the order of the mesh.

        Shards from `distribute` and `shards` know their boxes. They are refused if joining them
        would put one in a wrong place (with a mapper that has an `order` or `groups`) or leave out
        what only one of them holds. Copies may be joined. Other arrays are joined unchecked.
        """
        if len(shards) != self.mesh.size:
            raise WeftError(f"{len(shards)} shards for the {self.mesh.size} chips of {self.mesh}")
        boxes = [each.boxes if isinstance(each, ShardArray) else None for each in shards]
        if all(boxes):
            self._check([each for each in boxes if each])
        level = [np.asarray(shard) for shard in shards]
        for axis in range(self.mesh.ndim - 1, -1, -1):
            dim, rows = self.dims[axis], self._rows(level, axis)
            level = [row[0] if dim is None else self._join(row, dim, axis) for row in rows]
        return level[0]

    def _rows(self, level: list[Any], axis: int) -> list[list[Any]]:
        """Return what lies along a mesh axis together, the later axes being joined already."""
        size = self.mesh.shape[axis]
        return [level[at : at + size] for at in range(0, len(level), size)]

    def _check(self, boxes_of_chips: Sequence[tuple[ZRange, ...]]) -> None:
        """Raise for boxes that do not lie side by side in the order in which they are joined."""
        for chip, boxes in enumerate(boxes_of_chips):
            if len(boxes) > 1:
                raise _not_side_by_side(f"chip {chip} holds {len(boxes)} boxes", boxes)
        level = [boxes[0] for boxes in boxes_of_chips]
        for axis in range(self.mesh.ndim - 1, -1, -1):
            dim, rows = self.dims[axis], self._rows(level, axis)
            for one, two in (pair for row in rows for pair in pairwise(row)):
                if one != two and (dim is None or not _follows(one, two, dim)):
                    how = "are taken for copies" if dim is None else f"join at dimension {dim}"
                    what = f"shards along mesh axis {self._axis(axis)} {how}"
                    raise _not_side_by_side(what, (one, two))
            level = [ZRange(row[0].start, row[-1].stop) for row in rows]

    def _join(self, row: Sequence[NDArray[Any]], dim: int, axis: int) -> NDArray[Any]:
        try:
            return np.concatenate(row, axis=dim)
        except ValueError as error:
            shapes = ", ".join(str(shard.shape) for shard in row[:4])
            raise WeftError(
                f"shards along mesh axis {self._axis(axis)} do not join at dimension {dim}: "
                f"{shapes}"
            ) from error

    def _axis(self, axis: int) -> str:
        return f'"{self.mesh.axis_names[axis]}"={self.mesh.shape[axis]}'


def _follows(one: ZRange, two: ZRange, dim: int) -> bool:
    """Whether a box begins where another ends along a dimension, and equals it in the others."""
    dim %= one.ndim
    step = [0] * one.ndim
    step[dim] = one.shape[dim]
    moved = one.translate(step)
    return moved.start == two.start and all(
        a == b or d == dim for d, (a, b) in enumerate(zip(moved.stop, two.stop))
    )


def _not_side_by_side(what: str, boxes: Sequence[ZRange]) -> WeftError:
    listed = " and ".join(map(str, boxes[:2]))
    return WeftError(
        f"{what} that do not lie side by side in the tensor: {listed}",
        hint="gather(shards, mapper.boxes(shape), shape) puts any mapper's shards together",
    )


def ConcatMeshToTensor(mesh_device: Mesh, dim: int) -> Composer:  # noqa: N802
    """Join the shards of all chips, row by row, along one dimension.

    >>> ConcatMeshToTensor((2, 2), dim=0).compose([np.full((1, 2), n) for n in range(4)]).shape
    (4, 2)
    """
    mesh = as_mesh(mesh_device)
    return Composer(mesh, (dim,) * mesh.ndim)


def ConcatMesh2dToTensor(  # noqa: N802
    mesh_device: Mesh, mesh_shape: Sequence[int] | None = None, dims: Sequence[int | None] = ()
) -> Composer:
    """Join the shards of rows along `dims[0]`, those of columns along `dims[1]`.

    >>> ConcatMesh2dToTensor((2, 2), dims=(0, 1)).compose([np.ones((3, 5))] * 4).shape
    (6, 10)
    """
    mesh = as_mesh(mesh_device)
    if mesh_shape is not None and as_point(mesh_shape, "mesh_shape") != mesh.shape:
        mesh = as_mesh(mesh_shape)
    if len(dims) != 2 or mesh.ndim != 2:
        raise WeftError(f"a 2-D mesh needs two dims, for its rows and its columns: {dims!r}")
    return Composer(mesh, dims)
