"""`weft show`: a mesh, an array sharded on it, or a run on a grid, as a picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.runs import show_run
from weft.draw import draw, say, show, to_svg, to_text
from weft.errors import WeftError
from weft.layout import DeviceMesh, ShardingSpec
from weft.text import Scanner
from weft.text.shardy import write_symbol

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft show '@m = <["dp"=2, "tp"=4]>'
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>'
  weft show '@m = <["dp"=2, "tp"=4]>' '<@m, [{"dp"}, {"tp"}]>' -o sharding.svg
  weft show run.json
  weft show run.json -o timeline.svg
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "show",
        help="draw a mesh, an array sharded on it, or a run on a grid",
        description="Draw a mesh, an array sharded on it, or a run on a grid, in the terminal or "
        "to a file.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mesh", help="""a mesh: '@m = <["x"=2, "y"=4]>'; or a run.json""")
    parser.add_argument(
        "shape", nargs="?", help="the shape of an array: 8x16; without it, the blocks are drawn"
    )
    parser.add_argument("sharding", nargs="?", help="""a sharding: '<@m, [{"x"}, {"y"}]>'""")
    parser.add_argument("-o", "--output", type=Path, help="write to this .svg or .txt file")
    parser.add_argument("--svg", action="store_true", help="print the timeline of a run as SVG")
    parser.add_argument("--json", action="store_true", help="print what a run took as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Draw what the arguments describe."""
    if args.mesh.endswith(".json"):
        show_run(_alone(args))
        return
    if args.svg or args.json:
        raise WeftError("--svg and --json are for a run.json; a picture has -o picture.svg")
    mesh, shape, sharding = DeviceMesh.parse(args.mesh), args.shape, args.sharding
    if sharding is None and shape is not None and "<" in shape:
        shape, sharding = None, shape
    drawing = draw(mesh)
    if sharding is not None:
        spec = ShardingSpec.parse(sharding, mesh)
        drawing = draw(spec) if shape is None else draw(spec, read_shape(shape))
    elif shape is not None:
        raise WeftError(
            f"shape {shape} is given without a sharding",
            hint=f"add one: '<{write_symbol(mesh.name)}, [...]>'",
        )
    if args.output is None:
        show(drawing)
        return
    render = {".svg": to_svg, ".txt": to_text}.get(args.output.suffix)
    if render is None:
        raise WeftError(f"cannot write {args.output}: its name ends in neither .svg nor .txt")
    args.output.write_text(render(drawing) + "\n", encoding="utf-8")
    say(f"wrote {args.output}", sys.stdout)


def _alone(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a run, which has neither shape nor sharding."""
    if args.shape is not None:
        raise WeftError(f"{args.mesh} is a run: it has no shape or sharding {args.shape}")
    if args.svg and args.json:
        raise WeftError("--svg and --json cannot both be printed", hint="--json -o timeline.svg")
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
