"""Products before their sum: fused by every plan, computed as contractions or in blocks."""

import tracemalloc

import numpy as np
import pytest

from weft import DeviceMesh, Graph, Plan, WeftError, communication, ops, propagate, run, trace
from weft.lang.fusion import fuse, halve
from weft.lang.kernel import Block
from weft.runtime.tensor import Tensor

LINE = DeviceMesh("m", (2,), ("x",))
MIB = 1 << 20


def planned(function, *shapes, mesh=LINE, **shardings):
    texts = {name: f"<@m, {text}>" for name, text in shardings.items()}
    return Plan.of(propagate(trace(function, *shapes, meshes=[mesh], shardings=texts)))


def numbers(*shapes):
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, shape).astype("float32") for shape in shapes]


def products(x, w):
    return ops.prod_of(x, w)


def in_full(x, w):
    return x[..., :, None, :] * np.swapaxes(w, -1, -2)[..., None, :, :]


def operators(plan):
    return [application.operator for application in plan.graph.applications]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dims", [-1, 0, 1, (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("monoid", ["sum", "max", "min", "mean"])
def test_any_reduction_is_fused(monoid, dims, keep):
    def reduced(x, w):
        return getattr(ops.prod_of(x, w), monoid)(dims, keepdims=keep)

    x, w = numbers((6, 5), (5, 4))
    for cut in ('[{}, {"x"}]', '[{"x"}, {}]', "[{}, {}]"):
        plan = planned(reduced, x.shape, w.shape, x=cut)
        plan.verify()
        assert operators(plan) == [f"prod_of=>{monoid}_dim"]
        with communication() as moved:
            (y,) = run(plan, {"x": x, "w": w})
        assert moved.peak == plan.peak
        wanted = getattr(np, monoid)(in_full(x, w), axis=dims, keepdims=keep)
        assert np.allclose(y.numpy(), wanted)


def test_batches_and_single_dimensions():
    x, w = numbers((3, 1, 6, 5), (2, 5, 4))
    plan = planned(lambda x, w: ops.prod_of(x, w).sum((-1, 0)), x.shape, w.shape)
    assert operators(plan) == ["prod_of=>sum_dim"]
    (y,) = run(plan, {"x": x, "w": w})
    assert np.array_equal(y.numpy(), in_full(x, w).sum((-1, 0)))


def test_pointwise_operators_between_are_fused_too():
    x, w = numbers((6, 5), (5, 4))
    plan = planned(lambda x, w: ops.relu(ops.prod_of(x, w)).sum(-1), x.shape, w.shape)
    assert operators(plan) == ["prod_of=>relu=>sum_dim"]
    (y,) = run(plan, {"x": x, "w": w})
    assert np.array_equal(y.numpy(), np.maximum(in_full(x, w), 0).sum(-1))


def test_every_consumer_has_products_of_its_own():
    x, w = numbers((6, 5), (5, 4))

    def twice(x, w):
        each = products(x, w)
        return each.sum(-1), each.max(0), each.sum((0, 1))

    plan = planned(twice, x.shape, w.shape, x='[{"x"}, {}]')
    plan.verify()
    assert operators(plan) == ["prod_of=>sum_dim", "prod_of=>max_dim", "prod_of=>sum_dim"]
    found = run(plan, {"x": x, "w": w})
    full = in_full(x, w)
    for y, wanted in zip(found, (full.sum(-1), full.max(0), full.sum((0, 1)))):
        assert np.array_equal(y.numpy(), wanted)


def test_so_has_every_consumer_of_what_is_made_of_products():
    x, w = numbers((6, 5), (5, 4))

    def twice(x, w):
        each = ops.relu(products(x, w))
        return each.sum(-1), each.max(0)

    plan = planned(twice, x.shape, w.shape)
    plan.verify()
    assert operators(plan) == ["prod_of=>relu=>sum_dim", "prod_of=>relu=>max_dim"]
    full = np.maximum(in_full(x, w), 0)
    for y, wanted in zip(run(plan, {"x": x, "w": w}), (full.sum(-1), full.max(0))):
        assert np.array_equal(y.numpy(), wanted)


def test_products_that_are_not_many_may_be_returned():
    x, w = numbers((6, 5), (5, 4))
    plan = planned(products, x.shape, w.shape)
    (y,) = run(plan, {"x": x, "w": w})
    assert np.array_equal(y.numpy(), in_full(x, w))


SAID = r"prod_of would hold 17179869184 B of products on a cell; at most 1073741824 B"


def test_products_that_are_too_many_are_refused():
    """They are returned, or have a sharding of their own: on two cells 16 GiB each."""
    shapes = (4096, 1024), (1024, 2048)
    graph = trace(lambda x, w: ops.prod_of(x, w).sum(-1), *shapes, meshes=[LINE])
    shardings = {"prod_of": '<@m, [{"x"}, {}, {}]>'}
    parts = graph.inputs, graph.applications, graph.outputs, graph.meshes
    with pytest.raises(WeftError, match=SAID) as refused:
        Plan.of(propagate(Graph(*parts, shardings)))
    assert "let nothing but reductions use it" in str(refused.value.__notes__)
    with pytest.raises(WeftError, match=SAID):
        planned(products, *shapes, x='[{"x"}, {}]')


def test_products_that_are_too_many_are_not_computed_at_once():
    x, w = (Tensor(np.broadcast_to(np.float32(1), shape)) for shape in ((4096, 1024), (1024, 2048)))
    with pytest.raises(WeftError, match="prod_of would hold 34359738368 B of products"):
        ops.prod_of(x, w)


@pytest.mark.parametrize("monoid", ["sum", "max"])
@pytest.mark.parametrize("dims", [-1, 0, (0, 1, 2)])
def test_a_fused_box_needs_little_room(monoid, dims):
    """The products of 256 x 256 x 256 are 64 MiB."""
    n = 256
    plan = planned(lambda x, w: getattr(ops.prod_of(x, w), monoid)(dims), (n, n), (n, n), mesh=LINE)
    x, w = numbers((n, n), (n, n))
    tracemalloc.start()
    (y,) = run(plan, {"x": x, "w": w})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * MIB
    wanted = {"sum": {-1: x @ w}, "max": {-1: (in_full(x[:8], w)).max(-1)}}[monoid].get(dims)
    if wanted is not None:
        assert np.array_equal(y.numpy()[: len(wanted)], wanted)


def test_halves_are_cut_along_what_can_be_cut():
    graph = fuse(trace(lambda x, w: ops.prod_of(x, w).max(-1), (4, 8), (8, 2)), "prod_of")
    (line,) = graph.signatures
    halves = halve(Block(np, line, graph.applications[0].attributes, line.space))
    assert halves.monoid == "max"
    assert [part.span("i2") for part in halves.parts] == [range(4), range(4, 8)]
    whole = trace(ops.softmax, (2, 8)).signatures[0]
    halves = halve(Block(np, whole, {}, whole.space))
    assert (halves.monoid, halves.axes) == ("", (0,))
    single = trace(ops.softmax, (1, 8)).signatures[0]
    assert halve(Block(np, single, {}, single.space)) is None
