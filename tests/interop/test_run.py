"""JAX functions read from StableHLO, sharded and run by Weft, against JAX itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft import Graph, Plan, WeftError, communication, from_jax, propagate, run
from weft.interop.stablehlo import read
from weft.lang.graph_json import from_json, to_json

MESH = '@m = <["x"=2, "y"=2]>'


def perceptron(x, w1, b1, w2):
    return jax.nn.softmax(jnp.tanh(x @ w1 + b1) @ w2, axis=-1)


def moves(x):
    both = jnp.concatenate([x, x], 1)
    return (x - x.mean(0)) / (x.std(0) + 1e-5), x[::2, 1:].T, both, jnp.sort(x, 0)


def choices(x):
    return jnp.where(x > 0, x, 2.0), jnp.clip(x, -1, 1), jnp.arange(8) * 2


def convolution(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def lookup(table, places):
    return table[places]


def gradient(x, w):
    return jax.grad(lambda w: jnp.sum(jax.nn.relu(x @ w) ** 2))(w)


def loop(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=3)


def branch(x, w):
    return jax.lax.cond(x.sum() > 0, lambda v: v @ w, lambda v: -(v @ w), x)


def exchange(x, w):
    """A loop that changes some of its values, hands some on to others, and leaves one as it is."""

    def body(values):
        count, a, b, total = values
        return count + 1, b, jnp.tanh(a @ w) + total, total

    start = (0, x, x * 2, w.sum())
    return jax.lax.while_loop(lambda values: values[0] < 5, body, start)


def shift(x):
    return jax.lax.fori_loop(0, 4, lambda i, s: (s[1], s[2], s[0] + s[1]), (x, x, x * 2))


def nested(x, w):
    def step(c, t):
        return jax.lax.cond(t > 0, lambda v: -v + t, lambda v: v @ w, c), (c * t).sum()

    return jax.lax.scan(step, x, jnp.arange(3.0))


def same(x, w):
    """A branch may return its operand."""
    return jax.lax.cond(x.sum() < 1e9, lambda v: (v, v), lambda v: (v * 2, -v), x)


def switch(x, w):
    ways = [lambda v: v, lambda v: v @ w, lambda v: (v @ w) @ w + v]
    return jax.lax.switch(jnp.int32(2), ways, x)


def remembered(x, w):
    """A gradient that computes its layer again: it has optimization barriers."""
    layer = jax.checkpoint(lambda v: jnp.tanh(v @ w))
    return jax.grad(lambda v: layer(layer(v)).sum())(x)


CASES = {
    remembered: [(4, 4), (4, 4)],
    perceptron: [(8, 16), (16, 32), (32,), (32, 4)],
    moves: [(8, 6)],
    choices: [(8, 6)],
    convolution: [(1, 2, 8, 8), (3, 2, 3, 3)],
    lookup: [(10, 4), (5,)],
    gradient: [(8, 4), (4, 6)],
    loop: [(4, 4), (4, 4)],
    branch: [(4, 4), (4, 4)],
    exchange: [(4, 4), (4, 4)],
    shift: [(8, 4)],
    nested: [(4, 4), (4, 4)],
    same: [(4, 4), (4, 4)],
    switch: [(8, 8), (8, 8)],
}


def arrays(function, shapes):
    rng = np.random.default_rng(0)
    made = [rng.normal(size=shape).astype("float32") for shape in shapes]
    if function is lookup:
        made[1] = rng.integers(0, 10, shapes[1]).astype("int32")
    return made


def sharded(graph, *axes):
    """The graph with its first input cut by axes."""
    first = graph.inputs[0]
    cut = ", ".join([*axes, *["{}"] * len(first.shape)][: len(first.shape)])
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [MESH],
        {first.name: f"<@m, [{cut}]>"},
        operators=graph.operators,
        dtypes={name: value.dtype for name, value in graph.values.items()},
    )


def received(moved):
    """The bytes that each device received."""
    return tuple(map(sum, zip((0,) * 4, *(movement.received for movement in moved.movements))))


@pytest.mark.parametrize("axes", [['{"x"}'], [], ["{}", '{"y", "x"}']], ids=["rows", "", "columns"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_jax_functions_run_on_shards(function, axes):
    given = arrays(function, CASES[function])
    graph = sharded(read(jax.jit(function).lower(*given).as_text()), *axes)
    plan = Plan.of(propagate(graph))
    plan.verify()
    inputs = {value.name: array for value, array in zip(graph.inputs, given)}
    with communication() as moved:
        outputs = run(plan, inputs)
    for found, wanted in zip(outputs, jax.tree.leaves(function(*given))):
        assert np.allclose(found, wanted, atol=1e-5)
    assert moved.peak == plan.peak
    if plan.assumed:
        assert function is nested
        assert all(got <= most for got, most in zip(received(moved), plan.received))
    else:
        assert received(moved) == plan.received


def test_a_branch_that_is_not_taken_counts_as_well():
    graph = sharded(read(jax.jit(branch).lower(*[jnp.ones((4, 4))] * 2).as_text()))
    plan = Plan.of(propagate(graph))
    peaks = []
    for sign in (1, -1):
        given = {"arg0": np.full((4, 4), sign, "float32"), "arg1": np.ones((4, 4), "float32")}
        with communication() as moved:
            run(plan, given)
        peaks.append(moved.peak)
    assert plan.peak == tuple(map(max, *peaks))
    assert peaks[0] != peaks[1]


def test_a_constant_that_was_not_kept_says_so():
    text = """
        func.func @main() -> tensor<2xcomplex<f32>> {
            %0 = stablehlo.constant dense<(1.0, 0x7F800000)> : tensor<2xcomplex<f32>>
            return %0 : tensor<2xcomplex<f32>>
        }
    """
    with pytest.raises(WeftError, match="a constant of this size, or of this dtype, was not kept"):
        run(propagate(read(text)), {})


def test_largest_elements_and_complex_numbers_run():
    def function(x):
        values, places = jax.lax.top_k(x, 2)
        return values, places, x * (1 - 2j) + jnp.array([1j, 2, -3j, 4, 5])

    x = jnp.asarray([[3.0, 1, 2, 3, 0], [0, -1, 5, 4, 5]])
    graph = from_jax(function, x)
    again = from_json(to_json(graph))
    assert again == graph
    cut = '<@m, [{}, {"x"}]>'
    graph = Graph(
        again.inputs,
        again.applications,
        again.outputs,
        ['@m = <["x"=3]>'],
        {"x": cut},
        dtypes={value.name: value.dtype for value in again.values.values()},
    )
    plan = Plan.of(propagate(graph))
    for found, expected in zip(run(plan, {"x": np.asarray(x)}), function(x)):
        np.testing.assert_array_equal(found.numpy(), expected)
        assert found.dtype == expected.dtype
