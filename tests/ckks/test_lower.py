"""Linear layers of all kinds, from the line to slots: right, and counted to the unit."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.ckks.layers import counts, packed_layers, run, tallies

from weft.ckks.bsgs import split
from weft.ckks.cost import predict
from weft.ckks.linear import linear
from weft.ckks.lower import lower
from weft.ckks.program import count


@given(packed_layers(), st.sampled_from([None, None, 1, 2, 3, 8]), st.booleans())
def test_a_layer_is_right_and_costs_what_was_predicted(layer, keys, biased):
    signature, packing, made, x, w, answer, scale = layer
    found = linear(signature, packing, made, weight=None if w is None else 1)
    parted = split(found, keys)
    bias = np.arange(answer.size).reshape(answer.shape) / 7 if biased else None
    program = lower(found, parted, [w], scale=scale, bias=bias)
    rows, counters = run(program, packing, made, x)
    expected = made.pack(answer if bias is None else answer + bias)
    assert np.abs(np.array(rows) - expected).max() < 1e-10
    cost, counted = predict(found, parted, biased), count(program)
    assert cost == replace(counted, live=0)
    assert counts(counted) == tallies(counters)
    assert keys is None or len(cost.keys) <= keys or cost.rotations == 0
