"""`Engine`: what runs tasks. An adapter is these few verbs; the conformance tests say the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from weft.errors import WeftError
from weft.runtime.arrays import Array
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.perform import Blocks, Program, TaskError
from weft.runtime.cluster.weaving.task import Task

Handle = Any
"""What an engine calls the blocks of a task that may still have to run; they are on its worker."""


class Session(Protocol):
    """One run of one program."""

    def submit(
        self, task: Task, worker: int, reads: Mapping[int, tuple[int, Handle]], given: Array | None
    ) -> Handle:
        """Have a task run on a worker, once what it reads is there; do not wait.

        `reads` says for each task that it reads the cell of that and its handle; `given` is the
        input of which a reader takes its box. Tasks come in the order of their numbers; of those
        that could run, a worker takes the lowest. One that failed before may raise here.
        """

    def release(self, handle: Handle) -> None:
        """Nobody will ask for these blocks but the tasks that were submitted."""

    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait until tasks have run; one that failed raises its `TaskError`, as soon as it has.

        So does one that reads what failed. No block comes here, and to wait for what has run takes
        a small part of what a task takes.
        """

    def is_done(self, handle: Handle) -> bool:
        """Whether a task has come to an end, good or bad; this never waits."""

    def gather(self, handles: Sequence[Handle]) -> list[Blocks]:
        """The blocks, here, of tasks that have run."""

    def reports(self) -> list[Report]:
        """What the tasks took, in any order, once all have run; one may be there twice."""

    def close(self) -> None:
        """Forget all of this run, be it finished or not."""


class Engine(Protocol):
    """Some workers, that take the tasks of any number of runs."""

    @property
    def workers(self) -> int:
        """How many there are, once a run has begun."""

    @property
    def memory(self) -> int | None:
        """The bytes that a worker may use; none if nobody said."""

    def start(self, program: Program) -> Session:
        """Begin a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Stop what was started for it; a cluster that was there before stays."""


class ClusterError(WeftError):
    """A cluster that went away under a run; what is stored and complete stays."""


def gone(what: str) -> ClusterError:
    """The error for a cluster that does not answer any more.

    >>> print(*gone("the scheduler at tcp://127.0.0.1:8786").__notes__)
    hint: shards that are complete stay: run it again with resume=True
    """
    return ClusterError(
        f"{what} is gone, and the run with it",
        hint="shards that are complete stay: run it again with resume=True",
    )


def lost(task: Task | None, error: BaseException) -> TaskError:
    """The error for a task that an engine gave up, as its workers died or never had it.

    >>> print(lost(None, MemoryError("no room")))
    a task was lost: MemoryError: no room
    """
    what = "a task" if task is None else f"task {task}"
    reason = str(error).strip().partition("\n")[0]
    return TaskError(f"{what} was lost: {type(error).__name__}: {reason}")
