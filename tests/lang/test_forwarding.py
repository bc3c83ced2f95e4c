"""Shard, forward, compose, fuse: the sequence of rewrites from a layer to fused blocks."""

import numpy as np
import pytest

from weft import DeviceMesh, Machine, WeftError, ops, propagate, run, search, trace
from weft.lang.forwarding import forward, shard
from weft.lang.fusion import fuse
from weft.lang.rewrite_check import check_rewrite


def layer(x, w, b):
    return ops.relu(ops.linear(x, w, b))


def arrays(graph):
    rng = np.random.default_rng(0)
    return {v.name: rng.standard_normal(v.shape).astype(v.dtype) for v in graph.inputs}


def same(one, two):
    inputs = arrays(one)
    for a, b in zip(run(propagate(one), inputs), run(propagate(two), inputs)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [8, 7, 2])
def test_a_layer_becomes_fused_blocks(rows):
    graph = trace(layer, (rows, 16), (16, 4), (4,), names=["x", "w", "b"])
    sharded = shard("linear", 3, "m").apply(graph, "linear")
    same(graph, sharded)
    (joint, *_) = forward("relu")
    forwarded = joint.apply(sharded, "relu")
    same(graph, forwarded)
    operators = [a.operator for a in forwarded.applications]
    assert operators == ["slice", "linear", "slice", "linear", "relu", "relu", "concatenate"]
    fused = forwarded
    for name in [a.results[0] for a in forwarded.applications if a.operator == "linear"]:
        fused = fuse(fused, name)
    same(graph, fused)
    operators = [a.operator for a in fused.applications]
    assert operators.count("linear=>relu") == 2
    assert "linear" not in operators


@pytest.mark.parametrize("dim", ["m", "n"])
def test_blocks_of_every_parallel_dimension(dim):
    graph = trace(ops.linear, (6, 5), (5, 4), (4,))
    rewrite = shard("linear", 3, dim, 3)
    check_rewrite(rewrite, graph, "linear")
    same(graph, rewrite.apply(graph, "linear"))


def test_reduced_dimensions_are_not_cut_into_blocks():
    graph = trace(ops.linear, (6, 5), (5, 4), (4,))
    with pytest.raises(WeftError, match="linear in 2 blocks of k cannot be applied to linear"):
        shard("linear", 3, "k").apply(graph, "linear")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu through slice", lambda x: ops.relu(x[1:5, ::2])),
        ("relu through transpose", lambda x: ops.relu(ops.transpose(x, (1, 0)))),
        ("relu through reshape", lambda x: ops.relu(x.reshape(4, 12))),
        ("relu through concatenate", lambda x: ops.relu(ops.concatenate([x, x * 2], 1))),
    ],
)
def test_pointwise_operators_are_forwarded(name, function):
    graph = trace(function, (6, 8))
    (rewrite,) = (one for one in forward("relu") if one.name == name)
    (match,) = rewrite.matches(graph)
    new = rewrite.apply(graph, match.root)
    same(graph, new)
    assert new.applications[-1].operator == name.rpartition(" ")[2]


def test_only_pointwise_operators_are_forwarded():
    with pytest.raises(WeftError, match="softmax is not pointwise, and cannot be forwarded"):
        forward("softmax")


def test_a_search_may_shard_forward_and_fuse():
    graph = trace(layer, (8, 16), (16, 4), (4,))
    mesh = DeviceMesh("m", (2,), ("x",))
    rewrites = [shard("linear", 3, "m"), *forward("relu")]
    front = search(graph, mesh, Machine(flops={"float32": 1e9}), ["time"], rewrites=rewrites)
    for plan in front:
        plan.verify()
