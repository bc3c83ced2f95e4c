"""`weft search`: the plans worth choosing from, as a table, a plot and files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import check_folder, print_json, read_text
from weft.cli.plan import MACHINE
from weft.cli.stored import add_storage_to, describe_storage, read_storage
from weft.draw import say, to_svg
from weft.lang.serial import from_json
from weft.layout import DeviceMesh
from weft.plan import ParetoFront, search
from weft.plan.machines import find_machine
from weft.plan.searching.front import OBJECTIVES
from weft.plan.searching.search import ENGINES

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft search graph.json '@m = <["dp"=2, "tp"=4]>' --machine h200
  weft search graph.json '@m = <["x"=8]>' --objectives time -o plans
  weft search graph.json '@m = <["x"=8]>' --machine cluster.toml --plot front.svg
  weft search graph.json '@m = <["x"=8]>' --storage x=64,512 y=auto
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "search",
        help="search the plans of a graph: the fastest, the smallest, and what is between",
        description="Search placements, rewrites and fusion of a graph on a mesh and a machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", type=Path, help="a graph's JSON, as weft.lang.serial writes it")
    parser.add_argument("mesh", help="the mesh, in Shardy's notation")
    parser.add_argument("--machine", help=f"what it runs on: {MACHINE}")
    parser.add_argument(
        "--objectives",
        nargs="+",
        default=list(OBJECTIVES),
        metavar="NAME",
        help=f"what is to be small: {', '.join(OBJECTIVES)}",
    )
    parser.add_argument("--budget", type=int, default=3000, help="plans that may be looked at")
    parser.add_argument("--seed", type=int, default=0, help="the same seed finds the same front")
    parser.add_argument("--engine", default="auto", help=", ".join(ENGINES))
    add_storage_to(parser)
    parser.add_argument("-o", "--output", type=Path, help="write every plan into this folder")
    parser.add_argument("--plot", type=Path, help="write the plot to this SVG file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Search, print the front, and write what is asked for."""
    check_folder(args.output)
    check_folder(args.plot)
    graph = from_json(read_text(args.graph))
    front = search(
        graph,
        DeviceMesh.parse(args.mesh),
        find_machine(args.machine) if args.machine else None,
        args.objectives,
        args.budget,
        args.seed,
        engine=args.engine,
        storage=read_storage(args.storage, graph),
    )
    if args.json:
        print_json(describe(front))
    else:
        say(str(front), sys.stdout)
    told = sys.stderr if args.json else sys.stdout
    if args.output is not None:
        args.output.mkdir(exist_ok=True)
        for number, plan in enumerate(front):
            path = args.output / f"plan-{number}.json"
            path.write_text(plan.to_json() + "\n", encoding="utf-8")
        say(f"wrote {len(front)} plans into {args.output}", told)
    if args.plot is not None:
        args.plot.write_text(to_svg(front.drawing()), encoding="utf-8")
        say(f"wrote {args.plot}", told)


def describe(front: ParetoFront) -> dict[str, Any]:
    """A front as plain data."""
    return {
        "objectives": list(front.objectives),
        "points": [list(point) for point in front.points],
        "is_exact": front.is_exact,
        "is_complete": front.is_complete,
        "items": [list(map(asdict, cost.items)) for cost in front.costs],
        "storage": [describe_storage(cost.storage) for cost in front.costs],
    }
