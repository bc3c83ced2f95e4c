"""`Ray`: tasks on a Ray cluster, an actor for each worker.

Calls of an actor run in the order in which they were made, which is that of the plan, and where the
actor is: that is placement and priority at once, with less to decide for Ray's scheduler than tasks
with resources of their own. Blocks lie in the object store of the node: actors of one node read
them where they lie, those of another fetch them, and the client has no more than references. An
actor that dies is started again, and what was lost with it is computed again.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.run.arrays import Array
from weft.run.grid.local import check_workers
from weft.run.grid.perform import Blocks, Came, Given, Program, TaskError, perform
from weft.run.grid.report import Report
from weft.run.grid.task import Task

RETRIES = 4
"""How often a call is made again whose actor died; the actor itself is always started again."""


class Ray:
    """Workers that are actors of the cluster at an address, of the one in use, or of a local one.

    >>> with Ray(workers=2) as engine:  # doctest: +SKIP
    ...     (y,) = weft.run(plan, inputs, on=engine)
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._ray = needed("ray", "ray")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours and address is None:
            self.workers = check_workers(workers)
            _start_local(self._ray, self.workers)
        else:
            if self._is_ours:
                self._ray.init(address=address, log_to_driver=False)
            there = int(self._ray.cluster_resources().get("CPU", 1))
            self.workers = check_workers(there if workers is None else workers)
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": RETRIES}
        actor = self._ray.remote(**options, scheduling_strategy="SPREAD")(Worker)
        self.actors = [actor.remote() for _ in range(self.workers)]

    def start(self, program: Program) -> _Run:
        """Begin a run."""
        return _Run(self._ray, self.actors, program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for actor in self.actors:
            self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()


def _start_local(ray: Any, workers: int) -> None:
    """A cluster of this machine: on loopback alone, no dashboard, nothing told to anybody."""
    with _on_loopback():
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
        )
    address = ray.util.get_node_ip_address()
    if address not in ("127.0.0.1", "::1"):
        ray.shutdown()
        raise WeftError(
            f"a local cluster of this Ray would listen on {address}, not on loopback alone",
            hint="start a cluster and give its address",
        )


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray as it is on macOS and Windows, where it listens on loopback, and without usage reports.

    Ray has a variable for it, which it reads once, when it is imported; processes that it starts
    read it again.
    """
    constants = needed("ray._private.ray_constants", "ray")
    clusters, before = constants.ENABLE_RAY_CLUSTER, {name: os.environ.get(name) for name in _ALONE}
    constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(_ALONE)
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class Worker:
    """What an actor does."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.done: dict[str, list[Report]] = {}
        self.failed: dict[str, TaskError] = {}

    def perform(
        self, job: bytes, program: Sequence[Any], given: Array | None, *blocks: Blocks
    ) -> Blocks:
        """The blocks of a task. The program is inside a list, so that Ray leaves it where it is."""
        run, task, cells = pickle.loads(job)
        if run not in self.programs:
            self.programs[run] = needed("ray", "ray").get(program[0])
        came = {n: Came(*pair) for n, pair in zip(task.reads, zip(cells, blocks))}
        start = None if given is None else Given(given, (0,) * given.ndim)
        try:
            made, report = perform(self.programs[run], task, came, start)
        except TaskError as error:
            self.failed.setdefault(run, error)
            raise
        self.done.setdefault(run, []).append(report)
        return made

    def pid(self) -> int:
        """The process that it is."""
        return os.getpid()

    def check(self, run: str) -> None:
        """Raise what failed here; all calls before this one have come to an end."""
        if run in self.failed:
            raise self.failed[run]

    def reports(self, run: str) -> list[Report]:
        """What the tasks of a run took here."""
        return self.done.get(run, [])

    def forget(self, run: str) -> None:
        """Keep nothing of a run."""
        self.programs.pop(run, None)
        self.done.pop(run, None)
        self.failed.pop(run, None)


class _Run:
    def __init__(self, ray: Any, actors: Sequence[Any], program: Program) -> None:
        self.ray, self.actors, self.name = ray, actors, uuid4().hex
        self.program = [ray.put(program)]
        self.inputs: dict[int, Any] = {}

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Any]], given: Array | None
    ) -> Any:
        cells, blocks = zip(*reads.values()) if reads else ((), ())
        job = pickle.dumps((self.name, task, cells))  # many small things: faster than by Ray
        call = self.actors[worker].perform.options(name=f"{task.operator} {task.kind}")
        return call.remote(job, self.program, self._put(given), *blocks)

    def _put(self, given: Array | None) -> Any:
        """An input in the object store, once; readers take their boxes where it lies."""
        if given is None:
            return None
        if id(given) not in self.inputs:
            self.inputs[id(given)] = self.ray.put(given)
        return self.inputs[id(given)]

    def release(self, handle: Any) -> None:
        """What nobody refers to is gone: calls refer to what they read until they have run."""

    def wait(self, handles: Sequence[Any]) -> None:
        self._all([actor.check.remote(self.name) for actor in self.actors])

    def gather(self, handles: Sequence[Any]) -> list[Blocks]:
        # They lie in the object store, which may be gone before them.
        return [tuple(map(np.array, blocks)) for blocks in self._all(list(handles))]

    def _all(self, references: list[Any]) -> list[Any]:
        try:
            found: list[Any] = self.ray.get(references)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return found

    def reports(self) -> list[Report]:
        found = self._all([actor.reports.remote(self.name) for actor in self.actors])
        return [report for reports in found for report in reports]

    def close(self) -> None:
        for actor in self.actors:
            actor.forget.options(max_task_retries=0).remote(self.name)
