"""The mesh-buffer target: tensors on 2-D meshes of chips, as the mesh runtime takes them."""

from weft.ttmesh.buffer import MeshBuffer
from weft.ttmesh.chip import ChipLayout, Interleaved, Layout, NdSharded, Place, Scheme, Sharded
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
from weft.ttmesh.copies import distribute, gather
from weft.ttmesh.cores import Core, CoreGrid, CoreRange
from weft.ttmesh.deliver import collect, deliver, shards
from weft.ttmesh.formats import DataType
from weft.ttmesh.lowering import Lowering, Write, lower
from weft.ttmesh.mapper import Mapper, Replicate, Shard
from weft.ttmesh.mappers import (
    ReplicateTensorToMesh,
    ShardTensor2DMesh,
    ShardTensor2dMesh,
    ShardTensorToMesh,
)
from weft.ttmesh.runtime import runtime_shards
from weft.ttmesh.spec import from_spec, plain, to_spec
from weft.ttmesh.tile import shard_and_tile, tilize, untilize

__all__ = [
    "ChipLayout",
    "Composer",
    "ConcatMesh2DToTensor",
    "ConcatMesh2dToTensor",
    "ConcatMeshToTensor",
    "Core",
    "CoreGrid",
    "CoreRange",
    "DataType",
    "Extent",
    "Interleaved",
    "Layout",
    "Lowering",
    "Mapper",
    "MeshBuffer",
    "NdSharded",
    "Place",
    "Replicate",
    "ReplicateTensorToMesh",
    "ReplicatedBufferConfig",
    "Scheme",
    "Shard",
    "ShardOrientation",
    "ShardTensor2DMesh",
    "ShardTensor2dMesh",
    "ShardTensorToMesh",
    "Sharded",
    "ShardedBufferConfig",
    "Write",
    "collect",
    "deliver",
    "distribute",
    "from_spec",
    "gather",
    "lower",
    "plain",
    "runtime_shards",
    "shard_and_tile",
    "shards",
    "tilize",
    "to_spec",
    "untilize",
]
