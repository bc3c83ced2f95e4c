"""`Ray`: run tasks on a Ray cluster, with one actor for each worker.

The calls of an actor run in the order in which they were sent, which is that of the tasks. That
gives placement and priority at once, and leaves less to Ray's scheduler than tasks with resources
of their own. Blocks lie in the object store of a node: actors of the node read them in place, those
of another fetch them, and the client holds only references. An actor that dies is restarted, and
what was lost with it is computed again. A call takes longer than many tasks do: consecutive small
tasks of a worker share one.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.arrays import Array
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
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.tasks import InputBox, Task, leaves
from weft.runtime.cluster.worker import Blocks, GivenInput, ReceivedBlocks, WorkerContext, run_task

RETRIES = 4
"""How often a call is repeated whose actor died; the actor itself is always restarted."""

GRACE_SECONDS = 2.0
"""How long a task that is not needed may go on; then its worker is replaced."""

PATIENCE = 10.0
"""The seconds after which a run that has finished nothing says what it waits for."""

MAX_LIGHT = 16
"""The most light tasks that share a call; the first calls of a worker have fewer."""

NAMESPACE = "weft"
"""The namespace of runs in Ray's key-value table."""


SMALL = 64 << 10
"""Blocks of at most so many bytes in all travel with the report; Ray inlines up to 100 KiB."""

LIGHT = 1 << 20
"""A task that computes at most so many bytes takes less time than a call."""


def is_small(task: Task) -> bool:
    """Return whether the blocks of a task travel with its report."""
    return sum(block.nbytes for block in task.blocks) <= SMALL


def is_light(task: Task) -> bool:
    """Return whether a task may share a call with others: it is short, and reads no storage."""
    if task.writes or not is_small(task):
        return False
    if sum(sum(step.result_bytes) + step.workspace for step in task.steps) > LIGHT:
        return False
    arrays = (array for step in task.steps for array in step.arrays)
    return not any(isinstance(leaf, InputBox) for array in arrays for leaf in leaves(array))


class BlockArguments(NamedTuple):
    """The blocks of a task that a call reads, as arguments of the call."""

    task: int
    cell: int
    places: tuple[int, ...] = ()
    """Its blocks that are passed one by one, if they are large."""
    at: tuple[int, ...] = ()
    """The numbers of the arguments; none for a task of the same call."""
    number: int = 0
    """The place of the task in its own call, if the results of that are one argument."""


class CallEntry(NamedTuple):
    """A task of a call."""

    task: Task
    reads: tuple[BlockArguments, ...]
    given: int | None
    """The number of the argument that is the input it reads."""


@dataclass(eq=False, slots=True)
class Call:
    """Tasks that one call of an actor runs, in order."""

    worker: int
    is_small: bool
    entries: list[CallEntry] = field(default_factory=list)
    references: list[Any] = field(default_factory=list)
    reply: Any = None
    """A reference to its reports, once it is sent; with its blocks, if those are small."""
    blocks: list[Any] = field(default_factory=list)
    """References to the blocks, if they are large."""

    def add(self, task: Task, reads: Mapping[int, tuple[int, RayHandle]], given: Any) -> RayHandle:
        """Add a task and references to the blocks that it reads."""
        used: dict[int, set[int]] = {}
        for read in task.block_uses():
            used.setdefault(read.task, set()).add(read.place)
        arguments = tuple(
            self._blocks(number, cell, handle, used[number])
            for number, (cell, handle) in reads.items()
        )
        place = None if given is None else self._argument(given)
        self.entries.append(CallEntry(task, arguments, place))
        return RayHandle(self, len(self.entries) - 1)

    def _blocks(self, number: int, cell: int, handle: RayHandle, used: set[int]) -> BlockArguments:
        call = handle.call
        if call is self:
            return BlockArguments(number, cell)
        if call.is_small:
            reply = self._argument(call.reply)
            return BlockArguments(number, cell, (), (reply,), handle.number)
        places = tuple(sorted(used))
        at = tuple(self._argument(call.blocks[n]) for n in places)
        return BlockArguments(number, cell, places, at)

    def _argument(self, reference: Any) -> int:
        """Return the number of the argument that is a reference; each is passed once."""
        for number, known in enumerate(self.references):
            if known is reference:
                return number
        self.references.append(reference)
        return len(self.references) - 1


class RayHandle(NamedTuple):
    """A task that was submitted: its call, and its place there."""

    call: Call
    number: int


class CallArguments:
    """The arguments of a call, on the worker."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays
        self.here: dict[int, Blocks] = {}
        """The blocks of earlier tasks of this call."""
        self._opened: dict[int, Any] = {}

    def blocks(self, read: BlockArguments) -> Any:
        """Return the blocks of a task, by their places."""
        if not read.at:
            return self.here[read.task]
        if read.places:
            return {place: self.arrays[at] for place, at in zip(read.places, read.at)}
        (at,) = read.at
        if at not in self._opened:
            self._opened[at] = pickle.loads(self.arrays[at])
        return self._opened[at][read.number][1]


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

    def run(self, job: bytes, *arrays: Any) -> Any:
        """Run a task; return its report, and its blocks one by one."""
        run, (entry,) = pickle.loads(job)
        blocks, report = self._run(run, entry, CallArguments(arrays))
        return (pickle.dumps(report), *blocks)

    def run_small(self, job: bytes, *arrays: Any) -> bytes:
        """Run small tasks in order; return their reports and blocks as one argument.

        Small things are passed as bytes, which Ray does not serialise again.
        """
        run, entries = pickle.loads(job)
        arguments, found = CallArguments(arrays), []
        for entry in entries:
            blocks, report = self._run(run, entry, arguments)
            arguments.here[entry.task.number] = blocks
            found.append((report, blocks))
        return pickle.dumps(found, 5)

    def _run(self, run: str, entry: CallEntry, arguments: CallArguments) -> tuple[Blocks, Report]:
        blocks = {r.task: ReceivedBlocks(r.cell, arguments.blocks(r)) for r in entry.reads}
        given = None if entry.given is None else arguments.arrays[entry.given]
        start = None if given is None else GivenInput(given, (0,) * given.ndim)
        return run_task(self._context(run), entry.task, blocks, start)

    def _context(self, run: str) -> WorkerContext:
        """Return the context of a run; an actor that was restarted fetches it again."""
        if run not in self.contexts:
            self.contexts[run] = pickle.loads(_table()._internal_kv_get(run, namespace=NAMESPACE))
        return self.contexts[run]

    def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    def forget(self, run: str) -> None:
        """Free everything of a run."""
        self.contexts.pop(run, None)


def _table() -> Any:
    """Return Ray's key-value table, which outlives any worker."""
    return needed("ray.experimental.internal_kv", "ray")


class _RaySession:
    def __init__(
        self,
        ray: Any,
        actors: list[Any],
        new_actor: Callable[[], Any],
        started: Sequence[Any],
        context: WorkerContext,
        heartbeat: Heartbeat,
    ) -> None:
        self.ray, self.actors, self.name, self.heartbeat = ray, actors, uuid4().hex, heartbeat
        self.new_actor, self.started = new_actor, started
        self.said_after = time.monotonic() + PATIENCE if started else inf
        if heartbeat.is_gone(at_once=True):
            raise cluster_lost("the Ray cluster")
        self.inputs: dict[int, Any] = {}
        self.methods: dict[tuple[int, str, int], Any] = {}
        self.open: dict[int, Call] = {}
        """For each worker the call that is not sent yet, to which tasks may be added."""
        self.sent = [0] * len(actors)
        self.unread: dict[int, Call] = {}
        self.found: list[Report] = []
        text = needed("ray.cloudpickle", "ray").dumps(context)
        _table()._internal_kv_put(self.name, text, namespace=NAMESPACE)

    def submit(
        self,
        task: Task,
        worker: int,
        reads: Mapping[int, tuple[int, RayHandle]],
        given: Array | None,
    ) -> RayHandle:
        mine = self._call(task, worker)
        for _, handle in reads.values():
            if handle.call is not mine:
                self._send(handle.call)  # a call reads only what was sent before: no deadlock
        handle = mine.add(task, reads, None if given is None else self._put(given))
        if not is_light(task) or len(mine.entries) >= min(MAX_LIGHT, 1 << self.sent[worker] // 2):
            self._send(mine)
        return handle

    def _call(self, task: Task, worker: int) -> Call:
        """Return the call of a task: the open one, if the task is light; the order stays."""
        if worker in self.open and not is_light(task):
            self._send(self.open[worker])
        if worker not in self.open:
            self.open[worker] = Call(worker, is_small(task))
        return self.open[worker]

    def _send(self, call: Call) -> None:
        """Send a call, unless it was sent."""
        if call.reply is not None:
            return
        del self.open[call.worker]
        self.sent[call.worker] += 1
        # Pickled here: Ray is slow with whatever is not bytes or a reference.
        job = pickle.dumps((self.name, call.entries))
        found = self._method(call).remote(job, *call.references)
        call.reply, *call.blocks = found if isinstance(found, list) else [found]
        self.unread[id(call)] = call

    def _method(self, call: Call) -> Any:
        """Return the method for a call, with a name that Ray's dashboard shows."""
        actor, task = self.actors[call.worker], call.entries[0].task
        count = 1 if call.is_small else 1 + len(task.blocks)
        key = (call.worker, name := f"{task.operator} {task.kind}", count)
        if key not in self.methods:
            method = actor.run_small if call.is_small else actor.run
            self.methods[key] = method.options(name=name, num_returns=count)
        return self.methods[key]

    def _put(self, given: Array) -> Any:
        """Put an input into the object store, once; tasks read their boxes in place."""
        if id(given) not in self.inputs:
            self.inputs[id(given)] = self.ray.put(given)
        return self.inputs[id(given)]

    def _read(self, calls: Sequence[Call]) -> dict[int, bytes]:
        """Wait for the replies of calls and return them; a task that failed raises."""
        for call in calls:
            self._send(call)
        texts = self._get([call.reply for call in calls], calls)
        for call, text in zip(calls, texts):
            if self.unread.pop(id(call), None) is not None:
                reply = pickle.loads(text)
                reports = [report for report, _ in reply] if call.is_small else [reply]
                self.found += reports
                call.references.clear()  # Ray keeps what it needs to repeat a call
        return {id(call): text for call, text in zip(calls, texts)}

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
            return self._is_done(call) and self.ray.get(call.reply) is None
        except self.ray.exceptions.RayError:
            return True

    def _is_done(self, call: Call) -> bool:
        ready, _ = self.ray.wait([call.reply], timeout=0, fetch_local=False)
        return bool(ready)

    def release(self, handle: RayHandle) -> None:
        """Do nothing: calls refer to what they read until they have run."""

    def wait(self, handles: Sequence[RayHandle], seconds: float | None = None) -> list[RayHandle]:
        for call in list(self.open.values()):
            self._send(call)
        end = inf if seconds is None else time.monotonic() + seconds
        calls = {call.reply: call for call in _calls(handles)}
        while True:
            left = max(0.0, min(POLL_SECONDS, end - time.monotonic()))
            ready, _ = self.ray.wait(list(calls), timeout=left, fetch_local=False)
            if ready:
                ready, _ = self.ray.wait(
                    list(calls), num_returns=len(calls), timeout=0, fetch_local=False
                )
                self._read([calls[reply] for reply in ready])
                ended = set(ready)
                return [handle for handle in handles if handle.call.reply in ended]
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

    def is_done(self, handle: RayHandle) -> bool:
        self._send(handle.call)
        return self._is_done(handle.call)

    def gather(self, handles: Sequence[RayHandle]) -> list[Blocks]:
        calls = _calls(handles)
        texts = self._read(calls)
        small = {id(call): pickle.loads(texts[id(call)]) for call in calls if call.is_small}
        large = iter(self._get([block for call in calls for block in call.blocks], calls))
        # The object store may be gone before the arrays are.
        arrays = {id(call): tuple(np.array(next(large)) for _ in call.blocks) for call in calls}
        return [
            small[id(h.call)][h.number][1] if h.call.is_small else arrays[id(h.call)]
            for h in handles
        ]

    def reports(self) -> Sequence[Report]:
        return self.found

    def abandon(self, attempts: Sequence[tuple[RayHandle, int]]) -> None:
        end = time.monotonic() + GRACE_SECONDS
        left = list(attempts)
        while left and time.monotonic() < end:
            time.sleep(0.05)
            left = [attempt for attempt in left if not self.is_done(attempt[0])]
        for worker in {worker for _, worker in left}:
            # Not restarted: Ray would repeat its calls.
            self.ray.kill(self.actors[worker])
            self.actors[worker] = self.new_actor()

    def close(self) -> None:
        if self.heartbeat.is_gone(at_once=True):
            return
        _table()._internal_kv_del(self.name, namespace=NAMESPACE)
        # Nothing is cancelled: an actor waits half a minute for a call that does not arrive.
        for actor in self.actors:
            actor.forget.options(max_task_retries=0).remote(self.name)


def _calls(handles: Sequence[RayHandle]) -> list[Call]:
    """Return the calls of tasks, each once."""
    return list({id(handle.call): handle.call for handle in handles}.values())
