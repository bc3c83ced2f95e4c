"""Runs on the command line: `weft show run.json`, `weft calibrate --from run.json`."""

import json
import sys
from pathlib import Path

import pytest
from tests.runtime.cluster.metrics import made_up, recorded, task

from weft import Machine
from weft.cli import main
from weft.runtime.cluster.metrics.record import RunRecord

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(recorded(Machine(flops={"float32": 1e9})).to_json(), encoding="utf-8")
    return file


def test_a_run_in_the_terminal(capsys, path):
    assert main(["show", str(path)]) == 0
    seen = capsys.readouterr().out
    record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    assert seen == f"{record}\n"


def test_a_run_in_a_file(capsys, path, tmp_path):
    record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    table, trace = tmp_path / "a.txt", tmp_path / "trace.json"
    assert main(["show", str(path), "-o", str(table), "--trace", str(trace)]) == 0
    assert capsys.readouterr().out == f"wrote {table}\nwrote {trace}\n"
    assert table.read_text(encoding="utf-8") == f"{record}\n"
    assert trace.read_text(encoding="utf-8") == record.to_trace()


def test_a_run_as_json(capsys, path, tmp_path):
    trace = tmp_path / "trace.json"
    assert main(["show", str(path), "--json", "--trace", str(trace)]) == 0
    seen = capsys.readouterr()
    assert seen.err == f"wrote {trace}\n"
    data = json.loads(seen.out)
    record = RunRecord.from_json(path.read_text(encoding="utf-8"))
    assert data["total"]["received"] == record.total.received
    assert data["by_operator"].keys() == record.by_operator.keys()
    assert (data["workers"], data["exact"], data["missing"]) == (2, True, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["8x16"], "{path} is a file: it takes no shape or sharding 8x16\n"),
        (["-o", "a.png"], "cannot write a.png: its name must end in .svg or .txt\n"),
        (["--svg"], "a run has no picture\nhint: weft show {path} --trace trace.json"),
        (["-o", "a.svg"], "a run has no picture\n"),
        (["--svg", "--json"], "--svg and --json cannot both be printed\nhint: --json -o pic"),
    ],
)
def test_refusals_of_show(capsys, path, args, message):
    assert main(["show", str(path), *args]) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith(f"weft show: {message.format(path=path)}")
    assert not seen.out


def test_files_that_are_no_run(capsys, tmp_path):
    file = tmp_path / "no.json"
    assert main(["show", str(file)]) == 2
    assert f"weft show: there is no file {file}\nhint: " in capsys.readouterr().err
    file.write_text('{"weft_run": 1, "engine": ""}', encoding="utf-8")
    assert main(["show", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"weft show: engine: expected a string, got ''\nwhile reading {file}\n"
        "hint: see weft show --help\n"
    )


def test_without_numpy(capsys, monkeypatch, path):
    for name in [name for name in sys.modules if name.startswith("weft.runtime")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert main(["show", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("weft show: the record of a run cannot be read: running arrays need")
    assert lines[1] == "hint: pip install 'weft[run]'"


def test_a_machine_from_a_run(capsys, path, tmp_path):
    output = tmp_path / "machine.toml"
    assert main(["calibrate", "--from", str(path), "-o", str(output)]) == 0
    seen = capsys.readouterr()
    assert seen.out.startswith("threads, 2 workers\nflops.float32  ")
    assert "\noperations.grid.matmul" in seen.out
    assert seen.out.endswith(f"wrote {output}\n")
    assert seen.err == ""
    machine = Machine.load(output)
    assert machine.flops["float32"] > 0
    assert any("matmul" in operator for operator in machine.operations["grid"])


def test_links_and_storage_are_reported(capsys, tmp_path):
    file = tmp_path / "run.json"
    tasks = [
        task(n, received={1: 1000 * n}, receiving=1e-6 * n, read=2000 * n, reading=1e-6 * n)
        for n in range(1, 5)
    ]
    file.write_text(made_up(*tasks).to_json(), encoding="utf-8")
    assert main(["calibrate", "--from", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ray, 2 workers",
        "flops.float32           1 Mflop/s    measured, 4 samples",
        "memory_bandwidth        4 kB/s       measured, 4 samples",
        "capacity                unlimited    assumed",
        "links                   0 s, 1 GB/s  measured, 4 samples",
        "links.y                 0 s, 1 GB/s  measured, 4 samples",
        "storage                 0 s, 2 GB/s  measured, 4 samples",
        "operations.grid.matmul  21 sizes     measured, 4 samples",
    ]
    assert main(["calibrate", "--from", str(file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["bandwidth"] == pytest.approx(1e9)
    assert data["tasks"]["links"] == 4


def test_refusals_of_calibrate(capsys, path, tmp_path):
    for args in (["--cells", "2"], ["--quick"]):
        assert main(["calibrate", "--from", str(path), *args]) == 2
        assert capsys.readouterr().err == (
            "weft calibrate: --cells and --quick measure this host; --from does not\n"
            "hint: see weft calibrate --help\n"
        )
    file = tmp_path / "few.json"
    file.write_text(made_up().to_json(), encoding="utf-8")
    assert main(["calibrate", "--from", str(file)]) == 2
    assert capsys.readouterr().err.startswith("weft calibrate: too few tasks to estimate")


def test_only_runs_have_traces(capsys):
    assert main(["show", '@m = <["x"=2]>', "--trace", "trace.json"]) == 2
    assert "--trace trace.json: only runs have traces" in capsys.readouterr().err


def test_the_run_of_the_docs_can_be_read(capsys):
    assert main(["show", str(ROOT / "docs/run.json")]) == 0
    assert capsys.readouterr().out
