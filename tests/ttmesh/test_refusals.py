"""Distributions and configs that are refused, with names and numbers in the message."""

import random
import re
from math import prod

import numpy as np
import pytest
from tests.trials import trials
from tests.ttmesh.configs import config
from tests.ttmesh.reference import expected_shards, single

from weft.errors import WeftError
from weft.ttmesh import (
    Composer,
    ConcatMesh2dToTensor,
    ConcatMeshToTensor,
    Extent,
    Mapper,
    MeshBuffer,
    ReplicatedBufferConfig,
    Shard,
    ShardedBufferConfig,
    ShardOrientation,
    ShardTensor2dMesh,
    deliver,
    lower,
)


def test_strict_accepts_shards_that_one_flattened_config_can_write():
    chance, seen = random.Random(0), {True: 0, False: 0}
    for _ in range(trials(1000)):
        mapper, shape = config(chance)
        data = np.arange(prod(shape))
        wanted = {c: x.ravel() for c, x in expected_shards(mapper, data.reshape(shape)).items()}
        possible = single(data, wanted, mapper.over, [(prod(shape[:-1]), shape[-1])])
        seen[possible] += 1
        if possible:
            assert lower(shape, mapper, strict=True).count == 1
            continue
        with pytest.raises(WeftError) as refused:
            lower(shape, mapper, strict=True)
        check_names(str(refused.value), mapper, shape)
    assert min(seen.values()) > trials(1000) / 5


@pytest.mark.parametrize(
    ("shape", "dims", "reason"),
    [
        (
            (2, 4, 32, 32),
            [None, 1],
            'dimension 1 of size 4 is cut by mesh axis "columns"=4, and dimension 0 before it '
            "keeps 2 on each chip: its shards are not blocks of rows of (x, b·z·y)",
        ),
        (
            (4, 4, 32, 32),
            [0, 1],
            'dimension 1 of size 4 is cut by mesh axis "columns"=4, and dimension 0 before it '
            "keeps 2 on each chip: its shards are not blocks of rows of (x, b·z·y)",
        ),
        (
            (2, 3, 32, 32),
            [2, 3],
            'dimension 2 of size 32 is cut by mesh axis "rows"=2, and dimension 0 and dimension 1 '
            "before it keep 6 on each chip: its shards are not blocks of rows of (x, b·z·y)",
        ),
    ],
)
def test_strict_names_the_dimension_that_prevents_it(shape, dims, reason):
    with pytest.raises(WeftError, match=re.escape(reason)) as refused:
        lower(shape, ShardTensor2dMesh((2, 4), dims=dims), strict=True)
    assert refused.value.__notes__ == ["hint: without strict=True it is lowered with more writes"]


def test_strict_allows_more_than_the_text_of_the_specification():
    assert lower((2, 4, 32, 32), ShardTensor2dMesh((2, 4), dims=[0, 1]), strict=True).count == 1
    assert lower((1, 2, 4, 3), ShardTensor2dMesh((2, 4), dims=[1, 2]), strict=True).count == 1


@pytest.mark.parametrize(
    ("mapper", "dtype", "reason"),
    [
        (Mapper((2, 2, 2), [0, 1, 2]), 4, "a config has rows and columns: @mesh"),
        (
            Mapper((1, 2), [None, Shard(2, groups=2)]),
            4,
            'dimension 2 of size 8 is cut by mesh axis "columns"=2 in 2 groups, '
            "and one config cuts in one piece",
        ),
        (Mapper((1, 8), [None, 2]), 2, "rows of a shard are 1 x 2 = 2 bytes, not a multiple of 4"),
        (Mapper((1, 8), [None, 0]), "bfloat16", "rows of a shard are 3 x 2 = 6 bytes"),
    ],
)
def test_strict_refuses_other_meshes_groups_and_rows(mapper, dtype, reason):
    with pytest.raises(WeftError, match=re.escape(reason)):
        lower((8, 8, 3 if dtype == "bfloat16" else 8), mapper, dtype, strict=True)


def uneven(random, mapper, shape):
    cut = random.choice([c for c in mapper.sharded_dims(shape) if c.count > 1])
    sizes = list(shape)
    sizes[cut.dim] += random.randrange(1, cut.count)
    return mapper, tuple(sizes), cut.dim


def outside(random, mapper, shape):
    axis = random.choice([n for n, p in enumerate(mapper.placements) if isinstance(p, Shard)])
    placements = list(mapper.placements)
    dim = random.choice([len(shape), len(shape) + 3, -len(shape) - 1])
    placements[axis] = Shard(dim)
    return Mapper(mapper.mesh, placements), shape, dim


def larger_mesh(random, mapper, shape):
    cut = random.choice([c for c in mapper.sharded_dims(shape) if c.count > 1])
    mesh = list(mapper.mesh.shape)
    axis = random.choice(cut.axes)
    while shape[cut.dim] % prod(mesh[a] for a in cut.axes) == 0:
        mesh[axis] += 1
    return Mapper(mesh, mapper.placements, order=mapper.order), shape, cut.dim


def not_its_groups(random, mapper, shape):
    axis = random.choice([n for n, p in enumerate(mapper.placements) if isinstance(p, Shard)])
    placements = list(mapper.placements)
    dim = placements[axis].dim % len(shape)
    groups = random.choice([shape[dim] + 1, (shape[dim], 1)])
    placements[axis] = Shard(dim, groups)
    return Mapper(mapper.mesh, placements), shape, dim


EDITS = [uneven, outside, larger_mesh, not_its_groups]


def test_a_valid_distribution_with_one_wrong_edit_is_refused():
    chance, tried = random.Random(1), 0
    while tried < trials(500, limit=5000):
        mapper, shape = config(chance, interleaved=False)
        if all(cut.count == 1 for cut in mapper.sharded_dims(shape)):
            continue
        lower(shape, mapper)
        edit = EDITS[tried % len(EDITS)]
        mapper, shape, dim = edit(chance, mapper, shape)
        with pytest.raises(WeftError) as refused:
            lower(shape, mapper)
        message = str(refused.value)
        assert f"dimension {dim}" in message, message
        assert edit is outside or f"dimension {dim} of size {shape[dim]}" in message, message
        check_names(message, mapper, shape)
        tried += 1


def check_names(message, mapper, shape):
    """A dimension with its size, and an axis of the mesh with its factor."""
    names = [f'"{a}"={n}' for a, n in zip(mapper.cells.axis_names, mapper.over)]
    assert any(name in message for name in names), message
    dims = [f"dimension {dim} of size {size}" for dim, size in enumerate(shape)]
    assert (
        any(dim in message for dim in dims)
        or f"a tensor that has {len(shape)} dimensions" in message
    ), message


MESSAGES = [
    (
        lambda: lower((1, 1, 8192, 10241), ShardTensor2dMesh((8, 4), dims=[None, 3])),
        'dimension 3 of size 10241 is cut by mesh axis "columns"=4, and is not a multiple of it: '
        "10241 = 4 x 2560 + 1",
    ),
    (
        lambda: lower((6, 20), Mapper((2, 4), [1, 1])),
        'dimension 1 of size 20 is cut by mesh axes "rows"=2 x "columns"=4 = 8, '
        "and is not a multiple of it: 20 = 8 x 2 + 4",
    ),
    (
        lambda: lower((6,), Mapper((4,), [Shard(0, groups=2)])),
        'dimension 0 of size 6 is cut by mesh axis "axis0"=4, and group 0 of 3 is not a multiple '
        "of it: 3 = 4 x 0 + 3",
    ),
    (
        lambda: lower((6, 4), ShardTensor2dMesh((2, 4), dims=[0, 2])),
        'mesh axis "columns"=4 cuts dimension 2 of a tensor that has 2 dimensions',
    ),
    (
        lambda: lower((6, 9), Mapper((3,), [Shard(1, groups=2)])),
        'dimension 1 of size 9, cut by mesh axis "axis0"=3, does not have 2 equal groups: '
        "9 = 2 x 4 + 1",
    ),
    (
        lambda: lower((6, 9), Mapper((3,), [Shard(1, groups=(3, 3))])),
        'dimension 1 of size 9, cut by mesh axis "axis0"=3, is not the sum of its groups: 3 + 3',
    ),
    (
        lambda: lower((8,), Mapper((2, 2), [Shard(0, groups=2), Shard(0, groups=4)])),
        'dimension 0 of size 8 has groups (4, 4), and (2, 2, 2, 2) for mesh axis "columns"=2',
    ),
    (lambda: lower((0, 4), Mapper((2,), [0])), "dimension 0 of (0, 4) is empty"),
    (lambda: lower((2,), Mapper((2,), [0]), uneven="no"), "uneven is 'refuse', 'pad' or 'ragged'"),
    (lambda: lower((2,), Mapper((2,), [0]), "float9"), "unknown format 'float9'"),
    (lambda: lower((2,), Mapper((2,), [0]), 0), "an element has at least 1 byte, got 0"),
    (
        lambda: lower((1, 65536, 65536), Mapper((1, 1), [None, None]), "uint8"),
        "a shard of 65536 x 65536 elements is 4294967296 bytes; the runtime counts in 32 bits",
    ),
    (lambda: Mapper((2**31, 8), [None, 3]), "at most 1000000 are supported"),
    (lambda: Mapper((2, 4), [0]), "1 placements for the 2 axes of a mesh of shape (2, 4)"),
    (lambda: Mapper((2, 4), [0, 1], order=(0, 0)), "order must list each of 2 axes once"),
    (lambda: Mapper((2, 4), [0, 1], over=(3, 3)), "a distribution over (3, 3) needs 9 chips"),
    (
        lambda: Mapper((2, 4), [0, 1], over=(2, 2), offset=(0, 3)),
        'a part from 3 to 5 does not fit mesh axis "columns"=4',
    ),
    (lambda: Mapper((2, 4), [0], over=(2,), offset=(0, 0)), "shape (2,) is not a part of"),
    (lambda: Mapper((), []), "a mesh of chips needs an axis"),
    (lambda: Shard("x"), "Shard needs the number of a dimension, got 'x'"),
    (lambda: Shard(0, groups=0), "groups must be at least 1: 0"),
    (lambda: ShardTensor2dMesh((2, 4), dims=[0]), "a 2-D mesh needs two dims"),
    (lambda: ConcatMesh2dToTensor((2, 4), dims=[0]), "a 2-D mesh needs two dims"),
    (lambda: Composer((2, 4), [0]), "1 dims for the 2 axes of @mesh"),
    (lambda: ConcatMeshToTensor((2, 4), 0).compose([]), "0 shards for the 8 chips of @mesh"),
    (
        lambda: ConcatMeshToTensor((1, 2), 0).compose([np.ones((1, 2)), np.ones((1, 3))]),
        'shards along mesh axis "columns"=2 do not join at dimension 0: (1, 2), (1, 3)',
    ),
    (
        lambda: ShardedBufferConfig((2, 4), 64, (0, 96)),
        "shard_shape must be an Extent: (0, 96)",
    ),
    (lambda: ShardedBufferConfig((2, 2, 2), 64), "a sharded buffer needs rows and columns"),
    (
        lambda: ShardedBufferConfig((2, 4), 64, mesh_shard_orientation="ROW_MAJOR"),
        "mesh_shard_orientation must be a ShardOrientation: 'ROW_MAJOR'",
    ),
    (
        lambda: deliver(np.zeros((2, 3)), lower((2, 2), Mapper((2,), [0]))),
        "an array of shape (2, 3) with 8-byte elements does not match the lowering of (2, 2)",
    ),
    (
        lambda: deliver(np.zeros((2, 2), "f4"), lower((2, 2), Mapper((2,), [0])), by="post"),
        "an array is delivered by 'writes' or by 'copies', not by 'post'",
    ),
    (
        lambda: deliver(np.zeros((2, 2)), lower((2, 2), Mapper((2,), [0]), "bfloat8_b")),
        "bfloat8_b is packed tile by tile after it is distributed",
    ),
]


@pytest.mark.parametrize(("act", "message"), MESSAGES, ids=[m[:40] for _, m in MESSAGES])
def test_messages(act, message):
    with pytest.raises(WeftError, match=re.escape(message)):
        act()


def extent(height, width):
    return Extent(height=height, width=width)


COLUMNS = ShardOrientation.COL_MAJOR
TALL = extent(16, 4)
CONFIGS = {
    "2 x 1 = 2 shards leave chips unwritten: a row of the mesh has 4": (
        ((2, 4), 64, extent(2, 0), extent(4, 8))
    ),
    "8 x 1 = 8 shards run off the mesh: a row of the mesh has 4": (
        ((2, 4), 128, extent(2, 0), TALL)
    ),
    "4 x 1 = 4 shards run off the mesh: a column of the mesh has 2": (
        ((2, 4), 128, extent(4, 0), TALL, COLUMNS)
    ),
    "4 x 1 = 4 shards leave chips unwritten: a mesh of 2 x 4 has 8 chips": (
        ((2, 4), 128, extent(4, 4), TALL)
    ),
    "a buffer of 16 x 4 is not a whole number of shards of 3 x 4": (
        (2, 4),
        128,
        extent(3, 4),
        TALL,
    ),
    "a buffer of 100 bytes does not have 16 x 4 equal": ((2, 4), 100, extent(4, 4), TALL),
    "rows of a shard are 3 x 2 = 6 bytes, not a multiple of 4": (
        ((1, 2), 24, extent(0, 3), extent(2, 6))
    ),
    "bytes; the runtime counts in 32 bits": (
        ((1, 1), 1 << 32, extent(0, 0), extent(1 << 16, 1 << 16))
    ),
}


@pytest.mark.parametrize("message", CONFIGS)
def test_configs_that_the_runtime_would_get_wrong_are_refused(message):
    config = ShardedBufferConfig(*CONFIGS[message])
    buffer = MeshBuffer(config.mesh_device, 64)
    with pytest.raises(WeftError, match=re.escape(message)):
        buffer.write(config, np.broadcast_to(np.uint8(0), config.global_buffer_size))


def test_reading_bytes_that_were_never_written_is_refused():
    buffer = MeshBuffer((2, 2), 8)
    buffer.write(ReplicatedBufferConfig((2, 2), 4), b"abcd")
    assert bytes(buffer.device_bytes(3, 0, 4)) == b"abcd"
    assert bytes(buffer.read(ReplicatedBufferConfig((2, 2), 4))) == b"abcd"
    with pytest.raises(WeftError, match=re.escape("device 3 has bytes in [0, 8) that were never")):
        buffer.device_bytes(3)
    buffer.write(ReplicatedBufferConfig((2, 2), 4), b"efgh", offset=4)
    assert bytes(buffer.device_bytes(3)) == b"abcdefgh"
    with pytest.raises(WeftError, match="4 bytes at 6 do not fit the 8 of device 0"):
        buffer.write(ReplicatedBufferConfig((2, 2), 4), b"efgh", offset=6)
    with pytest.raises(WeftError, match="the config has 4 bytes, and 3 are given"):
        buffer.write(ReplicatedBufferConfig((2, 2), 4), b"abc")
    with pytest.raises(WeftError, match="names device 4, which is not in @mesh"):
        buffer.write(ReplicatedBufferConfig((2, 3), 4), b"abcd")
    with pytest.raises(WeftError, match="no device 9 in @mesh"):
        buffer.device_bytes(9)
