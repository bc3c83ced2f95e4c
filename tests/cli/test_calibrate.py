"""`weft calibrate`: a machine that can be loaded, figures that can be, and refusals."""

import json
import os
import sys

import pytest

from weft import Machine, ShardingSpec, plan_reshard
from weft.cli import main
from weft.layout import DeviceMesh
from weft.plan.machines import memory


def test_a_quick_measurement_is_a_machine(capsys, tmp_path):
    path = tmp_path / "host.toml"
    assert main(["calibrate", "--quick", "--cells", "2", "-o", str(path)]) == 0
    seen = capsys.readouterr()
    assert seen.out.startswith("this host, 2 cells\nflops.float32")
    assert seen.out.endswith(f"\nwrote {path}\n")
    assert "multiplying float64 …\n" in seen.err
    machine = Machine.load(path)
    assert {"float32", "float64", "int8"} <= machine.flops.keys()
    assert all(1e5 < rate < 1e15 for rate in machine.flops.values())
    assert 1e7 < machine.memory_bandwidth < 1e13
    assert 1e6 < machine.bandwidth < 1e13
    assert 1e-7 < machine.latency < 10
    assert machine.shared
    assert machine.capacity == memory() / 2
    mesh = DeviceMesh("m", (2,), ("x",))
    parts, whole = (ShardingSpec.parse(f"<@m, [{{{axis}}}]>", mesh) for axis in ('"x"', ""))
    assert plan_reshard(parts, whole, (8,), 4, machine).price > machine.latency


def test_json(capsys, tmp_path):
    path = tmp_path / "host.toml"
    assert main(["calibrate", "--quick", "--json", "-o", str(path)]) == 0
    seen = capsys.readouterr()
    data = json.loads(seen.out)
    assert data["name"] == Machine.load(path).name
    assert data["name"].startswith(f"this host, {os.cpu_count()} cell")
    assert data["one_thread_memory_bandwidth"] > 1e7
    assert seen.err.endswith(f"wrote {path}\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cells", "0"], "weft calibrate: --cells 0: expected 1 to 1024\n"),
        (["-o", "no/such/a.toml"], "weft calibrate: cannot write no/such/a.toml: there is no fold"),
    ],
)
def test_refusals_come_before_measuring(capsys, args, message):
    assert main(["calibrate", *args]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_without_numpy(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "weft.cli.measure", raising=False)
    monkeypatch.delattr("weft.cli.measure", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert main(["calibrate", "--quick"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("weft calibrate: this host cannot be measured: import of numpy")
    assert lines[1] == "hint: pip install 'weft[run]'"
