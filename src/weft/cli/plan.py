"""`weft propagate`, `weft plan` and `weft diff`: shardings, plans, and what differs between two."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.cli.files import check_file, print_result, read_plan, say_written
from weft.cli.graphs import (
    add_graph_to,
    add_machine_to,
    add_storage_to,
    add_strategy_to,
    check_value,
    describe_storage,
    read_graph,
    read_machine,
    read_storage,
)
from weft.cli.parser import Commands, add_command, add_flag, add_list
from weft.errors import WeftError
from weft.lang.field import MOST
from weft.plan import Cost, Plan, estimate, propagate
from weft.plan.plan_diff import diff_plans
from weft.plan.propagation.propagate import Propagation

PROPAGATE_EXAMPLES = """\
examples:
  weft propagate graph.json
  weft propagate graph.json --explain w
  weft propagate graph.json --mesh '@m = <["x"=4]>' --shard x='<@m, [{"x"}, {}]>'
  weft propagate graph.json --strategy cost --machine h200 --json
"""
PLAN_EXAMPLES = """\
examples:
  weft plan graph.json
  weft plan graph.json --machine h200 -o plan.json
  weft plan graph.json --strategy cost
  weft plan graph.json --mesh '@m = <["x"=4]>' --shard x='<@m, [{"x"}, {}]>'
  weft plan graph.json --machine machine.toml --json
  weft plan graph.json --storage x=64,512/512,512 y=auto
"""
DIFF_EXAMPLES = """\
examples:
  weft diff one.json two.json
  weft diff one.json two.json --machine h200 --json
"""


def add_to(commands: Commands) -> None:
    """Add the subcommands."""
    summary = "propagate shardings from a few values to all, and explain them"
    about = (
        "Propagate the shardings given for a few values of a program to all of them, and print the "
        "result."
    )
    add = add_command(commands, "propagate", _run_propagate, summary, about, PROPAGATE_EXAMPLES)
    add_graph_to(add)
    add_list(
        add, "--explain", "explain the sharding of this value; may be repeated", metavar="NAME"
    )
    add_strategy_to(add)
    add_machine_to(add, "the machine for --strategy cost")
    add_flag(add, "--json", "print JSON")
    summary = "plan a graph: placements, transfers, bytes, memory, seconds"
    about = "Propagate the shardings of a graph, plan it, and print the plan and its cost."
    add = add_command(commands, "plan", _run_plan, summary, about, PLAN_EXAMPLES)
    add_graph_to(add)
    add_machine_to(add)
    add_strategy_to(add)
    add_storage_to(add)
    add("-o", "--output", type=Path, help="write the plan to this JSON file")
    add_flag(add, "--json", "print JSON")
    about = (
        "Compare two plans: the shardings of values, the placements of applications, and the "
        "bytes, memory and seconds of each."
    )
    add = add_command(commands, "diff", _run_diff, "compare two plans", about, DIFF_EXAMPLES)
    add("one", type=Path, help="a plan's JSON, as `weft plan -o` writes it")
    add("two", type=Path, help="another plan's JSON")
    add_machine_to(add, "the machine to price both on")
    add_flag(add, "--json", "print JSON")


# -- propagate ------------------------------------------------------------------------------------


def _run_propagate(args: argparse.Namespace) -> None:
    machine, graph = read_machine(args), read_graph(args)
    for name in args.explain:
        check_value(name, graph)
    propagation = propagate(graph, args.strategy, machine)
    reasons = ["\n".join(explain(propagation, name)) for name in args.explain]
    print_result(
        args,
        lambda: describe_propagation(propagation, args.explain),
        lambda: "\n\n".join(reasons) or propagation_table(propagation),
    )


def propagation_table(propagation: Propagation) -> str:
    """Return a line for each value: its shape, its sharding, and where that comes from."""
    values, graph = propagation.graph.all_values, propagation.graph
    rows = [
        (str(values[name]), str(spec), _origin(propagation, name))
        for name, spec in propagation.specs.items()
    ]
    rows += [
        (f"output {n}: {graph.outputs[n]}", str(propagation.output_specs[n]), "as given")
        for n in graph.output_shardings
    ]
    wide = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
    lines = [f"{one:{wide[0]}}  {two:{wide[1]}}  {more}".rstrip() for one, two, more in rows]
    if propagation.settled is not None:
        lines.append(str(propagation.settled))
    if not graph.meshes:
        lines.append("the graph has no mesh, so nothing is cut: --mesh adds one")
    return "\n".join(["; ".join(map(str, propagation.meshes)), *lines])


def _origin(propagation: Propagation, name: str) -> str:
    """Return whether the sharding of a value was given, and its partial axes."""
    words = ["as given"] if name in propagation.graph.shardings else []
    parts = propagation.partials.get(name, {})
    words += [f'partial over "{axis}" by {monoid}' for axis, monoid in parts.items()]
    return ", ".join(words)


def explain(propagation: Propagation, name: str) -> list[str]:
    """Return the reasons for the sharding of a value, dimension by dimension."""
    spec = propagation.specs[name]
    lines = [f"{propagation.graph.all_values[name]}  {spec}"]
    for dim in range(spec.ndim):
        lines += [f"  {line}" for line in propagation.explain(name, dim)]
    return lines


def describe_propagation(propagation: Propagation, explained: list[str]) -> dict[str, Any]:
    """Return a propagation as plain data."""
    values = propagation.graph.all_values
    return {
        "meshes": list(map(str, propagation.meshes)),
        "values": {
            name: {
                "dtype": values[name].dtype,
                "shape": list(values[name].shape),
                "sharding": str(spec),
                "written": name in propagation.graph.shardings,
                "partial": {str(a): m for a, m in propagation.partials.get(name, {}).items()},
            }
            for name, spec in propagation.specs.items()
        },
        "outputs": list(map(str, propagation.output_specs)),
        "placements": [
            {
                "operator": application.operator,
                "results": list(application.results),
                "cuts": {dim: list(map(str, axes)) for dim, axes in placed.items() if axes},
            }
            for application, placed in zip(propagation.graph.applications, propagation.placements)
        ],
        "explained": {
            name: [propagation.explain(name, dim) for dim in range(propagation.specs[name].ndim)]
            for name in explained
        },
    }


# -- plan -----------------------------------------------------------------------------------------


def _run_plan(args: argparse.Namespace) -> None:
    check_file(args.output)
    machine = read_machine(args)
    propagation = propagate(read_graph(args), args.strategy, machine)
    mesh = propagation.mesh
    if mesh.size > MOST:
        raise WeftError(f"{mesh} has {mesh.size} cells; at most {MOST} are planned")
    plan = Plan.of(propagation, machine)
    cost = estimate(plan, storage=read_storage(args.storage, plan.graph))
    print_result(args, lambda: describe_plan(plan, cost), lambda: f"{plan}\n\n{cost}")
    if args.output is not None:
        args.output.write_text(plan.to_json() + "\n", encoding="utf-8")
        say_written(args, args.output)


def describe_plan(plan: Plan, cost: Cost) -> dict[str, Any]:
    """Return a plan and its cost as plain data."""
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


# -- diff -----------------------------------------------------------------------------------------


def _run_diff(args: argparse.Namespace) -> None:
    difference = diff_plans(read_plan(args.one), read_plan(args.two), read_machine(args))
    print_result(args, difference.data, lambda: str(difference))
