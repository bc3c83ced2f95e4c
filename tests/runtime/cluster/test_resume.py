"""`weft run` whose client or cluster is killed: one error, no orphans, and the same bytes later."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import numpy as np
import pytest
import zarr
from tests.runtime.cluster.deaths import await_end, below, files, kill

from weft import Plan, propagate, trace
from weft.lang import OPERATORS, Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import Output, Threads, run_on

CELLS = 20
LIBRARIES = {"ray": "ray", "dask": "distributed"}
MODULE = f"""
import os, time
from weft.lang import OPERATORS, Operator

def kernel(block, x):
    # Each of two workers has {CELLS // 2} cells. The first four are not slow: most are left to do
    # when some are complete, however long it takes until that is seen.
    is_slow = block.box.start[0] // 4 % {CELLS // 2} >= 4
    time.sleep(float(os.environ.get("SLOW", "0")) * (5 if is_slow else 1))
    return x * 2

if "slowly" not in OPERATORS:
    OPERATORS.add(Operator("slowly", "m n -> m n", kernel))
"""


@pytest.fixture
def job(tmp_path):
    """A plan of tasks that take their time, its input, and the options of `weft run` for both."""
    x = np.random.default_rng(0).normal(size=(4 * CELLS, 30)).astype("float32")
    made = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(4, 30), dtype="float32")
    made[...] = x
    known = dict(OPERATORS)
    OPERATORS.add(Operator("slowly", "m n -> m n", lambda block, x: x * 2))
    try:
        graph = trace(
            lambda x: apply_all("slowly", x)[0],
            x,
            meshes=[f'@m = <["w"={CELLS}]>'],
            shardings={"x": '<@m, [{"w"}, {}]>'},
        )
        plan = Plan.of(propagate(graph))
        outputs = {"slowly": Output(tmp_path / "wanted.zarr", (2, 15), (4, 30))}
        with Threads(2) as engine:
            run_on(engine, plan, {"x": str(tmp_path / "x.zarr")}, outputs)
    finally:
        OPERATORS.clear()
        OPERATORS.update(known)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (tmp_path / "slow_operators.py").write_text(MODULE, encoding="utf-8")
    return [
        *("plan.json", "--import", "slow_operators", "--workers", "2"),
        *("--input", "x=x.zarr", "--output", "slowly=y.zarr"),
        *("--chunks", "slowly=2,15", "--shards", "slowly=4,30"),
    ]


def weft(folder, *args, slow=0.0):
    """A process that runs; workers of Ray work for some seconds when all others are dead."""
    return subprocess.Popen(
        [sys.executable, "-m", "weft", "run", *args],
        cwd=folder,
        env={**os.environ, "SLOW": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shards(folder):
    return [file for file in (folder / "y.zarr").rglob("c/*/*") if not file.name.startswith(".")]


def await_shards(folder, count, process, seconds=600):
    end = time.monotonic() + seconds
    while len(shards(folder)) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)


def spare_port():
    """A port for a scheduler and its successor: none that the system gives to anybody meanwhile."""
    ports = range(20_000, 32_000)  # those of the system's own choice begin at 32,768
    for port in random.SystemRandom().sample(ports, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")


def workers_among(processes):
    """Those of the processes of a cluster that run tasks; Ray's agents take a minute to end."""
    return [pid for pid, what in processes.items() if not what.endswith("Agent")]


class DaskCluster:
    """A scheduler and its workers, in processes of their own."""

    def __init__(self, folder, port, slow=0.0):
        self.address, self.parts, self.folder = f"tcp://127.0.0.1:{port}", [], folder
        self.environment = {**os.environ, "SLOW": str(slow)}
        self._start("scheduler", "--port", str(port))
        self._start("worker", self.address, "--nworkers", "2", "--nthreads", "1")

    def _start(self, what, *args):
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *args]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quiet["env"] = self.environment
        alone = ["--host", "127.0.0.1", "--no-dashboard"]
        self.parts.append(subprocess.Popen([*command, *alone], cwd=self.folder, **quiet))

    def __enter__(self):
        distributed = pytest.importorskip("distributed")
        with distributed.Client(self.address, set_as_default=False, timeout=300) as client:
            client.wait_for_workers(2, timeout=300)
        return self

    def __exit__(self, *exception):
        there = [pid for part in self.parts for pid in (part.pid, *below(part.pid))]
        for pid in there:
            kill(pid)
        for part in self.parts:
            part.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_client_that_is_killed(job, tmp_path, name):
    pytest.importorskip(LIBRARIES[name])
    process = weft(tmp_path, *job, "--on", name, slow=0.5)
    await_shards(tmp_path, 3, process)
    there = below(process.pid)
    kill(process.pid)
    process.communicate()
    assert workers_among(there)
    assert await_end(workers_among(there)) == set()
    refused = weft(tmp_path, *job, "--on", name)
    assert "plan.run holds an unfinished run" in refused.communicate()[1]
    finish(tmp_path, name)


def named(folder, on):
    """Return the options that a resumed run must repeat."""
    places = ["--input", f"x={folder}/x.zarr", "--output", f"slowly={folder}/y.zarr"]
    return [*places, "--import", "slow_operators", *(["--on", on] if "://" in on else [])]


def finish(folder, on):
    """Go on with a run: the files of one that nobody disturbed, and fewer tasks."""
    complete = len(shards(folder))
    assert 3 <= complete < CELLS
    process = weft(folder, "--resume", "plan.run", *named(folder, on), "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    record = json.loads(out)
    done = [task for task in record["tasks"] if "slowly" in task["operator"]]
    assert len(done) == CELLS - complete
    assert files(folder / "y.zarr") == files(folder / "wanted.zarr")
    assert json.loads((folder / "plan.run" / "run.json").read_text()) == record


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_cluster_that_is_killed(job, tmp_path, name):
    pytest.importorskip(LIBRARIES[name])
    with ExitStack() as stack:
        on, port = name, spare_port()
        if name == "dask":
            cluster = stack.enter_context(DaskCluster(tmp_path, port, slow=0.5))
            on = cluster.address
        process = weft(tmp_path, *job, "--on", on, slow=1.5)
        await_shards(tmp_path, 3, process)
        there = below(process.pid)
        if name == "dask":
            kill(cluster.parts[0].pid)
        else:
            for pid, what in there.items():
                if any(word in what for word in ("gcs_server", "raylet/raylet")):
                    kill(pid)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 2, err
        assert await_end(workers_among(there)) == set()  # they may have been at work still
    lines = [line for line in err.splitlines() if line.startswith(("weft", "hint"))]
    where = f" at {on}" if name == "dask" else ""
    cluster_name = {"ray": "Ray", "dask": "Dask"}[name]
    again = " ".join(named(tmp_path, on))
    assert lines == [
        f"weft run: the {cluster_name} cluster{where} is gone, and the run with it",
        "hint: shards that are complete stay: run it again with resume=True",
        f"hint: once the cause is removed, resume with: weft run --resume plan.run {again}",
    ]
    assert "Traceback" not in err
    with DaskCluster(tmp_path, port) if name == "dask" else ExitStack():
        finish(tmp_path, on)
