"""The runs of `weft run`: check the options, start or resume a run, and report its progress."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.cli.files import StatusLine, check_folder, open_npy, read_plan
from weft.cli.graphs import import_operators
from weft.cli.main import INTERRUPTED
from weft.cli.parser import sizes_of
from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import read_text
from weft.plan import Plan
from weft.plan.searching.progress import percent_bar
from weft.runtime import cluster
from weft.runtime.cluster import Job, Output, Progress, RunDirectory, RunRecord

# -- starting and resuming ------------------------------------------------------------------------


def begin(args: Namespace) -> tuple[RunRecord, RunDirectory]:
    """Start a run; one that is refused before its first task leaves nothing behind."""
    if args.plan is None:
        raise WeftError(
            "no plan is given", hint="weft run plan.json --input x=in.zarr --output y=out.zarr"
        )
    modules = [import_operators(name) for name in args.modules]
    plan = read_plan(args.plan)
    folder = RunDirectory(args.directory or Path(f"{args.plan.stem}.run"))
    job = _new_job(args, plan)
    with folder.locked():
        if folder.is_begun and not args.overwrite:
            raise WeftError(
                f"{folder.path} holds an unfinished run",
                hint="the same command with --resume resumes it, with --overwrite starts again",
            )
        _check_outputs_free(job)
        run = _JobRun(plan, job, folder, modules, quiet=args.json)
        with run.engine() as engine:
            try:
                return run.run_on(engine, resume=False), folder
            finally:
                if run.is_begun and not folder.has_outputs:
                    folder.abandon()


def resume(args: Namespace) -> tuple[RunRecord, RunDirectory]:
    """Resume a run; a finished one stays as it is.

    The directory describes the run, and the command line says what it may touch: inputs, outputs,
    modules and the address of a cluster are repeated, and must be those of the directory.
    """
    path = args.resume if args.resume != Path() else args.directory
    if path is None and args.plan is not None:
        path = Path(f"{args.plan.stem}.run")
    if path is None:
        raise WeftError(
            "no run to resume is given",
            hint="weft run --resume plan.run --input x=in.zarr --output y=out.zarr",
        )
    folder = RunDirectory(path)
    folder.job()  # fails before anything is created to lock it
    with folder.locked():
        return _resume_locked(args, folder), folder


def _resume_locked(args: Namespace, folder: RunDirectory) -> RunRecord:
    job, path = folder.job(), folder.path
    if not folder.is_begun:
        say(f"weft run: {path} has finished before; nothing is done", sys.stderr)
        return RunRecord.from_json(read_text(folder.record))
    inputs, outputs = places(args.input, "--input"), places(args.output, "--output")
    job.check_named(path, inputs, outputs, args.modules, args.on)
    modules = [import_operators(name) for name in args.modules]
    plan = folder.plan()
    job = _resumed_job(args, job, path, plan)
    if args.plan is not None and read_plan(args.plan) != plan:
        raise WeftError(f"{args.plan} is not the plan with which {path} was started")
    if not folder.has_outputs:
        _check_outputs_free(job)
    run = _JobRun(plan, job, folder, modules, quiet=args.json)
    with run.engine() as engine:
        return run.run_on(engine, resume=folder.has_outputs)


class _JobRun:
    """A run of a plan in a directory."""

    def __init__(
        self, plan: Plan, job: Job, folder: RunDirectory, modules: list[ModuleType], quiet: bool
    ) -> None:
        self.plan, self.job, self.folder = plan, job, folder
        self.modules, self.is_begun = modules, False
        self.bar = RunProgressBar(quiet)
        self.inputs = {name: _open_input(place) for name, place in job.inputs.items()}
        self.stored = {name: out for name, out in job.outputs.items() if not is_npy(out.url)}
        cluster.check_places(plan, self.inputs, self.stored)  # before a cluster is started

    def engine(self) -> Any:
        """Return the engine of the run, with its log messages silenced."""
        if self.job.on == "ray" and find_spec("ray") is None:
            raise WeftError(
                "Ray, the default engine, is not installed",
                hint="pip install 'weft[ray]', or --on threads, which needs nothing",
            )
        engine = cluster.engine_of(self.job.on, self.job.workers, self.job.memory)
        for name in [name for name in logging.root.manager.loggerDict if "distributed" in name]:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._send_modules()
        return engine

    def _send_modules(self) -> None:
        """Send modules with the tasks, so that workers need not find them."""
        for library in ("cloudpickle", "ray.cloudpickle"):
            for module in self.modules if library.partition(".")[0] in sys.modules else ():
                import_module(library).register_pickle_by_value(module)

    def run_on(self, engine: Any, resume: bool) -> RunRecord:
        """Run the plan, and return the record of the run."""
        self.is_begun = resume
        with ExitStack() as stack:
            for output in self.job.outputs.values():
                if is_npy(output.url):
                    stack.enter_context(npy_lock(output.url))
            records = stack.enter_context(cluster.recording())
            stack.enter_context(self._resume_hint())
            results = cluster.run_on(
                engine,
                self.plan,
                self.inputs,
                self.stored,
                resume=resume,
                watch=self._watch,
                before=None if resume else self._begin,
            )
            for name, tensor in zip(self.plan.graph.outputs, results):
                if name not in self.stored:
                    _write_npy(self.job.outputs[name].url, tensor.numpy())
            self.folder.finish(records[-1].to_json())
        return records[-1]

    def _begin(self) -> None:
        """Write the run to its directory, after all checks and before anything is replaced."""
        self.folder.begin(self.plan, self.job)
        self.is_begun = True

    def _watch(self, progress: Progress) -> None:
        if not self.folder.has_outputs:
            self.folder.mark()
        self.bar(progress)

    @contextmanager
    def _resume_hint(self) -> Iterator[None]:
        """Add to an error how to resume the run."""
        options = shlex.join([str(self.folder.path), *self.job.options()])
        hint = f"resume with: weft run --resume {options}"
        try:
            yield
        except KeyboardInterrupt:
            self.bar.close()
            say(f"weft run: interrupted\nhint: {hint}", sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except (WeftError, OSError) as error:
            if self.is_begun and self.folder.has_outputs:
                error.add_note(f"hint: once the cause is removed, {hint}")
            raise
        finally:
            self.bar.close()


# -- options --------------------------------------------------------------------------------------


def _new_job(args: Namespace, plan: Plan) -> Job:
    """Return the job of the options, with absolute paths."""
    inputs, outputs = places(args.input, "--input"), places(args.output, "--output")
    on = args.on or "ray"
    chunks, shards = _pairs(args.chunks, "--chunks"), _pairs(args.shards, "--shards")
    check_places(plan, inputs, outputs)
    for option, blocks in (("--chunks", chunks), ("--shards", shards)):
        for name in blocks:
            if name not in outputs or is_npy(outputs[name]):
                raise WeftError(f"{option} {name}={blocks[name]}: no output {name} is in storage")
    codec = args.codec or "zstd"
    stored = {
        name: Output(place, _sizes(chunks, name), _sizes(shards, name), codec, args.overwrite)
        for name, place in outputs.items()
    }
    # The number of workers is fixed, so that a resumed run has the same tasks.
    workers = os.cpu_count() if args.workers is None and on in cluster.LOCAL else args.workers
    return Job(inputs, stored, on, workers, args.memory, tuple(args.modules))


def _resumed_job(args: Namespace, job: Job, path: Path, plan: Plan) -> Job:
    """Return the job of a run directory, after comparing it with the options.

    `Job.check_named` checks the options that decide where a run reads and writes. The others may be
    left out, and must equal those of the directory otherwise; only `--overwrite` is taken anew.
    """
    check_places(plan, job.inputs, {name: str(output.url) for name, output in job.outputs.items()})
    chunks, shards = _pairs(args.chunks, "--chunks"), _pairs(args.shards, "--shards")
    for name, output in job.outputs.items():
        for option, given, begun in (
            (f"--chunks {name}", _sizes(chunks, name), output.chunks),
            (f"--shards {name}", _sizes(shards, name), output.shards),
            ("--codec", args.codec, output.codecs),
            ("--workers", args.workers, job.workers),
            ("--memory", args.memory, job.memory),
        ):
            if given is not None and given != begun:
                raise WeftError(f"{option} {given}: {path} was started with {begun}")
    outputs = {name: replace(one, overwrite=args.overwrite) for name, one in job.outputs.items()}
    return replace(job, outputs=outputs)


def check_places(plan: Plan, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """Refuse unknown names, missing ones, and outputs that would replace something of the run."""
    wanted = [value.name for value in plan.graph.inputs]
    _check_names(inputs, wanted, "input", "in.zarr")
    _check_names(outputs, plan.graph.outputs, "output", "out.zarr")
    taken = {_real(place): f"input {name}" for name, place in inputs.items()}
    for name, place in outputs.items():
        if _real(place) in taken:
            raise WeftError(f"output {name} would replace {taken[_real(place)]}: both are {place}")
        taken[_real(place)] = f"output {name}"
        if is_npy(place):
            check_folder(Path(place))


def _check_names(given: Iterable[str], wanted: Iterable[str], what: str, example: str) -> None:
    known = list(dict.fromkeys(wanted))
    for name in given:
        if name not in known:
            raise WeftError(
                f"the plan has no {what} {name}", hint=f"it has {', '.join(known) or 'none'}"
            )
    for name in known:
        if name not in given:
            raise WeftError(
                f"no place is given for {what} {name}", hint=f"--{what} {name}={example}"
            )


def _real(place: str) -> str:
    """Return a path without links, or an address without a trailing slash."""
    return place.rstrip("/") if "://" in place else os.path.realpath(place)


def places(texts: list[str], option: str) -> dict[str, str]:
    """Return the places of `NAME=PLACE` options: addresses, or absolute paths."""
    return {
        name: place if "://" in place else str(Path(place).absolute())
        for name, place in _pairs(texts, option).items()
    }


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise WeftError(f"{option} {text}: expected NAME=VALUE")
        if name in pairs:
            raise WeftError(f"{option} {name} is given twice: {pairs[name]} and {rest}")
        pairs[name] = rest
    return pairs


def _sizes(blocks: dict[str, str], name: str) -> tuple[int, ...] | None:
    if name not in blocks:
        return None
    try:
        return sizes_of(blocks[name])
    except ArgumentTypeError as error:
        raise WeftError(f"{name}: {error}") from None


# -- inputs and outputs ---------------------------------------------------------------------------


def is_npy(place: Any) -> bool:
    """Return whether an array is a .npy file, and not in storage."""
    return str(place).endswith(".npy")


def _open_input(place: str) -> Any:
    """Open an input, so that one that cannot be read is refused before the run starts."""
    from weft.store.create import open_array

    if not is_npy(place):
        return open_array(place)
    try:
        return open_npy(place)
    except FileNotFoundError:
        raise WeftError(f"there is no file {place}") from None


def _check_outputs_free(job: Job) -> None:
    """Refuse outputs that exist and may not be replaced."""
    for name, output in job.outputs.items():
        if not output.overwrite and _exists(str(output.url)):
            raise WeftError(
                f"output {name}: {output.url} holds an array already",
                hint="--overwrite replaces it",
            )


def _exists(place: str) -> bool:
    from weft.store.hierarchy import sink_of

    if is_npy(place):
        return os.path.lexists(place)
    return sink_of(place).fetch("zarr.json", 0, 1) is not None


def npy_lock(place: Any) -> Any:
    """Return the lock of a .npy file that is written at the end of a run."""
    from weft.store.lock import FileLock

    path = Path(place)
    return FileLock(path.with_name(f".{path.name}.weft.lock"), what=str(place))


def _write_npy(place: Any, array: Any) -> None:
    """Write a .npy file, which appears when it is complete."""
    import numpy as np

    draft = f"{place}.draft"
    with open(draft, "wb") as file:
        np.save(file, array)
    os.replace(draft, place)


# -- progress -------------------------------------------------------------------------------------


class RunProgressBar:
    """The progress of a run on one line of the terminal, with the time that is left."""

    def __init__(self, quiet: bool) -> None:
        self.line, self.first, self.begin, self.last = StatusLine(quiet), -1, 0.0, 0.0

    def __call__(self, progress: Progress) -> None:
        """Update the line, at most ten times a second."""
        now = time.monotonic()
        if self.first < 0:
            self.first, self.begin = progress.done, now
        if self.line.quiet or (now - self.last < 0.1 and progress.done < progress.total):
            return
        self.last = now
        text = percent_bar(progress.done / max(1, progress.total))
        text += f"  {progress.done} of {progress.total} tasks"
        if progress.done > self.first:  # tasks of an earlier run say nothing about speed
            each = (now - self.begin) / (progress.done - self.first)
            text += f", {duration(each * (progress.total - progress.done))} left"
        self.line.write(text)

    def close(self) -> None:
        """Clear the line."""
        self.line.clear()


def duration(seconds: float) -> str:
    """Return a time as people write it.

    >>> duration(4.2), duration(75), duration(3700)
    ('4 s', '1:15 min', '1:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"
