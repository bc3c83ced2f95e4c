"""`weft report`: plans, runs, ciphertext plans and stores as one HTML page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.cli.files import check_folder, read_plan, read_run
from weft.cli.graphs import add_machine_to, import_operators, read_machine
from weft.cli.parser import Commands, add_command, add_flag, add_list
from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import parse_json, read_text
from weft.plan import ParetoFront
from weft.report.data import Subject, front_of, report_data
from weft.report.page import render

UNSTATED = "the file does not say what was searched"

EXAMPLES = """\
examples:
  weft report plan.json -o report.html
  weft report plan.json plan.run/run.json -o report.html
  weft report plans/ --machine h200 -o front.html
  weft report ckks.json out.zarr --title "what came of it" -o report.html
"""


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    about = (
        "Write one self-contained page: the graph of a plan, its transfers and their reasons; "
        "several plans as a front; a run beside its prediction; ciphertexts; a store."
    )
    summary = "write plans, runs and stores as one HTML page"
    add = add_command(commands, "report", run, summary, about, EXAMPLES)
    files = (
        "plans' JSON, or a folder of them; a run's record; the output of `weft search --json` or "
        "`weft ckks plan --json`; a Zarr array"
    )
    add("files", nargs="+", metavar="FILE", help=files)
    page = Path("report.html")
    add("-o", "--output", type=Path, default=page, help=f"the page ({page})")
    add("--title", default="", help="the title of the page")
    add_machine_to(add, "the machine to price the plans on")
    add_list(add, "--import", "a module with operators", dest="modules")
    add_flag(add, "--json", "print the data of the page instead of writing it")


def run(args: argparse.Namespace) -> None:
    """Read the files and write the page."""
    check_folder(args.output)
    for module in args.modules:
        import_operators(module)
    subject = _subject(args)
    if args.json:
        say(json.dumps(report_data(subject)), sys.stdout)
        return
    args.output.write_text(render(subject), encoding="utf-8")
    say(f"wrote {args.output}", sys.stdout)


def _subject(args: argparse.Namespace) -> Subject:
    """Return the subject of the page: the contents of all files."""
    found: dict[str, list[Any]] = {"plan": [], "run": [], "front": [], "ckks": [], "store": []}
    for place in args.files:
        for kind, thing in _read(place):
            found[kind].append(thing)
    for kind, name in (("run", "runs"), ("ckks", "ciphertext plans"), ("front", "fronts")):
        if len(found[kind]) > 1:
            raise WeftError(f"{len(found[kind])} {name} do not fit one page", hint="give one")
    if found["front"] and not found["plan"]:
        raise WeftError(
            "a front's JSON has the costs of plans, not the plans",
            hint="also give the folder that `weft search -o` wrote",
        )
    front = front_of(found["plan"], read_machine(args)) if found["plan"] else None
    if front is not None and found["front"]:
        front = _as_searched(front, found["front"][0])
    title = args.title or Path(args.files[0]).name
    run, ckks = (found[kind][0] if found[kind] else None for kind in ("run", "ckks"))
    return Subject(front, run, ckks, tuple(found["store"]), title)


def _as_searched(front: ParetoFront, data: dict[str, Any]) -> ParetoFront:
    """Return the front with the search's claims about it."""
    points = data.get("points")
    if not isinstance(points, list) or len(points) != len(front):
        count = len(points) if isinstance(points, list) else 0
        raise WeftError(f"the front has {count} points, but {len(front)} plans are given")
    proved, reasons = _texts(data, "proved"), _texts(data, "reasons")
    if data.get("is_exact") is True:
        proved = proved or ("as searched",)
    elif not reasons:
        reasons = (UNSTATED,)
    is_complete = data.get("is_complete") is not False
    return ParetoFront(front.objectives, front.costs, is_complete, proved, reasons)


def _texts(data: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = data.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise WeftError(f"{key} of the front is not a list of texts: {texts!r}")
    return tuple(texts)


def _read(place: str) -> Iterator[tuple[str, Any]]:
    """Yield the contents of a path or an address, each with its kind."""
    path = Path(place)
    if "://" in place or (path / "zarr.json").is_file():
        yield "store", place
    elif path.is_dir():
        # The plans that a search wrote, in order; or a run and its plan.
        files = sorted(path.glob("plan-*.json"), key=lambda file: (len(file.name), file.name))
        files = files or [f for f in (path / "plan.json", path / "run.json") if f.is_file()]
        if not files:
            raise WeftError(f"{path} has no plans, no run and no Zarr v3 array")
        for file in files:
            yield from _json(file)
    else:
        yield from _json(path)


def _json(path: Path) -> Iterable[tuple[str, Any]]:
    text = read_text(path)
    try:
        data = parse_json(text, str(path)).value
    except WeftError as error:
        error.add_note(f"while reading {path}")
        raise
    keys = set(data) if isinstance(data, dict) else set()
    if "weft_plan" in keys:
        return [("plan", read_plan(path))]
    if "weft_run" in keys:
        return [("run", read_run(path))]
    if {"objectives", "points"} <= keys:
        return [("front", data)]
    if {"slots", "layers"} <= keys:
        return [("ckks", text)]
    raise WeftError(
        f"{path} is not a plan, run, front or ciphertext plan",
        hint="`weft plan -o`, `weft run`, `weft search -o`, `weft ckks plan --json` write them",
    )
