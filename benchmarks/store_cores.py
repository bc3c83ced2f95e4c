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
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.row import Row
from benchmarks.store import CODECS, Job, by_weft, folder, noisy, stream
from benchmarks.store_peers import peers

CHUNKS = (16, 128, 128), (1, 512, 512), (4, 64, 64)
PEERS = "tensorstore, whole shards", "acquire-zarr"
ROUNDS = 3


def run(cores: int, seconds: float) -> Iterator[Row]:
    """The rows for a number of cores, measured in a process that has no more."""
    command = [sys.executable, "-m", "benchmarks.store_cores", str(cores), str(seconds)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for line in ran.stdout.splitlines():
        name, rates, used = json.loads(line)
        row = Row.beside_best(name, rates, "GB/s", ROUNDS)
        yield replace(row, more={**row.more, "cores used by weft": used})


def measure(cores: int, seconds: float) -> Iterator[tuple[str, dict[str, float], float]]:
    """The rates of each row, and the cores that Weft used at its best."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    side, count = (2048, 64 if cores < 4 else 128) if seconds else (64, 8)
    known = peers()
    writes = {"weft": by_weft} | {name: known[name] for name in PEERS if name in known}
    for chunks in CHUNKS if seconds else [(4, 32, 32)]:
        job = Job(count, side, chunks, (64, min(side, 1024), min(side, 1024)))
        frames = noisy(job)
        for codec, codecs in CODECS.items():
            best, used = dict.fromkeys(writes, 0.0), 0.0
            for _ in range(ROUNDS if seconds else 1):
                for who, write in writes.items():
                    with folder() as path:
                        begin, cpu = time.perf_counter(), time.process_time()
                        write(path / "a.zarr", stream(job, frames), job.metadata(codecs))
                        taken = time.perf_counter() - begin
                        if who == "weft" and job.size / taken / 1e9 > best[who]:
                            used = (time.process_time() - cpu) / taken
                    best[who] = max(best[who], job.size / taken / 1e9)
            shape = "x".join(map(str, chunks))
            yield f"store/{codec}-{shape}-{cores}-cores", best, used


if __name__ == "__main__":
    for each in measure(int(sys.argv[1]), float(sys.argv[2])):
        print(json.dumps(each), flush=True)
