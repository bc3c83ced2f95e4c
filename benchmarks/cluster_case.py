"""One job by one peer in a process of its own, so that its memory can be measured.

`python -m benchmarks.cluster_case WHO WHAT FOLDER REPEATS CHUNK`: one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from benchmarks.cluster_data import check
from benchmarks.cluster_peers import Cubed, CubedProcesses, Dask, Numpy
from benchmarks.cluster_weft import Weft, WeftDask

WHO: dict[str, Any] = {
    "weft": Weft,
    "weft-dask": WeftDask,
    "dask.array": Dask,
    "cubed": Cubed,
    "cubed-processes": CubedProcesses,
    "numpy": Numpy,
}


def main(who: str, what: str, folder: str, repeats: str, chunk: str) -> None:
    """Run a job some times, and tell the best time and the most memory."""
    size = tuple(map(int, chunk.split(",")))
    with TemporaryDirectory(dir=folder) as name:
        scratch, out = Path(name) / "scratch", Path(name) / "out.zarr"
        scratch.mkdir()
        one = WHO[who](Path(folder), scratch)
        taken = []
        with Watch(os.getpid()) as memory:
            for _ in range(int(repeats)):
                shutil.rmtree(out, ignore_errors=True)
                before, begin = one.moved(), time.perf_counter()
                getattr(one, what)(out, size)
                taken.append(time.perf_counter() - begin)
                moved = one.moved() - before
        wrong = check(what, Path(folder), _found(one, out))
        getattr(one, "close", lambda: None)()
    result = {"seconds": min(taken), "moved": moved, "peak": memory.total}
    print(json.dumps({**result, "largest": memory.largest, "wrong": wrong, "chunk": chunk}))


def _found(one: Any, out: Path) -> Any:
    import zarr

    return one.found if hasattr(one, "found") else zarr.open_array(out, mode="r")


class Watch:
    """The peak memory of a process and its children, shared pages counted once; and of the largest.

    It is sampled twenty times a second.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.total, self.largest = pid, 0, 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.is_over.is_set():
            sizes = [_size(pid) for pid in _family(self.pid)]
            self.total = max(self.total, sum(pss for pss, _ in sizes))
            self.largest = max(self.largest, *(rss for _, rss in sizes), 0)
            time.sleep(0.05)


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _size(pid: int) -> tuple[int, int]:
    """The bytes of a process, those that it shares divided among those who have them; and all."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = dict(line.split(":", 1) for line in lines)
    pss, rss = (int(sizes.get(name, "0").split()[0]) << 10 for name in ("Pss", "Rss"))
    return pss, rss


if __name__ == "__main__":
    main(*sys.argv[1:])
