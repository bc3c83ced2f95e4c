"""The lowering, against the examples of the specification, exhaustive search, and byte by byte."""

import random
from math import prod

import numpy as np
import pytest
from tests.trials import trials
from tests.ttmesh.configs import any_config, config, short_config, unequal
from tests.ttmesh.reference import expected_shards, fewest, fewest_ranges

from weft.ttmesh import (
    Extent,
    Mapper,
    Shard,
    ShardedBufferConfig,
    ShardOrientation,
    ShardTensor2dMesh,
    ShardTensorToMesh,
    collect,
    deliver,
    lower,
    shards,
)
from weft.ttmesh.mesh import as_mesh

T3K = as_mesh((2, 4))
ITEMS = {1: np.uint8, 2: np.uint16, 4: np.float32}


def values(shape, item=4, seed=0):
    size = prod(shape) * item
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return data.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[item]).reshape(shape)


EXAMPLES = [
    pytest.param(
        (4, 3, 32, 32),
        [None, 0],
        ShardedBufferConfig(
            T3K,
            4 * 3 * 32 * 32 * 2,
            Extent(width=0, height=96),
            Extent(width=32, height=4 * 3 * 32),
            ShardOrientation.ROW_MAJOR,
        ),
        id="height sharding across columns, replicated across rows",
    ),
    pytest.param(
        (32, 3, 128, 256),
        [3, None],
        ShardedBufferConfig(
            T3K,
            32 * 3 * 128 * 256 * 2,
            Extent(width=128, height=0),
            Extent(width=256, height=32 * 3 * 128),
            ShardOrientation.COL_MAJOR,
        ),
        id="width sharding across rows, replicated across columns",
    ),
    pytest.param(
        (1, 1, 128, 256),
        [2, 3],
        ShardedBufferConfig(
            T3K,
            1 * 1 * 128 * 256 * 2,
            Extent(width=64, height=64),
            Extent(width=256, height=128),
            ShardOrientation.ROW_MAJOR,
        ),
        id="row major block sharding",
    ),
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("shape", "dims", "expected"), EXAMPLES)
def test_the_examples_of_the_specification(shape, dims, expected, strict):
    mapper = ShardTensor2dMesh(T3K, dims=dims)
    lowered = lower(shape, mapper, "bfloat16", strict=strict)
    (write,) = lowered.writes
    assert write.config == expected
    assert (write.pivot, write.source, write.offset) == (3, 0, 0)
    array = values(shape, 2)
    for coord, shard in shards(deliver(array, lowered), lowered, np.uint16):
        assert np.array_equal(shard, expected_shards(mapper, array)[coord])


def test_no_search_finds_fewer_writes():
    chance = random.Random(0)
    for _ in range(trials(1000)):
        mapper, shape = config(chance, interleaved=False)
        lowered = lower(shape, mapper)
        assert lowered.count == len(lowered.writes) == fewest(shape, mapper), (shape, mapper)


@pytest.mark.parametrize("kind", [config, unequal, short_config])
def test_no_partition_into_contiguous_ranges_needs_fewer_writes(kind):
    chance, tried = random.Random(1), 0
    while tried < trials(40, limit=1000):
        mapper, shape = kind(chance)
        if prod(shape) <= 48:
            lowered = lower(shape, mapper, uneven="ragged")
            assert lowered.count == fewest_ranges(shape, mapper), (shape, mapper)
            tried += 1


def test_two_cut_dimensions_follow_the_rule():
    chance = random.Random(2)
    for _ in range(trials(1000)):
        mapper, shape = config(chance, interleaved=False)
        cut = [c for c in mapper.sharded_dims(shape) if c.count > 1]
        count = 1
        if len(cut) == 2:
            first, second = (c.dim for c in cut)
            between = shape[first] // cut[0].count * prod(shape[first + 1 : second])
            count = 1 if between == 1 else prod(shape[:first])
        assert lower(shape, mapper).count == count


@pytest.mark.parametrize("uneven", ["pad", "ragged"])
def test_every_chip_gets_exactly_the_bytes_of_its_boxes(uneven):
    chance = random.Random(uneven)
    for number in range(trials(150, limit=10_000)):
        mapper, shape = any_config(chance, most=600)
        item = chance.choice([1, 2, 4])
        check_round_trip(values(shape, item, number), mapper, uneven)


def test_unequal_groups_read_back():
    chance = random.Random(3)
    for number in range(trials(100, limit=5000)):
        mapper, shape = unequal(chance)
        check_round_trip(values(shape, chance.choice([1, 2, 4]), number), mapper, "refuse")


def check_round_trip(array, mapper, uneven):
    lowered = lower(array.shape, mapper, array.dtype.itemsize, uneven=uneven)
    wanted = expected_shards(mapper, array)
    for by in ("copies", *(["writes"] if not lowered.cost.fault else [])):
        buffer = deliver(array, lowered, by)
        for coord, shard in shards(buffer, lowered, array.dtype):
            inside = shard
            if uneven == "pad":
                assert shard.size >= wanted[coord].size
                inside = without_padding(shard, lowered, coord)
            assert np.array_equal(inside, wanted[coord]), (by, array.shape, mapper)
        assert np.array_equal(collect(buffer, lowered, array.dtype), array)


def without_padding(shard, lowered, coord):
    """Return a padded shard with every group cut to its length in the tensor."""
    for padded, given in zip(lowered.dims, lowered.mapper.sharded_dims(lowered.shape)):
        block, keep, at = padded.block(coord), [], 0
        for full, length in zip(padded.extents(block), given.extents(block)):
            keep += range(at, at + length)
            at += full
        shard = np.take(shard, keep, axis=padded.dim)
    return shard


def test_the_boxes_of_a_mapper_are_those_of_numpy_indexing():
    chance = random.Random(4)
    for _ in range(trials(200, limit=5000)):
        mapper, shape = any_config(chance)
        array = np.arange(prod(shape)).reshape(shape)
        boxes = mapper.boxes(shape)
        for coord, part in expected_shards(mapper, array).items():
            mine = boxes[mapper.cells.device(coord)]
            points = [x for box in mine for x in array[box.slices()].ravel()]
            assert sorted(part.ravel()) == sorted(points)
            assert part.shape == mapper.local_shape(shape, coord)
        used = {mapper.cells.device(coord) for coord in mapper.cells.cells()}
        assert all(not boxes[n] for n in range(mapper.mesh.size) if n not in used)


def test_one_dimension_over_both_axes_in_either_order():
    for order, orientation in (((0, 1), "ROW_MAJOR"), ((1, 0), "COL_MAJOR")):
        lowered = lower((3, 16, 5), Mapper((2, 4), [1, 1], order=order))
        (write,) = lowered.writes
        assert write.config.mesh_shard_orientation.name == orientation
        assert write.config.shard_shape == Extent(height=3, width=10)
    assert Mapper((2, 4), [1, 1]) == ShardTensorToMesh((2, 4), 1)


def test_zero_and_the_full_extent_are_different():
    (copied,) = lower((8, 4), Mapper((2, 4), [None, 0])).writes
    assert copied.config.shard_shape == Extent(height=2, width=0)
    (cut,) = lower((8, 4), Mapper((2, 4), [0, 0])).writes
    assert cut.config.shard_shape == Extent(height=1, width=4)


def test_fused_projections_are_one_write():
    qkv = Mapper((1, 8), [None, Shard(3, groups=3)])
    lowered = lower((1, 1, 64, 3 * 128), qkv, "bfloat16")
    (write,) = lowered.writes
    assert (write.view, write.pivot) == ((1, 1, 64, 3, 128), 4)
    assert write.config.shard_shape == Extent(height=0, width=16)
    grouped = Mapper((1, 8), [None, Shard(-1, groups=(128, 32, 32))])
    assert lower((1, 192), grouped).count == 2  # queries; keys and values together


def test_meshes_of_more_axes_are_flattened():
    lowered = lower((8, 6), Mapper((2, 2, 3), [0, 0, 1]))
    assert lowered.count == 1
    assert lowered.writes[0].config.mesh_device.shape == (4, 3)
    assert lower((8, 6), Mapper((2, 2, 2), [0, None, None])).count == 1
    between = lower((8, 6), Mapper((2, 2, 2), [0, None, 1]))
    assert between.count == 2  # copies along an axis in the middle are written one by one
    devices = [write.config.mesh_device.device_ids for write in between.writes]
    assert devices == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_a_part_of_a_mesh():
    mapper = Mapper((4, 4), [0, 1], over=(2, 2), offset=(1, 2))
    (write,) = lower((4, 4), mapper).writes
    assert write.config.mesh_device.device_ids == (6, 7, 10, 11)
    assert [len(boxes) for boxes in mapper.boxes((4, 4))].count(1) == 4


def test_short_shards_are_writes_of_their_own():
    lowered = lower((7, 4), Mapper((1, 4), [None, 0]), uneven="ragged")
    assert [w.config.mesh_device.size for w in lowered.writes] == [3, 1]
    assert lower((9, 4), Mapper((1, 4), [None, 0]), uneven="ragged").count == 1  # one chip is empty
    padded = lower((7, 4), Mapper((1, 4), [None, 0]), uneven="pad")
    assert (padded.padded_shape, padded.count) == ((8, 4), 1)


def test_rows_of_whole_words_are_preferred():
    bad = Mapper((1, 4), [None, 0])
    assert lower((4, 6, 3), bad, "float32").writes[0].pivot == 2
    assert lower((4, 6, 3), bad, "bfloat16").writes[0].pivot == 1
    odd = lower((4, 6, 3), Mapper((1, 3), [None, 2]), "bfloat16")
    assert odd.choice == "copies"
    assert odd.cost.fault == (
        "rows of a shard are 1 x 2 = 2 bytes, not a multiple of 4, and the runtime would shift them"
    )


def test_many_small_writes_cost_more_than_a_copy():
    dims = ShardTensor2dMesh((8, 4), dims=[2, 3])
    many = lower((32, 64, 128, 128), dims)
    assert (many.count, many.choice) == (2048, "copies")
    assert many.stage.config.global_buffer_shape == Extent(height=32, width=32 * 64 * 16 * 32)
    assert lower((1, 3, 90, 160, 32), ShardTensor2dMesh((2, 4), dims=[2, 3])).choice == "writes"


def test_block_formats_count_tiles():
    dims = ShardTensor2dMesh((4, 8), dims=[-2, -1])
    (write,) = lower((1, 1, 128, 256), dims, "bfloat8_b").writes
    assert write.config.global_buffer_size == 32 * 1088
    (tiny,) = lower((1, 1, 4, 8), dims, "bfloat4_b").writes
    assert tiny.config.global_buffer_size == 32 * 576
