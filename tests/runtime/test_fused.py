"""Fused plans: the same values, no bytes more, no more memory, no more time."""

import jax
import numpy as np
import pytest
from tests.interop.test_run import CASES, arrays, received, sharded
from tests.runtime.test_eager import agree
from tests.runtime.test_programs import held, planned
from tests.trials import trials

from weft import Machine, Plan, WeftError, communication, estimate, ops, propagate, run, trace
from weft.interop.stablehlo import read
from weft.lang import Application, Graph, Value
from weft.lang.fusion import fuse
from weft.plan.fuse import MAX_FUSED, fuse_plan

PROGRAMS = trials(400)
MACHINES = (
    Machine(flops={"float64": 1e9, "int64": 2e9, "float32": 3e9, "bool": 5e9}),
    Machine(memory_bandwidth=1e9, overlap=0.5),
    Machine(flops={"float64": 1e9, "bool": 1e8}, memory_bandwidth=1e9),
)


def never_more(fused, plan):
    """Whether a fused plan is no worse than the plan, on any cell and any machine."""
    pairs = [(fused.peak, plan.peak), (fused.received, plan.received)]
    for machine in MACHINES:
        seconds = [estimate(each, machine).seconds for each in (fused, plan)]
        pairs.append(([seconds[0]], [seconds[1] * (1 + 1e-12)]))
    return all(new <= old for news, olds in pairs for new, old in zip(news, olds))


def test_random_programs_fused_are_the_same_and_cost_no_more():
    gone = 0
    for seed in range(PROGRAMS):
        program, graph, inputs = planned(seed)
        plan = Plan.of(propagate(graph))
        fused = plan.fused()
        fused.verify()
        assert Plan.from_json(fused.to_json()) == fused
        with communication() as moved:
            outputs = run(fused, inputs)
        assert held(fused, moved) == fused.peak, f"seed {seed}\n{fused}"
        assert sum(fused.received) == moved.received
        for place, output, before in zip(program.outputs, outputs, run(plan, inputs)):
            assert output.spec == before.spec
            assert agree(output, program.values[place]), f"seed {seed}\n{fused}"
            assert program.floats or np.array_equal(output.numpy(), before.numpy())
        assert never_more(fused, plan), f"seed {seed}\n{plan}\n{fused}"
        gone += len(plan.placed) - len(fused.placed)
    assert gone > PROGRAMS


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_programs_of_jax_are_fused_in_their_regions_too(function):
    given = arrays(function, CASES[function])
    graph = sharded(read(jax.jit(function).lower(*given).as_text()), '{"x"}')
    plan = Plan.of(propagate(graph))
    fused = plan.fused()
    fused.verify()
    with communication() as moved:
        outputs = run(fused, {value.name: array for value, array in zip(graph.inputs, given)})
    for found, wanted in zip(outputs, jax.tree.leaves(function(*given))):
        assert np.allclose(found, wanted, atol=1e-5)
    assert moved.peak == fused.peak
    assert fused.assumed == plan.assumed
    assert plan.assumed or received(moved) == fused.received
    assert never_more(fused, plan)
    inside = [len(inner.placed) for plans in fused.regions.values() for inner in plans]
    before = [len(inner.placed) for plans in plan.regions.values() for inner in plans]
    assert sum(inside) < sum(before) or not plan.regions


def whole(function, *shapes, dtypes=None, **shardings):
    given = (dtypes or {}).get
    graph = trace(
        function,
        *[Value(f"x{n}", shape, given(n, "float32")) for n, shape in enumerate(shapes)],
        meshes=['@m = <["x"=2]>'],
        names=[f"x{n}" for n in range(len(shapes))],
        shardings={name: f"<@m, {text}>" for name, text in shardings.items()},
    )
    return Plan.of(propagate(graph))


def names(plan):
    return [application.operator for application in plan.graph.applications]


def test_a_layer_becomes_one_application():
    plan = whole(lambda x, w, b: ops.relu(ops.linear(x, w, b)), (8, 4), (4, 6), (6,))
    assert names(plan.fused()) == ["linear=>relu"]
    assert plan.fused().fused() == plan.fused()


def test_operators_with_a_transfer_between_them_are_not_fused():
    plan = whole(lambda x, w: ops.relu(x @ w), (8, 4), (4, 6), x0='[{}, {"x"}]')
    assert names(plan.fused()) == ["matmul", "relu"]


def test_values_that_are_returned_or_used_twice_are_not_fused_away():
    assert names(whole(lambda x: (x + x) * x, (8,)).fused()) == ["add=>multiply"]
    assert names(whole(lambda x: [y := x + x, y * x], (8,)).fused()) == ["add", "multiply"]
    assert names(whole(lambda x: (y := x + x) * y, (8,)).fused()) == ["add", "multiply"]


def test_fusions_that_would_hold_more_memory_are_not_made():
    """The sum of x waits until the end, and x would have to wait with it."""

    def function(x, y):
        total = x.sum(0)
        square = y @ y
        square = square @ square
        return total + (square @ square).sum(0)

    plan = whole(function, (64, 64), (64, 64))
    wanted = ["sum_dim", "matmul", "matmul", "matmul", "sum_dim=>add@1"]
    assert names(plan.fused()) == wanted
    sums = ("sum_dim", "add")
    always = fuse_plan(plan, where=lambda made, user: (made.operator, user.operator) == sums)
    assert max(always.peak) > max(plan.peak) >= max(plan.fused().peak)


def test_what_would_compute_at_a_slower_rate_is_not_fused():
    """A choice between small numbers by comparing large ones: together both would be slow."""

    def choose(x, a, b):
        return ops.where(x > x.max(0), a, b), x + x

    plan = whole(choose, (8,), (8,), (8,), dtypes={0: "float64"})
    assert names(plan.fused()) == ["max_dim=>compare@1", "select", "add"]
    same = whole(choose, (8,), (8,), (8,))
    assert names(same.fused()) == ["max_dim=>compare@1=>select", "add"]


def test_a_chain_ends_somewhere():
    def chain(x):
        for _ in range(3 * MAX_FUSED):
            x = ops.tanh(x)
        return x

    assert [name.count("tanh") for name in names(whole(chain, (8,)).fused())] == [MAX_FUSED] * 3


def test_barriers_are_not_fused():
    inputs = [Value("x", (8,))]
    made = [
        Application("tanh", ("x",), ("a",)),
        Application("optimization_barrier", ("a",), ("b",)),
    ]
    with pytest.raises(WeftError, match="optimization_barrier has edges and cannot be fused"):
        fuse(Graph(inputs, made, ["b"]), "a")


def test_a_dimension_that_no_array_has_is_refused():
    """Eight times a number and their sum: the fused line would have no place for the eight."""
    said = {"value": 1, "dtype": "float32", "result_shape": (8,)}
    made = [
        Application("constant", (), ("c",), said),
        Application("sum_dim", ("c",), ("total",), {"dimensions": (0,), "keepdims": False}),
    ]
    with pytest.raises(WeftError, match="constant and sum_dim cannot be fused: no array has"):
        fuse(Graph([], made, ["total"]), "c")
