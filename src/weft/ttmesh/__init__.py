"""The mesh-buffer target: tensors on 2-D meshes of chips, as the mesh runtime takes them."""

from weft.ttmesh.buffer import MeshBuffer
from weft.ttmesh.composer import (
    Composer,
    ConcatMesh2DToTensor,
    ConcatMesh2dToTensor,
    ConcatMeshToTensor,
)
from weft.ttmesh.config import (
    Extent,
    ReplicatedBufferConfig,
    ShardedBufferConfig,
    ShardOrientation,
)
from weft.ttmesh.deliver import collect, deliver, shards
from weft.ttmesh.lowering import Lowering, Write, lower
from weft.ttmesh.mapper import Mapper, Replicate, Shard
from weft.ttmesh.mappers import (
    ReplicateTensorToMesh,
    ShardTensor2DMesh,
    ShardTensor2dMesh,
    ShardTensorToMesh,
)
from weft.ttmesh.spec import from_spec, plain, to_spec

__all__ = [
    "Composer",
    "ConcatMesh2DToTensor",
    "ConcatMesh2dToTensor",
    "ConcatMeshToTensor",
    "Extent",
    "Lowering",
    "Mapper",
    "MeshBuffer",
    "Replicate",
    "ReplicateTensorToMesh",
    "ReplicatedBufferConfig",
    "Shard",
    "ShardOrientation",
    "ShardTensor2DMesh",
    "ShardTensor2dMesh",
    "ShardTensorToMesh",
    "ShardedBufferConfig",
    "Write",
    "collect",
    "deliver",
    "from_spec",
    "lower",
    "plain",
    "shards",
    "to_spec",
]
