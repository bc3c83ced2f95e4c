"""Reads the command line, runs a command, says what was refused in one line and a hint."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from weft.cli.commands import parser_of
from weft.cli.refusals import refusal
from weft.draw import say


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
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    command, debug = "weft", "--debug" in words
    try:
        args = parser_of(words).parse_args(words)
        command, debug = args.prog, args.debug
        args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        found = refusal(error, command)
        say("\n".join([f"{command}: {found.lines[0]}", *found.lines[1:]]), sys.stderr)
        return found.code
    return 0
