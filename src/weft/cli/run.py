"""`weft run`: a plan on the workers of a cluster, from arrays to arrays, in files or in storage."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.job import (
    check_free,
    is_file,
    job_of,
    locked_file,
    places,
    read_input,
    resumed_job,
    write_file,
)
from weft.cli.progress import Bar
from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import read_text
from weft.plan import Plan

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from weft.runtime.cluster import Job, RunDirectory, RunRecord

EXAMPLES = """\
examples:
  weft run plan.json --input x=in.zarr --output y=out.zarr
  weft run plan.json --input x=s3://bucket/in.zarr --output y=out.zarr --workers 8 --memory 2GiB
  weft run plan.json --input x=x.npy --output y=y.npy --on dask
  weft run --resume plan.run --input x=in.zarr --output y=out.zarr
"""
INTERRUPTED = 130
"""The exit code of what a person stopped, as shells have it."""
UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6}
UNITS |= {"GB": 10**9, "B": 1}


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "run",
        help="run a plan on a cluster, from arrays in storage to arrays in storage",
        description="Run a plan as tasks on Ray, Dask or threads. Inputs are Zarr arrays, of which "
        "every task reads its box, or .npy files; outputs are sharded Zarr arrays, or .npy files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("plan", nargs="?", type=Path, help="a plan's JSON, as weft plan -o writes it")
    add("--input", action="append", default=[], metavar="NAME=PLACE", help="where an input lies")
    add("--output", action="append", default=[], metavar="NAME=PLACE", help="where an output goes")
    add("--on", help="ray, dask, threads, or the address of a cluster (ray)")
    add("--workers", type=int, help="of a local cluster (one for each processor)")
    add("--memory", type=amount, help="of a worker, as 512MiB: tasks are cut to fit")
    add("--chunks", action="append", default=[], metavar="NAME=N,N", help="of a stored output")
    add("--shards", action="append", default=[], metavar="NAME=N,N", help="of a stored output")
    add("--codec", help="how chunks of outputs are compressed (zstd)")
    add("--overwrite", action="store_true", help="write outputs in place of what is there")
    add("--import", action="append", default=[], dest="modules", help="a module with operators")
    add("--directory", type=Path, help="where the run is written down (PLAN.run)")
    resume = "go on with a run; inputs, outputs, --import and a cluster's address are named again"
    add("--resume", nargs="?", type=Path, const=Path(), metavar="DIRECTORY", help=resume)
    add("--json", action="store_true", help="print the record of the run as JSON")
    parser.set_defaults(run=run)


def amount(text: str) -> int:
    """Bytes from text.

    >>> amount("512MiB"), amount("2 GB"), amount("100")
    (536870912, 2000000000, 100)
    """
    found = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of bytes, as 512MiB is")
    return int(float(found[1]) * UNITS[found[2].upper()])


def run(args: argparse.Namespace) -> None:
    """Run a plan, or go on with one; what came of it is printed and kept."""
    grid = import_module("weft.runtime.cluster")
    if args.resume is None:
        record, folder = _begin(args, grid)
    else:
        record, folder = _resume(args, grid)
    if args.json:
        say(record.to_json(), sys.stdout)
    else:
        say(f"{record}\nwrote {folder.record}", sys.stdout)


def _begin(args: argparse.Namespace, grid: Any) -> tuple[RunRecord, RunDirectory]:
    """A new run; what is refused before its first task leaves nothing behind."""
    if args.plan is None:
        raise WeftError(
            "no plan is given", hint="weft run plan.json --input x=in.zarr --output y=out.zarr"
        )
    modules = [_imported(name) for name in args.modules]
    plan = _read_plan(args.plan)
    folder = grid.RunDirectory(args.directory or Path(f"{args.plan.stem}.run"))
    job = job_of(args, plan, grid)
    with folder.locked():
        if folder.is_begun and not args.overwrite:
            raise WeftError(
                f"{folder.path} holds a run that has not come to its end",
                hint="the same command with --resume goes on with it, --overwrite begins anew",
            )
        check_free(job)
        run = _Run(grid, plan, job, folder, modules, quiet=args.json)
        with run.engine() as engine:
            try:
                return run.run_on(engine, resume=False), folder
            finally:
                if run.is_begun and not folder.has_outputs:
                    folder.abandon()


def _resume(args: argparse.Namespace, grid: Any) -> tuple[RunRecord, RunDirectory]:
    """Resume a run; one that has come to its end stays as it is.

    The directory says what the run is, and the command line what it may touch: inputs, outputs,
    modules and the address of a cluster are named again, and must be those of the directory.
    """
    path = args.resume if args.resume != Path() else args.directory
    if path is None and args.plan is not None:
        path = Path(f"{args.plan.stem}.run")
    if path is None:
        raise WeftError(
            "no run is given to go on with",
            hint="weft run --resume plan.run --input x=in.zarr --output y=out.zarr",
        )
    folder = grid.RunDirectory(path)
    folder.job()  # before anything is created to lock it
    with folder.locked():
        return _go_on(args, grid, folder), folder


def _go_on(args: argparse.Namespace, grid: Any, folder: RunDirectory) -> RunRecord:
    """Resume the run of a directory that is locked."""
    job, path = folder.job(), folder.path
    if not folder.is_begun:
        say(f"weft run: {path} has come to its end before; nothing is done", sys.stderr)
        record: RunRecord = grid.RunRecord.from_json(read_text(folder.record))
        return record
    inputs, outputs = places(args.input, "--input"), places(args.output, "--output")
    job.check_named(path, inputs, outputs, args.modules, args.on)
    modules = [_imported(name) for name in args.modules]
    plan = folder.plan()
    job = resumed_job(args, job, path, plan)
    if args.plan is not None and _read_plan(args.plan) != plan:
        raise WeftError(f"{args.plan} is not the plan with which {path} was begun")
    if not folder.has_outputs:
        check_free(job)
    run = _Run(grid, plan, job, folder, modules, quiet=args.json)
    with run.engine() as engine:
        return run.run_on(engine, resume=folder.has_outputs)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_json(read_text(path))
    except WeftError as error:
        if "there is no operator" in str(error):
            error.add_note("hint: --import MODULE, of the module that adds it")
        raise


def _imported(name: str) -> Any:
    """A module with operators, from this folder too."""
    sys.path.insert(0, "")
    try:
        return import_module(name)
    except ImportError as error:
        raise WeftError(f"cannot import {name}: {error}") from None
    finally:
        sys.path.remove("")


class _Run:
    """A run that is to be done."""

    def __init__(
        self,
        grid: Any,
        plan: Plan,
        job: Job,
        folder: RunDirectory,
        modules: list[Any],
        quiet: bool,
    ) -> None:
        self.grid, self.plan, self.job, self.folder = grid, plan, job, folder
        self.modules, self.is_begun = modules, False
        self.bar = Bar(quiet or not sys.stderr.isatty())
        self.inputs = {name: read_input(place) for name, place in job.inputs.items()}
        stored = {name: said for name, said in job.outputs.items() if not is_file(said.url)}
        grid.check_places(plan, self.inputs, stored)  # before a cluster is started

    def engine(self) -> Any:
        """What it runs on; its own messages are none of those of this command."""
        if self.job.on == "ray" and find_spec("ray") is None:
            raise WeftError(
                "Ray is not installed, on which plans run unless something else is said",
                hint="pip install 'weft[ray]', or --on threads, which needs nothing",
            )
        found = self.grid.engine_of(self.job.on, self.job.workers, self.job.memory)
        for name in [name for name in logging.root.manager.loggerDict if "distributed" in name]:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._send_modules()
        return found

    def _send_modules(self) -> None:
        """Have modules travel with the program: workers need not find them."""
        for library in ("cloudpickle", "ray.cloudpickle"):
            for module in self.modules if library.partition(".")[0] in sys.modules else ():
                import_module(library).register_pickle_by_value(module)

    def run_on(self, engine: Any, resume: bool) -> RunRecord:
        """Run it, and return its record."""
        stored = {name: said for name, said in self.job.outputs.items() if not is_file(said.url)}
        self.is_begun = resume
        files = [said.url for said in self.job.outputs.values() if is_file(said.url)]
        with ExitStack() as stack:
            for place in files:
                stack.enter_context(locked_file(place))
            records = stack.enter_context(self.grid.recording())
            stack.enter_context(self._told())
            found = self.grid.run_on(
                engine,
                self.plan,
                self.inputs,
                stored,
                resume=resume,
                watch=self._watch,
                before=None if resume else self._begin,
            )
            for name, tensor in zip(self.plan.graph.outputs, found):
                if name not in stored:
                    write_file(self.job.outputs[name].url, tensor.numpy())
            self.folder.finish(records[-1].to_json())
        record: RunRecord = records[-1]
        return record

    def _begin(self) -> None:
        """Write the run down: all is checked, and nothing is replaced yet."""
        self.folder.begin(self.plan, self.job)
        self.is_begun = True

    def _watch(self, progress: Any) -> None:
        if not self.folder.has_outputs:
            self.folder.mark()
        self.bar(progress)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say how to go on, should something happen."""
        options = shlex.join([str(self.folder.path), *self.job.options()])
        hint = f"go on with: weft run --resume {options}"
        try:
            yield
        except KeyboardInterrupt:
            self.bar.close()
            say(f"weft run: interrupted\nhint: {hint}", sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        except (WeftError, OSError) as error:
            if self.is_begun and self.folder.has_outputs:
                error.add_note(f"hint: once the cause is gone, {hint}")
            raise
        finally:
            self.bar.close()
