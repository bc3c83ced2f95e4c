"""`weft search`: a table, JSON, files; refusals."""

import json
from importlib import import_module

import pytest

from weft import DeviceMesh, Plan, ops, search, trace
from weft.cli import main
from weft.lang.graph_json import to_json
from weft.plan import SearchInterrupted
from weft.plan.machines import H200_NODE

MESH = '@m = <["dp"=2, "tp"=2]>'


def mlp():
    return trace(lambda x, w, v: ops.relu(x @ w) @ v, (64, 256), (256, 1024), (1024, 256))


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(to_json(mlp()), encoding="utf-8")
    return str(path)


def test_the_front_is_printed(capsys, graph):
    assert main(["search", graph, MESH, "--machine", "h200"]) == 0
    assert capsys.readouterr().out == f"{search(mlp(), DeviceMesh.parse(MESH), H200_NODE)}\n"


def test_plans_and_the_plot_are_written(capsys, graph, tmp_path):
    folder, plot = tmp_path / "plans", tmp_path / "front.svg"
    args = ["--machine", "h200", "-o", str(folder), "--plot", str(plot), "--json"]
    assert main(["search", graph, MESH, *args]) == 0
    seen = capsys.readouterr()
    data = json.loads(seen.out)
    files = sorted(folder.iterdir())
    assert len(files) == len(data["points"]) == len(data["items"])
    assert seen.err.endswith(f"wrote {plot}\n")
    for path in files:
        Plan.from_json(path.read_text(encoding="utf-8")).verify()
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    assert data["objectives"] == ["time", "peak_memory", "bytes"]
    assert (data["is_exact"], data["is_complete"], data["reasons"]) == (True, True, [])
    assert data["proved"] == ["placements", "rewrites", "fusions"]
    assert data["claim"] == "exact over placements, rewrites and fusions"


def test_an_unproved_claim_is_printed_with_the_reason(capsys, graph):
    args = ["search", graph, MESH, "--engine", "descend"]
    assert main(args) == 0
    reason = "descent looks at some plans, not at all"
    assert capsys.readouterr().out.endswith(f" found\nnot proved exact: {reason}\n")
    assert main([*args, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["is_exact"], data["claim"], data["reasons"]) == (False, "found", [reason])


def test_an_interrupt_without_a_plan_is_reported(capsys, graph, monkeypatch):
    def interrupted(*_, **__):
        raise SearchInterrupted

    monkeypatch.setattr(import_module("weft.cli.search"), "search", interrupted)
    assert main(["search", graph, MESH]) == 130
    said = capsys.readouterr().err
    assert said == "no plan was found before the interrupt\nweft search: interrupted\n"


def test_one_objective(capsys, graph):
    assert main(["search", graph, MESH, "--objectives", "time", "--engine", "descend"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["plan", "time", "cut"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--objectives", "speed"], "there is no objective 'speed'"),
        (["--engine", "magic"], "there is no engine 'magic'"),
        (["--budget", "0"], "a search with a budget of 0 plans tries nothing"),
        (["--machine", "nothing.toml"], "nothing.toml"),
        (["-o", "no/such/folder"], "no/such"),
    ],
)
def test_invalid_options_are_refused(capsys, graph, args, message):
    assert main(["search", graph, MESH, *args]) == 2
    assert message in capsys.readouterr().err


def test_an_invalid_mesh_is_refused(capsys, graph):
    assert main(["search", graph, "<[x]>"]) == 2
    assert capsys.readouterr().err.startswith("weft search: ")
