"""`in_depth`: an order of tasks in which few blocks lie between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from weft.runtime.cluster.weaving.task import Task


def in_depth(tasks: Sequence[Task], worker: Callable[[Task], int]) -> list[int]:
    """Return the numbers of tasks in an order in which blocks are read soon after they are made.

    Workers take turns, so that the tasks of all of them stand side by side.
    """
    queues: dict[int, deque[int]] = {}
    for number in _finishing(tasks):
        queues.setdefault(worker(tasks[number]), deque()).append(number)
    order: list[int] = []
    done: set[int] = set()
    while queues:
        for key in list(queues):
            queue = queues[key]
            if done.issuperset(tasks[queue[0]].reads):
                order.append(queue.popleft())
                done.add(order[-1])
                if not queue:
                    del queues[key]
    return order


def _finishing(tasks: Sequence[Task]) -> list[int]:
    """Return all tasks in an order that finishes what was begun.

    The next task is a reader of the block that frees most bytes for each reader that it still
    waits for, behind all that this reader needs itself, depth first. A `fold` or a `write` that
    has all it needs runs at once: it leaves less behind than it reads.
    """
    reads = [task.reads for task in tasks]
    sizes = [sum(made.nbytes for made in task.made) for task in tasks]
    readers: list[list[int]] = [[] for _ in tasks]
    for task in tasks:
        for number in reads[task.number]:
            readers[number].append(task.number)
    unread = [deque(numbers) for numbers in readers]
    missing = [len(numbers) for numbers in reads]
    left = [len(numbers) for numbers in readers]
    order: dict[int, None] = {}
    begun: list[tuple[float, int, int]] = []  # a heap: bytes for each reader, negated; age; number

    def begin(number: int) -> None:
        if left[number]:
            heappush(begun, (-sizes[number] / left[number], len(order), number))

    def add(number: int) -> None:
        ready = [number]
        while ready:
            now = ready.pop()
            if now in order:
                continue
            order[now] = None
            for read in reads[now]:
                left[read] -= 1
                begin(read)
            begin(now)
            for reader in reversed(readers[now]):
                missing[reader] -= 1
                if not missing[reader] and tasks[reader].kind in ("fold", "write"):
                    ready.append(reader)

    for last in (task.number for task in tasks if not readers[task.number]):
        for number in _behind(last, reads, order):
            add(number)
        while begun:
            waiting = unread[begun[0][2]]
            while waiting and waiting[0] in order:
                waiting.popleft()
            if not waiting:
                heappop(begun)
                continue
            for number in _behind(waiting[0], reads, order):
                add(number)
    return list(order)


def _behind(last: int, reads: Sequence[Sequence[int]], order: dict[int, None]) -> Iterator[int]:
    """Yield a task behind all that it reads, directly or not, that is not in the order yet."""
    if last in order:
        return
    stack, seen = [(last, iter(reads[last]))], {last}
    while stack:
        number, rest = stack[-1]
        following = next((n for n in rest if n not in order and n not in seen), None)
        if following is None:
            stack.pop()
            yield number
        else:
            seen.add(following)
            stack.append((following, iter(reads[following])))
