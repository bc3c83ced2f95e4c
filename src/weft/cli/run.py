"""`weft run`: run a plan on the workers of a cluster, with arrays in files or in storage."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from weft.cli.parser import Commands, add_command, add_flag, add_list
from weft.draw import say

EXAMPLES = """\
examples:
  weft run plan.json --input x=in.zarr --output y=out.zarr
  weft run plan.json --input x=s3://bucket/in.zarr --output y=out.zarr --workers 8 --memory 2GiB
  weft run plan.json --input x=x.npy --output y=y.npy --on dask
  weft run --resume plan.run --input x=in.zarr --output y=out.zarr
"""
UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6}
UNITS |= {"GB": 10**9, "B": 1}


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "run a plan on a cluster, from arrays in storage to arrays in storage"
    about = (
        "Run a plan as tasks on Ray, Dask or threads. Inputs are Zarr arrays, of which every task "
        "reads its box, or .npy files; outputs are sharded Zarr arrays, or .npy files."
    )
    add = add_command(commands, "run", run, summary, about, EXAMPLES)
    add("plan", nargs="?", type=Path, help="a plan's JSON, as weft plan -o writes it")
    add_list(add, "--input", "where to read an input", metavar="NAME=PLACE")
    add_list(add, "--output", "where to write one", metavar="NAME=PLACE")
    add("--on", help="ray, dask, threads, or the address of a cluster (ray)")
    add("--workers", type=int, help="workers of a local cluster (default: one per processor)")
    add("--memory", type=amount, help="memory of a worker, as 512MiB: tasks are split to fit")
    add_list(add, "--chunks", "of a stored output", metavar="NAME=N,N")
    add_list(add, "--shards", "of a stored output", metavar="NAME=N,N")
    add("--codec", help="compression of the chunks of outputs (zstd)")
    add_flag(add, "--overwrite", "replace outputs that exist")
    add_list(add, "--import", "a module with operators", dest="modules")
    add("--directory", type=Path, help="the directory of the run (PLAN.run)")
    resume = "resume a run; repeat its inputs, outputs, --import and the address of its cluster"
    add("--resume", nargs="?", type=Path, const=Path(), metavar="DIRECTORY", help=resume)
    add_flag(add, "--json", "print the record of the run as JSON")


def amount(text: str) -> int:
    """Parse a number of bytes.

    >>> amount("512MiB"), amount("2 GB"), amount("100")
    (536870912, 2000000000, 100)
    """
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        message = f"invalid amount of bytes {text!r}: expected `512MiB` or `2GB`"
        raise argparse.ArgumentTypeError(message)
    return int(float(match[1]) * UNITS[match[2].upper()])


def run(args: argparse.Namespace) -> None:
    """Run a plan, or resume a run; print its record, which is also written to its directory."""
    from weft.cli.job import begin, resume

    record, folder = begin(args) if args.resume is None else resume(args)
    if args.json:
        say(record.to_json(), sys.stdout)
    else:
        say(f"{record}\nwrote {folder.record}", sys.stdout)
