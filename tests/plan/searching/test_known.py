"""Searches whose answer is known: data parallelism, Megatron, long contexts, halos."""

import pytest

from weft import DeviceMesh, Machine, communication, ops, run, search, trace
from weft.plan.machines import H200_NODE
from weft.program import Transfer

EIGHT = DeviceMesh("m", (8,), ("x",))
GRID = DeviceMesh("m", (2, 4), ("a", "b"))


def cut(plan):
    """For every application the operator and the index dimensions that are cut."""
    return [
        (application.operator, {dim: axes for dim, axes in placed.placement.items() if axes})
        for application, placed in zip(plan.graph.applications, plan.placed)
    ]


def fastest(graph, mesh, machine, **others):
    (plan,) = search(graph, mesh, machine, ["time"], **others)
    plan.verify()
    return plan


def attention(q, k, v):
    return ops.attention(q, k, v)


def mlp(x, w, v):
    return ops.relu(x @ w) @ v


def gradients(x, w, v, y):
    """A step of a small network: the loss's slopes along both weights."""
    h = ops.relu(x @ w)
    e = h @ v - y
    back = (e @ ops.transpose(v, (1, 0))) * (h > 0).astype("float32")
    return ops.transpose(x, (1, 0)) @ back, ops.transpose(h, (1, 0)) @ e


@pytest.mark.parametrize("mesh", [EIGHT, GRID])
def test_a_small_model_with_a_large_batch_is_cut_by_its_batch(mesh):
    batch, wide = 1 << 18, 64
    graph = trace(gradients, (batch, wide), (wide, wide), (wide, wide), (batch, wide))
    plan = fastest(graph, mesh, H200_NODE)
    axes = set(mesh.axis_names)
    for name in ("x", "y"):
        rows, columns = plan.specs[name].dim_specs
        assert set(rows.axes) == axes
        assert not columns.axes
    for name in ("w", "v"):
        assert not any(dim.axes for dim in plan.specs[name].dim_specs)
    # What moves is the slopes of the weights, and nothing of the batch.
    assert 0 < sum(plan.received) <= 2 * 2 * wide * wide * 4 * mesh.size


def test_a_wide_mlp_is_cut_by_columns_then_by_rows():
    plan = fastest(trace(mlp, (64, 8192), (8192, 32768), (32768, 8192)), EIGHT, H200_NODE)
    assert plan.specs["w"].dim_specs[1].axes == ("x",)
    assert plan.specs["v"].dim_specs[0].axes == ("x",)
    assert not any(dim.axes for dim in plan.specs["x"].dim_specs)
    # One reduction of the result is all that moves.
    count, buffers = plan.program.count, plan.program.buffers
    moves = [i for i in plan.program.walk() if isinstance(i, Transfer) and count.total(i)]
    assert {buffers[move.source].value for move in moves} == set(plan.graph.outputs)
    assert sum(plan.received) == 7 * 64 * 8192 * 4


def test_a_long_context_is_cut_by_its_keys():
    shapes = [(1, 1, 16, 128), (1, 1, 1 << 20, 128), (1, 1, 1 << 20, 128)]
    plan = fastest(trace(attention, *shapes), EIGHT, H200_NODE)
    blocks = [cuts for operator, cuts in cut(plan) if operator.startswith("attention_blocks")]
    assert blocks == [{"b": ("x",)}]
    assert plan.specs["k"].dim_specs[2].axes == ("x",)
    assert plan.specs["v"].dim_specs[2].axes == ("x",)
    # The keys stay where they are: much less than they are moves.
    assert sum(plan.received) < 1e6 < (1 << 20) * 128 * 4


def test_large_convolutions_are_cut_by_height_with_a_halo():
    def twice(x, k, l):  # noqa: E741
        inner = ops.relu(ops.convolve(x, k, padding=(1, 1)))
        return ops.convolve(inner, l, padding=(1, 1))

    shapes = [(1, 16, 2048, 1536), (16, 16, 3, 3), (16, 16, 3, 3)]
    plan = fastest(trace(twice, *shapes), EIGHT, H200_NODE)
    (out,) = plan.outputs
    assert out.dim_specs[2].axes == ("x",)
    fetched = [i for i in plan.program.walk() if isinstance(i, Transfer) and i.kind == "fetch"]
    # Seven seams, a row each way: sixteen channels of a row of 1536.
    assert sum(map(plan.program.count.total, fetched)) == 7 * 2 * 16 * 1536 * 4
    assert sum(plan.received) == 7 * 2 * 16 * 1536 * 4


def test_slow_links_lead_to_fewer_transfers():
    slow = Machine(latency=1e-3, bandwidth=1e6, flops={"float32": 1e15}, memory_bandwidth=1e15)
    graph = trace(mlp, (64, 256), (256, 256), (256, 64))
    assert sum(fastest(graph, EIGHT, slow).received) == 0


def test_the_plans_run():
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = {"q": (2, 2, 8, 4), "k": (2, 2, 32, 4), "v": (2, 2, 32, 4)}
    graph = trace(attention, *shapes.values())
    inputs = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    scores = inputs["q"] @ inputs["k"].swapaxes(-1, -2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ inputs["v"]
    for plan in search(graph, DeviceMesh("m", (4,), ("x",)), H200_NODE):
        with communication() as counted:
            (found,) = run(plan, inputs)
        assert counted.received == sum(plan.received)
        assert np.allclose(found.numpy(), wanted, atol=1e-5)
