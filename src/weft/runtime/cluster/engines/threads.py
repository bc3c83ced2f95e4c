"""`Threads`: one thread of this process for each worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Self

from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.engine import check_memory, check_workers
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import Blocks, GivenInput, ReceivedBlocks, WorkerContext, run_task


class Threads:
    """Workers that are threads: each runs its tasks in order, and waits for the blocks they read.

    There is no deadlock, as tasks read only blocks of earlier ones. The memory of a worker is what
    tasks are cut for; it is not enforced.

    >>> with Threads(workers=2) as engine:
    ...     print(engine.workers)
    2
    """

    def __init__(self, workers: int | None = None, memory: int | None = None) -> None:
        self.workers, self.memory = check_workers(workers), check_memory(memory)
        self._pools = [ThreadPoolExecutor(1, f"weft-{n}") for n in range(self.workers)]

    def start(self, context: WorkerContext) -> _ThreadsSession:
        """Start a run."""
        return _ThreadsSession(context, self._pools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


class _ThreadsSession:
    def __init__(self, context: WorkerContext, pools: Sequence[ThreadPoolExecutor]) -> None:
        self.context, self.pools = context, pools
        self.done: list[Report] = []
        self.is_open = True

    def submit(
        self,
        task: Task,
        worker: int,
        reads: Mapping[int, tuple[int, Future[Blocks]]],
        given: Mapping[str, Array],
    ) -> Future[Blocks]:
        return self.pools[worker].submit(self._run, task, dict(reads), given)

    def _run(
        self,
        task: Task,
        reads: Mapping[int, tuple[int, Future[Blocks]]],
        given: Mapping[str, Array],
    ) -> Blocks:
        if not self.is_open:
            return ()
        received = {n: ReceivedBlocks(cell, made.result()) for n, (cell, made) in reads.items()}
        whole = {name: GivenInput(x, (0,) * x.ndim) for name, x in given.items()}
        blocks, report = run_task(self.context, task, received, whole, alone=False)
        self.done.append(report)
        return blocks

    def release(self, handle: Future[Blocks]) -> None:
        """Do nothing: tasks hold what they read until they have run."""

    def wait(
        self, handles: Sequence[Future[Blocks]], seconds: float | None = None
    ) -> list[Future[Blocks]]:
        done, _ = wait(handles, seconds, FIRST_COMPLETED)
        for handle in done:
            handle.result()
        return list(done)

    def is_done(self, handle: Future[Blocks]) -> bool:
        return handle.done()

    def gather(self, handles: Sequence[Future[Blocks]]) -> list[Blocks]:
        return [handle.result() for handle in handles]

    def reports(self) -> Sequence[Report]:
        return self.done

    def restart_lost(self, workers: Iterable[int]) -> list[str]:
        return []

    def abandon(self, handles: Sequence[Future[Blocks]]) -> None:
        wait(handles)

    def close(self) -> None:
        """Start no more tasks, and wait for those that run: nothing is written after the end."""
        self.is_open = False
        wait([pool.submit(int) for pool in self.pools])
