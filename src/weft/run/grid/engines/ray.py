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
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.run.arrays import Array
from weft.run.grid.engines.engine import gone, lost
from weft.run.grid.engines.limits import check_memory, check_workers, limit_memory
from weft.run.grid.engines.ray_cluster import start_ray
from weft.run.grid.engines.ray_pulse import LOOK, Pulse, check_reached
from weft.run.grid.metrics.report import Report
from weft.run.grid.perform import Blocks, Came, Given, Program, perform
from weft.run.grid.weaving.task import Task

RETRIES = 4
"""How often a call is made again whose actor died; the actor itself is always started again."""

SMALL = 64 << 10
"""Blocks of so many bytes in all travel with the report; Ray itself keeps less than 100 KiB so."""

NOTES = 256
"""So many reports are read at once."""

SPACE = "weft"
"""The namespace of what runs keep in Ray's table of keys and values."""


class Ray:
    """Workers that are actors of the cluster at an address, of the one in use, or of a local one.

    Of a local cluster a worker may use as much private memory as is said, and not more; blocks lie
    beside that in the object store, which has as much room again.

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
            self.pulse = Pulse(self._ray)
        except BaseException:
            self._stop()
            raise

    def _join(self, workers: int | None, address: str | None) -> int:
        """Be in a cluster; how many workers that makes."""
        if self._is_ours and address in (None, "local"):
            start_ray(self._ray, count := check_workers(workers), self.memory)
            return count
        if self._is_ours:
            check_reached(address)
            self._ray.init(address=address, log_to_driver=False)
        there = int(self._ray.cluster_resources().get("CPU", 1))
        return check_workers(there if workers is None else workers)

    def _actor(self) -> Any:
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": RETRIES}
        if self.memory is not None:
            options["memory"] = self.memory
        return self._ray.remote(**options, scheduling_strategy="SPREAD")(Worker).remote(self.memory)

    def start(self, program: Program) -> _Run:
        """Begin a run."""
        return _Run(self._ray, self.actors, program, self.pulse)

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
        return hasattr(self, "pulse") and self.pulse.is_gone(at_once=True)


class Worker:
    """What an actor does."""

    def __init__(self, memory: int | None = None) -> None:
        self.programs: dict[str, Program] = {}
        if memory is not None:
            limit_memory(memory)

    def perform(self, job: bytes, *arrays: Any) -> Any:
        """Do a task: its report and its blocks, as one thing if they are small, or one by one.

        What is small comes and goes as bytes, which Ray passes on as they are.
        """
        run, task, reads, is_given = pickle.loads(job)
        came = _came(reads, iter(arrays))
        start = Given(arrays[-1], (0,) * arrays[-1].ndim) if is_given else None
        blocks, report = perform(self._program(run), task, came, start)
        if _is_small(task):
            return pickle.dumps((report, blocks), 5)
        return (pickle.dumps(report), *blocks)

    def _program(self, run: str) -> Program:
        """The program of a run; an actor that was started again asks once more."""
        if run not in self.programs:
            self.programs[run] = pickle.loads(_table()._internal_kv_get(run, namespace=SPACE))
        return self.programs[run]

    def pid(self) -> int:
        """The process that it is."""
        return os.getpid()

    def forget(self, run: str) -> None:
        """Keep nothing of a run."""
        self.programs.pop(run, None)


class _Reading(NamedTuple):
    """What a call brings of a task: some of its blocks, or all that it gave as bytes."""

    task: int
    cell: int
    places: tuple[int, ...] | None


def _came(reads: Sequence[_Reading], arrays: Iterator[Any]) -> dict[int, Came]:
    found: dict[int, Came] = {}
    for task, cell, places in reads:
        if places is None:
            blocks = pickle.loads(next(arrays))[1]
        else:
            blocks = {place: next(arrays) for place in places}
        found[task] = Came(cell, blocks)
    return found


def _is_small(task: Task) -> bool:
    return sum(made.nbytes for made in task.made) <= SMALL


def _table() -> Any:
    """Ray's table of keys and values, which outlives any worker."""
    return needed("ray.experimental.internal_kv", "ray")


class _Made(NamedTuple):
    """A task that was submitted, and what refers to what it gives."""

    task: Task
    note: Any
    """Its report, or all of it if it is small: never much to look at."""
    blocks: tuple[Any, ...] = ()
    """Its blocks, if it is not small."""


class _Run:
    def __init__(self, ray: Any, actors: Sequence[Any], program: Program, pulse: Pulse) -> None:
        self.ray, self.actors, self.name, self.pulse = ray, actors, uuid4().hex, pulse
        if pulse.is_gone(at_once=True):
            raise gone("the Ray cluster")
        self.inputs: dict[int, Any] = {}
        self.calls: dict[tuple[int, str, int], Any] = {}
        self.unread: dict[int, _Made] = {}
        self.done: dict[int, Report] = {}
        text = needed("ray.cloudpickle", "ray").dumps(program)
        _table()._internal_kv_put(self.name, text, namespace=SPACE)

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, _Made]], given: Array | None
    ) -> _Made:
        self._look_through()
        brought, references = _brought(task, reads)
        if given is not None:
            references.append(self._put(given))
        # Pickled here: Ray takes its time with whatever is not bytes or a reference.
        job = pickle.dumps((self.name, task, brought, given is not None))
        found = self._call(task, worker).remote(job, *references)
        note, *blocks = found if isinstance(found, list) else [found]
        self.unread[task.number] = _Made(task, note)
        return _Made(task, note, tuple(blocks))

    def _call(self, task: Task, worker: int) -> Any:
        """The method of a worker for such tasks, with a name that Ray's dashboard shows."""
        count = 1 if _is_small(task) else 1 + len(task.made)
        key = (worker, name := f"{task.operator} {task.kind}", count)
        if key not in self.calls:
            perform = self.actors[worker].perform
            self.calls[key] = perform.options(name=name, num_returns=count)
        return self.calls[key]

    def _put(self, given: Array) -> Any:
        """An input in the object store, once; readers take their boxes where it lies."""
        if id(given) not in self.inputs:
            self.inputs[id(given)] = self.ray.put(given)
        return self.inputs[id(given)]

    def _look_through(self) -> None:
        """Read the notes that have come, now and then and many at once; they are let go so."""
        if len(self.unread) % NOTES == NOTES - 1:
            some = list(self.unread.values())[:NOTES]
            notes = [made.note for made in some]
            ready, _ = self.ray.wait(notes, num_returns=NOTES - 1, timeout=0, fetch_local=False)
            came = set(ready)
            self._read([made for made in some if made.note in came])

    def _read(self, handles: Sequence[_Made]) -> list[bytes]:
        """The notes of tasks, once they are there; what failed raises."""
        texts = self._all([made.note for made in handles], handles)
        for made, text in zip(handles, texts):
            if self.unread.pop(made.task.number, None) is not None:
                note = pickle.loads(text)
                self.done[made.task.number] = note[0] if _is_small(made.task) else note
        return texts

    def _all(self, references: list[Any], handles: Sequence[_Made]) -> list[Any]:
        """What references mean, once it is there."""
        while True:
            try:
                found: list[Any] = self.ray.get(references, timeout=LOOK)
            except self.ray.exceptions.GetTimeoutError:
                if self.pulse.is_gone():
                    raise gone("the Ray cluster") from None
            except self.ray.exceptions.RayError as error:
                raise self._failure(handles, error) from None
            else:
                return found

    def _failure(self, handles: Sequence[_Made], error: Any) -> WeftError:
        """What a task raised, or which task it was that Ray gave up."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, WeftError):
            return cause
        if self.pulse.is_gone(at_once=True):
            return gone("the Ray cluster")
        tasks = (made.task for made in handles if self._has_failed(made))
        return lost(next(tasks, None), cause or error)

    def _has_failed(self, made: _Made) -> bool:
        try:
            return self.is_done(made) and self.ray.get(made.note) is None
        except self.ray.exceptions.RayError:
            return True

    def release(self, handle: _Made) -> None:
        """What nobody refers to is gone: calls refer to what they read until they have run."""

    def wait(self, handles: Sequence[_Made]) -> None:
        self._read(handles)

    def is_done(self, handle: _Made) -> bool:
        ready, _ = self.ray.wait([handle.note], timeout=0, fetch_local=False)
        return bool(ready)

    def gather(self, handles: Sequence[_Made]) -> list[Blocks]:
        texts = self._read(handles)
        large = iter(self._all([block for made in handles for block in made.blocks], handles))
        # They lie in the object store, which may be gone before them.
        return [
            tuple(np.array(next(large)) for _ in made.blocks) or pickle.loads(text)[1]
            for made, text in zip(handles, texts)
        ]

    def reports(self) -> list[Report]:
        self._read(list(self.unread.values()))
        return list(self.done.values())

    def close(self) -> None:
        if self.pulse.is_gone(at_once=True):
            return
        _table()._internal_kv_del(self.name, namespace=SPACE)
        # Nothing is cancelled: an actor waits half a minute for a call that does not arrive.
        for actor in self.actors:
            actor.forget.options(max_task_retries=0).remote(self.name)


def _brought(
    task: Task, reads: Mapping[int, tuple[int, _Made]]
) -> tuple[list[_Reading], list[Any]]:
    """What a call brings, and the references to it: of large blocks those that are used."""
    used: dict[int, set[int]] = {}
    for read in task.uses():
        used.setdefault(read.task, set()).add(read.place)
    brought, references = list[_Reading](), list[Any]()
    for number, (cell, made) in reads.items():
        places = tuple(sorted(used[number])) if made.blocks else None
        references += [made.note] if places is None else [made.blocks[n] for n in places]
        brought.append(_Reading(number, cell, places))
    return brought, references
