"""Programs on the command line: a graph's JSON or a function, with meshes and shardings added."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import get_args

from weft.cli.models import MODELS, read_model
from weft.cli.parser import meant, suggest
from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.graph import located
from weft.lang.serial import from_json, to_json
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.propagation.propagate import ShardyStrategy

MESH = """a mesh in Shardy's notation: '@m = <["x"=2, "y"=4]>'"""
SHARD = """a sharding to begin with: x='<@m, [{"x"}, {}]>'; as often as needed"""
STRATEGY = "how conflicts are settled; cost takes the plan that moves the fewest bytes"


def add_graph_to(parser: argparse.ArgumentParser) -> None:
    """Add the program, the meshes that it gets, and the shardings to begin with."""
    parser.add_argument("graph", help=MODELS)
    add = parser.add_argument
    suggest(add("--mesh", action="append", default=[], help=f"add {MESH}"), files=False)
    shard = add("--shard", action="append", default=[], metavar="NAME=SHARDING", help=SHARD)
    suggest(shard, files=False)


def add_strategy_to(parser: argparse.ArgumentParser) -> None:
    """Add how conflicts are settled."""
    words = (*get_args(ShardyStrategy), "cost")
    parser.add_argument("--strategy", choices=words, default="user_priority", help=STRATEGY)


def read_graph(args: argparse.Namespace) -> Graph:
    """The program, with the meshes and the shardings that are given beside it."""
    graph = read_model(args.graph)
    if not args.mesh and not args.shard:
        return graph
    data = json.loads(to_json(graph))
    with located("--mesh"):
        meshes = {mesh.name: mesh for mesh in map(read_mesh, [*graph.meshes, *args.mesh])}
    data["meshes"] = list(map(str, meshes.values()))
    given = dict(_shard(text, graph, list(meshes.values())) for text in args.shard)
    data["shardings"] = {**data.get("shardings", {}), **given}
    return from_json(json.dumps(data), graph.operators)


def read_mesh(text: str) -> DeviceMesh:
    """A mesh from its text; what is refused is said with how one is written."""
    try:
        return DeviceMesh.parse(text)
    except WeftError as error:
        error.add_note(f"hint: {MESH}")
        raise


def _shard(text: str, graph: Graph, meshes: Sequence[DeviceMesh]) -> tuple[str, str]:
    name, equals, sharding = text.partition("=")
    if not equals:
        raise WeftError(f"--shard {text}: it is NAME=SHARDING", hint=SHARD)
    find_value(name, graph)
    if not meshes:
        raise WeftError(f"--shard {text}: the graph has no mesh", hint=f"--mesh is {MESH}")
    with located(f"--shard {name}"):
        return name, str(ShardingSpec.parse(sharding, meshes))


def find_value(name: str, graph: Graph) -> None:
    """Refuse a value that a graph does not have."""
    known = list(graph.all_values)
    if name not in known:
        more = " ..." if len(known) > 6 else ""
        there = f"there are {', '.join(known[:6])}{more}" if known else "it has none"
        raise WeftError(f"the graph has no value {name}", hint=meant(name, known) or there)
