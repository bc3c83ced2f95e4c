"""`Engine`: what runs tasks, and the limits of its workers.

An adapter implements these few methods; the conformance tests specify the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from weft.errors import WeftError
from weft.runtime.arrays import Array
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import Blocks, TaskError, WorkerContext

Handle = Any
"""An engine's reference to the blocks of a task, which may still have to run."""


class Session(Protocol):
    """One run of one task graph."""

    def submit(
        self,
        task: Task,
        worker: int,
        reads: Mapping[int, tuple[int, Handle]],
        given: Mapping[str, Array],
    ) -> Handle:
        """Run a task on a worker once the blocks that it reads are there; do not wait.

        `reads` holds for each task that it reads the cell of that task and its handle; `given` has
        the inputs in memory of which it takes boxes. Tasks come in the order of their
        numbers; of those that are ready, a worker takes the lowest. A task that failed earlier may
        raise here.
        """

    def release(self, handle: Handle) -> None:
        """Free blocks once the tasks that were submitted have read them."""

    def wait(self, handles: Sequence[Handle], seconds: float | None = None) -> list[Handle]:
        """Wait until one of some tasks has ended, or for some seconds; return those that have.

        Raise the `TaskError` of one that failed. No block is fetched, and waiting for a task that
        has run takes a small part of a task's time.
        """

    def is_done(self, handle: Handle) -> bool:
        """Return whether a task has ended, successfully or not; never wait."""

    def gather(self, handles: Sequence[Handle]) -> list[Blocks]:
        """Fetch the blocks of tasks that have run."""

    def reports(self) -> Sequence[Report]:
        """Return the measurements that have arrived so far; later calls return more at the end.

        Those of a task are there once `wait` has returned it; it may have several.
        """

    def restart_lost(self, workers: Iterable[int]) -> list[str]:
        """Restart those of some workers that have stopped and hold blocks; return their names.

        Asked only if nothing has ended for a while, and may take seconds.
        """

    def abandon(self, handles: Sequence[Handle]) -> None:
        """End tasks of which the result is not needed.

        They write nothing after this.
        """

    def close(self) -> None:
        """Free everything of this run, whether it has finished or not.

        Nothing is written after this: tasks that write and have not begun never do, and those that
        run are waited for.
        """


class Engine(Protocol):
    """Workers that run the tasks of any number of runs."""

    @property
    def workers(self) -> int:
        """The number of workers, once a run has started."""

    @property
    def memory(self) -> int | None:
        """The bytes that a worker may use; None if there is no limit."""

    def start(self, context: WorkerContext) -> Session:
        """Start a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Stop what this engine has started; a cluster that was running before keeps running."""


class ClusterError(WeftError):
    """A cluster that stopped answering during a run; complete shards in storage are kept."""


def cluster_lost(what: str) -> ClusterError:
    """Return the error for a cluster that does not answer any more.

    >>> print(*cluster_lost("the scheduler at tcp://127.0.0.1:8786").__notes__)
    hint: shards that are complete stay: run it again with resume=True
    """
    return ClusterError(
        f"{what} is gone, and the run with it",
        hint="shards that are complete stay: run it again with resume=True",
    )


def task_lost(task: Task | None, error: BaseException) -> TaskError:
    """Return the error for a task that an engine gave up, because workers died or never got it.

    >>> print(task_lost(None, MemoryError("no room")))
    a task was lost: MemoryError: no room
    """
    what = "a task" if task is None else f"task {task}"
    reason = str(error).strip().partition("\n")[0]
    return TaskError(f"{what} was lost: {type(error).__name__}: {reason}")


# -- limits of workers -----------------------------------------------------------------------------

OWN_MEMORY = 192 << 20
"""The bytes that a worker takes itself: the interpreter, the engine, libraries and codecs."""
MAX_WORKERS = 4096
"""The most workers of a run."""
MAX_MEMORY = 1 << 50
"""The most bytes of memory of a worker: 1 PiB."""

ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "BLOSC_NTHREADS",
    ),
    "1",
)
"""A worker uses one processor: threads of its libraries would take those of other workers."""


def check_workers(workers: int | None) -> int:
    """Return the number of workers, by default one for each processor."""
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise WeftError(f"{workers} workers cannot run anything", hint="one is the least")
    if workers > MAX_WORKERS:
        raise WeftError(f"{workers} workers are too many: a run has at most {MAX_WORKERS}")
    return workers


def check_memory(memory: int | None) -> int | None:
    """Return the bytes that a worker may use, if they are limited."""
    if memory is not None and memory < OWN_MEMORY:
        raise WeftError(
            f"a worker cannot run in {memory} bytes: it has as many as {OWN_MEMORY} by itself",
            hint="the memory of a worker is in bytes",
        )
    if memory is not None and memory > MAX_MEMORY:
        raise WeftError(f"a worker of {memory} bytes: at most {MAX_MEMORY}")
    return memory


def limit_memory(memory: int) -> None:
    """Limit the private memory of this process; an allocation beyond it raises `MemoryError`.

    Linux counts what is reserved, and threads reserve much that they never touch: that stays free.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return
    resource = import_module("resource")  # not on Windows
    sizes = dict(line.split(":", 1) for line in status.read_text().splitlines())
    reserved, touched = (int(sizes[name].split()[0]) << 10 for name in ("VmData", "RssAnon"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (reserved - touched + memory, hard))


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that the block starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
