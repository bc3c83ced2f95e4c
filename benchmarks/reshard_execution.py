"""Rows to columns, executed: 64 MiB in four shards, beside NumPy's copies, JAX and DTensor.

JAX needs its devices before it starts, and DTensor a process for each rank, so that both run in
processes of their own; ours is timed between NumPy's copies, in one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.row import Row, time_each
from weft import DeviceMesh, ShardingSpec, Tensor

MESH = DeviceMesh("m", (4,), ("x",))
ROWS, COLUMNS = (ShardingSpec.parse(t, MESH) for t in ('<@m, [{"x"}, {}]>', '<@m, [{}, {"x"}]>'))


def run(seconds: float) -> Iterator[Row]:
    """The rows of this benchmark."""
    side = 4096 if seconds else 256
    tensor = Tensor(np.ones((side, side), "float32")).with_sharding(ROWS)
    shards = [np.ascontiguousarray(shard) for shard in tensor.shards]
    tensor = Tensor.of_shards(shards, ROWS, tensor.shape)
    part = side // 4

    def copies() -> list[np.ndarray]:
        made = []
        for column in range(4):
            whole = np.empty((side, part), "float32")
            for row, shard in enumerate(shards):
                into = slice(row * part, row * part + part)
                whole[into] = shard[:, column * part : column * part + part]
            made.append(whole)
        return made

    (ours, numpy), n = time_each(lambda: tensor.with_sharding(COLUMNS), copies, seconds=seconds)
    yield Row.against("reshard/execute-numpy", ours * 1e3, "NumPy copies", numpy * 1e3, "ms", n)
    for peer in ("jax", "dtensor"):
        taken = _elsewhere(peer, side, seconds)
        name = {"jax": "jax.device_put", "dtensor": "DTensor over gloo"}[peer]
        yield Row.against(f"reshard/execute-{peer}", ours * 1e3, name, taken * 1e3, "ms", n)


def _elsewhere(peer: str, side: int, seconds: float) -> float:
    """What a peer takes in a process of its own, in seconds."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, peer, str(side), str(seconds)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(ran.stdout.splitlines()[-1]))


def _jax(side: int, seconds: float) -> float:
    import os

    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((4,), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x", None))
    columns = NamedSharding(mesh, PartitionSpec(None, "x"))
    array = jax.device_put(np.ones((side, side), "float32"), rows)
    (taken,), _ = time_each(
        lambda: jax.device_put(array, columns).block_until_ready(), seconds=seconds
    )
    return taken


def _rank(rank: int, address: str, side: int, seconds: float) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (4,))
    array = distribute_tensor(torch.ones(side, side), mesh, [Shard(0)])
    samples = []
    for _ in range(3 if seconds < 1 else 10):
        dist.barrier()
        begin = time.perf_counter()
        array.redistribute(mesh, [Shard(1)])
        dist.barrier()
        samples.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps(statistics.median(samples)), flush=True)
    dist.destroy_process_group()


def _dtensor(side: int, seconds: float) -> None:
    import tempfile

    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"file://{folder}/ranks", side, seconds)
        multiprocessing.start_processes(_rank, arguments, 4, start_method="fork")


if __name__ == "__main__":
    which, size, budget = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if which == "jax":
        print(json.dumps(_jax(size, budget)))
    else:
        _dtensor(size, budget)
