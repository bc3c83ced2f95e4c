"""`weft run`: a plan on the workers of a cluster, from arrays to arrays, in files or in storage."""

from __future__ import annotations

import argparse
import re
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import read_text
from weft.draw import say
from weft.errors import WeftError
from weft.plan import Plan

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from weft.run.grid import Job, Progress, RunDirectory

EXAMPLES = """\
examples:
  weft run plan.json --input x=in.zarr --output y=out.zarr
  weft run plan.json --input x=s3://bucket/in.zarr --output y=out.zarr --workers 8 --memory 2GiB
  weft run plan.json --input x=x.npy --output y=y.npy --on dask
  weft run --resume plan.run
"""
WIDE = 20
"""Columns of the bar."""
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
    add("--on", default="ray", help="ray, dask, threads, or the address of a cluster (ray)")
    add("--workers", type=int, help="of a local cluster (one for each processor)")
    add("--memory", type=amount, help="what a worker may take, as 512MiB: tasks are cut to fit")
    add("--chunks", action="append", default=[], metavar="NAME=N,N", help="of a stored output")
    add("--shards", action="append", default=[], metavar="NAME=N,N", help="of a stored output")
    add("--codec", default="zstd", help="how chunks of outputs are compressed (zstd)")
    add("--overwrite", action="store_true", help="write outputs in place of what is there")
    add("--import", action="append", default=[], dest="modules", help="a module with operators")
    add("--directory", type=Path, help="where the run is written down (PLAN.run)")
    add(
        "--resume", nargs="?", type=Path, const=Path(), metavar="DIRECTORY", help="go on with a run"
    )
    add("--json", action="store_true", help="print the record of the run as JSON")
    parser.set_defaults(run=run)


def amount(text: str) -> int:
    """Bytes from text.

    >>> amount("512MiB"), amount("2 GB"), amount("100")
    (536870912, 2000000000, 100)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of bytes, as 512MiB is")
    return int(float(found[1]) * UNITS[found[2].upper()])


def run(args: argparse.Namespace) -> None:
    """Run a plan, or go on with one; what came of it is printed and kept."""
    grid = import_module("weft.run.grid")
    folder, plan, job = _resumed(args, grid) if args.resume is not None else _begun(args, grid)
    bar = Bar(quiet=args.json or not sys.stderr.isatty())
    record = _record(grid, plan, job, folder, bar, resume=args.resume is not None)
    folder.finish(record.to_json())
    if args.json:
        say(record.to_json(), sys.stdout)
    else:
        say(f"{record}\nwrote {folder.record}", sys.stdout)


def _begun(args: argparse.Namespace, grid: Any) -> tuple[RunDirectory, Plan, Job]:
    """A new run, written down before it begins."""
    if args.plan is None:
        raise WeftError("no plan is given", hint="weft run plan.json --input x=in.zarr ...")
    for module in args.modules:
        _imported(module)
    plan = Plan.from_json(read_text(args.plan))
    folder = grid.RunDirectory(args.directory or Path(f"{args.plan.stem}.run"))
    if folder.is_begun and not args.overwrite:
        raise WeftError(
            f"{folder.path} holds a run that has not come to its end",
            hint=f"go on with: weft run --resume {folder.path}, or begin anew with --overwrite",
        )
    job = _job(args, plan, grid)
    folder.begin(plan, job)
    return folder, plan, job


def _resumed(args: argparse.Namespace, grid: Any) -> tuple[RunDirectory, Plan, Job]:
    path = args.resume if args.resume != Path() else args.directory
    if path is None and args.plan is not None:
        path = Path(f"{args.plan.stem}.run")
    if path is None:
        raise WeftError("no run is given to go on with", hint="weft run --resume plan.run")
    folder = grid.RunDirectory(path)
    job = folder.job()
    for module in job.modules:
        _imported(module)
    return folder, folder.plan(), job


def _imported(module: str) -> None:
    """Import a module with operators, from this folder too."""
    sys.path.insert(0, "")
    try:
        import_module(module)
    except ImportError as error:
        raise WeftError(f"cannot import {module}: {error}") from None
    finally:
        sys.path.remove("")


def _job(args: argparse.Namespace, plan: Plan, grid: Any) -> Job:
    inputs, outputs = _pairs(args.input, "--input"), _pairs(args.output, "--output")
    chunks, shards = _pairs(args.chunks, "--chunks"), _pairs(args.shards, "--shards")
    for name in plan.graph.outputs:
        if name not in outputs:
            raise WeftError(f"output {name} goes nowhere", hint=f"--output {name}=out.zarr")
    for name in [*chunks, *shards]:
        if name not in outputs:
            raise WeftError(f"there is no output {name}", hint=f"there are {', '.join(outputs)}")
    said = {
        name: grid.Output(
            place,
            _sizes(chunks[name]) if name in chunks else None,
            _sizes(shards[name]) if name in shards else None,
            args.codec,
            args.overwrite,
        )
        for name, place in outputs.items()
    }
    job: Job = grid.Job(inputs, said, args.on, args.workers, args.memory, tuple(args.modules))
    return job


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise WeftError(f"{option} {text} is not NAME=VALUE")
        found[name] = rest
    return found


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise WeftError(f"{text} are no sizes, as 64,64,64 are") from None


def _record(
    grid: Any, plan: Plan, job: Job, folder: RunDirectory, bar: Bar, *, resume: bool
) -> Any:
    """Run it, and give its record."""
    inputs = {name: _input(place) for name, place in job.inputs.items()}
    stored = {name: said for name, said in job.outputs.items() if not _is_file(said.url)}
    with grid.recording() as records, grid.engine_of(job.on, job.workers, job.memory) as engine:
        found = grid.run_on(engine, plan, inputs, stored, resume=resume, watch=bar)
    bar.close()
    for name, tensor in zip(plan.graph.outputs, found):
        if name not in stored:
            numpy = import_module("numpy")
            numpy.save(job.outputs[name].url, tensor.numpy())
    return records[-1]


def _is_file(place: Any) -> bool:
    return str(place).endswith(".npy")


def _input(place: str) -> Any:
    return import_module("numpy").load(place, mmap_mode="r") if _is_file(place) else place


class Bar:
    """How far a run is, in one line, and how long it will still take."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.begin, self.first = quiet, time.monotonic(), 0
        self.last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Write the line anew, ten times a second at most."""
        now = time.monotonic()
        if self.quiet or (now - self.last < 0.1 and progress.done < progress.total):
            return
        self.last = now
        part = progress.done / progress.total
        full = round(part * WIDE)
        bar = "━" * full + "─" * (WIDE - full)
        left = (now - self.begin) / part * (1 - part)
        text = f"{bar} {part:4.0%}  {progress.done} of {progress.total} tasks, {clock(left)} left"
        sys.stderr.write(f"\r{text}\033[K")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the line empty."""
        if not self.quiet:
            sys.stderr.write("\r\033[K")


def clock(seconds: float) -> str:
    """A time as people say it.

    >>> clock(4.2), clock(75), clock(3700)
    ('4 s', '1:15 min', '1:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"
