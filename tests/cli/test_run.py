"""`weft run`: plans from arrays to arrays, resumed, refused; every message that it has."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from weft import Plan, propagate, trace
from weft.cli import job as command
from weft.cli import main
from weft.runtime.cluster import Progress, RunDirectory, RunRecord
from weft.store import open as open_store

MODULE = """
from weft.lang import OPERATORS, Operator

def kernel(block, x):
    return x * 3

if "my_own" not in OPERATORS:
    OPERATORS.add(Operator("my_own", "m n -> m n", kernel))
"""


def planned(function=lambda x: (x + x, x.sum(0))):
    graph = trace(
        function, (12, 10), meshes=['@m = <["w"=4]>'], shardings={"x": '<@m, [{"w"}, {}]>'}
    )
    return Plan.of(propagate(graph))


@pytest.fixture
def x(tmp_path, monkeypatch):
    """A folder to work in, with a plan and its input."""
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(0).normal(size=(12, 10)).astype("float32")
    zarr.create_array("x.zarr", shape=(12, 10), chunks=(5, 4), dtype="float32")[...] = array
    np.save("x.npy", array)
    (tmp_path / "plan.json").write_text(planned().to_json(), encoding="utf-8")
    return array


STORED = ["--input", "x=x.zarr", "--output", "add=y.zarr", "--output", "sum_dim=s.zarr"]
FILES = ["--input", "x=x.npy", "--output", "add=y.npy", "--output", "sum_dim=s.npy"]


def run(*args):
    return main(["run", *args])


def begun(*args):
    return run("plan.json", "--on", "threads", "--workers", "2", *args)


def test_from_storage_to_storage(capsys, x):
    assert begun(*STORED, "--chunks", "add=3,5", "--shards", "add=3,10", "--codec", "gzip") == 0
    assert np.array_equal(zarr.open_array("y.zarr")[...], x + x)
    assert np.allclose(zarr.open_array("s.zarr")[...], x.sum(0), atol=1e-5)
    assert open_store("y.zarr").chunks == (3, 5)
    seen = capsys.readouterr()
    record = RunRecord.from_json(RunDirectory(Path("plan.run")).record.read_text(encoding="utf-8"))
    assert seen.out == f"{record}\nwrote plan.run/run.json\n"
    assert seen.err == ""


def test_from_files_to_files_and_json(capsys, x):
    assert begun(*FILES, "--directory", "here", "--json") == 0
    assert np.array_equal(np.load("y.npy"), x + x)
    assert np.allclose(np.load("s.npy"), x.sum(0), atol=1e-5)
    record = RunRecord.from_json(capsys.readouterr().out)
    assert (record.engine, record.workers) == ("Threads", 2)
    assert sorted(os.listdir("here")) == ["job.json", "outputs.made", "plan.json", "run.json"]
    assert not [name for name in os.listdir() if "draft" in name]


def test_modules_with_operators(capsys, x, tmp_path, monkeypatch):
    (tmp_path / "my_operators.py").write_text(MODULE, encoding="utf-8")
    made = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import my_operators; from weft import *; from weft.lang.arithmetic import apply_all;"
            "g = trace(lambda x: apply_all('my_own', x)[0], (12, 10), meshes=['@m = <[\"w\"=4]>']);"
            "print(Plan.of(propagate(g)).to_json())",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "plan.json").write_text(made.stdout, encoding="utf-8")
    args = ["--input", "x=x.npy", "--output", "my_own=y.npy"]
    assert begun(*args) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft run: graph.applications[0]: there is no operator my_own",
        "while reading plan.json",
        "hint: --import MODULE, the module that adds it",
    ]
    assert begun(*args, "--import", "no_operators") == 2
    assert "weft run: cannot import no_operators: No module named" in capsys.readouterr().err
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "weft", "run", "plan.json", "--on", "threads"),
            *(*args, "--import", "my_operators"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert np.array_equal(np.load("y.npy"), x * 3)


def stop_at(monkeypatch, count, error):
    """Have a run end with an error after a number of tasks."""
    watch = command._JobRun._watch

    def watched(self, progress):
        watch(self, progress)
        if progress.done >= count:
            raise error

    monkeypatch.setattr(command._JobRun, "_watch", watched)


def test_an_interrupted_run_resumes(capsys, x, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 5, KeyboardInterrupt())
        with pytest.raises(SystemExit) as caught:
            begun(*STORED)
        assert caught.value.code == 130
    named = [word.replace("=", f"={tmp_path}/") for word in STORED]
    assert capsys.readouterr().err == (
        f"weft run: interrupted\nhint: resume with: weft run --resume plan.run {' '.join(named)}\n"
    )
    assert begun(*STORED) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft run: plan.run holds an unfinished run",
        "hint: the same command with --resume resumes it, with --overwrite starts again",
    ]
    monkeypatch.chdir("/")  # paths are kept whole
    assert run("--resume", str(tmp_path / "plan.run"), *named, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["missing"] > 0
    assert np.array_equal(zarr.open_array(tmp_path / "y.zarr")[...], x + x)
    assert run("--resume", str(tmp_path / "plan.run")) == 0
    assert "has finished before; nothing is done" in capsys.readouterr().err


def test_an_error_in_the_middle_says_how_to_go_on(capsys, x, tmp_path, monkeypatch):
    named = [word.replace("=", f"={tmp_path}/") for word in STORED]
    stop_at(monkeypatch, 5, OSError("no luck"))
    assert begun(*STORED) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft run: no luck",
        "hint: once the cause is removed, resume with: "
        f"weft run --resume plan.run {' '.join(named)}",
    ]


def test_the_same_command_with_resume_goes_on(capsys, x, monkeypatch):
    args = [*STORED, "--chunks", "add=3,5", "--memory", "1GiB"]
    with monkeypatch.context() as patch:
        stop_at(patch, 5, OSError("no luck"))
        assert begun(*args) == 2
    for other, message in [
        (["--chunks", "sum_dim=5"], "--chunks sum_dim (5,): plan.run was started with None"),
        (["--codec", "gzip"], "--codec gzip: plan.run was started with zstd"),
        (["--on", "dask"], "--on dask: plan.run was begun on threads"),
        (["--workers", "3"], "--workers 3: plan.run was started with 2"),
        (["--memory", "2GiB"], f"--memory {2 << 30}: plan.run was started with {1 << 30}"),
    ]:
        capsys.readouterr()
        assert begun(*args, *other, "--resume") == 2
        assert message in capsys.readouterr().err
    Path("other.json").write_text(planned(lambda x: (x + 1.0, x.sum(0))).to_json())
    assert run("other.json", *STORED, "--resume", "plan.run") == 2
    assert "other.json is not the plan with which plan.run was started" in capsys.readouterr().err
    assert begun(*args, "--resume") == 0
    assert np.array_equal(zarr.open_array("y.zarr")[...], x + x)


@pytest.fixture
def stopped(capsys, x, monkeypatch):
    """The job of a run in plan.run that was interrupted, and a way to write another."""
    with monkeypatch.context() as patch:
        stop_at(patch, 5, OSError("no luck"))
        assert begun(*STORED) == 2
    capsys.readouterr()
    path = Path("plan.run/job.json")
    job = json.loads(path.read_text(encoding="utf-8"))

    def change(**fields):
        path.write_text(json.dumps({**job, **fields}), encoding="utf-8")

    return job, change


def resumed(capsys, *args):
    """The error of a resume that is refused."""
    assert run("--resume", "plan.run", *args) == 2
    return capsys.readouterr().err.splitlines()


def test_a_run_directory_imports_nothing(capsys, stopped, tmp_path, monkeypatch):
    _, change = stopped
    monkeypatch.syspath_prepend(tmp_path)
    Path("evil.py").write_text("open('ran', 'w')", encoding="utf-8")
    change(modules=["evil"])
    assert resumed(capsys, *STORED)[0] == (
        "weft run: plan.run was begun with --import evil: name it again"
    )
    assert not Path("ran").exists()
    assert "evil" not in sys.modules


def test_a_run_directory_points_nowhere_that_is_not_named(capsys, stopped, tmp_path):
    job, change = stopped
    for args, message in [
        ([], f"weft run: input x of plan.run is {tmp_path}/x.zarr: name it again"),
        (STORED[:4], f"weft run: output sum_dim of plan.run is {tmp_path}/s.zarr: name it again"),
        (
            [*STORED[:3], "add=z.zarr", *STORED[4:]],
            f"weft run: --output add={tmp_path}/z.zarr: in plan.run that output is "
            f"{tmp_path}/y.zarr",
        ),
        (
            [*STORED, "--output", "more=z.zarr"],
            f"weft run: --output more={tmp_path}/z.zarr: in plan.run that output does not exist",
        ),
    ]:
        assert resumed(capsys, *args)[0] == message
    elsewhere = {**job["outputs"]["add"], "url": str(tmp_path / "precious.npy")}
    change(outputs={**job["outputs"], "add": elsewhere})
    Path("precious.npy").write_text("mine", encoding="utf-8")
    assert resumed(capsys, *STORED)[0] == (
        f"weft run: --output add={tmp_path}/y.zarr: in plan.run that output is "
        f"{tmp_path}/precious.npy"
    )
    assert Path("precious.npy").read_text(encoding="utf-8") == "mine"
    change(on="tcp://203.0.113.1:8786")
    assert resumed(capsys, *STORED)[0] == (
        "weft run: plan.run was begun on the cluster tcp://203.0.113.1:8786: name it again"
    )


def test_links_in_a_run_directory_are_not_followed(x, tmp_path):
    Path("precious").write_text("mine", encoding="utf-8")
    Path("plan.run").mkdir()
    for name in ("plan.json", "job.json", "run.json", "outputs.made"):
        Path(f"plan.run/{name}.draft").symlink_to(tmp_path / "precious")
        Path(f"plan.run/{name}").symlink_to(tmp_path / "precious")
    assert begun(*STORED) == 0
    assert Path("precious").read_text(encoding="utf-8") == "mine"
    assert not any(path.is_symlink() for path in Path("plan.run").iterdir())


def test_a_file_that_is_there_is_not_replaced_unasked(capsys, x, tmp_path):
    Path("y.npy").write_text("mine", encoding="utf-8")
    assert begun(*FILES) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"weft run: output add: {tmp_path}/y.npy holds an array already",
        "hint: --overwrite replaces it",
    ]
    assert Path("y.npy").read_text(encoding="utf-8") == "mine"
    assert begun(*FILES, "--overwrite") == 0
    assert np.array_equal(np.load("y.npy"), x + x)


def test_shards_of_others_are_no_part_of_a_run(x, capsys):
    assert begun(*STORED) == 0
    folder = RunDirectory(Path("plan.run"))
    (folder.path / "outputs.made").unlink()  # as if it was killed before it made its outputs
    folder.record.unlink()
    assert run("--resume", "plan.run", *STORED) == 2
    assert "holds an array already" in capsys.readouterr().err
    assert begun(*STORED, "--overwrite") == 0


REFUSED = [
    (["--input", "x=x.npy"], "no place is given for output add", "--output add=out.zarr"),
    (["--output", "add=y.npy"], "no place is given for input x", "--input x=in.zarr"),
    ([*FILES, "--input", "z=z.npy"], "the plan has no input z", "it has x"),
    ([*FILES, "--output", "z=z.npy"], "the plan has no output z", "it has add, sum_dim"),
    ([*FILES, "--input", "x=a.npy"], "--input x is given twice: x.npy and a.npy", None),
    (["--input", "x"], "--input x: expected NAME=VALUE", None),
    ([*FILES, "--chunks", "add=3,5"], "--chunks add=3,5: no output add is in storage", None),
    ([*STORED, "--chunks", "add=3,a"], "add: invalid size '3,a': expected `64` or `64,64`", None),
    ([*STORED, "--codec", "zip"], "'zip' is not a codec", None),
    ([*STORED, "--memory", "193MiB", "--chunks", "add=1,1,1"], "must have one rank", None),
    ([*FILES, "--directory", "plan.json"], "plan.json is a file, not a folder for a run", None),
]


@pytest.mark.parametrize(("args", "message", "hint"), REFUSED)
def test_refusals_leave_nothing_behind(capsys, x, args, message, hint):
    before = sorted(os.listdir())
    assert begun(*args) == 2
    first, *notes = capsys.readouterr().err.splitlines()
    assert message in first
    assert hint is None or notes == [f"hint: {hint}"]
    assert [name for name in sorted(os.listdir()) if os.path.isfile(name) or os.listdir(name)] == (
        before
    )
    assert begun(*STORED) == 0


def test_places_that_cannot_be(capsys, x, tmp_path):
    (tmp_path / "text.npy").write_text("no numbers")
    for inputs, outputs, message in [
        ("x=gone.npy", "add=y.npy", f"there is no file {tmp_path}/gone.npy"),
        ("x=gone.zarr", "add=y.npy", "gone.zarr: the folder does not exist"),
        ("x=text.npy", "add=y.npy", f"{tmp_path}/text.npy is not a valid .npy file of numbers"),
        ("x=x.npy", "add=gone/y.npy", "there is no folder"),
        ("x=x.zarr", "add=x.zarr", "output add would replace input x: both are"),
    ]:
        assert begun("--input", inputs, "--output", outputs, "--output", "sum_dim=s.npy") == 2
        assert message in capsys.readouterr().err
    assert begun(*STORED) == 0
    assert begun(*STORED) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"weft run: output add: {tmp_path}/y.zarr holds an array already",
        "hint: --overwrite replaces it",
    ]


def test_runs_that_are_none(capsys, x, tmp_path):
    for args, message in [
        ([], "no plan is given"),
        (["--resume"], "no run to resume is given"),
        (["--resume", "gone"], "there is no run in gone"),
        (["gone.json", "--resume"], "there is no run in gone.run"),
        (["--resume", "x.npy"], "there is no run in x.npy"),
    ]:
        assert run(*args) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "a.run").mkdir()
    for text, message in [
        ("{", "invalid JSON: "),
        ("[]", "the job: expected an object, got []"),
        ('{"version": 7}', "version: expected the version 1, got 7"),
        ('{"version": 1}', "on: expected a string, got None"),
        ('{"version": 1, "on": "ray", "more": 1}', "more: unknown field"),
        (
            '{"version": 1, "on": "ray", "workers": 0}',
            "workers: expected an integer from 1 to 4096",
        ),
        (
            f'{{"version": 1, "on": "ray", "workers": {10**30}}}',
            "workers: expected an integer from 1 to",
        ),
        (
            f'{{"version": 1, "on": "ray", "memory": {1 << 51}}}',
            "memory: expected an integer from 1 to",
        ),
        (
            '{"version": 1, "on": "ray", "inputs": {"x": "a\\u0007"}}',
            "inputs.x: expected a printable",
        ),
        ('{"version": 1, "on": "ray", "inputs": {"x": 1}}', "inputs.x: expected a string, got 1"),
        ('{"version": 1, "on": "ray", "modules": "os"}', "modules: expected a list"),
        (
            '{"version": 1, "on": "ray", "outputs": {"y": {"url": "y", "options": {}}}}',
            "outputs.y.options: unknown field",
        ),
        (
            '{"version": 1, "on": "ray", "outputs": {"y": {"url": "y", "codecs": "zstd", '
            '"chunks": [-1]}}}',
            "outputs.y.chunks[0]: expected a size",
        ),
    ]:
        (tmp_path / "a.run" / "job.json").write_text(text, encoding="utf-8")
        assert run("--resume", "a.run") == 2
        seen = capsys.readouterr().err
        assert message in seen
        assert "while reading a.run/job.json" in seen


def test_amounts_and_engines(capsys, x, monkeypatch):
    with pytest.raises(SystemExit):
        begun("--memory", "much")
    assert "invalid amount of bytes 'much': expected `512MiB` or `2GB`" in capsys.readouterr().err
    assert begun(*FILES, "--workers", str(10**30)) == 2
    assert f"{10**30} workers are too many: a run has at most 4096" in capsys.readouterr().err
    assert begun(*FILES, "--memory", "9999999GiB") == 2
    assert f"a worker of {9999999 << 30} bytes: at most {1 << 50}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        begun("--memory", "9" * 400)
    assert "invalid amount of bytes" in capsys.readouterr().err
    assert begun(*FILES, "--on", "nothing") == 2
    assert "nothing runs on 'nothing'" in capsys.readouterr().err
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert run("plan.json", *FILES) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft run: Ray, the default engine, is not installed",
        "hint: pip install 'weft[ray]', or --on threads, which needs nothing",
    ]


def test_the_help_lists_it(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.search(r"^ +run +run a plan on a cluster", capsys.readouterr().out, re.MULTILINE)


def test_a_bar_on_a_terminal(x):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weft", "run", "plan.json", "--on", "threads", *STORED]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 1 << 16):
            seen += part
    except OSError:  # so ends what a terminal says
        pass
    os.close(ours)
    text = seen.decode()
    assert ran.returncode == 0, text
    assert re.search(r"━{20} 100%  (\d+) of \1 tasks, 0 s left", text)
    assert text.endswith("\r\033[K")


def test_the_remaining_time_ignores_tasks_of_an_earlier_run(capsys, monkeypatch):
    now = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr("weft.cli.job.time.monotonic", lambda: next(now))
    bar = command.RunProgressBar(quiet=False)
    bar.line.quiet = False  # as on a terminal
    bar(Progress(50, 100))
    bar(Progress(60, 100))
    first, second = capsys.readouterr().err.split("\r")[1:]
    assert first == "━" * 10 + "─" * 10 + "  50%  50 of 100 tasks\033[K"
    assert second == "━" * 12 + "─" * 8 + "  60%  60 of 100 tasks, 40 s left\033[K"
