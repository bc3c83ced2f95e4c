"""Bounds hold for every input of the declared range; what they exceed is refused, or wraps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ckks.networks import networks, plainly

from weft import WeftError, ckks
from weft.ckks import bounds as analysis
from weft.ckks.network import ClearNetwork, compute
from weft.lang import ops, trace


def linear(ranges=50.0, size=64):
    graph = trace(ops.linear, (1, size), (size, 4), names=["x", "w"], parameters=["w"])
    return ckks.plan(graph, 64, ranges=ranges)


def refused(planned, weights, parameters):
    with pytest.raises(WeftError) as caught:
        ckks.check_bounds(planned, weights, parameters)
    return [str(caught.value), *caught.value.__notes__]


@pytest.fixture
def unchecked(monkeypatch):
    """The outputs of a run whose bounds are not checked."""
    monkeypatch.setattr(analysis._BoundsAnalysis, "check", lambda self: None)


FIFTY = {"x": np.full((1, 64), 50.0), "w": np.full((64, 4), 50.0)}


@pytest.mark.parametrize("backend", [ckks.Simulator, ckks.Seal])
def test_64_products_of_50_and_50_are_refused_where_they_do_not_fit(backend):
    planned = linear()
    small = planned.parameters(security=None)
    with pytest.raises(WeftError) as caught:
        ckks.run(planned, FIFTY, backend(small, planned.cost.keys))
    assert str(caught.value) == (
        "layer linear: values up to 160000 need a modulus of 58.3 bits, and level 0 has 50.0"
    )
    assert caught.value.__notes__ == ["hint: first_bits=59 would fit, or depth=2"]
    with pytest.raises(WeftError, match="values up to 160000"):
        ckks.check_ranges(planned, FIFTY, small)
    for large in ({"first_bits": 59}, {"depth": 2}):
        fits = planned.parameters(security=None, **large)
        result = ckks.run(planned, FIFTY, backend(fits, planned.cost.keys))
        error = np.abs(result["linear"] - 160000).max()
        assert error <= result.bounds.errors["linear"] < 0.01


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", range(3))
def test_the_simulator_overflows_as_seal_does(seed):
    planned, rng = linear(2000.0), np.random.default_rng(seed)
    arrays = {"x": rng.uniform(-2000, 2000, (1, 64)), "w": rng.uniform(-500, 500, (64, 4))}
    parameters = planned.parameters(security=None)
    made = [
        ckks.run(planned, arrays, backend(parameters, planned.cost.keys))["linear"]
        for backend in (ckks.Simulator, ckks.Seal)
    ]
    assert np.abs(made[0] - arrays["x"] @ arrays["w"]).max() > 100
    assert np.allclose(*made, atol=1e-3)


def test_an_intermediate_overflow_is_harmless_as_in_seal():
    """Residues stay congruent: what is multiplied down again comes out right on both."""
    parameters = ckks.Parameters(128, 3, security=None)
    for backend in (ckks.Simulator(parameters), ckks.Seal(parameters)):
        cipher = backend.encrypt(np.full(64, 500.0), 2)
        large = backend.rescale(backend.mul_plain(cipher, np.full(64, 1e9)))
        small = backend.rescale(backend.mul_plain(large, np.full(64, 1e-9), 2.0**40))
        assert small.level == 0
        assert np.allclose(backend.decrypt(small), 500, atol=1.0)


def test_suggested_parameters_have_the_requested_security():
    graph = trace(ops.linear, (1, 64), (64, 64), names=["x", "w"], parameters=["w"])
    planned = ckks.plan(graph, 4096, ranges=50)
    weights = {"w": np.full((64, 64), 50.0)}
    message, hint = refused(planned, weights, planned.parameters(scale_bits=49, first_bits=50))
    assert message.startswith("layer linear: values up to 160000 need a modulus of 67.3 bits")
    assert hint == "hint: depth=2 would fit"
    ckks.check_bounds(planned, weights, planned.parameters(scale_bits=49, first_bits=50, depth=2))
    planned = ckks.plan(graph, 2048, ranges=50)
    tight = ckks.Parameters(4096, 1, 24, 25, 25)
    _, hint = refused(planned, weights, tight)  # 43 + 24 + 43 bits are more than 109
    assert hint == "hint: depth=2 would fit"
    ckks.check_bounds(planned, weights, ckks.Parameters(4096, 2, 24, 25, 25))


def test_values_that_no_modulus_holds_are_refused():
    planned = linear(1e30)
    weights = {"w": np.full((64, 4), 1e30)}
    message, hint = refused(planned, weights, planned.parameters(security=None))
    assert message.startswith("input x: values up to 1e+30 need a modulus of ")
    assert hint.startswith("hint: no parameters of N=128 hold it: scale the weights down")
    weights["w"][0, 0] = 1e308
    message, _ = refused(linear(1e10), weights, planned.parameters(security=None))
    assert message == "layer linear: its values have no finite bound"
    weights["w"][0, 0] = np.nan
    assert refused(linear(), weights, planned.parameters(security=None))[0] == message


def test_the_bound_of_a_linear_layer_is_its_largest_row_of_absolute_weights():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 4))
    planned = linear(3.0)
    found = ckks.check_bounds(planned, {"w": w}, planned.parameters(security=None))
    assert found.values["linear"].high == pytest.approx(3 * np.abs(w).sum(0).max(), rel=1e-6)
    assert not found.assumed
    one_sided = linear((0.0, 1.0))
    found = ckks.check_bounds(one_sided, {"w": np.abs(w)}, planned.parameters(security=None))
    assert found.values["linear"].low == pytest.approx(0, abs=1e-6)


def test_bounds_are_printed_by_value():
    planned = linear(1.0)
    w = np.full((64, 4), 0.5)
    lines = str(ckks.check_bounds(planned, {"w": w}, planned.parameters(security=None))).split("\n")
    assert lines[0].split() == ["value", "level", "bits", "of", "modulus", "error", "range"]
    assert [line.split()[0] for line in lines[1:]] == ["x", "linear"]
    assert lines[2].endswith("[-32, 32]")


def network(low=-4.0, high=4.0):
    relu = ckks.fit("relu", 3, low, high)

    def forward(x, w, v):
        return ops.linear(ops.polynomial(ops.linear(x, w), **relu.attributes), v)

    return trace(forward, (1, 8), (8, 8), (8, 8), parameters=["w", "v"])


def test_a_polynomial_is_taken_to_be_in_its_range_and_inputs_that_leave_it_are_refused():
    planned = ckks.plan(network(), 64)
    arrays = {"x": np.ones((1, 8)), "w": np.ones((8, 8)), "v": np.eye(8)}
    parameters = planned.parameters(security=None)
    found = ckks.check_bounds(planned, arrays, parameters)
    assert "linear" in found.assumed
    assert "(assumed)" in str(found)
    backend = ckks.Simulator(parameters)
    with pytest.raises(WeftError, match=r"polynomial: the value 8 is outside of \[-4, 4\]"):
        ckks.run(planned, arrays, backend)
    assert not backend.counters.encryptions
    arrays["x"] = arrays["x"] / 3
    ckks.run(planned, arrays, backend)
    proved = ckks.check_bounds(planned, {**arrays, "w": np.ones((8, 8)) / 3}, parameters)
    assert not proved.assumed


def test_a_polynomial_that_no_input_reaches_the_range_of_is_refused():
    planned = ckks.plan(network(4.0, 8.0), 64)
    weights = {"w": np.eye(8), "v": np.eye(8)}
    message, hint = refused(planned, weights, planned.parameters(security=None))
    assert message == (
        "layer polynomial: a value of layer linear lies outside of [4, 8], where relu fits, for "
        "every input"
    )
    assert hint == "hint: fit the polynomial on a larger range"


def test_intermediate_powers_are_bounded():
    """Of u^4 - u^2 on [-40, 40] the square is computed at level 1, and the fourth power at 0."""
    steep = ckks.Activation("steep", (0.0, 0.0, 0.0, 0.0, 1.0), -40, 40)
    graph = trace(lambda x: ops.polynomial(x, **steep.attributes), (1, 8))
    planned = ckks.plan(graph, 64, ranges=40)
    found = ckks.check_bounds(planned, {}, planned.parameters(security=None))
    assert found.values["polynomial"].magnitude == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("size", [1e-14, 1e-12])
def test_weights_that_are_lost_in_the_noise_are_refused(size):
    graph = trace(
        lambda x, a, b: ops.linear(ops.linear(x, a), b),
        (1, 8),
        (8, 8),
        (8, 8),
        parameters=["a", "b"],
    )
    planned = ckks.plan(graph, 64)
    weights = {"a": np.eye(8) * size, "b": np.eye(8) / size}
    message, _ = refused(planned, weights, planned.parameters(security=None))
    assert message.startswith("output linear_2: an error of ")
    assert message.endswith("which exceeds the tolerance of 0.001 of them")
    alone, _ = refused(linear(1.0), {"w": np.full((64, 4), size)}, linear().parameters(None))
    assert alone.startswith("output linear: an error of ")


def test_hints_that_make_an_error_small_enough():
    planned = linear(1.0)
    weights = {"w": np.full((64, 4), 0.1)}
    small = ckks.Parameters(128, 1, 20, 40, 60, security=None)
    message, hint = refused(ckks.plan(planned.network.graph, 64, tolerance=1e-6), weights, small)
    assert "exceeds the tolerance of 1e-06" in message
    bits = int(hint.split("scale_bits=")[1].split()[0])
    first = int(hint.split("first_bits=")[1].split()[0])
    better = ckks.Parameters(128, 1, bits, first, 60, security=None)
    ckks.check_bounds(ckks.plan(planned.network.graph, 64, tolerance=1e-6), weights, better)
    with pytest.raises(WeftError, match="tolerance is 0; it must be above 0"):
        ckks.plan(planned.network.graph, 64, tolerance=0)


def test_all_zero_weights_have_no_range_and_are_right():
    planned = linear(1.0)
    arrays = {"x": np.ones((1, 64)), "w": np.zeros((64, 4))}
    backend = ckks.Seal(planned.parameters(security=None), planned.cost.keys)
    result = ckks.run(planned, arrays, backend)
    assert np.abs(result["linear"]).max() <= result.bounds.errors["linear"] < 1e-6


@settings(max_examples=settings().max_examples // 6)
@given(networks(), st.integers(0, 1 << 30))
def test_bounds_hold_for_every_input_of_the_range(network, seed):
    """At corners of the declared range and inside, every value of the network is in its bounds."""
    graph, arrays = network
    planned = ckks.plan(graph, 256, ["x"])
    parameters = planned.parameters(security=None)
    try:
        found = ckks.check_bounds(planned, arrays, parameters)
    except WeftError as error:
        reasons = ("need a modulus", "outside", "exceeds the tolerance")
        assert any(each in str(error) for each in reasons)  # noqa: PT017
        return
    rng = np.random.default_rng(seed)
    clear = ClearNetwork(planned.network, compute(planned.network.clear_graph, arrays))
    for inside in (False, False, True):
        x = rng.uniform(-1, 1, arrays["x"].shape)
        values = clear.values({"x": x if inside else np.sign(x)})
        if any(not _is_in(values[name], found.values[name]) for name in found.assumed):
            continue  # refused when it is encrypted
        for name, each in values.items():
            assert _is_in(each, found.values[name]), name
        result = ckks.run(planned, {**arrays, "x": x}, ckks.Simulator(parameters))
        want = plainly(graph, {**arrays, "x": x})
        assert np.abs(result[graph.outputs[0]] - want).max() <= 1e-9 * (1 + np.abs(want).max())


def _is_in(values, limits):
    slack = 1e-9 * (1 + limits.magnitude)
    return limits.low - slack <= values.min() and values.max() <= limits.high + slack


@pytest.mark.parametrize("size", [300.0, 1e5, 1e13, 1e16])
def test_oversized_plaintexts_are_refused_with_a_size_that_fits(size):
    """A bias, a shift and weights are encoded at a level, which must hold them as well."""

    def shifted(x, w, b, c):
        return ops.linear(x, w, b) - c

    graph = trace(shifted, *[(1, 4), (4, 4), (4,), (1, 4)], parameters=["w", "b", "c"])
    planned = ckks.plan(graph, 64)
    weights = {"w": np.full((4, 4), 0.1), "b": np.full(4, size), "c": np.full((1, 4), size)}
    bits = {}
    try:
        ckks.check_bounds(planned, weights, planned.parameters(security=None))
    except WeftError as error:
        (hint,) = error.__notes__
        if "would fit" not in hint:
            return
        name, number = hint.removeprefix("hint: ").split(" would")[0].split("=")
        bits = {name: int(number)}
    parameters = planned.parameters(security=None, **bits)
    try:
        ckks.check_bounds(planned, weights, parameters)
    except WeftError as error:
        assert "exceeds the tolerance" in str(error)  # noqa: PT017 - float64 loses its digits
        return
    backend = ckks.Seal(parameters, planned.cost.keys)
    result = ckks.run(planned, {**weights, "x": np.ones((1, 4))}, backend)
    assert np.allclose(result["subtract"], 0.4, atol=result.bounds.errors["subtract"])
