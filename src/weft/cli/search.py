"""`weft search`: the Pareto front of plans, as a table, a plot and files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.cli.files import check_file, check_folder, print_result, say_written
from weft.cli.graphs import (
    MESH,
    MODELS,
    add_machine_to,
    add_sizes_to,
    add_storage_to,
    describe_storage,
    read_bound_model,
    read_machine,
    read_mesh,
    read_storage,
)
from weft.cli.parser import Commands, add_command, add_flag
from weft.draw import say, to_svg
from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import DeviceMesh
from weft.plan import ParetoFront, SearchInterrupted, search
from weft.plan.searching.pareto import OBJECTIVES
from weft.plan.searching.search import ENGINES

EXAMPLES = """\
examples:
  weft search graph.json --mesh '@m = <["dp"=2, "tp"=4]>' --machine h200
  weft search graph.json --mesh '@m = <["x"=8]>' --objectives time -o plans
  weft search graph.json --mesh '@m = <["x"=8]>' --machine cluster.toml --plot front.svg
  weft search graph.json --mesh '@m = <["x"=8]>' --storage x=64,512 y=auto
"""


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "search the plans of a graph: the fastest, the smallest, and those between"
    about = (
        "Search placements, rewrites and fusion of a graph on a mesh and a machine. Interrupted by "
        "Ctrl-C, it prints and writes the best front so far and exits with 130."
    )
    add = add_command(commands, "search", run, summary, about, EXAMPLES)
    add("graph", help=MODELS)
    add("mesh", nargs="?", help=f"{MESH} (default: the mesh of the graph)")
    add("--mesh", dest="named_mesh", metavar="MESH", help="the mesh, as an option")
    add_machine_to(add)
    every = {"nargs": "+", "default": list(OBJECTIVES), "metavar": "NAME"}
    text = f"what to minimise: {', '.join(OBJECTIVES)} (default: all of them)"
    add("--objectives", **every, help=text, words=OBJECTIVES, files=False)
    add("--budget", type=int, default=3000, help="maximum number of plans to evaluate (3000)")
    add("--seed", type=int, default=0, help="seed of the random search (0)")
    text = f"search algorithm: {', '.join(ENGINES)} (auto)"
    add("--engine", default="auto", help=text, words=ENGINES, files=False)
    add_sizes_to(add)
    add_storage_to(add)
    add("-o", "--output", type=Path, help="write every plan into this folder")
    add("--plot", type=Path, help="write the plot to this SVG file")
    add_flag(add, "--json", "print JSON")


def run(args: argparse.Namespace) -> None:
    """Search, print the front, and write the requested files."""
    check_folder(args.output)
    check_file(args.plot)
    if args.output is not None and args.output.is_file():
        raise WeftError(
            f"cannot write into {args.output}: it is a file", hint="give the name of a folder"
        )
    graph = read_bound_model(args)
    try:
        front = search(
            graph,
            _mesh(args, graph),
            read_machine(args),
            args.objectives,
            args.budget,
            args.seed,
            engine=args.engine,
            storage=read_storage(args.storage, graph),
        )
    except SearchInterrupted as error:
        if error.front is None:
            say("no plan was found before the interrupt", sys.stderr)
        else:
            _write(args, error.front)
        raise
    _write(args, front)


def _write(args: argparse.Namespace, front: ParetoFront) -> None:
    """Print the front, and write the requested files."""
    print_result(args, lambda: describe(front), lambda: str(front))
    sys.stdout.flush()
    if args.output is not None:
        args.output.mkdir(exist_ok=True)
        for number, plan in enumerate(front):
            path = args.output / f"plan-{number}.json"
            path.write_text(plan.to_json() + "\n", encoding="utf-8")
        say_written(args, f"{len(front)} plans into {args.output}")
    if args.plot is not None:
        args.plot.write_text(to_svg(front.drawing()), encoding="utf-8")
        say_written(args, args.plot)


def _mesh(args: argparse.Namespace, graph: Graph) -> DeviceMesh:
    """Return the mesh of the arguments, or the only mesh of the graph."""
    given = [text for text in (args.mesh, args.named_mesh) if text is not None]
    if len(given) == 2:
        raise WeftError(f"two meshes are given: {args.mesh} and {args.named_mesh}", hint="give one")
    meshes = given or list(graph.meshes)
    if len(meshes) != 1:
        message = "there is no mesh" if not meshes else f"the graph has {len(meshes)} meshes"
        raise WeftError(message, hint=f"--mesh is {MESH}")
    return read_mesh(meshes[0])


def describe(front: ParetoFront) -> dict[str, Any]:
    """Return a front as plain data."""
    return {
        "objectives": list(front.names),
        "points": [list(point) for point in front.points],
        "is_exact": front.is_exact,
        "is_complete": front.is_complete,
        "claim": front.claim,
        "proved": list(front.proved),
        "reasons": list(front.reasons),
        "items": [list(map(asdict, cost.items)) for cost in front.costs],
        "storage": [describe_storage(cost.storage) for cost in front.costs],
    }
