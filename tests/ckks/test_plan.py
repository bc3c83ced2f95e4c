"""Whole networks: predicted counts are the counted ones, results are those of NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ckks.networks import networks, plainly

from weft import WeftError
from weft.ckks import (
    OperationTimes,
    Packing,
    Parameters,
    Seal,
    Simulator,
    check_ranges,
    fit,
    plan,
    run,
)
from weft.lang import ops, trace

REFUSED = ("need a modulus", "is outside of", "lies outside of", "exceeds the tolerance")
"""Why random weights may be refused: values that are too large, or lost in the noise."""


def check_counts(planned, result):
    for layer, measured in zip(planned.layers, result.measured, strict=True):
        assert layer.cost == measured.counters, layer.name


@settings(max_examples=settings().max_examples // 3)
@given(networks(), st.sampled_from([256, 1024]), st.sampled_from([None, 8]))
def test_networks_equal_numpy_at_the_planned_cost(network, slots, keys):
    graph, arrays = network
    if not graph.applications:
        return
    planned = plan(graph, slots, ["x"])
    if keys is not None:
        try:
            planned = plan(graph, slots, ["x"], keys=keys)
        except WeftError as refused:
            keys = int(str(refused).split()[0])  # "9 rotation keys are the fewest …"
            planned = plan(graph, slots, ["x"], keys=keys)
    roomy = planned.parameters(security=None, depth=planned.depth + 1)
    try:
        result = run(planned, arrays, Simulator(roomy, rotations=planned.cost.keys))
    except WeftError as refused:
        assert any(each in str(refused) for each in REFUSED), refused  # noqa: PT017
        return
    want = plainly(graph, arrays)
    assert result[graph.outputs[0]].shape == want.shape
    assert np.allclose(result[graph.outputs[0]], want, rtol=1e-9, atol=1e-10)
    check_counts(planned, result)
    if keys is not None:
        assert len(planned.cost.keys) <= keys


def block(channels=2, size=6):
    """A residual block with its arrays."""
    relu = fit("relu", 2, -3, 3)
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.uniform(-1, 1, (1, channels, size, size)),
        "a": rng.normal(0, 0.3 / channels, (channels, channels, 3, 3)),
        "b": rng.normal(0, 0.3 / channels, (channels, channels, 3, 3)),
    }

    def residual(x, a, b):
        y = ops.convolve(x, a, (1, 1), (1, 1))
        y = ops.polynomial(y, **relu.attributes)
        return ops.convolve(y, b, (1, 1), (1, 1)) + x

    return trace(residual, *arrays.values(), parameters=["a", "b"]), arrays


def test_a_residual_block_on_real_ciphertexts():
    graph, arrays = block()
    planned = plan(graph, 1 << 14)
    parameters = Parameters(1 << 15, planned.depth, security=128)
    result = run(planned, arrays, Seal(parameters, planned.cost.keys))
    assert np.abs(result[graph.outputs[0]] - plainly(graph, arrays)).max() < 1e-3
    check_counts(planned, result)


def test_parameters_with_spare_levels():
    graph, arrays = block()
    planned = plan(graph, 512)
    parameters = Parameters(1024, planned.depth + 2, security=None)
    result = run(planned, arrays, Simulator(parameters))
    assert np.allclose(result[graph.outputs[0]], plainly(graph, arrays))
    check_counts(planned, result)


def test_a_fixed_packing_is_used():
    graph, arrays = block(channels=4)
    given = Packing.multiplexed((4, 6, 6), 1024, gap=2)
    planned = plan(graph, 1024, packed={"x": given})
    assert planned.packings["x"] == given
    result = run(planned, arrays, Simulator(planned.parameters(security=None)))
    assert np.allclose(result[graph.outputs[0]], plainly(graph, arrays))


def test_parameters_that_do_not_fit_are_refused_with_the_layer():
    graph, _ = block()
    planned = plan(graph, 2048)
    with pytest.raises(WeftError, match=r"the plan is for 2048 slots and N=8192 has 4096"):
        planned.check(Parameters(8192, 2))
    with pytest.raises(WeftError) as refused:
        planned.check(Parameters(4096, planned.depth - 1, security=None))
    assert str(refused.value).startswith("layer convolution_2: no level is left for it")
    assert "N=16384 with depth=3 would fit" in "".join(refused.value.__notes__)


def test_a_value_outside_its_range_is_refused_before_there_are_keys():
    graph, arrays = block()
    planned = plan(graph, 512)
    parameters = planned.parameters(security=None)
    check_ranges(planned, arrays, parameters)
    with pytest.raises(WeftError, match=r"polynomial.*\[-3, 3\]"):
        check_ranges(planned, {**arrays, "a": 40 * arrays["a"]}, parameters)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (ops.relu, "layer relu: relu cannot be done on ciphertexts"),
        (lambda x: ops.max_pool(x, window=(2, 2)), "layer max_pool: max_pool cannot be done"),
        (lambda x: 1.0 / x, "layer divide: divide nothing can be divided by an encrypted"),
        (lambda x: x @ x, "is not linear in one encrypted operand"),
    ],
)
def test_unsupported_layers_are_refused_by_name(program, message):
    graph = trace(program, np.ones((1, 2, 4, 4)))
    with pytest.raises(WeftError) as refused:
        plan(graph, 64)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: x.reshape(1, 8) + x.reshape(1, 8) @ w,
        lambda x, w: (x.reshape(1, 8) @ w) * x.reshape(1, 8),
        lambda x, w: w[0] - x.reshape(1, 8) * 2.0,
        lambda x, w: (x.reshape(8) * 2.0).reshape(2, 4) * x.reshape(2, 4),
        lambda x, w: x.reshape(1, 8) / (w[:1] + 3.0),
        lambda x, w: x.mean((0, 1, 2)) + w[0, 0] * 0.0,
        lambda x, w: x.astype("float32").reshape(1, 8).astype("float64") @ w,
    ],
)
def test_views_of_other_shapes_are_bounded_and_right(program):
    rng = np.random.default_rng(0)
    x, w = rng.uniform(-1, 1, (1, 2, 4)), rng.uniform(-1, 1, (8, 8))
    graph = trace(program, x, w, names=["x", "w"])
    planned = plan(graph, 64, "x")
    result = run(planned, {"x": x, "w": w}, Simulator(planned.parameters(security=None)))
    assert np.allclose(result[graph.outputs[0]], program(x, w), atol=1e-12)


def test_a_back_end_without_a_key_for_products_is_refused_before_anything_runs():
    planned = plan(trace(lambda x: x * x, (1, 8)), 64)
    backend = Simulator(planned.parameters(security=None), relinearise=False)
    with pytest.raises(WeftError) as caught:
        run(planned, {"x": np.ones((1, 8))}, backend)
    assert str(caught.value) == "layer multiply: there is no key for a product of two ciphertexts"
    assert caught.value.__notes__ == ["hint: make a back-end with relinearise=True"]
    assert not backend.counters.encryptions


def test_a_table_of_tensors_with_dimensions_of_size_one():
    planned = plan(trace(lambda x: ops.mean(x, (2, 3), keepdims=True), (1, 2, 8, 8)), 64)
    assert "mean_dim" in str(planned)


def test_arrays_that_are_missing_or_misshapen_are_refused():
    graph, arrays = block()
    planned = plan(graph, 512)
    backend = Simulator(planned.parameters(security=None))
    with pytest.raises(WeftError, match="there is no array for b"):
        run(planned, {"x": arrays["x"], "a": arrays["a"]}, backend)
    with pytest.raises(WeftError, match=r"a has shape \[2, 2, 3, 3\], and its array \[3\]"):
        run(planned, {**arrays, "a": np.ones(3)}, backend)


def test_too_few_keys_are_refused_with_the_number_that_fits():
    graph, _ = block(channels=4)
    with pytest.raises(WeftError, match=r"\d+ rotation keys are the fewest .* 1 are allowed"):
        plan(graph, 512, keys=1)


def test_the_table_has_a_line_for_each_layer_and_a_total():
    graph, _ = block()
    lines = str(plan(graph, 512)).splitlines()
    assert lines[2].split()[:3] == ["layer", "operator", "mesh"]
    assert len(lines) == 2 + 4 + 3 + 1
    assert lines[-1].startswith("total")


def test_the_memory_limit_for_keys_holds():
    graph, _ = block(channels=4)
    free = plan(graph, 512)
    size = free.parameters(security=None).rotation_key_bytes
    tight = plan(graph, 512, memory=6 * size)
    assert len(tight.cost.keys) <= 6 < len(free.cost.keys)
    assert tight.key_bytes(tight.parameters(security=None)) <= 7 * size


def test_seconds_are_the_sum_over_layers_at_their_levels():
    graph, _ = block()
    times = OperationTimes(1024, *([1.0] * 10 for _ in range(6)))
    planned = plan(graph, 512, times=times)
    cost = planned.cost
    total = cost.rotations + cost.plain_products + cost.products + cost.rescales
    total += cost.additions + cost.plain_additions
    assert planned.seconds() == total
    assert "seconds" in str(planned)


def test_a_key_that_is_missing_is_refused_with_its_layer_before_anything_runs():
    graph, arrays = block()
    planned = plan(graph, 512)
    least = min(planned.cost.keys)
    backend = Simulator(planned.parameters(security=None), planned.cost.keys - {least})
    with pytest.raises(WeftError, match=f"layer convolution: there is no key for .* by {least}"):
        run(planned, arrays, backend)
    assert not backend.counters.encryptions
