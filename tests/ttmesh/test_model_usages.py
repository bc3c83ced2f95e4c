"""Distributions of public models: each is lowered as recorded, or better, and reads back."""

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.ttmesh.reference import expected_shards

from weft.errors import WeftError
from weft.ttmesh import (
    Mapper,
    ReplicateTensorToMesh,
    ShardTensor2dMesh,
    ShardTensorToMesh,
    collect,
    deliver,
    lower,
    shards,
)

FILE = Path(__file__).parents[1] / "data" / "ttmesh_parity.json"
USAGES = json.loads(FILE.read_text(encoding="utf-8"))


def mapper_of(usage):
    mesh, dims = usage["mesh_shape"], usage["dims"]
    match usage["mapper"]:
        case "ShardTensorToMesh":
            return ShardTensorToMesh(mesh, *dims)
        case "ShardTensor2dMesh":
            return ShardTensor2dMesh(mesh, dims=dims)
        case "ReplicateTensorToMesh":
            return ReplicateTensorToMesh(mesh)
        case "MeshMapperConfig":
            over = mesh if len(dims) == len(mesh) else [prod(mesh)]
            return Mapper(mesh, dims, over)


def shape_of(usage, mapper):
    """The shape, or where none is stated one that fits."""
    if usage["tensor_shape"]:
        return tuple(usage["tensor_shape"])
    dims = [dim for dim in usage["dims"] if dim is not None]
    return tuple(2 * prod(mapper.over) if dim in dims else 32 for dim in range(4))


def smaller(shape, mapper):
    """A shape that is cut alike and has few elements: what chips hold of a dimension is 1 or 2."""
    return tuple(
        (cut.count * 2 if size // cut.count > 1 else cut.count) if size > 1 else 1
        for cut, size in zip(mapper.sharded_dims(shape), shape)
    )


def test_there_are_sixty_usages():
    assert len(USAGES) == 60


@pytest.mark.parametrize("number", range(len(USAGES)))
def test_a_usage_is_lowered_and_reads_back(number):
    usage = USAGES[number]
    mapper = mapper_of(usage)
    shape, stated = shape_of(usage, mapper), usage["lowering"]
    if isinstance(stated, str) and stated.startswith("uneven"):
        with pytest.raises(WeftError, match="is not a multiple of it"):
            lower(shape, mapper)
        for uneven in ("pad", "ragged"):
            check_round_trip((5, 3, 130, 126), mapper, 4, uneven)
        return
    lowered = lower(shape, mapper, usage["dtype"] or "bfloat16")
    if isinstance(stated, dict):
        assert lowered.count <= stated["writes"]
        if "pivot" in stated:
            check_config(lowered.writes[0], stated)
    item = 4 if usage["dtype"] in ("float32", "uint32") else 2
    check_round_trip(shape if prod(shape) < 1 << 22 else smaller(shape, mapper), mapper, item)


def check_config(write, stated):
    whole, shard = write.config.global_buffer_shape, write.config.shard_shape
    assert [whole.height, whole.width] == stated["global_hw"]
    assert [shard.height, shard.width] == stated["shard_hw"]
    assert write.config.mesh_shard_orientation.name == stated["orientation"]
    assert write.pivot == stated["pivot"]


def check_round_trip(shape, mapper, item, uneven="refuse"):
    dtype = {2: np.uint16, 4: np.uint32}[item]
    array = np.random.default_rng(0).integers(0, 1 << 16, shape).astype(dtype)
    lowered = lower(shape, mapper, item, uneven=uneven)
    wanted = expected_shards(mapper, array)
    for by in ("copies", *([] if lowered.cost.fault else ["writes"])):
        buffer = deliver(array, lowered, by)
        assert np.array_equal(collect(buffer, lowered, dtype), array)
        for coord, shard in shards(buffer, lowered, dtype):
            inside = shard[tuple(map(slice, wanted[coord].shape))]
            assert np.array_equal(inside, wanted[coord])
