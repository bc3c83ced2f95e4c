"""Linear layers, repackings, polynomials: from index notation to slots, right and counted."""

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.ckks.layers import packed_layers, run
from tests.ckks.packings import packings

from weft.ckks.activations import Activation, fit
from weft.ckks.backends import Simulator
from weft.ckks.bsgs import split
from weft.ckks.linear import identity, linear
from weft.ckks.lower import lower, lower_pairs, lower_polynomial, predict, reshard
from weft.ckks.packing import Packing
from weft.ckks.parameters import Parameters
from weft.ckks.polynomial import evaluate
from weft.ckks.slot_program import count, execute, last_uses
from weft.errors import WeftError
from weft.lang import Signature


@given(packed_layers(), st.sampled_from([None, None, 1, 2, 3, 8]), st.booleans())
def test_a_layer_is_correct_at_the_predicted_cost(layer, keys, biased):
    signature, packing, target, x, w, answer, scale = layer
    linear_map = linear(signature, packing, target, weight=None if w is None else 1)
    diagonal_split = split(linear_map, keys)
    bias = np.arange(answer.size).reshape(answer.shape) / answer.size if biased else None
    program = lower(linear_map, diagonal_split, [w], scales=[scale], bias=bias)
    rows, counters = run(program, packing, x)
    expected = target.pack(answer if bias is None else answer + bias)
    assert np.abs(np.array(rows) - expected).max() < 1e-10
    cost = predict(linear_map, diagonal_split, biased)
    assert cost == count(program) == counters
    assert cost.levels == count(program).levels == 1
    assert keys is None or len(cost.keys) <= keys or cost.rotations == 0


def test_keys_that_go_more_than_once_around_are_used_as_they_are():
    line = Signature.of("k, k n -> n  sum: k", [(8,), (8, 8)])
    source, target = Packing.vector(8, 64).replicated(), Packing.vector(8, 64)
    linear_map = linear(line, source, target, weight=1)
    diagonal_split = split(linear_map, [17, -20])
    x, w = np.arange(8.0), np.random.default_rng(0).normal(size=(8, 8))
    rows, counters = run(lower(linear_map, diagonal_split, [w]), source, x, [17, 44])
    assert diagonal_split.keys == {17, 44} == set(counters.rotations_by_step)
    assert np.abs(target.unpack(rows) - x @ w).max() < 1e-12


def test_linear_maps_that_are_refused():
    line = Signature.of("i -> i", [(4,)])
    linear_map = linear(line, Packing.vector(4, 8), Packing.vector(4, 8))
    with pytest.raises(WeftError, match=r"values of shape \[3\] do not broadcast to \[4\]"):
        lower(linear_map, split(linear_map), bias=[1, 2, 3])


# -- repackings -----------------------------------------------------------------------------------


def check(repacking):
    x = np.arange(1.0, prod(repacking.source.shape) + 1) / 1024  # small enough for the modulus
    shaped = x.reshape(repacking.source.shape)
    rows, counters = run(repacking.program, repacking.source, shaped)
    expected = repacking.target.pack(x.reshape(repacking.target.shape))
    assert np.abs(np.array(rows) - expected).max() < 1e-10
    assert repacking.cost == count(repacking.program) == counters
    assert repacking.cost.levels == count(repacking.program).levels


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
def test_repacking_to_the_same_packing_is_free(packing):
    repacking = reshard(packing, packing)
    assert (repacking.cost.rotations, repacking.cost.additions, repacking.cost.levels) == (0, 0, 0)


@pytest.mark.parametrize(
    ("source", "target", "rotations", "levels"),
    [
        # 64 ciphertexts of one channel become 32 of two, as in seed 002 (8 x 8 pixels here).
        (Packing.tiled((64, 8, 8), 128, (16, 8)), Packing.tiled((64, 8, 8), 128), 32, 0),
        (Packing.vector(8, 64, stride=8), Packing.vector(8, 64, stride=8).replicated(), 0, 0),
        (Packing.vector(8, 64), Packing.vector(8, 64).replicated(), 3, 0),
        (Packing.dense((3, 5), 64), Packing.vector(15, 64), 0, 0),
    ],
)
def test_moving_whole_ciphertexts_takes_no_level(source, target, rotations, levels):
    repacking = reshard(source, target)
    check(repacking)
    assert (repacking.cost.rotations, repacking.cost.levels) == (rotations, levels)


def test_merging_takes_as_many_rotations_as_ciphertexts_go():
    source = Packing.tiled((16, 4, 4), 64, side=(16, 4))
    target = Packing.tiled((16, 4, 4), 64)
    assert (source.ciphertexts, target.ciphertexts) == (16, 4)
    repacking = reshard(source, target)
    check(repacking)
    assert (repacking.cost.rotations, repacking.cost.levels) == (12, 0)


def test_splitting_takes_masks_and_a_level():
    repacking = reshard(Packing.tiled((16, 4, 4), 64), Packing.tiled((16, 4, 4), 64, side=(16, 4)))
    check(repacking)
    assert (repacking.cost.levels, repacking.cost.plain_products, repacking.cost.rotations) == (
        1,
        16,
        12,
    )


def test_repackings_that_are_refused():
    with pytest.raises(WeftError, match=r"a tensor of shape \[4\] is wanted as \[2, 3\]"):
        reshard(Packing.vector(4, 8), Packing.dense((2, 3), 8))
    with pytest.raises(WeftError, match="a tensor in 8 slots is wanted in 16"):
        identity(Packing.vector(4, 8), Packing.vector(4, 16))


# -- polynomials and pairs ------------------------------------------------------------------------

DEEP = Parameters(64, depth=6, security=None)


@pytest.mark.parametrize("ciphertexts", [1, 3])
@pytest.mark.parametrize("level", [5, 6])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("degree", [2, 3, 4, 7, 15])
@pytest.mark.parametrize("sign", [1, -1])
def test_polynomials(degree, fold, level, ciphertexts, sign):
    activation = fit(lambda x: sign * np.maximum(x, 0), degree, -5, 6, "relu")
    evaluation = evaluate(activation, fold)
    program = lower_polynomial(evaluation, DEEP, level, ciphertexts)
    backend = Simulator(DEEP)
    x = np.random.default_rng(0).uniform(-5, 6, (ciphertexts, DEEP.slots))
    given = [
        backend.encrypt(evaluation.factor * row + evaluation.shift if fold else row, level)
        for row in x
    ]
    before = backend.counters.copy()
    results = execute(program, backend, given)
    counted = count(program)
    assert backend.counters - before == counted == evaluation.counts.repeated(ciphertexts)
    assert counted.levels == evaluation.levels
    assert not counted.keys
    for row, result in zip(x, results):
        assert result.level == level - evaluation.levels
        np.testing.assert_allclose(backend.decrypt(result), activation(row), atol=1e-7)


def test_registers_of_polynomials_are_released():
    program = lower_polynomial(evaluate(fit("gelu", 15, -4, 4)), DEEP, 6, 4)
    uses = last_uses((each.operands for each in program.instructions), program.outputs)
    released = [register for ended in uses for register in ended]
    assert len(released) == len(set(released))
    written = {each.out for each in program.instructions}
    assert {*released} | {*program.outputs} == written | {*range(4)}
    assert count(program).live < 16


def test_a_folded_line_takes_almost_no_instructions():
    program = lower_polynomial(evaluate(Activation("line", (1.0, 2.0), -1, 1)), DEEP, 6, 2)
    assert len(program.instructions) <= 2
    assert count(program).levels == 0


@pytest.mark.parametrize(("basis", "degree"), [("power", 4), ("chebyshev", 4), ("chebyshev", 11)])
def test_slots_without_elements_stay_zero(basis, degree):
    activation, backend = fit("gelu", degree, -5, 7), Simulator(DEEP)
    evaluation = evaluate(activation, basis=basis)
    mask = (np.arange(DEEP.slots) % 3 == 0).astype(float)
    x = np.linspace(-5, 7, DEEP.slots)
    argument = backend.encrypt((evaluation.factor * x + evaluation.shift) * mask)
    program = lower_polynomial(evaluation, DEEP, 6, masks=[mask])
    (result,) = execute(program, backend, [argument])
    values = backend.decrypt(result)
    assert (values[mask == 0] == 0).all()
    np.testing.assert_allclose(values[mask == 1], activation(x)[mask == 1], atol=1e-7)
    assert count(program) == count(lower_polynomial(evaluation, DEEP, 6))


def test_a_mask_for_each_ciphertext():
    with pytest.raises(WeftError, match=r"^2 ciphertexts have 1 masks$"):
        lower_polynomial(evaluate(fit("relu", 2, -1, 1)), DEEP, 6, 2, [np.ones(32)])


def test_a_product_needs_a_level():
    with pytest.raises(WeftError, match="levels 3 and 0 leave no level for a product"):
        lower_pairs("multiply", DEEP, (3, 0))
