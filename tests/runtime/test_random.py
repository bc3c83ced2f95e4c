"""Random numbers: the same whole, cut, fused and in every library; their statistics; their errors.

Single kernels are compared with JAX in `test_kernels`.
"""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from tests.runtime.tensors import random_mesh, random_spec
from tests.trials import trials

from weft import DeviceMesh, Plan, Tensor, WeftError, communication, ops, propagate, run, trace
from weft.lang.graph_json import from_json, to_json
from weft.plan.fuse import fuse_plan

PROGRAMS = trials(100)
MESH = DeviceMesh("m", (2, 2), ("a", "b"))
DRAWS = {
    "bits": ops.random_bits,
    "bits64": lambda key, shape: ops.random_bits(key, shape, "uint64"),
    "uniform": lambda key, shape: ops.random_uniform(key, shape, low=-1.0, high=3.0),
    "uniform64": lambda key, shape: ops.random_uniform(key, shape, "float64"),
    "normal": lambda key, shape: ops.random_normal(key, shape, mean=2.0, std=0.5),
    "bfloat16": lambda key, shape: ops.random_normal(key, shape, "bfloat16"),
    "exponential": ops.random_exponential,
    "gumbel": ops.random_gumbel,
    "truncated": lambda key, shape: ops.random_truncated_normal(key, -1.0, 2.0, shape),
    "integers": lambda key, shape: ops.random_integers(key, shape, -5, 90_000),
    "bernoulli": lambda key, shape: ops.random_bernoulli(key, 0.3, shape),
    "split": ops.random_split,
    "philox": lambda key, shape: ops.random_normal(key, shape, generator="philox"),
}


def planned(function, *inputs, mesh=MESH, **shardings):
    return Plan.of(propagate(trace(function, *inputs, meshes=[mesh], shardings=shardings)))


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_the_same_however_they_are_cut(name):
    for seed in range(PROGRAMS // 5):
        rng = np.random.default_rng(seed)
        mesh = random_mesh(rng)
        shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
        key = ops.random_key(seed)
        whole = DRAWS[name](key, shape).numpy()
        spec = random_spec(rng, mesh, whole.shape, monoids=())

        def function(key):
            return DRAWS[name](key, shape).with_sharding(spec)  # noqa: B023

        plan = planned(function, key, mesh=mesh)
        plan.verify()
        with communication() as moved:
            (made,) = run(plan, {"key": key})
        assert np.array_equal(made.numpy(), whole), (name, seed, str(plan))
        assert moved.received == sum(plan.received)


def test_a_block_draws_its_own_numbers_without_communication():
    def function(key):
        return ops.random_normal(key, (64, 8)).with_sharding('<@m, [{"a"}, {"b"}]>')

    plan = planned(function, ops.random_key(0))
    assert sum(plan.received) == 0
    assert max(plan.peak) < 64 * 8 * 4


def test_dropout_takes_the_cut_of_its_operand_and_keeps_partial_sums():
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    w = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
    key = ops.random_key(3)
    plan = planned(
        lambda x, w, key: ops.dropout(x @ w, 0.25, key), x, w, key, x='<@m, [{"a"}, {"b"}]>'
    )
    plan.verify()
    (made,) = run(plan, {"x": x, "w": w, "key": key})
    expected = ops.dropout(Tensor(x) @ Tensor(w), 0.25, key).numpy()
    assert np.allclose(made.numpy(), expected, atol=1e-5)
    kinds = [application.operator for application in plan.graph.applications]
    assert kinds == ["matmul", "dropout"]


def test_dropout_is_linear_so_its_gradient_has_the_same_mask():
    key, x = ops.random_key(11), np.random.default_rng(0).normal(size=(5, 7))
    dropped = ops.dropout(x, 0.4, key).numpy()
    gradient = ops.dropout(np.ones_like(x), 0.4, key).numpy()
    assert np.array_equal(dropped, np.where(gradient > 0, x / 0.6, 0.0))
    mask = jax.random.bernoulli(jax.random.PRNGKey(11), np.float32(0.6), (5, 7))
    assert np.array_equal(gradient > 0, np.asarray(mask))


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(rate):
    x = np.asarray([1.0, np.inf, -3.0], "float32")
    assert np.array_equal(ops.dropout(x, rate, 0).numpy(), x if rate == 0 else 0 * np.ones(3))


def test_fused_programs_draw_the_same_numbers():
    def function(x, key):
        noise = ops.random_normal(key, (8, 6)) * 0.1
        return ops.dropout(ops.tanh(x + noise), 0.5, ops.random_fold_in(key, 1))

    x, key = np.ones((8, 6), "float32"), ops.random_key(5)
    plan = planned(function, x, key, x='<@m, [{"a"}, {"b"}]>')
    fused = fuse_plan(plan)
    assert len(fused.graph.applications) < len(plan.graph.applications)
    one, two = (run(p, {"x": x, "key": key})[0].numpy() for p in (plan, fused))
    assert np.array_equal(one, two)
    assert np.array_equal(one, function(Tensor(x), key).numpy())


@pytest.mark.parametrize("name", sorted(DRAWS.keys() - {"split"}))
def test_torch_and_jax_arrays_draw_the_same_numbers(name):
    plan = planned(lambda key: DRAWS[name](key, (6, 5)), ops.random_key(9))
    (expected,) = run(plan, {"key": ops.random_key(9)})
    key = np.asarray([0, 9], "uint32")
    for array in [torch.asarray(key), *[jnp.asarray(key)] * (name == "uniform")]:
        (made,) = run(plan, {"key": array})
        (found, *_), (whole, *_) = made.shards, expected.shards
        assert type(found) is type(array) or not isinstance(found, np.ndarray)
        if name == "bfloat16":
            found, whole = found.float(), whole.astype("float32")
        assert np.array_equal(np.asarray(found), whole), name


def test_integers_are_keys_in_eager_and_traced_programs():
    plan = planned(lambda x: x + ops.random_normal(7, (4, 3)), np.zeros((4, 3), "float32"))
    (made,) = run(plan, {"x": np.zeros((4, 3), "float32")})
    assert [value.name for value in plan.graph.inputs] == ["x"]
    expected = jax.random.normal(jax.random.PRNGKey(7), (4, 3))
    assert np.allclose(made.numpy(), expected, atol=1e-6)
    assert np.array_equal(made.numpy(), ops.random_normal(7, (4, 3)).numpy())


def test_keys_that_differ_give_independent_numbers():
    keys = ops.random_split(ops.random_key(0), 50)
    draws = np.stack([ops.random_normal(keys[n], 2000).numpy() for n in range(50)])
    correlated = np.corrcoef(draws)[np.triu_indices(50, 1)]
    assert np.abs(correlated).max() < 0.12  # 5 deviations of 1 / sqrt(2000)
    steps = ops.random_fold_in(0, np.arange(50)).numpy()
    assert np.array_equal(steps, keys.numpy())


def test_a_program_draws_by_the_number_of_its_step():
    graph = trace(
        lambda x, step: ops.dropout(x, 0.5, ops.random_fold_in(3, step)),
        np.ones(100),
        np.asarray(0),
        meshes=[MESH],
        shardings={"x": '<@m, [{"a"}]>'},
    )
    again = from_json(to_json(graph))
    masks = [
        run(propagate(again), {"x": np.ones(100), "step": np.asarray(n)})[0].numpy()
        for n in (0, 1, 0)
    ]
    assert np.array_equal(masks[0], masks[2])
    assert 20 < (masks[0] != masks[1]).sum() < 80


def test_shapes_that_are_not_known_while_tracing():
    def function(x):
        return ops.dropout(x + ops.random_normal(3, x.shape) + ops.zeros_like(x), 0.5, 4)

    graph = trace(function, ("n", 4), names=["x"], meshes=[MESH])
    x = np.ones((6, 4), "float32")
    (made,) = run(Plan.of(propagate(graph), n=6), {"x": x})
    assert np.array_equal(made.numpy(), function(Tensor(x)).numpy())


@pytest.mark.parametrize("generator", ["threefry", "philox"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_moments_of_the_distributions(generator, dtype):
    given, count = {"dtype": dtype, "generator": generator}, 100_000
    close = 0.04 if dtype == "bfloat16" else 0.01  # a draw has 7 bits, or more

    def moments(x):
        assert str(x.dtype) == dtype
        wide = x.numpy().astype("float64")
        return wide.mean(), wide.var(), wide

    mean, variance, drawn = moments(ops.random_uniform(1, count, **given))
    assert abs(mean - 0.5) < close
    assert abs(variance - 1 / 12) < close
    assert drawn.min() >= 0
    assert drawn.max() < 1
    mean, variance, _ = moments(ops.random_normal(2, count, **given))
    assert abs(mean) < close
    assert abs(variance - 1) < 2 * close
    mean, variance, drawn = moments(ops.random_exponential(3, count, **given))
    assert abs(mean - 1) < close
    assert abs(variance - 1) < 5 * close
    assert drawn.min() >= 0
    mean, _, drawn = moments(ops.random_truncated_normal(5, -1.0, 2.0, count, **given))
    assert abs(mean - 0.2296) < close
    assert drawn.min() >= -1
    assert drawn.max() <= 2


def test_counts_of_integers_and_of_flags():
    drawn = ops.random_integers(4, 60_000, -2, 4, "int8").numpy()
    counts = np.bincount(drawn + 2, minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 500
    assert abs(ops.random_bernoulli(5, 0.3, 100_000).numpy().mean() - 0.3) < 0.01
    p = np.asarray([0.0, 0.25, 1.0], "float32")
    flags = ops.random_bernoulli(6, Tensor(p), (10_000, 3)).numpy()
    assert np.abs(flags.mean(0) - p).max() < 0.02
    kept = ops.dropout(np.ones(100_000, "float32"), 0.1, 7).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.9)}
    assert abs((kept == 0).mean() - 0.1) < 0.01
    bits = np.unpackbits(ops.random_bits(8, 10_000, "uint64").numpy().view("uint8"))
    assert abs(bits.mean() - 0.5) < 0.005


def test_permutations():
    x = np.arange(60).reshape(5, 12)
    order = np.asarray(jax.random.permutation(jax.random.PRNGKey(3), 12))
    plan = planned(lambda x: ops.random_permutation(3, x, 1), x, x='<@m, [{"a"}, {"b"}]>')
    (made,) = run(plan, {"x": x})
    assert np.array_equal(made.numpy(), x[:, order])
    seen = {tuple(ops.random_permutation(n, 3).numpy().tolist()) for n in range(60)}
    assert len(seen) == 6


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_philox_is_the_stream_of_xla(dtype):
    """With a key whose words are swapped, and the counter at 0: XLA's low word is the first."""
    state = np.asarray([0, 0], "uint64")
    with jax.enable_x64(True):
        algorithm = jax.lax.RandomAlgorithm.RNG_PHILOX
        _, expected = jax.lax.rng_bit_generator(state, (7, 5), dtype, algorithm)
    drawn = ops.random_bits(0, (7, 5), dtype, generator="philox").numpy()
    assert np.array_equal(drawn, np.asarray(expected))
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # published with the generator
    assert ops.random_bits(0, 4, generator="philox").numpy().tolist() == known


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.dropout(np.ones(3), 0.5), "random numbers need a key"),
        (lambda: ops.random_normal(None, (3,)), "random numbers need a key"),
        (lambda: ops.random_key(-1), "seed of a random key is -1"),
        (lambda: ops.random_key(1 << 64), "expected 0 to 2\\*\\*64 - 1"),
        (lambda: ops.random_normal(0.5, 3), "a random key is an integer or uint32\\[2\\], got 0.5"),
        (lambda: ops.random_normal(np.ones(2), 3), "expected a random key, uint32\\[2\\]"),
        (lambda: ops.random_normal(ops.random_split(0), 3), "expected one random key"),
        (lambda: ops.random_normal(0, 3, "int32"), "random numbers of int32 are not defined"),
        (lambda: ops.random_normal(0, 3, "float8_e5m2"), "expected float64, float32"),
        (lambda: ops.random_normal(0, 3, generator="mt19937"), "there is no generator"),
        (lambda: ops.random_integers(0, 3, 5, 5), "expected low < high"),
        (lambda: ops.random_integers(0, 3, 0, 300, "uint8"), "within 0 to 256"),
        (lambda: ops.random_integers(0, 3, 0, 1 << 60), "at most 2\\*\\*47"),
        (lambda: ops.random_integers(0, 3, 0, 5, "float32"), "random integers cannot be float32"),
        (lambda: ops.random_fold_in(0, np.ones(2)), "folded with integers"),
        (lambda: ops.dropout(np.ones(3), 1.5, 0), "the rate of dropout is 1.5"),
        (lambda: ops.dropout(np.arange(3), 0.5, 0), "expected a dtype of kind float"),
        (lambda: ops.random_truncated_normal(0, 2.0, 1.0), "expected lower < upper"),
    ],
)
def test_errors(call, message):
    with pytest.raises(WeftError, match=message):
        call()


def test_low_precision_is_jax():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        expected = jax.random.normal(jax.random.PRNGKey(2), (50,), dtype)
        assert np.array_equal(ops.random_normal(2, (50,), dtype).numpy(), np.asarray(expected))
