"""Distribution of host arrays over eight chips, compared with memcpy, JAX and DTensor's split.

In each round all candidates run one after the other, each after a pause that lets spinning threads
of the previous one stop; the result is the median round. The reference is memcpy: one contiguous
copy of as many bytes on two threads. Weft and memcpy write to existing memory; the rates of JAX,
DTensor and Weft with new memory are in `more`. A child process sets up eight devices for JAX.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.row import Row
from weft.space import ZRange
from weft.ttmesh.distribution import distribute
from weft.ttmesh.formats import DataType
from weft.ttmesh.mapper import Mapper
from weft.ttmesh.tile import shard_and_tile

Array: TypeAlias = NDArray[Any]
CHIPS = 8
PAUSE = 0.02
"""Seconds before each call."""
RUNS = {"runs-7KiB": 7168, "runs-2KiB": 2048, "runs-128B": 128}
"""Bytes of a row that one chip gets when the last dimension is cut."""


def run(seconds: float) -> Iterator[Row]:
    """Run the benchmark in a child process and return its rows."""
    flag = f"--xla_force_host_platform_device_count={CHIPS}"
    waiting = {
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
    }  # keeps torch from spinning while others run
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"} | waiting
    command = [sys.executable, "-m", "benchmarks.ttmesh", str(seconds)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for line in ran.stdout.splitlines():
        yield Row(**json.loads(line))


def rows(seconds: float) -> Iterator[Row]:
    """Measure contiguous shards, runs of decreasing length, and tiles."""
    size, rounds = (128 << 20, max(5, int(6 * seconds))) if seconds else (1 << 20, 1)
    yield contiguous(size, rounds)
    for name, length in RUNS.items():
        yield strided(name, length, size, rounds)
    for kind in (DataType.FLOAT32, DataType.UINT16):
        yield tiled(kind, size, rounds)


def contiguous(size: int, rounds: int) -> Row:
    """Cut the first dimension: no bytes are copied."""
    array = filled(size, 4096)
    boxes = Mapper((CHIPS,), [0]).boxes(array.shape)
    times = medians(rounds, {"weft": lambda: distribute(array, boxes)} | peers(array, 0))
    copied = sum(x.nbytes for x in distribute(array, boxes) if not np.shares_memory(x, array))
    more = {f"{who}, us": taken * 1e6 for who, taken in times.items()} | {"bytes copied": copied}
    return against("contiguous", times, "us", 1e6, rounds, more, better="lower")


def strided(name: str, length: int, size: int, rounds: int) -> Row:
    """Cut the last dimension: each chip gets a run of each row."""
    array = filled(size, length // 2 * CHIPS)
    boxes = Mapper((CHIPS,), [1]).boxes(array.shape)
    out = [np.zeros_like(shard) for shard in distribute(array, boxes)]
    calls = {
        "weft": lambda: distribute(array, boxes, out=out),
        "weft, new memory": lambda: distribute(array, boxes),
        "memcpy": memcpy(array),
    }
    times = medians(rounds, calls | peers(array, 1))
    return against(name, times, "GB/s", array.nbytes / 1e9, rounds)


def tiled(kind: DataType, size: int, rounds: int) -> Row:
    """Cut the last dimension and tile each shard."""
    array = filled(size, 4096).view(kind.storage)
    boxes: list[ZRange] = [box for (box,) in Mapper((CHIPS,), [1]).boxes(array.shape)]
    calls = {"weft": lambda: shard_and_tile(array, boxes, kind), "memcpy": memcpy(array)}
    times = medians(rounds, calls)
    return against(f"shard-and-tile-{kind.value}", times, "GB/s", array.nbytes / 1e9, rounds)


def filled(size: int, columns: int) -> Array:
    """Return an array of two-byte elements with a multiple of 32 rows."""
    count = max(1, size // (64 * columns)) * 32 * columns
    return np.arange(count, dtype=np.uint16).reshape(-1, columns)


def memcpy(array: Array) -> Callable[[], object]:
    """Return a function that copies the array on two threads, into existing memory."""
    source = array.reshape(-1)
    target, half = np.zeros_like(source), len(source) // 2

    def copy() -> None:
        other = threading.Thread(target=np.copyto, args=(target[:half], source[:half]))
        other.start()
        np.copyto(target[half:], source[half:])
        other.join()

    return copy


def peers(array: Array, dim: int) -> dict[str, Callable[[], object]]:
    """Return the other libraries that are installed."""
    calls: dict[str, Callable[[], object]] = {}
    with suppress(ImportError):
        calls["jax.device_put"] = by_jax(array, dim)
    with suppress(ImportError):
        calls["DTensor's split"] = by_dtensor(array, dim)
    return calls


def by_jax(array: Array, dim: int) -> Callable[[], object]:
    """Return a call of `device_put` with a sharding that waits for the result."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:CHIPS]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec(*[None] * dim, "x"))
    return lambda: jax.device_put(array, sharding).block_until_ready()


def by_dtensor(array: Array, dim: int) -> Callable[[], object]:
    """Return what `distribute_tensor` does on one host: contiguous chunks."""
    import torch

    torch.set_num_threads(2)
    tensor = torch.from_numpy(array)
    return lambda: [part.contiguous() for part in torch.chunk(tensor, CHIPS, dim)]


def medians(rounds: int, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the seconds of the median round of each call, after a warm-up round."""
    taken: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(rounds + 1):
        for who, call in calls.items():
            time.sleep(PAUSE)
            begin = time.perf_counter()
            call()
            taken[who].append(time.perf_counter() - begin)
    return {who: statistics.median(samples[1:]) for who, samples in taken.items()}


def against(
    name: str,
    times: dict[str, float],
    unit: str,
    scale: float,
    rounds: int,
    more: dict[str, float] | None = None,
    better: str = "higher",
) -> Row:
    """Return a row with the fastest peer and the fraction of memcpy."""
    value = {who: scale / t if better == "higher" else scale * t for who, t in times.items()}
    others = {
        who: t for who, t in times.items() if who not in ("weft", "weft, new memory", "memcpy")
    }
    row: dict[str, Any] = {
        "name": f"ttmesh/{name}",
        "weft": value["weft"],
        "unit": unit,
        "n": rounds,
    }
    if others:
        peer = min(others, key=lambda who: others[who])
        row |= {"peer": peer, "peer_value": value[peer], "ratio": times[peer] / times["weft"]}
    if "memcpy" in times:
        row["fraction"] = times["memcpy"] / times["weft"]
    shown = {f"{who}, {unit}": value[who] for who in times if who != "weft"}
    return Row(**row, more=more or shown)


def main() -> None:
    """Print the rows as JSON, unrounded."""
    for row in rows(float(sys.argv[1])):
        fields = ("name", "weft", "unit", "n", "peer", "peer_value", "ratio", "fraction", "more")
        print(json.dumps({field: getattr(row, field) for field in fields}), flush=True)


if __name__ == "__main__":
    main()
