"""The data of a page: every transferred byte is on one edge or one node, and boxes are exact."""

import json

import jax
import pytest
from tests.interop.test_run import CASES, arrays, sharded
from tests.plan.region_programs import Writer
from tests.report.programs import LOOP, MESH, blocks, planned
from tests.runtime.cluster.metrics import recorded
from tests.trials import trials

from weft import DeviceMesh, Machine, Plan, ShardingSpec, WeftError, ops, propagate, search, trace
from weft.interop.stablehlo import read
from weft.plan.machines import H200_NODE
from weft.report import Subject, report_data
from weft.report.data import MOST_PLANS, front_of, run_data
from weft.report.plan_data import Detail, plan_data

ALL = Detail()
PROGRAMS = trials(75)


def data_of(plan, detail=ALL):
    data = plan_data(front_of([plan]).costs[0], detail)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return data


def moves_drawn(data):
    found = [move for edge in data["edges"] for move in (edge[3] if len(edge) > 3 else [])]
    return found + [move for node in data["nodes"] for move in node.get("settles", [])]


def check_moves(plan):
    """Each move is drawn once, and together they are what the plan receives."""
    data = data_of(plan)
    assert sorted(moves_drawn(data)) == list(range(len(data["moves"])))
    assert sum(move["bytes"] for move in data["moves"]) == sum(plan.received)
    assert data["figures"]["bytes"] == sum(plan.received)
    for move in data["moves"]:
        steps = data["routes"][move["route"]]["steps"]
        assert move["bytes"] == move["times"] * sum(sum(step["received"]) for step in steps)
        for step in steps:
            by_device = dict.fromkeys(step["devices"], 0)
            for sender, receiver, size, _ in step.get("pairs", ()):
                assert sender != receiver
                by_device[receiver] += size
            assert list(by_device.values()) == step["received"] or "pairs" not in step
    return data


def check_layouts(plan, data):
    """The box that the page finds from digits is the box of the sharding."""
    for value in data["values"]:
        layout = data["layouts"][value["layout"]]
        spec = ShardingSpec.parse(layout["text"], plan.mesh)
        for cell in plan.mesh.cells():
            assert box(layout, cell) == spec.region(value["shape"], cell)


def box(layout, cell):
    """As space.js has it."""
    from weft import ZRange

    start, stop = [], []
    for size, digits in zip(layout["shape"], layout["digits"]):
        count, number = 1, 0
        for dim, divisor, radix, stride in digits:
            count *= radix
            number += cell[dim] // divisor % radix * stride
        extent = -(-size // count)
        start.append(min(extent * number, size))
        stop.append(min(extent * (number + 1), size))
    return ZRange(start, stop)


def check_drawing(data):
    """Edges go forward, from a node that makes the value to one that is there."""
    made = {}
    for number, node in enumerate(data["nodes"]):
        if node["kind"] != "output":
            made |= dict.fromkeys(node["values"], number)
        assert -1 <= node["group"] < len(data["groups"])
    for start, end, value, *_ in data["edges"]:
        assert start < end
        assert made[value] == start


@pytest.mark.parametrize("count", [1, 6])
def test_blocks(count):
    plan = planned(count)
    data = check_moves(plan)
    check_layouts(plan, data)
    check_drawing(data)
    assert data["figures"]["operators"] == 10 * count
    assert len(data["groups"]) == (6 if count == 6 else 0)


def test_a_loop_is_a_group_of_groups():
    plan = Plan.of(propagate(read(LOOP)))
    data = check_moves(plan)
    check_drawing(data)
    assert [group["title"] for group in data["groups"]] == ["while 0#0", "condition", "body"]
    assert [group["parent"] for group in data["groups"]] == [-1, 0, 0]
    assert data["assumed"] == list(plan.assumed)


@pytest.mark.parametrize("axes", [['{"x"}'], ["{}", '{"y", "x"}']], ids=["rows", "columns"])
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_programs_of_jax(function, axes):
    given = arrays(function, CASES[function])
    graph = sharded(read(jax.jit(function).lower(*given).as_text()), *axes)
    plan = Plan.of(propagate(graph))
    data = check_moves(plan)
    check_layouts(plan, data)
    check_drawing(data)


def test_random_programs_with_loops_and_choices():
    tried = 0
    for seed in range(PROGRAMS):
        text = Writer(seed).text(3 + seed % 14)
        try:
            plan = Plan.of(propagate(read(text)))
        except WeftError:
            continue  # what no plan can be made of
        data = check_moves(plan)
        check_layouts(plan, data)
        check_drawing(data)
        tried += 1
    assert tried > 0.9 * PROGRAMS


def test_explain_lists_the_steps_to_a_sharding():
    data = data_of(planned(1))
    values = {value["name"]: value for value in data["values"]}
    assert data["reasons"] == "propagation"
    assert values["l0.wq"]["why"] == [
        {"dim": 1, "axis": "tp", "kind": "written", "text": '<@m, [{}, {"tp"}, {}]>'}
    ]
    (why,) = values["l0.wo"]["why"]
    assert (why["kind"], why["value"], why["from"]) == ("through", "attention", 1)
    assert "why" not in data_of(planned(1), Detail(has_reasons=False))["values"][0]


def test_a_searched_plan_has_reasons_by_placements():
    graph = trace(lambda x, w: ops.relu(x @ w), (64, 64), (64, 64))
    front = search(graph, DeviceMesh.parse(MESH), H200_NODE)
    data = plan_data(front.costs[0])
    assert data["reasons"] == "placements"
    kinds = {why["kind"] for value in data["values"] for why in value.get("why", [])}
    assert kinds <= {"made", "used", "chosen"}
    assert kinds & {"made", "used"}


def test_a_large_mesh_lists_received_bytes_without_senders():
    mesh = DeviceMesh("m", (128,), ("x",))
    rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    plan = Plan.of(propagate(trace(lambda x: x * 2, (256, 256), shardings={"x": rows})))
    columns = ShardingSpec.parse('<@m, [{}, {"x"}]>', mesh)
    data = data_of(Plan(plan.graph, mesh, plan.specs, (columns,), plan.placed))
    steps = [step for route in data["routes"] for step in route["steps"]]
    assert steps
    assert all("pairs" not in step and len(step["received"]) == 128 for step in steps)


def test_a_run():
    record = recorded(Machine(flops={"float32": 1e9}))
    data = run_data(record)
    assert data["bytes"]["predicted"] == data["bytes"]["measured"] == record.total.received
    assert data["seconds"]["measured"] == record.seconds
    assert sum(row["tasks"] for row in data["by_worker"]) == len(record.tasks)


def test_a_report_without_subject_and_too_many_plans_are_refused():
    with pytest.raises(WeftError, match="a report needs a subject"):
        report_data(Subject())
    plan = planned(1)
    with pytest.raises(WeftError, match=f"65 plans do not fit one page; at most {MOST_PLANS}"):
        front_of([plan] * 65)


def test_the_same_graph_without_a_sharding_lies_whole():
    data = data_of(Plan.of(propagate(blocks(1, sharded=False))))
    assert data["moves"] == []
    assert data["machine"] is None
