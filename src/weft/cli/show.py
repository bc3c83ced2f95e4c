"""`weft show`: a mesh, an array sharded on it, a graph, a plan or a run, as a picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.cli.diff import read_plan
from weft.cli.files import check_file, kind_of, print_json
from weft.cli.graphs import MESH, read_mesh
from weft.cli.models import read_model
from weft.cli.plan import describe
from weft.cli.runs import show_run
from weft.draw import Drawing, draw, say, show, to_svg, to_text
from weft.errors import WeftError
from weft.lang.field import MOST, parse_json, read_text
from weft.lang.serial import to_json
from weft.layout import DeviceMesh, ShardingSpec
from weft.layout.shardy_text import Scanner, write_symbol
from weft.plan import estimate

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Data: TypeAlias = dict[str, Any] | Callable[[], dict[str, Any]]

EXAMPLES = """\
examples:
  weft show '@m = <["dp"=2, "tp"=4]>'
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>'
  weft show '@m = <["dp"=2, "tp"=4]>' '<@m, [{"dp"}, {"tp"}]>' -o sharding.svg
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>' --json
  weft show plan.json
  weft show run.json -o timeline.svg
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "show",
        help="draw a mesh, an array sharded on it, a graph, a plan or a run",
        description="Draw a mesh, an array sharded on it, or what a file holds: a graph, a plan, "
        "a run on a grid; in the terminal or to a file.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mesh", help=f"{MESH}; or the JSON of a graph, a plan or a run")
    parser.add_argument(
        "shape", nargs="?", help="the shape of an array: 8x16; without it, the blocks are drawn"
    )
    parser.add_argument("sharding", nargs="?", help="""a sharding: '<@m, [{"x"}, {"y"}]>'""")
    parser.add_argument("-o", "--output", type=Path, help="write to this .svg or .txt file")
    parser.add_argument("--svg", action="store_true", help="print SVG")
    parser.add_argument("--json", action="store_true", help="print what is shown as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Draw what the arguments describe."""
    check_file(args.output)
    if args.output is not None and args.output.suffix not in _RENDER:
        raise WeftError(
            f"cannot write {args.output}: its name ends in neither .svg nor .txt",
            hint=f"-o {args.output.with_suffix('.svg')}",
        )
    if args.svg and args.json:
        raise WeftError("--svg and --json cannot both be printed", hint="--json -o picture.svg")
    if args.mesh.endswith(".json") or Path(args.mesh).is_file():
        _show_file(_alone(args))
    else:
        _show_mesh(args)


def _show_file(args: argparse.Namespace) -> None:
    path = Path(args.mesh)
    text = read_text(path)
    match kind_of(text):
        case "graph":
            graph = read_model(args.mesh)
            _give(args, draw(graph), json.loads(to_json(graph)))
        case "plan":
            plan = read_plan(path)
            _give(args, draw(plan), lambda: describe(plan, estimate(plan)))
        case "run":
            show_run(args)
        case _:
            parse_json(text, str(path))
            raise WeftError(
                f"{path} is no graph, no plan and no run",
                hint="one has a field that says so, with its version: weft, weft_plan or weft_run",
            )


def _show_mesh(args: argparse.Namespace) -> None:
    if not args.mesh.lstrip().startswith("@"):
        raise WeftError(f"{args.mesh!r} is neither a mesh nor a file", hint=MESH)
    mesh, shape, sharding = read_mesh(args.mesh), args.shape, args.sharding
    if sharding is None and shape is not None and "<" in shape:
        shape, sharding = None, shape
    if sharding is None and shape is not None:
        raise WeftError(
            f"shape {shape} is given without a sharding",
            hint=f"add one: '<{write_symbol(mesh.name)}, [...]>'",
        )
    if sharding is None:
        _give(args, draw(mesh), lambda: _mesh_data(mesh))
        return
    spec = ShardingSpec.parse(sharding, mesh)
    sizes = None if shape is None else read_shape(shape)
    drawing = draw(spec) if sizes is None else draw(spec, sizes)
    _give(args, drawing, lambda: _sharding_data(spec, sizes))


_RENDER = {".svg": to_svg, ".txt": to_text}


def _give(args: argparse.Namespace, drawing: Drawing, data: Data) -> None:
    """Print or write it, in the form that is asked for."""
    if args.json:
        print_json(data() if callable(data) else data)
    elif args.svg:
        say(to_svg(drawing), sys.stdout)
    elif args.output is None:
        show(drawing)
    if args.output is not None:
        text = _RENDER[args.output.suffix](drawing)
        args.output.write_text(text + "\n", encoding="utf-8")
        say(f"wrote {args.output}", sys.stderr if args.json or args.svg else sys.stdout)


def _mesh_data(mesh: DeviceMesh) -> dict[str, Any]:
    return {
        "mesh": str(mesh),
        "axes": dict(zip(mesh.axis_names, mesh.shape)),
        "cells": mesh.size,
    }


def _sharding_data(spec: ShardingSpec, shape: tuple[int, ...] | None) -> dict[str, Any]:
    """How an array lies: the box of every cell, in the order of the cells."""
    data = {**_mesh_data(spec.mesh), "sharding": str(spec)}
    if shape is None:
        return data
    if spec.mesh.size > MOST:
        raise WeftError(f"{spec.mesh} has {spec.mesh.size} cells; at most {MOST} are listed")
    boxes = [spec.region(shape, cell) for cell in range(spec.mesh.size)]
    return {
        **data,
        "shape": list(shape),
        "shard": list(spec.shard_shape(shape)),
        "boxes": [{"start": list(box.start), "stop": list(box.stop)} for box in boxes],
    }


def _alone(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a file, which has neither shape nor sharding."""
    if args.shape is not None:
        raise WeftError(
            f"{args.mesh} is a file: it has no shape or sharding {args.shape}",
            hint=f"weft show {args.mesh}",
        )
    return args


def read_shape(text: str) -> tuple[int, ...]:
    """Read a shape: sizes with `x` or commas between them, brackets or not; `[]` is a scalar.

    >>> read_shape("8x16"), read_shape("[8, 16]"), read_shape("[]")
    ((8, 16), (8, 16), ())
    """
    scan = Scanner(text)
    bracket = scan.accept("[")
    sizes: list[int] = []
    while not (scan.starts("]") if bracket else scan.done):
        if sizes and not (scan.accept("x") or scan.accept(",")):
            scan.fail(f"expected 'x' or ',', found {scan.found}")
        sizes.append(scan.integer())
    if bracket:
        scan.expect("]")
    scan.finish()
    return tuple(sizes)
