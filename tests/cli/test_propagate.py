"""`weft propagate`: what follows and why, as the library says it."""

import json
from pathlib import Path

import pytest

from weft import ops, propagate, trace
from weft.cli import main
from weft.lang.graph_json import to_json

MESH = '@m = <["dp"=2, "tp"=4]>'


def graph_of(**more):
    return trace(
        lambda x, w, v: ops.relu(x @ w) @ v,
        *((8, 16), (16, 32), (32, 8)),
        names=["x", "w", "v"],
        **more,
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marked = {"x": '<@m, [{"dp"}, {}]>', "w": '<@m, [{}, {"tp"}]>'}
    graph = graph_of(meshes=[MESH], shardings=marked)
    (tmp_path / "graph.json").write_text(to_json(graph), encoding="utf-8")
    (tmp_path / "bare.json").write_text(to_json(graph_of()), encoding="utf-8")
    return graph


def printed(capsys, *words):
    assert main(["propagate", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_every_value_has_a_line(capsys, folder):
    first, *lines = printed(capsys, "graph.json")
    assert first == MESH
    rows = [line.split("  ") for line in lines]
    assert [row[0] for row in rows] == [str(value) for value in folder.values.values()]
    for line, (name, spec) in zip(lines, propagate(folder).specs.items()):
        assert str(spec) in line
        assert line.endswith("as given") is (name in ("x", "w"))
    assert lines[-1].endswith('partial over "tp" by sum')


def test_explanations(capsys, folder):
    found = propagate(folder)
    lines = printed(capsys, "graph.json", "--explain", "v", "--explain", "x")
    assert lines[0] == f"v: float32[32, 8]  {found.specs['v']}"
    assert [line.strip() for line in lines[1:7]] == [
        line.strip() for dim in (0, 1) for line in found.explain("v", dim)
    ]
    assert '    as written on w: <@m, [{}, {"tp"}]>' in lines
    assert lines[7] == ""
    assert lines[8].startswith("x: float32[8, 16]")


def test_as_json(capsys, folder):
    data = json.loads("\n".join(printed(capsys, "graph.json", "--json", "--explain", "v")))
    found = propagate(folder)
    assert data["meshes"] == [MESH]
    assert {name: one["sharding"] for name, one in data["values"].items()} == {
        name: str(spec) for name, spec in found.specs.items()
    }
    assert [name for name, one in data["values"].items() if one["written"]] == ["x", "w"]
    assert data["values"]["matmul_2"]["partial"] == {"tp": "sum"}
    assert data["placements"][0]["cuts"] == {"m": ["dp"], "n": ["tp"]}
    assert data["explained"] == {"v": [found.explain("v", 0), found.explain("v", 1)]}


def test_meshes_and_shardings_may_be_given(capsys, folder):
    same = ["--mesh", MESH, "--shard", f"x={folder.shardings['x']}"]
    same += ["--shard", f"w={folder.shardings['w']}"]
    assert printed(capsys, "bare.json", *same) == printed(capsys, "graph.json")
    # One with the same name takes the place of the graph's own.
    lines = printed(capsys, "graph.json", "--mesh", '@m = <["dp"=4, "tp"=2]>')
    assert lines[0] == '@m = <["dp"=4, "tp"=2]>'
    assert main(["plan", "bare.json", *same, "-o", "plan.json"]) == 0
    capsys.readouterr()
    assert main(["plan", "graph.json", "-o", "again.json"]) == 0
    with open("plan.json") as one, open("again.json") as two:
        assert one.read() == two.read()


def test_a_graph_without_a_mesh(capsys, folder):
    assert printed(capsys, "bare.json")[-1] == (
        "the graph has no mesh, so nothing is cut: --mesh adds one"
    )


def test_a_choice_by_cost_says_so(capsys, folder):
    found = propagate(folder, "cost")
    lines = printed(capsys, "graph.json", "--strategy", "cost")
    assert lines[-1] == str(found.settled)


def test_an_output_that_is_wanted_otherwise(capsys, tmp_path):
    graph = trace(lambda x: x + 1, (8,), names=["x"], meshes=['@m = <["x"=2]>'])
    data = json.loads(to_json(graph)) | {"output_shardings": {"0": '<@m, [{"x"}]>'}}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    line = printed(capsys, str(path))[-1]
    assert line.split("  ")[0] == f"output 0: {graph.outputs[0]}"
    assert line.endswith("as given")


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--explain", "vv"], ["the graph has no value vv", "hint: did you mean v?"]),
        (
            ["--explain", "zzz"],
            ["the graph has no value zzz", "hint: its values are x, w, v, matmul, relu, matmul_2"],
        ),
        (
            ["--shard", "x"],
            [
                "--shard x: expected NAME=SHARDING",
                """hint: the sharding of a value: x='<@m, [{"x"}, {}]>'; may be repeated""",
            ],
        ),
        (
            ["--shard", "y=<@m, [{}]>"],
            ["the graph has no value y", "hint: its values are x, w, v, matmul, relu, matmul_2"],
        ),
        (
            ["--mesh", "@m"],
            [
                "--mesh: column 3: expected '=', found the end",
                *("@m", "  ^"),
                """hint: a mesh in Shardy's notation: '@m = <["x"=2, "y"=4]>'""",
            ],
        ),
    ],
)
def test_refusals(capsys, folder, words, lines):
    assert main(["propagate", "graph.json", *words]) == 2
    assert capsys.readouterr().err.splitlines() == [f"weft propagate: {lines[0]}", *lines[1:]]


def test_more_refusals(capsys, folder):
    assert main(["propagate", "bare.json", "--shard", "x=<@m, [{}, {}]>"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft propagate: --shard x=<@m, [{}, {}]>: the graph has no mesh",
        """hint: --mesh is a mesh in Shardy's notation: '@m = <["x"=2, "y"=4]>'""",
    ]
    assert main(["propagate", "graph.json", "--shard", 'x=<@m, [{"q"}, {}]>']) == 2
    assert capsys.readouterr().err.startswith('weft propagate: --shard x: axis "q" cuts dimension')


def test_search_takes_the_mesh_of_the_graph_or_one(capsys, folder):
    def front(*words):
        assert main(["search", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert front("graph.json") == front("graph.json", MESH) == front("graph.json", "--mesh", MESH)
    assert main(["search", "bare.json"]) == 2
    assert capsys.readouterr().err.startswith("weft search: there is no mesh\nhint: --mesh is a me")
    assert main(["search", "bare.json", MESH, "--mesh", MESH]) == 2
    assert capsys.readouterr().err.endswith("hint: give one\n")
    assert main(["search", "bare.json", "--mesh", "m"]) == 2
    assert "hint: a mesh in Shardy's notation: " in capsys.readouterr().err
    Path("plans").write_text("")
    assert main(["search", "graph.json", "-o", "plans"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft search: cannot write into plans: it is a file",
        "hint: give the name of a folder",
    ]
    two = ["--mesh", MESH, "--mesh", '@n = <["x"=2]>']
    assert main(["plan", "bare.json", *two]) == 0
