"""The page of all commands, made from the parser: `python -m weft.cli.reference docs/cli.md`.

What stands before the mark in the page is kept; what stands behind it is made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from weft.cli.commands import GROUPS, names, parser_with, subcommands, told, walk
from weft.cli.parser import sentence

MARK = "<!-- Made by `python -m weft.cli.reference docs/cli.md` from the parser: do not edit. -->\n"
COMMON = ("--help", "--debug")
"""Options that every command has, said once."""


def page(text: str) -> str:
    """A page with what stands behind its mark made anew."""
    made = "\n".join(reference()).rstrip()
    return f"{text.partition(MARK)[0]}{MARK}\n{made}\n"


def reference() -> Iterator[str]:
    """The lines of all commands, group by group."""
    root = parser_with(names())
    parsers = {path: parser for path, parser in walk(root) if len(path) > 1}
    for title, group in GROUPS.items():
        yield f"## {sentence(title)}"
        for path, parser in parsers.items():
            if path[1] in group:
                yield ""
                yield from _command(path, parser)
        yield ""


def _command(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"{'#' * (1 + len(path))} `{' '.join(path)}`"
    yield from ("", parser.description or "", "")
    if subcommands(parser):
        yield from (f"- `{name}`: {text}" for name, text in told(parser).items())
        return
    yield from ("| argument | what it is |", "| --- | --- |")
    for action in parser._actions:
        if not any(name in COMMON for name in action.option_strings):
            yield f"| {_spelt(action)} | {_cell(action.help or '')} |"
    lines = (parser.epilog or "").splitlines()[1:]
    if lines:
        yield from ("", "```console", *(line.strip() for line in lines), "```")


def _spelt(action: argparse.Action) -> str:
    """How an argument is written: `-o OUTPUT`, `--storage NAME=CHUNK ...`, `graph`."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    behind = "" if action.nargs == 0 else f" {value}" + " ..." * (action.nargs == "+")
    if not action.option_strings:
        name = action.dest if action.choices is None else value
        shown = f"[{name}]" if action.nargs == "?" else name
        return _cell(f"`{shown}`")
    names = ", ".join(f"`{name}`" for name in action.option_strings[:-1])
    last = f"`{action.option_strings[-1]}{behind}`"
    need = " (needed)" if action.required else ""
    return _cell(f"{names}, {last}{need}" if names else f"{last}{need}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> None:
    """Make the pages anew."""
    for name in argv:
        path = Path(name)
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
