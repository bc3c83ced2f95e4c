"""The cluster beside dask.array, cubed and NumPy: a product, a blur from Zarr to Zarr, and no-ops.

All run on one machine with two workers. Each peer runs each job in its own process, at the best of
the chunk sizes that are tried. Seconds, bytes moved and memory are reported for both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cluster_case import WHO
from benchmarks.cluster_data import FULL, TINY, Sizes, make_data
from benchmarks.cluster_peers import noops
from benchmarks.cluster_unequal import run_unequal
from benchmarks.cluster_weft import Weft, WeftDask
from benchmarks.row import Row

PEERS = {"dask.array": "dask.array", "cubed": "cubed", "cubed-processes": "cubed", "numpy": "numpy"}
"""The module that each peer needs."""
RAY = {"ray": "Ray task", "ray-actor": "Ray actor call"}
DASK = {"dask": "Dask submit"}
RIGHT = 1e-5
"""The largest relative error of a result."""


def run(seconds: float) -> Iterator[Row]:
    """The rows of this benchmark."""
    sizes = FULL if seconds else TINY
    yield from _overhead(sizes.tasks, seconds)
    if seconds:
        yield from run_unequal(3)
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, sizes)
        for what in ("matmul", "blur") if seconds else ("blur",):
            yield from _against(what, folder, sizes, seconds)


def _against(what: str, folder: Path, sizes: Sizes, seconds: float) -> Iterator[Row]:
    """A job beside all peers that are there; without much time, at their usual best chunks."""
    repeats = 3 if seconds else 1
    ours = _best("weft", what, folder, [(0,)], repeats)
    on_dask = _best("weft-dask", what, folder, [(0,)], repeats) if seconds else ours
    for peer, module in PEERS.items():
        chunks = WHO[peer].chunks(what, sizes)[: None if seconds > 1 else 1]
        if not chunks or find_spec(module.partition(".")[0]) is None:
            continue
        theirs = _best(peer, what, folder, chunks, repeats)
        row = Row.against(
            f"cluster/{what}-{peer}", ours["seconds"], peer, theirs["seconds"], "s", repeats
        )
        more = {f"weft {key}": ours[key] for key in ("moved", "peak", "largest")}
        more |= {f"weft on Dask {key}": on_dask[key] for key in ("seconds", "peak", "largest")}
        more |= {f"{peer} {key}": theirs[key] for key in ("moved", "peak", "largest", "chunk")}
        yield replace(row, more=more)


def _best(
    who: str, what: str, folder: Path, chunks: list[tuple[int, ...]], repeats: int
) -> dict[str, Any]:
    """The fastest that somebody does a job, with the chunks that are best."""
    found = []
    for chunk in chunks:
        command = [sys.executable, "-m", "benchmarks.cluster_case", who, what, str(folder)]
        options = [str(repeats), ",".join(map(str, chunk))]
        ran = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    best: dict[str, Any] = min(found, key=lambda each: float(each["seconds"]))
    if best["wrong"] > RIGHT:
        raise AssertionError(f"{who} {what} is off by {best['wrong']:.2g}")
    return best


def _overhead(tasks: int, seconds: float) -> Iterator[Row]:
    """What a task takes that does nearly nothing, beside the engine's own that do nothing."""
    rounds = 5 if seconds else 1
    for who, peers in ((Weft, RAY), (WeftDask, DASK)) if seconds else ((WeftDask, DASK),):
        one = who(Path(), Path())
        one.noops(tasks)
        ours = median(one.noops(tasks) for _ in range(rounds))
        one.close()
        for name, peer in peers.items():
            with noops(name) as own:
                own(tasks)
                theirs = median(own(tasks) for _ in range(rounds))
            micro = 1e6 / tasks
            yield Row.against(
                f"cluster/noop-{name}", ours * micro, peer, theirs * micro, "µs", rounds
            )
