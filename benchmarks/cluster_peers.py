"""The same jobs in dask.array, cubed and NumPy, as those who know them would write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster_data import WEIGHTS, Sizes, blurred

RADIUS = len(WEIGHTS) // 2
WORKERS = 2
Chunk = tuple[int, ...]


class Numpy:
    """All of it in memory, with two threads: no storage, no workers."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.a, self.b = (np.load(folder / f"{name}.npy") for name in "ab")

    @staticmethod
    def chunks(what: str, sizes: Sizes) -> list[Chunk]:
        """What is worth trying for a job, the best first."""
        return [(0,)] if what == "matmul" else []

    def matmul(self, out: Path, chunk: Chunk) -> None:
        """The product of two matrices."""
        self.found = self.a @ self.b

    def moved(self) -> int:
        """The bytes that went from worker to worker so far."""
        return 0


class Dask:
    """dask.array on two workers of Dask.distributed."""

    @staticmethod
    def chunks(what: str, sizes: Sizes) -> list[Chunk]:
        """What is worth trying for a job, the best first."""
        if what == "matmul":
            n = sizes.matrix
            return [(n // 2, n // 2), (n // 2, n // 4), (n // 4, n // 4), (n // 3, n // 3)]
        n = sizes.volume
        return [
            (n, n // 4, n // 4),
            (n, n // 8, n // 2),
            (n, n // 2, n // 4),
            (n // 2, n // 2, n // 4),
            (n // 4, n // 4, n // 2),
        ]

    def __init__(self, folder: Path, scratch: Path) -> None:
        import distributed

        self.folder = folder
        self.cluster = distributed.LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
        )
        self.client = distributed.Client(self.cluster)

    def _read(self, name: str, chunk: Chunk) -> Any:
        import dask.array as da

        return da.from_zarr(str(self.folder / f"{name}.zarr"), chunks=chunk)

    def matmul(self, out: Path, chunk: Chunk) -> None:
        """The product of two matrices, block by block."""
        a, b = self._read("a", chunk), self._read("b", chunk)
        made = a @ b
        made.to_zarr(_empty(out, made.shape, made.chunksize, made.dtype, None))

    def blur(self, out: Path, chunk: Chunk) -> None:
        """Three passes in one function, with all that is needed around, and the mean."""
        x = self._read("volume", chunk)
        depth = tuple(0 if c >= n else RADIUS for c, n in zip(chunk, x.shape))
        made = x.map_overlap(blurred, depth=depth, boundary=0, dtype="float32", meta=x._meta)
        mean = made.mean(axis=0)
        mean.to_zarr(_empty(out, mean.shape, mean.chunksize, mean.dtype, "auto"))

    def moved(self) -> int:
        """What the workers say that came to them so far."""
        logs = self.client.run(lambda dask_worker: list(dask_worker.transfer_incoming_log))
        return sum(int(each["total"]) for log in logs.values() for each in log)

    def close(self) -> None:
        """Stop the workers."""
        self.client.close()
        self.cluster.close()


class Cubed:
    """cubed with its executor for one machine, two threads or two processes."""

    executor = "threads"

    @staticmethod
    def chunks(what: str, sizes: Sizes) -> list[Chunk]:
        """What is worth trying for a job, the best first; the chunks in storage need no copy."""
        if what == "matmul":
            n = sizes.matrix
            return [(n // 2, n // 2), (n // 4, n // 4), (n // 2, n // 4)]
        n, stored = sizes.volume, (sizes.chunk,) * 3
        return [(n, n // 4, n // 4), stored, (n, n // 8, n // 2), (n // 4, n // 4, n // 2)]

    def __init__(self, folder: Path, scratch: Path) -> None:
        import cubed

        self.cubed, self.folder, self.scratch = cubed, folder, scratch
        self.spec = cubed.Spec(
            work_dir=str(scratch),
            allowed_mem="4GB",
            executor_name=self.executor,
            executor_options={"max_workers": WORKERS},
            zarr_compressor=None,
        )

    def _read(self, name: str, chunk: Chunk) -> Any:
        x = self.cubed.from_zarr(str(self.folder / f"{name}.zarr"), spec=self.spec)
        return self.cubed.rechunk(x, chunk) if x.chunksize != chunk else x

    def matmul(self, out: Path, chunk: Chunk) -> None:
        """The product of two matrices, block by block."""
        import cubed.array_api as xp

        made = xp.matmul(self._read("a", chunk), self._read("b", chunk))
        self.cubed.to_zarr(made, str(out))

    def blur(self, out: Path, chunk: Chunk) -> None:
        """Three passes in one function, with all that is needed around, and the mean."""
        import cubed.array_api as xp

        x = self._read("volume", chunk)
        depth = {d: 0 if c >= n else RADIUS for d, (c, n) in enumerate(zip(chunk, x.shape))}

        def inside(block: Any) -> Any:
            ends = (slice(d, n - d) for d, n in zip(depth.values(), block.shape))
            return blurred(block)[tuple(ends)]

        made = self.cubed.map_overlap(
            inside, x, dtype=x.dtype, chunks=x.chunks, depth=depth, boundary=0, trim=False
        )
        self.cubed.to_zarr(xp.mean(made, axis=0), str(out))

    def moved(self) -> int:
        """What went through storage on its way so far: cubed has no other."""
        return sum(file.stat().st_size for file in self.scratch.rglob("*") if file.is_file())


class CubedProcesses(Cubed):
    """The same with two processes."""

    executor = "processes"


def _empty(out: Path, shape: Any, chunks: Any, dtype: Any, compressors: Any) -> Any:
    """An array in storage to write to, all chunks of a size."""
    import zarr

    return zarr.create_array(
        out, shape=shape, chunks=chunks, dtype=dtype, compressors=compressors, fill_value=0
    )


@contextmanager
def noops(engine: str) -> Iterator[Any]:
    """Return a function that runs no-op tasks of an engine itself and returns the seconds."""
    if engine == "dask":
        with _dask_noops() as run:
            yield run
    else:
        with _ray_noops(engine) as run:
            yield run


@contextmanager
def _dask_noops() -> Iterator[Any]:
    from weft.runtime.cluster import Dask as Engine

    with Engine(workers=WORKERS) as engine:

        def run(count: int) -> float:
            begin = time.perf_counter()
            submit = engine.client.submit
            engine.client.gather([submit(_nothing, n, pure=False) for n in range(count)])
            return time.perf_counter() - begin

        yield run


def _nothing(_: object = None) -> None:
    """A task that does nothing."""


@contextmanager
def _ray_noops(engine: str) -> Iterator[Any]:
    import ray

    from weft.runtime.cluster.engines.ray_cluster import start_ray

    start_ray(ray, WORKERS, None)
    function = ray.remote(_nothing)
    actors = [] if engine == "ray" else [ray.remote(_Idle).remote() for _ in range(WORKERS)]

    def run(count: int) -> float:
        begin = time.perf_counter()
        if actors:
            ray.get([actors[n % WORKERS].nothing.remote() for n in range(count)])
        else:
            ray.get([function.remote() for _ in range(count)])
        return time.perf_counter() - begin

    try:
        yield run
    finally:
        ray.shutdown()


class _Idle:
    """An actor that does nothing."""

    def nothing(self) -> None:
        """Do nothing."""
