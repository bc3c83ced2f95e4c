"""Measure what a cell of this host reaches while all cells are busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from weft.layout import DeviceMesh, ShardingSpec
from weft.runtime import Tensor

DTYPES = ("float32", "float64", "float16", "complex64", "int8", "int32", "int64")
THREADED = ("float32", "float64", "complex64")
"""Data types for which NumPy calls a library that uses all cores."""

MOST_CALLS = 25
PLAIN_SIZE = 160
"""The size of matrices that NumPy multiplies without such a library, about 100 times slower."""


class Effort(NamedTuple):
    """How long to measure, and on how much data."""

    seconds: float
    """Seconds for each figure."""
    copied: int
    """Bytes to copy, over all cells."""
    size: int
    """The size of matrices: large, so that synchronising threads on a busy host matters little."""


FULL, QUICK = Effort(0.15, 1 << 27, 1024), Effort(0.02, 1 << 26, 512)


def flops(dtype: str, cells: int, effort: Effort) -> float:
    """Return the operations per second of a cell, from products of matrices."""
    threaded = dtype in THREADED
    size = effort.size if threaded else PLAIN_SIZE
    matrix = _ones(dtype, size, size)
    rate = 2 * size**3 / median(_times(partial(np.matmul, matrix, matrix), effort.seconds))
    cores = 1 if threaded else os.cpu_count() or 1
    return rate * min(1.0, cores / cells)


def copying(cells: int, effort: Effort) -> float:
    """Return the bytes per second that a cell reads and writes while all cells copy arrays."""
    size = effort.copied // 8 // cells
    pairs = [(_ones("float64", size), _ones("float64", size)) for _ in range(cells)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        run = partial(_side_by_side, pool, pairs)
        return 2 * 8 * size / median(_times(run, effort.seconds))


def _side_by_side(pool: ThreadPoolExecutor, pairs: list[Any]) -> None:
    list(pool.map(lambda pair: np.copyto(*pair), pairs))


def exchange(effort: Effort) -> tuple[float, float]:
    """Return the latency and the bandwidth of transfers between two workers.

    Both gather the halves of an array; the bandwidth counts all received bytes.
    """
    mesh = DeviceMesh("host", (2,), ("worker",))
    halves, whole = (ShardingSpec.parse(f"<@host, [{{{a}}}]>", mesh) for a in ('"worker"', ""))

    def taken(size: int) -> float:
        tensor = Tensor(_ones("float64", size)).with_sharding(halves)
        return median(_times(lambda: tensor.with_sharding(whole), effort.seconds))

    size = effort.copied // 8
    latency = taken(2)
    return latency, 8 * size / max(taken(size) - latency, 1e-9)


def _ones(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def _times(function: Callable[[], object], budget: float) -> list[float]:
    """Return the times of at least three calls within a budget in seconds, after a first call."""
    function()
    taken: list[float] = []
    while len(taken) < MOST_CALLS and (len(taken) < 3 or sum(taken) < budget):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return taken
