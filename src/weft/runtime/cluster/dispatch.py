"""Give tasks to workers while a run goes on, by measured load.

Every cell has a worker, which runs its tasks in order and has a short queue of them. A worker that
has room takes the next task of its own cells; if there is none, it takes one from the worker that
would get to it last, if it can finish it sooner, with the time to fetch the blocks that it does not
have. Whoever has nothing to take repeats a task of a worker that is late, stopped or lost; the
first result counts. Seconds are those that workers measured, by operator. If they differ from what
was assumed, cells that have tasks left are divided anew among the workers, in proportion to their
speed. None of this changes a result: tasks and what they read stay the same.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import Handle, Session
from weft.runtime.cluster.metrics.record import Adaptation
from weft.runtime.cluster.schedule import task_memory
from weft.runtime.cluster.tasks import BlockRef, Task
from weft.runtime.cluster.worker import Blocks
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.runtime.cluster.task_graph import TaskGraph

QUEUE_SECONDS = (0.2, 2.0)
"""A worker has tasks for so long in its queue, by estimate; for longer where queues run empty."""
QUEUE_TASKS = 64
"""The most tasks in a queue."""
LOOK_AHEAD = 64
"""This many waiting tasks of a worker are looked at to find one that can run."""
WAITING_TASKS = 1 << 14
"""The most tasks that wait; the tasks of a loop are made as it goes on."""
BANDWIDTH = 1e9
"""Bytes that a worker fetches from another in a second, by assumption."""
LEAST_GAIN = 5e-3
"""The seconds by which a task must end sooner for it to be taken from another worker."""
LATE_SECONDS = 0.25
"""A task is repeated if it is late by so much and by twice the time that it takes elsewhere."""
STOPPED_SECONDS = 5.0
"""A task that writes, or of a worker that starts, is repeated only if nothing ends for so long."""
LOST_SECONDS = 15.0
"""If no task has ended for so long, workers that do not answer are restarted."""
DIFFERENT = 1.5
"""The ratio from which measured and assumed speeds count as different."""


NO_ARRAYS: Mapping[str, Array] = FrozenMap(())


class WorkerRates:
    """Measured seconds of work, by operator and worker; recent measurements count more.

    >>> rates = WorkerRates(2)
    >>> for _ in range(4):
    ...     rates.add("matmul", 0, 100, 1.0)
    ...     rates.add("matmul", 1, 100, 4.0)
    >>> rates.slowness(1), rates.seconds("matmul", 50, 1), rates.seconds("matmul", 50, 0)
    (4.0, 2.0, 0.5)
    """

    FORGET = 0.9
    ENOUGH = (3, 0.02)
    """The tasks and seconds from which the speed of a worker is estimated."""

    def __init__(self, workers: int) -> None:
        self.workers, self.samples = workers, dict[str, list[tuple[float, float]]]()
        self.counts, self._slowness = [0] * workers, dict[int, float]()

    def add(self, key: str, worker: int, units: float, seconds: float) -> None:
        """Add the measurement of a task."""
        row = self.samples.setdefault(key, [(0.0, 0.0)] * self.workers)
        old = row[worker]
        row[worker] = old[0] * self.FORGET + units, old[1] * self.FORGET + seconds
        self.counts[worker] += 1
        self._slowness.clear()

    def nominal(self, key: str) -> float:
        """Return the seconds for a unit on the fastest worker."""
        known = (s / units for units, s in self.samples.get(key, ()) if units)
        return min(known, default=0.0)

    def slowness(self, worker: int) -> float:
        """Return how many times as long as the fastest a worker takes; 1 if not known."""
        if worker not in self._slowness:
            taken = sum(row[worker][1] for row in self.samples.values())
            best = sum(row[worker][0] * self.nominal(key) for key, row in self.samples.items())
            is_known = self.counts[worker] >= self.ENOUGH[0] and taken >= self.ENOUGH[1]
            self._slowness[worker] = max(1.0, taken / best) if is_known and best else 1.0
        return self._slowness[worker]

    def seconds(self, key: str, units: float, worker: int) -> float:
        """Return the seconds that a worker will take."""
        have, taken = self.samples.get(key, ((0.0, 0.0),) * self.workers)[worker]
        if have:
            return units * taken / have
        return units * self.nominal(key) * self.slowness(worker)


@dataclass(slots=True, eq=False)
class Attempt:
    """A task that was given to a worker."""

    number: int
    worker: int
    handle: Handle
    expected: float
    """Seconds."""


@dataclass(slots=True, eq=False)
class Entry:
    """A task of the run."""

    task: Task
    given: Mapping[str, Array]
    needs: tuple[int, ...]
    key: str
    units: int
    waits: int = 0
    """How many of the tasks that it needs have not run."""
    readers: list[int] = field(default_factory=list)
    unread: int = 0
    """How many of its readers have not run."""
    pins: int = 0
    """How often its blocks may still be needed by tasks that do not exist yet."""
    attempts: list[Attempt] = field(default_factory=list)
    done: Attempt | None = None
    is_released: bool = False
    home: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of its blocks."""
        return sum(block.nbytes for block in self.task.blocks)


class MemoryLimits:
    """How many bytes the workers of a run may have for the tasks of others."""

    def __init__(self, graph: TaskGraph, workers: int, memory: int | None) -> None:
        self.graph, self.workers, self.memory = graph, workers, memory

    @cached_property
    def _own(self) -> list[tuple[int, int]]:
        """For each worker the most bytes that it has for its own cells, and for one task of them.

        Workers without cells help others.
        """
        peaks, largest = self.graph.peak(self.workers), self.graph.largest_tasks(self.workers)
        none = [(0, 0)] * (self.workers - len(peaks))
        return [*zip(peaks, largest), *none]

    def _extra(self, task: Task, tasks: Sequence[Task], worker: int) -> int:
        """Return the bytes that a task of another takes beyond the largest of a worker's own."""
        size = task_memory(task, tasks, self.graph.itemsize, self.graph.extra)
        return max(0, size - self._own[worker][1])

    def allow(self, task: Task, tasks: Sequence[Task], worker: int, borrowed: int) -> bool:
        """Return whether a worker that has some blocks of others has memory for one more task."""
        if self.memory is None:
            return True
        more = sum(block.nbytes for block in task.blocks) + self._extra(task, tasks, worker)
        return self._own[worker][0] + borrowed + more <= self.memory

    def bound(self, dispatcher: Dispatcher) -> int | None:
        """Return the most bytes that a worker had in a run; None if cells have changed workers."""
        if any(each.kind == "rebalance" for each in dispatcher.adaptations):
            return None
        larger = [0] * self.workers
        for number, worker in dispatcher.stolen.items():
            extra = self._extra(dispatcher.tasks[number], dispatcher.tasks, worker)
            larger[worker] = max(larger[worker], extra)
        own = (peak for peak, _ in self._own)
        return max(map(sum, zip(own, dispatcher.most_borrowed, larger)))


class Dispatcher:
    """Gives tasks to the workers of a session, and waits for them."""

    def __init__(
        self,
        session: Session,
        workers: int,
        homes: Sequence[int],
        rank: Callable[[int], int],
        limits: MemoryLimits,
        window: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.session, self.workers, self.homes, self.rank = session, workers, list(homes), rank
        self.limits, self.window, self.progress = limits, window, progress
        self.entries: list[Entry] = []
        self.tasks: list[Task] = []
        """All tasks of the run; the number of a task is its place."""
        self.waiting = [OrderedDict[int, None]() for _ in range(workers)]
        """The tasks of each worker that it was not given yet."""
        self.backlog = [Counter[str]() for _ in range(workers)]
        """Their units of work, by key."""
        self.queues: list[list[Attempt]] = [[] for _ in range(workers)]
        self.load, self.heard = [0.0] * workers, [time.monotonic()] * workers
        """For each worker the seconds in its queue, and when it last finished a task."""
        self.looked = time.monotonic()
        """When it was last checked whether workers answer."""
        self.forgotten: list[Attempt] = []
        """Attempts that go on although another one has finished the task."""
        self.rates, self.assumed = WorkerRates(workers), [1.0] * workers
        self.names, self.measured = dict[str, int](), 0
        self.depth, self.ended = [QUEUE_SECONDS[0]] * workers, [inf] * workers
        """For each worker the seconds that its queue should last, and when it ended a task."""
        self.oldest = self.done = 0
        self.borrowed, self.most_borrowed = [0] * workers, [0] * workers
        """The bytes of blocks that a worker has for others, now and at most."""
        self.stolen: dict[int, int] = {}
        """The worker of each task that did not run on its own."""
        self.adaptations: list[Adaptation] = []

    # -- what is to be done

    def add(
        self, task: Task, given: Mapping[str, Array] = NO_ARRAYS, *, is_done: bool = False
    ) -> None:
        """Add a task, whose number is the next; tasks that it needs were added before."""
        needs = task.needs
        units = 10_000 + sum(step.box.size for step in task.steps)
        units += sum(output.nbytes for output in (*task.blocks, *task.writes))
        entry = Entry(task, given, needs, f"{task.operator} {task.kind}", units)
        self.entries.append(entry)
        self.tasks.append(task)
        if is_done:
            entry.is_released = True
            entry.done = Attempt(task.number, 0, None, 0.0)
            self._count()
            return
        for number in needs:
            need = self.entries[number]
            need.readers.append(task.number)
            need.unread += 1
            entry.waits += need.done is None
        self._wait_at(entry, self.homes[self.rank(task.cell)])
        if len(self.entries) - self.done > WAITING_TASKS:
            self._step()

    def _wait_at(self, entry: Entry, home: int) -> None:
        entry.home = home
        self.waiting[home][entry.task.number] = None
        self.backlog[home][entry.key] += entry.units

    def pin(self, block: BlockRef) -> None:
        """Keep a block until it is unpinned."""
        self.entries[block.task].pins += 1

    def unpin(self, block: BlockRef) -> None:
        """Free a block once the tasks that were added have read it."""
        self.entries[block.task].pins -= 1
        self._release(self.entries[block.task])

    def fetch(self, blocks: Sequence[BlockRef]) -> list[Array]:
        """Wait for blocks and return them."""
        numbers = list(dict.fromkeys(block.task for block in blocks))
        while any(self.entries[number].done is None for number in numbers):
            self._step()
        found: dict[int, Blocks] = dict(
            zip(numbers, self.session.gather([self._done(number).handle for number in numbers]))
        )
        return [found[block.task][block.place] for block in blocks]

    def _done(self, number: int) -> Attempt:
        found = self.entries[number].done
        assert found is not None
        return found

    def finish(self) -> None:
        """Wait until all tasks have run and nothing is written any more."""
        while self.oldest < len(self.entries):
            self._step()
        self._measure()
        writing = [a for a in self.forgotten if self.tasks[a.number].writes]
        self.session.abandon([attempt.handle for attempt in writing])

    def close(self) -> None:
        """Let go of all blocks."""
        for entry in self.entries:
            for attempt in entry.attempts:
                attempt.handle = None
        self.entries, self.forgotten, self.queues = [], [], []

    # -- time goes on

    def _step(self) -> None:
        """Give tasks to workers that have room, and wait until one has finished something."""
        self._dispatch()
        running = [attempt for queue in self.queues for attempt in queue]
        if not running:
            return
        by_handle = {attempt.handle: attempt for attempt in running}
        is_idle = not all(self.queues)
        for handle in self.session.wait(list(by_handle), 0.05 if is_idle else 1.0):
            self._end(by_handle[handle])
        self._look_for_lost()
        self.forgotten = [a for a in self.forgotten if not self.session.is_done(a.handle)]
        self._measure()

    def _look_for_lost(self) -> None:
        """Restart workers that have stopped, if nothing ends: what they hold may be waited for."""
        now = time.monotonic()
        if now - max(*self.heard, self.looked) > LOST_SECONDS:
            known = [worker for worker, count in enumerate(self.rates.counts) if count]
            for name in self.session.restart_lost(known):
                why = f"{name} did not answer, and nothing ended for {now - max(self.heard):.0f} s"
                self.adaptations.append(Adaptation(time.time(), "restart", why))
            self.looked = time.monotonic()

    def _end(self, attempt: Attempt) -> None:
        """Note that an attempt has succeeded."""
        entry, worker = self.entries[attempt.number], attempt.worker
        if entry.done is not None:  # two attempts have ended at once
            return
        self._forget(attempt)
        self.heard[worker] = time.monotonic()
        entry.done = attempt
        for other in entry.attempts:
            if other is not attempt:
                self._forget(other)
                self.forgotten.append(other)
                self.borrowed[other.worker] -= entry.nbytes if other.worker != entry.home else 0
        if worker != entry.home:
            self.stolen[attempt.number] = worker
        for reader in entry.readers:
            self.entries[reader].waits -= 1
        for number in entry.needs:
            need = self.entries[number]
            need.unread -= 1
            self._release(need)
        self._release(entry)
        self._count()

    def _forget(self, attempt: Attempt) -> None:
        if attempt in self.queues[attempt.worker]:
            self.queues[attempt.worker].remove(attempt)
            self.load[attempt.worker] -= attempt.expected

    def _count(self) -> None:
        self.done += 1
        while self.oldest < len(self.entries) and self.entries[self.oldest].done is not None:
            self.oldest += 1
        self.progress(self.done)

    def _release(self, entry: Entry) -> None:
        """Free the blocks of a task that have no reader left."""
        if entry.is_released or entry.done is None or entry.unread or entry.pins:
            return
        entry.is_released = True
        self.session.release(entry.done.handle)
        if entry.task.number in self.stolen:
            self.borrowed[entry.done.worker] -= entry.nbytes
        entry.given, entry.done.handle = NO_ARRAYS, None

    # -- who runs what

    def _dispatch(self) -> None:
        is_full, left = False, self._time_left()
        while not is_full:
            is_full = True
            for worker in sorted(range(self.workers), key=self.load.__getitem__):
                if self._has_room(worker, left) and (number := self._choose(worker)) is not None:
                    self._give(number, worker)
                    is_full = False

    def _time_left(self) -> float:
        """Return the seconds that all workers take for what waits."""
        waiting = sum(
            units * self.rates.nominal(key)
            for backlog in self.backlog
            for key, units in backlog.items()
        )
        return waiting / sum(1 / self.rates.slowness(worker) for worker in range(self.workers))

    def _has_room(self, worker: int, left: float) -> bool:
        """Return whether a worker may queue more; queues are short when there is little left."""
        depth = min(self.depth[worker], max(QUEUE_SECONDS[0], left / 2))
        count = len(self.queues[worker])
        if any(attempt.worker == worker for attempt in self.forgotten):
            return not any(self.queues)  # it may have stopped
        return not count or (self.load[worker] < depth and count < QUEUE_TASKS)

    def _choose(self, worker: int) -> int | None:
        """Return a task for a worker that has room: its own, another's, or one that is late."""
        for number in self._candidates(worker, worker):
            if not self._is_better_elsewhere(self.entries[number], worker):
                return number
        victims = [v for v in range(self.workers) if v != worker and self.waiting[v]]
        mine = self._wait_of(worker) + LEAST_GAIN
        for wait, victim in sorted(((self._wait_of(v), v) for v in victims), reverse=True):
            found = [
                (self._transfer(entry, worker), number)
                for number in self._candidates(victim, worker)
                if not (entry := self.entries[number]).waits
                and entry.key in self.rates.samples
                and wait > mine + self._time(entry, worker)
                and self._fits(entry, worker)
            ]
            if found:
                return min(found)[1]
        return None if self.queues[worker] else self._late(worker)

    def _candidates(self, home: int, worker: int) -> Iterator[int]:
        """Return waiting tasks of a worker that another, or itself, could be given now.

        What they need has run, or is queued before them on the same worker: a task never waits in
        a queue for another queue.
        """
        end = len(self.entries) if self.window is None else self.oldest + self.window
        for number in list(islice(self.waiting[home], LOOK_AHEAD)):
            entry = self.entries[number]
            if number < end and (
                not entry.waits or all(self._is_at(n, worker) for n in entry.needs)
            ):
                yield number

    def _is_at(self, number: int, worker: int) -> bool:
        """Return whether a task has run, or is queued on a worker."""
        entry = self.entries[number]
        return entry.done is not None or any(a.worker == worker for a in entry.attempts)

    def _seconds(self, entry: Entry, worker: int) -> float:
        """Return the seconds that a task will take; two that were never measured fill a queue."""
        if entry.key not in self.rates.samples:
            return QUEUE_SECONDS[0] / 2
        return self.rates.seconds(entry.key, entry.units, worker)

    def _wait_of(self, worker: int) -> float:
        """Return the seconds until a worker will have run all that waits for it, if known."""
        waiting = sum(n * self.rates.nominal(key) for key, n in self.backlog[worker].items())
        queued = sum(
            attempt.expected
            for attempt in self.queues[worker]
            if self.entries[attempt.number].key in self.rates.samples
        )
        return queued + waiting * self.rates.slowness(worker)

    def _time(self, entry: Entry, worker: int) -> float:
        """Return the seconds until a worker has run a task, with what it must fetch for it."""
        return self._transfer(entry, worker) + self._seconds(entry, worker)

    def _transfer(self, entry: Entry, worker: int) -> float:
        """Return the seconds for the blocks that a task reads and a worker does not have."""
        elsewhere = (
            need.nbytes
            for number in entry.needs
            if (need := self.entries[number]).done is not None and need.done.worker != worker
        )
        return (sum(elsewhere) + (entry.nbytes if entry.given else 0)) / BANDWIDTH

    def _is_better_elsewhere(self, entry: Entry, worker: int) -> bool:
        """Return whether others would have run all that waits, and this task, before a slow one."""
        others = [w for w in range(self.workers) if w != worker]
        is_slow = self.rates.slowness(worker) >= DIFFERENT
        if not is_slow or not others or entry.waits or not any(self.queues):
            return False
        mine = self.load[worker] + self._seconds(entry, worker)
        speeds = [1 / self.rates.slowness(other) for other in range(self.workers)]
        queued = sum(self.load[other] * speeds[other] for other in others)
        waiting = self._time_left() * sum(speeds)
        best = min(self._seconds(entry, other) for other in others)
        return (queued + waiting) / sum(speeds[other] for other in others) + best < mine

    def _fits(self, entry: Entry, worker: int) -> bool:
        """Return whether a worker has memory for a task of another."""
        return self.limits.allow(entry.task, self.tasks, worker, self.borrowed[worker])

    def _late(self, worker: int) -> int | None:
        """Return a task that another worker should have finished, to be repeated on this one."""
        now, found = time.monotonic(), list[tuple[float, int]]()
        for other, queue in enumerate(self.queues):
            silent, ahead = now - self.heard[other], 0.0
            is_starting = not self.rates.counts[other]
            patience = STOPPED_SECONDS if is_starting else LATE_SECONDS
            for attempt in queue if other != worker else ():
                entry = self.entries[attempt.number]
                ahead += attempt.expected
                left = ahead - silent if silent < ahead else silent
                mine = self._time(entry, worker)
                is_late = left > 2 * mine + patience and len(entry.attempts) == 1
                if entry.task.writes:
                    is_late = is_late and silent > max(STOPPED_SECONDS, 8 * ahead)
                if is_late and not entry.waits and self._fits(entry, worker):
                    found.append((-left, attempt.number))
        if not found:
            return None
        left, number = min(found)
        (first,) = self.entries[number].attempts
        why = f"task {number} waits on {self._name(first.worker)}, for {-left:.2g} s more"
        self.adaptations.append(Adaptation(time.time(), "repeat", why))
        return number

    def _give(self, number: int, worker: int) -> None:
        entry = self.entries[number]
        if not self.queues[worker]:
            self.heard[worker] = time.monotonic()
        if not entry.attempts:
            del self.waiting[entry.home][number]
            backlog = self.backlog[entry.home]
            backlog[entry.key] -= entry.units
            if backlog[entry.key] <= 0:
                del backlog[entry.key]
        if worker != entry.home:
            self.borrowed[worker] += entry.nbytes
            self.most_borrowed[worker] = max(self.most_borrowed[worker], self.borrowed[worker])
        reads = {n: (self.tasks[n].cell, self._handle(n, worker)) for n in entry.needs}
        expected = self._seconds(entry, worker)
        handle = self.session.submit(entry.task, worker, reads, entry.given)
        attempt = Attempt(number, worker, handle, expected)
        entry.attempts.append(attempt)
        self.queues[worker].append(attempt)
        self.load[worker] += expected

    def _handle(self, number: int, worker: int) -> Handle:
        entry = self.entries[number]
        if entry.done is not None:
            return entry.done.handle
        return next(a.handle for a in entry.attempts if a.worker == worker)

    # -- measured speeds

    def _name(self, worker: int) -> str:
        return next((name for name, n in self.names.items() if n == worker), f"worker {worker}")

    def _measure(self) -> None:
        """Learn from the reports that have arrived, and divide the cells anew if that helps."""
        reports = self.session.reports()
        for report in reports[self.measured :]:
            entry = self.entries[report.task]
            if report.worker not in self.names and len(entry.attempts) == 1:
                self.names[report.worker] = entry.attempts[0].worker
            if report.worker in self.names:
                worker = self.names[report.worker]
                self.rates.add(entry.key, worker, entry.units, report.seconds)
                idle = report.begin - self.ended[worker]
                self.ended[worker] = report.begin + report.seconds
                is_empty = idle > 0.1 * report.seconds + 1e-3 and bool(self.waiting[worker])
                depth = self.depth[worker] * (1.5 if is_empty else 0.95)
                self.depth[worker] = min(max(depth, QUEUE_SECONDS[0]), QUEUE_SECONDS[1])
        if len(reports) > self.measured:
            self.measured = len(reports)
            self._rebalance()

    def _rebalance(self) -> None:
        speeds = [self.rates.slowness(worker) for worker in range(self.workers)]
        changed = [
            w
            for w, (now, before) in enumerate(zip(speeds, self.assumed))
            if now > DIFFERENT * before or before > DIFFERENT * now
        ]
        left = sorted(number for waiting in self.waiting for number in waiting)
        is_limited = self.limits.memory is not None  # the memory of a worker is that of its cells
        if not changed or is_limited or len(left) < 2 * self.workers:
            return
        work = [1e-9] * len(self.homes)
        for number in left:
            entry = self.entries[number]
            rank = self.rank(entry.task.cell)
            work[rank] += entry.units * self.rates.nominal(entry.key)
        homes = divide(work, [1 / speed for speed in speeds])
        if homes != self.homes:
            texts = [
                f"{self._name(w)} takes {speeds[w]:.2g} times as long as the fastest "
                f"({self.assumed[w]:.2g} assumed): {self.homes.count(w)} -> {homes.count(w)} cells"
                for w in changed
            ]
            self.adaptations.append(Adaptation(time.time(), "rebalance", "; ".join(texts)))
            self.homes = homes
            self.waiting = [OrderedDict() for _ in range(self.workers)]
            self.backlog = [Counter() for _ in range(self.workers)]
            for number in left:
                entry = self.entries[number]
                self._wait_at(entry, homes[self.rank(entry.task.cell)])
        self.assumed = speeds


def divide(work: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Return for each of some cells in a row a worker, so that neighbours share one.

    Work is divided in proportion to the speed of workers.

    >>> divide([1.0] * 10, [1.0, 1.0]), divide([1.0] * 10, [1.0, 0.25])
    ([0, 0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
    """
    total, worker, before = sum(work), 0, 0.0
    until = speeds[0] / sum(speeds)
    found = []
    for each in work:
        middle = (before + each / 2) / total
        while middle > until and worker < len(speeds) - 1:
            worker += 1
            until += speeds[worker] / sum(speeds)
        found.append(worker)
        before += each
    return found
