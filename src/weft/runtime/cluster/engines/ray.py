"""`Ray`: run tasks on a Ray cluster, with one actor for each worker.

The calls of an actor run in the order in which they were sent, which is that of the tasks. That
gives placement and priority at once, and leaves less to Ray's scheduler than tasks with resources
of their own. Blocks lie in the object store of a node: actors of the node read them in place, those
of another fetch them, and the client holds only references. An actor that dies is restarted, and
what was lost with it is computed again.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Self

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.lang.struct_array import StructArray
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.calls import Call, CallSession, check_open, pack, run_call
from weft.runtime.cluster.engines.engine import (
    check_memory,
    check_workers,
    cluster_lost,
    limit_memory,
    task_lost,
)
from weft.runtime.cluster.engines.ray_cluster import (
    POLL_SECONDS,
    Heartbeat,
    check_reachable,
    start_ray,
)
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import WorkerContext
from weft.values import Point

RETRIES = 4
"""How often a call is repeated whose actor died; the actor itself is always restarted."""

PATIENCE = 10.0
"""The seconds after which a run that has finished nothing says what it waits for."""

NAMESPACE = "weft"
"""The namespace of runs in Ray's key-value table."""


class Ray:
    """Workers that are actors of the cluster at an address, of the one in use, or of a local one.

    In a local cluster the private memory of a worker is limited to `memory` bytes; blocks lie in
    the object store, which has as many bytes again.

    >>> with Ray(workers=2, memory=512 << 20) as engine:  # doctest: +SKIP
    ...     (y,) = weft.run(plan, inputs, on=engine)
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, memory: int | None = None
    ) -> None:
        self._ray = needed("ray", "ray")
        self.memory = check_memory(memory)
        self._is_ours = not self._ray.is_initialized()
        self.actors: list[Any] = []
        try:
            self.workers = self._join(workers, address or os.environ.get("RAY_ADDRESS"))
            self.actors = [self._actor() for _ in range(self.workers)]
            self.heartbeat = Heartbeat(self._ray)
        except BaseException:
            self._stop()
            raise

    def _join(self, workers: int | None, address: str | None) -> int:
        """Connect to a cluster or start one; return the number of workers."""
        self._is_alone = self._is_ours and address in (None, "local")
        if self._is_alone:
            start_ray(self._ray, count := check_workers(workers), self.memory)
            return count
        if self._is_ours:
            check_reachable(address)
            self._ray.init(address=address, log_to_driver=False)
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        return check_workers(processors if workers is None else workers)

    def _actor(self) -> Any:
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": RETRIES}
        if self.memory is not None:
            options["memory"] = self.memory
        return self._ray.remote(**options, scheduling_strategy="SPREAD")(RayWorker).remote(
            self.memory
        )

    def start(self, context: WorkerContext) -> _RaySession:
        """Start a run."""
        # A cluster of its own has processors for all workers.
        started = [] if self._is_alone else [actor.pid.remote() for actor in self.actors]
        return _RaySession(*(self._ray, self.actors, self._actor, started, context, self.heartbeat))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for actor in self.actors if not self._is_gone() else ():
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()

    def _is_gone(self) -> bool:
        return hasattr(self, "heartbeat") and self.heartbeat.is_gone(at_once=True)


class RayWorker:
    """The actor of a worker."""

    def __init__(self, memory: int | None = None) -> None:
        self.contexts: dict[str, WorkerContext] = {}
        if memory is not None:
            limit_memory(memory)

    def run(self, job: bytes, *arguments: Any) -> Any:
        """Run one task; return its report, and its blocks."""
        ((report, blocks),) = self._run(job, arguments)
        return pack([(report, ())]), blocks

    def run_small(self, job: bytes, *arguments: Any) -> bytes:
        """Run small tasks; return their reports and blocks."""
        return pack(self._run(job, arguments))

    def _run(self, job: bytes, arguments: Sequence[Any]) -> Any:
        run, entries = pickle.loads(job)
        check_open(entries, lambda: _table()._internal_kv_exists(run, namespace=NAMESPACE))
        if run not in self.contexts:  # an actor that was restarted fetches it again
            self.contexts[run] = pickle.loads(_table()._internal_kv_get(run, namespace=NAMESPACE))
        return run_call(self.contexts[run], entries, arguments)

    def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    def forget(self, run: str) -> None:
        """Free everything of a run."""
        self.contexts.pop(run, None)


def _table() -> Any:
    """Return Ray's key-value table, which outlives any worker."""
    return needed("ray.experimental.internal_kv", "ray")


class _RaySession(CallSession):
    def __init__(
        self,
        ray: Any,
        actors: list[Any],
        new_actor: Callable[[], Any],
        started: Sequence[Any],
        context: WorkerContext,
        heartbeat: Heartbeat,
    ) -> None:
        super().__init__(context)
        self.ray, self.actors, self.heartbeat = ray, actors, heartbeat
        self.new_actor, self.started = new_actor, started
        self.said_after = time.monotonic() + PATIENCE if started else inf
        if heartbeat.is_gone(at_once=True):
            raise cluster_lost("the Ray cluster")
        self.inputs: dict[int, Any] = {}
        self.methods: dict[tuple[int, str, bool], Any] = {}
        self.unread: dict[int, Call] = {}
        text = needed("ray.cloudpickle", "ray").dumps(context)
        _table()._internal_kv_put(self.name, text, namespace=NAMESPACE)

    def _start(self, call: Call, job: bytes) -> None:
        found = self._method(call).remote(job, *call.arguments)
        call.reply, call.blocks = (found, found) if call.is_small else found
        self.unread[id(call)] = call

    def _method(self, call: Call) -> Any:
        """Return the method for a call, with a name that Ray's dashboard shows."""
        actor, task = self.actors[call.worker], call.entries[0].task
        key = (call.worker, name := f"{task.operator} {task.kind}", call.is_small)
        if key not in self.methods:
            method = actor.run_small if call.is_small else actor.run
            self.methods[key] = method.options(name=name, num_returns=1 if call.is_small else 2)
        return self.methods[key]

    def _input(self, task: Task, name: str, array: Array) -> tuple[Any, Point]:
        """Put an input into the object store, once; tasks read their boxes in place."""
        if id(array) not in self.inputs:
            self.inputs[id(array)] = self.ray.put(array)
        return self.inputs[id(array)], (0,) * array.ndim

    def _read(self, calls: Sequence[Call]) -> None:
        """Take the reports of calls that have ended; a task that failed raises."""
        for call, text in zip(calls, self._get([call.reply for call in calls], calls)):
            if self.unread.pop(id(call), None) is not None:
                self.found += (report for report, _ in pickle.loads(text))
                call.arguments.clear()  # Ray keeps what it needs to repeat a call

    def _get(self, references: list[Any], calls: Sequence[Call]) -> list[Any]:
        """Wait for references and return their values."""
        while True:
            try:
                found: list[Any] = self.ray.get(references, timeout=POLL_SECONDS)
            except self.ray.exceptions.GetTimeoutError:
                if self.heartbeat.is_gone():
                    raise cluster_lost("the Ray cluster") from None
            except self.ray.exceptions.RayError as error:
                raise self._failure(calls, error) from None
            else:
                return found

    def _failure(self, calls: Sequence[Call], error: Any) -> WeftError:
        """Return what a task raised, or the error for a task that Ray gave up."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, WeftError):
            return cause
        if self.heartbeat.is_gone(at_once=True):
            return cluster_lost("the Ray cluster")
        tasks = (call.entries[0].task for call in calls if self._has_failed(call))
        return task_lost(next(tasks, None), cause or error)

    def _has_failed(self, call: Call) -> bool:
        try:
            return self._has_ended(call) and self.ray.get(call.reply) is None
        except self.ray.exceptions.RayError:
            return True

    def _has_ended(self, call: Call) -> bool:
        ready, _ = self.ray.wait([call.reply], timeout=0, fetch_local=False)
        return bool(ready)

    def _wait(self, calls: Sequence[Call], seconds: float | None) -> list[Call]:
        end = inf if seconds is None else time.monotonic() + seconds
        replies = {call.reply: call for call in calls}
        while True:
            left = max(0.0, min(POLL_SECONDS, end - time.monotonic()))
            ready, _ = self.ray.wait(list(replies), timeout=left, fetch_local=False)
            if ready:
                ready, _ = self.ray.wait(
                    list(replies), num_returns=len(replies), timeout=0, fetch_local=False
                )
                ended = [replies[reply] for reply in ready]
                self._read(ended)
                return ended
            if self.heartbeat.is_gone():
                raise cluster_lost("the Ray cluster")
            if not self.found and time.monotonic() > self.said_after:
                self._say_why()
            if time.monotonic() >= end:
                return []

    def _say_why(self) -> None:
        """Warn that nothing has run so far, if workers wait for the processors of a cluster."""
        self.said_after = inf
        here, _ = self.ray.wait(self.started, num_returns=len(self.started), timeout=0)
        total, free = (
            found.get("CPU", 0)
            for found in (self.ray.cluster_resources(), self.ray.available_resources())
        )
        if len(here) < len(self.started) and free < 1:
            warnings.warn(
                f"{len(self.started) - len(here)} of {len(self.started)} workers have not started "
                f"for {PATIENCE:.0f} s: none of the {total:.0f} processors of the Ray cluster is "
                "free; the run goes on when others release theirs",
                stacklevel=2,
            )

    def _results(self, calls: Sequence[Call]) -> list[Any]:
        self._read(calls)
        # The object store may be gone before the arrays are.
        return [
            found if isinstance(found, bytes) else tuple(map(_copied, found))
            for found in self._get([call.blocks for call in calls], calls)
        ]

    def _replace(self, workers: set[int], calls: Sequence[Call]) -> None:
        for worker in workers:
            # Not restarted: Ray would repeat its calls.
            self.ray.kill(self.actors[worker])
            self.actors[worker] = self.new_actor()

    def _is_gone(self) -> bool:
        return self.heartbeat.is_gone(at_once=True)

    def _end(self) -> None:
        # Nothing is cancelled: an actor waits half a minute for a call that does not arrive.
        _table()._internal_kv_del(self.name, namespace=NAMESPACE)

    def _free(self) -> None:
        self._end()
        for actor in self.actors:
            actor.forget.options(max_task_retries=0).remote(self.name)


def _copied(block: Any) -> Any:
    return block.map(np.array) if isinstance(block, StructArray) else np.array(block)
