"""`Ray`: tasks on a Ray cluster, an actor for each worker.

Calls of an actor run in the order in which they were made, which is that of the plan, and where the
actor is: that is placement and priority at once, with less to decide for Ray's scheduler than tasks
with resources of their own. Blocks lie in the object store of the node: actors of one node read
them where they lie, those of another fetch them, and the client has no more than references. An
actor that dies is started again, and what was lost with it is computed again. A call takes longer
than many a task: small ones that follow upon each other on a worker share one.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import gone, lost
from weft.runtime.cluster.engines.limits import check_memory, check_workers, limit_memory
from weft.runtime.cluster.engines.ray_calls import Brought, Call, Entry, Handle, is_light, is_small
from weft.runtime.cluster.engines.ray_cluster import start_ray
from weft.runtime.cluster.engines.ray_pulse import LOOK, Pulse, check_reached
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.perform import Blocks, Came, Given, Program, perform
from weft.runtime.cluster.weaving.task import Task

RETRIES = 4
"""How often a call is made again whose actor died; the actor itself is always started again."""


NOTES = 256
"""So many notes are read at once."""

MOST = 16
"""So many light tasks share a call, at most; the first calls of a worker have fewer."""

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
        """Do a task: its report, and its blocks one by one."""
        run, (entry,) = pickle.loads(job)
        blocks, report = self._perform(run, entry, Brought(arrays))
        return (pickle.dumps(report), *blocks)

    def perform_small(self, job: bytes, *arrays: Any) -> bytes:
        """Do small tasks, one after the other: their reports and blocks, in one piece.

        What is small comes and goes as bytes, which Ray passes on as they are.
        """
        run, entries = pickle.loads(job)
        brought, found = Brought(arrays), []
        for entry in entries:
            blocks, report = self._perform(run, entry, brought)
            brought.here[entry.task.number] = blocks
            found.append((report, blocks))
        return pickle.dumps(found, 5)

    def _perform(self, run: str, entry: Entry, brought: Brought) -> tuple[Blocks, Report]:
        came = {read.task: Came(read.cell, brought.blocks(read)) for read in entry.reads}
        given = None if entry.given is None else brought.arrays[entry.given]
        start = None if given is None else Given(given, (0,) * given.ndim)
        return perform(self._program(run), entry.task, came, start)

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


def _table() -> Any:
    """Ray's table of keys and values, which outlives any worker."""
    return needed("ray.experimental.internal_kv", "ray")


class _Run:
    def __init__(self, ray: Any, actors: Sequence[Any], program: Program, pulse: Pulse) -> None:
        self.ray, self.actors, self.name, self.pulse = ray, actors, uuid4().hex, pulse
        if pulse.is_gone(at_once=True):
            raise gone("the Ray cluster")
        self.inputs: dict[int, Any] = {}
        self.methods: dict[tuple[int, str, int], Any] = {}
        self.open: dict[int, Call] = {}
        """Of each worker the call that is not made yet: more tasks may come to it."""
        self.sent = [0] * len(actors)
        self.unread: dict[int, Call] = {}
        self.done: dict[int, Report] = {}
        text = needed("ray.cloudpickle", "ray").dumps(program)
        _table()._internal_kv_put(self.name, text, namespace=SPACE)

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Handle]], given: Array | None
    ) -> Handle:
        self._look_through()
        mine = self._call(task, worker)
        for _, handle in reads.values():
            if handle.call is not mine:
                self._send(handle.call)  # what a call reads was sent before: nobody waits in a ring
        handle = mine.add(task, reads, None if given is None else self._put(given))
        if not is_light(task) or len(mine.entries) >= min(MOST, 1 << self.sent[worker] // 2):
            self._send(mine)
        return handle

    def _call(self, task: Task, worker: int) -> Call:
        """The call in which a task goes: that which is open, if it is light; they stay in order."""
        if worker in self.open and not is_light(task):
            self._send(self.open[worker])
        if worker not in self.open:
            self.open[worker] = Call(worker, is_small(task))
        return self.open[worker]

    def _send(self, call: Call) -> None:
        """Make a call, unless it was made."""
        if call.note is not None:
            return
        del self.open[call.worker]
        self.sent[call.worker] += 1
        # Pickled here: Ray takes its time with whatever is not bytes or a reference.
        job = pickle.dumps((self.name, call.entries))
        found = self._method(call).remote(job, *call.references)
        call.note, *call.blocks = found if isinstance(found, list) else [found]
        self.unread[id(call)] = call

    def _method(self, call: Call) -> Any:
        """The method of a worker for such a call, with a name that Ray's dashboard shows."""
        actor, task = self.actors[call.worker], call.entries[0].task
        count = 1 if call.is_small else 1 + len(task.made)
        key = (call.worker, name := f"{task.operator} {task.kind}", count)
        if key not in self.methods:
            method = actor.perform_small if call.is_small else actor.perform
            self.methods[key] = method.options(name=name, num_returns=count)
        return self.methods[key]

    def _put(self, given: Array) -> Any:
        """An input in the object store, once; readers take their boxes where it lies."""
        if id(given) not in self.inputs:
            self.inputs[id(given)] = self.ray.put(given)
        return self.inputs[id(given)]

    def _look_through(self) -> None:
        """Read the notes that have come, now and then and many at once; they are let go so."""
        if len(self.unread) % NOTES == NOTES - 1:
            some = list(self.unread.values())[:NOTES]
            notes = [call.note for call in some]
            ready, _ = self.ray.wait(notes, num_returns=NOTES - 1, timeout=0, fetch_local=False)
            came = set(ready)
            self._read([call for call in some if call.note in came])

    def _read(self, calls: Sequence[Call]) -> dict[int, bytes]:
        """The notes of calls, once they are there; what failed raises."""
        for call in calls:
            self._send(call)
        texts = self._all([call.note for call in calls], calls)
        for call, text in zip(calls, texts):
            if self.unread.pop(id(call), None) is not None:
                note = pickle.loads(text)
                reports = [report for report, _ in note] if call.is_small else [note]
                self.done |= {report.task: report for report in reports}
        return {id(call): text for call, text in zip(calls, texts)}

    def _all(self, references: list[Any], calls: Sequence[Call]) -> list[Any]:
        """What references mean, once it is there."""
        while True:
            try:
                found: list[Any] = self.ray.get(references, timeout=LOOK)
            except self.ray.exceptions.GetTimeoutError:
                if self.pulse.is_gone():
                    raise gone("the Ray cluster") from None
            except self.ray.exceptions.RayError as error:
                raise self._failure(calls, error) from None
            else:
                return found

    def _failure(self, calls: Sequence[Call], error: Any) -> WeftError:
        """What a task raised, or which task it was that Ray gave up."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, WeftError):
            return cause
        if self.pulse.is_gone(at_once=True):
            return gone("the Ray cluster")
        tasks = (call.entries[0].task for call in calls if self._has_failed(call))
        return lost(next(tasks, None), cause or error)

    def _has_failed(self, call: Call) -> bool:
        try:
            return self._is_done(call) and self.ray.get(call.note) is None
        except self.ray.exceptions.RayError:
            return True

    def _is_done(self, call: Call) -> bool:
        ready, _ = self.ray.wait([call.note], timeout=0, fetch_local=False)
        return bool(ready)

    def release(self, handle: Handle) -> None:
        """What nobody refers to is gone: calls refer to what they read until they have run."""

    def wait(self, handles: Sequence[Handle]) -> None:
        for call in list(self.open.values()):
            self._send(call)
        self._read(_calls(handles))

    def is_done(self, handle: Handle) -> bool:
        self._send(handle.call)
        return self._is_done(handle.call)

    def gather(self, handles: Sequence[Handle]) -> list[Blocks]:
        calls = _calls(handles)
        texts = self._read(calls)
        small = {id(call): pickle.loads(texts[id(call)]) for call in calls if call.is_small}
        large = iter(self._all([block for call in calls for block in call.blocks], calls))
        # They lie in the object store, which may be gone before them.
        arrays = {id(call): tuple(np.array(next(large)) for _ in call.blocks) for call in calls}
        return [
            small[id(h.call)][h.number][1] if h.call.is_small else arrays[id(h.call)]
            for h in handles
        ]

    def reports(self) -> list[Report]:
        self._read([*self.open.values(), *self.unread.values()])
        return list(self.done.values())

    def close(self) -> None:
        if self.pulse.is_gone(at_once=True):
            return
        _table()._internal_kv_del(self.name, namespace=SPACE)
        # Nothing is cancelled: an actor waits half a minute for a call that does not arrive.
        for actor in self.actors:
            actor.forget.options(max_task_retries=0).remote(self.name)


def _calls(handles: Sequence[Handle]) -> list[Call]:
    """The calls of tasks, each once."""
    return list({id(handle.call): handle.call for handle in handles}.values())
