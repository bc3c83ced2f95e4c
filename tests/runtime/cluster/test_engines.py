"""The conformance suite of engines: each gives what one process gives, and counts the same."""

import contextlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.runtime.cluster.deaths import kill, workers_of
from tests.runtime.cluster.test_control import random_plans
from tests.runtime.test_eager import agree
from tests.runtime.test_programs import planned
from tests.runtime.user_programs import user_plan
from tests.trials import EXAMPLES, FULL, trials

from weft import LayoutError, Plan, WeftError, communication, ops, propagate, run, trace
from weft.lang import OPERATORS, Operator
from weft.lang.arithmetic import apply_all
from weft.runtime import CommunicationError
from weft.runtime.cluster import Dask, Ray, TaskError, Threads, recording

USER_PROGRAMS = trials(60, 2000) if EXAMPLES >= FULL else 2
ENGINES = {
    "threads": (lambda: Threads(3), trials(300)),
    "ray": (lambda: Ray(workers=2), trials(12)),
    "dask": (lambda: Dask(workers=2), trials(12)),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    if request.param != "threads":
        pytest.importorskip({"dask": "distributed"}.get(request.param, request.param))
    use_jax()
    with ENGINES[request.param][0]() as engine:
        engine.programs = ENGINES[request.param][1]
        yield engine


def use_jax():
    """As processes do that have other work: JAX then warns whenever one forks."""
    with contextlib.suppress(ImportError):
        import jax

        jax.devices()


@pytest.fixture
def operators():
    known = dict(OPERATORS)
    yield OPERATORS
    OPERATORS.clear()
    OPERATORS.update(known)


def received(plan, moved):
    counted = np.zeros(plan.mesh.size, int)
    for movement in moved.movements:
        counted += movement.received
    return tuple(map(int, counted))


def is_same(one, two):
    """Floats may differ in the last bits: kernels add up otherwise what lies otherwise."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    if one.dtype.kind not in "fV":
        return np.array_equal(one, two)
    if one.dtype.itemsize == 2:
        return agree(one, two)
    return np.allclose(
        one, two, rtol=1e-12, atol=1e-12 * np.abs(two).max(initial=0), equal_nan=True
    )


def test_programs_equal_one_process_and_move_the_predicted_bytes(engine):
    """Tasks receive what is predicted, to the byte; at most, and mostly, what the plan says."""
    same = 0
    for seed in range(engine.programs):
        _, graph, inputs = planned(seed)
        plan = Plan.of(propagate(graph))
        with communication() as moved, recording() as records:
            outputs = run(plan, inputs, on=engine)
        for output, wanted in zip(outputs, run(plan, inputs), strict=True):
            assert (output.spec, output.name) == (wanted.spec, wanted.name)
            assert all(map(is_same, output.shards, wanted.shards)), f"seed {seed}\n{plan}"
        assert records[0].is_exact, f"seed {seed}\n{plan}"
        found = received(plan, moved)
        assert all(n <= m for n, m in zip(found, plan.received)), f"seed {seed}\n{plan}"
        same += found == plan.received
        assert moved.sent == moved.received
    assert same > 0.95 * engine.programs


def test_programs_of_users_agree_with_numpy_and_move_the_predicted_bytes(engine):
    """Monoids and rewrites of a user's, and random numbers, are the same on every engine."""
    for seed in range(USER_PROGRAMS):
        program, plan, inputs, _ = user_plan(seed)
        with communication() as moved, recording() as records:
            outputs = run(plan, inputs, on=engine)
        for place, output in zip(program.outputs, outputs):
            assert agree(output, program.values[place]), f"seed {seed}\n{plan}"
        assert records[0].is_exact, f"seed {seed}\n{plan}"
        assert all(n <= m for n, m in zip(received(plan, moved), plan.received)), f"seed {seed}"


def test_loops_and_branches_equal_one_process(engine):
    """Random plans of random graphs: values that are partial when a loop takes them, too."""
    for graph, plan in random_plans(max(8, engine.programs)):
        with recording() as records, np.errstate(all="ignore"):
            outputs = run(plan, graph.inputs, on=engine)
            wanted = run(plan, graph.inputs)
        for one, two in zip(outputs, wanted, strict=True):
            assert all(map(np.array_equal, one.shards, two.shards))
        assert records[0].is_exact


def cut(function, *arrays, size=2, **shardings):
    graph = trace(function, *arrays, meshes=[f'@m = <["x"={size}]>'], shardings=shardings)
    return Plan.of(propagate(graph))


def test_more_cells_than_workers_and_sums_in_trees(engine):
    x = np.random.default_rng(0).normal(size=(40, 3))
    plan = cut(lambda x: x.sum(0), x, size=20, x='<@m, [{"x"}, {}]>')
    with communication() as moved:
        (y,) = run(plan, {"x": x}, on=engine)
    assert np.allclose(y.numpy(), x.sum(0))
    assert received(plan, moved) == plan.received


def failing(operators):
    def kernel(block, x):
        if block.box.start[0] > 0:
            raise ZeroDivisionError("out of luck")
        return x + 0

    operators.add(Operator("unlucky", "m n -> m n", kernel))


MESSAGE = r"unlucky could not compute unlucky, index box \[4:8, 0:3\] on cell 1: ZeroDivisionError"


@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
def test_a_task_that_fails_names_operator_and_box_and_has_the_traceback(engine, operators, read):
    failing(operators)

    def program(x):
        (y,) = apply_all("unlucky", x + x)
        return (y - x).sum(0) if read else x

    x = np.ones((8, 3))
    with pytest.raises(TaskError, match=MESSAGE) as caught:
        run(cut(program, x, x='<@m, [{"x"}, {}]>'), {"x": x}, on=engine)
    (note,) = caught.value.__notes__
    assert "in kernel" in note
    assert note.endswith("ZeroDivisionError: out of luck")
    (y,) = run(cut(lambda x: x + x, x, x='<@m, [{"x"}, {}]>'), {"x": x}, on=engine)
    assert np.array_equal(y.numpy(), x + x)


def test_outputs_that_are_inputs_and_twice_the_same(engine):
    x = np.arange(6.0)
    plan = cut(lambda x: (x, x + x, x), x, x='<@m, [{"x"}]>')
    found = run(plan, {"x": x}, on=engine)
    assert [output.numpy().tolist() for output in found] == [
        output.numpy().tolist() for output in run(plan, {"x": x})
    ]


def test_a_budget_is_refused_before_anything_runs(engine):
    x = np.ones((8, 3))
    plan = cut(lambda x: x.sum(0), x, x='<@m, [{"x"}, {}]>')
    with (
        communication(budget=10) as moved,
        pytest.raises(CommunicationError, match="the cluster would move 48 B for sum_dim"),
    ):
        run(plan, {"x": x}, on=engine)
    assert moved.movements == []


def test_inputs_are_checked(engine):
    plan = cut(lambda x: x + x, np.ones(4), x='<@m, [{"x"}]>')
    with pytest.raises(WeftError, match="input x is missing"):
        run(plan, {}, on=engine)
    with pytest.raises(WeftError, match=r"cannot have the shape \[5\]"):
        run(plan, {"x": np.ones(5)}, on=engine)
    partial = cut(lambda x: ops.relu(x) + 1, np.ones(4), x='<@m, [{}], unreduced={"x"}>')
    with pytest.raises(LayoutError, match="a whole array is not partial: input x"):
        run(partial, {"x": np.ones(4)}, on=engine)


def _kept(engine, operator):
    """What the workers of Dask have of an operator."""
    found = engine.client.run(lambda dask_worker: list(map(str, dask_worker.data)))
    return [key for keys in found.values() for key in keys if operator in key]


@pytest.mark.slow
def test_dask_itself_moves_what_is_predicted_and_keeps_nothing():
    pytest.importorskip("distributed")
    x = np.random.default_rng(0).normal(size=(64, 64))
    plan = cut(lambda x, y: x @ y, x, x, x='<@m, [{"x"}, {}]>', y='<@m, [{}, {"x"}]>')
    with Dask(workers=2) as engine:
        run(plan, {"x": x, "y": x}, on=engine)  # both have started then
        engine.client.run(lambda dask_worker: dask_worker.transfer_incoming_log.clear())
        with recording() as records:
            (found,) = run(plan, {"x": x, "y": x}, on=engine)
        logs = engine.client.run(lambda dask_worker: list(dask_worker.transfer_incoming_log))
        end = time.monotonic() + 300
        while kept := _kept(engine, "matmul"):  # what nobody holds is gone a moment later
            assert time.monotonic() < end, kept
            time.sleep(0.05)
    assert np.allclose(found.numpy(), x @ x)
    sizes = [item for log in logs.values() for each in log for item in each["keys"].items()]
    moved = {key: size for key, size in sizes if "context" not in str(key)}
    arrays = sum(plan.received)
    if not records[0].total.stolen:  # on a busy machine one worker may help another
        assert arrays <= sum(moved.values()) <= arrays + 300 * len(moved)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_worker_that_dies_in_the_middle_changes_nothing(name):
    pytest.importorskip({"dask": "distributed"}.get(name, name))
    x = np.random.default_rng(0).integers(0, 9, (64, 64))

    def program(x):
        y = x
        for _ in range(40):
            y = (y @ x).max(0, keepdims=True) - x
        return y

    plan = cut(program, x, x='<@m, [{"x"}, {}]>')
    (wanted,) = run(plan, {"x": x})
    with ENGINES[name][0]() as engine:
        run(plan, {"x": x}, on=engine)
        for wait in (0.02, 0.15):
            timer = threading.Timer(wait, kill, [workers_of(engine)[0]])
            timer.start()
            (found,) = run(plan, {"x": x}, on=engine)
            timer.join()
            assert np.array_equal(found.numpy(), wanted.numpy())


def test_engines_are_chosen_by_name_and_unknown_names_refused():
    x = np.ones(4)
    plan = cut(lambda x: x + x, x, x='<@m, [{"x"}]>')
    assert run(plan, {"x": x}, on="threads")[0].numpy().tolist() == [2, 2, 2, 2]
    for on in ("cluster", 7):
        with pytest.raises(WeftError, match=f"nothing runs on {on!r}"):
            run(plan, {"x": x}, on=on)
    with pytest.raises(WeftError, match="0 workers cannot run anything"):
        Threads(0)


def test_a_client_of_dask_is_used_and_left_as_it_was():
    distributed = pytest.importorskip("distributed")
    x = np.ones(4)
    plan = cut(lambda x: x + x, x, x='<@m, [{"x"}]>')
    with (
        distributed.LocalCluster(
            n_workers=2, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.amm.start()

        def steals(dask_scheduler):
            return "stealing" in dask_scheduler.periodic_callbacks

        assert client.run_on_scheduler(steals)
        (y,) = run(plan, {"x": x}, on=client)
        assert client.amm.running()
        assert client.run_on_scheduler(steals)
    assert y.numpy().tolist() == [2, 2, 2, 2]


def test_engines_are_imported_when_they_are_used():
    code = (
        "import sys, weft.runtime.cluster; print({'ray', 'dask', 'distributed'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
