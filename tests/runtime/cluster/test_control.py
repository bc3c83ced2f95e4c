"""Loops and branches as tasks: verified, run as often as the run decides, counted."""

from dataclasses import replace

import numpy as np
import pytest
from tests.program.random_plans import Planner, RandomGraph, random_mesh
from tests.trials import trials

from weft import Plan, WeftError, communication, propagate, run
from weft.lang import Application, Graph, Value
from weft.program import VerificationError
from weft.runtime import CommunicationError
from weft.runtime.cluster import Output, TaskGraph, Threads, recording, run_on
from weft.space import ZRange
from weft.store import create_shards

PROGRAMS = trials(150)


def random_plan(seed):
    """A random graph with loops or branches and a random plan of it; None for other seeds."""
    graph = RandomGraph(seed)
    if not graph.is_exact or not any(a.regions for a in graph.graph.applications):
        return None
    rng = np.random.default_rng(seed)
    return graph, Planner(rng, random_mesh(rng)).plan(graph.graph)


def random_plans(count):
    return filter(None, map(random_plan, range(count)))


def test_task_graphs_of_random_loops_and_branches_are_verified():
    for _, plan in random_plans(PROGRAMS):
        graph = TaskGraph.of(plan)
        graph.verify()
        assert sum(graph.received) <= sum(plan.received)


def test_random_loops_and_branches_equal_one_process_bit_by_bit():
    with Threads(3) as engine:
        for graph, plan in random_plans(PROGRAMS):
            with recording() as records, communication() as moved, np.errstate(all="ignore"):
                found = run(plan, graph.inputs, on=engine)
                wanted = run(plan, graph.inputs)
            for one, two in zip(found, wanted, strict=True):
                assert all(map(np.array_equal, one.shards, two.shards))
            assert records[0].is_exact
            assert moved.sent == moved.received


def changed(graph, number, **changes):
    """A task graph with one changed task."""
    tasks = list(graph.tasks)
    tasks[number] = replace(tasks[number], **changes)
    return replace(graph, tasks=tuple(tasks))


def loop_graph(steps=None, rows=8, columns=4):
    """`while sum(x) > 1: x = x @ w` or `for _ in range(steps)`, and how often it ran."""
    x, w = (rows, columns), (columns, columns)
    carried = [Value("ci", (), "int32"), Value("cx", x, "float64")]
    inside = [Value("bi", (), "int32"), Value("bx", x, "float64"), Value("w", w, "float64")]

    def constant(name, value, dtype):
        attributes = {"value": value, "dtype": dtype, "result_shape": ()}
        return Application("constant", (), (name,), attributes)

    less = {"comparison_direction": "LT"}
    if steps is None:
        condition = [
            Application("sum_dim", ("cx",), ("total",), {"dimensions": (0, 1)}),
            constant("one", 1.0, "float64"),
            Application("compare", ("one", "total"), ("go",), less),
        ]
    else:
        condition = [
            constant("most", steps, "int32"),
            Application("compare", ("ci", "most"), ("go",), less),
        ]
    body = [
        constant("step", 1, "int32"),
        Application("add", ("bi", "step"), ("ni",)),
        Application("matmul", ("bx", "w"), ("nx",)),
    ]
    regions = Graph(carried, condition, ["go"]), Graph(inside, body, ["ni", "nx"])
    while_ = Application("while", ("zero", "x", "w"), ("count", "y"), {}, regions)
    return Graph(
        [Value("x", x, "float64"), Value("w", w, "float64")],
        [constant("zero", 0, "int32"), while_],
        ["count", "y"],
        meshes=['@m = <["x"=2]>'],
        shardings={"x": '<@m, [{}, {"x"}]>'},
    )


X, W = np.ones((8, 4)), np.full((4, 4), 0.125)


def expected(steps=None):
    x, count = X, 0
    while x.sum() > 1 if steps is None else count < steps:
        x, count = x @ W, count + 1
    return count, x


@pytest.mark.parametrize("steps", [None, 0, 1, 5])
def test_a_loop_runs_as_often_as_its_condition_says_and_moves_the_predicted_bytes(steps):
    plan = Plan.of(propagate(loop_graph(steps)))
    with recording() as records, communication() as moved:
        count, y = run(plan, {"x": X, "w": W}, on="threads")
    trips, wanted = expected(steps)
    assert int(count.numpy()) == trips
    assert np.array_equal(y.numpy(), wanted)
    graph = TaskGraph.of(plan)
    (loop,) = graph.controls.values()
    tests, body = (sum(graph.bodies[n].received) for n in (loop.condition, loop.body))
    assert moved.received == graph.moved_bytes + (trips + 1) * tests + trips * body
    assert records[0].is_exact
    if steps is not None:
        assert loop.trip_count == steps
        assert sum(graph.received) == moved.received == sum(plan.received)


def test_a_budget_ends_a_loop_before_it_moves_more():
    plan = Plan.of(propagate(loop_graph()))
    graph = TaskGraph.of(plan)
    (loop,) = graph.controls.values()
    once = sum(sum(graph.bodies[n].received) for n in (loop.condition, loop.body))
    assert once > 0
    with (
        communication(budget=graph.moved_bytes + 2 * once),
        pytest.raises(CommunicationError, match="the cluster would move"),
    ):
        run(plan, {"x": X, "w": W}, on="threads")


def test_tasks_that_give_a_loop_something_else_are_refused():
    graph = TaskGraph.of(Plan.of(propagate(loop_graph(3))))
    graph.verify()
    first, second = (task for task in graph.tasks if task.kind == "loop")
    step = first.steps[0]
    swapped = step._replace(operands=(*step.operands[:1], *reversed(step.operands[1:])))
    other = step._replace(arrays=second.steps[0].arrays)
    fewer = step._replace(operands=step.operands[:-1])
    for bad in (swapped, other, fewer):
        with pytest.raises(VerificationError):
            changed(graph, first.number, steps=(bad,)).verify()
    with pytest.raises(VerificationError):
        replace(graph, bodies={}).verify()
    (loop,) = graph.controls.values()
    body = graph.bodies[loop.body]
    task = next(task for task in body.tasks if task.kind == "compute" and "matmul" in task.operator)
    wrong = task.steps[-1]._replace(operands=tuple(reversed(task.steps[-1].operands)))
    bodies = {
        **graph.bodies,
        loop.body: changed(body, task.number, steps=(*task.steps[:-1], wrong)),
    }
    with pytest.raises(VerificationError):
        replace(graph, bodies=bodies).verify()


def test_loops_from_storage_to_storage_in_little_memory(tmp_path):
    x = np.random.default_rng(0).integers(0, 3, (64, 64)).astype("float64")
    w = np.eye(64)[::-1].copy()
    stored = create_shards(tmp_path / "x.zarr", x.shape, "float64", (16, 64), codecs="none")
    stored.write(ZRange.of(x.shape), x)
    plan = Plan.of(propagate(loop_graph(3, 64, 64)))
    peaks = [max(TaskGraph.of(plan, memory=n, workers=2).peak(2)) for n in (None, 300_000)]
    assert peaks[1] <= 300_000
    for memory in (None, 2_700_000):
        outputs = {"y": Output(tmp_path / f"{memory}.zarr", (16, 64), (16, 64))}
        given = {"x": str(tmp_path / "x.zarr"), "w": w}
        with Threads(2) as engine:
            count, y = run_on(engine, plan, given, outputs, memory=memory)
        assert int(count.numpy()) == 3
        assert np.array_equal(y.read(), x @ w)
    with Threads(2) as engine, pytest.raises(WeftError, match="fit"):
        run_on(engine, plan, {"x": x, "w": w}, {}, memory=60_000)
