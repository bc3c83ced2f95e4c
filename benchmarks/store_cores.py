"""How streams scale with cores: frames of 2048 x 2048 by Weft and by others, on 1, 2, 4 … cores.

Each number of cores has a process of its own, which may use no more: `python -m benchmarks store
--cores 1,2,4,8,16`. Peers run in the same round, one after the other; the best of each counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from benchmarks.row import Row
from benchmarks.store import CODECS, Job, by_weft, folder, noisy, stream
from benchmarks.store_memory import Peak
from benchmarks.store_peers import Frame, Write, peers
from weft.store.codecs import Codec

CHUNKS = (16, 128, 128), (1, 512, 512), (4, 64, 64)
PEERS = "tensorstore, whole shards", "acquire-zarr"
ROUNDS = 3
LOAD = 0.8
"""The part of what can be kept up at which frames come, where the longest wait is measured."""


def run(cores: int, seconds: float) -> Iterator[Row]:
    """The rows for a number of cores, measured in a process that has no more."""
    command = [sys.executable, "-m", "benchmarks.store_cores", str(cores), str(seconds)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for line in ran.stdout.splitlines():
        name, rates, more = json.loads(line)
        row = Row.beside_best(name, rates, "GB/s", ROUNDS)
        yield replace(row, more={**row.more, **more})


def measure(cores: int, seconds: float) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """The rates of each row, and what else there is to know of it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    side, count = (2048, 64 if cores < 4 else 128) if seconds else (64, 8)
    known = peers()
    writes = {"weft": by_weft} | {name: known[name] for name in PEERS if name in known}
    for chunks in CHUNKS if seconds else [(4, 32, 32)]:
        job = Job(count, side, chunks, (64, min(side, 1024), min(side, 1024)))
        frames = noisy(job)
        for codec, codecs in CODECS.items():
            runs = [
                (who, _run(write, job, frames, codecs))
                for _ in range(ROUNDS if seconds else 1)
                for who, write in writes.items()
            ]
            best = {
                who: max((run for by, run in runs if by == who), key=attrgetter("rate"))
                for who in writes
            }
            rates = {who: run.rate for who, run in best.items()}
            more = {"cores used by weft": best["weft"].cores}
            for who, run in best.items():
                more[f"{who}, longest append, ms"] = run.longest
                more[f"{who}, MB more"] = run.memory
            paced = _run(by_weft, job, frames, codecs, job.size / rates["weft"] / 1e9 / LOAD)
            more["weft, longest append at 80 % load, ms"] = paced.longest
            yield f"store/{codec}-{'x'.join(map(str, chunks))}-{cores}-cores", rates, more


@dataclass(frozen=True)
class _Run:
    """What one stream took."""

    rate: float
    """GB/s."""
    cores: float
    longest: float
    """Milliseconds that it kept its caller with one frame."""
    memory: float
    """MB."""


def _run(
    write: Write,
    job: Job,
    frames: Sequence[Frame],
    codecs: tuple[Codec, ...],
    seconds: float = 0.0,
) -> _Run:
    """Measure one stream, whose frames come as quickly as they are taken, or in a given time."""
    longest, pace = 0.0, seconds / job.count

    def timed() -> Iterator[Frame]:
        nonlocal longest
        due = time.perf_counter()
        for frame in stream(job, frames):
            due += pace
            time.sleep(max(0.0, due - time.perf_counter()) if pace else 0.0)
            given = time.perf_counter()
            yield frame
            longest = max(longest, time.perf_counter() - given)

    with folder() as path, Peak() as peak:
        begin, cpu = time.perf_counter(), time.process_time()
        write(path / "a.zarr", timed(), job.metadata(codecs))
        taken = time.perf_counter() - begin
        used = (time.process_time() - cpu) / taken
    return _Run(job.size / taken / 1e9, used, longest * 1e3, peak.more)


if __name__ == "__main__":
    for each in measure(int(sys.argv[1]), float(sys.argv[2])):
        print(json.dumps(each), flush=True)
