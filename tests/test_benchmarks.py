"""Every benchmark runs once on tiny sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import store_gpu
from benchmarks.__main__ import BENCHMARKS
from benchmarks.row import Row

ROOT = Path(__file__).parent.parent
KEYS = ["name", "weft", "peer", "peer_value", "ratio", "fraction", "unit", "n"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_runs_and_prints_rows(name):
    if name == "store-gpu" and not store_gpu.is_there():
        pytest.skip("no GPU")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--tiny"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert rows
    for row in rows:
        assert [key for key in row if key != "more"] == KEYS
        assert row["name"].startswith(f"{name}/")
        assert row["weft"] > 0
        assert row["n"] >= 1
        assert (row["peer"] is None) == (row["peer_value"] is None) == (row["ratio"] is None)


def test_an_unknown_name_is_refused():
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nope"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert (
        "no benchmark 'nope'; there are ckks, cluster, cluster-volume, conflicts, eager, layout"
        in ran.stderr
    )


def test_a_ratio_above_one_is_faster_in_every_unit():
    assert Row.against("a/b", 2.0, "peer", 4.0, "s", 1).ratio == 2
    assert Row.against("a/b", 4.0, "peer", 2.0, "GB/s", 1, better="higher").ratio == 2
