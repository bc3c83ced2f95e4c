"""Linear layers of all kinds, from the line to slots: right, and counted to the unit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ckks.layers import (
    conv_signature,
    convolutions,
    counts,
    packed_layers,
    run,
    tallies,
)

from weft.ckks.bsgs import split
from weft.ckks.cost import predict
from weft.ckks.linear import linear, stacked
from weft.ckks.lower import lower
from weft.ckks.packing import Packing
from weft.ckks.program import count
from weft.errors import WeftError
from weft.lang import OPERATORS, Signature


@given(packed_layers(), st.sampled_from([None, None, 1, 2, 3, 8]), st.booleans())
def test_a_layer_is_right_and_costs_what_was_predicted(layer, keys, biased):
    signature, packing, made, x, w, answer, scale = layer
    found = linear(signature, packing, made, weight=None if w is None else 1)
    parted = split(found, keys)
    bias = np.arange(answer.size).reshape(answer.shape) / answer.size if biased else None
    program = lower(found, parted, [w], scales=[scale], biases=[bias])
    rows, counters = run(program, packing, made, x)
    expected = made.pack(answer if bias is None else answer + bias)
    assert np.abs(np.array(rows) - expected).max() < 1e-10
    cost, counted = predict(found, parted, [biased]), count(program)
    assert cost == replace(counted, live=0)
    assert counts(counted) == tallies(counters)
    assert keys is None or len(cost.keys) <= keys or cost.rotations == 0


@given(packed_layers(convolutions()), st.sampled_from([None, 3]), st.booleans())
def test_layers_of_one_operand_share_their_baby_steps(layer, keys, biased):
    signature, packing, made, x, w, answer, _ = layer
    sums = OPERATORS["sum_dim"].sign([x.shape], {"dimensions": (1,)})
    total = Packing.dense(sums.result_shapes[0], packing.slots)
    maps = [linear(signature, packing, made, weight=1), linear(sums, packing, total)]
    found = stacked(maps)
    parted = split(found, keys)
    bias = np.full(total.shape, 0.5) if biased else None
    program = lower(found, parted, [w], scales=[None, 2.0], biases=[None, bias])
    rows, counters = run(program, packing, made, x)
    first, second = rows[: made.ciphertexts], rows[made.ciphertexts :]
    assert np.abs(np.array(first) - made.pack(answer)).max() < 1e-10
    assert np.abs(total.unpack(second) - 2 * x.sum(axis=1) - 0.5 * biased).max() < 1e-10
    cost = predict(found, parted, [False, biased])
    assert cost == replace(count(program), live=0)
    assert counts(cost) == tallies(counters)


def test_a_shortcut_is_cheaper_with_its_convolution():
    source, target = (
        Packing.tiled((64, 56, 56), 1 << 15),
        Packing.multiplexed((128, 28, 28), 1 << 15, 2),
    )
    conv = conv_signature((1, 64, 56, 56), (128, 64, 3, 3), (2, 2), (1, 1, 1, 1))
    short = conv_signature((1, 64, 56, 56), (128, 64, 1, 1), (2, 2))
    maps = [linear(line, source, target, weight=1) for line in (conv, short)]
    alone = [split(each).rotations for each in maps]
    assert alone == [116, 52]
    assert split(stacked(maps)).rotations < sum(alone)


def test_keys_that_go_more_than_once_around_are_used_as_they_are():
    line = Signature.of("k, k n -> n  sum: k", [(8,), (8, 8)])
    source, target = Packing.vector(8, 64).replicated(), Packing.vector(8, 64)
    found = linear(line, source, target, weight=1)
    parted = split(found, [17, -20])
    x, w = np.arange(8.0), np.random.default_rng(0).normal(size=(8, 8))
    rows, counters = run(lower(found, parted, [w]), source, target, x, [17, 44])
    assert parted.keys == {17, 44} == set(counters.rotations_used)
    assert np.abs(target.unpack(rows) - x @ w).max() < 1e-12


def test_what_is_refused():
    line = Signature.of("i -> i", [(4,)])
    found = linear(line, Packing.vector(4, 8), Packing.vector(4, 8))
    with pytest.raises(WeftError, match=r"values of shape \[3\] do not broadcast to \[4\]"):
        lower(found, split(found), biases=[[1, 2, 3]])
    other = linear(line, Packing.vector(4, 8, 2), Packing.vector(4, 8))
    with pytest.raises(WeftError, match="maps of different packings of an operand"):
        stacked([found, other])
