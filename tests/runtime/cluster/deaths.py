"""What tests of runs that something happens to share: a volume, who dies, what is there then."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from tests.runtime.cluster.blur import WEIGHTS, plan_of

from weft.runtime.cluster import Dask, Output, run_on

SHAPE = (60, 60, 60)
MEMORY = 2_700_000
"""What arrays of a worker may take: most of it is for codecs, so that tiles are small."""


@dataclass(frozen=True)
class Volume:
    """A blur of a stored volume, and of the mean of that, with tiles of a shard or two."""

    folder: Path
    plan: object
    x: np.ndarray

    @classmethod
    def of(cls, folder):
        x = np.random.default_rng(0).normal(size=SHAPE).astype("float32")
        made = zarr.create_array(folder / "x", shape=SHAPE, chunks=(10, 20, 20), dtype="float32")
        made[...] = x
        return cls(folder, plan_of(SHAPE, 4), x)

    @property
    def inputs(self):
        return {"x": str(self.folder / "x"), "w": WEIGHTS}

    def outputs(self, path):
        blur, mean = self.plan.graph.outputs
        return {
            blur: Output(path / "blur", (5, 10, 10), (5, 10, 20)),
            mean: Output(path / "mean", (10, 10), (20, 20)),
        }

    def run(self, engine, path, **options):
        outputs = self.outputs(path)
        return run_on(engine, self.plan, self.inputs, outputs, memory=MEMORY, **options)


def files(path):
    """All files below a folder, hidden ones too, and what they hold."""
    found = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def workers_of(engine):
    """The processes of the workers; without one that died a moment ago."""
    if isinstance(engine, Dask):
        return list(engine.client.run(os.getpid, on_error="ignore").values())
    return engine._ray.get([actor.pid.remote() for actor in engine.actors])


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def below(pid):
    """The processes that a process has started, and those that these have, with their commands."""
    text = subprocess.check_output(["ps", "-ww", "-eo", "pid,ppid,args"], text=True)
    rows = [(int(a), int(b), command) for a, b, command in map(_split, text.splitlines()[1:])]
    found, wanted = {}, {pid}
    while new := {p: c for p, parent, c in rows if parent in wanted and p not in found}:
        found |= new
        wanted |= new.keys()
    return {p: command for p, command in found.items() if not command.startswith("ps -ww")}


def _split(line):
    return line.split(None, 2)


def await_end(pids, seconds=300):
    """Wait until processes end; those that are there after so many seconds."""
    end = time.monotonic() + seconds
    while (left := set(filter(is_there, pids))) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def is_there(pid):
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
