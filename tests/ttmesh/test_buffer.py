"""The model of the mesh, against the rules of the specification written in NumPy."""

import random

import numpy as np
import pytest
from tests.trials import trials
from tests.ttmesh.reference import written

from weft.errors import WeftError
from weft.ttmesh import Extent, MeshBuffer, ShardedBufferConfig, ShardOrientation


def test_a_config_is_written_by_the_rules_or_refused():
    chance, seen = random.Random(0), {True: 0, False: 0}
    for _ in range(trials(2000)):
        mesh = chance.randint(1, 3), chance.randint(1, 4)
        height, width = (chance.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(2))
        grid = chance.choice([(1, mesh[1]), (mesh[0], 1), mesh, mesh[::-1], (1, 1), (2, 2)])
        shard = tuple(chance.choice([0, -(-n // k), n]) for n, k in zip((height, width), grid))
        by_rows = chance.random() < 0.5
        data = np.random.default_rng(0).integers(0, 1 << 30, height * width, dtype=np.uint32)
        wanted = written((height, width), shard, by_rows, mesh, data)
        config = ShardedBufferConfig(
            mesh,
            data.nbytes,
            Extent(height=shard[0], width=shard[1]),
            Extent(height=height, width=width),
            ShardOrientation.ROW_MAJOR if by_rows else ShardOrientation.COL_MAJOR,
        )
        seen[wanted is not None] += 1
        buffer = MeshBuffer(mesh, data.nbytes + 8)
        if wanted is None:
            with pytest.raises(WeftError):
                buffer.write(config, data)
            continue
        buffer.write(config, data, offset=8)
        for chip, part in wanted.items():
            device = config.mesh_device.device(chip)
            assert np.array_equal(buffer.device_bytes(device, 8, 8 + part.nbytes).view("u4"), part)
        assert np.array_equal(buffer.read(config, 8).view("u4"), data)
    assert min(seen.values()) > trials(200)


def test_a_refused_write_changes_nothing():
    buffer = MeshBuffer((1, 2), 4)
    halves = ShardedBufferConfig((1, 2), 8, Extent(height=0, width=4), Extent(height=1, width=8))
    buffer.write(halves, b"abcdefgh")
    larger = ShardedBufferConfig((1, 3), 12, Extent(height=0, width=4), Extent(height=1, width=12))
    with pytest.raises(WeftError, match="names device 2, which is not in @mesh"):
        buffer.write(larger, b"ABCDEFGHIJKL")
    assert bytes(buffer.read(halves)) == b"abcdefgh"


def test_device_bytes_are_read_only():
    buffer = MeshBuffer((1, 1), 4)
    config = ShardedBufferConfig((1, 1), 4, global_buffer_shape=Extent(height=1, width=4))
    buffer.write(config, b"abcd")
    with pytest.raises(ValueError, match="read-only"):
        buffer.device_bytes(0)[0] = 1
