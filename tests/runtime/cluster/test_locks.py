"""Outputs and run directories that two runs want at the same time: the second is refused."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import zarr

from weft import Plan, WeftError, propagate, run, trace
from weft.cli.job import npy_lock
from weft.cli.main import main
from weft.runtime.cluster import Output, RunDirectory, Threads, run_on
from weft.store import create_shards, open_shards
from weft.store import open as open_store

X = np.arange(48.0, dtype="float32").reshape(6, 8)


def plan_of(times=2):
    graph = trace(
        lambda x: {"y": x * times},
        X.shape,
        meshes=['@m = <["x"=2]>'],
        shardings={"x": '<@m, [{"x"}, {}]>'},
    )
    return Plan.of(propagate(graph))


def output(path, **more):
    return {"y": Output(path, chunks=(1, 8), overwrite=True, **more)}


class Held:
    """A run that waits before its first task until it is let go."""

    def __init__(self, path, times=2):
        self.begun, self.free, self.error = threading.Event(), threading.Event(), None
        self.thread = threading.Thread(target=self._run, args=(path, times))

    def _run(self, path, times):
        try:
            with Threads(1) as engine:
                run_on(engine, plan_of(times), {"x": X}, output(path), watch=self._watch)
        except BaseException as error:
            self.error = error
            self.begun.set()

    def _watch(self, _):
        self.begun.set()
        assert self.free.wait(300)

    def __enter__(self):
        self.thread.start()
        assert self.begun.wait(300)
        return self

    def __exit__(self, *_):
        self.free.set()
        self.thread.join()
        if self.error is not None:
            raise self.error


def test_a_second_run_is_refused_while_the_first_lives_and_admitted_afterwards(tmp_path):
    path = tmp_path / "y"
    with Held(path):
        for options in ({}, {"resume": True}):
            with (
                Threads(1) as engine,
                pytest.raises(WeftError, match=r"y is locked by another writer\nhint: "),
            ):
                run_on(engine, plan_of(3), {"x": X}, output(path), **options)
    assert np.array_equal(zarr.open_array(path)[...], 2 * X)
    run(plan_of(3), {"x": X}, on="threads", outputs=output(path))
    assert np.array_equal(zarr.open_array(path)[...], 3 * X)


def test_nothing_else_writes_the_output_of_a_live_run(tmp_path, capsys):
    path = tmp_path / "y"
    np.save(tmp_path / "x.npy", X)
    with Held(path):
        with pytest.raises(WeftError, match="is locked by another writer"):
            create_shards(path, (2,), "uint8", (1,), overwrite=True)
        with pytest.raises(WeftError, match="is locked by another writer"):
            open_shards(path)
        words = ["store", "write", str(tmp_path / "x.npy"), str(path), "--overwrite"]
        assert main(words) == 2
        assert "is locked by another writer" in capsys.readouterr().err
    assert np.array_equal(zarr.open_array(path)[...], 2 * X)


CHILD = """
import sys
import numpy as np
from tests.runtime.cluster.test_locks import X, output, plan_of
from weft.runtime.cluster import Threads, run_on

def watch(progress):
    print("begun", flush=True)
    sys.stdin.readline()

with Threads(1) as engine:
    run_on(engine, plan_of(), {"x": X}, output(sys.argv[1]), watch=watch)
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_run_of_another_process_locks_its_output_until_it_ends_or_is_killed(tmp_path, is_killed):
    path, words = tmp_path / "y", [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        [*words, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "begun\n"
        with pytest.raises(WeftError, match="is locked by another writer"):
            run(plan_of(3), {"x": X}, on="threads", outputs=output(path))
        if is_killed:
            child.kill()
        else:
            child.communicate("\n" * 10)
        child.wait()
    run(plan_of(3), {"x": X}, on="threads", outputs=output(path))
    assert np.array_equal(zarr.open_array(path)[...], 3 * X)


def test_a_run_that_is_refused_leaves_the_array_that_it_would_replace(tmp_path):
    run(plan_of(), {"x": X}, on="threads", outputs=output(tmp_path / "y"))
    with pytest.raises(WeftError, match="no tiling fits"):
        run(plan_of(3), {"x": X}, on="threads", outputs=output(tmp_path / "y"), memory=8)
    assert np.array_equal(zarr.open_array(tmp_path / "y")[...], 2 * X)


def test_an_output_must_not_be_an_input_or_another_output(tmp_path):
    zarr.create_array(tmp_path / "x", data=X, chunks=(1, 8), zarr_format=3)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for place in ("x", "link", "x/inside", "."):
        message = "output y would replace input x: "
        with pytest.raises(WeftError, match=message):
            run(plan_of(), {"x": tmp_path / "x"}, on="threads", outputs=output(tmp_path / place))
    both = Plan.of(propagate(trace(lambda x: {"y": x * 2, "z": x * 3}, X.shape)))
    outputs = {name: Output(tmp_path / "both", chunks=(1, 8)) for name in "yz"}
    with pytest.raises(WeftError, match="output z would replace output y: both are "):
        run(both, {"x": X}, on="threads", outputs=outputs)
    assert np.array_equal(open_store(tmp_path / "x").read(), X)


def words_of(tmp_path, *more):
    (tmp_path / "plan.json").write_text(plan_of().to_json(), encoding="utf-8")
    np.save(tmp_path / "x.npy", X)
    places = ["--input", f"x={tmp_path / 'x.npy'}", "--output", f"y={tmp_path / 'y'}"]
    words = ["--directory", str(tmp_path / "plan.run"), "--on", "threads", "--chunks", "y=1,8"]
    return ["run", str(tmp_path / "plan.json"), *places, *words, *more]


def test_the_command_is_refused_while_a_run_writes_its_output(tmp_path, capsys):
    with Held(tmp_path / "y"):
        assert main(words_of(tmp_path, "--overwrite")) == 2
        assert "is locked by another writer" in capsys.readouterr().err
        assert not (tmp_path / "plan.run").exists()
    assert main(words_of(tmp_path, "--overwrite")) == 0


def test_a_run_directory_belongs_to_one_run_at_a_time(tmp_path, capsys):
    folder = RunDirectory(tmp_path / "plan.run")
    with folder.locked():
        assert main(words_of(tmp_path)) == 2
        message = capsys.readouterr().err
        assert f"the run directory {folder.path} is locked by another writer" in message
    assert not folder.path.exists()
    assert main(words_of(tmp_path)) == 0
    folder.record.unlink()  # as if it had been killed
    with folder.locked():
        assert main(words_of(tmp_path, "--resume")) == 2
        assert "is locked by another writer" in capsys.readouterr().err
    assert main(words_of(tmp_path, "--resume")) == 0


def test_a_refused_run_leaves_the_directory_of_an_earlier_one(tmp_path, capsys):
    assert main(words_of(tmp_path)) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "plan.run").iterdir()}
    with Held(tmp_path / "y"):
        assert main(words_of(tmp_path, "--overwrite")) == 2
    message = capsys.readouterr().err
    assert "is locked by another writer" in message
    assert "--resume" not in message
    assert {path.name: path.read_bytes() for path in (tmp_path / "plan.run").iterdir()} == before


def test_npy_outputs_are_locked_and_must_not_be_inputs(tmp_path, capsys):
    words = [
        word.replace(f"y={tmp_path / 'y'}", f"y={tmp_path / 'y.npy'}")
        for word in words_of(tmp_path)
        if word not in ("--chunks", "y=1,8")
    ]
    with npy_lock(tmp_path / "y.npy"):
        assert main(words) == 2
        assert "y.npy is locked by another writer" in capsys.readouterr().err
    assert main(words) == 0
    assert np.array_equal(np.load(tmp_path / "y.npy"), 2 * X)
    (tmp_path / "again.npy").symlink_to(tmp_path / "x.npy")
    words = [word.replace("y.npy", "again.npy") for word in words]
    assert main([*words, "--overwrite"]) == 2
    assert "output y would replace input x" in capsys.readouterr().err
