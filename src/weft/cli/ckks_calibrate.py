"""`weft ckks calibrate`: the operations of SEAL on this host, measured into a machine's file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from weft.ckks.calibrate import ROWS, OperationTimes, calibrate
from weft.ckks.parameters import STANDARD, Parameters
from weft.cli.files import check_file, print_json
from weft.draw import say
from weft.errors import WeftError
from weft.plan import Machine
from weft.plan.machines import host_name


def run(args: argparse.Namespace) -> None:
    """Measure, print, and add to the machine's file where that is asked for."""
    check_file(args.output)
    there = args.output is not None and args.output.exists()
    machine = Machine.load(args.output) if there else replace(Machine(), name=host_name(1))
    made = Parameters(args.ring, _deepest(args.ring) if args.depth is None else args.depth)
    print(f"measuring {made} …", file=sys.stderr, flush=True)
    times = calibrate(made, args.repeats)
    if args.json:
        rows = {name: list(getattr(times, name)) for name in ROWS}
        print_json({"ring": times.ring, "depth": times.depth, **rows})
    else:
        say(table(times), sys.stdout)
    if args.output is not None:
        times.kept(machine).save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def _deepest(ring: int) -> int:
    """The most levels of 40 bits at 128-bit security."""
    if STANDARD[128].get(ring, 0) < 110:
        raise WeftError(f"N={ring} has no room for a level at 128-bit security", hint="--ring 8192")
    return (STANDARD[128][ring] - 110) // 40


def table(times: OperationTimes) -> str:
    """Milliseconds of each operation, at the lowest level, the middle and the highest."""
    levels = sorted({min(1, times.depth), (times.depth + 1) // 2, times.depth})
    lines = [f"N={times.ring}, milliseconds at level" + "".join(f"{at:>9}" for at in levels)]
    wide = len(lines[0]) - 9 * len(levels)
    for name in ROWS:
        cells = "".join(f"{1e3 * getattr(times, name)[at]:9.2f}" for at in levels)
        lines.append(f"{name.replace('_', ' '):{wide}}{cells}")
    return "\n".join(lines)
