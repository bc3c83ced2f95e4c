"""`weft calibrate`: estimate a machine by measuring this host, or from the record of a run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.files import check_file, print_json, read_run
from weft.cli.parser import Commands
from weft.draw import say
from weft.errors import WeftError
from weft.plan import Link, Machine
from weft.plan.machines import host_name, memory

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.calibration import Calibration

MOST_CELLS = 1024
EXAMPLES = """\
examples:
  weft calibrate -o host.toml
  weft calibrate --quick --cells 4
  weft calibrate --from run.json -o cluster.toml
  weft plan graph.json --machine host.toml
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
    parser.add_argument("-o", "--output", type=Path, help="write the machine to this TOML file")
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
        say(table(machine, alone), sys.stdout)
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
    )
    return machine, alone


def table(machine: Machine, alone: float) -> str:
    """Return the measured figures, one per line."""
    rows = [(f"{dtype}", f"{rate / 1e9:.3g} Gflop/s") for dtype, rate in machine.flops.items()]
    rows += [
        ("memory", f"{machine.memory_bandwidth / 1e9:.3g} GB/s"),
        ("memory, a single thread", f"{alone / 1e9:.3g} GB/s"),
        ("capacity", f"{machine.capacity / 1e9:.3g} GB"),
        ("latency between cells", f"{machine.latency * 1e6:.3g} us"),
        ("bandwidth, all cells together", f"{machine.bandwidth / 1e9:.3g} GB/s"),
    ]
    wide = max(len(name) for name, _ in rows)
    lines = [f"{name:{wide}}  {value}" for name, value in rows]
    return "\n".join([f"{machine.name}; for each:", *lines])


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
        say(calibration_table(calibration), sys.stdout)
    if args.output is not None:
        calibration.machine.save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def calibration_table(calibration: Calibration) -> str:
    """Return the estimated figures, one per line, with the number of tasks behind each."""
    machine, tasks = calibration.machine, calibration.tasks
    rows = [
        (one, f"{machine.flops[one] / 1e9:.3g} Gflop/s") for one in machine.flops if one in tasks
    ]
    rows.append(("memory", f"{machine.memory_bandwidth / 1e9:.3g} GB/s"))
    for name in tasks:
        if name.startswith("links"):
            axis = name.partition(".")[2]
            rows.append((name, _link_text(machine.link(axis) if axis else machine.rest)))
    if "storage" in tasks:
        rows.append(("storage", _link_text(machine.storage)))
    wide, high = (max(len(row[place]) for row in rows) for place in (0, 1))
    lines = [f"{name:{wide}}  {value:{high}}  {tasks[name]} tasks" for name, value in rows]
    timed = ", ".join(machine.operations.get("grid", {})) or "none"
    return "\n".join([f"{machine.name}; for each:", *lines, f"operators with times: {timed}"])


def _link_text(link: Link) -> str:
    return f"{link.latency * 1e6:.3g} us, {link.bandwidth / 1e9:.3g} GB/s"
