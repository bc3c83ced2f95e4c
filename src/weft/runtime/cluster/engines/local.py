"""`Threads`: the engine without an engine, a thread for each worker of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Self

from weft.runtime.arrays import Array
from weft.runtime.cluster.engines.limits import check_memory, check_workers
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.perform import Blocks, Came, Given, Program, perform
from weft.runtime.cluster.weaving.task import Task


class Threads:
    """Workers that are threads: each does its tasks in their order, and waits for what they read.

    Nobody waits in a circle, as tasks read only what comes before them. The memory of a worker is
    what plans are made for; nothing holds a thread to it.

    >>> with Threads(workers=2) as engine:
    ...     print(engine.workers)
    2
    """

    def __init__(self, workers: int | None = None, memory: int | None = None) -> None:
        self.workers, self.memory = check_workers(workers), check_memory(memory)
        self._pools = [ThreadPoolExecutor(1, f"weft-{n}") for n in range(self.workers)]

    def start(self, program: Program) -> _Run:
        """Begin a run."""
        return _Run(program, self._pools)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


class _Run:
    def __init__(self, program: Program, pools: Sequence[ThreadPoolExecutor]) -> None:
        self.program, self.pools = program, pools
        self.done: list[Report] = []
        self.is_open = True

    def submit(
        self,
        task: Task,
        worker: int,
        reads: Mapping[int, tuple[int, Future[Blocks]]],
        given: Array | None,
    ) -> Future[Blocks]:
        return self.pools[worker].submit(self._perform, task, dict(reads), given)

    def _perform(
        self, task: Task, reads: Mapping[int, tuple[int, Future[Blocks]]], given: Array | None
    ) -> Blocks:
        if not self.is_open:
            return ()
        came = {number: Came(cell, made.result()) for number, (cell, made) in reads.items()}
        start = None if given is None else Given(given, (0,) * given.ndim)
        blocks, report = perform(self.program, task, came, start, alone=False)
        self.done.append(report)
        return blocks

    def release(self, handle: Future[Blocks]) -> None:
        """What nobody holds is gone: tasks hold what they read until they have run."""

    def wait(self, handles: Sequence[Future[Blocks]]) -> None:
        done, _ = wait(handles, return_when=FIRST_EXCEPTION)
        for handle in done:
            handle.result()

    def is_done(self, handle: Future[Blocks]) -> bool:
        return handle.done()

    def gather(self, handles: Sequence[Future[Blocks]]) -> list[Blocks]:
        return [handle.result() for handle in handles]

    def reports(self) -> list[Report]:
        return self.done

    def close(self) -> None:
        """Begin no more tasks, and wait for those that had begun: no run writes behind its end."""
        self.is_open = False
        wait([pool.submit(int) for pool in self.pools])
