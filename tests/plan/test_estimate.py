"""Estimates: linear layers and convolutions to the byte, and what follows from a machine."""

from math import prod

import pytest

from weft import DeviceMesh, Machine, Plan, ops, propagate, trace
from weft.lang.fusion import fuse
from weft.plan.estimate import estimate

MIB = 1 << 20
X, W, B = (4096, 1024), (1024, 2048), (2048,)


def planned(function, shapes, mesh, **shardings):
    text = {name: f"<@{mesh.name}, {spec}>" for name, spec in shardings.items()}
    return Plan.of(propagate(trace(function, *shapes, meshes=[mesh], shardings=text)))


def linear(x, w, b):
    return ops.linear(x, w, b)


def bytes_of(boxes, itemsize=4):
    return sum(box.size * itemsize for box in boxes)


def test_linear_cut_by_batch_and_out_reads_x_once_per_column_and_w_once_per_row():
    mesh = DeviceMesh("m", (4, 2), ("batch", "out"))
    plan = planned(linear, (X, W, B), mesh, x='[{"batch"}, {}]', w='[{}, {"out"}]')
    assert dict(plan.placed[0].placement) == {"m": ("batch",), "n": ("out",), "k": ()}
    cost = estimate(plan)
    x, w, b = (4 * prod(shape) for shape in (X, W, B))
    assert cost.read == 2 * x + 4 * w + 4 * b == 67_141_632
    assert cost.received == 0


def test_linear_cut_by_in_leaves_partials():
    mesh = DeviceMesh("m", (4,), ("in",))
    plan = planned(linear, (X, W, B), mesh, x='[{}, {"in"}]', w='[{"in"}, {}]')
    (made,) = plan.placed[0].results
    assert made.partial == {"in": "sum"}
    assert bytes_of(made.regions((4096, 2048))) == 134_217_728


def test_fusing_linear_and_relu_saves_64_mib():
    mesh = DeviceMesh("m", (1,), ("x",))
    graph = trace(lambda x, w, b: ops.relu(linear(x, w, b)), X, W, B, meshes=[mesh])
    bias = 4 * B[0]

    def traffic(graph):
        plan = Plan.of(propagate(graph))
        made = [
            bytes_of(spec.regions(graph.values[name].shape))
            for application, placed in zip(graph.applications, plan.placed)
            for name, spec in zip(application.results, placed.results)
        ]
        return estimate(plan).read + sum(made)

    assert traffic(graph) == 120 * MIB + bias
    assert traffic(fuse(graph, "linear")) == 56 * MIB + bias


@pytest.mark.parametrize(("blocks", "again"), [((4, 1), 393_216), ((4, 4), 795_648)])
def test_a_convolution_reads_its_halo_again(blocks, again):
    mesh = DeviceMesh("m", blocks, ("y", "x"))
    plan = planned(
        lambda image, kernel: ops.convolve(image, kernel, padding=(1, 1)),
        ((1, 64, 256, 256), (64, 64, 3, 3)),
        mesh,
        image='[{}, {}, {"y"}, {"x"}]',
    )
    assert plan.placed[0].placement["y0"] == ("y",)
    assert bytes_of(plan.placed[0].needs[0]) - 64 * 256 * 256 * 4 == again
    cost = estimate(plan)
    assert cost.received == again
    assert [item.what for item in cost.items if item.received] == ["fetch of image"]


def test_products_before_their_sum_are_never_held():
    """Taken literally, a product and its sum hold the whole index space: 1024 times the output."""
    graph = trace(
        lambda x, w: ops.prod_of(x, w).sum(-1), X, W, meshes=[DeviceMesh("m", (1,), ("x",))]
    )
    assert prod(graph.values["prod_of"].shape) * 4 == 32 * 1024 * MIB
    plan = Plan.of(propagate(graph))
    plan.verify()
    assert max(plan.peak) == (16 + 8 + 32) * MIB
    cost = estimate(plan)
    assert (cost.flops, cost.read) == (2 * 4096 * 1024 * 2048, 24 * MIB)
    assert [application.operator for application in plan.graph.applications] == ["prod_of=>sum_dim"]


def test_seconds_follow_from_the_machine():
    mesh = DeviceMesh("m", (4,), ("x",))
    plan = planned(lambda x, w: x @ w, (X, W), mesh, x='[{}, {"x"}]')
    slow = Machine({"x": (1e-5, 1e9)}, flops={"float32": 1e12}, memory_bandwidth=1e11)
    plan = Plan(plan.graph, plan.mesh, plan.specs, plan.outputs, plan.placed, slow)
    cost = estimate(plan)
    assert cost.compute == pytest.approx(2 * 4096 * 1024 * 2048 / 4 / 1e12)
    assert cost.communicate == pytest.approx(2 * (1e-5 + 24 * MIB / 1e9), rel=0.01)
    assert cost.seconds == cost.compute + cost.communicate
    assert cost.by_axis == {"x": cost.received}
    hidden = estimate(plan, Machine({"x": (1e-5, 1e9)}, flops={"float32": 1e12}, overlap=1.0))
    assert hidden.seconds == pytest.approx(max(hidden.compute, hidden.communicate))
    assert "reduce_scatter of matmul" in str(cost)
    assert not estimate(plan, Machine(capacity=1e6)).fits


def test_the_peak_is_that_of_the_fullest_moment():
    mesh = DeviceMesh("m", (2,), ("x",))
    plan = planned(lambda x: (x * 2) @ x.T, ((8, 4),), mesh, x='[{"x"}, {}]')
    doubled, turned, gathered, made = 4 * 4 * 4, 4 * 4 * 4, 4 * 8 * 4, 4 * 8 * 4
    assert plan.peak == (doubled + turned + gathered + made,) * 2  # x itself is gone by then
