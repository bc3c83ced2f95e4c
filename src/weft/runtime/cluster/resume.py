"""`RunDirectory`: a run on disk, so that it can be resumed after a crash.

The plan and the job are written before the outputs are created, a mark after that, and the record
after the last task. Which shards are complete is not written: once the mark exists, the shards
themselves show it; without the mark they may belong to another run.

A directory describes a run and decides nothing. It is read field by field, within limits, and
nothing in it is imported or executed. Where a run reads and writes, the modules that it imports and
the cluster that it connects to are decided by whoever resumes it: see `Job.check_named`.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from os import fspath
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.lang.field import Field, parse_json, read_text
from weft.lang.operator import OPERATORS, Library
from weft.plan import Plan
from weft.runtime.cluster.engines.engine import MAX_MEMORY, MAX_WORKERS
from weft.runtime.cluster.storage import Output

VERSION = 1
FIELDS = "version inputs outputs on workers memory modules"
LOCAL = ("ray", "dask", "threads")
"""Engines that are started for a run; anything else is the address of a cluster."""


@dataclass(frozen=True)
class Job:
    """The inputs, outputs and engine of a run: all that it needs besides its plan."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, Output]
    on: str = "ray"
    workers: int | None = None
    memory: int | None = None
    modules: tuple[str, ...] = field(default=())
    """Modules that add operators."""

    def options(self) -> list[str]:
        """Return the options of `weft run` that name what this job reads, writes and imports.

        >>> Job({"x": "in.zarr"}, {"y": Output("out.zarr")}).options()
        ['--input', 'x=in.zarr', '--output', 'y=out.zarr']
        """
        found = [("--input", f"{name}={place}") for name, place in self.inputs.items()]
        found += [("--output", f"{name}={fspath(o.url)}") for name, o in self.outputs.items()]
        found += [("--import", module) for module in self.modules]
        found += [] if self.on in LOCAL else [("--on", self.on)]
        return [word for pair in found for word in pair]

    def check_named(
        self,
        path: Path,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        modules: Sequence[str],
        on: str | None,
    ) -> None:
        """Refuse a job, read from `path`, that goes beyond what its user has named.

        Every place that it reads or writes, every module and the address of a cluster must be given
        again, and be the same: a run directory from somebody else chooses none of them.
        """
        resume = shlex.join(["weft", "run", "--resume", str(path), *self.options()])
        hint = f"if this is what you want: {resume}"
        written = {name: fspath(output.url) for name, output in self.outputs.items()}
        for what, mine, given in (
            ("input", self.inputs, inputs),
            ("output", written, outputs),
        ):
            for name, place in given.items():
                if mine.get(name) != place:
                    begun = f"is {mine[name]}" if name in mine else "does not exist"
                    raise WeftError(f"--{what} {name}={place}: in {path} that {what} {begun}")
            for name, place in mine.items():
                if name not in given:
                    raise WeftError(f"{what} {name} of {path} is {place}: name it again", hint=hint)
        for module in self.modules:
            if module not in modules:
                raise WeftError(
                    f"{path} was begun with --import {module}: name it again", hint=hint
                )
        if on is not None and on != self.on:
            raise WeftError(f"--on {on}: {path} was begun on {self.on}")
        if on is None and self.on not in LOCAL:
            raise WeftError(f"{path} was begun on the cluster {self.on}: name it again", hint=hint)


@dataclass(frozen=True)
class RunDirectory:
    """A folder with a plan, a job and, in the end, a record.

    >>> RunDirectory(Path("blur.run")).is_begun
    False
    """

    path: Path

    @property
    def record(self) -> Path:
        """The file of the record."""
        return self.path / "run.json"

    @property
    def _mark(self) -> Path:
        return self.path / "outputs.made"

    @property
    def is_begun(self) -> bool:
        """Whether there is a run that has not finished."""
        return (self.path / "job.json").exists() and not self.record.exists()

    @property
    def has_outputs(self) -> bool:
        """Whether the outputs of the run were created, so that shards in them are its own."""
        return self._mark.exists()

    def begin(self, plan: Plan, job: Job) -> None:
        """Write the plan and the job, in place of those of an earlier run."""
        data = {"version": VERSION, **_job_data(job)}
        self.path.mkdir(parents=True, exist_ok=True)
        self._mark.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)
        self._write("plan.json", plan.to_json())
        self._write("job.json", json.dumps(data, indent=1))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this folder against other runs; it is created and, if it stays empty, removed."""
        is_new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise WeftError(f"{self.path} is a file, not a folder for a run") from None
        lock = import_module("weft.store.lock").FileLock(
            self.path / ".weft.lock", what=f"the run directory {self.path}"
        )
        try:
            yield
        finally:
            lock.release()
            if is_new:
                with suppress(OSError):  # the folder holds a run
                    self.path.rmdir()

    def mark(self) -> None:
        """Record that the outputs are created."""
        self._write(self._mark.name, "")

    def finish(self, record: str) -> None:
        """Write the record of the run."""
        self._write("run.json", record)

    def abandon(self) -> None:
        """Remove a run that was refused before it did anything."""
        for name in ("job.json", "plan.json"):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # the folder holds other files, or the lock of the run
            self.path.rmdir()

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically; links in the folder are not followed."""
        draft = self.path / f"{name}.draft"
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(f"{text}\n".encode())
        os.replace(draft, self.path / name)

    def job(self) -> Job:
        """Read the job; `Job.check_named` decides what of it may be trusted."""
        path = self.path / "job.json"
        try:
            return _read_job(parse_json(self._text("job.json"), "the job"))
        except WeftError as error:
            error.add_note(f"while reading {path}")
            raise

    def plan(self, operators: Library = OPERATORS) -> Plan:
        """Read the plan."""
        return Plan.from_json(self._text("plan.json"), operators)

    def _text(self, name: str) -> str:
        path = self.path / name
        if not path.is_file():
            raise WeftError(
                f"there is no run in {self.path}",
                hint="a run begins with: weft run plan.json --input x=in.zarr --output y=out.zarr",
            )
        return read_text(path)


def _job_data(job: Job) -> dict[str, Any]:
    """Return a job as plain data; refuse what `_read_job` would refuse."""
    return {
        "inputs": dict(job.inputs),
        "outputs": {name: _output_data(name, output) for name, output in job.outputs.items()},
        "on": job.on,
        "workers": job.workers,
        "memory": job.memory,
        "modules": list(job.modules),
    }


def _output_data(name: str, output: Output) -> dict[str, Any]:
    if output.options:
        raise WeftError(
            f"output {name}: the options of a store are not written to a run directory",
            hint="give servers and keys by the environment",
        )
    if not isinstance(output.codecs, str):
        raise WeftError(f"output {name}: a run directory names a codec, not {output.codecs!r}")
    return {
        "url": fspath(output.url),
        "chunks": None if output.chunks is None else list(output.chunks),
        "shards": None if output.shards is None else list(output.shards),
        "codecs": output.codecs,
        "overwrite": output.overwrite,
    }


def _read_job(root: Field) -> Job:
    root.fields(FIELDS)
    if root.at("version").value != VERSION:
        root.at("version").fail(f"the version {VERSION}")
    return Job(
        root.at("inputs").table(_place),
        root.at("outputs").table(_output),
        _place(root.at("on")),
        _count(root.at("workers"), MAX_WORKERS),
        _count(root.at("memory"), MAX_MEMORY),
        tuple(root.at("modules").items(_place)),
    )


def _place(field: Field) -> str:
    """Return a path, an address or a name: text that can be printed as it is."""
    if not field.text().isprintable():
        field.fail("a printable text")
    return field.text()


def _count(field: Field, most: int) -> int | None:
    n = field.value
    if n is None:
        return None
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= most:
        field.fail(f"an integer from 1 to {most}")
    return int(n)


def _output(field: Field) -> Output:
    field.fields("url chunks shards codecs overwrite")
    return Output(
        _place(field.at("url")),
        _sizes(field.at("chunks")),
        _sizes(field.at("shards")),
        _place(field.at("codecs")),
        field.at("overwrite").flag(),
    )


def _sizes(field: Field) -> tuple[int, ...] | None:
    return None if field.value is None else tuple(field.items(Field.size))
