"""`weft propagate`: the shardings that follow for every value of a program, and why."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from weft.cli.files import print_json
from weft.cli.graphs import add_graph_to, add_strategy_to, find_value, read_graph
from weft.cli.plan import add_machine_to
from weft.draw import say
from weft.plan import propagate
from weft.plan.machines import find_machine
from weft.plan.propagation.propagate import Propagation

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft propagate graph.json
  weft propagate graph.json --explain w
  weft propagate graph.json --mesh '@m = <["x"=4]>' --shard x='<@m, [{"x"}, {}]>'
  weft propagate graph.json --strategy cost --machine h200 --json
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "propagate",
        help="the shardings that follow for every value, and why",
        description="Take the shardings that are written on a few values of a program to all of "
        "them, and print what follows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_graph_to(parser)
    parser.add_argument(
        "--explain",
        action="append",
        default=[],
        metavar="NAME",
        help="say why this value lies as it does; as often as needed",
    )
    add_strategy_to(parser)
    add_machine_to(parser, "what --strategy cost counts on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Propagate, and print what follows, or why."""
    machine = find_machine(args.machine) if args.machine else None
    graph = read_graph(args)
    for name in args.explain:
        find_value(name, graph)
    found = propagate(graph, args.strategy, machine)
    if args.json:
        print_json(describe(found, args.explain))
    elif args.explain:
        say("\n\n".join("\n".join(reasons(found, name)) for name in args.explain), sys.stdout)
    else:
        say(table(found), sys.stdout)


def table(found: Propagation) -> str:
    """A line for each value: its shape, its sharding, and where that is from."""
    values, graph = found.graph.all_values, found.graph
    rows = [
        (str(values[name]), str(spec), _origin(found, name)) for name, spec in found.specs.items()
    ]
    rows += [
        (f"output {number}: {graph.outputs[number]}", str(found.output_specs[number]), "as written")
        for number in graph.output_shardings
    ]
    wide = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
    lines = [f"{one:{wide[0]}}  {two:{wide[1]}}  {more}".rstrip() for one, two, more in rows]
    if found.settled is not None:
        lines.append(str(found.settled))
    if not graph.meshes:
        lines.append("the graph has no mesh, so nothing is cut: --mesh adds one")
    return "\n".join(["; ".join(map(str, found.meshes)), *lines])


def _origin(found: Propagation, name: str) -> str:
    """Whether a person wrote it, and over which axes it is left partial."""
    words = ["as written"] if name in found.graph.shardings else []
    parts = found.partials.get(name, {})
    words += [f'partial over "{axis}" by {monoid}' for axis, monoid in parts.items()]
    return ", ".join(words)


def reasons(found: Propagation, name: str) -> list[str]:
    """Why a value lies as it does, dimension by dimension."""
    spec = found.specs[name]
    lines = [f"{found.graph.all_values[name]}  {spec}"]
    for dim in range(spec.ndim):
        lines += [f"  {line}" for line in found.explain(name, dim)]
    return lines


def describe(found: Propagation, explained: list[str]) -> dict[str, Any]:
    """What was found, as plain data."""
    return {
        "meshes": list(map(str, found.meshes)),
        "values": {
            name: {
                "dtype": found.graph.all_values[name].dtype,
                "shape": list(found.graph.all_values[name].shape),
                "sharding": str(spec),
                "written": name in found.graph.shardings,
                "partial": {str(a): m for a, m in found.partials.get(name, {}).items()},
            }
            for name, spec in found.specs.items()
        },
        "outputs": list(map(str, found.output_specs)),
        "placements": [
            {
                "operator": application.operator,
                "results": list(application.results),
                "cuts": {dim: list(map(str, axes)) for dim, axes in placed.items() if axes},
            }
            for application, placed in zip(found.graph.applications, found.placements)
        ],
        "explained": {
            name: [found.explain(name, dim) for dim in range(found.specs[name].ndim)]
            for name in explained
        },
    }
