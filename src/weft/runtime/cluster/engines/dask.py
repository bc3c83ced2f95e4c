"""`Dask`: run tasks on a Dask.distributed cluster.

Every task is submitted to one worker, and runs on another only if that one dies. The active memory
manager and work stealing, which move blocks and tasks on their own, are off during runs, so that
only what the plan says is moved: a block moves when a task on another worker reads it. Reports go
to the scheduler before the results do, so that they are not lost with a worker.
"""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from math import inf
from typing import Any, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import (
    ONE_THREAD,
    check_memory,
    check_workers,
    cluster_lost,
    environment,
    task_lost,
)
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.tasks import InputBox, Task, TaskOutput
from weft.runtime.cluster.worker import Blocks, GivenInput, ReceivedBlocks, WorkerContext, run_task

POLL_SECONDS = 2e-3
"""How often it is checked whether a task has ended; a report ends a wait at once."""

PENDING = ("pending", "lost")
"""Dask's states of tasks that have still to run; the last had run, on a worker that died."""

GRACE_SECONDS, RESTART_SECONDS = 2.0, 60
"""How long a task that is not needed may go on; how long the restart of its worker may take."""

RESTART_TRIES = 12
"""How often to wait five seconds for the workers of a local cluster to restart."""


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
        self._memory, self._is_ours = check_memory(memory), client is None
        self._cluster: Any = None
        self.client: Any = client
        self._manages = self._steals = False
        try:
            self._join(address)
        except BaseException:
            self._stop()
            raise

    def _join(self, address: str | None) -> None:
        """Connect to a cluster or start one, and turn off what moves blocks by itself."""
        if self.client is None and address is None:
            count = check_workers(self._limit)
            self._cluster = _start_local(self._dask, count, self._memory)
        if self.client is None:
            self.client = self._dask.Client(self._cluster or address, set_as_default=False)
        self._addresses = _addresses(self.client, self._limit)
        self._manages = bool(self.client.amm.running())
        if self._manages:
            self.client.amm.stop()
        self._steals = self._steal(False)

    @property
    def memory(self) -> int | None:
        """The limit that was given, or that of the workers of an existing cluster."""
        if self._memory is not None or self._cluster is not None:
            return self._memory
        known = _workers(self.client).values()
        return min((one["memory_limit"] for one in known if one["memory_limit"]), default=None)

    @property
    def workers(self) -> int:
        """The number of workers that take tasks now; constant in a local cluster."""
        if self._cluster is not None:
            return len(self._cluster.worker_spec)
        return len(_addresses(self.client, self._limit))

    def start(self, context: WorkerContext) -> _DaskSession:
        """Start a run on the current workers: one that was restarted has another address."""
        if _is_gone(self.client):
            raise _lost(self.client)
        if self._cluster is not None:
            self._wait_for_workers()
        self._addresses = _addresses(self.client, self._limit)
        return _DaskSession(self.client, self._addresses, context)

    def _wait_for_workers(self) -> None:
        """Wait until workers that died have restarted, or go on with the others."""
        for _ in range(RESTART_TRIES):
            self._cluster.scale(self.workers)  # it drops workers that are away for a while
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
        """Restore the settings of the cluster, or stop it."""
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
    """Start a cluster on this machine: loopback only, no dashboard, one thread for each worker."""
    config = needed("dask", "dask").config
    alone = config.get("distributed.nanny.pre-spawn-environ") | ONE_THREAD
    settings = {
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.nanny.pre-spawn-environ": alone,
    }
    with config.set(settings), environment(ONE_THREAD):  # variables that are set take precedence
        return _steady(dask.LocalCluster)(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit="auto" if memory is None else memory,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={
                "dashboard_address": "127.0.0.1:0"
            },  # any port, for health checks only
        )


def _steady(kind: Any) -> Any:
    """Return a cluster class that accepts the end of a worker whose start it has not seen yet."""

    class Steady(kind):  # type: ignore[misc]
        def _update_worker_status(self, op: str, msg: Any) -> None:
            with suppress(KeyError):
                super()._update_worker_status(op, msg)

    return Steady


def _is_gone(client: Any) -> bool:
    """Return whether the scheduler does not answer; its state is lost even if it comes back."""
    return client is None or client.status != "running"


def _lost(client: Any) -> WeftError:
    where = client.scheduler.address if client.scheduler else "the scheduler"
    return cluster_lost(f"the Dask cluster at {where}")


def _workers(client: Any) -> dict[str, Any]:
    """Return the scheduler's own list of its workers.

    `client.scheduler_info` returns what the client remembers, which a refresh on a timer may
    replace by a list without workers between the asking and the answer.
    """
    found: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return found


def _addresses(client: Any, limit: int | None) -> list[str]:
    found = sorted(_workers(client))
    check_workers(len(found))
    return found[:limit]


async def _set_stealing(dask_scheduler: Any, is_on: bool) -> bool:
    """Turn work stealing on or off; return whether it was on."""
    was, stealing = "stealing" in dask_scheduler.periodic_callbacks, dask_scheduler.extensions
    if "stealing" in stealing:
        await (stealing["stealing"].start() if is_on else stealing["stealing"].stop())
    return was


def _context(text: bytes) -> WorkerContext:
    found: WorkerContext = needed("cloudpickle", "dask").loads(text)
    return found


def _run(job: bytes, context: WorkerContext, given: GivenInput | None, *blocks: Blocks) -> Blocks:
    run, task, cells = pickle.loads(job)
    received = {n: ReceivedBlocks(*pair) for n, pair in zip(task.needs, zip(cells, blocks))}
    made, report = run_task(context, task, received, given)
    needed("distributed", "dask").get_worker().log_event(run, pickle.dumps(report))
    return made


def _forget(run: str, dask_scheduler: Any) -> None:
    """Free the reports of a run, which the scheduler keeps."""
    dask_scheduler._broker._topics.pop(run, None)


class _DaskSession:
    def __init__(self, client: Any, addresses: Sequence[str], context: WorkerContext) -> None:
        self.client, self.addresses, self.name = client, addresses, uuid4().hex
        self.tasks: dict[str, Task] = {}
        self.found, self.news = list[Report](), threading.Event()
        client.subscribe_topic(self.name, self._hear)
        text = needed("cloudpickle", "dask").dumps(context)
        # A task, not a scattered value, so that it is not lost with a worker.
        self.context = client.submit(_context, text, key=f"context-{self.name}", priority=1)

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Any]], given: Array | None
    ) -> Any:
        cells, blocks = zip(*reads.values()) if reads else ((), ())
        job = pickle.dumps((self.name, task, cells))  # faster than Dask for many small objects
        key = f"{task.operator}-{task.kind}-{self.name}-{task.number}-{len(self.tasks)}"
        self.tasks[key] = task
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(
                *(_run, job, self.context, _part(task, given), *blocks),
                key=key,
                workers=[self.addresses[worker % len(self.addresses)]],
                allow_other_workers=True,
                priority=-task.number,
                pure=False,
            )

    def release(self, handle: Any) -> None:
        handle.release()

    def _hear(self, event: tuple[float, bytes]) -> None:
        """Take a report that a worker has sent."""
        self.found.append(pickle.loads(event[1]))
        self.news.set()

    def wait(self, handles: Sequence[Any], seconds: float | None = None) -> list[Any]:
        end = inf if seconds is None else time.monotonic() + seconds
        while True:
            self.news.clear()
            if _is_gone(self.client):
                raise _lost(self.client)
            ended = [handle for handle in handles if not self._is_pending(handle)]
            if ended or time.monotonic() >= end:
                return ended
            self.news.wait(POLL_SECONDS)

    def _is_pending(self, handle: Any) -> bool:
        """Return whether a task has still to run; one that failed raises."""
        status = handle.status
        if status not in (*PENDING, "finished"):
            raise self._failure(handle)
        return status in PENDING

    def is_done(self, handle: Any) -> bool:
        return handle.status not in PENDING

    def _failure(self, handle: Any) -> WeftError:
        """Return what a task raised, or the error for a task that Dask gave up."""
        if _is_gone(self.client):
            return _lost(self.client)
        error = handle.exception()
        return (
            error if isinstance(error, WeftError) else task_lost(self.tasks.get(handle.key), error)
        )

    def gather(self, handles: Sequence[Any]) -> list[Blocks]:
        try:
            found: list[Blocks] = self.client.gather(list(handles))
        except (OSError, CancelledError):
            if _is_gone(self.client):
                raise _lost(self.client) from None
            raise
        return found

    def reports(self) -> Sequence[Report]:
        return self.found

    def abandon(self, attempts: Sequence[tuple[Any, int]]) -> None:
        end = time.monotonic() + GRACE_SECONDS
        left = list(attempts)
        while left and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            left = [attempt for attempt in left if not self.is_done(attempt[0])]
        for handle, _ in left:
            handle.release()
        places = {self.addresses[worker % len(self.addresses)] for _, worker in left}
        if places & set(_workers(self.client)):
            self.client.restart_workers(list(places), timeout=RESTART_SECONDS)

    def close(self) -> None:
        if not _is_gone(self.client):
            self.client.unsubscribe_topic(self.name)
            self.client.run_on_scheduler(_forget, self.name)


def _part(task: Task, given: Array | None) -> GivenInput | None:
    """Return the box of an input that a task reads; it travels with the task, which may move."""
    match task.blocks:
        case (TaskOutput(array=InputBox(box=box)),) if given is not None:
            return GivenInput(
                np.ascontiguousarray(given[box.slices()]).reshape(box.shape), box.start
            )
    return None
