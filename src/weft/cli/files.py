"""Files that commands read and write: bounded, as text, with refusals in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from weft.draw import say
from weft.errors import WeftError

LONGEST = 1 << 30
"""The most bytes of a file that is read."""


def read_text(path: Path) -> str:
    """The text of a file."""
    size = path.stat().st_size
    if size > LONGEST:
        raise WeftError(f"{path} has {size} B; at most {LONGEST} B are read")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WeftError(f"{path} is no text: {error}") from None


def check_folder(path: Path | None) -> None:
    """Refuse a file in a folder that is not there, before much is done for it."""
    if path is not None and not path.parent.is_dir():
        raise WeftError(f"cannot write {path}: there is no folder {path.parent}")


def print_json(data: dict[str, Any]) -> None:
    """Print data for programs to read."""
    say(json.dumps(data, indent=1), sys.stdout)
