"""One job by one peer in a process of its own, so that its memory is nobody else's.

`python -m benchmarks.cluster_case WHO WHAT FOLDER REPEATS CHUNK`: one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cluster_data import check
from benchmarks.cluster_memory import Watch
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
    said = {"seconds": min(taken), "moved": moved, "peak": memory.total}
    print(json.dumps({**said, "largest": memory.largest, "wrong": wrong, "chunk": chunk}))


def _found(one: Any, out: Path) -> Any:
    import zarr

    return one.found if hasattr(one, "found") else zarr.open_array(out, mode="r")


if __name__ == "__main__":
    main(*sys.argv[1:])
