"""`python -m benchmarks.store_memory WHO CODEC full|tiny`: MB more at the peak of one stream.

Files in memory count as shared pages, and are left out.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from benchmarks.store import CODECS, FULL, TINY, Job, everyone, folder, noisy, stream

STATUS = Path("/proc/self/status")


def resident() -> float:
    """MB of this process that are not files."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    return 0.0


def peak_of(who: str, codec: str, job: Job) -> float:
    """MB more at the peak than before, once the libraries are there and warm."""
    write, frames = everyone()[who], noisy(job)
    with folder() as path:
        write(path / "warm.zarr", stream(TINY, noisy(TINY)), TINY.metadata(CODECS[codec]))
        before, seen, is_over = resident(), [0.0], threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                seen.append(resident())
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        write(path / "a.zarr", stream(job, frames), job.metadata(CODECS[codec]))
        is_over.set()
        watcher.join()
    return max(seen) - before


if __name__ == "__main__":
    print(peak_of(sys.argv[1], sys.argv[2], {"full": FULL, "tiny": TINY}[sys.argv[3]]))
