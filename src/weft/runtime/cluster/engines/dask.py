"""`Dask`: tasks on a Dask.distributed cluster.

Every task is for one worker, and goes to another only if that one died. The active memory manager
and work stealing, which move blocks and tasks by rules of their own, are off meanwhile: then what
moves is what the plan says. A block moves from worker to worker when a task elsewhere reads it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import gone, lost
from weft.runtime.cluster.engines.limits import ONE_THREAD, check_memory, check_workers, setting
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.perform import Blocks, Came, Given, Program, perform
from weft.runtime.cluster.weaving.source import Leaf
from weft.runtime.cluster.weaving.task import Made, Task

LOOK = 1.0
"""The seconds that a wait lasts before the scheduler is looked at."""

PENDING = ("pending", "lost")
"""What Dask calls tasks that have still to run; the last had run, on a worker that died."""

RESTART = 12
"""Workers of a local cluster may take so many times five seconds to be there again."""


class Dask:
    """The workers of a client, of a scheduler at an address, or of a local cluster.

    >>> with Dask(workers=2) as engine:  # doctest: +SKIP
    ...     (y,) = weft.run(plan, inputs, on=engine)
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        client: Any = None,
        memory: int | None = None,
    ) -> None:
        self._dask, self._limit = needed("distributed", "dask"), workers
        self._said, self._is_ours = check_memory(memory), client is None
        self._cluster: Any = None
        self.client: Any = client
        self._manages = self._steals = False
        try:
            self._join(address)
        except BaseException:
            self._stop()
            raise

    def _join(self, address: str | None) -> None:
        """Be in a cluster, in which nothing moves by itself."""
        if self.client is None and address is None:
            count = check_workers(self._limit)
            self._cluster = _start_local(self._dask, count, self._said)
        if self.client is None:
            self.client = self._dask.Client(self._cluster or address, set_as_default=False)
        self._addresses = _addresses(self.client, self._limit)
        self._manages = bool(self.client.amm.running())
        if self._manages:
            self.client.amm.stop()
        self._steals = self._steal(False)

    @property
    def memory(self) -> int | None:
        """What was said, or else what the workers of a cluster that was there say."""
        if self._said is not None or self._cluster is not None:
            return self._said
        known = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return min((one["memory_limit"] for one in known if one["memory_limit"]), default=None)

    @property
    def workers(self) -> int:
        """How many take tasks now; of a local cluster it is always as many."""
        if self._cluster is not None:
            return len(self._cluster.worker_spec)
        return len(_addresses(self.client, self._limit))

    def start(self, program: Program) -> _Run:
        """Begin a run, with the workers that are there: one that died has another address now."""
        if _is_gone(self.client):
            raise _gone(self.client)
        if self._cluster is not None:
            self._revive()
        self._addresses = _addresses(self.client, self._limit)
        return _Run(self.client, self._addresses, program)

    def _revive(self) -> None:
        """Wait until workers that died are there again, each, or go on with the others."""
        for _ in range(RESTART):
            self._cluster.scale(self.workers)  # it gives up those that are away for a while
            with suppress(self._dask.TimeoutError):
                self.client.wait_for_workers(self.workers, timeout=5)
                return

    def _steal(self, is_on: bool) -> bool:
        was: bool = self.client.run_on_scheduler(_set_stealing, is_on=is_on)
        return was

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        """Leave the cluster as it was, or stop it."""
        is_there = self._cluster is None and not _is_gone(self.client)
        if is_there and self._manages:
            self.client.amm.start()
        if is_there and self._steals:
            self._steal(True)
        if self._is_ours and self.client is not None:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()


def _start_local(dask: Any, workers: int, memory: int | None) -> Any:
    """A cluster of this machine: on loopback alone, with no dashboard, a thread for each worker."""
    config = needed("dask", "dask").config
    alone = config.get("distributed.nanny.pre-spawn-environ") | ONE_THREAD
    settings = {
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.nanny.pre-spawn-environ": alone,
    }
    with config.set(settings), setting(ONE_THREAD):  # what is in the environment comes first
        return _steady(dask.LocalCluster)(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit="auto" if memory is None else memory,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},  # any port, for its health alone
        )


def _steady(kind: Any) -> Any:
    """A cluster that may hear of the end of a worker before it has heard of the worker."""

    class Steady(kind):  # type: ignore[misc]
        def _update_worker_status(self, op: str, msg: Any) -> None:
            with suppress(KeyError):
                super()._update_worker_status(op, msg)

    return Steady


def _is_gone(client: Any) -> bool:
    """Whether the scheduler does not answer; what it knew is lost even if it comes back."""
    return client is None or client.status != "running"


def _gone(client: Any) -> WeftError:
    where = client.scheduler.address if client.scheduler else "the scheduler"
    return gone(f"the Dask cluster at {where}")


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
        self.tasks: dict[str, Task] = {}
        text = needed("cloudpickle", "dask").dumps(program)
        # A task and no scattered value, so that a worker that dies does not take it along.
        self.program = client.submit(_program, text, key=f"program-{self.name}", priority=1)

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Any]], given: Array | None
    ) -> Any:
        cells, blocks = zip(*reads.values()) if reads else ((), ())
        job = pickle.dumps((self.name, task, cells))  # many small things: faster than by Dask
        key = f"{task.operator}-{task.kind}-{self.name}-{task.number}"
        self.tasks[key] = task
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(
                *(_perform, job, self.program, _cut(task, given), *blocks),
                key=key,
                workers=[self.addresses[worker % len(self.addresses)]],
                allow_other_workers=True,
                priority=-task.number,
                pure=False,
            )

    def release(self, handle: Any) -> None:
        handle.release()

    def wait(self, handles: Sequence[Any]) -> None:
        dask, pending = needed("distributed", "dask"), list(filter(self._is_pending, handles))
        while pending:
            if _is_gone(self.client):
                raise _gone(self.client)
            with suppress(dask.TimeoutError):
                for handle in dask.as_completed(pending, loop=self.client.loop, timeout=LOOK):
                    self._is_pending(handle)
            pending = list(filter(self._is_pending, pending))

    def _is_pending(self, handle: Any) -> bool:
        """Whether a task has still to run; one that failed raises."""
        status = handle.status
        if status not in (*PENDING, "finished"):
            raise self._failure(handle)
        return status in PENDING

    def is_done(self, handle: Any) -> bool:
        return handle.status not in PENDING

    def _failure(self, handle: Any) -> WeftError:
        """What a task raised, or which task it was that Dask gave up."""
        if _is_gone(self.client):
            return _gone(self.client)
        error = handle.exception()
        return error if isinstance(error, WeftError) else lost(self.tasks.get(handle.key), error)

    def gather(self, handles: Sequence[Any]) -> list[Blocks]:
        try:
            found: list[Blocks] = self.client.gather(list(handles))
        except (OSError, CancelledError):
            if _is_gone(self.client):
                raise _gone(self.client) from None
            raise
        return found

    def reports(self) -> list[Report]:
        if _is_gone(self.client):
            raise _gone(self.client)
        found = self.client.run(_reports, self.name, on_error="ignore")
        return [report for reports in found.values() for report in reports]

    def close(self) -> None:
        if not _is_gone(self.client):
            self.client.run(_forget, self.name, on_error="ignore")


def _cut(task: Task, given: Array | None) -> Given | None:
    """The box that a reader reads, which goes with the task: it can be read again elsewhere."""
    match task.made:
        case (Made(source=Leaf(box=box)),) if given is not None:
            return Given(np.ascontiguousarray(given[box.slices()]).reshape(box.shape), box.start)
    return None
