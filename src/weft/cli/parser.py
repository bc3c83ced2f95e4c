"""The parser of the `weft` command: its commands, and errors of one line with a hint.

`GROUPS` lists the commands and the modules that add them, by a function `add_to`. Only the module
of the command on the command line is imported.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import weft
from weft.draw import say

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    """The collection to which a module adds its commands."""
else:
    Commands = argparse._SubParsersAction

REFUSED = 2
"""The exit code for invalid input; argparse uses the same."""
GROUPS = {
    "look at it": {"show": "show", "diff": "plan", "report": "report"},
    "plan a program": {"propagate": "plan", "plan": "plan", "search": "search"},
    "run it": {"run": "run", "calibrate": "calibrate"},
    "arrays in storage, on ciphertexts, on chips": {
        "store": "store",
        "ckks": "ckks",
        "ttmesh": "ttmesh",
    },
    "this machine": {"doctor": "doctor", "completion": "completion"},
}
"""The commands by purpose, each with the module of this package that adds it."""
BEGIN = """\
to begin with:
  weft doctor
  weft show '@m = <["dp"=2, "tp"=4]>' 8x16 '<@m, [{"dp"}, {"tp"}]>'

weft COMMAND --help describes a command, with examples."""


# -- argparse, with our messages ------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A command-line parser; every command has `--debug`, and options cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        defaults = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**{**defaults, **options})
        for kind, noun in ((int, "integer"), (float, "number")):
            self.register("type", kind, partial(_parsed, kind, noun))
        self.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show the traceback of an error",
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; the command that was given unknown arguments refuses them."""
        words = sys.argv[1:] if args is None else list(args)
        self._check_options(words)
        parsed, rest = super().parse_known_args(words, namespace)
        if rest:
            kind = "option" if rest[0].startswith("-") else "argument"
            self.refuse(f"unknown {kind} {' '.join(rest)}")
        return parsed, rest

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuse a misspelt option before argparse reports the arguments missing without it."""
        mine: Iterable[str] = takewhile(lambda word: word != "--", words)
        if self._subparsers is not None:  # what follows a command belongs to the command
            mine = takewhile(lambda word: word.startswith("-"), mine)
        for word in mine:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                self.refuse(f"unknown option {name}", meant(name, self._option_string_actions))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = meant(str(value), choices) or f"choose from {', '.join(choices)}"
        if isinstance(action, argparse._SubParsersAction):
            self.refuse(f"unknown command {value}", hint)
        name = "/".join(action.option_strings) or action.metavar or action.dest
        self.refuse(f"{name}: invalid choice {value!r}", hint)

    def error(self, message: str) -> NoReturn:
        """Refuse what argparse does not understand."""
        missing = re.fullmatch("the following arguments are required: (.*)", message)
        if missing:
            verb = "are" if "," in missing[1] else "is"
            self.refuse(f"{missing[1]} {verb} missing", self._example())
        self.refuse(message.removeprefix("argument "))

    def _example(self) -> str | None:
        """Return the first example of the help."""
        example = re.search(r"^examples:\n +(.*)$", self.epilog or "", re.MULTILINE)
        return f"for example: {example[1]}" if example else None

    def refuse(self, message: str, hint: str | None = None) -> NoReturn:
        """Print the error in one line, and a hint; then exit."""
        say(f"{self.prog}: {message}", sys.stderr)
        say(f"hint: {hint or f'see {self.prog} --help'}", sys.stderr)
        sys.exit(REFUSED)


Add: TypeAlias = Callable[..., None]
"""A function that adds an argument to a command; `add_command` returns one."""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    description: str,
    examples: str,
) -> Add:
    """Add a command; return a function that adds its arguments.

    That takes what argparse takes. Shells offer the `words` of an argument, and files unless
    `files` is False.
    """
    parser = commands.add_parser(name, help=summary, description=description, epilog=examples)
    # Sizes and dimensions may be negative: `-1,64` is a value, not an option.
    parser._negative_number_matcher = re.compile(r"^-[\d.]+([,x:].*)?$")
    parser.set_defaults(run=run)

    def add(
        *names: str, words: Sequence[str] = (), files: bool | None = None, **settings: Any
    ) -> None:
        action = parser.add_argument(*names, **settings)
        if files is not None:
            vars(action).update(suggested=words, files=files)

    return add


def add_flag(add: Add, name: str, text: str) -> None:
    """Add an option without a value."""
    add(name, action="store_true", help=text)


def add_list(add: Add, name: str, text: str, **settings: Any) -> None:
    """Add an option that may be repeated."""
    add(name, action="append", default=[], help=text, **settings)


def add_sizes(add: Add, name: str, text: str) -> None:
    """Add an option of sizes, as one word or several: `16,64`, `16x64` or `16 64`."""
    add(name, type=sizes_of, nargs="+", action=_Flat, metavar="N", help=text, files=False)


class _Flat(argparse.Action):
    """Joins the tuples of several words."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        """Set the joined tuples."""
        setattr(namespace, self.dest, [size for word in values for size in word])


def add_group(
    commands: Commands, name: str, summary: str, description: str, examples: str
) -> Callable[..., Add]:
    """Add a command that has commands of its own; return a function that adds one of those.

    Its description is its summary, or `about`, as a sentence, its examples those that show it.
    """
    parser = commands.add_parser(name, help=summary, description=description, epilog=examples)
    below = parser.add_subparsers(dest="what", metavar="WHAT")

    def add_member(member: str, run: Any, text: str, about: str = "") -> Add:
        lines = [line for line in examples.splitlines() if f" {name} {member} " in line]
        own = "\n".join(["examples:", *lines, ""])
        return add_command(below, member, run, text, f"{sentence(about or text)}.", own)

    return add_member


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def meant(word: str, known: Iterable[str]) -> str | None:
    """Return a hint about what a misspelt word may mean.

    >>> meant("serach", ["show", "search"]), meant("--mash", ["--mesh"]), meant("q", ["show"])
    ('did you mean search?', 'did you mean --mesh?', None)
    """
    words = list(known)
    begun = [one for one in words if len(word.strip("-")) > 1 and one.startswith(word)]
    similar = begun or get_close_matches(word, words, 1)
    return f"did you mean {similar[0]}?" if similar else None


def sizes_of(text: str) -> tuple[int, ...]:
    """Parse sizes separated by `x` or commas.

    >>> sizes_of("16"), sizes_of("-1,64,64"), sizes_of("16x64x64")
    ((16,), (-1, 64, 64), (16, 64, 64))
    """
    try:
        return tuple(map(int, re.split("[,x]", text)))
    except ValueError:
        message = f"invalid size {text!r}: expected `64` or `64,64`"
        raise argparse.ArgumentTypeError(message) from None


def _parsed(kind: Callable[[str], float], noun: str, text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid {noun} {text!r}") from None


# -- the commands ---------------------------------------------------------------------------------


def command_modules() -> dict[str, str]:
    """Return the module of each command."""
    return {name: module for group in GROUPS.values() for name, module in group.items()}


class RootParser(Parser):
    """The parser of `weft` itself, whose help is an overview of the commands."""

    def format_help(self) -> str:
        """Return one line for each command, in groups."""
        lines, helps = [f"Weft {weft.__version__}. {self.description}", ""], subcommand_helps(self)
        width = max(map(len, helps), default=0)
        for title, group in GROUPS.items():
            rows = [f"  {name:{width}}  {helps[name]}" for name in group if name in helps]
            lines += [f"{title}:", *rows, ""] if rows else []
        return "\n".join([*lines, BEGIN, ""])


def parser_of(words: Sequence[str] = ()) -> RootParser:
    """Return the parser for a command line: with its command only, or with all of them."""
    first = next((word for word in words if not word.startswith("-")), None)
    names = list(command_modules())
    return parser_with([first] if first in names else names)


def parser_with(commands: Iterable[str]) -> RootParser:
    """Return the parser with these commands."""
    parser = RootParser(prog="weft", description="Sharded arrays: a shard is a box of integers.")
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    parser.set_defaults(run=lambda _: parser.print_help(), debug=False)
    below = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for module in dict.fromkeys(command_modules()[name] for name in commands):
        import_module(f"weft.cli.{module}").add_to(below)
    for path, one in walk(parser):
        one.set_defaults(prog=" ".join(path))
        if one is not parser and subcommands(one):
            one.set_defaults(run=lambda _, one=one: one.print_help())
    return parser


def _below(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[Any]]:
    return [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers directly below one, by name."""
    return {name: one for action in _below(parser) for name, one in action.choices.items()}


def subcommand_helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the help text of each subcommand."""
    return {
        one.dest: one.help or "" for action in _below(parser) for one in action._choices_actions
    }


def walk(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield every parser with the words that lead to it, this one first."""
    here = path or (parser.prog,)
    yield here, parser
    for name, one in subcommands(parser).items():
        yield from walk(one, (*here, name))
