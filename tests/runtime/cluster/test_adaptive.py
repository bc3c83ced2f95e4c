"""Unequal, stopped and killed workers: who runs how many tasks, and what is run again."""

import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.cluster.test_engines import cut, operators  # noqa: F401 - a fixture

from weft import run
from weft.lang import Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import (
    Dask,
    Ray,
    Report,
    RunRecord,
    TaskGraph,
    Threads,
    dispatch,
    recording,
)
from weft.runtime.cluster.dispatch import MemoryLimits, divide
from weft.runtime.cluster.engines import dask

ENGINES = {"threads": Threads, "ray": Ray, "dask": Dask}
LIBRARIES = {"ray": "ray", "dask": "distributed"}
CELLS, WORKERS = 64, 4


@pytest.fixture(
    scope="module",
    params=["threads", *(pytest.param(name, marks=pytest.mark.slow) for name in LIBRARIES)],
)
def engine(request):
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    with ENGINES[request.param](workers=WORKERS) as engine:
        x = np.ones(WORKERS)
        run(cut(lambda x: x + 1, x, size=WORKERS, x='<@m, [{"x"}]>'), {"x": x}, on=engine)
        yield engine


class Log:
    """What the tasks of all workers did: a line in a file for each that began."""

    def __init__(self, folder):
        self.begun, self.chosen = folder / "begun", folder / "chosen"

    def begin(self, block):
        """Note that a task begins; return whether its worker is the chosen one, and its tasks."""
        me = f"{os.getpid()}-{threading.get_ident()}"
        with self.begun.open("a") as file:
            file.write(f"{me} {block.box.start[0]}\n")
        with suppress(FileExistsError):
            os.symlink(me, self.chosen)
        return self.slow == me, self.lines().count(me)

    def linger(self, seconds, count, others=CELLS):
        """Take four times as long as others; at first, longer than three tasks of each of them.

        So the chosen worker is slow on a busy machine, too, where `seconds` may be any time. It
        goes on when the others have begun all tasks that they may run, or none for a long time:
        then what is left waits for this worker.
        """
        before, heard = len(self.lines()), time.monotonic()
        last = before
        time.sleep(4 * seconds)
        while count <= 3 and last - before < 3 * (WORKERS - 1) and last - count < others:
            time.sleep(seconds / 4)
            if (now := len(self.lines())) > last:
                last, heard = now, time.monotonic()
            elif time.monotonic() - heard > 5 + 50 * seconds:
                break

    @property
    def slow(self):
        """The chosen worker, the first that began a task."""
        return os.readlink(self.chosen)

    def lines(self):
        return [line.split()[0] for line in self.begun.read_text().splitlines()]

    def by_worker(self):
        return Counter(self.lines())

    def by_task(self):
        return Counter(line.split()[1] for line in self.begun.read_text().splitlines())


def computing(record):
    """Sums over the tasks that run the kernel, by worker."""
    tasks = tuple(task for task in record.tasks if task.kind == "compute")
    return replace(record, tasks=tasks).by_worker


def plan_of_kernel(x):
    return cut(lambda x: apply_all("unequal", x)[0], x, size=CELLS, x='<@m, [{"x"}]>')


def run_kernel(engine, operators, kernel, memory=None):  # noqa: F811
    """A run of one task for each of many cells, and its record."""
    operators.add(Operator("unequal", "n -> n", kernel))
    x = np.arange(CELLS, dtype="float64")
    plan = plan_of_kernel(x)
    with recording() as records:
        (y,) = run(plan, {"x": x}, on=engine, memory=memory)
    assert np.array_equal(y.numpy(), x + 1)
    assert records[0].is_exact
    return records[0]


def test_a_worker_four_times_as_slow_gets_its_share(engine, operators, tmp_path):  # noqa: F811
    log, seconds = Log(tmp_path), 0.02 if isinstance(engine, Threads) else 0.1

    def kernel(block, x):
        is_slow, count = log.begin(block)
        log.linger(seconds, count) if is_slow else time.sleep(seconds)
        return x + 1

    record = run_kernel(engine, operators, kernel)
    speeds = {name: total.tasks / total.seconds for name, total in computing(record).items()}
    ideal = CELLS * min(speeds.values()) / sum(speeds.values())
    slow = log.by_worker()[log.slow]
    assert slow < CELLS / WORKERS
    assert slow <= 2 * ideal + 3
    assert record.adaptations or record.total.stolen
    again = RunRecord.from_json(record.to_json())
    assert again == record
    assert all(each.why in record.to_trace() for each in record.adaptations)
    if record.adaptations:
        first = record.adaptations[0]
        assert f"{first.kind} after" in str(record)


@pytest.mark.parametrize("times", [1, 2])
def test_memory_limits_what_a_worker_takes_from_others(operators, tmp_path, times):  # noqa: F811
    log = Log(tmp_path)
    others = CELLS if times > 1 else CELLS - CELLS // WORKERS  # they may take none of its tasks

    def kernel(block, x):
        is_slow, count = log.begin(block)
        log.linger(0.01, count, others) if is_slow else time.sleep(0.01)
        return x + 1

    operators.add(Operator("unequal", "n -> n", kernel))
    plan = plan_of_kernel(np.ones(CELLS))
    own = max(TaskGraph.of(plan, workers=WORKERS).peak(WORKERS))
    del operators["unequal"]  # a run adds its own
    with Threads(workers=WORKERS) as engine:
        record = run_kernel(engine, operators, kernel, times * own)
    assert "rebalance" not in {each.kind for each in record.adaptations}
    assert bool(record.total.stolen) == (times > 1)


class Together:
    """A session in which task 3 ends when it was given to two workers, on both of them at once."""

    def __init__(self):
        self.submitted, self.released = [], []

    def submit(self, task, worker, reads, given):
        self.submitted.append((task.number, worker))
        return (task.number, len(self.submitted))

    def wait(self, handles, seconds=None):
        time.sleep(0.01)
        is_repeated = len(handles) > len({number for number, _ in handles})
        return [handle for handle in handles if is_repeated or handle[0] != 3]

    def is_done(self, handle):
        return True

    def reports(self):
        return [Report(n, 0.01, {}, f"worker {w}") for n, w in self.submitted if n != 3]

    def release(self, handle):
        self.released.append(handle)

    def abandon(self, handles):
        assert not handles


def test_two_attempts_that_end_together_count_once():
    plan = cut(lambda x: x + 1, np.ones(4), size=4, x='<@m, [{"x"}]>')
    graph, done = TaskGraph.of(plan), []
    session = Together()
    limits = MemoryLimits(graph, 2, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "STOPPED_SECONDS", 0.05)
        dispatcher = dispatch.Dispatcher(
            session, 2, [0, 0, 1, 1], graph.ranks.__getitem__, limits, progress=done.append
        )
        for task in graph.tasks[:4]:
            dispatcher.add(task)
        dispatcher.finish()
    assert done == [1, 2, 3, 4]
    assert [number for number, _ in session.submitted].count(3) == 2
    assert sorted(number for number, _ in session.released) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_killed_worker_costs_only_its_own_work(name, operators, tmp_path):  # noqa: F811
    pytest.importorskip(LIBRARIES[name])
    log = Log(tmp_path)

    def kernel(block, x):
        is_chosen, count = log.begin(block)
        time.sleep(0.05)
        if is_chosen and count == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    with ENGINES[name](workers=WORKERS) as engine:
        record = run_kernel(engine, operators, kernel)
    own = log.by_worker()[log.slow]
    queued = 4  # tasks that it had been given
    kinds = [each.kind for each in record.adaptations]
    if "restart" not in kinds:  # on a busy machine others may not answer in time, or be late
        assert sum(log.by_task().values()) - CELLS <= own + queued + kinds.count("repeat")
    assert record.missing == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_others_run_the_tasks_of_a_worker_that_stops(
    name,
    operators,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """What the worker holds is computed again where nobody can reach it, as on Dask."""
    pytest.importorskip(LIBRARIES[name])
    for module in (dispatch, dask):
        monkeypatch.setattr(module, "LOST_SECONDS", 5.0)
    log = Log(tmp_path)

    def kernel(block, x):
        is_chosen, count = log.begin(block)
        time.sleep(0.05)
        if is_chosen and count == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        return x + 1

    with ENGINES[name](workers=WORKERS) as engine:
        try:
            record = run_kernel(engine, operators, kernel)
            assert log.by_worker()[log.slow] <= 4  # it may begin one more before it stops
        finally:
            with suppress(ProcessLookupError):  # Dask has replaced it
                os.kill(int(log.slow.split("-")[0]), signal.SIGCONT)
    kinds = [each.kind for each in record.adaptations]
    assert {"repeat", "restart"} & set(kinds)
    if kinds.count("restart") < 2:  # on a busy machine others may not answer in time
        assert sum(log.by_task().values()) - CELLS <= 3 + 4 + kinds.count("repeat")


def test_cells_are_divided_by_speed_and_neighbours_share_a_worker():
    rng = np.random.default_rng(0)
    for _ in range(50):
        work = rng.random(int(rng.integers(1, 200))) + 0.01
        speeds = rng.random(int(rng.integers(1, 9))) + 0.05
        homes = divide(list(work), list(speeds))
        assert homes == sorted(homes)
        share = np.bincount(homes, weights=work, minlength=len(speeds)) / work.sum()
        assert np.all(np.abs(share - speeds / speeds.sum()) <= 1.01 * work.max() / work.sum())
