"""The TILE layout: against its definition, and round trips."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh import tile
from weft.ttmesh.formats import DataType, encode_bfloat16
from weft.ttmesh.tile import shard_and_tile, tile_count, tilize, untilize

SHAPES = st.lists(st.integers(0, 5), max_size=3).flatmap(
    lambda lead: st.lists(st.integers(0, 70), max_size=2).map(lambda sides: (*lead, *sides))
)
PLAIN = [DataType.FLOAT32, DataType.UINT32, DataType.INT32, DataType.UINT16, DataType.UINT8]


def filled(shape, kind=DataType.FLOAT32):
    values = np.random.default_rng(0).integers(0, 200, shape)
    return values.astype("float32" if kind not in PLAIN else kind.value)


def by_definition(array, pad=0):
    """Element by element: tile row, tile column, face row, face column, row, column."""
    matrices = array.reshape((1,) * (2 - array.ndim) + array.shape)
    *lead, rows, columns = matrices.shape
    whole = np.full((*lead, -(-rows // 32) * 32, -(-columns // 32) * 32), pad, array.dtype)
    whole[tuple(map(slice, matrices.shape))] = matrices
    elements = []
    for matrix in whole.reshape(math.prod(whole.shape[:-2]), *whole.shape[-2:]):
        for y in range(0, matrix.shape[0], 32):
            for x in range(0, matrix.shape[1], 32):
                for fy in (0, 16):
                    for fx in (0, 16):
                        elements.append(matrix[y + fy :, x + fx :][:16, :16].ravel())
    return np.concatenate(elements) if elements else np.empty(0, array.dtype)


@given(SHAPES, st.sampled_from(PLAIN))
def test_tiles_follow_the_definition_and_round_trip(shape, kind):
    array = filled(shape, kind)
    tiles = tilize(array, pad=3)
    assert tiles.shape == (tile_count(shape), kind.tile_bytes)
    assert tiles.tobytes() == by_definition(array, 3).tobytes()
    assert (untilize(tiles, shape, kind) == array).all()


@given(SHAPES)
def test_bfloat16_tiles(shape):
    array = filled(shape) / 7
    tiles = tilize(array, DataType.BFLOAT16)
    assert tiles.tobytes() == by_definition(encode_bfloat16(array)).tobytes()
    back = untilize(tiles, shape, DataType.BFLOAT16)
    assert (tilize(back, DataType.BFLOAT16) == tiles).all()


@given(SHAPES, st.sampled_from([DataType.BFLOAT8_B, DataType.BFLOAT4_B]))
def test_block_tiles_round_trip_to_their_precision(shape, kind):
    array = filled(shape)
    tiles = tilize(array, kind)
    assert tiles.shape == (tile_count(shape), kind.tile_bytes)
    back = untilize(tiles, shape, kind)
    assert array.size == 0 or abs(back - array).max() <= 2.0 ** (8 - kind.mantissa_bits)


@given(st.data(), st.integers(1, 3))
def test_each_shard_is_tiled_by_itself(data, threads):
    shape = tuple(data.draw(st.lists(st.integers(1, 80), min_size=1, max_size=3)))
    array = filled(shape)
    blocks = [data.draw(st.integers(1, n)) for n in shape]
    boxes = list(ZRange.of(shape).tiles([max(b, -(-n // 3)) for b, n in zip(blocks, shape)]))
    kind = data.draw(st.sampled_from([DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B]))
    for box, tiles in zip(boxes, shard_and_tile(array, boxes, kind, threads=threads)):
        assert (tiles == tilize(array[box.slices()], kind)).all()


@pytest.mark.parametrize("block", [1, 5000, 1 << 30])
def test_every_block_size_gives_the_same(monkeypatch, block):
    monkeypatch.setattr(tile, "BLOCK", block)
    monkeypatch.setattr(tile, "ALONE", 0)
    array = filled((3, 100, 130))
    tiles = tilize(array)
    assert tiles.tobytes() == by_definition(array).tobytes()
    assert (untilize(tiles, array.shape, DataType.FLOAT32) == array).all()


def test_interleaved_and_transposed_shards():
    array = filled((70, 64)).T
    halves = [ZRange((0, 0), (16, 70)), ZRange((32, 0), (48, 70))]
    (tiles,) = shard_and_tile(array, [halves])
    assert (tiles == tilize(np.vstack([array[:16], array[32:48]]))).all()


def test_refusals():
    with pytest.raises(
        WeftError, match=r"float32\[3, 3\] has 1 tiles of 4096 bytes, got uint8\[2, 4"
    ):
        untilize(np.zeros((2, 4096), np.uint8), (3, 3), DataType.FLOAT32)
    with pytest.raises(WeftError, match="complex64 cannot be converted to bfloat16"):
        tilize(np.zeros(3, "complex64"), DataType.BFLOAT16)
