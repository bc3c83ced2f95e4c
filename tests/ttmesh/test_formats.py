"""Number formats: exact values stay exact, and rounding is that of ttnn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft.errors import WeftError
from weft.ttmesh.formats import (
    DataType,
    decode_bfloat16,
    encode_bfloat16,
    pack_tiles,
    unpack_tiles,
)

BLOCKS = [DataType.BFLOAT8_B, DataType.BFLOAT4_B]
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def tile_of(row):
    """A tile whose first row of a face is that."""
    tile = np.zeros((1, 64, 16), np.float32)
    tile[0, 0, : len(row)] = row
    return tile


def marks(row, kind):
    """The exponent of a row, and sign and mantissa of its elements."""
    packed = pack_tiles(tile_of(row), kind)
    data = packed[0, 64:]
    if kind is DataType.BFLOAT4_B:
        data = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
    return int(packed[0, 0]), data[: len(row)].tolist()


def by_hand(row, kind):
    """The same, element by element, in integers."""
    width = kind.mantissa_bits
    bits = [int(np.float32(x).view(np.uint32)) for x in row]
    exponents = [b >> 23 & 255 for b in bits]
    shared = max(exponents)
    encoded = []
    for b, exponent in zip(bits, exponents):
        whole = (b & 0x7FFFFF | 0x800000) >> min(shared - exponent, 31) if exponent else 0
        cut = 24 - width
        low, kept = whole & ((1 << cut) - 1), whole >> cut
        half = 1 << (cut - 1)
        kept += low > half or (low == half and kept & 1)
        kept = min(kept, (1 << width) - 1)
        encoded.append((b >> 31) << width | kept if kept else 0)
    return shared, encoded


@given(st.lists(FLOATS, min_size=16, max_size=16), st.sampled_from(BLOCKS))
def test_block_formats_equal_integer_arithmetic(row, kind):
    assert marks(row, kind) == by_hand(row, kind)


@given(st.lists(st.integers(-127, 127), min_size=16, max_size=16), st.integers(-60, 60))
def test_small_integers_pass_through_bfloat8_b(row, scale):
    tile = tile_of(np.ldexp(np.float32(row), scale))
    if max(map(abs, row)) < 64:  # then the largest leaves the last bit of all others a place
        tile *= np.float32(1)
    packed = pack_tiles(tile, DataType.BFLOAT8_B)
    back = unpack_tiles(packed, DataType.BFLOAT8_B)
    assert (back == tile).all()
    assert (pack_tiles(back, DataType.BFLOAT8_B) == packed).all()


@pytest.mark.parametrize("kind", BLOCKS)
@given(data=st.data())
def test_packing_unpacked_tiles_changes_nothing(kind, data):
    row = data.draw(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=16, max_size=16))
    once = unpack_tiles(pack_tiles(tile_of(row), kind), kind)
    assert (unpack_tiles(pack_tiles(once, kind), kind) == once).all()


def test_zeros_denormals_infinities():
    eight = DataType.BFLOAT8_B
    assert marks([-0.0, 0.0], eight) == (0, [0, 0])
    assert marks([1e-45, -1e-39], eight) == (0, [0, 0])
    assert marks([np.inf, -np.inf, 1.0, np.nan], eight) == (255, [64, 192, 0, 96])
    infinite = unpack_tiles(pack_tiles(tile_of([np.inf, -np.inf, 1.0, np.nan]), eight), eight)
    assert infinite[0, 0, :3].tolist() == [np.inf, -np.inf, 0.0]
    assert np.isnan(infinite[0, 0, 3])


def test_rounding_to_even_and_up_to_the_largest():
    four = DataType.BFLOAT4_B
    assert marks([4.0, 4.5, 5.5, 7.9], four) == (129, [4, 4, 6, 7])
    assert marks([-4.0, 0.4, -0.5, 0.6], four) == (129, [12, 0, 0, 1])


@given(hnp.arrays(np.float32, 8, elements=FLOATS))
def test_bfloat16_is_the_nearest_of_its_neighbours(values):
    bits = encode_bfloat16(values)
    back = decode_bfloat16(bits)
    for value, encoded, pattern in zip(values, back, bits):
        if np.isnan(value):
            assert pattern == 0x7FC0
        elif np.isinf(encoded):
            assert abs(value) >= np.float32(3.3961775e38)
        else:
            below = decode_bfloat16(np.array([max(int(pattern) & 0x7FFF, 1) - 1], np.uint16))[0]
            gap = abs(float(abs(encoded)) - float(below)) or float(np.float32(9.2e-41))
            assert abs(float(value) - float(encoded)) <= gap


@given(hnp.arrays(np.uint16, 8))
def test_bfloat16_round_trips_bit_by_bit(bits):
    numbers = ~np.isnan(decode_bfloat16(bits))
    assert (encode_bfloat16(decode_bfloat16(bits))[numbers] == bits[numbers]).all()


def test_tile_sizes():
    sizes = {kind.value: kind.tile_bytes for kind in DataType}
    assert sizes == {
        "float32": 4096,
        "bfloat16": 2048,
        "bfloat8_b": 1088,
        "bfloat4_b": 576,
        "uint32": 4096,
        "int32": 4096,
        "uint16": 2048,
        "uint8": 1024,
    }


def test_refusals():
    with pytest.raises(
        WeftError, match="float64 is not a format of a chip; the formats are float32, bfl"
    ):
        DataType.of(np.dtype("float64"))
    with pytest.raises(WeftError, match="bfloat8_b encodes tiles, not elements"):
        DataType.BFLOAT8_B.encode(np.zeros(3))
    message = r"tiles of bfloat4_b have 576 bytes each, got shape \(2, 1088\)"
    with pytest.raises(WeftError, match=message):
        unpack_tiles(np.zeros((2, 1088), np.uint8), DataType.BFLOAT4_B)
