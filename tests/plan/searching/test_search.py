"""`search`: fronts, constraints, errors and progress."""

from random import Random

import numpy as np
import pytest
from tests.plan.searching.small import GRID, LINE, machine, program
from tests.runtime.tensors import random_spec
from tests.trials import trials

from weft import (
    DeviceMesh,
    Machine,
    Plan,
    WeftError,
    communication,
    estimate,
    ops,
    propagate,
    run,
    search,
    show,
    trace,
)
from weft.draw import to_svg, to_text
from weft.lang.alternatives import Alternatives
from weft.lang.rewrite import shipped_rewrites
from weft.plan.machines import H200_NODE
from weft.plan.searching.pareto import dominates

PROGRAMS = trials(24)
SLOW = Machine(latency=1e-7, bandwidth=1e9, flops={"float32": 1e9}, memory_bandwidth=1e10)


def mlp(x, w, v):
    return ops.relu(x @ w) @ v


def layers(x, *weights):
    for w in weights:
        x = x + ops.relu(x @ w)
    return x


def test_every_plan_verifies_and_moves_the_predicted_bytes():
    for seed in range(PROGRAMS // 2):
        rng = np.random.default_rng(seed)
        graph = program(seed, 1 + seed % 5)
        front = search(graph, GRID, machine(Random(seed)), budget=128)
        inputs = {v.name: rng.integers(-3, 4, v.shape).astype(v.dtype) for v in graph.inputs}
        whole = run(propagate(graph), inputs)
        for plan, cost in zip(front, front.costs):
            plan.verify()
            with communication() as counted:
                found = run(plan, inputs)
            assert counted.received == cost.received, f"seed {seed}\n{plan}"
            assert tuple(counted.peak) == tuple(cost.peak), f"seed {seed}\n{plan}"
            for one, two in zip(found, whole):
                assert np.array_equal(one.numpy(), two.numpy()), f"seed {seed}\n{plan}"


def test_no_point_dominates_another():
    front = search(trace(mlp, (64, 32), (32, 64), (64, 32)), GRID, SLOW)
    for number, one in enumerate(front.points):
        assert not any(dominates(two, one) for n, two in enumerate(front.points) if n != number)


def test_no_annotation_leads_to_a_better_plan():
    for seed in range(PROGRAMS):
        rng, chance = np.random.default_rng(seed), Random(seed)
        graph, rates = program(seed, 1 + seed % 4), machine(chance)
        front = search(graph, GRID, rates, engine="exact")
        assert front.proved
        specs = {v.name: str(random_spec(rng, GRID, v.shape, ())) for v in graph.inputs}
        if any(":(" in spec for spec in specs.values()):  # parts of axes are not looked at
            continue
        written = type(graph)(
            graph.inputs, graph.applications, graph.outputs, [str(GRID)], specs, {}, graph.operators
        )
        for strategy in ("aggressive", "user_priority"):
            cost = estimate(Plan.of(propagate(written, strategy), rates), rates)
            point = (cost.seconds * (1 + 1e-9), max(cost.peak), cost.received)
            better = [p for p in front.points if dominates(p, point)]
            assert better, f"seed {seed}: {point} against {front}"


def test_annotated_shardings_are_kept():
    written = '<@m, [{"y"}, {}]>'
    graph = trace(mlp, (8, 8), (8, 8), (8, 8), meshes=[str(GRID)], shardings={"x": written})
    for plan in search(graph, GRID, SLOW):
        assert str(plan.specs["x"]) == written


def test_annotated_outputs_are_kept():
    graph = trace(mlp, (8, 8), (8, 8), (8, 8))
    wanted = '<@m, [{}, {"x"}]>'
    graph = type(graph)(
        graph.inputs, graph.applications, graph.outputs, [str(GRID)], {}, {0: wanted}
    )
    for plan in search(graph, GRID, SLOW):
        assert str(plan.outputs[0]) == wanted
        plan.verify()


def test_the_same_seed_finds_the_same_front():
    graph = trace(layers, (64, 32), *[(32, 32)] * 6)
    one, two = (search(graph, GRID, SLOW, budget=400, seed=7, engine="evolve") for _ in range(2))
    assert one.points == two.points
    assert str(one) == str(two)
    assert not one.is_exact


def test_evolution_comes_near_the_exact_front():
    graph = trace(mlp, (64, 32), (32, 64), (64, 32))
    exact = search(graph, GRID, SLOW, engine="exact")
    found = search(graph, GRID, SLOW, engine="evolve", budget=2000)
    assert set(found.points) <= set(exact.points)
    assert len(found) >= 0.8 * len(exact)


@pytest.mark.slow
def test_the_integer_program_agrees_on_one_objective():
    for seed in range(12):
        graph, rates = program(seed, 4), machine(Random(seed))
        for objective in ("time", "bytes"):
            fronts = [
                search(graph, GRID, rates, [objective], engine=engine)
                for engine in ("exact", "integer", "descend")
            ]
            exact, integer, descended = (front.points[0][0] for front in fronts)
            if rates.overlap == 0 or objective == "bytes":
                assert integer == pytest.approx(exact, rel=1e-6, abs=1e-15), f"seed {seed}"
            assert descended >= exact * (1 - 1e-9)


def test_capacity_is_a_constraint():
    graph = trace(mlp, (64, 32), (32, 64), (64, 32))
    free = search(graph, GRID, SLOW)
    peaks = sorted(max(cost.peak) for cost in free.costs)
    assert peaks[0] < peaks[-1]
    for objectives in (("time", "peak_memory", "bytes"), ("time",)):
        small = Machine(
            latency=1e-7,
            bandwidth=1e9,
            flops={"float32": 1e9},
            memory_bandwidth=1e10,
            capacity=peaks[0],
        )
        front = search(graph, GRID, small, objectives)
        assert all(cost.fits for cost in front.costs)


def test_error_if_nothing_fits():
    graph = trace(mlp, (64, 32), (32, 64), (64, 32))
    tiny = Machine(capacity=1000)
    with pytest.raises(WeftError, match=r"no plan fits: cell \d+ holds \d+ B while .* runs, \d+ B"):
        search(graph, GRID, tiny)
    with pytest.raises(WeftError, match=r"the largest array is \w+: float32\[\d+, \d+\], of which"):
        search(graph, GRID, tiny)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objectives": ["speed"]}, "there is no objective 'speed'"),
        ({"objectives": []}, "a search needs an objective"),
        ({"engine": "integer"}, "the integer program has one objective"),
        ({"engine": "fast"}, "there is no engine 'fast'"),
        ({"budget": -1}, "budget"),
        ({"budget": 0}, "a search with a budget of 0 plans tries nothing"),
        ({"engine": "integer", "objectives": ["peak_memory"]}, "has one objective: time, or bytes"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises(WeftError, match=message):
        search(program(0, 1), LINE, SLOW, **arguments)


def test_graph_and_mesh_are_required():
    for arguments in ((1, GRID), (program(0, 1), "m")):
        with pytest.raises(WeftError, match="search expects a Graph and a DeviceMesh, got"):
            search(*arguments)


def test_trivial_programs():
    alone = DeviceMesh("m", (1,), ("x",))
    for function, shape in ((lambda x: x, (8, 8)), (lambda x: x + 1, (0, 3)), (lambda x: -x, ())):
        for mesh in (GRID, alone):
            front = search(trace(function, shape), mesh, SLOW)
            assert front.is_exact
            for plan in front:
                plan.verify()


def test_annotations_on_another_mesh_are_refused():
    graph = trace(mlp, (8, 8), (8, 8), (8, 8), meshes=['@m = <["x"=4]>'])
    with pytest.raises(WeftError, match="the graph is annotated on"):
        search(graph, GRID, SLOW)


def test_progress_is_reported():
    graph = trace(layers, (64, 32), *[(32, 32)] * 8)
    seen = []
    search(graph, GRID, SLOW, budget=300, engine="evolve", progress=seen.append)
    parts = [progress.part for progress in seen]
    assert parts == sorted(parts)
    assert 0 <= parts[0] <= parts[-1] <= 1
    assert len(seen[-1].points) > 1


def test_a_front_is_a_table_and_a_plot():
    front = search(trace(mlp, (64, 32), (32, 64), (64, 32)), GRID, SLOW)
    lines = str(front).splitlines()
    assert lines[0].split() == ["plan", "time", "peak_memory", "bytes", "cut"]
    assert len(lines) == len(front) + 2
    assert "plans: time across, peak_memory up" in to_text(front.drawing())
    assert to_svg(front.drawing()).startswith("<svg")
    assert front._repr_html_()
    show(front)


def test_the_best_plans_of_a_front():
    front = search(trace(mlp, (64, 32), (32, 64), (64, 32)), GRID, SLOW)
    assert estimate(front.best("bytes"), SLOW).received == min(c.received for c in front.costs)
    assert front.balanced in front.plans
    assert front[0] is front.plans[0]
    with pytest.raises(WeftError, match="the front has no objective 'speed'"):
        front.best("speed")


def test_plans_are_saved_and_read():
    for plan in search(trace(mlp, (64, 32), (32, 64), (64, 32)), GRID, SLOW):
        assert Plan.from_json(plan.to_json()) == plan


def test_rewrites_and_fusion_are_among_the_alternatives():
    graph = trace(ops.attention, *[(2, 2, 8, 4)] * 3)
    found = Alternatives.of(graph, shipped_rewrites(4))
    ways = list(found.in_order())
    assert {way.made_by for way in ways} >= {(), ("attention in blocks of keys",)}
    assert any("=>" in way.application.operator for way in ways)


def test_one_of_four_softmaxes_may_be_staged():
    """The inputs are cut as written: one along the dimension that softmax sees whole."""
    mesh = DeviceMesh("m", (8,), ("x",))
    shardings = dict.fromkeys("bcd", '<@m, [{"x"}, {}]>') | {"a": '<@m, [{}, {"x"}]>'}
    graph = trace(
        lambda a, b, c, d: tuple(map(ops.softmax, (a, b, c, d))),
        *[(8, 1 << 22)] * 4,
        names=list("abcd"),
        meshes=[str(mesh)],
        shardings=shardings,
    )
    front = search(graph, mesh, H200_NODE, ["time"])
    assert front.is_exact
    operators = [a.operator for a in front[0].graph.applications]
    assert operators.count("softmax") == 3
    assert any("exponential" in name for name in operators)
    front[0].verify()


def test_large_graphs_share_decisions():
    graph = trace(layers, (64, 32), *[(32, 32)] * 120)
    front = search(graph, DeviceMesh("m", (2, 2), ("x", "y")), H200_NODE, ["time"])
    (plan,) = front
    placements = {str(placed.placement) for placed in plan.placed[30:-30]}
    assert len(placements) <= 3
    plan.verify()


@pytest.mark.parametrize("capacity", [100e3, 150e3])
def test_plans_fit_the_capacity_or_an_error_is_raised(capacity):
    graph = trace(layers, (64, 64), *[(64, 64)] * 5)
    small = Machine(latency=1e-7, bandwidth=1e9, flops={"float32": 1e9}, capacity=capacity)
    try:
        front = search(graph, GRID, small, budget=400, engine="evolve")
    except WeftError as error:
        assert "capacity" in str(error) or "holds" in str(error) or "fits" in str(error), error  # noqa: PT017
    else:
        assert all(max(plan.peak) <= capacity for plan in front)


def test_large_graphs_are_rewritten_where_that_is_faster():
    """A softmax of one row, behind more than 200 applications, is staged."""
    rates = Machine(latency=1e-6, bandwidth=1e10, flops={"float32": 1e12}, memory_bandwidth=1e11)
    mesh = DeviceMesh("m", (8,), ("x",))

    def many(x, y):
        for _ in range(201):
            y = ops.relu(y)
        return ops.softmax(x), ops.softmax(x * 2), y

    graph = trace(many, (1, 1 << 21), (4, 4))
    whole, staged = (search(graph, mesh, rates, ["time"], rewrite=r) for r in (False, True))
    assert staged.points[0][0] < 0.7 * whole.points[0][0]
    plan = staged[0]
    plan.verify()
    assert not any("softmax" in a.operator for a in plan.graph.applications)
    assert any("tried kind by kind" in reason for reason in staged.reasons)
