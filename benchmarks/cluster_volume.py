"""A volume many times larger than the memory of the workers: blurred and averaged, Zarr to Zarr.

`WEFT_VOLUME_GIB` says how large it is (20), `WEFT_WORKER_MIB` what a worker may use (512). The
limit is the bound that the plan says before it runs: the fraction is the most memory of a worker
over it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.row import Row
from weft import Plan, ops, propagate, trace
from weft.runtime.cluster import Engine, Output, Ray, RunRecord, recording, run_on
from weft.space import ZRange
from weft.store import create_shards

CHUNK, SHARD = 64, 128
RADIUS = 4
WEIGHTS = np.exp(-(np.arange(-RADIUS, RADIUS + 1) ** 2) / 8).astype("float32")
WEIGHTS /= WEIGHTS.sum()


def run(seconds: float) -> Iterator[Row]:
    """One row: how long it took, and how near the bound it came."""
    gib = float(os.environ.get("WEFT_VOLUME_GIB", "20")) if seconds else 1 / 64
    memory = int(os.environ.get("WEFT_WORKER_MIB", "512")) << 20
    side = round((gib * (1 << 30) / 4) ** (1 / 3) / CHUNK + 0.5) * CHUNK
    with tempfile.TemporaryDirectory() as name:
        folder, shape = Path(name), (side, side, side)
        write_volume(folder / "x", shape)
        with Ray(workers=2, memory=memory) as engine:
            record = blur(folder, shape, engine)
        error = worst(folder, shape)
    size, peak = 4 * side**3, max(task.peak for task in record.tasks)
    yield Row(
        name="cluster-volume/blur",
        weft=size / 1e9 / record.seconds,
        unit="GB/s",
        n=1,
        fraction=peak / (record.bound or 1),
        more={
            "GiB": size / 2**30,
            "times a worker's memory": size / memory,
            "seconds": record.seconds,
            "tasks": len(record.tasks),
            "peak, MiB": peak / 2**20,
            "bound, MiB": (record.bound or 0) / 2**20,
            "received, MB": record.total.received / 1e6,
            "error": error,
        },
    )


def plane(shape: tuple[int, ...], z: int, rows: slice = slice(None)) -> Any:
    """Rows of a plane of the volume: steps, which compress well, the same in eight planes each."""
    y, x = np.arange(shape[1], dtype="int16")[rows, None], np.arange(shape[2], dtype="int16")
    return ((x // 16 + y // 16 + z // 8) % 97).astype("float32")


def write_volume(path: Path, shape: tuple[int, int, int]) -> None:
    """The volume, a layer of shards at a time."""
    writer = create_shards(path, shape, "float32", (CHUNK,) * 3, (SHARD,) * 3, codecs="zstd")
    for z in range(0, shape[0], SHARD):
        stop = min(z + SHARD, shape[0])
        for y in range(0, shape[1], SHARD):
            end = min(y + SHARD, shape[1])
            planes = [plane(shape, k, slice(y, end)) for k in range(z, stop, 8)]
            part = np.repeat(np.stack(planes), 8, axis=0)[: stop - z]
            writer.write(ZRange((z, y, 0), (stop, end, shape[2])), part)


def blur(folder: Path, shape: tuple[int, ...], engine: Engine) -> RunRecord:
    """Blur along each dimension, then the mean over the first, on two workers."""

    def program(x: Any, weights: Any) -> Any:
        for dim in range(3):
            x = ops.correlate(x, weights, dim)
        return x.mean(0)

    cut = {"x": '<@m, [{"w"}, {}, {}]>'}
    graph = trace(program, shape, WEIGHTS.shape, meshes=['@m = <["w"=2]>'], shardings=cut)
    plan = Plan.of(propagate(graph))
    (name,) = plan.graph.outputs
    output = Output(folder / "y", (256, 256), codecs="zstd")
    with recording() as records:
        inputs = {"x": str(folder / "x"), "weights": WEIGHTS}
        run_on(engine, plan, inputs, {name: output})
    return records[0]


def worst(folder: Path, shape: tuple[int, ...]) -> float:
    """The largest error of the mean, computed plane by plane in double precision."""
    import zarr

    # A mean over z of a blur along z: every plane counts with the weights that stay inside.
    inside = np.convolve(np.ones(shape[0]), WEIGHTS.astype("float64"), mode="same")
    total = np.zeros(shape[1:])
    for z in range(shape[0]):
        total += inside[z] * plane(shape, z)
    for axis in (0, 1):
        total = np.apply_along_axis(np.convolve, axis, total, WEIGHTS.astype("float64"), "same")
    found = zarr.open_array(folder / "y", mode="r")[...]
    return float(np.abs(found - total / shape[0]).max())
