"""Polynomials of ciphertexts: what they are, what they cost, and at which level they end."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import Polynomial, chebyshev, polynomial

from weft.ckks.activations import Activation, fit, square
from weft.ckks.backends import Seal, Simulator
from weft.ckks.parameters import Parameters
from weft.ckks.polynomial import Members, candidates, divide, evaluate, plan
from weft.ckks.slot_program import OperationCounts
from weft.errors import WeftError

DEEP = Parameters(64, depth=8, security=None)
VALUES = {"power": polynomial.polyval, "chebyshev": chebyshev.chebval}
BASES = pytest.mark.parametrize("basis", ["power", "chebyshev"])


def run(evaluation, x, parameters=DEEP, level=None):
    """The result and what was counted, by a back-end that checks levels and scales."""
    backend = Simulator(parameters)
    argument = backend.encrypt(x, level)
    before = backend.counters.copy()
    last = evaluation.run(backend, argument)
    assert last.level == argument.level - evaluation.levels
    assert last.scale == pytest.approx(parameters.scales[last.level], rel=1e-12)
    counters = backend.counters - before
    return backend.decrypt(last)[: len(x)], counters


def check(evaluation, wanted, at, tolerance=1e-9):
    """The result, the counts and the levels are as they were said to be."""
    argument = at * evaluation.factor + evaluation.shift if evaluation.folded else at
    found, counted = run(evaluation, argument)
    assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())
    assert counted == evaluation.counts
    assert evaluation.counts.levels == evaluation.levels
    values = evaluation.value(argument)
    assert np.abs(values - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


COEFFICIENTS = st.lists(
    st.one_of(st.just(0.0), st.sampled_from([1.0, -1.0]), st.floats(-4, 4, allow_subnormal=False)),
    min_size=1,
    max_size=15,
)


@BASES
@given(COEFFICIENTS, st.floats(0.01, 4) | st.floats(-4, -0.01) | st.sampled_from([1.0, -1.0]))
def test_any_polynomial(basis, lower, last):
    p, at = (*lower, last), np.linspace(-1, 1, 32)
    evaluation = plan(p, basis)
    check(evaluation, VALUES[basis](at, p), at)
    is_monic = basis == "power" and abs(last) == 1
    degree = len(lower)
    assert evaluation.levels == ceil(log2(degree if is_monic else degree + 1))


def by_halves(degree):
    """Products besides the powers: divide by the largest power of two, down to lines."""
    if degree <= 1:
        return 0
    half = 1 << (degree.bit_length() - 1)
    return by_halves(half - 1) + (1 + by_halves(degree - half) if degree > half else 0)


@BASES
@pytest.mark.parametrize("degree", range(1, 32))
def test_never_more_products_than_by_halves(basis, degree):
    """The plain way to keep the least depth; from degree 11 on there are better ones."""
    p = [1.5] * (degree + 1)
    evaluation = plan(p, basis)
    plain = degree.bit_length() - 1 + by_halves(degree)
    assert evaluation.counts.products <= plain
    assert degree < 11 or evaluation.counts.products < plain
    at = np.linspace(-1, 1, 32)
    check(evaluation, VALUES[basis](at, p), at)


@pytest.mark.parametrize(
    ("degree", "products"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (6, 4), (7, 5), (8, 4), (15, 8), (16, 7), (31, 13)],
)
def test_products_of_small_degrees(degree, products):
    """With one level more, degree 7 would take 4 and degree 15 would take 7: depth comes first."""
    assert plan([0.5] * (degree + 1)).counts.products == products


def test_a_sum_is_rescaled_once():
    """x^2, then (c3 x + c2) x^2 + c1 x + c0: three rescales, and c1 x comes down with its term."""
    counts = plan([0.5, 0.6, 0.7, 0.8]).counts
    assert (counts.levels, counts.products, counts.plain_products, counts.rescales) == (2, 2, 2, 3)


def test_terms_that_are_zero_cost_nothing():
    even = plan([0.5, 0, 0.5, 0, 0.5, 0, 0.5, 0, 0.5]).counts
    dense = plan([0.5] * 9).counts
    assert even.products < dense.products
    assert plan([0, 0, 0.5]).counts.plain_products == 1
    assert plan([0, 0, 0, 0, 0.5]).counts.plain_additions == 0


@given(
    st.floats(-3, 3).filter(lambda a: abs(a) > 0.01),
    st.floats(-3, 3),
    st.floats(-3, 3),
)
def test_degree_2_folded_is_one_square(a, b, c):
    p = Polynomial([c, b, a])
    evaluation = evaluate(fit(p, 2, -2, 3, "p"))
    counts = evaluation.counts
    assert (counts.levels, counts.products, counts.plain_products, counts.rescales) == (1, 1, 0, 1)
    at = np.linspace(-2, 3, 32)
    check(evaluation, p(at), at, 1e-8)


@pytest.mark.parametrize("degree", range(1, 17))
@pytest.mark.parametrize("ends", [(-8, 8), (-3, 7), (-1, 1)])
@pytest.mark.parametrize("name", ["relu", "silu"])
def test_activations_folded(name, ends, degree):
    activation, at = fit(name, degree, *ends), np.linspace(*ends, 32)
    evaluation = evaluate(activation)
    assert evaluation.levels == ceil(log2(activation.degree))
    check(evaluation, activation(at), at, 1e-7)


@pytest.mark.parametrize("degree", [1, 2, 3, 5, 8, 15])
@pytest.mark.parametrize("ends", [(-8, 8), (-3, 7), (-1, 1)])
def test_activations_by_themselves(ends, degree):
    activation, at = fit("gelu", degree, *ends), np.linspace(*ends, 32)
    evaluation = evaluate(activation, fold=False)
    assert not evaluation.is_normalised_here or max(ends) ** degree > 2**16
    more = evaluation.is_normalised_here
    assert evaluation.levels == ceil(log2(activation.degree + 1)) + more
    check(evaluation, activation(at), at, 1e-8)
    if not more:
        assert evaluation.basis == "power"


def test_the_square_is_one_product_with_or_without_folding():
    for fold in (True, False):
        evaluation = evaluate(square(-8, 8), fold)
        assert (evaluation.factor, evaluation.shift) == (1, 0)
        assert evaluation.counts == OperationCounts(products=1, rescales=1)


def test_a_folded_line_has_no_operations():
    evaluation = evaluate(Activation("line", (3.0, 2.0), -4, 4))
    assert (evaluation.levels, evaluation.counts.products) == (0, 0)
    at = np.linspace(-4, 4, 32)
    check(evaluation, 3 + at / 2, at)


def test_the_basis_can_be_chosen():
    relu, at = fit("relu", 4, -8, 8), np.linspace(-8, 8, 32)
    assert evaluate(relu).levels == 2
    assert evaluate(relu).counts.products == 2
    asked = evaluate(relu, basis="chebyshev")
    assert (asked.basis, asked.levels) == ("chebyshev", 3)
    check(asked, relu(at), at)


@pytest.mark.parametrize("level", [4, 6, 8])
def test_polynomials_start_at_any_level(level):
    evaluation, at = plan([0.3] * 16), np.linspace(-1, 1, 32)
    found, _ = run(evaluation, at, level=level)
    np.testing.assert_allclose(found, polynomial.polyval(at, [0.3] * 16), atol=1e-9)


@BASES
@given(st.lists(st.integers(-9, 9), min_size=3, max_size=20), st.data())
def test_division(basis, p, data):
    k = data.draw(st.integers(1, len(p) - 1))
    q, r = divide(basis, tuple(p), k)
    assert len(r) <= k
    at, member = np.linspace(-1, 1, 9), [0] * k + [1]
    value = VALUES[basis]
    np.testing.assert_allclose(
        value(at, q) * value(at, member) + value(at, r), value(at, p), atol=1e-6 * 2 ** len(p)
    )


@BASES
@pytest.mark.parametrize("degree", [1, 2, 5, 16, 40])
def test_members_are_made_of_members(basis, degree):
    for members in candidates(basis, degree):
        for n, (a, b) in members.pairs.items():
            assert a + b == n
            assert members.depths[n] == 1 + max(members.depths[a], members.depths[b])
            assert basis == "power" or a == b or a - b in members.depths
    assert Members.of(basis, (3,)) is None


@settings(max_examples=5)
@given(st.integers(32, 70))
def test_large_degrees(degree):
    p, at = [1 / (n + 1) for n in range(degree + 1)], np.linspace(-1, 1, 32)
    evaluation = plan(p, "chebyshev")
    assert evaluation.counts.products <= 3 * degree**0.5
    check(evaluation, chebyshev.chebval(at, p), at)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([2.5, 0, 0], "a polynomial of degree 0, 2.5, has no ciphertext in it"),
        ([1, float("nan")], "a polynomial has the coefficients [1.0, nan]"),
    ],
)
def test_refusals(p, message):
    with pytest.raises(WeftError) as caught:
        plan(p)
    assert str(caught.value) == message


def test_too_few_levels_are_refused():
    backend = Simulator(Parameters(64, depth=3, security=None))
    with pytest.raises(WeftError) as caught:
        plan([1.5] * 10).run(backend, backend.encrypt([1.0]))
    assert str(caught.value) == "a polynomial of degree 9 takes 4 levels and its argument has 3"


@pytest.mark.parametrize(("name", "degree"), [("relu", 2), ("relu", 4), ("gelu", 7), ("silu", 15)])
def test_real_ciphertexts(name, degree):
    pytest.importorskip("tenseal")
    parameters = Parameters(1024, depth=4, security=None)
    activation, at = fit(name, degree, -8, 8), np.linspace(-8, 8, parameters.slots)
    evaluation = evaluate(activation)
    backend = Seal(parameters, [], relinearise=True)
    argument = backend.encrypt(evaluation.factor * at + evaluation.shift)
    before = backend.counters.copy()
    made = evaluation.run(backend, argument)
    counted = backend.counters - before
    assert counted == evaluation.counts
    assert np.abs(backend.decrypt(made) - activation(at)).max() < 1e-5
