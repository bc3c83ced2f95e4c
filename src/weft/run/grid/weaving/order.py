"""`in_depth`: tasks in an order in which little lies between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from weft.run.grid.weaving.task import Task


def in_depth(tasks: Sequence[Task], worker: Callable[[Task], int]) -> list[int]:
    """The numbers of tasks in another order, in which what a task reads is done just before it.

    Workers take turns, so that the tasks of all of them stand side by side.
    """
    queues: dict[int, deque[int]] = {}
    for number in _behind(tasks):
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


def _behind(tasks: Sequence[Task]) -> list[int]:
    """All tasks, each behind what it reads and that just before it; the last readers in order."""
    read = {number for task in tasks for number in task.reads}
    order: dict[int, None] = {}
    for last in (task.number for task in tasks if task.number not in read):
        stack = [(last, iter(tasks[last].reads))]
        seen = {last}
        while stack:
            _, rest = stack[-1]
            following = next((n for n in rest if n not in order and n not in seen), None)
            if following is None:
                order[stack.pop()[0]] = None
            else:
                seen.add(following)
                stack.append((following, iter(tasks[following].reads)))
    return list(order)
