"""`weft calibrate`: this host as a machine, measured in a few seconds, or a run on a grid."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import check_file, print_json
from weft.cli.runs import calibrate_run
from weft.draw import say
from weft.errors import WeftError
from weft.plan import Machine
from weft.plan.machines import host_name, memory

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from weft.cli.measure import Effort

MOST_CELLS = 1024
EXAMPLES = """\
examples:
  weft calibrate -o host.toml
  weft calibrate --quick --cells 4
  weft calibrate --from run.json -o cluster.toml
  weft plan graph.json --machine host.toml
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="measure this host, and write it down as a machine",
        description="Measure what a cell of this host gets while all of them are busy: operations "
        "by dtype, memory bandwidth, and what two workers of one process send to each other. "
        "Or take it from the record of a run on a grid.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--from", dest="source", type=Path, help="a run.json: measure nothing, take it from there"
    )
    parser.add_argument("-o", "--output", type=Path, help="write the machine to this TOML file")
    parser.add_argument(
        "--cells", type=int, help="how many cells share this host (one for each core)"
    )
    parser.add_argument("--quick", action="store_true", help="in a second, less exactly")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure, print, and write where that is asked for."""
    check_file(args.output)
    if args.source is not None:
        calibrate_run(args)
        return
    cells = os.cpu_count() or 1 if args.cells is None else args.cells
    if not 1 <= cells <= MOST_CELLS:
        raise WeftError(f"{cells} cells cannot share this host: from 1 to {MOST_CELLS} can")
    machine, alone = measure(cells, quick=args.quick)
    if args.json:
        print_json({**machine.to_data(), "one_thread_memory_bandwidth": alone})
    else:
        say(table(machine, alone), sys.stdout)
    if args.output is not None:
        machine.save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def measure(cells: int, quick: bool = False) -> tuple[Machine, float]:
    """This host as so many cells see it, and the memory bandwidth of one thread alone."""
    tools = _tools()
    effort: Effort = tools.QUICK if quick else tools.FULL
    flops = {}
    for dtype in tools.DTYPES:
        _tell(f"multiplying {dtype}")
        flops[dtype] = tools.flops(dtype, cells, effort)
    _tell("copying memory")
    alone, shared = tools.copying(1, effort), tools.copying(cells, effort)
    _tell("exchanging boxes")
    latency, bandwidth = tools.exchange(effort)
    machine = Machine(
        latency=latency,
        bandwidth=bandwidth,
        shared=True,
        flops=flops,
        memory_bandwidth=shared,
        capacity=memory() / cells,
        name=host_name(cells),
    )
    return machine, alone


def table(machine: Machine, alone: float) -> str:
    """What was measured, a line each."""
    rows = [(f"{dtype}", f"{rate / 1e9:.3g} Gflop/s") for dtype, rate in machine.flops.items()]
    rows += [
        ("memory", f"{machine.memory_bandwidth / 1e9:.3g} GB/s"),
        ("memory, one thread alone", f"{alone / 1e9:.3g} GB/s"),
        ("capacity", f"{machine.capacity / 1e9:.3g} GB"),
        ("latency between cells", f"{machine.latency * 1e6:.3g} us"),
        ("bandwidth, all cells together", f"{machine.bandwidth / 1e9:.3g} GB/s"),
    ]
    wide = max(len(name) for name, _ in rows)
    lines = [f"{name:{wide}}  {value}" for name, value in rows]
    return "\n".join([f"{machine.name}; for each:", *lines])


def _tell(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


def _tools() -> Any:
    try:
        return import_module("weft.cli.measure")
    except ImportError as error:
        raise WeftError(
            f"this host cannot be measured: {error}", hint="pip install 'weft[run]'"
        ) from None
