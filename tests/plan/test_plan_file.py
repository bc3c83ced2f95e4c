"""Plans as JSON: what is written is read again; what is tampered with is refused, or still true."""

import json
import random

import numpy as np
import pytest
from tests.runtime.tensors import random_spec
from tests.runtime.test_eager import agree
from tests.runtime.test_programs import planned

from weft import (
    DeviceMesh,
    Graph,
    Machine,
    Plan,
    ShardingSpec,
    WeftError,
    ops,
    propagate,
    run,
    trace,
)
from weft.lang import OPERATORS, Application, Library, Operator, Value
from weft.lang.fusion import fuse
from weft.plan.machines import CLUSTER, H200_NODE
from weft.plan.placed import place

SEEDS = 40


def mlp(machine=None):
    graph = trace(
        lambda x, w, b, v: ops.relu(ops.linear(x, w, b)) @ v,
        *((8, 16), (16, 32), (32,), (32, 4)),
        names=["x", "w", "b", "v"],
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings={"x": '<@m, [{"dp"}, {}]>', "w": '<@m, [{}, {"tp"}]>'},
    )
    return Plan.of(propagate(graph), machine)


def same(plan, again):
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.graph == plan.graph
    assert again.specs == plan.specs
    assert [p.placement for p in again.placed] == [p.placement for p in plan.placed]
    assert (again.received, again.peak) == (plan.received, plan.peak)
    assert str(again) == str(plan)
    assert again.verify() == plan.verify()


def test_random_plans_are_equal_after_writing_and_reading():
    for seed in range(SEEDS):
        _, graph, _ = planned(seed)
        plan = Plan.of(propagate(graph), H200_NODE if seed % 3 == 0 else None)
        same(plan, Plan.from_json(plan.to_json(indent=None)))


def test_a_machine_without_limits_is_written_in_plain_json():
    plan = mlp(Machine({"tp": (0, float("inf"), True)}, name="fast"))
    text = plan.to_json()
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert strict["machine"]["links"]["tp"]["bandwidth"] == "inf"
    assert Plan.from_json(text).machine == plan.machine


def test_plans_that_differ_are_not_equal():
    plan = mlp()
    assert plan != mlp(H200_NODE)
    data = json.loads(plan.to_json())
    data["placements"][1]["cuts"] = {}
    assert Plan.from_json(json.dumps(data)) != plan


def test_operands_that_stay_partial_survive():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    graph = trace(lambda a, b: a + b, (8,), (8,), names=["a", "b"], meshes=[mesh])
    parts = ShardingSpec(mesh, Plan.of(propagate(graph)).specs["a"].dim_specs, (), {"x": "sum"})
    placed = place(mesh, graph.signatures[0], {"i0": ["y"]}, {"x": ("sum", (0, 1))})
    specs = {"a": parts, "b": parts, "add": placed.results[0]}
    plan = Plan(graph, mesh, specs, (ShardingSpec(mesh, parts.dim_specs),), (placed,))
    again = Plan.from_json(plan.to_json())
    assert again.placed == plan.placed
    assert again.placed[0].partials == ({"x": "sum"}, {"x": "sum"})
    assert again.verify() == plan.verify()


def test_parts_of_an_axis_and_fused_operators_survive():
    mesh = DeviceMesh("m", (8,), ("x",))
    graph = trace(
        lambda x, w: ops.relu(x * 2) @ w,
        *((8, 16), (16, 4)),
        meshes=[mesh],
        shardings={"x": '<@m, [{"x":(1)2}, {"x":(2)4}]>'},
    )
    fused = fuse(graph, graph.applications[-2].operands[0])
    plan = Plan.of(propagate(fused))
    assert '"\\"x\\":(2)4"' in plan.to_json()
    same(plan, Plan.from_json(plan.to_json()))


def test_a_plan_with_operators_of_a_user_is_read_with_their_library():
    own = Library(OPERATORS)
    own.add(Operator("halve", "n -> n", lambda block, x: x / 2))
    graph = Graph(
        [Value("x", (8,))],
        [Application("halve", ("x",), ("y",))],
        ["y"],
        ['@m = <["x"=2]>'],
        {"x": '<@m, [{"x"}]>'},
        operators=own,
    )
    plan = Plan.of(propagate(graph))
    same(plan, Plan.from_json(plan.to_json(), own))
    with pytest.raises(WeftError, match="there is no operator halve"):
        Plan.from_json(plan.to_json())


@pytest.mark.slow
def test_changed_plan_files_are_refused_or_compute_the_same():
    """Other shardings, cuts and parts: what passes reading and proof computes the same."""
    seen = set()
    for seed in range(SEEDS):
        program, graph, inputs = planned(seed)
        text = Plan.of(propagate(graph)).to_json()
        for trial in range(10):
            data = tampered(json.loads(text), graph, random.Random(seed * 10 + trial))
            try:
                plan = Plan.from_json(json.dumps(data))
                plan.verify()
            except ValueError as error:
                seen.add(type(error).__name__)
                continue
            if any(plan.specs[value.name].partial for value in graph.inputs):
                continue  # inputs that come in parts: nobody has them
            seen.add("true")
            for place_, output in zip(program.outputs, run(plan, inputs)):
                assert agree(output, program.values[place_]), f"seed {seed}, {data['placements']}"
    assert seen >= {"WeftError", "LayoutError", "true"}


def tampered(data, graph, rng):
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    mesh = DeviceMesh.parse(data["mesh"])
    number = rng.randrange(len(graph.applications))
    placement, application = data["placements"][number], graph.applications[number]
    match rng.choice(["spec", "cuts", "kept"]):
        case "spec":
            name = rng.choice(list(data["specs"]))
            shape = graph.values[name].shape
            monoids = ("sum", "max") if rng.random() < 0.5 else ()
            data["specs"][name] = str(random_spec(numbers, mesh, shape, monoids=monoids))
        case "cuts":
            placement["cuts"] = {}
            for axis in mesh.axis_names:
                dim = rng.choice([*graph.signatures[number].sizes, "no such"])
                placement["cuts"].setdefault(dim, []).append(axis)
        case "kept":
            count = len(application.operands)
            operands = sorted(rng.sample(range(count), rng.randint(0, count)))
            kept = {"axis": mesh.axis_names[0], "monoid": rng.choice(["sum", "max"])}
            placement["kept"] = [{**kept, "operands": operands}]
    return data


def change(path, value):
    """A change to the data of a plan: at a path, or nothing there any more."""

    def changed(data):
        *way, last = path
        for key in way:
            data = data[key]
        if value is None:
            del data[last]
        else:
            data[last] = value

    return changed


KEPT = {"axis": "dp", "monoid": "sum", "operands": [0]}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["weft_plan"], 2, "weft_plan: expected the version 1, got 2"),
        (["secret"], 1, "secret: unknown field"),
        (["graph"], [], r"graph: expected an object, got \[\]"),
        (["graph", "weft"], 9, "graph.weft: expected the version 1, got 9"),
        (["graph", "inputs", 0, "shape", 1], -1, r"graph.inputs\[0\].shape\[1\]: expected a size"),
        (
            ["graph", "applications", 0, "operator"],
            3,
            r"\[0\].operator: expected a string",
        ),
        (["mesh"], None, "mesh: expected a string, got None"),
        (["mesh"], "@m", "mesh: column 3: expected '=', found the end"),
        (["mesh"], '@m = <["dp"=2, "tp"=10000000]>', "mesh: expected a mesh of at most 1000000"),
        (["mesh"], '@m = <["dp"=2]>', 'specs.w: axis "tp" cuts dimension 1, but is not an axis'),
        (["specs"], None, "specs.x: expected a string, got None"),
        (["specs"], 3, "specs: expected an object of at most 1000000 entries, got 3"),
        (["specs", "x"], None, "specs.x: expected a string, got None"),
        (["specs", "q"], "<@m, []>", "specs.q: there is no such value in the graph"),
        (["specs", "x"], "<@q, []>", "specs.x: mesh @q is not known"),
        (["specs", "x"], "<@m, [{}]>", "specs.x: expected a sharding of rank 2, got '<@m,"),
        (
            ["outputs"],
            [],
            r"outputs: expected a list of 1 shardings, one for each output",
        ),
        (["outputs", 0], "<@m, [{}]>", r"outputs\[0\]: expected a sharding of rank 2"),
        (["outputs", 0], {}, r"outputs\[0\]: expected a string, got {}"),
        (["placements"], [], r"placements: expected a list of 3, one for each application"),
        (["placements", 0], 3, r"placements\[0\]: expected an object, got 3"),
        (["placements", 0, "cuts", "m"], "dp", r"placements\[0\].cuts.m: expected a list of at"),
        (["placements", 0, "cuts", "m"], [3], r"placements\[0\].cuts.m\[0\]: expected a string"),
        (["placements", 0, "cuts", "m"], ["q"], r'placements\[0\]: axis "q" cuts dimension 0, but'),
        (["placements", 0, "cuts", "m"], ["tp"], r'placements\[0\]: axis "tp" '),
        (["placements", 0, "cuts", "q"], ["dp"], r"\.cuts\.q: there is no such index dimension in"),
        (["placements", 1, "kept"], [KEPT], r"operands: expected operands that relu keeps partial"),
        (["placements", 0, "kept"], [{**KEPT, "at": 1}], r"kept\[0\].at: unknown field"),
        (["placements", 2, "kept"], [KEPT], r'placements\[2\]: axis "dp" '),
        (["machine"], 3, "machine: expected an object, got 3"),
        (["machine"], {"weft_machine": 1, "latency": -1}, "machine.latency: expected seconds, 0"),
    ],
)
def test_invalid_fields_are_refused_with_their_path(path, value, message):
    data = json.loads(mlp().to_json())
    change(path, value)(data)
    with pytest.raises(WeftError, match=message):
        Plan.from_json(json.dumps(data))


def test_parts_by_two_monoids_are_refused():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    graph = trace(lambda a: ops.transpose(a, (1, 0)), (8, 8), names=["a"], meshes=[mesh])
    data = json.loads(Plan.of(propagate(graph)).to_json())
    parts = [("x", "sum"), ("y", "max")]
    data["placements"][0]["kept"] = [
        {"axis": axis, "monoid": monoid, "operands": [0]} for axis, monoid in parts
    ]
    with pytest.raises(WeftError, match=r"placements\[0\]: parts by max and sum at once"):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"weft_plan": ' + "1" * 5000 + "}"])
def test_invalid_json_is_refused(text):
    with pytest.raises(WeftError, match="invalid JSON"):
        Plan.from_json(text)


def test_json_that_is_not_an_object_is_refused():
    with pytest.raises(WeftError, match=r"the plan: expected an object, got \[\]"):
        Plan.from_json("[]")


def test_a_sharding_on_another_mesh_is_not_written():
    plan, other = mlp(), DeviceMesh("q", (8,), ("x",))
    specs = {**plan.specs, "b": ShardingSpec.parse("<@q, [{}]>", other)}
    with pytest.raises(WeftError, match=r"a plan on @m = .* has a sharding on @q = "):
        Plan(plan.graph, plan.mesh, specs, plan.outputs, plan.placed).to_json()


def test_a_machine_for_another_mesh_is_refused_where_it_counts():
    plan = Plan.from_json(mlp(CLUSTER).to_json())
    with pytest.raises(WeftError, match='the machine has a link along axis "node", but @m'):
        plan.verify()


def test_a_plan_of_more_boxes_than_are_read_is_refused():
    """The boxes of all cells are made when a plan is read; their number is no length of a text."""
    data = json.loads(mlp().to_json())
    data["mesh"] = '@m = <["dp"=1000, "tp"=1000]>'
    with pytest.raises(
        WeftError,
        match=r"placements\[\d\]: the applications of the plan up to here take \d+ boxes on "
        r"1000000 cells; at most 8000000 are read",
    ):
        Plan.from_json(json.dumps(data))


def test_applications_that_lie_alike_are_placed_once():
    graph = trace(lambda x: ops.tanh(ops.tanh(x)), (8, 4), meshes=['@m = <["x"=2]>'])
    plan = Plan.from_json(Plan.of(propagate(graph)).to_json())
    assert plan.placed[0] is plan.placed[1]


def test_a_mesh_of_more_cells_than_are_planned_is_refused():
    graph = trace(ops.tanh, (8, 4), meshes=['@m = <["x"=1000000000000]>'])
    with pytest.raises(WeftError, match="has 1000000000000 cells; at most 1000000 are planned"):
        Plan.of(propagate(graph))
