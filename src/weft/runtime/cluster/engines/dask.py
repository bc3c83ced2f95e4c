"""`Dask`: run tasks on a Dask.distributed cluster.

Every call is submitted to one worker, and runs on another only if that one dies. The active memory
manager and work stealing, which move blocks and tasks on their own, are off during runs, so that
only what the plan says is moved: a block moves when a task on another worker reads it. A call has
ended when its reports have arrived, which go to the scheduler before its results do: they are not
lost with a worker, and nothing has to be asked for.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from math import inf
from typing import Any, Self
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.calls import SMALL, Call, CallSession, check_open, pack, run_call
from weft.runtime.cluster.engines.engine import (
    ONE_THREAD,
    check_memory,
    check_workers,
    cluster_lost,
    environment,
    task_lost,
)
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import Blocks, WorkerContext
from weft.space import ZRange
from weft.values import Point

POLL_SECONDS = 0.05
"""How often it is checked whether a call has failed; a report ends a wait at once."""

PENDING = ("pending", "lost")
"""Dask's states of calls that have still to run; the last had run, on a worker that died."""

RESTART_SECONDS = 60
"""How long the restart of a worker may take."""

LOST_SECONDS, ANSWER_SECONDS = 15.0, 10.0
"""If results have not arrived for so long, workers are asked to answer; how long they may take."""

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


_STOPPED = set[str]()
"""On a worker: the runs that have failed while calls of theirs were waiting here."""


def _stop(run: str) -> None:
    """Let no call of a run begin on this worker that writes."""
    _STOPPED.add(run)


def _run(job: bytes, number: int, context: WorkerContext, *arguments: Any) -> bytes | Blocks:
    """Run the tasks of a call on a worker."""
    run, entries = pickle.loads(job)
    check_open(entries, lambda: run not in _STOPPED)
    found = run_call(context, entries, arguments)
    reports = [report for report, _ in found]
    needed("distributed", "dask").get_worker().log_event(run, pickle.dumps((number, reports)))
    return pack([(None, blocks) for _, blocks in found]) if number > 0 else found[0][1]


def _same(value: Any) -> Any:
    return value


def _forget(run: str, dask_scheduler: Any) -> None:
    """Free the reports of a run, which the scheduler keeps."""
    dask_scheduler._broker._topics.pop(run, None)


class _DaskSession(CallSession):
    def __init__(self, client: Any, addresses: list[str], context: WorkerContext) -> None:
        super().__init__(context)
        self.client, self.addresses = client, addresses
        self.restarted = set[str]()
        self.ended, self.news = set[int](), threading.Event()
        """The calls that have ended, by number: below 0 for those with large blocks."""
        self.inputs: WeakValueDictionary[tuple[str, ZRange], Any] = WeakValueDictionary()
        """Parts of inputs that were sent and that calls still refer to."""
        client.subscribe_topic(self.name, self._hear)
        text = needed("cloudpickle", "dask").dumps(context)
        # A task, not a scattered value, so that it is not lost with a worker.
        self.context = client.submit(_context, text, key=f"context-{self.name}", priority=1)

    def _start(self, call: Call, job: bytes) -> None:
        task = call.entries[0].task
        number = sum(self.sent.values()) * (1 if call.is_small else -1)
        key = f"{task.operator}-{task.kind}-{self.name}-{task.number}-{abs(number)}"
        call.reply = call.blocks = self._submit(
            *(_run, job, number, self.context, *call.arguments),
            key=key,
            workers=[self.addresses[call.worker % len(self.addresses)]],
            allow_other_workers=True,
            priority=-task.number,
            pure=False,
        )
        call.number = number

    def _input(self, task: Task, name: str, array: Array) -> tuple[Any, Point]:
        """Return the part of an input that a task reads; a large one is sent once."""
        boxes = [box for known, box in task.input_boxes() if known == name]
        box = boxes[0].hull(*boxes[1:])
        found = self.inputs.get((name, box))
        if found is None:
            found = np.ascontiguousarray(array[box.slices()]).reshape(box.shape)
            if found.nbytes > SMALL:
                found = self._submit(_same, found, key=f"input-{uuid4().hex}", priority=1)
                self.inputs[name, box] = found
        return found, box.start

    def _submit(self, *call: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return self.client.submit(*call, **options)

    def _hear(self, event: tuple[float, bytes]) -> None:
        """Take the reports of a call that has run."""
        number, reports = pickle.loads(event[1])
        self.found += reports
        self.ended.add(number)
        self.news.set()

    def _wait(self, calls: Sequence[Call], seconds: float | None) -> list[Call]:
        end, asked = inf if seconds is None else time.monotonic() + seconds, -inf
        while True:
            self.news.clear()
            if ended := [call for call in calls if call.number in self.ended]:
                for call in ended:
                    call.arguments.clear()
                return ended
            if time.monotonic() - asked >= POLL_SECONDS:
                if _is_gone(self.client):
                    raise _lost(self.client)
                asked = time.monotonic()
                for call in calls:
                    if call.reply.status not in (*PENDING, "finished"):
                        raise self._failure(call)
            if time.monotonic() >= end:
                return []
            self.news.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic())))

    def _has_ended(self, call: Call) -> bool:
        return call.number in self.ended or call.reply.status not in PENDING

    def _failure(self, call: Call) -> WeftError:
        """Return what a task raised, or the error for a call that Dask gave up."""
        if _is_gone(self.client):
            return _lost(self.client)
        error = call.reply.exception()
        return error if isinstance(error, WeftError) else task_lost(call.entries[0].task, error)

    def _results(self, calls: Sequence[Call]) -> list[Any]:
        futures = [call.blocks for call in calls]
        while True:
            fetching = asyncio.run_coroutine_threadsafe(
                self.client._gather(futures), self.client.loop.asyncio_loop
            )
            try:
                while not wait([fetching], LOST_SECONDS).done:
                    if self.restart_lost(call.worker for call in calls):
                        fetching.cancel()
                        break
                else:
                    found: list[Any] = fetching.result()
                    return found
            except (OSError, CancelledError):
                if _is_gone(self.client):
                    raise _lost(self.client) from None
                raise

    def restart_lost(self, workers: Iterable[int]) -> list[str]:
        """Restart workers that do not answer, each once: Dask computes again what they held."""
        chosen = {self.addresses[worker % len(self.addresses)] for worker in workers}
        there = sorted(chosen.intersection(_workers(self.client)) - self.restarted)
        answers = self.client.sync(_on_each, self.client, there, ANSWER_SECONDS, int)
        lost = [address for address in there if address not in answers]
        if lost:
            self.client.restart_workers(lost, timeout=RESTART_SECONDS, raise_for_error=False)
            new = [each for each in sorted(_workers(self.client)) if each not in self.addresses]
            for address, other in zip(lost, new):
                self.addresses[self.addresses.index(address)] = other
            self.restarted |= {*lost, *new}
        return lost

    def _replace(self, workers: set[int], calls: Sequence[Call]) -> None:
        for call in calls:
            call.reply.release()
        places = {self.addresses[worker % len(self.addresses)] for worker in workers}
        if places & set(_workers(self.client)):
            self.client.restart_workers(list(places), timeout=RESTART_SECONDS)

    def _is_gone(self) -> bool:
        return _is_gone(self.client)

    def _end(self) -> None:
        self.client.sync(_on_each, self.client, self.addresses, ANSWER_SECONDS, _stop, self.name)

    def _free(self) -> None:
        self.client.unsubscribe_topic(self.name)
        self.client.run_on_scheduler(_forget, self.name)


async def _on_each(
    client: Any, addresses: Sequence[str], seconds: float, function: Any, *arguments: Any
) -> set[str]:
    """Call a function on workers, beside their tasks; return those that answer in time."""

    async def ask(address: str) -> str | None:
        with suppress(OSError, asyncio.TimeoutError):
            call = client._run(function, *arguments, workers=[address], on_error="ignore")
            await asyncio.wait_for(call, seconds)
            return address
        return None

    return set(filter(None, await asyncio.gather(*map(ask, addresses))))
