"""Composers: the shards of a mesh put together again, under the seed's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.ttmesh.grid import Mesh, as_mesh
from weft.values import as_point


@dataclass(frozen=True, slots=True)
class Composer:
    """For each axis of a mesh, the dimension along which shards are joined; None takes one.

    >>> composer = Composer(as_mesh((1, 2)), (0, 1))
    >>> composer.compose([np.zeros((2, 3)), np.ones((2, 1))]).shape
    (2, 4)
    """

    mesh: DeviceMesh
    dims: tuple[int | None, ...]

    def compose(self, shards: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Join the shards of all chips, given in the order of the mesh."""
        if len(shards) != self.mesh.size:
            raise WeftError(f"{len(shards)} shards for the {self.mesh.size} chips of {self.mesh}")
        level = [np.asarray(shard) for shard in shards]
        for axis in range(self.mesh.ndim - 1, -1, -1):
            size, dim = self.mesh.shape[axis], self.dims[axis]
            rows = [level[at : at + size] for at in range(0, len(level), size)]
            level = [row[0] if dim is None else self._joined(row, dim, axis) for row in rows]
        return level[0]

    def _joined(self, row: Sequence[NDArray[Any]], dim: int, axis: int) -> NDArray[Any]:
        try:
            return np.concatenate(row, axis=dim)
        except ValueError as error:
            shapes = ", ".join(str(shard.shape) for shard in row[:4])
            name = f'"{self.mesh.axis_names[axis]}"={self.mesh.shape[axis]}'
            raise WeftError(
                f"shards along mesh axis {name} do not join at dimension {dim}: {shapes}"
            ) from error


def ConcatMeshToTensor(mesh_device: Mesh, dim: int) -> Composer:  # noqa: N802
    """Join the shards of all chips, row by row, along one dimension.

    >>> ConcatMeshToTensor((2, 2), dim=0).compose([np.full((1, 2), n) for n in range(4)]).shape
    (4, 2)
    """
    mesh = as_mesh(mesh_device)
    return Composer(mesh, (dim,) * mesh.ndim)


def ConcatMesh2DToTensor(  # noqa: N802
    mesh_device: Mesh, mesh_shape: Sequence[int] | None = None, dims: Sequence[int | None] = ()
) -> Composer:
    """Join the shards of rows along `dims[0]`, those of columns along `dims[1]`.

    >>> ConcatMesh2DToTensor((2, 2), dims=(0, 1)).compose([np.ones((3, 5))] * 4).shape
    (6, 10)
    """
    mesh = as_mesh(mesh_device)
    if mesh_shape is not None and as_point(mesh_shape, "mesh_shape") != mesh.shape:
        mesh = as_mesh(mesh_shape)
    if len(dims) != 2 or mesh.ndim != 2:
        raise WeftError(f"a 2-D mesh needs two dims, for its rows and its columns: {dims!r}")
    return Composer(mesh, tuple(dims))


ConcatMesh2dToTensor = ConcatMesh2DToTensor
"""Today's spelling."""
