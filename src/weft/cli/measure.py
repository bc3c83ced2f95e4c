"""Measures this host: what a cell of it gets while all of them are busy."""

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
"""What NumPy hands to a library that uses all cores by itself."""

MOST_CALLS = 25
PLAIN_SIZE = 160
"""Of the matrices that NumPy multiplies by itself, some hundred times slower."""


class Effort(NamedTuple):
    """How long to measure."""

    seconds: float
    """For one figure."""
    copied: int
    """The bytes of all cells."""
    size: int
    """Of matrices: large, since threads that wait for each other on a busy host cost the same."""


FULL, QUICK = Effort(0.15, 1 << 27, 1024), Effort(0.02, 1 << 26, 512)


def flops(dtype: str, cells: int, effort: Effort) -> float:
    """The operations in a second of a cell, from products of matrices."""
    threaded = dtype in THREADED
    size = effort.size if threaded else PLAIN_SIZE
    matrix = _ones(dtype, size, size)
    rate = 2 * size**3 / median(_times(partial(np.matmul, matrix, matrix), effort.seconds))
    cores = 1 if threaded else os.cpu_count() or 1
    return rate * min(1.0, cores / cells)


def copying(cells: int, effort: Effort) -> float:
    """The bytes in a second that a cell reads and writes while all of them copy arrays."""
    size = effort.copied // 8 // cells
    pairs = [(_ones("float64", size), _ones("float64", size)) for _ in range(cells)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        run = partial(_side_by_side, pool, pairs)
        return 2 * 8 * size / median(_times(run, effort.seconds))


def _side_by_side(pool: ThreadPoolExecutor, pairs: list[Any]) -> None:
    list(pool.map(lambda pair: np.copyto(*pair), pairs))


def exchange(effort: Effort) -> tuple[float, float]:
    """The seconds to start, and the bytes in a second, of what two workers send to each other.

    Both gather the halves of an array through the exchange; all that comes is counted.
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
    """What calls take, at least three and at most so many seconds; the first does not count."""
    function()
    taken: list[float] = []
    while len(taken) < MOST_CALLS and (len(taken) < 3 or sum(taken) < budget):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return taken
