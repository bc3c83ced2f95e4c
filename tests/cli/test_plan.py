"""`weft plan` and `weft diff`: tables and JSON that say what the library says; refusals."""

import json
import os
import sys

import pytest

from weft import Machine, Plan, estimate, propagate, trace
from weft.cli import main
from weft.lang.graph_json import to_json
from weft.plan.machines import H200_NODE, this_host
from weft.plan.plan_diff import diff_plans


def graph_of(sharding='[{"dp"}, {"tp"}]', function=lambda x, w: x @ w):
    return trace(
        function,
        *((8, 16), (16, 32)),
        names=["x", "w"],
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings={"x": f"<@m, {sharding}>"},
    )


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(to_json(graph_of()), encoding="utf-8")
    return path


def saved(tmp_path, name, *args, machine=None):
    path = tmp_path / name
    plan = Plan.of(propagate(graph_of(*args)), machine)
    path.write_text(plan.to_json(), encoding="utf-8")
    return path


def test_a_plan_is_printed_with_its_estimate(capsys, graph):
    assert main(["plan", str(graph)]) == 0
    plan = Plan.of(propagate(graph_of()))
    assert capsys.readouterr().out == f"{plan}\n\n{estimate(plan)}\n"


def test_a_plan_is_written_and_read_again(capsys, graph, tmp_path):
    path = tmp_path / "plan.json"
    assert main(["plan", str(graph), "--machine", "h200", "-o", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"\nwrote {path}\n")
    again = Plan.from_json(path.read_text(encoding="utf-8"))
    assert again == Plan.of(propagate(graph_of()), H200_NODE)
    again.verify()


def test_a_plan_as_json(capsys, graph, tmp_path):
    path = tmp_path / "machine.toml"
    Machine({"tp": (1e-6, 1e9)}, flops={"float32": 1e9}, name="mine").save(path)
    written = tmp_path / "plan.json"
    assert main(["plan", str(graph), "--machine", str(path), "--json", "-o", str(written)]) == 0
    seen = capsys.readouterr()
    data = json.loads(seen.out)
    assert seen.err == f"wrote {written}\n"
    cost = estimate(Plan.of(propagate(graph_of()), Machine.load(path)))
    assert data["machine"] == "mine"
    assert data["specs"]["w"] == '<@m, [{"tp"}, {}]>'
    assert data["applications"][0]["cuts"] == {"m": ["dp"], "k": ["tp"]}
    assert data["received"] == list(cost.plan.received)
    assert (data["seconds"], data["flops"], data["by_axis"]) == (
        *(cost.seconds, cost.flops),
        cost.by_axis,
    )
    assert [item["what"] for item in data["items"]] == [item.what for item in cost.items]


def test_a_plan_for_this_host(capsys, graph):
    assert main(["plan", str(graph), "--machine", "host", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == this_host().name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "weft plan: invalid JSON: Expecting property name"),
        ("\xff", "weft plan: invalid JSON: "),
        ('{"weft": 2}', "weft plan: weft: expected the version 1, got 2"),
        (
            '{"weft": 1, "meshes": ["@m = <[\\"x\\"=1000000000000]>"]}',
            "weft plan: meshes[0]: expected a mesh of at most 1000000 cells, got",
        ),
    ],
)
def test_graphs_that_are_refused(capsys, graph, text, message):
    graph.write_text(text, encoding="utf-8")
    refused(capsys, ["plan", str(graph)], message)


def refused(capsys, args, message):
    assert main(args) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith(message)
    assert not seen.out
    assert "Traceback" not in seen.err


def test_files_that_are_refused(capsys, graph, tmp_path):
    missing = tmp_path / "no" / "plan.json"
    refused(capsys, ["plan", "nope.json"], "weft plan: there is no file nope.json\nhint: ")
    refused(
        capsys,
        ["plan", str(graph), "-o", str(missing)],
        f"weft plan: cannot write {missing}: there is no folder {missing.parent}\n",
    )
    refused(
        capsys,
        ["plan", str(graph), "--machine", "fast"],
        "weft plan: there is no machine fast\n"
        "hint: give a TOML or JSON file, or one of h200, cluster",
    )
    refused(
        capsys,
        ["plan", str(graph), "--machine", "cluster"],
        'weft plan: the machine has a link along axis "node", but @m = ',
    )
    graph.write_bytes(b'{"weft": "\xff"}')
    refused(capsys, ["plan", str(graph)], f"weft plan: {graph} is not text: 'utf-8' codec can't")


def test_a_file_that_is_too_long(capsys, graph):
    os.truncate(graph, (1 << 26) + 1)
    message = f"weft plan: {graph} has more than {1 << 26} B"
    refused(capsys, ["plan", str(graph)], message)


COMMANDS = (["plan"], ["propagate"], ["search"], ["show"], ["ckks", "plan"], ["ckks", "run"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_name_alone_is_never_imported(capsys, tmp_path, monkeypatch, command):
    """Whatever lies in the current folder, no file of it is run for a word that names none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for place in ("typo.py", "examples/resnet.py", "examples/__init__.py"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("open('ran', 'w')\ntypo = resnet18 = None\n", encoding="utf-8")
    before = set(sys.modules)
    for word in ("typo", "resnet18", "examples.resnet", ":typo", "typo:", ":"):
        assert main([*command, word]) == 2
        assert capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not {name for name in set(sys.modules) - before if name.startswith(("typo", "examples"))}


# -- diff -----------------------------------------------------------------------------------------


def test_differences_between_plans(capsys, tmp_path):
    one, two = saved(tmp_path, "1.json"), saved(tmp_path, "2.json", '[{"dp"}, {}]')
    assert main(["diff", str(one), str(two)]) == 0
    rows = [line.split(maxsplit=2)[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["x", "sharding"],
        ["w", "sharding"],
        ["matmul", "matmul"],
        ["matmul", "moves"],
        ["received", "6144"],
        ["peak", str(4 * (4 * 4 + 4 * 32 + (4 + 1 + 4) * 32))],  # x, w, parts, their sum in blocks
        ["flops", str(2 * 4 * 4 * 32)],
        ["seconds", "7.68e-07"],
    ]


def test_plans_that_are_the_same(capsys, tmp_path):
    one = saved(tmp_path, "1.json")
    assert main(["diff", str(one), str(one), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["changes"] == []
    assert data["one"] == data["two"]
    assert data["one"]["received"] == 6144


def test_differences_as_json_on_a_machine(capsys, tmp_path):
    one = saved(tmp_path, "1.json")
    two = saved(tmp_path, "2.json", '[{"dp"}, {}]', machine=H200_NODE)
    assert main(["diff", str(one), str(two), "--machine", "chips", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = {(change["name"], change["what"]): change for change in data["changes"]}
    assert found["machine", ""]["two"] == "node of 8 H200"
    assert found["matmul", "matmul"]["one"] == 'm: {"dp"}, k: {"tp"}'
    assert found["matmul", "matmul"]["two"] == 'm: {"dp"}'
    assert data["two"]["received"] == 0
    assert data["two"]["seconds"] < data["one"]["seconds"]


def test_programs_that_differ():
    one = Plan.of(propagate(graph_of()))
    two = Plan.of(propagate(graph_of(function=lambda x, w: (x + 1) @ w)))
    found = {(change.name, change.what): change for change in diff_plans(one, two).changes}
    assert found["matmul", "application"].one == "matmul(x, w)"
    assert found["matmul", "application"].two == "matmul(add, w)"
    assert found["add", "value"].one == "-"
    assert found["add", "value"].two == "add: float32[8, 16]"
    assert found["add", "application"].one == "-"
    assert ("x", "value") not in found


def test_plans_that_are_refused(capsys, graph, tmp_path):
    one = saved(tmp_path, "1.json")
    refused(
        capsys,
        ["diff", str(one), str(graph)],
        f"weft diff: {graph} is a graph, not a plan\nhint: `weft plan graph.json -o plan.json` ",
    )
    refused(capsys, ["diff", str(one), "nope"], "weft diff: there is no file nope\nhint: ")
    refused(
        capsys,
        ["plan", str(one)],
        f"weft plan: {one} is a plan, not a graph\nhint: weft.lang.graph_json",
    )
