"""`weft diff`: what differs between two plans."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.files import print_json, reading
from weft.cli.plan import add_machine_to
from weft.draw import say
from weft.lang.field import read_text
from weft.plan import Plan
from weft.plan.machines import find_machine
from weft.plan.plan_diff import diff_plans

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft diff one.json two.json
  weft diff one.json two.json --machine h200 --json
"""


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "diff",
        help="what differs between two plans",
        description="Say what differs between two plans: how values lie, where applications "
        "compute, and the bytes, the memory and the seconds that each takes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("one", type=Path, help="a plan's JSON, as `weft plan -o` writes it")
    parser.add_argument("two", type=Path, help="another")
    add_machine_to(parser, "price both on it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the difference."""
    machine = find_machine(args.machine) if args.machine else None
    found = diff_plans(read_plan(args.one), read_plan(args.two), machine)
    if args.json:
        print_json(found.data())
    else:
        say(str(found), sys.stdout)


def read_plan(path: Path) -> Plan:
    """The plan in a file; what is refused is said with the name of the file."""
    text = read_text(path)
    with reading(path, text, "plan"):
        return Plan.from_json(text)
