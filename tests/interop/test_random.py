"""Random numbers of JAX and torch: JAX's to the bit, torch's by their statistics, whole and cut."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from weft import DeviceMesh, Graph, Plan, WeftError, from_jax, from_torch, ops, propagate, run
from weft.interop import stablehlo

MESH = DeviceMesh("m", (2, 2), ("a", "b"))
KEY = jax.random.PRNGKey(3)
DIMS = ['{"a"}', '{"b"}', "{}"]


def read_and_run(function, *args, make=np.asarray):
    """The results of a JAX function, by JAX and by a plan that cuts all of them.

    The plan runs with the arrays that `make` returns.
    """
    graph = from_jax(function, *args)
    assert not stablehlo.opaque(graph)
    plan = plan_of(graph)
    plan.verify()
    names = [value.name for value in graph.inputs]
    found = run(plan, dict(zip(names, map(make, jax.tree.leaves(args)))))
    return jax.tree.leaves(jax.jit(function)(*args)), [result.numpy() for result in found]


def plan_of(graph):
    """The propagated plan of a graph with all its results cut."""
    ranks = [len(graph.values[name].shape) for name in graph.outputs]
    wanted = {n: f"<@m, [{', '.join(DIMS[:rank])}]>" for n, rank in enumerate(ranks)}
    dtypes = {name: value.dtype for name, value in graph.values.items()}
    given = graph.inputs, graph.applications, graph.outputs, [str(MESH)]
    return Plan.of(propagate(Graph(*given, {}, wanted, graph.operators, dtypes)))


EXACT = {
    "bits": lambda key: jax.random.bits(key, (8, 6)),
    "uniform": lambda key: jax.random.uniform(key, (8, 5)),
    "bfloat16": lambda key: jax.random.uniform(key, (8, 6), jnp.bfloat16),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (8, 6)),
    "randint": lambda key: jax.random.randint(key, (8, 6), 0, 10),
    "split": lambda key: jax.random.split(key, 8),
    "permutation": lambda key: jax.random.permutation(key, 8),
}
ROUNDED = {
    "normal": lambda key: jax.random.normal(key, (8, 6)),
    "truncated": lambda key: jax.random.truncated_normal(key, -1, 1, (8, 6)),
    "folded": lambda key: jax.random.exponential(jax.random.fold_in(key, 5), (8, 6)),
}


@pytest.mark.parametrize("is_partitionable", [True, False])
def test_draws_of_jax_are_read_and_run(is_partitionable):
    draws = EXACT | ROUNDED
    with jax.threefry_partitionable(is_partitionable):
        expected, found = read_and_run(lambda key: [draws[name](key) for name in draws], KEY)
    for name, one, two in zip(draws, map(np.asarray, expected), found):
        assert one.dtype == two.dtype, name
        if name in EXACT:
            assert np.array_equal(one, two), name
        else:
            assert np.allclose(one, two, rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("name", ["bits", "bernoulli", "randint", "normal"])
def test_draws_of_jax_need_no_communication(name):
    graph = from_jax((EXACT | ROUNDED)[name], KEY)
    assert "threefry2x32" in {application.operator for application in graph.applications}
    assert sum(plan_of(graph).received) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[13, 15, 26, 6]", "[13, 15, 26, 7]"),
        ("dense<466688986>", "dense<466688985>"),
        ("compare LT, %iterArg, %c_12", "compare LE, %iterArg, %c_12"),
        ("stablehlo.or %5, %8", "stablehlo.and %5, %8"),
        ("%4 = stablehlo.broadcast_in_dim %arg1", "%4 = stablehlo.broadcast_in_dim %arg0"),
        ("return %6#2, %6#3", "return %6#3, %6#2"),
    ],
)
def test_a_function_that_is_not_threefry_stays_as_it_is(old, new):
    text = jax.jit(EXACT["bits"]).lower(KEY).as_text()
    start = text.index("func.func private @threefry2x32")
    changed = text[:start] + text[start:].replace(old, new, 1)
    assert changed != text
    operators = {application.operator for application in stablehlo.read(changed).applications}
    assert "while" in operators
    assert "threefry2x32" not in operators


def test_categories_are_read_and_run():
    logits = jnp.arange(40.0).reshape(8, 5) / 9
    (one,), (two,) = read_and_run(lambda key: jax.random.categorical(key, logits), KEY)
    assert np.array_equal(np.asarray(one), two)


@pytest.mark.slow
def test_counts_are_read_and_run():
    means = jnp.array([[3.0], [30.0]])
    (one,), (two,) = read_and_run(lambda key: jax.random.poisson(key, means, (2, 2)), KEY)
    assert np.array_equal(np.asarray(one), two)


def test_a_reduction_to_another_place_stays_as_it_is():
    text = jax.jit(lambda x: jnp.argmax(x, 1)).lower(jnp.ones((4, 5))).as_text()
    assert "aggregate" in {one.operator for one in stablehlo.read(text).applications}
    for old, new in (
        ("dense<0xFF800000>", "dense<0.0>"),
        ("compare LT, %arg2, %arg4", "compare GT, %arg2, %arg4"),
        ("iota dim = 1", "iota dim = 0"),
    ):
        (reduction,) = (
            one
            for one in stablehlo.read(text.replace(old, new)).applications
            if one.attributes.get("region")
        )
        assert reduction.attributes["region"] == "custom"


def test_draws_of_jax_run_with_arrays_of_torch():
    def make(x):
        return torch.asarray(np.array(x))

    draws = ["uniform", "bernoulli", "split"]
    expected, found = read_and_run(lambda key: [EXACT[n](key) for n in draws], KEY, make=make)
    for one, two in zip(expected, found):
        assert np.array_equal(np.asarray(one), two)


def test_bit_generators_of_xla_are_read_and_run():
    kinds = [getattr(jax.lax.RandomAlgorithm, f"RNG_{n}") for n in ("THREE_FRY", "PHILOX")]

    def function(state):
        made = [jax.lax.rng_bit_generator(state, (5, 6), "uint8", algorithm=k) for k in kinds]
        return made, jax.lax.rng_bit_generator(state, (4, 6))

    expected, found = read_and_run(function, np.arange(4, dtype="uint32"))
    for one, two in zip(expected, found):
        assert np.array_equal(np.asarray(one), two)


def test_keys_of_other_kinds_are_read_and_run():
    def function(words):
        key = jax.random.wrap_key_data(words, impl="rbg")
        return jax.random.uniform(key, (8, 6))

    (expected,), (found,) = read_and_run(function, np.arange(4, dtype="uint32"))
    assert np.array_equal(found, np.asarray(expected))


def test_a_training_step_has_one_mask_for_both_directions():
    def loss(w, x, key):
        hidden = jnp.tanh(x @ w)
        mask = jax.random.bernoulli(key, 0.5, hidden.shape)
        return (jnp.where(mask, hidden / 0.5, 0) ** 2).mean()

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(4, 6)).astype("float32"), rng.normal(size=(8, 4)).astype("float32")
    (expected,), (found,) = read_and_run(jax.grad(loss), w, x, KEY)
    assert np.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "shape"),
    [("float32", "uint32", (8, 6)), ("float32", "uint16", (8, 6)), ("uint8", "uint32", (8, 6, 4))],
)
def test_bitcasts_between_widths_are_read_and_run(old, new, shape):
    x = np.random.default_rng(0).integers(0, 200, shape).astype(old)
    (expected,), (found,) = read_and_run(lambda x: jax.lax.bitcast_convert_type(x, new), x)
    assert np.array_equal(found, np.asarray(expected))


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def drawn(function, x, seed=5, is_rounded=False):
    """The results of a torch function: cut, with the key as an input; and whole, with a seed."""
    sharding = f'<@m, [{{"a"}}, {{"b"}}{", {}" * (x.ndim - 2)}]>'
    program = torch.export.export(Calls(function), (x,))
    graph = from_torch(program, meshes=[MESH], shardings={"x": sharding})
    assert [str(value) for value in graph.inputs][1:] == ["random_key: uint32[2]"]
    plan = Plan.of(propagate(graph))
    plan.verify()
    (one,) = run(plan, {"x": x.numpy(), "random_key": ops.random_key(seed).numpy()})
    whole = from_torch(program, meshes=['@m = <["a"=1]>'], seed=seed)
    assert [value.name for value in whole.inputs] == ["x"]
    (two,) = run(propagate(whole), {"x": x})
    assert np.allclose(one.numpy(), two.numpy(), atol=1e-6)
    assert np.array_equal(one.numpy(), two.numpy()) or is_rounded
    return one.numpy()


def test_dropout_in_training():
    x = torch.rand(200, 300) + 1
    made = drawn(torch.nn.Dropout(0.3).train(), x)
    kept = made != 0
    assert abs(kept.mean() - 0.7) < 0.01
    assert np.allclose(made[kept], (x.numpy() / 0.7)[kept])


def test_each_dropout_has_a_mask_of_its_own():
    two = torch.nn.Dropout(0.5)
    made = drawn(lambda x: torch.stack([two(x), two(x)], -1), torch.ones(100, 100))
    assert abs((made[..., 0] == made[..., 1]).mean() - 0.5) < 0.03


def test_dropout_of_channels_drops_them_whole():
    made = drawn(lambda x: torch.nn.functional.dropout2d(x, 0.4), torch.ones(40, 50, 2, 3))
    assert set(np.unique(made.round(4))) == {0.0, np.float32(1 / 0.6).round(4)}
    assert (made == made[:, :, :1, :1]).all()
    assert abs((made == 0).mean() - 0.4) < 0.03


def test_dropout_in_attention():
    """With values of one, a query's sum is that of the weights that are kept, scaled."""
    attention = torch.nn.functional.scaled_dot_product_attention
    x = torch.zeros(4, 6, 50, 8)

    def function(x):
        return attention(x, x, x + 1, dropout_p=0.25, is_causal=True)

    made = drawn(function, x, is_rounded=True)
    assert abs(made.mean() - 1) < 0.02
    assert made.std() > 0.01


RANDOM = {
    "rand": (lambda x: x + torch.rand_like(x), 0.5, 1 / 12),
    "randn": (lambda x: x + torch.randn(x.shape), 0.0, 1.0),
    "normal": (lambda x: torch.normal(x + 2, 3.0), 2.0, 9.0),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.2), 0.2, 0.16),
    "flags": (lambda x: torch.bernoulli(x, p=0.2), 0.2, 0.16),
    "randint": (lambda x: x + torch.randint(3, 10, x.shape), 6.0, 4.0),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 2) + x, 0.5, 0.75),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0) + x, 0.5, 0.25),
}


def test_random_numbers_of_torch():
    def function(x):
        return torch.stack([function(x) for function, *_ in RANDOM.values()], -1)

    made = drawn(function, torch.zeros(100, 200)).astype("float64")
    for number, (name, (_, mean, variance)) in enumerate(RANDOM.items()):
        assert abs(made[..., number].mean() - mean) < 0.05, name
        assert abs(made[..., number].var() - variance) < 0.05 * max(1, variance), name


def test_a_missing_key_is_an_error_that_says_how_to_make_one():
    graph = from_torch(torch.nn.Dropout(0.5).train(), torch.ones(4, 4), meshes=[MESH])
    with pytest.raises(WeftError, match="input random_key is missing") as caught:
        run(propagate(graph), {"input": torch.ones(4, 4)})
    assert "random_key(seed)" in caught.value.__notes__[0]


def test_a_mask_that_is_used_is_refused():
    def function(x):
        return torch.native_dropout(x, 0.5, True)[1]

    with pytest.raises(WeftError, match=r"result 1 of aten.native_dropout.default is used"):
        from_torch(Calls(function), torch.ones(3))
