"""`Parser`: argparse whose refusals are one line and a hint, with the word that was meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from weft.draw import say

REFUSED = 2
"""The exit code for input that was refused; the one that argparse uses too."""
DEBUG = "show the traceback where something is refused or fails"


class Parser(argparse.ArgumentParser):
    """A parser of the command line; every command has `--debug`, and no option is abbreviated."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **said})
        self.register("type", int, _whole)
        self.register("type", float, _number)
        self.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=DEBUG)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; what nobody knows is refused here, by the command that was given it."""
        words = sys.argv[1:] if args is None else list(args)
        self._check_options(words)
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            told = "there is no option" if rest[0].startswith("-") else "there is no place for"
            self.refuse(f"{told} {' '.join(rest)}")
        return found, rest

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse a misspelt option before argparse misses what it stands for."""
        mine: Iterable[str] = takewhile(lambda word: word != "--", words)
        if self._subparsers is not None:  # what stands behind a command is its own
            mine = takewhile(lambda word: word.startswith("-"), mine)
        for word in mine:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                self.refuse(f"there is no option {name}", meant(name, self._option_string_actions))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices."""
        if action.choices is None or value in action.choices:
            return
        words = [str(word) for word in action.choices]
        told = f"there are {', '.join(words)}"
        if isinstance(action, argparse._SubParsersAction):
            self.refuse(f"there is no command {value}", meant(str(value), words) or told)
        name = "/".join(action.option_strings) or action.metavar or action.dest
        self.refuse(f"{name}: there is no {value!r}", meant(str(value), words) or told)

    def error(self, message: str) -> NoReturn:
        """Refuse what argparse does not understand, in our words where it is common."""
        missing = re.fullmatch("the following arguments are required: (.*)", message)
        if missing:
            verb = "are" if "," in missing[1] else "is"
            self.refuse(f"{missing[1]} {verb} missing", self._example())
        self.refuse(message.removeprefix("argument "))

    def _example(self) -> str | None:
        """The first example of the help, to be copied."""
        found = re.search(r"^examples:\n +(.*)$", self.epilog or "", re.MULTILINE)
        return f"for example: {found[1]}" if found else None

    def refuse(self, message: str, hint: str | None = None) -> NoReturn:
        """Say in one line what is refused, and a way on; then leave."""
        say(f"{self.prog}: {message}", sys.stderr)
        say(f"hint: {hint or f'{self.prog} --help says what there is'}", sys.stderr)
        sys.exit(REFUSED)


def suggest(action: argparse.Action, *words: str, files: bool = True) -> None:
    """Words that shells offer for an argument, beside files or alone; it may be others too."""
    vars(action).update(suggested=words, files=files)


def examples_of(text: str, command: str) -> str:
    r"""Those lines of examples that show one command.

    >>> examples_of("examples:\n  weft a b\n  weft a c\n", "weft a c")
    'examples:\n  weft a c\n'
    """
    lines = [line for line in text.splitlines() if f"{command} " in f"{line} "]
    return "\n".join(["examples:", *lines, ""]) if lines else ""


def sentence(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def meant(word: str, known: Iterable[str]) -> str | None:
    """What a misspelt word may mean.

    >>> meant("serach", ["show", "search"]), meant("--mash", ["--mesh"]), meant("q", ["show"])
    ('did you mean search?', 'did you mean --mesh?', None)
    """
    words = list(known)
    begun = [one for one in words if len(word.strip("-")) > 1 and one.startswith(word)]
    found = begun or get_close_matches(word, words, 1)
    return f"did you mean {found[0]}?" if found else None


def sizes_of(text: str) -> tuple[int, ...]:
    """Sizes from a word: one, or several with `x` or commas between them.

    >>> sizes_of("16"), sizes_of("-1,64,64"), sizes_of("16x64x64")
    ((16,), (-1, 64, 64), (16, 64, 64))
    """
    try:
        return tuple(map(int, re.split("[,x]", text)))
    except ValueError:
        told = f"{text!r} is no size, as 64 and 64,64 are"
        raise argparse.ArgumentTypeError(told) from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
