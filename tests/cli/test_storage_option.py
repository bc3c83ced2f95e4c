"""`--storage` of `weft plan` and `weft search`: what the library says, and what is refused."""

import json

import pytest

from weft import Machine, Plan, estimate, propagate, search, trace
from weft.cli import main
from weft.lang.graph_json import to_json
from weft.layout import DeviceMesh
from weft.plan import Chunking, Storage

MESH = DeviceMesh("m", (4,), ("x",))
STORAGE = {"x": Storage((64, 16), (8, 16), (16, 16), 4), "add": Chunking()}


def doubled(annotated=True):
    shardings = {"x": '<@m, [{"x"}, {}]>'} if annotated else {}
    return trace(lambda x: x + x, (64, 16), meshes=[MESH], shardings=shardings)


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(to_json(doubled()), encoding="utf-8")
    return str(path)


def test_a_plan_with_storage_is_printed(capsys, graph):
    assert main(["plan", graph, "--storage", "x=8,16/16,16", "add=auto"]) == 0
    cost = estimate(Plan.of(propagate(doubled())), storage=STORAGE)
    assert capsys.readouterr().out.endswith(f"\n\n{cost}\n")
    assert cost.loaded == cost.stored == 4096


def test_a_plan_with_storage_as_json(capsys, graph):
    assert main(["plan", graph, "--json", "--storage", "x=64,1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["loaded"], data["stored"], data["amplification"]) == (16384, 0, 4.0)
    assert data["storage"]["x"]["chunk"] == [64, 1]
    assert data["items"][0]["loaded"] == 16384


def test_a_search_with_storage(capsys, tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(to_json(doubled(annotated=False)), encoding="utf-8")
    options = ["--json", "--objectives", "time", "bytes", "--storage", "x=8,16/16,16", "add=auto"]
    assert main(["search", str(path), str(MESH), *options]) == 0
    data = json.loads(capsys.readouterr().out)
    front = search(doubled(False), MESH, Machine(), ["time", "bytes"], storage=STORAGE)
    assert data["points"] == [list(point) for point in front.points]
    assert data["storage"][0]["add"]["chunk"] == list(front.costs[0].storage["add"].chunk)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "--storage x: no chunk is given"),
        ("x=", "--storage x=: no chunk is given"),
        ("y=4", "--storage y=4: there is no y"),
        ("x=a,b", "--storage x=a,b: invalid size 'a,b': expected `64` or `64,64`"),
        ("x=4", "a chunk has 1 dimension where 2 are expected"),
        ("x=auto", "x is an input: its chunks are given, and cannot be chosen"),
    ],
)
def test_what_is_refused(capsys, graph, text, message):
    assert main(["plan", graph, "--storage", text]) != 0
    assert message in capsys.readouterr().err
