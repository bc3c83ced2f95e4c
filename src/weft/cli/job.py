"""What `weft run` is told, as a job: names and places, checked before anything is begun."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import check_folder
from weft.cli.foreign import open_npy
from weft.cli.parser import sizes_of
from weft.errors import WeftError
from weft.plan import Plan

if TYPE_CHECKING:
    from weft.runtime.cluster import Job


def job_of(args: Namespace, plan: Plan, grid: Any) -> Job:
    """The job that the options say, with places that mean the same in any folder."""
    inputs, outputs = places(args.input, "--input"), places(args.output, "--output")
    on = args.on or "ray"
    chunks, shards = _pairs(args.chunks, "--chunks"), _pairs(args.shards, "--shards")
    check_places(plan, inputs, outputs)
    for option, said in (("--chunks", chunks), ("--shards", shards)):
        for name in said:
            if name not in outputs or is_file(outputs[name]):
                raise WeftError(f"{option} {name}={said[name]}: no output {name} is in storage")
    codec = args.codec or "zstd"
    said = {
        name: grid.Output(place, _sizes(chunks, name), _sizes(shards, name), codec, args.overwrite)
        for name, place in outputs.items()
    }
    # So that a run that goes on has the tasks that it had.
    workers = os.cpu_count() if args.workers is None and on in grid.LOCAL else args.workers
    job: Job = grid.Job(inputs, said, on, workers, args.memory, tuple(args.modules))
    return job


def resumed_job(args: Namespace, job: Job, path: Path, plan: Plan) -> Job:
    """Return the job of a run directory as the options let it go on.

    What decides where a run reads and writes is in `Job.check_named`. The other options may be left
    out, and must be those of the directory where they are given; whether arrays that do not belong
    to the run are replaced is decided by the options alone.
    """
    check_places(plan, job.inputs, {name: str(said.url) for name, said in job.outputs.items()})
    chunks, shards = _pairs(args.chunks, "--chunks"), _pairs(args.shards, "--shards")
    for name, said in job.outputs.items():
        for option, given, begun in (
            (f"--chunks {name}", _sizes(chunks, name), said.chunks),
            (f"--shards {name}", _sizes(shards, name), said.shards),
            ("--codec", args.codec, said.codecs),
            ("--workers", args.workers, job.workers),
            ("--memory", args.memory, job.memory),
        ):
            if given is not None and given != begun:
                raise WeftError(f"{option} {given}: {path} was begun with {begun}")
    outputs = {name: replace(said, overwrite=args.overwrite) for name, said in job.outputs.items()}
    return replace(job, outputs=outputs)


def check_places(plan: Plan, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """Refuse places for what a plan does not have, too few of them, and two that are one."""
    wanted = [value.name for value in plan.graph.inputs]
    _check_names(inputs, wanted, "input", "in.zarr", "comes from nowhere")
    _check_names(outputs, plan.graph.outputs, "output", "out.zarr", "goes nowhere")
    _check_apart(inputs, outputs)


def _check_names(
    given: Iterable[str], wanted: Iterable[str], what: str, example: str, fate: str
) -> None:
    known = list(dict.fromkeys(wanted))
    for name in given:
        if name not in known:
            raise WeftError(
                f"the plan has no {what} {name}", hint=f"it has {', '.join(known) or 'none'}"
            )
    for name in known:
        if name not in given:
            raise WeftError(f"{what} {name} {fate}", hint=f"--{what} {name}={example}")


def _check_apart(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """No output is where something else of the run is, and .npy files have a folder."""
    there = {_real(place): f"input {name}" for name, place in inputs.items()}
    for name, place in outputs.items():
        if _real(place) in there:
            raise WeftError(f"output {name} would replace {there[_real(place)]}: both are {place}")
        there[_real(place)] = f"output {name}"
        if is_file(place):
            check_folder(Path(place))


def _real(place: str) -> str:
    """A place without links and without a slash at its end."""
    return place.rstrip("/") if "://" in place else os.path.realpath(place)


def places(texts: list[str], option: str) -> dict[str, str]:
    """Return the places that options name, as paths that mean the same in any folder."""
    return {name: _absolute(place) for name, place in _pairs(texts, option).items()}


def _absolute(place: str) -> str:
    """A path that means the same in any folder; an address does already."""
    return place if "://" in place else str(Path(place).absolute())


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise WeftError(f"{option} {text} is not NAME=VALUE")
        if name in found:
            raise WeftError(f"{option} {name} is said twice: {found[name]} and {rest}")
        found[name] = rest
    return found


def _sizes(said: dict[str, str], name: str) -> tuple[int, ...] | None:
    if name not in said:
        return None
    try:
        return sizes_of(said[name])
    except ArgumentTypeError as fault:
        raise WeftError(f"{name}: {fault}") from None


def is_file(place: Any) -> bool:
    """Whether an array is a .npy file, and not in storage."""
    return str(place).endswith(".npy")


def read_input(place: str) -> Any:
    """An input, opened: what cannot be read is refused before anything is begun."""
    if not is_file(place):
        return import_module("weft.store").open(place)
    try:
        return open_npy(place)
    except FileNotFoundError:
        raise WeftError(f"there is no file {place}") from None


def check_free(job: Job) -> None:
    """Refuse outputs where arrays are that may not be replaced."""
    for name, said in job.outputs.items():
        if not said.overwrite and _is_there(str(said.url)):
            raise WeftError(
                f"output {name}: {said.url} holds an array already",
                hint="--overwrite writes in its place",
            )


def _is_there(place: str) -> bool:
    if is_file(place):
        return os.path.lexists(place)
    sink = import_module("weft.store.hierarchy").sink_of(place)
    return sink.fetch("zarr.json", 0, 1) is not None


def locked_file(place: Any) -> Any:
    """Return the lock of a .npy file that is written at the end of a run."""
    path = Path(place)
    lock = import_module("weft.store.lock").FileLock
    return lock(path.with_name(f".{path.name}.weft.lock"), what=str(place))


def write_file(place: Any, array: Any) -> None:
    """Write a .npy file, which is there when it is whole."""
    draft = f"{place}.draft"
    with open(draft, "wb") as file:
        import_module("numpy").save(file, array)
    os.replace(draft, place)
