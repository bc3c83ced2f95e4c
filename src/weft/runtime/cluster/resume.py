"""`remaining`: the tasks of a run that are still to be done when some shards are there."""

from __future__ import annotations

from collections.abc import Callable

from weft.runtime.cluster.weaving.embedding import Embedding
from weft.runtime.cluster.weaving.task import Made


def remaining(embedding: Embedding, is_done: Callable[[Made], bool]) -> frozenset[int]:
    """The tasks that write what is not there, and all that those read, directly or not.

    An output that is not stored is needed in full.
    """
    wanted = {read.task for blocks in embedding.outputs for read in blocks}
    found: set[int] = set()
    for task in reversed(embedding.tasks):
        is_left = not all(map(is_done, task.writes))
        if is_left or task.number in wanted or not (task.writes or task.made):
            found.add(task.number)
            wanted |= set(task.reads)
    return frozenset(found)
