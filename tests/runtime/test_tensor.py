"""Tensors: what they say, what they refuse, and what moves."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from weft import (
    DeviceMesh,
    DimSpec,
    LayoutError,
    Plan,
    ShardingSpec,
    Tensor,
    WeftError,
    communication,
    ops,
    propagate,
    run,
    trace,
)
from weft.runtime import CommunicationError

MESH = DeviceMesh("m", (2, 2), ("x", "y"))


def spec(text):
    return ShardingSpec.parse(f"<@m, {text}>", MESH)


def test_the_example_of_seed_001():
    mesh = DeviceMesh("test", (2,), ("x",))
    w = Tensor(np.arange(24, dtype="float32").reshape(8, 3))
    expected = np.ones((4, 8), "float32") @ w.numpy()

    a = Tensor.ones((4, 8)).trace()
    a_sharded = a.shard(mesh, [DimSpec(["x"]), DimSpec([])])
    b = (a_sharded @ w).with_sharding(mesh, [DimSpec([]), DimSpec([])])
    graph = b.graph()
    assert [application.operator for application in graph.applications] == [
        "sharding_constraint",
        "matmul",
        "sharding_constraint",
    ]
    assert np.array_equal(b.numpy(), expected)
    assert np.array_equal(np.asarray(b), expected)
    assert b.run().spec == ShardingSpec(mesh, [DimSpec([]), DimSpec([])])
    inputs = {"input": np.ones((4, 8), "float32"), "input_2": w}
    (found,) = run(Plan.of(propagate(graph)), inputs)
    assert np.array_equal(found, expected)

    a = Tensor.ones((4, 8))
    eager = (a.shard(mesh, [DimSpec(["x"]), DimSpec([])]) @ w).with_sharding(
        mesh, [DimSpec([]), DimSpec([])]
    )
    assert np.array_equal(eager, found)


def test_operands_with_matching_shardings_move_nothing():
    rows = Tensor.ones((8, 4)).shard(spec('[{"x"}, {}]'))
    with communication(budget=0) as moved:
        made = ops.relu(rows + rows * 2) @ Tensor.ones((4, 6))
    assert made.spec == spec('[{"x"}, {}]')
    assert moved.movements == []


def test_sums_stay_partial_until_something_needs_them():
    x = Tensor(np.arange(32.0).reshape(4, 8)).shard(spec('[{}, {"x"}]'))
    w = Tensor(np.arange(16.0).reshape(8, 2)).shard(spec('[{"x"}, {}]'))
    with communication(budget=0):
        y = x @ w
        assert y.spec == spec('[{}, {}], unreduced={"x"}')
        z = (y + y) * 3 - y  # all of it is linear
        assert z.spec == y.spec
    with communication() as moved:
        assert ops.relu(z).spec.partial == {}
    assert {movement.operator for movement in moved.movements} == {"relu"}
    with communication() as moved:
        product = y * y  # the product of two partial sums is not one
    assert not product.spec.partial
    assert len(moved.movements) == 1  # it is summed once for both
    whole = np.arange(32.0).reshape(4, 8) @ np.arange(16.0).reshape(8, 2)
    assert np.array_equal(z, 5 * whole)
    assert np.array_equal(product, whole * whole)


def test_a_bias_counts_once():
    x = Tensor.ones((4, 8)).shard(spec('[{}, {"x"}]'))
    y = ops.linear(x, Tensor.ones((8, 2)), Tensor.full((2,), 100))
    assert y.spec.partial == {"x": "sum"}
    assert np.array_equal(y, np.full((4, 2), 108, "float32"))


def test_conflicts_move_the_fewest_bytes():
    small = Tensor.ones((8, 8)).shard(spec('[{"x"}, {}]'))
    large = Tensor.ones((8, 1000)).shard(spec('[{}, {"x"}]'))
    with communication() as moved:
        made = small @ large
    assert made.spec == spec('[{}, {"x"}]')  # the small one is gathered
    assert moved.received == 4 * 4 * 8 * 4
    assert "operand 0" in moved.movements[0].tensor


def test_a_budget_refuses_before_anything_moves():
    a = Tensor.ones((8, 8)).named("a").shard(spec('[{"x"}, {}]'))
    b = Tensor.ones((8, 8)).named("b").shard(spec('[{}, {"x"}]'))
    with communication(budget=0) as moved:
        with pytest.raises(CommunicationError, match=r"add would move 256 B for operand \d, [ab]"):
            a + b
        with pytest.raises(CommunicationError, match="with_sharding would move"):
            a.with_sharding(spec("[{}, {}]"))
    assert moved.movements == []
    with communication(budget=10_000) as moved:
        a + b
    assert "B received in" in str(moved)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_stay_what_they_are(library):
    array = (
        torch.arange(32.0).reshape(8, 4) if library == "torch" else jnp.arange(32.0).reshape(8, 4)
    )
    x = Tensor(array).shard(spec('[{"x"}, {"y"}]'))
    y = ops.softmax(x @ x.T).with_sharding(spec('[{"y"}, {}]'))
    assert all(type(shard) is type(array) for shard in y.shards)
    e = np.asarray(array) @ np.asarray(array).T
    e = np.exp(e - e.max(-1, keepdims=True))
    assert np.allclose(y.numpy(), e / e.sum(-1, keepdims=True), atol=1e-6)


def test_a_tensor_owns_its_data():
    array = np.ones((4, 4))
    rows = spec('[{"x"}, {}]')
    whole, cut = Tensor(array), Tensor(array).shard(rows)
    made = Tensor.of_shards([array[:2], array[:2], array[2:], array[2:]], rows, (4, 4))
    graph = trace(lambda a: a, array, names=["a"], meshes=[MESH], shardings={"a": rows})
    (returned,) = run(propagate(graph), {"a": array})
    symbol = Tensor.zeros((4, 4), "float64").trace() + array
    array[:] = 7
    for tensor in (whole, cut, made, returned, symbol.run()):
        assert np.array_equal(tensor, np.ones((4, 4)))
    for tensor in (whole, cut, whole + 0, cut + 0):
        before = tensor.numpy()
        tensor.numpy()[:] = 5
        tensor.whole()[:] = 5
        with pytest.raises(ValueError, match="read-only"):
            tensor.shards[0][:] = 5
        assert np.array_equal(tensor, before)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(whole)[:] = 5
    given = np.ones(2)
    assert np.shares_memory(Tensor(given, copy=False).shards[0], given)
    assert given.flags.writeable


def test_priorities_count_in_eager_operators():
    rows = Tensor.ones((8, 8)).shard(spec('[{"x"}p1, {}]'))
    columns = Tensor.ones((8, 8)).shard(spec('[{}, {"x"}]'))
    assert (rows + columns).spec == spec('[{}, {"x"}]')
    late = Tensor.ones((8, 8)).shard(spec('[{}, {"x"}p2]'))
    assert (rows + late).spec == spec('[{"x"}, {}]')
    assert ops.relu(ops.relu(rows) + columns).spec == spec('[{}, {"x"}]')  # through what is between


def test_open_dimensions_keep_what_cuts_them():
    x = Tensor.ones((16, 16)).shard(spec('[{"x"}, {"y"}]'))
    with communication(budget=0):
        y = x.with_sharding(spec("[{?}, {?}]"))
    assert y.spec == x.spec
    assert y.annotation == spec("[{?}, {?}]")
    with communication() as moved:
        assert x.with_sharding(spec("[{?}, {}]")).spec == spec('[{"x"}, {}]')
    assert moved.received > 0
    assert x.with_sharding(MESH, '<@m, [{?}, {"y"}]>').spec == x.spec


def test_a_closed_replica_takes_no_axis():
    kept = ShardingSpec.parse('<@m, [{?}, {?}], replicated={"x"}>', MESH)
    x = Tensor.ones((8, 8)).shard(spec('[{"x"}, {}]'))
    assert x.with_sharding(kept).spec == spec("[{}, {}]")


def test_long_programs_are_remembered_in_part():
    x = Tensor.ones((8,)).shard(spec('[{"x"}]'))
    for _ in range(150):
        x = x + 1
    assert x.spec == spec('[{"x"}]')
    assert x.origin.depth < 100
    plain = Tensor.ones((2,))
    for _ in range(150):
        plain = plain + 1
    assert plain.origin.depth < 100
    assert np.array_equal(x, np.full(8, 151, "float32"))


def test_nothing_is_mutated():
    array = np.ones((4, 4))
    x = Tensor(array).shard(spec('[{"x"}, {}]'))
    before = [shard.copy() for shard in x.shards]
    (x + 1).with_sharding(spec('[{}, {"y"}]'))
    assert all(np.array_equal(one, two) for one, two in zip(x.shards, before))
    assert np.array_equal(array, np.ones((4, 4)))


def test_uneven_nested_cuts_are_right():
    """A dimension of 5 cut by two axes: each cell has its own rows, and nobody's twice."""
    array = np.arange(10).reshape(5, 2)
    x = Tensor(array).shard(spec('[{"x", "y"}, {}]'))
    assert [len(shard) for shard in x.shards] == [2, 2, 1, 0]
    assert np.array_equal(x, array)
    assert np.array_equal(x.with_sharding(spec('[{"y", "x"}, {}]')), array)
    assert np.array_equal(x.sum(0), array.sum(0))


def test_text():
    x = Tensor.ones((4, 2)).named("x").shard(spec('[{"x"}, {}]'))
    assert str(x) == 'x: float32[4, 2] <@m, [{"x"}, {}]>'
    assert repr(x) == 'Tensor(x: float32[4, 2] <@m, [{"x"}, {}]>)'
    assert len(x) == 4
    assert float(x.sum()) == 8
    assert int(Tensor(3)) == 3
    assert bool(Tensor(True))


def test_errors_name_the_tensor_the_dimension_and_the_axis():
    x = Tensor.ones((4, 2)).named("x").shard(spec('[{"x"}, {}]'))
    other = DeviceMesh("n", (4,), ("z",))
    with pytest.raises(LayoutError, match=r"x: float32\[4, 2\] .* rank 2 and the sharding rank 1"):
        x.with_sharding(MESH, [DimSpec(["x"])])
    with pytest.raises(WeftError, match="the operands of add lie on different meshes: x on @m"):
        x + Tensor.ones((4, 2)).shard(other, [DimSpec(["z"]), DimSpec([])])
    with pytest.raises(LayoutError, match='axis "z" cuts dimension 0, but is not an axis'):
        x.with_sharding(MESH, [DimSpec(["z"]), DimSpec([])])
    with pytest.raises(WeftError, match="dimension 0 of operand 1 has size 3, and 'k' has size 2"):
        x @ Tensor.ones((3, 2))
    with pytest.raises(WeftError, match='is unreduced by "total", which is not a monoid'):
        x.with_sharding(ShardingSpec(MESH, [DimSpec([]), DimSpec([])], (), {"x": "total"}))
    with pytest.raises(LayoutError, match="a whole array is not partial"):
        Tensor.ones((4, 2)).shard(spec('[{}, {}], unreduced={"x"}'))
    with pytest.raises(WeftError, match="operand 1 is a str, no tensor and no number"):
        x + "y"
    with pytest.raises(LayoutError, match="a sharding needs a mesh and one DimSpec for each"):
        x.shard(MESH)
    with pytest.raises(LayoutError, match="3 shards are given for 4 cells"):
        Tensor.of_shards([np.ones(2)] * 3, spec('[{"x"}]'), (4,))
    with pytest.raises(LayoutError, match=r"cell \(0, 0\) holds box \[0:2\] of \[4\], and"):
        Tensor.of_shards([np.ones(3)] * 4, spec('[{"x"}]'), (4,))


def test_errors_of_inputs():
    graph = trace(lambda a: -a, (4, 2), meshes=[MESH], shardings={"a": spec('[{"x"}, {}]')})
    plan = Plan.of(propagate(graph))
    with pytest.raises(WeftError, match=r"input a is missing: a: float32\[4, 2\]"):
        run(plan, {})
    with pytest.raises(WeftError, match=r"input a: float32\[4, 2\] cannot have the dtype float64"):
        run(plan, {"a": np.ones((4, 2))})
    with pytest.raises(WeftError, match=r"cannot have the shape \[2, 4\]"):
        run(plan, {"a": np.ones((2, 4), "float32")})
    with pytest.raises(WeftError, match="there is no input b"):
        run(plan, {"a": np.ones((4, 2), "float32"), "b": 1})


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool"])
def test_parts_of_integers_are_combined_before_a_wider_sum(dtype):
    """Parts of a uint8 wrap around when they are combined, and a sum of uint8 is a uint64."""
    mesh = DeviceMesh("m", (2,), ("x",))
    a, b = np.full((2, 4), 10).astype(dtype), np.full((4, 3), 8).astype(dtype)
    one = Tensor(a).with_sharding(ShardingSpec.parse('<@m, [{}, {"x"}]>', mesh))
    two = Tensor(b).with_sharding(ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh))
    np.testing.assert_array_equal((one @ two).sum(0).numpy(), (a @ b).sum(0))
