"""`weft show`: pictures of meshes, shardings, operators, graphs and plans; tables of runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.cli.files import check_file, kind_of, print_json, read_plan, read_run
from weft.cli.graphs import MESH, SHARDING, read_mesh, read_model, read_sharding
from weft.cli.parser import Commands
from weft.cli.plan import describe_plan
from weft.draw import Drawing, draw, say, show, to_svg, to_text
from weft.errors import WeftError
from weft.lang import OPERATORS, Signature
from weft.lang.attributes import names_of
from weft.lang.field import MOST, parse_json, read_text
from weft.lang.graph_json import to_json
from weft.lang.signature_picture import index_box, signature_for
from weft.layout import DeviceMesh, ShardingSpec
from weft.layout.shardy_text import Scanner, write_symbol
from weft.plan import estimate
from weft.space import ZRange
from weft.values import as_count

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord

Data: TypeAlias = dict[str, Any] | Callable[[], dict[str, Any]]

EXAMPLES = """\
examples:
  weft show '@m = <["dp"=2, "tp"=4]>'
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>'
  weft show '@m = <["dp"=2, "tp"=4]>' '<@m, [{"dp"}, {"tp"}]>' -o sharding.svg
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>' --json
  weft show matmul
  weft show softmax 8x16 --set dimension=1
  weft show 'm k, k n -> m n  sum: k' 8x16 16x32 --cell m=3,n=0
  weft show plan.json
  weft show run.json --trace trace.json
"""
WHAT = (
    f"{MESH}; an operator, or its line: 'm k, k n -> m n  sum: k'; the JSON of a graph, plan or run"
)
CELL = "the index box to draw, as a point along some index dimensions: m=3,n=0"
SET = "an attribute of an operator; a size or a number in its line"


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "show",
        help="draw a mesh, a sharded array, an operator, a graph or a plan; print a run",
        description="Draw a mesh, an array sharded on it, an operator with the boxes that it reads "
        "and writes, or the graph or plan of a file, in the terminal or to a file; print the table "
        "of a run, or export it as a Chrome trace.",
        epilog=EXAMPLES,
    )
    parser.add_argument("what", help=WHAT)
    parser.add_argument(
        "shapes",
        nargs="*",
        help=f"the shape of an array, and {SHARDING}; without it, blocks are drawn; or the shapes "
        "of an operator's operands: 8x16 16x32",
    )
    parser.add_argument("--cell", help=CELL)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET)
    parser.add_argument("-o", "--output", type=Path, help="write to this .svg or .txt file")
    parser.add_argument("--svg", action="store_true", help="print SVG")
    parser.add_argument(
        "--trace", type=Path, help="write a run as Chrome trace JSON, for ui.perfetto.dev"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Draw what the arguments describe."""
    check_file(args.output)
    check_file(args.trace)
    if args.output is not None and args.output.suffix not in _WRITERS:
        raise WeftError(
            f"cannot write {args.output}: its name must end in .svg or .txt",
            hint=f"-o {args.output.with_suffix('.svg')}",
        )
    if args.svg and args.json:
        raise WeftError("--svg and --json cannot both be printed", hint="--json -o picture.svg")
    is_file = args.what.endswith(".json") or Path(args.what).is_file()
    if is_file and args.shapes:
        raise WeftError(
            f"{args.what} is a file: it takes no shape or sharding {args.shapes[0]}",
            hint=f"weft show {args.what}",
        )
    is_operator = not is_file and ("->" in args.what or args.what in OPERATORS)
    if not is_operator and (args.cell or args.set):
        option = f"--cell {args.cell}" if args.cell else f"--set {args.set[0]}"
        raise WeftError(f"{option}: {args.what} is not an operator", hint="weft show matmul")
    if is_file:
        _show_file(args)
        return
    _refuse_trace(args)
    if is_operator:
        _show_operator(args)
    else:
        _show_mesh(args)


def _show_operator(args: argparse.Namespace) -> None:
    """Draw an operator or a line of index notation: an index box and its images."""
    shapes = [read_shape(text) for text in args.shapes]
    given = dict(_named_value("--set", text) for text in args.set)
    parts = (args.cell or "").split(",")
    cell = {
        name: as_count(value, f"--cell {name}")
        for name, value in (_named_value("--cell", text) for text in parts if text)
    }
    if "->" not in args.what:
        operator = OPERATORS[args.what]
        drawing = draw(operator, *shapes, cell=cell or None, **given)
        signature = signature_for(operator, shapes, given)
    else:
        dims, _ = names_of(args.what)
        sizes = {name: value for name, value in given.items() if name in dims}
        numbers = {name: value for name, value in given.items() if name not in dims}
        signature = Signature.of(args.what, shapes, sizes, numbers)
        drawing = draw(signature, cell=cell or None)
    _render(args, drawing, lambda: _signature_data(signature, cell))


def _named_value(option: str, text: str) -> tuple[str, Any]:
    """Return the name and the value of `NAME=VALUE`: numbers, integers with commas, or text.

    >>> _named_value("--set", "k=2"), _named_value("--set", "dimensions=0,1")
    (('k', 2), ('dimensions', (0, 1)))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise WeftError(f"{option} {text}: expected NAME=VALUE", hint=f"{option} {name or 'm'}=3")
    if "," in value:
        return name, tuple(
            _named_value(option, f"n={each}")[1] for each in value.split(",") if each
        )
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, found if isinstance(found, int | float) else value


def _signature_data(signature: Signature, cell: dict[str, int]) -> dict[str, Any]:
    """Return the line, the sizes, and the boxes of every array for one index box."""
    box = index_box(signature, cell or None)

    def arrays(shapes: Any, projections: Any) -> list[dict[str, Any]]:
        return [
            {"shape": list(shape), "box": _box_data(p.image(box))}
            for shape, p in zip(shapes, projections)
        ]

    return {
        "line": str(signature.notation),
        "sizes": dict(signature.sizes),
        "index": _box_data(box),
        "operands": arrays(signature.operand_shapes, signature.operands),
        "results": arrays(signature.result_shapes, signature.results),
    }


def _box_data(box: ZRange) -> dict[str, list[int]]:
    return {"start": list(box.start), "stop": list(box.stop)}


def _show_file(args: argparse.Namespace) -> None:
    path = Path(args.what)
    text = read_text(path)
    kind = kind_of(text)
    if kind != "run":
        _refuse_trace(args)
    match kind:
        case "graph":
            graph = read_model(args.what)
            _render(args, draw(graph), json.loads(to_json(graph)))
        case "plan":
            plan = read_plan(path)
            _render(args, draw(plan), lambda: describe_plan(plan, estimate(plan)))
        case "run":
            _show_run(args, read_run(path))
        case _:
            parse_json(text, str(path))
            raise WeftError(
                f"{path} is not a graph, a plan or a run",
                hint="these have a field with their version: weft, weft_plan or weft_run",
            )


def _refuse_trace(args: argparse.Namespace) -> None:
    if args.trace is not None:
        raise WeftError(f"--trace {args.trace}: only runs have traces", hint="weft show run.json")


def _show_run(args: argparse.Namespace, record: RunRecord) -> None:
    """Print or write the table of a run, or its data, and write its trace."""
    if args.svg or (args.output is not None and args.output.suffix == ".svg"):
        raise WeftError(
            "a run has no picture", hint=f"weft show {args.what} --trace trace.json, for Perfetto"
        )
    log = sys.stderr if args.json else sys.stdout
    if args.json:
        print_json(describe_run(record))
    elif args.output is None and args.trace is None:
        say(str(record), sys.stdout)
    if args.output is not None:
        args.output.write_text(f"{record}\n", encoding="utf-8")
        say(f"wrote {args.output}", log)
    if args.trace is not None:
        args.trace.write_text(record.to_trace(), encoding="utf-8")
        say(f"wrote {args.trace}", log)


def describe_run(record: RunRecord) -> dict[str, Any]:
    """Return the totals of a run as plain data."""
    totals = {"by_operator": record.by_operator, "by_worker": record.by_worker}
    return {
        "engine": record.engine,
        "workers": record.workers,
        "mesh": str(record.mesh),
        "seconds": record.seconds,
        "busy": record.busy,
        "overhead": record.overhead,
        "predicted": record.predicted,
        "bound": record.bound,
        "exact": record.is_exact,
        "again": len(record.again),
        "missing": record.missing,
        "total": record.total._asdict(),
        **{key: {name: one._asdict() for name, one in by.items()} for key, by in totals.items()},
    }


def _show_mesh(args: argparse.Namespace) -> None:
    if not args.what.lstrip().startswith("@"):
        raise WeftError(
            f"{args.what!r} is not a mesh or an operator, and there is no such file", hint=WHAT
        )
    if len(args.shapes) > 2:
        raise WeftError(f"expected a shape and a sharding, got {' '.join(args.shapes)}")
    mesh, (shape, sharding) = read_mesh(args.what), (*args.shapes, None, None)[:2]
    if sharding is None and shape is not None and "<" in shape:
        shape, sharding = None, shape
    if sharding is None and shape is not None:
        raise WeftError(
            f"shape {shape} is given without a sharding",
            hint=f"add one: '<{write_symbol(mesh.name)}, [...]>'",
        )
    if sharding is None:
        _render(args, draw(mesh), lambda: _mesh_data(mesh))
        return
    spec = read_sharding(sharding, mesh)
    sizes = None if shape is None else read_shape(shape)
    drawing = draw(spec) if sizes is None else draw(spec, sizes)
    _render(args, drawing, lambda: _sharding_data(spec, sizes))


_WRITERS = {".svg": to_svg, ".txt": to_text}


def _render(args: argparse.Namespace, drawing: Drawing, data: Data) -> None:
    """Print or write a drawing, in the requested form."""
    if args.json:
        print_json(data() if callable(data) else data)
    elif args.svg:
        say(to_svg(drawing), sys.stdout)
    elif args.output is None:
        show(drawing)
    if args.output is not None:
        text = _WRITERS[args.output.suffix](drawing)
        args.output.write_text(text + "\n", encoding="utf-8")
        say(f"wrote {args.output}", sys.stderr if args.json or args.svg else sys.stdout)


def _mesh_data(mesh: DeviceMesh) -> dict[str, Any]:
    return {
        "mesh": str(mesh),
        "axes": dict(zip(mesh.axis_names, mesh.shape)),
        "cells": mesh.size,
    }


def _sharding_data(spec: ShardingSpec, shape: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the box of every cell, in the order of the cells."""
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
        "boxes": list(map(_box_data, boxes)),
    }


def read_shape(text: str) -> tuple[int, ...]:
    """Parse a shape: sizes separated by `x` or commas, in brackets or not; `[]` is a scalar.

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
