"""Composers: the shards of a mesh put together again, under the seed's names."""

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
from weft.ttmesh.grid import Mesh, as_mesh
from weft.ttmesh.held import Boxes, boxes_of
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
        """Join the shards of all chips, given in the order of the mesh.

        Shards from `distribute` and `shards` know which boxes they hold. If joining them would put
        one in another place, as with a mapper that has an `order` or `groups`, or leave out what
        only one of them holds, they are refused. Copies may be joined. Nothing can be checked of
        other arrays: they are joined as they are.
        """
        if len(shards) != self.mesh.size:
            raise WeftError(f"{len(shards)} shards for the {self.mesh.size} chips of {self.mesh}")
        self._check(list(map(boxes_of, shards)))
        level = [np.asarray(shard) for shard in shards]
        for axis in range(self.mesh.ndim - 1, -1, -1):
            size, dim = self.mesh.shape[axis], self.dims[axis]
            rows = [level[at : at + size] for at in range(0, len(level), size)]
            level = [row[0] if dim is None else self._joined(row, dim, axis) for row in rows]
        return level[0]

    def _check(self, held: Sequence[Boxes | None]) -> None:
        """Refuse boxes that do not lie side by side in the order in which they are joined."""
        level = list[ZRange]()
        for chip, boxes in enumerate(held):
            if not boxes:
                return
            if len(boxes) > 1:
                raise self._refusal(f"chip {chip} holds {len(boxes)} boxes", boxes)
            level += boxes
        for axis in range(self.mesh.ndim - 1, -1, -1):
            size, dim = self.mesh.shape[axis], self.dims[axis]
            rows = [level[at : at + size] for at in range(0, len(level), size)]
            for row in rows:
                for one, two in pairwise(row):
                    if one != two and (dim is None or not _follows(one, two, dim)):
                        name = f'mesh axis "{self.mesh.axis_names[axis]}"={size}'
                        how = "are taken for copies" if dim is None else f"join at dimension {dim}"
                        raise self._refusal(f"shards along {name} {how}", (one, two))
            level = [ZRange(row[0].start, row[-1].stop) for row in rows]

    def _refusal(self, what: str, boxes: Sequence[ZRange]) -> WeftError:
        listed = " and ".join(map(str, boxes[:2]))
        return WeftError(
            f"{what} that do not lie side by side in the tensor: {listed}",
            hint="gather(shards, mapper.boxes(shape), shape) puts any mapper's shards together",
        )

    def _joined(self, row: Sequence[NDArray[Any]], dim: int, axis: int) -> NDArray[Any]:
        try:
            return np.concatenate(row, axis=dim)
        except ValueError as error:
            shapes = ", ".join(str(shard.shape) for shard in row[:4])
            name = f'"{self.mesh.axis_names[axis]}"={self.mesh.shape[axis]}'
            raise WeftError(
                f"shards along mesh axis {name} do not join at dimension {dim}: {shapes}"
            ) from error


def _follows(one: ZRange, two: ZRange, dim: int) -> bool:
    """Whether a box begins where another ends along a dimension, and is as wide in the others."""
    dim %= one.ndim
    sides = zip(zip(one.start, one.stop), zip(two.start, two.stop))
    return one.stop[dim] == two.start[dim] and all(
        a == b or d == dim for d, (a, b) in enumerate(sides)
    )


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
