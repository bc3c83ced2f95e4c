"""The reference of all commands, generated from the parser.

`python -m docsite.commands docs/cli.md` writes it.

The text before the mark is kept; the text after it is generated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from weft.cli.parser import (
    GROUPS,
    command_modules,
    parser_with,
    sentence,
    subcommand_helps,
    subcommands,
    walk,
)

MARK = "<!-- Made by `python -m docsite.commands docs/cli.md` from the parser: do not edit. -->\n"
COMMON = ("--help", "--debug")
"""Options that every command has, described once."""


def page(text: str) -> str:
    """Return the page with the text after its mark generated again."""
    made = "\n".join(reference()).rstrip()
    return f"{text.partition(MARK)[0]}{MARK}\n{made}\n"


def reference() -> Iterator[str]:
    """Yield the lines of all commands, group by group."""
    root = parser_with(command_modules())
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
        yield from (f"- `{name}`: {text}" for name, text in subcommand_helps(parser).items())
        return
    yield from ("| argument | meaning |", "| --- | --- |")
    for action in parser._actions:
        if not any(name in COMMON for name in action.option_strings):
            yield f"| {_spelling(action)} | {_cell(action.help or '')} |"
    lines = (parser.epilog or "").splitlines()[1:]
    if lines:
        yield from ("", "```console", *(line.strip() for line in lines), "```")


def _spelling(action: argparse.Action) -> str:
    """Return how an argument is written: `-o OUTPUT`, `--storage NAME=CHUNK ...`, `graph`."""
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
    need = " (required)" if action.required else ""
    return _cell(f"{names}, {last}{need}" if names else f"{last}{need}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> None:
    """Generate the pages again."""
    for name in argv:
        path = Path(name)
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
