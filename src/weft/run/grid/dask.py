"""`Dask`: tasks on a Dask.distributed cluster.

Every task is for one worker, and goes to another only if that one died. The active memory manager
and work stealing, which move blocks and tasks by rules of their own, are off meanwhile: then what
moves is what the plan says. A block moves from worker to worker when a task elsewhere reads it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import uuid4

import numpy as np

from weft.extra import needed
from weft.run.arrays import Array
from weft.run.grid.local import check_workers
from weft.run.grid.perform import Blocks, Came, Given, Program, perform
from weft.run.grid.report import Report
from weft.run.grid.source import Leaf
from weft.run.grid.task import Made, Task


class Dask:
    """The workers of a client, of a scheduler at an address, or of a local cluster.

    >>> with Dask(workers=2) as engine:  # doctest: +SKIP
    ...     (y,) = weft.run(plan, inputs, on=engine)
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, client: Any = None
    ) -> None:
        self._dask = needed("distributed", "dask")
        is_alone = client is None and address is None
        self._cluster = _start_local(self._dask, check_workers(workers)) if is_alone else None
        self._is_ours = client is None
        where = self._cluster or address
        self.client: Any = client or self._dask.Client(where, set_as_default=False)
        self._limit, self._addresses = workers, _addresses(self.client, workers)
        self._manages, self._steals = bool(self.client.amm.running()), self._steal(False)
        if self._manages:
            self.client.amm.stop()

    @property
    def workers(self) -> int:
        """How many take tasks now."""
        return len(self._addresses)

    def start(self, program: Program) -> _Run:
        """Begin a run, with the workers that are there: one that died has another address now."""
        self._addresses = _addresses(self.client, self._limit)
        return _Run(self.client, self._addresses, program)

    def _steal(self, is_on: bool) -> bool:
        was: bool = self.client.run_on_scheduler(_set_stealing, is_on=is_on)
        return was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._manages:
            self.client.amm.start()
        self._steal(self._steals)
        if self._is_ours:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()


def _start_local(dask: Any, workers: int) -> Any:
    """A cluster of this machine: on loopback alone, with no dashboard."""
    settings = {"distributed.scheduler.active-memory-manager.start": False}
    with needed("dask", "dask").config.set(settings):
        return dask.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any port, for its health alone
        )


def _addresses(client: Any, limit: int | None) -> list[str]:
    found = sorted(client.scheduler_info(n_workers=-1)["workers"])
    check_workers(len(found))
    return found[:limit]


async def _set_stealing(dask_scheduler: Any, is_on: bool) -> bool:
    """Turn work stealing on or off; whether it was on."""
    was, stealing = "stealing" in dask_scheduler.periodic_callbacks, dask_scheduler.extensions
    if "stealing" in stealing:
        await (stealing["stealing"].start() if is_on else stealing["stealing"].stop())
    return was


_DONE: dict[str, list[Report]] = {}
"""What tasks took on this worker, run by run."""


def _program(text: bytes) -> Program:
    found: Program = needed("cloudpickle", "dask").loads(text)
    return found


def _perform(job: bytes, program: Program, given: Given | None, *blocks: Blocks) -> Blocks:
    run, task, cells = pickle.loads(job)
    came = {n: Came(*pair) for n, pair in zip(task.reads, zip(cells, blocks))}
    made, report = perform(program, task, came, given)
    _DONE.setdefault(run, []).append(report)
    return made


def _reports(run: str) -> list[Report]:
    return _DONE.get(run, [])


def _forget(run: str) -> None:
    _DONE.pop(run, None)


class _Run:
    def __init__(self, client: Any, addresses: Sequence[str], program: Program) -> None:
        self.client, self.addresses, self.name = client, addresses, uuid4().hex
        text = needed("cloudpickle", "dask").dumps(program)
        # A task and no scattered value, so that a worker that dies does not take it along.
        self.program = client.submit(_program, text, key=f"program-{self.name}", priority=1)

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Any]], given: Array | None
    ) -> Any:
        cells, blocks = zip(*reads.values()) if reads else ((), ())
        job = pickle.dumps((self.name, task, cells))  # many small things: faster than by Dask
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(
                *(_perform, job, self.program, _cut(task, given), *blocks),
                key=f"{task.operator}-{task.kind}-{self.name}-{task.number}",
                workers=[self.addresses[worker]],
                allow_other_workers=True,
                priority=-task.number,
                pure=False,
            )

    def release(self, handle: Any) -> None:
        handle.release()

    def wait(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            if (error := handle.exception()) is not None:
                raise error

    def gather(self, handles: Sequence[Any]) -> list[Blocks]:
        found: list[Blocks] = self.client.gather(list(handles))
        return found

    def reports(self) -> list[Report]:
        found = self.client.run(_reports, self.name, on_error="ignore")
        return [report for reports in found.values() for report in reports]

    def close(self) -> None:
        self.client.run(_forget, self.name, on_error="ignore")


def _cut(task: Task, given: Array | None) -> Given | None:
    """The box that a reader reads, which goes with the task: it can be read again elsewhere."""
    match task.made:
        case (Made(source=Leaf(box=box)),) if given is not None:
            return Given(np.ascontiguousarray(given[box.slices()]).reshape(box.shape), box.start)
    return None
