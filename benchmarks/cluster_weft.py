"""The cluster benchmark's jobs as plans."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster_data import WEIGHTS, Sizes
from benchmarks.cluster_peers import WORKERS
from weft import Plan, communication, ops, propagate, run, trace
from weft.runtime.cluster import Dask, Output, Ray


class Weft:
    """Plans for two cells, on an engine of two workers."""

    engine: Any = Ray
    memory = 256 << 20
    """What a worker may have of arrays."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.engine, self.bytes = folder, type(self).engine(workers=WORKERS), 0

    @staticmethod
    def chunks(what: str, sizes: Sizes) -> list[tuple[int, ...]]:
        """The plan knows which boxes it reads."""
        return [(0,)]

    def matmul(self, out: Path, chunk: tuple[int, ...]) -> None:
        """Rows of one matrix times all of the other."""
        size = np.load(self.folder / "a.npy", mmap_mode="r").shape[0]
        plan = _planned(lambda a, b: a @ b, (size, size), (size, size), a='[{"w"}, {}]')
        self._run(
            plan, {"a": "a.zarr", "b": "b.zarr"}, Output(out, (size // 4,) * 2, codecs="none")
        )

    def blur(self, out: Path, chunk: tuple[int, ...]) -> None:
        """Three correlations and a mean; what is cut comes first, so that it is read with halos."""
        import zarr

        shape = zarr.open_array(self.folder / "volume.zarr", mode="r").shape

        def program(x: Any, weights: Any) -> Any:
            for dim in (1, 0, 2):
                x = ops.correlate(x, weights, dim)
            return x.mean(0)

        plan = _planned(program, shape, WEIGHTS.shape, dtype="float32", x='[{}, {"w"}, {}]')
        self._run(plan, {"x": "volume.zarr", "weights": WEIGHTS}, Output(out))

    def _run(self, plan: Plan, given: dict[str, Any], output: Output) -> None:
        inputs = {n: str(self.folder / x) if isinstance(x, str) else x for n, x in given.items()}
        (name,) = plan.graph.outputs
        with communication() as moved:
            run(plan, inputs, on=self.engine, outputs={name: output}, memory=self.memory)
        self.bytes += moved.received

    def moved(self) -> int:
        """The bytes that went from worker to worker so far."""
        return self.bytes

    def noops(self, count: int) -> float:
        """Tasks that do nearly nothing, each for a cell of its own."""
        x = np.ones((count, 1))
        plan = _planned(lambda x: -x, x.shape, cells=count, x='[{"w"}, {}]')
        begin = time.perf_counter()
        run(plan, {"x": x}, on=self.engine)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Stop the workers."""
        self.engine.__exit__()


class WeftDask(Weft):
    """The same on Dask."""

    engine = Dask


def _planned(
    program: Any, *shapes: tuple[int, ...], cells: int = WORKERS, dtype: str = "float64", **cut: str
) -> Plan:
    arrays = [np.broadcast_to(np.zeros((), dtype), shape) for shape in shapes]
    return Plan.of(
        propagate(
            trace(
                program,
                *arrays,
                meshes=[f'@m = <["w"={cells}]>'],
                shardings={name: f"<@m, {spec}>" for name, spec in cut.items()},
            )
        )
    )
