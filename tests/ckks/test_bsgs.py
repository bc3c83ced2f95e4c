"""Splits into baby and giant steps: the figures to meet, laws, and few keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ckks.layers import conv_signature, packed_layers

from weft.ckks.bsgs import DiagonalAxis, chain, decode, split
from weft.ckks.linear import LinearMap, linear
from weft.ckks.lower import predict
from weft.ckks.packing import Packing
from weft.errors import WeftError

S = 1 << 15


def conv(c, f, k, n, stride=1):
    pad = k // 2
    return conv_signature((1, c, n, n), (f, c, k, k), (stride, stride), (pad,) * 4)


LAYERS = {
    # No block of channels divides 512: 11 babies for each of 4 inputs, 47 giants.
    "2048 to 512, 1x1 at 7": (conv(2048, 512, 1, 7), (2048, 7, 7), (512, 7, 7), 86, 2048),
    "64 to 64, 3x3 at 56": (conv(64, 64, 3, 56), (64, 56, 56), (64, 56, 56), 120, 4608),
    "512 to 512, 3x3 at 7": (conv(512, 512, 3, 7), (512, 7, 7), (512, 7, 7), 134, 4608),
}


@pytest.mark.parametrize("name", LAYERS)
def test_rotations_of_known_layers(name):
    signature, source, target, rotations, products = LAYERS[name]
    linear_map = linear(signature, Packing.tiled(source, S), Packing.tiled(target, S), weight=1)
    diagonal_split = split(linear_map)
    assert (diagonal_split.rotations, linear_map.products) == (rotations, products)


def test_the_stem_reads_its_phases():
    # Rows of even phase need three taps, of odd phase four: 78 babies, not 90.
    source = Packing.phased((3, 224, 224), S, 2)
    linear_map = linear(conv(3, 64, 7, 224, 2), source, Packing.tiled((64, 112, 112), S), weight=1)
    diagonal_split = split(linear_map)
    assert (linear_map.inputs, linear_map.outputs, diagonal_split.rotations) == (6, 32, 110)
    assert sum(map(len, diagonal_split.babies)) == 3 * 15 + 3 * 11


@pytest.mark.parametrize("name", LAYERS)
def test_a_handful_of_keys_takes_no_more_rotations(name):
    signature, source, target, rotations, _ = LAYERS[name]
    linear_map = linear(signature, Packing.tiled(source, S), Packing.tiled(target, S), weight=1)
    diagonal_split = split(linear_map, keys=5)
    assert diagonal_split.rotations == rotations
    assert len(diagonal_split.keys) <= 5


def naive(linear_map: LinearMap) -> int:
    """A rotation for each diagonal of each input, or of each output, whichever is less."""
    inputs, outputs = {}, {}
    for (out, number), key in linear_map.blocks.items():
        steps = set(linear_map.sets[key].tolist()) - {0}
        inputs.setdefault(number, set()).update(steps)
        outputs.setdefault(out, set()).update(steps)
    return min(sum(map(len, inputs.values())), sum(map(len, outputs.values())))


@given(packed_layers(), st.sampled_from([None, 1, 2, 4, 9]))
def test_every_diagonal_is_a_baby_and_a_giant_step(layer, keys):
    signature, source, target, _, w, _, _ = layer
    linear_map = linear(signature, source, target, weight=None if w is None else 1)
    diagonal_split = split(linear_map, keys)
    babies = [{0, *(node for node, _, _ in tree.edges)} for tree in diagonal_split.babies]
    giants = [{0, *(node for node, _, _ in tree.edges)} for tree in diagonal_split.giants]
    for (out, number), key in linear_map.blocks.items():
        for d, b in zip(linear_map.sets[key].tolist(), diagonal_split.parts[key].tolist()):
            assert b in babies[number]
            assert (d - b) % linear_map.period in giants[out]
    for tree in (*diagonal_split.babies, *diagonal_split.giants):
        reached = {0}
        for node, parent, step in tree.edges:
            assert parent in reached
            assert step % linear_map.period
            assert (parent + step - node) % linear_map.period == 0
            assert node not in reached
            reached.add(node)
    if keys is None:
        assert diagonal_split.rotations <= naive(linear_map)
        assert predict(linear_map, diagonal_split).rotations == diagonal_split.rotations
    else:
        assert len(diagonal_split.keys) <= keys


@given(packed_layers())
def test_only_given_keys_are_used(layer):
    signature, source, target, _, w, _, _ = layer
    linear_map = linear(signature, source, target, weight=None if w is None else 1)
    keys = [1 << power for power in range(linear_map.slots.bit_length() - 1)]
    assert split(linear_map, keys).keys <= set(keys)
    direct = split(linear_map)
    assert split(linear_map, direct.keys).rotations == direct.rotations


@given(st.lists(st.integers(0, 255), min_size=1), st.lists(st.integers(1, 100), max_size=4))
def test_digits_add_up_to_the_diagonal(diagonals, strides):
    given_ = np.array(diagonals)
    axes = decode(given_, strides, 256)
    total = sum((axis.stride * axis.steps for axis in axes), np.zeros(len(diagonals), int))
    assert ((total - given_) % 256 == 0).all()


def test_steps_back_over_the_seam_are_small():
    (axis,) = decode(np.array([0, 1, 255]), [], 256)
    assert axis.steps.tolist() == [0, 1, -1]
    assert [tuple(size[:2]) for size in DiagonalAxis(1, np.array([3])).block_sizes] == [
        (1, 0),
        (4, 0),
    ]


def test_refusals():
    with pytest.raises(WeftError, match="0 rotation keys reach nothing; at least 1 is needed"):
        chain([np.array([0, 1])], 0, [1], 8)
    with pytest.raises(WeftError, match=r"a rotation by 1 cannot be made of \[2, 4\], modulo 8"):
        chain([np.array([0, 1])], [2, 4], [1], 8)
