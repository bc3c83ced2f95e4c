"""Hostile run directories and records are read or refused, within limits."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzzing import Reader, fuzz, input_count
from tests.lang.test_fuzz import mlp
from tests.mutations import mutate_json
from tests.runtime.cluster.metrics import recorded
from tests.trials import large

from weft import Machine, Plan, WeftError, propagate
from weft.cli import main
from weft.runtime.cluster import Job, Output, RunDirectory
from weft.runtime.cluster.metrics.record import RunRecord

PLAN = Plan.of(propagate(mlp()))


def _jobs():
    inputs = {name: f"/data/{name}.zarr" for name in "xwbv"}
    jobs = [
        Job(inputs, {"matmul": Output("/data/y.zarr", (4, 4), (8, 4))}, "threads", 2, 1 << 30),
        Job(inputs, {"matmul": Output("s3://b/y.zarr")}, "tcp://host:1", modules=("a", "b.c")),
        Job({}, {}),
    ]
    with TemporaryDirectory() as folder:
        for number, job in enumerate(jobs):
            RunDirectory(Path(folder) / str(number)).begin(PLAN, job)
        return [path.read_bytes() for path in Path(folder).glob("*/job.json")]


def _read_job(data):
    """Read a job; resumed with nothing named, it is refused before anything is done."""
    with TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "a.run")
        directory.begin(PLAN, Job({}, {}))
        (directory.path / "job.json").write_bytes(data)
        job = directory.job()
        directory.begin(PLAN, job)
        assert directory.job() == job
        try:
            job.check_named(directory.path, {}, {}, [], None)
        except WeftError:
            assert main(["run", "--resume", str(directory.path)]) == 2
        else:
            assert not (job.inputs)
            assert not (job.outputs)
            assert not (job.modules)


def _hostile_jobs():
    job = {"version": 1, "on": "threads", "inputs": {}, "outputs": {}}
    output = {"url": "/data/y", "codecs": "zstd"}
    return [
        json.dumps({**job, **fields}).encode()
        for fields in (
            {"workers": 10**30},
            {"workers": -1},
            {"workers": 1e300},
            {"workers": True},
            {"memory": 10**30},
            {"memory": 0},
            {"modules": ["os", "antigravity"]},
            {"modules": "antigravity"},
            {"modules": ["a"] * large(200_000)},
            {"inputs": {str(n): "x" for n in range(large(200_000))}},
            {"outputs": {"y": {**output, "chunks": [1 << 48] * 10_000}}},
            {"outputs": {"y": {**output, "chunks": [10**30]}}},
            {"outputs": {"y": {**output, "url": "/data/\x1b[2J"}}},
            {"outputs": {"y": {**output, "options": {"endpoint": "x"}}}},
            {"outputs": {"y": {**output, "codecs": {"name": "zstd"}}}},
            {"on": "tcp://198.51.100.1:1"},
        )
    ]


JOBS = Reader(_jobs, _read_job, mutate_json, _hostile_jobs)


def _records():
    machine = Machine(flops={"float32": 1e9})
    records = [json.loads(recorded(one).to_json()) for one in (None, machine)]
    return [json.dumps({**one, "tasks": one["tasks"][:6]}).encode() for one in records]


def _read_record(data):
    record = RunRecord.from_json(data.decode("utf-8", "replace"))
    assert RunRecord.from_json(record.to_json()) == record
    str(record)


def _hostile_records():
    record = json.loads(_records()[0])
    (task, *_) = record["tasks"]
    return [
        json.dumps({**record, **fields}).encode()
        for fields in (
            {"workers": 10**30},
            {"workers": 1 << 62},
            {"mesh": '@m = <["x"=1000000000000]>'},
            {"begin": 1e308, "seconds": 1e308},
            {"tasks": [{**task, "number": n} for n in range(large(10_000))]},
            {"tasks": [{**task, "box": [[0, 1 << 48]] * 2000}]},
            {"tasks": [{**task, "received": {str(n): 1 << 62 for n in range(large(100_000))}}]},
            {"tasks": [{**task, "cell": 1 << 62}]},
            {"tasks": [{**task, "worker": f"host:{n}", "number": n} for n in range(large(10_000))]},
        )
    ]


RECORDS = Reader(_records, _read_record, mutate_json, _hostile_records)


def _shown():
    return [*_records(), PLAN.to_json().encode()]


def _show(data):
    """What the command line makes of a file: an answer, or a refusal and never a bug."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        path.write_bytes(data)
        for command in (["show", str(path)], ["calibrate", "--from", str(path)]):
            assert main(command) in (0, 2)


SHOWN = Reader(_shown, _show, mutate_json, lambda: _hostile_records()[3:5])


def test_hostile_run_directories_are_read_or_refused():
    fuzz("tests.runtime.cluster.test_fuzz:JOBS")


def test_hostile_records_are_read_or_refused():
    fuzz("tests.runtime.cluster.test_fuzz:RECORDS")


def test_hostile_files_are_shown_or_refused():
    fuzz("tests.runtime.cluster.test_fuzz:SHOWN", input_count() // 4)
