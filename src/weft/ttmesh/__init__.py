"""Tensors on meshes of chips: mappers, the buffers that a mesh runtime takes, and tiles."""

from weft.ttmesh.buffer import (
    Extent,
    MeshBuffer,
    ReplicatedBufferConfig,
    ShardedBufferConfig,
    ShardOrientation,
)
from weft.ttmesh.chip import (
    ChipLayout,
    Core,
    CoreGrid,
    CoreRange,
    Interleaved,
    Layout,
    NdSharded,
    PagePlace,
    Scheme,
    Sharded,
)
from weft.ttmesh.composer import Composer, ConcatMesh2dToTensor, ConcatMeshToTensor
from weft.ttmesh.delivery import collect, deliver, shards
from weft.ttmesh.distribution import distribute, gather
from weft.ttmesh.formats import DataType
from weft.ttmesh.lowering import BufferWrite, Lowering, lower
from weft.ttmesh.mapper import (
    Mapper,
    Replicate,
    ReplicateTensorToMesh,
    Shard,
    ShardTensor2dMesh,
    ShardTensorToMesh,
    from_spec,
    plain,
    runtime_shards,
    to_spec,
)
from weft.ttmesh.tile import shard_and_tile, tilize, untilize

__all__ = [
    "BufferWrite",
    "ChipLayout",
    "Composer",
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
    "PagePlace",
    "Replicate",
    "ReplicateTensorToMesh",
    "ReplicatedBufferConfig",
    "Scheme",
    "Shard",
    "ShardOrientation",
    "ShardTensor2dMesh",
    "ShardTensorToMesh",
    "Sharded",
    "ShardedBufferConfig",
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
