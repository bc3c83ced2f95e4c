"""`python -m benchmarks.store_memory WHO CODEC full|tiny`: MB more at the peak of one stream.

Files in memory count as shared pages, and are left out.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from benchmarks.store import CODECS, FULL, TINY, Job, everyone, folder, noisy, stream

STATUS = Path("/proc/self/status")


def resident() -> float:
    """MB of this process that are not files."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    return 0.0


class Peak:
    """How many MB this process has more, at most, than when it began to watch."""

    def __enter__(self) -> Peak:
        self._before, self._most, self._is_over = resident(), 0.0, threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    @property
    def more(self) -> float:
        """The most so far."""
        return max(0.0, self._most - self._before)

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self._most = max(self._most, resident())

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watcher.join()


def peak_of(who: str, codec: str, job: Job) -> float:
    """MB more at the peak than before, once the libraries are there and warm."""
    write, frames = everyone()[who], noisy(job)
    with folder() as path:
        write(path / "warm.zarr", stream(TINY, noisy(TINY)), TINY.metadata(CODECS[codec]))
        with Peak() as peak:
            write(path / "a.zarr", stream(job, frames), job.metadata(CODECS[codec]))
    return peak.more


if __name__ == "__main__":
    print(peak_of(sys.argv[1], sys.argv[2], {"full": FULL, "tiny": TINY}[sys.argv[3]]))
