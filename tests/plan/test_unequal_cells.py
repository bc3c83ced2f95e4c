"""Machines whose cells differ in speed and memory: estimates, capacities, and what is searched."""

from itertools import product
from random import Random

import numpy as np
import pytest
from tests.plan.searching.small import program
from tests.trials import trials

from weft import (
    DeviceMesh,
    LayoutError,
    Machine,
    Plan,
    ShardingSpec,
    WeftError,
    estimate,
    ops,
    run,
    search,
    trace,
)
from weft.lang import OPERATORS, Application, Graph, Library, Operator, Value
from weft.plan import CellGroup
from weft.plan.balance import balanced_points, balanced_work, split
from weft.plan.searching.bounds import Goal
from weft.plan.searching.branch_and_bound import exact_front
from weft.plan.searching.build import build_problem
from weft.plan.searching.choice_graph import assignment_of, choices_of
from weft.plan.searching.pareto import pareto_front

LINE = DeviceMesh("m", (4,), ("x",))
RATES = {"latency": 1e-6, "bandwidth": 1e9, "flops": {"float32": 1e9}}
SLOW = Machine(**RATES, cells=[CellGroup(devices=[2], speed=0.25)])


def layers(x, v, w):
    return ops.relu(x @ v) @ w


GRAPH = trace(layers, (520, 64), (64, 64), (64, 16))


def test_speeds_and_capacities_by_device_and_by_coordinate():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"), device_ids=(3, 2, 1, 0))
    machine = Machine(
        capacity=10,
        cells=[
            CellGroup(devices=[3, 0], speed=0.5),
            CellGroup(axis="y", coordinates=[1], speed=4, capacity=8),
            CellGroup(axis="x", coordinates=[1], capacity=20),
        ],
    )
    assert machine.speeds(mesh) == (0.5, 4.0, 1.0, 2.0)
    assert machine.capacities(mesh) == (10, 8, 20, 8)
    assert Machine().speeds(mesh) is Machine().capacities(mesh) is None
    assert Machine(cells=[CellGroup(devices=[9], speed=2)]).speeds(mesh) is None


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_machine_with_unequal_cells_is_saved_and_loaded(tmp_path, suffix):
    machine = Machine(
        **RATES,
        cells=[CellGroup(devices=[3], speed=0.25), CellGroup((), "x", [1], capacity=8e9)],
        measured={"flops.float32": 12, "cells.0": 3},
        operations={"grid": {"matmul": [1e-6, 2e-6]}},
    )
    path = tmp_path / f"machine.{suffix}"
    machine.save(path)
    assert Machine.load(path) == machine
    lines = [line.split() for line in str(machine).splitlines()]
    assert ["flops.float32", "1", "Gflop/s", "measured,", "12", "samples"] in lines
    assert ["cells.1", "at", "[1]", "of", '"x":', "8", "GB", "assumed"] in lines


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a group of cells has devices, or an axis with coordinates"),
        ({"devices": [1], "axis": "x"}, "a group of cells has devices, or an axis"),
        ({"axis": "x"}, "a group of cells has devices, or an axis with coordinates"),
        ({"devices": [-1]}, "there are no such cells"),
        ({"devices": [1], "speed": 0}, "speed: expected a number above 0, got 0"),
        ({"devices": [1], "speed": float("inf")}, "speed: expected a finite number above 0"),
        ({"devices": [1], "capacity": -1}, "capacity: expected a number above 0, got -1"),
    ],
)
def test_groups_that_mean_nothing_are_refused(given, message):
    with pytest.raises(WeftError, match=message):
        CellGroup(**given)


def test_a_group_along_an_axis_that_the_mesh_has_not():
    machine = Machine(cells=[CellGroup(axis="y", coordinates=[1])])
    plan = search(GRAPH, LINE)[0]
    with pytest.raises(LayoutError, match='has a group of cells along axis "y", but'):
        estimate(plan, machine)
    with pytest.raises(LayoutError, match='there is no axis "y"'):
        machine.speeds(LINE)
    with pytest.raises(LayoutError, match='has cells at 4 of axis "x", which has 4 coordinates'):
        estimate(plan, Machine(cells=[CellGroup(axis="x", coordinates=[3, 4])]))


def test_an_estimate_takes_the_slowest_cell_of_each_step():
    (plan,) = search(trace(lambda x: x * 2.0, (64, 8)), LINE, objectives=["time"], rewrite=False)
    even = estimate(plan, Machine(**RATES))
    assert estimate(plan, SLOW).compute == pytest.approx(4 * even.compute)
    fast = Machine(**RATES, cells=[CellGroup(axis="x", coordinates=range(4), speed=3)])
    assert estimate(plan, fast).compute == pytest.approx(even.compute / 3)
    assert estimate(plan, SLOW).received == even.received


@pytest.mark.parametrize("seed", range(trials(60, 300)))
def test_estimates_are_those_of_all_cells_one_by_one(seed):
    """The roofline of each cell by itself, on random programs, cuts and speeds."""
    rng = Random(seed)
    mesh = DeviceMesh("m", *rng.choice([((4,), ["x"]), ((2, 2), ["x", "y"]), ((2, 3), ["x", "y"])]))
    cells = [
        CellGroup(devices=[n], speed=rng.choice([0.25, 0.5, 1, 2]))
        for n in range(mesh.size)
        if rng.random() < 0.6
    ]
    machine = Machine(flops={"float32": 1e9}, memory_bandwidth=4e9, cells=cells)
    problem = build_problem(program(seed, 3), mesh, machine)
    plan = problem.plan([rng.randrange(len(d.options)) for d in problem.decisions])
    items = [item for item in estimate(plan, machine).items if not item.moved]
    speeds = machine.speeds(mesh) or (1,) * mesh.size
    assert len(items) == len(plan.placed)
    for item, number in zip(items, range(len(plan.placed))):
        application, placed = plan.graph.applications[number], plan.placed[number]
        operator = plan.graph.operators.find(application.operator)
        made = [
            spec.regions(plan.graph.values[n].shape)
            for n, spec in zip(application.results, placed.results)
        ]
        longest = 0.0
        for cell, (box, speed) in enumerate(zip(placed.boxes, speeds)):
            flops = operator.count_flops(placed.signature, box, application.attributes)
            touched = 4 * sum(each[cell].size for each in (*placed.needs, *made))
            longest = max(longest, flops / 1e9 / speed, touched / 4e9 / speed)
        assert item.seconds == pytest.approx(longest), f"{application.operator} of seed {seed}"


@pytest.mark.parametrize("seed", range(trials(100)))
def test_a_split_ends_as_early_as_any_other(seed):
    rng = Random(seed)
    size, count = rng.randrange(1, 9), rng.randrange(2, 4)
    speeds = [rng.choice([0.25, 0.5, 1.0, 3.0]) for _ in range(count)]
    found = split(size, speeds, [size] * count)
    assert sum(found) == size
    every = (each for each in product(range(size + 1), repeat=count) if sum(each) == size)
    best = min(max(n / speed for n, speed in zip(each, speeds)) for each in every)
    assert max(n / speed for n, speed in zip(found, speeds)) == pytest.approx(best)


def test_points_stay_within_the_shares_of_memory():
    machine = Machine(capacity=3e9, cells=[CellGroup(devices=[3], speed=5, capacity=1e9)])
    fast, full, *_ = balanced_points(LINE, machine, ["x"], 100)
    assert fast == (12, 24, 36)  # and 64 for the cell that is five times as fast
    assert full == (30, 60, 90)  # as the capacities


def test_a_machine_with_a_slow_cell_gets_a_plan_near_the_ideal_split():
    """One of four cells is four times slower: the ideal is all work over all speeds together."""
    front = search(GRAPH, LINE, SLOW, objectives=["time"], rewrite=False)
    plan = front.best("time")
    work = sum(
        plan.graph.operators.find(app.operator).count_flops(line, line.space, app.attributes)
        for app, line in zip(plan.graph.applications, plan.graph.signatures)
    )
    ideal = work / 1e9 / 3.25
    cost = estimate(plan, SLOW)
    assert 0.999 * ideal <= cost.seconds <= 1.03 * ideal
    assert cost.seconds < 0.35 * estimate(search(GRAPH, LINE, Machine(**RATES))[0], SLOW).seconds
    plan.verify()
    given = {
        n: np.random.default_rng(0).integers(-2, 3, s).astype("float32")
        for n, s in (("x", (520, 64)), ("v", (64, 64)), ("w", (64, 16)))
    }
    assert np.array_equal(run(plan, given)[0].numpy(), np.asarray(layers_in_numpy(**given)))
    assert Plan.from_json(plan.to_json()) == plan


def layers_in_numpy(x, v, w):
    return np.maximum(x @ v, 0) @ w


def test_each_cell_is_held_to_its_own_capacity():
    graph = trace(lambda x: x * 2.0, (1000,))
    small = CellGroup(devices=[1], capacity=1000)
    machine = Machine(**RATES, capacity=8000, cells=[small])
    for engine in ("exact", "evolve", "descend"):
        front = search(graph, LINE, machine, engine=engine, rewrite=False)
        for plan, cost in zip(front, front.costs):
            assert cost.fits
            assert plan.peak[1] <= 1000
            assert max(plan.peak) > 1000
    none = Machine(capacity=2200, cells=[small])
    with pytest.raises(WeftError, match=r"fits: cell \d holds \d+ B while .* more than its"):
        search(graph, LINE, none, rewrite=False)


@pytest.mark.parametrize("seed", range(trials(30, 100)))
def test_exact_fronts_on_unequal_cells_are_those_of_all_assignments(seed):
    rng = Random(seed)
    mesh = DeviceMesh("m", (2,), ("x",))
    graph = program(seed, 1)
    group = CellGroup(
        devices=[rng.randrange(2)],
        speed=rng.choice([0.25, 0.5, 2]),
        capacity=rng.choice([None, 300, 600, 1200]),
    )
    machine = Machine(**RATES, capacity=rng.choice([600, 2000, 1e9]), cells=[group])
    problem = build_problem(graph, mesh, machine)
    count = np.prod([len(d.options) for d in problem.decisions], dtype=float)
    if count > 4_000:
        return

    def point(one):
        cost = problem.cost(one)
        return problem.seconds(cost), problem.peak(one), cost.received

    every = product(*(range(len(d.options)) for d in problem.decisions))
    wanted = pareto_front((point(one), one) for one in every if not problem.excess(one))
    start = [point(problem.start)] if not problem.excess(problem.start) else []
    found = exact_front(choices_of(problem), Goal(True, True, True), start)
    chosen = [assignment_of(problem, one.steps, one.specs) for one in found]
    assert not any(map(problem.excess, chosen))
    points = pareto_front((p, None) for p in (*start, *map(point, chosen)))
    fitting = [p for p, _ in points]
    assert np.allclose(sorted(fitting), sorted(p for p, _ in wanted), rtol=1e-9, atol=0)


def test_an_objective_may_be_a_function():
    def energy(cost):
        return cost.seconds * 100 + cost.received * 1e-6

    front = search(GRAPH, LINE, SLOW, objectives=["peak_memory", energy], rewrite=False)
    assert front.names == ("peak_memory", "energy")
    assert not front.is_exact
    assert (
        "energy was evaluated only for plans found by time, peak_memory and bytes" in front.reasons
    )
    best = estimate(front.best(energy), SLOW)
    assert energy(best) == min(point[1] for point in front.points)
    assert front.best("energy") == front.best(energy)
    assert "energy" in str(front)
    with pytest.raises(WeftError, match=r"the objective <lambda> is 'no', not a number"):
        search(GRAPH, LINE, objectives=[lambda cost: "no"], rewrite=False)


def rows_of_growing_work(line, box, attributes):
    """Row i of a triangle takes i + 1 operations for each column."""
    (low, *_), (high, *_) = box.start, box.stop
    return (high * (high + 1) - low * (low + 1)) // 2 * box.shape[1]


def test_uneven_work_is_cut_where_blocks_have_the_same_to_do():
    triangle = Operator(
        "triangle", "i j -> i j", lambda block, x: x * 2, count=rows_of_growing_work
    )
    library = Library({**OPERATORS, "triangle": triangle})
    values = [Value("x", (400, 8))]
    graph = Graph(values, [Application("triangle", ("x",), ("y",))], ["y"], operators=library)
    work = rows_of_growing_work(None, graph.signatures[0].space, {})
    for machine, together in ((Machine(**RATES), 4.0), (SLOW, 3.25)):
        plan = search(graph, LINE, machine, objectives=["time"]).best("time")
        cut = plan.placed[0].cuts
        assert estimate(plan, machine).compute <= 1.02 * work / 1e9 / together, cut
        plan.verify()
        x = np.arange(3200, dtype="float32").reshape(400, 8)
        assert np.array_equal(run(plan, {"x": x})[0].numpy(), x * 2)


@pytest.mark.parametrize("seed", range(trials(60)))
def test_no_other_cut_of_uneven_work_ends_earlier(seed):
    rng = Random(seed)
    size = rng.randrange(2, 9)
    costs = [rng.randrange(0, 5) for _ in range(size)]
    speeds = [rng.choice([0.5, 1.0, 2.0]) for _ in range(3)]
    mesh = DeviceMesh("m", (3,), ("x",))
    machine = Machine(cells=[CellGroup(devices=[n], speed=s) for n, s in enumerate(speeds)])

    def longest(points):
        edges = [0, *points, size]
        return max(sum(costs[a:b]) / s for a, b, s in zip(edges, edges[1:], speeds))

    found = balanced_work(mesh, machine, ["x"], size, lambda a, b: sum(costs[a:b]))
    regular = ShardingSpec(mesh, ['{"x"}']).blocks((size,)).edges_of(0)[1:-1]
    best = min(longest(pair) for pair in product(range(size + 1), repeat=2) if pair[0] <= pair[1])
    assert longest(found or regular) == pytest.approx(best, abs=1e-6)
