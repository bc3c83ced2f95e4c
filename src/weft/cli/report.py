"""`weft report`: plans, runs, ciphertext plans and stores, as one page to look at."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import check_folder
from weft.cli.plan import MACHINE
from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import parse_json, read_text
from weft.plan import Plan
from weft.plan.machines import find_machine

if TYPE_CHECKING:
    from argparse import _SubParsersAction

UNSTATED = "the file does not say what was searched"

EXAMPLES = """\
examples:
  weft report plan.json -o report.html
  weft report plan.json plan.run/run.json -o report.html
  weft report plans/ --machine h200 -o front.html
  weft report ckks.json out.zarr --title "what came of it" -o report.html
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "report",
        help="plans, runs and stores as one HTML page to look at",
        description="Write one page that needs nothing else: the graph of a plan, what moves and "
        "why; several plans as a front; a run beside its prediction; ciphertexts; a store.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="plans' JSON, or a folder of them; a run's record; what `weft search --json` or "
        "`weft ckks plan --json` printed; a Zarr array",
    )
    add("-o", "--output", type=Path, default=Path("report.html"), help="the page (report.html)")
    add("--title", default="", help="what stands on top of it")
    add("--machine", help=f"price the plans on it: {MACHINE}")
    add("--import", action="append", default=[], dest="modules", help="a module with operators")
    add("--json", action="store_true", help="print what the page is made of, and write none")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Read everything, write the page, and say where it is."""
    check_folder(args.output)
    for module in args.modules:
        _imported(module)
    report: Any = import_module("weft.report")
    subject = _subject(args)
    if args.json:
        say(json.dumps(report.report_data(subject)), sys.stdout)
        return
    args.output.write_text(report.render(subject), encoding="utf-8")
    say(f"wrote {args.output}", sys.stdout)


def _imported(module: str) -> None:
    sys.path.insert(0, "")
    try:
        import_module(module)
    except ImportError as error:
        raise WeftError(f"cannot import {module}: {error}") from None
    finally:
        sys.path.remove("")


def _subject(args: argparse.Namespace) -> Any:
    """What all the files together are about."""
    data: Any = import_module("weft.report.data")
    found: dict[str, list[Any]] = {"plan": [], "run": [], "front": [], "ckks": [], "store": []}
    for place in args.files:
        for kind, thing in _read(place):
            found[kind].append(thing)
    for kind, name in (("run", "runs"), ("ckks", "ciphertext plans"), ("front", "fronts")):
        if len(found[kind]) > 1:
            raise WeftError(f"{len(found[kind])} {name} do not fit one page", hint="give one")
    if found["front"] and not found["plan"]:
        raise WeftError(
            "a front's JSON has the prices of plans, and not the plans",
            hint="give the folder that `weft search -o` wrote, too",
        )
    machine = find_machine(args.machine) if args.machine else None
    front = data.front_of(found["plan"], machine) if found["plan"] else None
    if found["front"]:
        front = _as_searched(front, found["front"][0])
    title = args.title or Path(args.files[0]).name
    run, ckks = (found[kind][0] if found[kind] else None for kind in ("run", "ckks"))
    return data.Subject(front, run, ckks, tuple(found["store"]), title)


def _as_searched(front: Any, said: dict[str, Any]) -> Any:
    """The front with what the search proved of it, and the reasons why not more."""
    points = said.get("points")
    if not isinstance(points, list) or len(points) != len(front):
        count = len(points) if isinstance(points, list) else 0
        raise WeftError(f"the front has {count} points, and {len(front)} plans are given")
    proved, reasons = _texts(said, "proved"), _texts(said, "reasons")
    if said.get("is_exact") is True:
        proved = proved or ("as searched",)
    elif not reasons:
        reasons = (UNSTATED,)
    kind: Any = type(front)
    is_complete = said.get("is_complete") is not False
    return kind(front.objectives, front.costs, is_complete, proved, reasons)


def _texts(said: dict[str, Any], key: str) -> tuple[str, ...]:
    found = said.get(key, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise WeftError(f"{key} of the front is not a list of texts: {found!r}")
    return tuple(found)


def _read(place: str) -> Iterator[tuple[str, Any]]:
    """What lies at a place, with the kind that it is."""
    path = Path(place)
    if "://" in place or (path / "zarr.json").is_file():
        yield "store", place
    elif path.is_dir():
        files = _plans(path)
        if not files:
            raise WeftError(f"{path} holds neither plans, a run nor a Zarr v3 array")
        for file in files:
            yield from _json(file)
    else:
        yield from _json(path)


def _plans(folder: Path) -> list[Path]:
    """The plans that a search wrote, as people count; or a run and its plan."""
    numbered = sorted(folder.glob("plan-*.json"), key=lambda file: (len(file.name), file.name))
    return numbered or [f for f in (folder / "plan.json", folder / "run.json") if f.is_file()]


def _json(path: Path) -> Iterable[tuple[str, Any]]:
    text = read_text(path)
    try:
        said = parse_json(text, str(path)).value
    except WeftError as error:
        error.add_note(f"while reading {path}")
        raise
    keys = set(said) if isinstance(said, dict) else set()
    try:
        if "weft_plan" in keys:
            return [("plan", Plan.from_json(text))]
        if "weft_run" in keys:
            return [("run", import_module("weft.runtime.cluster").RunRecord.from_json(text))]
    except WeftError as error:
        error.add_note(f"while reading {path}")
        raise
    if {"objectives", "points"} <= keys:
        return [("front", said)]
    if {"slots", "layers"} <= keys:
        return [("ckks", text)]
    raise WeftError(
        f"{path} is no plan, run, front or ciphertext plan",
        hint="`weft plan -o`, `weft run`, `weft search -o`, `weft ckks plan --json` write them",
    )
