"""Files that commands read and write: bounded, as text, with refusals in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import parse_json

KINDS = {"weft": "graph", "weft_plan": "plan", "weft_run": "run"}
"""What a file of ours is, by the field that has its version."""
MADE = {
    "graph": "weft.lang.serial.to_json writes one, and `weft plan` plans it",
    "plan": "`weft plan graph.json -o plan.json` writes one",
    "run": "`weft run plan.json` writes one",
}


def kind_of(text: str) -> str | None:
    """What the text of a file is: a graph, a plan, a run; None for anything else.

    >>> kind_of('{"weft_plan": 1}'), kind_of("{}"), kind_of("[")
    ('plan', None, None)
    """
    try:
        data = parse_json(text, "the file").value
    except WeftError:
        return None
    found = [kind for field, kind in KINDS.items() if isinstance(data, dict) and field in data]
    return found[0] if found else None


@contextmanager
def reading(path: Path, text: str, wanted: str) -> Iterator[None]:
    """What is refused is said with the name of the file, and what it is instead."""
    try:
        yield
    except WeftError as error:
        kind = kind_of(text)
        if kind not in (None, wanted):
            raise WeftError(f"{path} is a {kind}, and no {wanted}", hint=MADE[wanted]) from error
        error.add_note(f"while reading {path}")
        raise


def check_folder(path: Path | None) -> None:
    """Refuse a file in a folder that is not there, before much is done for it."""
    if path is not None and not path.parent.is_dir():
        raise WeftError(
            f"cannot write {path}: there is no folder {path.parent}",
            hint=f"make it first: mkdir -p {path.parent}",
        )


def check_file(path: Path | None) -> None:
    """Refuse to write a file where there is a folder, or no folder for it."""
    check_folder(path)
    if path is not None and path.is_dir():
        raise WeftError(f"cannot write {path}: it is a folder", hint="give the name of a file")


def print_json(data: dict[str, Any]) -> None:
    """Print data for programs to read."""
    say(json.dumps(data, indent=1), sys.stdout)
