"""The mappers of the seed under its names, and those of today's runtime."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import WeftError
from weft.ttmesh.grid import Mesh, as_mesh
from weft.ttmesh.mapper import Mapper, Placement, Replicate, Shard


def ShardTensorToMesh(mesh_device: Mesh, dim: int) -> Mapper:  # noqa: N802
    """Cut one dimension over all chips of a mesh, row by row.

    >>> [len(boxes) for boxes in ShardTensorToMesh((2, 4), dim=0).boxes((8, 3))]
    [1, 1, 1, 1, 1, 1, 1, 1]
    """
    mesh = as_mesh(mesh_device)
    return Mapper(mesh, [Shard(dim)] * mesh.ndim)


def ShardTensor2DMesh(  # noqa: N802
    mesh_device: Mesh,
    mesh_shape: Sequence[int] | None = None,
    dims: Sequence[Placement | int | None] = (),
) -> Mapper:
    """Cut `dims[0]` over the rows of a mesh and `dims[1]` over its columns; None replicates.

    >>> mapper = ShardTensor2DMesh((2, 4), dims=[None, 0])
    >>> print(*mapper.boxes((4, 32))[6])
    [2:3, 0:32]
    """
    if len(dims) != 2:
        raise WeftError(f"a 2-D mesh needs two dims, for its rows and its columns: {dims!r}")
    return Mapper(mesh_device, dims, over=mesh_shape)


def ReplicateTensorToMesh(mesh_device: Mesh) -> Mapper:  # noqa: N802
    """Give every chip of a mesh the whole tensor.

    >>> {str(box) for (box,) in ReplicateTensorToMesh((2, 4)).boxes((5,))}
    {'[0:5]'}
    """
    mesh = as_mesh(mesh_device)
    return Mapper(mesh, [Replicate()] * mesh.ndim)


ShardTensor2dMesh = ShardTensor2DMesh
"""Today's spelling."""
