"""`weft report`: what files mean, the page, and refusals."""

import json

import numpy as np
import pytest
from tests.report.programs import planned
from tests.report.test_page import data_in
from tests.runtime.cluster.metrics import recorded

from weft import Machine, ckks, ops, search, store, trace
from weft.cli import main
from weft.layout import DeviceMesh
from weft.plan.machines import H200_NODE


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(planned(1).to_json(), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(recorded(Machine(flops={"float32": 1e9})).to_json(), encoding="utf-8")
    return path


def reported(capsys, tmp_path, *args):
    page = tmp_path / "out.html"
    assert main(["report", *map(str, args), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    return data_in(page.read_text(encoding="utf-8"))


def test_a_plan_and_its_run(capsys, tmp_path, plan, run):
    data = reported(capsys, tmp_path, plan, run)
    assert (data["title"], len(data["plans"])) == ("plan.json", 1)
    assert data["run"]["bytes"]["is_exact"]


def test_a_folder_of_a_run(capsys, tmp_path, plan, run):
    data = reported(capsys, tmp_path, tmp_path, "--title", "both")
    assert (data["title"], len(data["plans"]), data["run"] is None) == ("both", 1, False)


def test_the_output_of_a_search_is_read_as_a_front(capsys, tmp_path):
    graph = trace(lambda x, w: ops.relu(x @ w), (64, 64), (64, 64))
    front = search(graph, DeviceMesh("m", (4,), ("x",)), H200_NODE)
    folder, said = tmp_path / "plans", tmp_path / "front.json"
    folder.mkdir()
    for number, one in enumerate(front):
        (folder / f"plan-{number}.json").write_text(one.to_json(), encoding="utf-8")
    points = [list(point) for point in front.points]
    said.write_text(json.dumps({"objectives": [], "points": points, "is_exact": True}), "utf-8")
    data = reported(capsys, tmp_path, folder, said)
    assert data["front"]["points"] == points
    assert data["front"]["is_exact"]
    found = {"objectives": [], "points": points, "is_exact": False, "reasons": ["it was late"]}
    said.write_text(json.dumps(found), "utf-8")
    data = reported(capsys, tmp_path, folder, said)
    assert (data["front"]["claim"], data["front"]["reasons"]) == ("found", ["it was late"])
    said.write_text(json.dumps({"objectives": [], "points": points}), "utf-8")
    data = reported(capsys, tmp_path, folder, said)
    assert data["front"]["reasons"] == ["the file does not say what was searched"]
    said.write_text(json.dumps(found | {"reasons": "late"}), "utf-8")
    assert main(["report", str(folder), str(said)]) == 2
    assert "reasons of the front is not a list of texts: 'late'" in capsys.readouterr().err
    said.write_text(json.dumps({"objectives": [], "points": []}), "utf-8")
    assert main(["report", str(folder), str(said)]) == 2
    assert f"the front has 0 points, but {len(front)} plans" in capsys.readouterr().err
    assert main(["report", str(said)]) == 2
    assert "has the costs of plans, not the plans" in capsys.readouterr().err


def test_plans_are_priced_on_a_machine(capsys, tmp_path, plan):
    data = reported(capsys, tmp_path, plan, plan, "--machine", "host")
    assert {one["machine"] for one in data["plans"]} != {"node of 8 H200"}


def test_ciphertexts_and_a_store(capsys, tmp_path):
    model = tmp_path / "model.json"
    layer = trace(lambda v, w: ops.convolve(v, w, padding=(1, 1)), (1, 4, 8, 8), (8, 4, 3, 3))
    from weft.lang.graph_json import to_json

    model.write_text(to_json(layer), encoding="utf-8")
    assert main(["ckks", "plan", str(model), "--encrypted", "v", "--slots", "4096", "--json"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "ckks.json").write_text(text, encoding="utf-8")
    with store.create(tmp_path / "a.zarr", (8, 8), "uint8", (4, 4), (8, 8)) as writer:
        writer.append(np.ones((8, 8), "uint8"))
    data = reported(capsys, tmp_path, tmp_path / "ckks.json", tmp_path / "a.zarr")
    planned = ckks.plan(layer, slots=4096, encrypted="v")
    assert data["ckks"]["headline"] == planned.headline
    assert data["ckks"]["total"]["rotations"] == planned.cost.rotations
    assert data["ckks"]["parameters"] == json.loads(text)["parameters"]
    assert data["stores"][0]["shape"] == [8, 8]


def test_the_data_of_a_page_can_be_printed(capsys, plan, tmp_path):
    page = tmp_path / "none.html"
    assert main(["report", str(plan), "--json", "-o", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["weft_report"] == 1
    assert not page.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is not a plan, run, front or ciphertext plan"),
        ("[1]", "is not a plan, run, front or ciphertext plan"),
        ("{", "invalid JSON"),
        ('{"weft_plan": 2}', "while reading"),
    ],
)
def test_files_without_a_subject_are_refused(capsys, tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    assert main(["report", str(path), "-o", str(tmp_path / "a.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_two_runs_and_an_empty_folder_are_refused(capsys, tmp_path, run):
    assert main(["report", str(run), str(run)]) == 2
    assert "2 runs do not fit one page" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "has no plans, no run and no Zarr v3 array" in capsys.readouterr().err
    assert main(["report", str(run), "-o", "no/such/folder/a.html"]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["report", str(run), "--import", "no_such_module"]) == 2
    assert "cannot import no_such_module" in capsys.readouterr().err
