"""Polynomials that stand for functions: how near, where, and what is refused."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import Polynomial, chebyshev

from weft.ckks.activations import Activation, fit, square
from weft.errors import WeftError

RANGES = st.tuples(st.floats(-20, 19), st.floats(0.1, 30)).map(lambda r: (r[0], r[0] + r[1]))


def relu(x):
    return np.maximum(x, 0)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(("name", "function"), [("relu", relu), ("silu", silu)])
@pytest.mark.parametrize("degree", [1, 2, 4, 7, 15])
def test_the_error_is_the_largest_distance_on_the_range(name, function, degree):
    made = fit(name, degree, -6, 9)
    at = np.linspace(-6, 9, 100_001)
    apart = np.abs(made(at) - function(at)).max()
    assert apart * (1 - 1e-12) <= made.error <= apart * 1.001


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_more_degrees_come_nearer(name):
    errors = [fit(name, degree, -8, 8).error for degree in (2, 4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 8


@pytest.mark.parametrize("degree", [2, 5, 9])
def test_the_fit_is_that_of_least_squares(degree):
    """NumPy solves the normal equations at the same nodes."""
    made = fit(np.tanh, degree, -3, 3, "tanh")
    t = np.cos(np.pi * (np.arange(4096) + 0.5) / 4096)
    np.testing.assert_allclose(
        made.coefficients, chebyshev.chebfit(t, np.tanh(3 * t), degree), atol=1e-12
    )


def test_no_polynomial_is_much_nearer():
    """The best one of degree 2 for |x| on [-1, 1] is off by 1/8; relu is half of it and a line."""
    assert fit("relu", 2, -1, 1).error < 2 * (1 / 8) / 2


@given(
    st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=9),
    RANGES,
)
def test_polynomials_are_found_again(coefficients, ends):
    wanted = Polynomial(coefficients)
    made = fit(wanted, len(coefficients) - 1, *ends, name="p")
    at = np.linspace(*ends, 101)
    scale = max(1.0, np.abs(wanted(at)).max())
    assert made.error <= 1e-11 * scale
    np.testing.assert_allclose(made(at), wanted(at), atol=1e-11 * scale)


@given(RANGES)
def test_the_square_has_no_error(ends):
    made, at = square(*ends), np.linspace(*ends, 101)
    np.testing.assert_allclose(made(at), at * at, atol=1e-11 * max(1, np.abs(at).max() ** 2))
    assert made.error == 0
    np.testing.assert_allclose(made.power, [0, 0, 1], atol=1e-10 * np.abs(at).max() ** 2)


def test_an_even_function_has_no_odd_terms():
    made = fit("relu", 6, -8, 8)
    assert made.coefficients[3] == made.coefficients[5] == 0
    assert made.coefficients[1] == pytest.approx(4)
    assert made.degree == 6
    assert fit("relu", 7, -8, 8).degree == 6
    assert made.power[3] == made.power[5] == 0


@pytest.mark.parametrize("degree", [3, 8])
def test_both_forms_are_one_polynomial(degree):
    made, at = fit("gelu", degree, -5, 3), np.linspace(-5, 3, 50)
    np.testing.assert_allclose(Polynomial(made.power)(at), made(at), atol=1e-10)


def test_a_function_is_named_after_itself():
    assert fit(np.tanh, 3, -1, 1).name == "tanh"
    assert fit(relu, 3, -1, 1, name="mine").name == "mine"


def test_attributes_come_back_without_an_unknown_error():
    known, unknown = fit("silu", 4, -2, 2), Activation("mine", (1.0, 2.0), -1, 1)
    assert Activation.of(known.attributes) == known
    assert "error" not in unknown.attributes
    assert Activation.of(unknown.attributes).coefficients == (1.0, 2.0)


@pytest.mark.parametrize("value", [-4.0001, 4.5, inf, -inf, nan])
def test_a_value_outside_is_refused(value):
    made = fit("relu", 4, -4, 4)
    made.check([-4.0, 0.0, 4.0])
    with pytest.raises(WeftError, match=r"^stem: the value .* is outside of \[-4, 4\], where relu"):
        made.check(np.array([[0.0, value]]), "stem")


def test_the_hint_names_parameters_that_fit():
    with pytest.raises(WeftError, match=r"^relu: the value 7\.5 is") as caught:
        fit("relu", 4, -4, 4).check([-5.0, 7.5, 0.0])
    assert caught.value.__notes__ == ["hint: 2 of 3 values are outside; fit it on [-5, 7.5]"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit("relu", 2, 3, 3), "relu needs a range from low to high, got [3.0, 3.0]"),
        (lambda: square(1, inf), "square needs a range from low to high, got [1.0, inf]"),
        (lambda: fit("relu", -1, 0, 1), "relu cannot have degree -1: from 0 to 4095"),
        (lambda: fit("swish", 2, 0, 1), "there is no activation swish"),
        (
            lambda: fit(lambda x: np.where(x > 0, x, nan), 2, -1, 1, "half"),
            "half is not a number at every point of [-1.0, 1.0]",
        ),
        (lambda: Activation("p", (), -1, 1), "p has the coefficients []"),
        (lambda: Activation("p", (nan,), -1, 1), "p has the coefficients [nan]"),
        (lambda: Activation.of({"coefficients": (1,), "name": "p"}), "p has no range"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(WeftError) as caught:
        call()
    assert str(caught.value) == message
