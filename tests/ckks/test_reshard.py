"""Resharding: any packing to any other, at no level where nothing has to be masked."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.ckks.layers import counts, run, tallies
from tests.ckks.packings import packings

from weft.ckks.linear import identity
from weft.ckks.packing import Packing
from weft.ckks.program import Add, Free, Program, count, then
from weft.ckks.reshard import reshard
from weft.errors import WeftError


def check(way):
    x = np.arange(1.0, prod(way.source.shape) + 1) / 1024  # small enough for the modulus
    shaped = x.reshape(way.source.shape)
    rows, counters = run(way.program, way.source, way.target, shaped)
    expected = way.target.pack(x.reshape(way.target.shape))
    assert np.abs(np.array(rows) - expected).max() < 1e-10
    counted = count(way.program)
    assert way.cost == replace(counted, live=0)
    assert counts(way.cost) == tallies(counters)


@st.composite
def pairs(draw):
    """Two packings of one tensor, sometimes of another shape."""
    slots = draw(st.sampled_from([16, 32, 64, 256]))
    source = draw(packings(slots=slots))
    shape = source.shape
    if draw(st.integers(0, 3)) == 0:
        size, shape = prod(shape), ()
        while size > 1:
            n = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
            size, shape = size // n, (*shape, n)
        assume(shape)
    target = draw(packings(shape, slots))
    assume(source.ciphertexts * target.ciphertexts <= 300)
    return source, target


@given(pairs(), st.sampled_from([None, None, 2, 5]))
def test_any_packing_becomes_any_other(pair, keys):
    check(reshard(*pair, keys))


@given(packings())
def test_a_packing_becomes_itself_for_nothing(packing):
    way = reshard(packing, packing)
    assert (way.cost.rotations, way.cost.additions, way.cost.levels) == (0, 0, 0)


@pytest.mark.parametrize(
    ("source", "target", "rotations", "levels"),
    [
        # 64 ciphertexts of one channel become 32 of two, as the seed has it.
        (Packing.tiled((64, 8, 8), 128, (16, 8)), Packing.tiled((64, 8, 8), 128), 32, 0),
        (Packing.vector(8, 64, stride=8), Packing.vector(8, 64, stride=8).replicated(), 0, 0),
        (Packing.vector(8, 64), Packing.vector(8, 64).replicated(), 3, 0),
        (Packing.dense((3, 5), 64), Packing.vector(15, 64), 0, 0),
    ],
)
def test_what_moves_as_a_whole_takes_no_level(source, target, rotations, levels):
    way = reshard(source, target)
    check(way)
    assert (way.cost.rotations, way.cost.levels) == (rotations, levels)


def test_merging_takes_as_many_rotations_as_ciphertexts_go():
    source = Packing.tiled((16, 4, 4), 64, side=(16, 4))
    target = Packing.tiled((16, 4, 4), 64)
    assert (source.ciphertexts, target.ciphertexts) == (16, 4)
    way = reshard(source, target)
    check(way)
    assert (way.cost.rotations, way.cost.levels) == (12, 0)


def test_splitting_takes_masks_and_a_level():
    way = reshard(Packing.tiled((16, 4, 4), 64), Packing.tiled((16, 4, 4), 64, side=(16, 4)))
    check(way)
    assert (way.cost.levels, way.cost.plain_products, way.cost.rotations) == (1, 16, 12)


def test_what_is_refused():
    with pytest.raises(WeftError, match=r"a tensor of shape \[4\] is wanted as \[2, 3\]"):
        reshard(Packing.vector(4, 8), Packing.dense((2, 3), 8))
    with pytest.raises(WeftError, match="a tensor in 8 slots is wanted in 16"):
        identity(Packing.vector(4, 8), Packing.vector(4, 16))
    double = Program(1, (1,), lambda: [Add(1, 0, 0), Free(0)])
    both = Program(2, (2,), lambda: [Add(2, 0, 1), Free(0), Free(1)])
    with pytest.raises(WeftError, match="makes 1 ciphertexts goes into one that takes 2"):
        then(double, both)
