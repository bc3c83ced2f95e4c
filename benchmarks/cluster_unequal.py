"""Four workers of which one takes four times as long, beside the ideal split and Dask's stealing.

A task sleeps, so that the processors of this machine do not decide.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.row import Row
from weft import Plan, propagate, run, trace
from weft.lang import OPERATORS, Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import Dask, Ray, Threads

WORKERS, SLOWER = 4, 4
TASKS, SECONDS = 128, 0.05
IDEAL = TASKS * SECONDS / (WORKERS - 1 + 1 / SLOWER)
"""Seconds if every worker has work until the end."""
ENGINES: dict[str, Any] = {"threads": Threads, "ray": Ray, "dask": Dask}


def _sleeper(mark: Path) -> Callable[[], None]:
    """Return a function that sleeps, longer on the worker that called it first."""

    def sleep() -> None:
        me = f"{os.getpid()}-{threading.get_native_id()}"
        with suppress(FileExistsError):
            os.symlink(me, mark)
        is_slow = os.readlink(mark) == me
        time.sleep(SLOWER * SECONDS if is_slow else SECONDS)

    return sleep


def run_unequal(rounds: int) -> Iterator[Row]:
    """Return a row for each engine: how many times the ideal split it takes."""
    for name, engine in ENGINES.items():
        with TemporaryDirectory() as folder, engine(workers=WORKERS) as workers:
            taken = [_ours(workers, Path(folder) / str(n)) for n in range(rounds + 1)][1:]
            theirs = taken
            if name == "dask":
                workers._steal(True)
                paths = [Path(folder) / f"dask{n}" for n in range(rounds)]
                theirs = [_stealing(workers.client, path) for path in paths]
        ours = median(taken) / IDEAL
        if name == "dask":
            peer, value = "Dask's stealing", median(theirs) / IDEAL
        else:
            peer, value = "equal shares", SLOWER * TASKS / WORKERS * SECONDS / IDEAL
        yield Row.against(f"cluster/unequal-{name}", ours, peer, value, "x ideal", rounds)


def _ours(workers: Any, mark: Path) -> float:
    sleep = _sleeper(mark)

    def kernel(block: Any, x: Any) -> Any:
        sleep()
        return x + 1

    known = dict(OPERATORS)
    OPERATORS.add(Operator("sleep", "n -> n", kernel))
    try:
        x = np.zeros(TASKS)
        graph = trace(
            lambda x: apply_all("sleep", x)[0],
            x,
            meshes=[f'@m = <["x"={TASKS}]>'],
            shardings={"x": '<@m, [{"x"}]>'},
        )
        plan = Plan.of(propagate(graph))
        begin = time.perf_counter()
        run(plan, {"x": x}, on=workers)
        return time.perf_counter() - begin
    finally:
        OPERATORS.clear()
        OPERATORS.update(known)


def _stealing(client: Any, mark: Path) -> float:
    """Dask's own tasks, which begin on equal shares and may be stolen."""
    sleep = _sleeper(mark)
    begin = time.perf_counter()
    client.gather([client.submit(lambda n: sleep(), n, pure=False) for n in range(TASKS)])
    return time.perf_counter() - begin
