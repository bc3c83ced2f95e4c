"""Records of runs: what they add up, what they predict, how they are written and read."""

import json

import numpy as np
import pytest
from tests.runtime.cluster.metrics import MESH, made_up, planned, recorded, reported, task
from tests.runtime.test_programs import planned as program
from tests.trials import trials

from weft import Machine, Plan, WeftError, ZRange, propagate, run
from weft.runtime.cluster import Report, TaskGraph, Threads, recording
from weft.runtime.cluster.metrics.amount import Amount, amount_of, seconds_by
from weft.runtime.cluster.metrics.record import RunRecord

MACHINE = Machine(flops={"float32": 1e9}, latency=1e-6, bandwidth=1e9, memory_bandwidth=1e10)


def test_a_run_adds_up():
    record = recorded(MACHINE)
    plan = planned()
    assert len(record.tasks) == len(TaskGraph.of(plan).tasks)
    assert [one.number for one in record.tasks] == list(range(len(record.tasks)))
    assert record.is_exact
    assert record.total.received == record.total.sent == sum(plan.received) > 0
    assert record.busy == pytest.approx(sum(one.seconds for one in record.tasks))
    assert record.overhead == pytest.approx(2 * record.seconds - record.busy)
    assert list(record.by_worker) == ["weft-0_0", "weft-1_0"]
    for groups in (record.by_operator, record.by_worker):
        assert sum(one.tasks for one in groups.values()) == record.total.tasks
        assert sum(one.received for one in groups.values()) == record.total.received
        assert sum(one.cpu for one in groups.values()) == pytest.approx(record.total.cpu)
        assert max(one.peak for one in groups.values()) == record.total.peak
    assert record.total.predicted > 0
    assert record.predicted > 0
    assert (record.missing, record.again) == (0, ())


def test_a_run_on_threads_is_recorded():
    plan = planned(MACHINE)
    arrays = {one.name: np.ones(one.shape, one.dtype) for one in plan.graph.inputs}
    with recording() as runs, Threads(2) as engine:
        run(plan, arrays, on=engine)
    (record,) = runs
    assert (record.engine, record.workers, record.missing) == ("Threads", 2, 0)
    assert record.is_exact
    assert record.total.received == sum(plan.received)
    assert len(record.by_worker) == 2
    assert record.bound is None  # threads share a process
    for one in record.tasks:
        assert record.begin <= one.begin <= one.end
        assert one.seconds > 0
    assert record.busy > 0
    assert sum(one.flops for one in record.tasks) > 0
    assert all(one.predicted is not None for one in record.tasks)
    assert RunRecord.from_json(record.to_json()) == record


def test_programs_send_what_is_received_and_come_back_from_json():
    for seed in range(trials(60)):
        _, graph, _ = program(seed)
        plan = Plan.of(propagate(graph), MACHINE)
        graph = TaskGraph.of(plan)
        reports = [
            Report(one.number, 1e-3, graph.moved(one), f"host:{one.cell}", 1000.0 + one.number)
            for one in graph.tasks
        ]
        said = {"engine": "fuzz", "workers": 2, "begin": 1000.0, "seconds": 1.0}
        record = RunRecord.of(graph, reports, **said)
        assert record.is_exact
        assert record.total.sent == record.total.received == sum(plan.received), f"seed {seed}"
        assert RunRecord.from_json(record.to_json()) == record
        by_cell = dict.fromkeys(graph.ranks, 0)
        for one in record.tasks:
            for cell, size in one.received.items():
                by_cell[cell] += size
        for cell, size in by_cell.items():
            assert sum(one.sent for one in record.tasks if one.cell == cell) == size


def test_work_of_tasks_adds_up_to_that_of_the_plan():
    plan, record = planned(), recorded()
    applications = zip(plan.graph.applications, plan.placed, strict=True)
    assert sum(one.flops for one in record.tasks) == sum(
        plan.graph.operators.find(application.operator).count_flops(placed.signature, box)
        for application, placed in applications
        for box in placed.boxes
    )
    assert {one.dtype for one in record.tasks if one.flops} == {"float32"}
    assert all(one.touched > 0 for one in record.tasks if one.flops)
    assert {one.predicted for one in record.tasks} == {None}


def test_tasks_of_several_steps():
    class Fused:
        class step:  # noqa: N801
            application, body, box = 0, 0, ZRange((0, 0, 0), (8, 4, 4))

        steps = (step, step)

    plan = planned()
    assert plan.placed[0].boxes[0] == Fused.step.box
    once = Amount(2 * 8 * 4 * 4, "float32", 4 * (8 * 4 + 4 * 4 + 8 * 4))
    assert amount_of(plan.program, Fused) == once + once


def test_seconds_by_a_machine():
    amount = Amount(1_000_000, "float32", 1000)
    assert seconds_by(MACHINE, MESH, "matmul", amount, {}, 0) == 1e-3
    assert seconds_by(MACHINE, MESH, "matmul", amount, {1: 1000, 2: 1000}, 0) == pytest.approx(
        1e-3 + 1e-6 + 2e-6
    )
    assert seconds_by(MACHINE, MESH, "copy", Amount(0, "float32", 10**10), {}, 0) == 1.0
    assert seconds_by(MACHINE, MESH, "input", Amount(), {}, 0) == 0
    measured = Machine(flops={"float32": 1e9}, operations={"grid": {"matmul": [1.0, 2.0, 4.0]}})
    assert seconds_by(measured, MESH, "matmul", Amount(2, "float32", 0), {}, 0) == 2.0
    assert seconds_by(measured, MESH, "add", Amount(2, "float32", 0), {}, 0) == 2e-9


def test_a_task_that_ran_twice_is_counted_once_and_kept():
    graph = TaskGraph.of(planned())
    reports, begin, seconds = reported(graph)
    first = reports[0]
    later = first._replace(begin=first.begin + 1, worker="weft-1_0")
    said = {"engine": "threads", "workers": 2, "begin": begin, "seconds": seconds}
    for order in ([*reports, later], [later, *reports]):
        record = RunRecord.of(graph, order, **said)
        assert len(record.tasks) == len(graph.tasks)
        assert record.tasks[0].worker == "weft-1_0"
        assert [(one.number, one.worker) for one in record.again] == [(0, first.worker)]
        assert record.total.received == sum(planned().received)
        assert "1 attempt had to be repeated" in str(record)
    record = RunRecord.of(graph, reports[1:], **said)
    assert record.missing == 1
    assert str(record).endswith("1 task had run before or sent no report")


def test_bytes_that_were_not_predicted_are_seen():
    record = made_up(task(0, received={1: 30, 2: 12}, moved=40))
    assert not record.is_exact
    assert "received 42 B, 40 B predicted" in str(record)


def test_the_table():
    record = made_up(
        task(0, operator="input", kind="read", read=200_000, cpu=0.5, peak=5_000_000),
        task(1, received={1: 64}, moved=64, predicted=0.5, worker="host:2"),
        task(2, operator="matmul + relu", written=99, is_bound=True),
        bound=4_000_000,
        predicted=0.25,
    )
    assert str(record).splitlines() == [
        "3 tasks on ray, 2 workers: 10 s, busy 3 s, overhead 17 s",
        "operator       tasks  seconds     cpu  predicted  received    read  written  peak",
        "input              1      1 s  500 ms                       200 kB           5 MB",
        "matmul             1      1 s     1 s     500 ms      64 B",
        "matmul + relu      1      1 s     1 s                                  99 B",
        "all                3      3 s   2.5 s     500 ms      64 B  200 kB     99 B  5 MB",
        "worker",
        "host:1             2      2 s   1.5 s                       200 kB     99 B  5 MB",
        "host:2             1      1 s     1 s     500 ms      64 B",
        "received 64 B, as predicted",
        "predicted 250 ms with a processor for each cell",
        "peak 5 MB of a worker, predicted at most 4 MB",
        "some peaks are of the process since it started: upper bounds for the task",
    ]


def test_workers_are_in_the_order_of_their_numbers_and_many_are_counted():
    tasks = [task(n, worker=f"host-{n % 40}:7") for n in range(80)]
    record = made_up(*tasks, workers=40)
    assert list(record.by_worker)[:3] == ["host-0:7", "host-1:7", "host-2:7"]
    assert "… 8 more workers" in str(record)


def test_an_empty_run():
    record = made_up(missing=3)
    assert str(record).startswith("0 tasks on ray, 2 workers: 10 s, busy 0 s, overhead 20 s")
    assert RunRecord.from_json(record.to_json()) == record


def test_json_gives_an_equal_record():
    whole = task(
        1,
        received={0: 5, 3: 7},
        sent=9,
        read=1,
        written=2,
        peak=3,
        is_bound=True,
        receiving=0.1,
        reading=0.2,
        writing=0.3,
        moved=12,
        predicted=0.5,
    )
    for record in (
        recorded(MACHINE, bound=1 << 30),
        recorded(),
        made_up(task(0), whole, again=(whole,), missing=2, bound=7, machine=Machine()),
        made_up(task(0, box=ZRange((), ())), task(4, box=ZRange((-3,), (0,)), cpu=0.0)),
    ):
        assert RunRecord.from_json(record.to_json()) == record
        assert RunRecord.from_json(record.to_json(indent=None)) == record


def slices(record):
    """The complete events of a trace."""
    return [one for one in json.loads(record.to_trace())["traceEvents"] if one["ph"] == "X"]


def test_a_trace_has_a_process_for_each_worker_and_an_event_for_each_task():
    record = made_up(
        task(0, operator="input", kind="read", read=512),
        task(1, received={1: 64}, moved=64, worker="host:2"),
        task(2, begin=1005.0, seconds=5.0, worker="host:2", sent=7, written=3),
        again=(task(2, worker="gone:9"),),
    )
    data = json.loads(record.to_trace())
    assert data["otherData"]["headline"] == record.headline
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["ph"] == "M"}
    assert names == {0: "host:1", 1: "host:2", 2: "gone:9"}
    found = {(e["args"]["number"], names[e["pid"]]): e for e in slices(record)}
    assert {key: (e["name"], e["ts"], e["dur"]) for key, e in found.items()} == {
        (0, "host:1"): ("input", 1000e6, 1e6),
        (1, "host:2"): ("matmul", 1001e6, 1e6),
        (2, "host:2"): ("matmul", 1005e6, 5e6),
        (2, "gone:9"): ("matmul", 1002e6, 1e6),
    }
    assert [e["args"]["repeated"] for e in found.values()].count(True) == 1
    assert found[1, "host:2"]["args"]["received"] == 64
    assert found[0, "host:1"]["args"]["box"] == "[0:8, 0:4]"


def test_time_spent_moving_data_lies_inside_the_event_of_its_task():
    (whole, *parts) = slices(made_up(task(0, receiving=0.1, reading=0.2, writing=0.3)))
    assert [one["name"] for one in parts] == ["receiving", "reading", "writing"]
    assert [one["ts"] - whole["ts"] for one in parts] == pytest.approx([0, 1e5, 7e5])
    assert [one["dur"] for one in parts] == pytest.approx([1e5, 2e5, 3e5])


def test_concurrent_tasks_of_a_worker_get_threads_of_their_own():
    tasks = [task(n, begin=1000.0 + n / 2, seconds=1.0) for n in range(8)]
    assert [one["tid"] for one in slices(made_up(*tasks))] == [0, 1] * 4
    assert len(slices(recorded())) >= len(recorded().tasks)
    assert slices(made_up()) == []


def test_a_notebook_shows_the_table():
    assert made_up(task(0, operator="<b>"))._repr_html_().count("&lt;b&gt;") == 1


def changed(path, value):
    data = json.loads(made_up(task(0, received={1: 4}), task(1), machine=Machine()).to_json())
    *way, last = path
    at = data
    for key in way:
        at = at[key]
    at[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "invalid JSON: Expecting property name enclosed in double quotes"),
        ("[]", "the run: expected an object, got []"),
        (changed(["weft_run"], 2), "weft_run: expected the version 1, got 2"),
        (changed(["colour"], 2), "colour: unknown field"),
        (changed(["engine"], 3), "engine: expected a string, got 3"),
        (changed(["workers"], 0), f"workers: expected an integer from 1 to {1 << 62}, got 0"),
        (changed(["workers"], True), f"workers: expected an integer from 1 to {1 << 62}, got True"),
        (changed(["mesh"], "@m"), "mesh: column 3: expected '=', found the end"),
        (changed(["mesh"], '@m = <["x"=2000000]>'), "mesh: expected a mesh of at most 1000000"),
        (changed(["seconds"], -1), "seconds: expected seconds, 0 or more, got -1"),
        (changed(["seconds"], None), "seconds: expected seconds, 0 or more, got None"),
        (changed(["begin"], "noon"), "begin: expected a number, got 'noon'"),
        (changed(["begin"], float("nan")), "begin: expected seconds, 0 or more, got nan"),
        (changed(["bound"], -1), f"bound: expected an integer from 0 to {1 << 62}, got -1"),
        (changed(["predicted"], -1), "predicted: expected seconds, 0 or more, got -1"),
        (changed(["missing"], 0.5), f"missing: expected an integer from 0 to {1 << 62}, got 0.5"),
        (changed(["machine", "latency"], -1), "machine.latency: expected seconds, 0 or more"),
        (changed(["machine", "name"], "a\tb"), "machine.name: expected printable text, got"),
        (changed(["tasks"], {}), "tasks: expected a list of at most 1000000, got {}"),
        (changed(["again"], 1), "again: expected a list of at most 1000000, got 1"),
        (changed(["tasks", 1, "number"], 0), "tasks[1].number: task 0 is listed after task 0"),
        (changed(["tasks", 1, "number"], -1), "tasks[1].number: expected an integer from 0 to 1"),
        (changed(["tasks", 0, "size"], 0), "tasks[0].size: unknown field"),
        (changed(["tasks", 0, "worker"], 7), "tasks[0].worker: expected a string, got 7"),
        (changed(["tasks", 0, "box"], None), "tasks[0].box: expected a list of [start, stop]"),
        (changed(["tasks", 0, "box"], [[2, 1]]), "tasks[0].box[0]: expected [start, stop] with"),
        (changed(["tasks", 0, "box"], [[0, True]]), "tasks[0].box[0]: expected [start, stop] with"),
        (changed(["tasks", 0, "box"], [4]), "tasks[0].box[0]: expected [start, stop] with"),
        (changed(["tasks", 0, "seconds"], None), "tasks[0].seconds: expected seconds, 0 or more"),
        (changed(["tasks", 0, "cpu"], -1), "tasks[0].cpu: expected seconds, 0 or more, got -1"),
        (changed(["tasks", 0, "flops"], 0.5), "tasks[0].flops: expected an integer from 0 to"),
        (changed(["tasks", 0, "dtype"], "float3"), "tasks[0].dtype: unknown dtype"),
        (changed(["tasks", 0, "is_bound"], 1), "tasks[0].is_bound: expected true or false, got 1"),
        (changed(["tasks", 0, "received"], [1]), "tasks[0].received: expected an object of at m"),
        (changed(["tasks", 0, "received", "x"], 1), "tasks[0].received.x: expected the number of"),
        (changed(["tasks", 0, "received", "01"], 1), "tasks[0].received.01: expected the number"),
        (changed(["tasks", 0, "received", "1"], -1), "tasks[0].received.1: expected an integer"),
        (changed(["tasks", 0, "predicted"], "x"), "tasks[0].predicted: expected a number, got 'x'"),
    ],
)
def test_refusals_name_the_path(text, message):
    with pytest.raises(WeftError) as caught:
        RunRecord.from_json(text)
    assert str(caught.value).startswith(message)
