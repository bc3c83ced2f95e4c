"""`weft completion`: completion scripts for shells, generated from the parser by shtab."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from weft.cli.parser import Commands, add_command, command_modules, parser_with, walk
from weft.draw import say
from weft.extra import needed

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
EXAMPLES = """\
examples:
  weft completion bash > ~/.local/share/bash-completion/completions/weft
  weft completion zsh > ~/.zfunc/_weft          (with `fpath+=~/.zfunc` before compinit)
  weft completion fish > ~/.config/fish/completions/weft.fish
  source <(weft completion bash)                (for this terminal only)
"""


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "print the completion script of a shell: bash, zsh, fish, tcsh, powershell"
    about = "Print a script that makes a shell complete commands, options and files."
    add = add_command(commands, "completion", run, summary, about, EXAMPLES)
    add("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    shtab = needed("shtab", "cli")
    parser = parser_with(command_modules())
    for _, one in walk(parser):
        for action in one._actions:
            _set_completion(action, shtab)
    say(shtab.complete(parser, args.shell).rstrip(), sys.stdout)


def _set_completion(action: argparse.Action, shtab: Any) -> None:
    """Tell shtab what to offer for an argument: suggested words, files, or both."""
    if action.choices or action.nargs == 0:
        return
    words = vars(action).get("suggested", ())
    files = vars(action).get("files", action.type not in (int, float))
    if words:
        command = f"printf '%s\\n' {' '.join(words)}"
        vars(action)["complete"] = shtab.cmd(f"{command}; ls -dp -- *" if files else command)
    elif files:
        vars(action)["complete"] = shtab.FILE
