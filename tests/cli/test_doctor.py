"""`weft doctor`, on this machine and on made-up ones."""

import json
import socket
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import weft
from weft.cli import doctor, host, main
from weft.cli.doctor import Extra, Need
from weft.store.codecs import NAMED

GIB = 1 << 30
H200 = host.Gpu("NVIDIA H200", 140 * GIB, "580.65.06")
OLD = host.Gpu("NVIDIA A10", 24 * GIB, "535.1")


def health(**more):
    sound = {
        "extras": {},
        "gpus": [],
        "processors": host.Share(2, 2),
        "memory": host.Share(8 * GIB, 4 * GIB),
        "places": {"here": host.DiskSpace("/here", 9 * GIB, True)},
        "clusters": {"ray": None, "dask": None},
        "browser": None,
    }
    return doctor.Health(**(sound | more))


@pytest.fixture
def installed(monkeypatch):
    """The packages installed beside Weft: set by the test."""
    there = {"weft": weft.__version__, "packaging": "26"}
    monkeypatch.setattr(doctor, "installed", there.get)
    return there


def test_the_report_lists_installed_packages(capsys):
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["weft"] == weft.__version__
    assert set(data["extras"]) == set(metadata.metadata("weft").get_all("Provides-Extra"))
    numpy = data["extras"]["run"]["packages"]["numpy"]
    assert numpy == {"wanted": ">=2.0", "version": metadata.version("numpy")}
    assert data["extras"]["run"]["there"]
    assert data["engines"]["threads"]["there"]
    assert data["places"]["here"]["path"] == str(Path.cwd())
    assert 0 < data["memory"]["usable"] <= data["memory"]["total"]
    assert 0 < data["processors"]["usable"] <= data["processors"]["total"]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Weft {weft.__version__}, Python {sys.version.split()[0]}, ")
    assert f"numpy {metadata.version('numpy')}" in text
    assert text.count("\n  ! ") == len(data["problems"])


def test_it_imports_nothing_heavy():
    code = (
        "import sys; from weft.cli import main; main(['doctor', '--json']); "
        "print(*{'numpy', 'torch', 'ray', 'jax', 'distributed', 'cupy'} & set(sys.modules), "
        "file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ran.stderr.strip() == b""


def test_every_extra_has_a_purpose():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for name in tomllib.loads(text)["project"]["optional-dependencies"]:
        assert doctor.PURPOSES.get(name), f"say in weft.cli.doctor.PURPOSES what {name} gives"


def test_codecs_are_those_of_the_store():
    assert set(doctor.CODECS) == set(NAMED) - {"none"}
    for name, package in doctor.CODECS.items():
        for codec in NAMED[name]:
            assert codec.decode(codec.encode(b"weft" * 9), 36) == b"weft" * 9
        assert package is None or metadata.version(package)


def test_a_missing_extra_has_its_purpose(installed):
    needs = (Need("numpy", ">=2.0", "2.4"), Need("ray", ">=2.50", None))
    (line,) = doctor._extra_lines(health(extras={"ray": Extra("ray", needs)}))
    assert line == "  - ray  plans on a Ray cluster; missing ray: pip install 'weft[ray]'"
    own = {"mine": Extra("mine", (Need("a", "", None),))}
    (line,) = doctor._extra_lines(health(extras=own))
    assert line == "  - mine  a; missing a: pip install 'weft[mine]'"


def test_a_sound_machine_has_no_problems(installed):
    found = health(gpus=[H200])
    assert found.problems == []
    lines = list(doctor.report(found))
    assert lines[-1] == "no problems"
    assert "  + GPU             NVIDIA H200, 150 GB, driver 580.65.06, CUDA 13" in lines
    assert "  - engine ray      pip install 'weft[ray]'" in lines
    assert "  - SEAL            pip install 'weft[ckks]'" in lines
    assert "  - browser         none found to open reports" in lines
    assert (
        "  - codecs          zstd, blosc-lz4, blosc-zstd, lz4, crc32c: pip install 'weft[store]'"
        in lines
    )


@pytest.mark.parametrize(
    ("there", "found", "problem"),
    [
        (
            {"weft": None},
            {},
            "Weft is not installed as a package, so its extras are unknown: pip install .",
        ),
        (
            {"weft": "0.0.1"},
            {},
            f"Weft {weft.__version__} is running, but 0.0.1 is installed: install it again",
        ),
        (
            {"packaging": None},
            {},
            "extras cannot be checked without packaging: pip install 'weft[cli]'",
        ),
        (
            {},
            {
                "extras": {
                    name: Extra(name, (Need("torch", "==2.13.0", "2.1"),))
                    for name in ("torch", "test")
                }
            },
            "torch 2.1 is installed, but ==2.13.0 is needed: pip install 'weft[torch]'",
        ),
        (
            {"cupy-cuda12x": "13", "cupy-cuda13x": "13"},
            {"gpus": [H200]},
            "two builds of CuPy are installed and conflict: pip uninstall one",
        ),
        (
            {"cupy-cuda12x": "13"},
            {},
            "CuPy is installed, but the driver reports no GPU",
        ),
        (
            {"cupy-cuda13x": "13"},
            {"gpus": [H200, OLD]},
            "CuPy is built for CUDA 13, but the driver has CUDA 12: pip install 'weft[cuda12]'",
        ),
        (
            {"torch": "2.13.0+cpu"},
            {"gpus": [H200]},
            "torch 2.13.0+cpu does not use the GPU: install a build for CUDA",
        ),
        (
            {},
            {"memory": host.Share(8 * GIB, 64 << 20)},
            "67.1 MB of memory is free: stop other programs",
        ),
        (
            {},
            {"places": {"here": host.DiskSpace("/here", 9 * GIB, False)}},
            "/here is not writable",
        ),
        (
            {},
            {"places": {"temporary": host.DiskSpace("/tmp", 1000, True)}},
            "/tmp has 1000 B free: delete something",
        ),
        (
            {"ray": "2.60"},
            {"places": {"shared memory": host.DiskSpace("/dev/shm", 64 << 20, True)}},
            "/dev/shm, where Ray stores objects, has 67.1 MB free",
        ),
        (
            {},
            {"clusters": {"ray": host.Cluster("10.0.0.1:6379", "started here", False)}},
            "the ray cluster at 10.0.0.1:6379 does not answer",
        ),
    ],
)
def test_problems_are_a_line_each(installed, there, found, problem):
    installed.update(there)
    sick = health(**found)
    assert sick.problems == [problem]
    assert list(doctor.report(sick))[-2:] == ["1 problem:", f"  ! {problem}"]


# -- the machine ----------------------------------------------------------------------------------


def tool(tmp_path, monkeypatch, text):
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(host.shutil, "which", {"nvidia-smi": str(script)}.get)


def test_gpus_by_the_tool(tmp_path, monkeypatch):
    tool(tmp_path, monkeypatch, "echo 'NVIDIA H200, 143771, 580.65.06'; echo 'B, [N/A], 470.1'")
    one, two = host.gpus(tmp_path)
    assert one == host.Gpu("NVIDIA H200", 143771 << 20, "580.65.06")
    assert (one.cuda, two.cuda, two.memory) == (13, None, None)
    assert OLD.cuda == 12


@pytest.mark.parametrize("text", ["exit 9", "exec sleep 20"])
def test_gpus_without_the_tool(tmp_path, monkeypatch, text):
    monkeypatch.setattr(host, "TIMEOUT", 0.3)
    tool(tmp_path, monkeypatch, text)
    card = tmp_path / "0000:01:00.0"
    card.mkdir()
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 7\n")
    assert host.gpus(tmp_path) == [host.Gpu("NVIDIA H200")]
    assert host.gpus(tmp_path / "none") == []


def test_a_cluster_that_ray_started_here(tmp_path):
    note = tmp_path / "note"
    assert host.cluster("ray", {}, note) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        note.write_text(address)
        assert host.cluster("ray", {}, note) == host.Cluster(address, "started here", True)
        assert host.cluster("dask", {}, note) is None
    assert host.cluster("ray", {}, note).answers is False
    note.write_text("nonsense")
    assert host.cluster("ray", {}, note).answers is False


def test_a_cluster_that_is_named_is_not_called(monkeypatch):
    monkeypatch.setattr(host.socket, "create_connection", lambda *_, **__: pytest.fail("called"))
    found = host.cluster("ray", {"RAY_ADDRESS": "ray://far:1"})
    assert found == host.Cluster("ray://far:1", "RAY_ADDRESS", None)
    far = host.cluster("dask", {"DASK_SCHEDULER_ADDRESS": "tcp://far:1"})
    assert far.address == "tcp://far:1"
    assert not host._answers("192.0.2.1:80")  # an address that is not of this machine


def test_a_cluster_is_reported(installed):
    installed["ray"] = "2.60"
    found = health(clusters={"ray": host.Cluster("far:1", "RAY_ADDRESS", None), "dask": None})
    lines = list(doctor.report(found))
    assert "  + engine ray      2.60, a cluster at far:1 (RAY_ADDRESS)" in lines


@pytest.mark.parametrize(
    ("size", "text"), [(5, "5 B"), (1500, "1500 B"), (2e12, "2 TB"), (float("inf"), "unknown")]
)
def test_sizes_in_plain_units(size, text):
    assert host.amount(size) == text
