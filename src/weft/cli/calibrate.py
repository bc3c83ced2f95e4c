"""`weft calibrate`: estimate a machine by measuring this host, or from the record of a run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from weft.cli.files import check_file, print_json, read_run
from weft.cli.parser import Commands
from weft.draw import say
from weft.errors import WeftError
from weft.plan import Machine
from weft.plan.machines import host_name, memory
from weft.values import scaled

MOST_CELLS = 1024
MEASURED = ("memory_bandwidth", "capacity", "links")
EXAMPLES = """\
examples:
  weft calibrate -o host.toml
  weft calibrate --quick --cells 4
  weft calibrate --from run.json -o cluster.toml
  weft search graph.json --machine cluster.toml
"""


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="measure this host as a machine, or estimate one from a run",
        description="Measure what a cell of this host reaches while all cells are busy: operations "
        "per second by dtype, memory bandwidth, and transfers between two workers of a process. "
        "Or estimate a machine from the record of a run on a cluster.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        help="estimate the machine from this run.json instead of measuring",
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="write the machine to this file, TOML or .json"
    )
    parser.add_argument(
        "--cells", type=int, help="number of cells that share this host (default: one per core)"
    )
    parser.add_argument("--quick", action="store_true", help="take a second, with less precision")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure or estimate a machine, print it, and write it if requested."""
    check_file(args.output)
    if args.source is not None:
        _calibrate_from_run(args)
        return
    cells = os.cpu_count() or 1 if args.cells is None else args.cells
    if not 1 <= cells <= MOST_CELLS:
        raise WeftError(f"--cells {cells}: expected 1 to {MOST_CELLS}")
    machine, alone = measure(cells, quick=args.quick)
    if args.json:
        print_json({**machine.to_data(), "one_thread_memory_bandwidth": alone})
    else:
        say(f"{machine}\none thread alone copies {scaled(alone, 'B')}/s", sys.stdout)
    if args.output is not None:
        machine.save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def measure(cells: int, quick: bool = False) -> tuple[Machine, float]:
    """Return this host as a machine of `cells`, and the memory bandwidth of a single thread."""
    try:
        from weft.cli import measure as tools
    except ImportError as error:
        raise WeftError(
            f"this host cannot be measured: {error}", hint="pip install 'weft[run]'"
        ) from None
    effort = tools.QUICK if quick else tools.FULL
    flops = {}
    for dtype in tools.DTYPES:
        _log(f"multiplying {dtype}")
        flops[dtype] = tools.flops(dtype, cells, effort)
    _log("copying memory")
    alone, shared = tools.copying(1, effort), tools.copying(cells, effort)
    _log("exchanging boxes")
    latency, bandwidth = tools.exchange(effort)
    machine = Machine(
        latency=latency,
        bandwidth=bandwidth,
        shared=True,
        flops=flops,
        memory_bandwidth=shared,
        capacity=memory() / cells,
        name=host_name(cells),
        measured=dict.fromkeys([*(f"flops.{dtype}" for dtype in flops), *MEASURED], 1),
    )
    return machine, alone


def _log(what: str) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)


def _calibrate_from_run(args: argparse.Namespace) -> None:
    if args.cells is not None or args.quick:
        raise WeftError("--cells and --quick measure this host; --from does not")
    record = read_run(args.source)
    from weft.runtime.cluster.metrics.calibration import calibrate

    calibration = calibrate(record)
    if args.json:
        print_json({**calibration.machine.to_data(), "tasks": dict(calibration.tasks)})
    else:
        say(str(calibration.machine), sys.stdout)
    if args.output is not None:
        calibration.machine.save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)
