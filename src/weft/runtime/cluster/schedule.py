"""The order of tasks, the memory that they take, and what they keep for each other."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import TypeVar

from weft.lang.dtype import itemsize
from weft.program.storage import Storage
from weft.runtime.cluster.tasks import (
    ArrayExpr,
    BlockRef,
    Combined,
    InputBox,
    Joined,
    Masked,
    Sliced,
    StepResult,
    Task,
    leaves,
)
from weft.space import ZRange

T = TypeVar("T")

# -- memory ----------------------------------------------------------------------------------------


def task_memory(
    task: Task, tasks: Sequence[Task], size: Callable[[str], int], extra: int = 0
) -> int:
    """Return the most bytes that a task takes at once: what it reads, computes and hands out.

    `size` are the bytes of an element of a value, `extra` those that codecs may take.
    """
    return _TaskMemory(task, tasks, size, extra).peak()


class _TaskMemory:
    """Executes a task with sizes in place of arrays, as `weft.runtime.cluster.worker` does."""

    def __init__(
        self, task: Task, tasks: Sequence[Task], size: Callable[[str], int], extra: int
    ) -> None:
        self.task, self.tasks, self.size, self.extra = task, tasks, size, extra
        self.left = count_uses(task)
        self.live: dict[InputBox | StepResult, int] = {}
        self.blocks = sum(sum(b.nbytes for b in tasks[number].blocks) for number in task.needs)
        self.blocks += sum(kept.box.size * size(kept.name) for kept in task.keeps)

    def peak(self) -> int:
        """Return the largest sum at any moment."""
        peak = 0
        for number, step in enumerate(self.task.steps):
            temporary = sum(map(self._new, step.arrays))
            results = [StepResult(number, place) for place in range(len(step.result_bytes))]
            self.live |= dict(zip(results, step.result_bytes))
            peak = max(peak, self._now(temporary + step.workspace))
            for array in step.arrays:
                drop_used(array, self.left, self.live)
            for result in results:
                if not self.left[result]:
                    self.live.pop(result, None)
        for write in self.task.writes:  # what a writer takes itself is in `extra`
            peak = max(peak, self._now(self._new(write.array)))
            drop_used(write.array, self.left, self.live)
        temporary = 0
        for block in self.task.blocks:
            # A block is copied out of what it is a part of, and again into the engine's memory.
            temporary += self._new(block.array) + 2 * block.nbytes
            peak = max(peak, self._now(temporary))
        return peak

    def _now(self, temporary: int) -> int:
        return self.blocks + sum(self.live.values()) + temporary + self.extra

    def _new(self, array: ArrayExpr) -> int:
        """Return the bytes that are allocated for an expression and freed after its use."""
        match array:
            case InputBox(name=name, box=box):
                whole = box.hull(*(kept.box for kept in self.task.keeps if kept.name == name))
                self.live[array] = whole.size * self.size(name)
                return 0
            case BlockRef() | StepResult():
                return 0
            case Sliced(of=inner):
                return self._new(inner)
            case Masked(of=inner):
                return self._new(inner) + self._bytes(inner)
            case Combined(parts=parts):
                return sum(map(self._new, parts)) + 2 * self._bytes(parts[0])
            case Joined(pieces=pieces):
                return sum(self._new(piece) for _, piece in pieces) + self._bytes(array)

    def _bytes(self, array: ArrayExpr) -> int:
        """Return the bytes of an array, or of the array that it is a slice of."""
        match array:
            case InputBox(name=name, box=box):
                return box.size * self.size(name)
            case BlockRef(task=task, place=place):
                return self.tasks[task].blocks[place].nbytes
            case StepResult(step=step, place=place):
                return self.task.steps[step].result_bytes[place]
            case Sliced(of=inner) | Masked(of=inner):
                return self._bytes(inner)
            case Combined(parts=parts):
                return self._bytes(parts[0])
            case Joined(shape=shape, dtype=dtype):
                return ZRange.of(shape).size * itemsize(dtype)


def count_uses(task: Task) -> Counter[InputBox | StepResult]:
    """Return how often a task uses each of its results and each box of an input."""
    found = (leaf for array in task.arrays() for leaf in leaves(array))
    return Counter(leaf for leaf in found if not isinstance(leaf, BlockRef))


def drop_used(
    array: ArrayExpr,
    left: Counter[InputBox | StepResult],
    live: dict[InputBox | StepResult, T],
) -> None:
    """Count the use of an expression, and drop from `live` what was used for the last time."""
    for leaf in leaves(array):
        if not isinstance(leaf, BlockRef):
            left[leaf] -= 1
            if not left[leaf]:
                live.pop(leaf, None)


def block_memory(
    tasks: Sequence[Task], ends: Sequence[int], at: Sequence[int], window: int, workers: int
) -> tuple[int, ...]:
    """Return the most bytes of blocks on each worker while up to `window` tasks are in flight.

    `ends` is for each task the one after which its blocks are freed, `at` the worker where it runs.
    """
    change: list[Counter[int]] = [Counter() for _ in range(len(tasks) + window + 2)]
    for task, end, worker in zip(tasks, ends, at):
        size = sum(block.nbytes for block in task.blocks)
        change[task.number][worker] += size
        change[min(end + window + 1, len(change) - 1)][worker] -= size
    now, peak = Counter[int](), Counter[int]()
    for step in change:
        now.update(step)
        for worker in step:
            peak[worker] = max(peak[worker], now[worker])
    return tuple(peak[worker] for worker in range(workers))


# -- order -----------------------------------------------------------------------------------------


def depth_first(tasks: Sequence[Task], worker: Callable[[Task], int]) -> list[int]:
    """Return the numbers of tasks in an order in which blocks are read soon after they are made.

    Workers take turns, so that their tasks run side by side.
    """
    queues: dict[int, deque[int]] = {}
    needs = _joint_needs(tasks)
    for number in _finish_started(tasks, needs):
        queues.setdefault(worker(tasks[number]), deque()).append(number)
    order: list[int] = []
    done: set[int] = set()
    while queues:
        for key in list(queues):
            queue = queues[key]
            if done.issuperset(needs[queue[0]]):
                order.append(queue.popleft())
                done.add(order[-1])
                if not queue:
                    del queues[key]
    return order


def _joint_needs(tasks: Sequence[Task]) -> list[Sequence[int]]:
    """Return what each task needs; the cells of a loop or a branch need what all of them need."""
    needs: list[Sequence[int]] = [task.needs for task in tasks]
    controls: dict[int, list[int]] = {}
    for task in tasks:
        if task.is_control:
            controls.setdefault(task.steps[0].application, []).append(task.number)
    for cells in controls.values():
        joint = tuple(dict.fromkeys(number for cell in cells for number in needs[cell]))
        for cell in cells:
            needs[cell] = joint
    return needs


def _finish_started(tasks: Sequence[Task], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return all tasks in an order that finishes what was started.

    The next task is a reader of the block that frees most bytes for each reader that it still
    waits for, behind all that this reader needs itself, depth first. A `combine` or a `write` that
    has all it needs runs at once: it leaves less than it reads.
    """
    sizes = [sum(block.nbytes for block in task.blocks) for task in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for task in tasks:
        for number in needs[task.number]:
            readers[number].append(task.number)
    unread = [deque(numbers) for numbers in readers]
    missing = [len(numbers) for numbers in needs]
    left = [len(numbers) for numbers in readers]
    order: dict[int, None] = {}
    started: list[tuple[float, int, int]] = []  # a heap: -bytes for each reader, age, number

    def start(number: int) -> None:
        if left[number]:
            heappush(started, (-sizes[number] / left[number], len(order), number))

    def add(number: int) -> None:
        ready = [number]
        while ready:
            now = ready.pop()
            if now in order:
                continue
            order[now] = None
            for read in needs[now]:
                left[read] -= 1
                start(read)
            start(now)
            for reader in reversed(readers[now]):
                missing[reader] -= 1
                if not missing[reader] and tasks[reader].kind in ("combine", "write"):
                    ready.append(reader)

    for last in (task.number for task in tasks if not readers[task.number]):
        for number in _with_needs(last, needs, order):
            add(number)
        while started:
            waiting = unread[started[0][2]]
            while waiting and waiting[0] in order:
                waiting.popleft()
            if not waiting:
                heappop(started)
                continue
            for number in _with_needs(waiting[0], needs, order):
                add(number)
    return list(order)


def _with_needs(last: int, needs: Sequence[Sequence[int]], order: dict[int, None]) -> Iterator[int]:
    """Return a task behind all that it needs, directly or not, that is not in the order yet."""
    if last in order:
        return
    stack, seen = [(last, iter(needs[last]))], {last}
    while stack:
        number, rest = stack[-1]
        following = next((n for n in rest if n not in order and n not in seen), None)
        if following is None:
            stack.pop()
            yield number
        else:
            seen.add(following)
            stack.append((following, iter(needs[following])))


# -- what tasks keep -------------------------------------------------------------------------------


def keep_overlaps(
    tasks: Sequence[Task], worker: Callable[[Task], int], stored: Mapping[str, Storage]
) -> tuple[Task, ...]:
    """Return the tasks, each with the boxes of stored inputs that it keeps for the next.

    Chunks are decoded whole. A tile that ends inside one, as halos do, has the rest of it; the next
    tile of the same worker along the same dimension begins there.
    """
    found, last = list(tasks), dict[int, tuple[int, Mapping[str, ZRange]]]()
    for number, task in enumerate(tasks):
        boxes = {name: box for name, box in task.input_boxes() if name in stored}
        if not boxes:
            continue
        if worker(task) in last:
            before, held = last[worker(task)]
            shared = {n: chunk_overlap(held[n], boxes[n], stored[n]) for n in held.keys() & boxes}
            keeps = tuple(InputBox(name, box) for name, box in shared.items() if box is not None)
            found[before] = replace(found[before], keeps=keeps)
        last[worker(task)] = number, boxes
    return tuple(found)


def chunk_overlap(one: ZRange, two: ZRange, storage: Storage) -> ZRange | None:
    """Return what two boxes that differ along one dimension share, widened there to whole chunks.

    >>> x = Storage((100, 8), (10, 4))
    >>> print(chunk_overlap(ZRange((0, 2), (26, 6)), ZRange((24, 2), (50, 6)), x))
    [20:30, 2:6]
    >>> chunk_overlap(ZRange((0, 2), (26, 6)), ZRange((24, 0), (50, 6)), x)
    """
    sides = zip(zip(one.start, one.stop), zip(two.start, two.stop))
    moved = [dim for dim, (a, b) in enumerate(sides) if a != b]
    if len(moved) != 1 or not one or not two:
        return None
    (dim,) = moved
    shared = storage.chunk_grid.widen(one) & storage.chunk_grid.widen(two)
    start, stop = list(one.start), list(one.stop)
    start[dim], stop[dim] = shared.start[dim], shared.stop[dim]
    return ZRange(start, stop) if start[dim] < stop[dim] else None
