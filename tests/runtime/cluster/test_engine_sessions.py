"""What sessions of engines promise one by one: waiting, memory, threads, an end."""

import os
import threading
import time
import warnings
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cluster.deaths import await_end
from tests.runtime.cluster.test_engines import cut, operators  # noqa: F401

from weft import WeftError, run
from weft.lang import Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import Dask, Ray, TaskError, TaskGraph, Threads
from weft.runtime.cluster.engines import dask as dask_engine
from weft.runtime.cluster.engines import ray as ray_engine
from weft.runtime.cluster.engines import ray_cluster
from weft.runtime.cluster.worker import WorkerContext

pytestmark = pytest.mark.slow

MEMORY = 320 << 20
LIBRARIES = {"ray": "ray", "dask": "distributed"}
ENGINES = {
    "threads": lambda: Threads(2, memory=MEMORY),
    "ray": lambda: Ray(workers=2, memory=MEMORY),
    "dask": lambda: Dask(workers=2, memory=MEMORY),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    if request.param in LIBRARIES:
        pytest.importorskip(LIBRARIES[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        with ENGINES[request.param]() as engine:
            yield engine


def submitted(engine, plan, x):
    """A session with all tasks of a plan, and their handles."""
    session, handles = engine.start(WorkerContext.of(plan)), []
    graph = TaskGraph.of(plan)
    for task in graph.tasks:
        reads = {n: (graph.tasks[n].cell, handles[n]) for n in task.needs}
        given = {name: x for name, _ in task.input_boxes()}
        worker = graph.worker(task.cell, engine.workers)
        handles.append(session.submit(task, worker, reads, given))
    return session, graph, handles


def wait_for_all(session, handles):
    """Wait until all tasks have ended, by the ends of one after another."""
    left = list(handles)
    while left:
        ended = session.wait(left)
        assert ended
        left = [handle for handle in left if handle not in ended]


@pytest.fixture
def gate(tmp_path):
    """A file for which tasks wait; it is there in the end, whatever happens."""
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def waiting(path):
    """A function that waits, in a task, until a file is there."""

    def wait():
        end = time.monotonic() + 300
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.01)

    return wait


def one_application(name, x):
    return cut(lambda x: apply_all(name, x)[0], x, x='<@m, [{"x"}, {}]>')


def test_a_wait_ends_with_its_tasks_and_brings_their_reports(engine, operators, gate):  # noqa: F811
    wait = waiting(gate)

    def kernel(block, x):
        if block.box.start[0]:
            wait()
        return x + 0

    operators.add(Operator("sleepy", "m n -> m n", kernel))
    x = np.ones((2, 3))
    session, graph, handles = submitted(engine, one_application("sleepy", x), x)
    first, last = (task.number for task in graph.tasks if task.kind == "compute")
    assert session.wait([handles[first]]) == [handles[first]]
    assert session.is_done(handles[first])
    assert not session.is_done(handles[last])
    assert session.wait([handles[last]], 0.01) == []
    gate.touch()
    wait_for_all(session, handles)
    assert all(map(session.is_done, handles))
    assert {report.task for report in session.reports()} == set(range(len(handles)))
    (block,) = session.gather(handles)[last]
    assert np.array_equal(block, x[1:])
    session.close()


def test_a_wait_ends_as_soon_as_one_failed(engine, operators, gate):  # noqa: F811
    wait = waiting(gate)

    def kernel(block, x):
        if block.box.start[0] == 0:
            wait()
            return x + 0
        raise ZeroDivisionError("out of luck")

    operators.add(Operator("hasty", "m n -> m n", kernel))
    x = np.ones((2, 3))
    plan = cut(lambda x: apply_all("hasty", x)[0] - x, x, x='<@m, [{"x"}, {}]>')
    session, graph, handles = submitted(engine, plan, x)
    slow, _ = (task.number for task in graph.tasks if task.operator.startswith("hasty"))
    with pytest.raises(TaskError, match="hasty could not compute hasty"):
        wait_for_all(session, handles)
    assert not session.is_done(handles[slow])
    gate.touch()
    with pytest.raises(TaskError, match="hasty could not compute hasty"):
        session.wait(handles[-1:])
    session.close()


def test_many_small_tasks_and_few_large_ones_with_several_blocks(engine, operators):  # noqa: F811
    def kernel(block, x):
        return x + 1, x + 2

    operators.add(Operator("both", "m n -> m n, m n", kernel))

    def program(x):
        for _ in range(80):
            one, two = apply_all("both", x)
            x = one - two
        return x, one

    for columns in (3, 20_000):
        x = np.arange(4.0 * columns).reshape(4, columns)
        plan = cut(program, x, size=4, x='<@m, [{"x"}, {}]>')
        for found, wanted in zip(run(plan, {"x": x}, on=engine), run(plan, {"x": x})):
            assert np.array_equal(found.numpy(), wanted.numpy())


def test_memory_is_the_given_limit(engine):
    assert engine.memory == MEMORY
    with pytest.raises(WeftError, match="a worker cannot run in 512 bytes"):
        Threads(2, memory=512)


def test_libraries_of_workers_start_no_threads(engine, operators):  # noqa: F811
    def kernel(block, x):
        return x * 0 + int(os.environ["OMP_NUM_THREADS"])

    operators.add(Operator("threads", "m n -> m n", kernel))
    x = np.ones((2, 3))
    (y,) = run(one_application("threads", x), {"x": x}, on=engine)
    assert (y.numpy() == (2 if isinstance(engine, Threads) else 1)).all()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no limits as Linux has them")
def test_a_task_that_takes_too_much_memory_fails_and_the_worker_lives(operators):  # noqa: F811
    pytest.importorskip("ray")

    def kernel(block, x):
        return x + np.ones(int(x[0, 0]) << 17).sum()

    operators.add(Operator("greedy", "m n -> m n", kernel))
    plan = one_application("greedy", x := np.full((2, 3), 500.0))
    with Ray(workers=2, memory=MEMORY) as engine:
        pids = engine._ray.get([actor.pid.remote() for actor in engine.actors])
        with pytest.raises(TaskError, match=r"greedy could not .* Unable to allocate 500"):
            run(plan, {"x": x}, on=engine)
        run(plan, {"x": x // 10}, on=engine)
        assert pids == engine._ray.get([actor.pid.remote() for actor in engine.actors])


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_task_that_kills_its_worker_each_time_is_named(name, operators, monkeypatch):  # noqa: F811
    pytest.importorskip(LIBRARIES[name])
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    operators.add(Operator("deadly", "m n -> m n", lambda block, x: os._exit(3)))
    x = np.ones((2, 3))
    with (
        ENGINES[name]() as engine,
        pytest.raises(TaskError, match=r"task \d+: compute deadly .* was lost: \w+: ."),
    ):
        run(one_application("deadly", x), {"x": x}, on=engine)


def test_a_cluster_is_stopped_if_it_cannot_be_joined(monkeypatch):
    ray, _ = pytest.importorskip("ray"), pytest.importorskip("distributed")

    def fail(*_):
        raise ZeroDivisionError("half way")

    monkeypatch.setattr(ray_cluster, "_check_loopback", fail)
    with pytest.raises(ZeroDivisionError):
        Ray(workers=1)
    assert not ray.is_initialized()
    monkeypatch.setattr(dask_engine, "_addresses", fail)
    before = {child.pid for child in active_children()}
    with pytest.raises(ZeroDivisionError):
        Dask(workers=1)
    assert await_end({child.pid for child in active_children()} - before) == set()


def test_clusters_that_start_together_share_one_token(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path, found = tmp_path / ".ray" / "auth_token", []

    def agree():
        ray_cluster._agree_on_token()
        found.append(path.read_text(encoding="utf-8"))

    threads = [threading.Thread(target=agree) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert [file.name for file in path.parent.iterdir()] == ["auth_token"]


def test_workers_are_those_the_scheduler_knows_not_those_the_client_remembers(monkeypatch):
    """The client's memory is refreshed on a timer by an answer that has no workers."""
    pytest.importorskip("distributed")
    with Dask(workers=2) as engine:
        monkeypatch.setattr(engine.client, "scheduler_info", lambda **_: {"workers": {}})
        plan = cut(lambda x: x + x, np.ones(4), x='<@m, [{"x"}]>')
        (y,) = run(plan, {"x": np.ones(4)}, on=engine)
    assert y.numpy().tolist() == [2.0] * 4


def test_ray_says_that_a_run_waits_for_processors_that_others_hold(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr("weft.runtime.cluster.engines.ray.PATIENCE", 0.5)
    plan = cut(lambda x: x + x, np.ones(4), x='<@m, [{"x"}]>')
    with Ray(workers=1) as first:
        run(plan, {"x": np.ones(4)}, on=first)
        with Ray(workers=1) as second, warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")

            def has_said():  # others may warn of something else
                return any("1 of 1 workers have not started" in str(w.message) for w in [*seen])

            def free_the_processor():
                end = time.monotonic() + 300
                while not has_said() and time.monotonic() < end:
                    time.sleep(0.02)
                ray.kill(first.actors[0])

            killer = threading.Thread(target=free_the_processor)
            killer.start()
            (y,) = run(plan, {"x": np.ones(4)}, on=second)
            killer.join()
        first.actors.clear()
    assert has_said()
    assert y.numpy().tolist() == [2.0] * 4
