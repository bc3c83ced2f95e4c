"""Polynomials as programs: as many operations as were said, on ciphertexts side by side."""

import numpy as np
import pytest

from weft.ckks.activations import Activation, fit
from weft.ckks.parameters import Parameters
from weft.ckks.pointwise import lower_pairs, lower_polynomial
from weft.ckks.polynomial import evaluate
from weft.ckks.program import Free, count, execute
from weft.ckks.simulator import Simulator
from weft.errors import WeftError

DEEP = Parameters(64, depth=6, security=None)


@pytest.mark.parametrize("ciphertexts", [1, 3])
@pytest.mark.parametrize("level", [5, 6])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("degree", [2, 3, 4, 7, 15])
@pytest.mark.parametrize("sign", [1, -1])
def test_programs(degree, fold, level, ciphertexts, sign):
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
    made = execute(program, backend, given)
    counted, said, written = backend.counters - before, evaluation.counts, count(program)
    for name in said._fields[1:]:
        assert getattr(counted, name) == ciphertexts * getattr(said, name), name
    for name in ("products", "plain_products", "rescales", "additions", "plain_additions"):
        assert getattr(written, name) == getattr(counted, name), name
    assert written.levels == said.levels == evaluation.levels
    assert not written.keys
    for row, cipher in zip(x, made):
        assert cipher.level == level - evaluation.levels
        np.testing.assert_allclose(backend.decrypt(cipher), activation(row), atol=1e-7)


def test_what_is_not_used_any_more_is_freed():
    program = lower_polynomial(evaluate(fit("gelu", 15, -4, 4)), DEEP, 6, 4)
    steps = list(program.steps())
    written = {step.out for step in steps if not isinstance(step, Free)}
    freed = [step.a for step in steps if isinstance(step, Free)]
    assert len(freed) == len(set(freed))
    assert {*freed} | {*program.outputs} == written | {*range(4)}
    assert count(program).live < 16


def test_a_line_that_is_folded_takes_no_steps():
    program = lower_polynomial(evaluate(Activation("line", (1.0, 2.0), -1, 1)), DEEP, 6, 2)
    shifted = [step for step in program.steps() if not isinstance(step, Free)]
    assert len(shifted) <= 2
    assert count(program).levels == 0


@pytest.mark.parametrize(("basis", "degree"), [("power", 4), ("chebyshev", 4), ("chebyshev", 11)])
def test_slots_without_elements_stay_zero(basis, degree):
    activation, backend = fit("gelu", degree, -5, 7), Simulator(DEEP)
    evaluation = evaluate(activation, basis=basis)
    mask = (np.arange(DEEP.slots) % 3 == 0).astype(float)
    x = np.linspace(-5, 7, DEEP.slots)
    argument = backend.encrypt((evaluation.factor * x + evaluation.shift) * mask)
    program = lower_polynomial(evaluation, DEEP, 6, masks=[mask])
    (made,) = execute(program, backend, [argument])
    found = backend.decrypt(made)
    assert (found[mask == 0] == 0).all()
    np.testing.assert_allclose(found[mask == 1], activation(x)[mask == 1], atol=1e-7)
    assert count(program) == count(lower_polynomial(evaluation, DEEP, 6))


def test_a_mask_for_each_ciphertext():
    with pytest.raises(WeftError, match=r"^2 ciphertexts have 1 masks$"):
        lower_polynomial(evaluate(fit("relu", 2, -1, 1)), DEEP, 6, 2, [np.ones(32)])


def test_a_product_needs_a_level():
    with pytest.raises(WeftError, match="levels 3 and 0 leave no level for a product"):
        lower_pairs("multiply", (3, 0))
