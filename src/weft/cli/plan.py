"""`weft plan`: a graph, propagated and planned; its table and what it takes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import check_file, print_json
from weft.cli.graphs import add_graph_to, add_strategy_to, read_graph
from weft.cli.parser import suggest
from weft.cli.stored import add_storage_to, describe_storage, read_storage
from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import MOST
from weft.plan import Cost, Plan, estimate, propagate
from weft.plan.machines import PRESETS, find_machine

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft plan graph.json
  weft plan graph.json --machine h200 -o plan.json
  weft plan graph.json --strategy cost
  weft plan graph.json --mesh '@m = <["x"=4]>' --shard x='<@m, [{"x"}, {}]>'
  weft plan graph.json --machine machine.toml --json
  weft plan graph.json --storage x=64,512/512,512 y=auto
"""
MACHINE = f"a machine's TOML file, or one of {', '.join([*PRESETS, 'host'])}"


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="plan a graph: where it computes, what moves, what it takes",
        description="Propagate the shardings of a graph, plan it, and print what it takes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_to(parser)
    add_machine_to(parser)
    add_strategy_to(parser)
    add_storage_to(parser)
    parser.add_argument("-o", "--output", type=Path, help="write the plan to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_machine_to(parser: argparse.ArgumentParser, told: str = "what it runs on") -> None:
    """Add the machine: a preset or a file."""
    suggest(parser.add_argument("--machine", help=f"{told}: {MACHINE}"), *PRESETS, "host")


def run(args: argparse.Namespace) -> None:
    """Plan the graph, print it, and write it where that is asked for."""
    check_file(args.output)
    machine = find_machine(args.machine) if args.machine else None
    found = propagate(read_graph(args), args.strategy, machine)
    if found.mesh.size > MOST:
        raise WeftError(f"{found.mesh} has {found.mesh.size} cells; at most {MOST} are planned")
    plan = Plan.of(found, machine)
    cost = estimate(plan, storage=read_storage(args.storage, plan.graph))
    if args.json:
        print_json(describe(plan, cost))
    else:
        say(f"{plan}\n\n{cost}", sys.stdout)
    if args.output is not None:
        args.output.write_text(plan.to_json() + "\n", encoding="utf-8")
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def describe(plan: Plan, cost: Cost) -> dict[str, Any]:
    """A plan and what it takes, as plain data."""
    return {
        "mesh": str(plan.mesh),
        "machine": cost.machine.name,
        "specs": {name: str(spec) for name, spec in plan.specs.items()},
        "outputs": list(map(str, plan.outputs)),
        "applications": [
            {
                "operator": application.operator,
                "results": list(application.results),
                "cuts": {d: list(map(str, axes)) for d, axes in placed.placement.items() if axes},
            }
            for application, placed in zip(plan.graph.applications, plan.placed)
        ],
        "items": list(map(asdict, cost.items)),
        "received": list(cost.received_by_cell),
        "loaded": cost.loaded,
        "stored": cost.stored,
        "amplification": cost.amplification,
        "storage": describe_storage(cost.storage),
        "by_axis": cost.by_axis,
        "assumed": list(cost.assumed),
        "peak": list(cost.peak),
        "fits": cost.fits,
        "flops": cost.flops,
        "compute": cost.compute,
        "communicate": cost.communicate,
        "seconds": cost.seconds,
    }
