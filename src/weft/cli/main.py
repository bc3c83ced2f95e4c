"""Reads the command line, runs a subcommand, says what was refused in one line and a hint."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import weft
from weft.cli import calibrate, ckks, diff, plan, report, search, show, store, ttmesh
from weft.errors import WeftError

REFUSED = 2
"""The exit code for input that was refused; the one that argparse uses too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with the program's own.

    >>> main(["show", '@m = <["x"=2]>'])
    @m = <["x"=2]> · 2 cells
       x=0     x=1
    ┌───────┬───────┐
    │   0   │   1   │
    └───────┴───────┘
    0
    """
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (WeftError, OSError) as error:
        if args.debug:
            raise
        notes = getattr(error, "__notes__", [])
        print("\n".join([f"weft {args.command}: {error}", *notes]), file=sys.stderr)
        return REFUSED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weft", description="Sharded arrays: a shard is a box of integers."
    )
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of refused input")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (show, plan, search, diff, store, ckks, ttmesh, calibrate, report):
        command.add_to(commands)
    return parser
