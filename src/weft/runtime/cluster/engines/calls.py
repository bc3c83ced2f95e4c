"""`CallSession`: tasks go to workers in calls of an engine, of which one may have several tasks.

A call takes longer than many tasks do: consecutive small tasks of a worker share one. The results
of such a call are one object; the blocks of a larger task are an object of their own, which calls
of other workers read and the client only refers to. An adapter says how its engine sends a call,
waits for it and fetches its results.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import uuid4

from weft.errors import WeftError
from weft.runtime.arrays import Array
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import Blocks, GivenInput, ReceivedBlocks, WorkerContext, run_task
from weft.values import Point

MAX_LIGHT = 16
"""The most light tasks that share a call; the first calls of a worker have fewer."""

SMALL = 64 << 10
"""The most bytes of blocks that travel with a report; Ray inlines up to 100 KiB."""

GRACE_SECONDS = 2.0
"""How long a task that is not needed may go on; then its worker is replaced."""

CLOSE_SECONDS = 60.0
"""How long a task that writes may go on after its run has failed; then its worker is replaced."""

LIGHT = 1 << 20
"""The most bytes that a task computes in less time than a call takes."""


def is_small(task: Task) -> bool:
    """Return whether the blocks of a task travel with its report."""
    return sum(block.nbytes for block in task.blocks) <= SMALL


class BlockArgument(NamedTuple):
    """The blocks of a task that a call reads."""

    task: int
    cell: int
    at: int | None
    """The number of the argument that has them; None for a task of the same call."""
    number: int
    """The place of the task in its own call."""


class InputArgument(NamedTuple):
    """An input in memory, or a part of it, that a call reads."""

    name: str
    at: int
    """The number of the argument."""
    start: Point
    """Where the part begins."""


class CallEntry(NamedTuple):
    """A task of a call."""

    task: Task
    reads: tuple[BlockArgument, ...]
    given: tuple[InputArgument, ...]


@dataclass(eq=False)
class Call:
    """Tasks that a worker runs in order, in one call."""

    worker: int
    is_small: bool
    """Whether its blocks travel with its reports."""
    entries: list[CallEntry] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    """References of the engine."""
    reply: Any = None
    """A reference to its reports, and to its blocks if they are small; None until it is sent."""
    blocks: Any = None
    """A reference to its blocks."""
    number: int = 0
    """What an adapter knows it by."""

    def argument(self, reference: Any) -> int:
        """Return the number of the argument that is a reference; each is passed once."""
        for number, known in enumerate(self.arguments):
            if known is reference:
                return number
        self.arguments.append(reference)
        return len(self.arguments) - 1


class TaskHandle(NamedTuple):
    """A task that was submitted: its call, and its place there."""

    call: Call
    number: int


# -- on a worker -----------------------------------------------------------------------------------


def run_call(
    context: WorkerContext, entries: Iterable[CallEntry], arguments: Sequence[Any]
) -> list[tuple[Report, Blocks]]:
    """Run the tasks of a call in order; return their reports and blocks."""
    here, opened = dict[int, Blocks](), dict[int, Any]()
    found = []
    for task, reads, given in entries:
        received = {}
        for read in reads:
            if read.at is None:
                blocks = here[read.task]
            else:
                if read.at not in opened:
                    opened[read.at] = _open(arguments[read.at])
                blocks = opened[read.at][read.number][1]
            received[read.task] = ReceivedBlocks(read.cell, blocks)
        inputs = {name: GivenInput(arguments[at], start) for name, at, start in given}
        here[task.number], report = run_task(context, task, received, inputs)
        found.append((report, here[task.number]))
    return found


def check_open(entries: Iterable[CallEntry], is_open: Callable[[], bool]) -> None:
    """Refuse a call that writes for a run that has failed while the call waited."""
    if _writes(entries) and not is_open():
        raise WeftError("the run of this task has ended")


def _writes(entries: Iterable[CallEntry]) -> bool:
    """Return whether tasks of a call write to storage."""
    return any(entry.task.writes for entry in entries)


def pack(found: Sequence[tuple[Report | None, Blocks]]) -> bytes:
    """Return small results as bytes, which engines do not serialise again."""
    return pickle.dumps(found, 5)


def _open(results: Any) -> Any:
    """Return the results of a call as `run_call` did; large ones are the blocks of one task."""
    return pickle.loads(results) if isinstance(results, bytes) else [(None, results)]


# -- the client ------------------------------------------------------------------------------------


class CallSession:
    """One run: puts tasks into calls, which an adapter sends; a method does what `Session` says."""

    def __init__(self, context: WorkerContext) -> None:
        self.name, self.stored = uuid4().hex, context.inputs.keys()
        self.open: dict[int, Call] = {}
        """For each worker the call that is not sent yet, to which tasks may be added."""
        self.sent = Counter[int]()
        self.writing = set[Call]()
        """The calls that write to storage and may not have ended."""
        self.found: list[Report] = []

    _start: Callable[[Call, bytes], None]
    """Sends a call with its job, and sets its references."""
    _input: Callable[[Task, str, Array], tuple[Any, Point]]
    """Returns a reference to an input or to the part that a task reads, and where it begins."""
    _wait: Callable[[Sequence[Call], float | None], list[Call]]
    """Returns the calls that have ended, if need be after a wait; raises if one failed."""
    _has_ended: Callable[[Call], bool]
    """Returns whether a call has ended, successfully or not."""
    _results: Callable[[Sequence[Call]], list[Any]]
    """Returns the blocks of calls, as their workers returned them."""
    _replace: Callable[[set[int], Sequence[Call]], None]
    """Restarts some workers, without repeating some of their calls."""
    _is_gone: Callable[[], bool]
    """Returns whether the cluster does not answer any more."""
    _end: Callable[[], None]
    """Makes calls that write fail if they have not begun."""
    _free: Callable[[], None]
    """Frees what the cluster keeps of the run."""

    def submit(
        self,
        task: Task,
        worker: int,
        reads: Mapping[int, tuple[int, TaskHandle]],
        given: Mapping[str, Array],
    ) -> TaskHandle:
        """Add a task to the call of its worker."""
        is_light = self._is_light(task)
        if worker in self.open and not is_light:
            self._send(self.open[worker])  # the order stays
        mine = self.open.setdefault(worker, Call(worker, is_small(task)))
        arguments = []
        for number, (cell, (call, place)) in reads.items():
            if call is not mine:
                self._send(call)  # a call reads only what was sent before: no deadlock
            at = None if call is mine else mine.argument(call.blocks)
            arguments.append(BlockArgument(number, cell, at, place))
        inputs = []
        for name, array in given.items():
            reference, start = self._input(task, name, array)
            inputs.append(InputArgument(name, mine.argument(reference), start))
        mine.entries.append(CallEntry(task, tuple(arguments), tuple(inputs)))
        if not is_light or len(mine.entries) >= min(MAX_LIGHT, 1 << self.sent[worker] // 2):
            self._send(mine)
        return TaskHandle(mine, len(mine.entries) - 1)

    def _is_light(self, task: Task) -> bool:
        """Return whether a task may share a call: it is short, and reads no storage."""
        if task.writes or not is_small(task):
            return False
        if sum(sum(step.result_bytes) + step.workspace for step in task.steps) > LIGHT:
            return False
        return not self.stored or self.stored.isdisjoint(box.name for box in task.input_boxes())

    def _send(self, call: Call) -> None:
        """Send a call, unless it was sent."""
        if call.reply is None:
            del self.open[call.worker]
            self.sent[call.worker] += 1
            if _writes(call.entries):
                self.writing.add(call)
            self._start(call, pickle.dumps((self.name, call.entries)))

    def wait(self, handles: Sequence[TaskHandle], seconds: float | None = None) -> list[TaskHandle]:
        """Send what is open, and wait until a call ends."""
        for call in list(self.open.values()):
            self._send(call)
        ended = set(self._wait(_calls(handles), seconds))
        self.writing -= ended
        return [handle for handle in handles if handle.call in ended]

    def is_done(self, handle: TaskHandle) -> bool:
        """Return whether a task has ended."""
        self._send(handle.call)
        has_ended = self._has_ended(handle.call)
        if has_ended:
            self.writing.discard(handle.call)
        return has_ended

    def gather(self, handles: Sequence[TaskHandle]) -> list[Blocks]:
        """Fetch blocks."""
        calls = _calls(handles)
        opened = {id(call): _open(one) for call, one in zip(calls, self._results(calls))}
        return [opened[id(call)][number][1] for call, number in handles]

    def release(self, handle: TaskHandle) -> None:
        """Do nothing: calls refer to what they read until they have run."""

    def reports(self) -> Sequence[Report]:
        """Return what was measured so far."""
        return self.found

    def abandon(self, handles: Sequence[TaskHandle]) -> None:
        """End tasks that are not needed, after a while with their workers."""
        calls = _calls(handles)
        for call in calls:
            self._send(call)
        self._end_calls(calls, GRACE_SECONDS)

    def close(self) -> None:
        """Wait until nothing is written any more, and free everything."""
        if self._is_gone():
            return
        if self.writing:
            self._end()
            self._end_calls(list(self.writing), CLOSE_SECONDS)
        self._free()

    def _end_calls(self, calls: Sequence[Call], seconds: float) -> None:
        """Wait for calls to end; replace the workers of those that have not after some seconds."""
        end = time.monotonic() + seconds
        while left := [call for call in calls if not self._has_ended(call)]:
            if self._is_gone():
                break
            if time.monotonic() > end:
                self._replace({call.worker for call in left}, left)
                break
            time.sleep(0.05)
        self.writing.difference_update(calls)

    def restart_lost(self, workers: Iterable[int]) -> list[str]:
        """Do nothing: engines notice by themselves."""
        return []


def _calls(handles: Sequence[TaskHandle]) -> list[Call]:
    """Return the calls of tasks, each once."""
    return list({id(handle.call): handle.call for handle in handles}.values())
