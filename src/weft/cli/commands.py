"""The commands, by what people want to do; the parser of one of them or of all; the overview."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import weft
from weft.cli.parser import Parser

GROUPS = {
    "look at it": ("show", "diff", "report"),
    "plan a program": ("propagate", "plan", "search"),
    "run it": ("run", "calibrate"),
    "arrays in storage, on ciphertexts, on chips": ("store", "ckks", "ttmesh"),
    "this machine": ("doctor", "completion"),
}
"""Every command is a module of this name in this package."""
BEGIN = """\
to begin with:
  weft doctor
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>'

weft COMMAND --help says more, with examples."""


def names() -> list[str]:
    """The commands that there are."""
    known = (name for group in GROUPS.values() for name in group)
    return [name for name in known if find_spec(f"weft.cli.{name}") is not None]


class Root(Parser):
    """The parser of `weft` itself, whose help is the overview."""

    def format_help(self) -> str:
        """All commands in a line each, in groups."""
        return overview(self)


def parser_of(words: Sequence[str] = ()) -> Root:
    """The parser for a command line: with its command alone where it names one, else with all."""
    first = next((word for word in words if not word.startswith("-")), None)
    return parser_with([first] if first in names() else names())


def parser_with(wanted: Iterable[str]) -> Root:
    """The parser with these commands."""
    parser = Root(prog="weft", description="Sharded arrays: a shard is a box of integers.")
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    parser.set_defaults(run=lambda _: parser.print_help(), debug=False)
    below = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name in wanted:
        import_module(f"weft.cli.{name}").add_to(below)
    for path, one in walk(parser):
        one.set_defaults(prog=" ".join(path))
        if one is not parser and subcommands(one):
            one.set_defaults(run=lambda _, one=one: one.print_help())
    return parser


def _below(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[Any]]:
    return [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers right below one, by name."""
    return {name: one for action in _below(parser) for name, one in action.choices.items()}


def told(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What the help says of each subcommand."""
    return {
        one.dest: one.help or "" for action in _below(parser) for one in action._choices_actions
    }


def walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every parser with the words that lead to it, this one first."""
    here = path or (parser.prog,)
    yield here, parser
    for name, one in subcommands(parser).items():
        yield from walk(one, (*here, name))


def overview(parser: argparse.ArgumentParser) -> str:
    """What `weft` alone prints."""
    lines, said = [f"Weft {weft.__version__}. {parser.description}", ""], told(parser)
    wide = max(map(len, said), default=0)
    for title, group in GROUPS.items():
        rows = [f"  {name:{wide}}  {said[name]}" for name in group if name in said]
        lines += [f"{title}:", *rows, ""] if rows else []
    return "\n".join([*lines, BEGIN, ""])
