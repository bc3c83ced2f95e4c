"""Bytes and operations of plans with loops and branches, as predicted and as counted."""

from itertools import pairwise
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.interop.test_run import CASES, MESH, arrays, received, sharded
from tests.trials import trials

from weft import Graph, Machine, Plan, communication, estimate, propagate, run
from weft.interop.stablehlo import read
from weft.plan.plan_diff import diff_plans

PROGRAMS = trials(150)
SQUARE = [(4, 4), (4, 4)]
COLUMNS = ["{}", '{"y", "x"}']


def counted(x, w):
    return lax.fori_loop(0, 10, lambda _, c: jnp.tanh(c @ w), x)


def down(x, w):
    start = (jnp.int32(9), x)
    return lax.while_loop(lambda c: c[0] > 2, lambda c: (c[0] - 2, jnp.tanh(c[1] @ w)), start)


def never(x, w):
    return lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1] @ w), (0, x))


def loops_in_loops(x, w):
    def inner(c, _):
        return jnp.tanh(c @ w), c.sum()

    return lax.scan(lambda c, _: lax.scan(inner, c, None, length=3), x, None, length=4)


def bound_from_outside(x, w):
    """The inner loop ends where a value that both loops carry unchanged says."""

    def outer(_, state):
        c, most = state
        ended = lax.while_loop(
            lambda s: s[0] < s[2], lambda s: (s[0] + 1, jnp.tanh(s[1] @ w), s[2]), (0, c, most)
        )
        return ended[1], most

    return lax.fori_loop(0, 3, outer, (x, jnp.int32(5)))[0]


def layers(x, w):
    """The gradient of a scan: a second loop that goes back."""
    step = lambda c, _: (jnp.tanh(c @ w), c.sum())  # noqa: E731
    return jax.grad(lambda x: lax.scan(step, x, None, length=5)[0].sum())(x)


def until(x, w):
    return lax.while_loop(lambda c: jnp.abs(c).max() > 0.5, lambda c: (c * 0.5) @ w, x)


def one_moves(x, w):
    return lax.cond(x.sum() > 0, lambda v: (v @ w) @ w.T, lambda v: v * 2, x)


def branches_in_loops(x, w):
    def step(c, t):
        return lax.cond(t > 0, lambda v: v + 1, lambda v: jnp.tanh(v @ w), c), None

    return lax.scan(step, x, jnp.arange(3.0))[0]


EXACT = [counted, down, never, loops_in_loops, bound_from_outside, layers]
ASSUMED = [until, one_moves, branches_in_loops]


def graph_of(function, shapes=SQUARE):
    return read(jax.jit(function).lower(*arrays(function, shapes)).as_text())


def counts(plan, given):
    with communication() as moved:
        run(plan, {value.name: array for value, array in zip(plan.graph.inputs, given)})
    return received(moved)


@pytest.mark.parametrize("axes", [['{"x"}'], COLUMNS, ['{"x"}', '{"y"}']], ids=str)
@pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)
def test_loops_receive_the_predicted_bytes(function, axes):
    plan = Plan.of(propagate(sharded(graph_of(function), *axes)))
    assert plan.assumed == ()
    for each in (plan, plan.fused()):
        cost = estimate(each)
        assert counts(each, arrays(function, SQUARE)) == each.received
        assert cost.received == sum(each.received)
        assert max(cost.by_axis.values()) <= cost.received <= sum(cost.by_axis.values())


def test_numbers_are_those_of_all_iterations():
    def once(x, w):
        return jnp.tanh(x @ w)

    machine = Machine({"x": (1e-6, 1e9)}, flops={"float32": 1e9, "int32": 1e9})
    costs = [
        estimate(Plan.of(propagate(sharded(graph_of(f), '{"x"}'))), machine)
        for f in (once, counted)
    ]
    (dot,) = [item for item in costs[1].items if item.what == "while ×10: dot_general"]
    (alone,) = [item for item in costs[0].items if item.what == "dot_general"]
    assert (dot.flops, dot.read) == (10 * alone.flops, 10 * alone.read)
    assert dot.seconds == pytest.approx(10 * alone.seconds)
    assert "condition ×11: compare" in [item.what for item in costs[1].items]


def test_bytes_cross_axes_in_all_iterations():
    machine = Machine({"x": (1e-6, 1e9)})
    cost = estimate(Plan.of(propagate(sharded(graph_of(counted), "{}", '{"x"}'))), machine)
    gathers = {item.what: item for item in cost.items if item.received}
    inside = gathers["while ×10: all_gather of 0/body/1/arg1"]
    after = gathers["all_gather of 0#2"]
    assert (inside.received, after.received) == (10 * 4 * 8 * 4, 4 * 8 * 4)
    assert inside.seconds == pytest.approx(10 * after.seconds)
    assert cost.by_axis == {"x": inside.received + after.received, "y": 0}


def test_flops_of_loops_in_loops():
    cost = estimate(Plan.of(propagate(sharded(graph_of(loops_in_loops)))))
    (dot,) = [item for item in cost.items if item.what.endswith("dot_general")]
    assert dot.what == "while ×4: while ×3: dot_general"
    assert dot.flops == 12 * 2 * 4**3


def test_a_loop_that_runs_an_unknown_number_of_times_is_counted_once_and_says_so():
    plan = Plan.of(propagate(sharded(graph_of(until), *COLUMNS)))
    (said,) = plan.assumed
    assert said == "while 0#0: how often it runs is not known, once is counted"
    each = []
    for trips in range(4):
        start = np.eye(4, dtype="float32") * 2.0 ** (trips - 1)
        each.append(counts(plan, [start, np.eye(4, dtype="float32")]))
    assert each[1] == plan.received
    steps = [np.subtract(more, less) for less, more in pairwise(each)]
    assert steps[0].min() > 0
    assert all(np.array_equal(step, steps[0]) for step in steps)
    assert f"assumed: {said}" in str(estimate(plan)).splitlines()
    assert f"assumed: {said}" in str(plan).splitlines()
    assert f"assumed: {said}" in str(diff_plans(plan, plan)).splitlines()
    assert f"assumed: {said}" in plan.drawing().notes
    assert "while ×?: dot_general" in [item.what for item in estimate(plan).items]


def test_of_branches_the_one_that_moves_most_is_counted():
    plan = Plan.of(propagate(sharded(graph_of(one_moves), *COLUMNS)))
    one, two = (counts(plan, [np.full((4, 4), s, "float32")] * 2) for s in (1, -1))
    assert max(sum(one), sum(two)) == sum(plan.received)
    assert one != two
    (said,) = plan.assumed
    assert said == "case 3: branches move 0, 384 B, the most is counted"
    assert "case branch 1: dot_general" in [item.what for item in estimate(plan).items]


def test_branches_that_move_alike_are_exact():
    plan = Plan.of(propagate(sharded(graph_of(one_moves), '{"x"}')))
    assert plan.assumed == ()
    for sign in (1, -1):
        assert counts(plan, [np.full((4, 4), sign, "float32")] * 2) == plan.received


def test_transfers_of_a_loop_are_listed_with_its_trip_count():
    plan = Plan.of(propagate(sharded(graph_of(counted), *COLUMNS)))
    moving = [line for line in str(plan).splitlines() if line.endswith(" B")]
    assert [line.rpartition("  ")[2].strip() for line in moving] == ["1920 B", "192 B"]
    assert "while ×10: all_gather of" in moving[0]
    assert sum(plan.received) == 1920 + 192


def random_text(rng, rank):
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in rng.sample(['"x"', '"y"'], 2):
        if rank and rng.random() < 0.7:
            dims[rng.randrange(rank)].append(axis)
    return f"<@m, [{', '.join('{' + ', '.join(dim) + '}' for dim in dims)}]>"


def annotated(graph, rng, chance, meshes=(MESH,), likely=0.8):
    """The graph with random shardings on inputs, and on some values, those of regions as well."""
    applications = [
        a._replace(regions=tuple(annotated(r, rng, chance, r.meshes, 0) for r in a.regions))
        for a in graph.applications
    ]
    ranks = {name: len(value.shape) for name, value in graph.values.items()}
    given = [value.name for value in graph.inputs if rng.random() < likely]
    made = [n for a in applications for n in a.results if rng.random() < chance]
    return Graph(
        graph.inputs,
        applications,
        graph.outputs,
        meshes,
        {name: random_text(rng, ranks[name]) for name in (*given, *made)},
        operators=graph.operators,
        dtypes={name: value.dtype for name, value in graph.values.items()},
        is_region=not meshes,
    )


def test_random_shardings_in_and_around_regions():
    programs = dict.fromkeys((*EXACT, *ASSUMED), SQUARE) | CASES
    programs = {f: shapes for f, shapes in programs.items() if graph_has_regions(f, shapes)}
    graphs = {f: graph_of(f, shapes) for f, shapes in programs.items()}
    exact = 0
    for seed in range(PROGRAMS):
        rng = Random(seed)
        function = rng.choice(list(graphs))
        graph = annotated(graphs[function], rng, rng.choice([0, 0.1, 0.3]))
        plan = Plan.of(propagate(graph))
        plan = plan.fused() if rng.random() < 0.3 else plan
        found = counts(plan, arrays(function, programs[function]))
        where = f"seed {seed}: {function.__name__}\n{plan}"
        assert estimate(plan).received == sum(plan.received), where
        if not plan.assumed:
            exact += 1
            assert found == plan.received, where
        elif function is not until:
            assert sum(found) <= sum(plan.received), where
    assert exact > PROGRAMS // 2


def graph_has_regions(function, shapes):
    return any(application.regions for application in graph_of(function, shapes).applications)
