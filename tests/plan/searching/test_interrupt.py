"""Interrupts of a search: one behaviour at every moment, and the best front so far."""

import gc
import inspect
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.plan.searching.small import GRID
from tests.trials import trials

import weft
from weft import Machine, WeftError, ops, search, trace
from weft.lang.graph_json import to_json
from weft.plan import SearchInterrupted
from weft.plan.searching.pareto import dominates

SLOW = Machine(latency=1e-7, bandwidth=1e9, flops={"float32": 1e9}, memory_bandwidth=1e10)
ENGINES = ("exact", "evolve", "descend", "integer")
MOMENTS = trials(12)
"""Moments at which each engine is interrupted."""


def graph():
    return trace(lambda x, w: ops.relu(x @ w), (8, 8), (8, 8), names=["x", "w"])


def options(engine):
    objectives = ["time"] if engine == "integer" else ["time", "peak_memory", "bytes"]
    return {"objectives": objectives, "budget": 192, "engine": engine}


def check(error, whole):
    """An interrupted search has a front of real plans, none better than those of the whole."""
    front = error.front
    assert front is not None
    assert front is error.front
    assert not front.is_complete
    assert not front.is_exact
    assert "the search was interrupted" in front.reasons
    assert "found before the search was interrupted" in str(front)
    for plan, point in zip(front, front.points):
        plan.verify()
        slack = [value * (1 + 1e-9) for value in point]
        assert any(dominates(other, slack) for other in whole.points), point


@pytest.mark.parametrize("engine", ENGINES)
def test_a_progress_function_may_interrupt_at_every_call(engine):
    calls = []
    whole = search(graph(), GRID, SLOW, progress=calls.append, **options(engine))
    assert len(calls) > 2
    for moment in range(len(calls)):
        seen = []

        def stop(progress, seen=seen, moment=moment):
            seen.append(progress)
            if len(seen) > moment:
                raise KeyboardInterrupt

        with pytest.raises(SearchInterrupted) as raised:
            search(graph(), GRID, SLOW, progress=stop, **options(engine))
        check(raised.value, whole)
        points = [point for progress in seen for point in progress.points]
        for point in points if engine == "evolve" else ():
            slack = [value * (1 + 1e-9) for value in point]
            assert any(dominates(one, slack) for one in raised.value.front.points)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_in_any_function_raises_search_interrupted(engine):
    """An interrupt is raised at one call of a function of Weft after another: all phases."""
    given, arguments = graph(), options(engine)
    whole = search(given, GRID, SLOW, **arguments)
    total = count_calls(lambda: search(given, GRID, SLOW, **arguments))
    was_on = gc.isenabled()
    for number in range(MOMENTS):
        moment = 2 + number * (total - 3) // (MOMENTS - 1)
        with pytest.raises(KeyboardInterrupt) as raised:
            count_calls(lambda: search(given, GRID, SLOW, **arguments), moment)
        assert isinstance(raised.value, SearchInterrupted), f"call {moment} of {total}"
        check(raised.value, whole)
        assert gc.isenabled() == was_on


def count_calls(run, stop=None):
    """Run a function; count the calls of Weft's functions, or interrupt it at one of them.

    Generators are left out: one that is closed is called as well, where no signal is handled.
    """
    count, package = 0, str(Path(weft.__file__).parent)

    def look(frame, event, argument):
        nonlocal count
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            count += not code.co_flags & inspect.CO_GENERATOR
            if count == stop:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_an_interrupt_without_a_plan_that_fits_has_no_front():
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(SearchInterrupted) as raised:
        search(graph(), GRID, Machine(capacity=1), progress=stop)
    assert raised.value.front is None
    assert str(raised.value) == "the search was interrupted"
    assert SearchInterrupted().front is None


def test_other_errors_of_a_progress_function_are_not_wrapped():
    def fail(progress):
        raise WeftError("enough")

    with pytest.raises(WeftError, match="enough"):
        search(graph(), GRID, SLOW, progress=fail)


@pytest.fixture
def interruptible():
    """Python's own handler of an interrupt: one that was started in the background has none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_solver_that_does_not_return_is_interrupted(monkeypatch):
    begun, done = threading.Event(), threading.Event()

    def endless(*_, **__):
        begun.set()
        done.wait(600)

    def press():
        begun.wait()
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("scipy.optimize.milp", endless)
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(SearchInterrupted) as raised:
        search(graph(), GRID, SLOW, ["time"], engine="integer")
    done.set()
    assert len(raised.value.front) == 1


def test_the_solvers_own_errors_are_raised(monkeypatch):
    def broken(*_, **__):
        raise WeftError("the solver failed")

    monkeypatch.setattr("scipy.optimize.milp", broken)
    with pytest.raises(WeftError, match="the solver failed"):
        search(graph(), GRID, SLOW, ["time"], engine="integer")


def command(folder, *more):
    """A search on the command line that does not end by itself, and its terminal."""

    def layers(x, *weights):
        for w in weights:
            x = x + ops.relu(x @ w)
        return x

    path = folder / "graph.json"
    path.write_text(to_json(trace(layers, (64, 32), *[(32, 32)] * 6)), encoding="utf-8")
    words = ["search", str(path), '@m = <["x"=2, "y"=2]>', "--engine", "evolve"]
    words += ["--budget", "1000000000", *more]
    terminal, child = pty.openpty()
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from weft.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=child,
    )
    os.close(child)
    return process, terminal


@pytest.mark.parametrize("written", [1, 2000])
def test_ctrl_c_prints_and_writes_the_best_front_so_far(tmp_path, written):
    """The terminal shows progress once the search has begun; it is interrupted after some of it."""
    folder = tmp_path / "plans"
    process, terminal = command(tmp_path, "-o", str(folder))
    said = b""
    with process:
        while len(said) < written:
            said += os.read(terminal, 1024)
        process.send_signal(signal.SIGINT)
        out = process.stdout.read().decode()
        try:
            while more := os.read(terminal, 1024):
                said += more
        except OSError:  # the end of a terminal
            os.close(terminal)
    assert process.returncode == 130
    lines = out.splitlines()
    assert lines[0].split() == ["plan", "time", "peak_memory", "bytes", "cut"]
    assert "found before the search was interrupted" in out
    assert "not proved exact: the search was interrupted" in out
    assert said.rstrip().endswith(b"weft search: interrupted")
    assert lines[-1] == f"wrote {len(list(folder.iterdir()))} plans into {folder}"
