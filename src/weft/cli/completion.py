"""`weft completion`: what shells need to complete commands, options and files, from the parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weft.cli import commands, shells
from weft.draw import say

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft completion bash > ~/.local/share/bash-completion/completions/weft
  weft completion zsh > ~/.zfunc/_weft          (with `fpath+=~/.zfunc` before compinit)
  weft completion fish > ~/.config/fish/completions/weft.fish
  source <(weft completion bash)                (for this terminal alone)
"""


class Argument(NamedTuple):
    """An option or a positional argument, as a shell sees it."""

    names: tuple[str, ...]
    """`-o`, `--output`; none for a positional argument."""
    title: str
    help: str
    values: int | None
    """How many values stand behind it: 0, 1, or None for any number."""
    words: tuple[str, ...]
    """What may stand there."""
    takes_files: bool
    """Whether a file may."""


class Level(NamedTuple):
    """A command: what may stand behind it."""

    path: tuple[str, ...]
    below: dict[str, str]
    """Its subcommands, and what the help says of each."""
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]


def add_to(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = below.add_parser(
        "completion",
        help="print the script that makes a shell complete weft: bash, zsh, fish",
        description="Print the script by which a shell completes commands, options and files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(shells.SHELLS), help="which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    found = levels(commands.parser_with(commands.names()))
    say(shells.SHELLS[args.shell](found).rstrip(), sys.stdout)


def levels(parser: argparse.ArgumentParser) -> list[Level]:
    """Every command of a parser, from the outermost on."""
    return [_level(path, one) for path, one in commands.walk(parser)]


def _level(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Level:
    found = list(_arguments(parser))
    return Level(
        path,
        commands.told(parser),
        tuple(one for one in found if one.names),
        tuple(one for one in found if not one.names),
    )


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            yield _argument(action)


def _may_be_file(action: argparse.Action) -> bool:
    """Whether a file may stand there: where no number must."""
    return action.type not in (int, float)


def _argument(action: argparse.Action) -> Argument:
    many = {None: 1, 0: 0, "?": 1}.get(action.nargs)
    words = tuple(map(str, action.choices or vars(action).get("suggested", ())))
    title = action.metavar if isinstance(action.metavar, str) else action.dest
    return Argument(
        tuple(action.option_strings),
        title,
        action.help or "",
        many,
        words,
        many != 0 and not action.choices and vars(action).get("files", _may_be_file(action)),
    )
