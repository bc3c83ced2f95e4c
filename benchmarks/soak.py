"""`python -m benchmarks.soak [GB] [FOLDER]`: a long stream at flat memory.

Frames of 2048 x 2048 uint16 with photon noise, to a folder on a disk; prints the memory of the
process at every tenth of the way.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.store import CODECS, Job, noisy, writer
from benchmarks.store_memory import resident

SIDE = 2048


def main(gigabytes: float, folder: str | None) -> None:
    """Stream a number of gigabytes, and print the memory in use."""
    count = int(gigabytes * 1e9 / (2 * SIDE * SIDE))
    job = Job(count, SIDE, (16, 128, 128), (64, 1024, 1024))
    frames, path = noisy(job), Path(tempfile.mkdtemp(dir=folder))
    before, begin, seen = resident(), time.perf_counter(), []
    try:
        with writer(path / "soak.zarr", job.metadata(CODECS["blosc-zstd"])) as made:
            print(f"predicted {made.memory() / 1e6:.0f} MB")
            for number in range(count):
                made.append(frames[number % len(frames)])
                if number % max(1, count // 10) == 0:
                    seen.append(resident() - before)
                    done = (number + 1) * 2 * SIDE * SIDE / 1e9
                    print(f"{done:6.1f} GB  {seen[-1]:6.1f} MB more", flush=True)
        taken = time.perf_counter() - begin
        metrics = made.metrics()
        print(
            f"{metrics.bytes / 1e9:.1f} GB in {taken:.0f} s, {metrics.bytes / taken / 1e9:.2f} GB/s"
        )
        print(f"at most {max(seen):.0f} MB more; the last tenth {seen[-1] - seen[1]:+.1f} MB")
        print(metrics)
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main(float((sys.argv[1:] or ["20"])[0]), sys.argv[2] if len(sys.argv) > 2 else None)
