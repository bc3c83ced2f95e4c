"""Runs the command line; an error becomes one line, a hint and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from weft.cli.parser import REFUSED, parser_of
from weft.draw import clip, say
from weft.errors import WeftError

FAILED = 1
"""The exit code for a bug of Weft."""
INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the number of the signal, as in shells."""
EXTRAS = {
    **dict.fromkeys(("numpy", "array_api_compat"), "run"),
    **dict.fromkeys(("jax", "jaxlib"), "jax"),
    **dict.fromkeys(("pymoo", "scipy"), "search"),
    **dict.fromkeys(("google_crc32c", "numcodecs", "obstore", "tifffile", "zstandard"), "store"),
    "torch": "torch",
    "ray": "ray",
    "distributed": "dask",
    "opentelemetry": "otel",
    "tenseal": "ckks",
    "packaging": "cli",
    "shtab": "cli",
}
"""The extra that installs a module."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process; return the exit code.

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
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        failure = explain_error(error, command)
        say("\n".join([f"{command}: {failure.lines[0]}", *failure.lines[1:]]), sys.stderr)
        return failure.code
    return 0


class Failure(NamedTuple):
    """The lines to print for an error, and the exit code."""

    lines: tuple[str, ...]
    code: int = REFUSED


def explain_error(error: BaseException, command: str) -> Failure:
    """Return the message and the exit code for an error of a command.

    >>> explain_error(WeftError("3 shards for 2 cells", hint="use a larger mesh"), "weft plan")
    Failure(lines=('3 shards for 2 cells', 'hint: use a larger mesh'), code=2)
    >>> explain_error(KeyError("x"), "weft plan").lines[0]
    "this is a bug of Weft: KeyError: 'x'"
    """
    match error:
        case WeftError():
            return Failure((str(error), *_notes(error, f"see {command} --help")))
        case KeyboardInterrupt():
            return Failure(("interrupted",), INTERRUPTED)
        case MemoryError():
            return Failure(("there is not enough memory", "hint: see weft doctor"))
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in EXTRAS:
            module = name.partition(".")[0]
            hint = f"hint: pip install 'weft[{EXTRAS[module]}]'"
            return Failure((f"{module} is needed and not installed", hint))
        case OSError():
            return Failure((_system_message(error), *_notes(error, _system_hint(error, command))))
    kind, text = type(error).__name__, clip(str(error).partition("\n")[0], 200)
    hint = "hint: the same command with --debug shows the traceback; please report it"
    return Failure((f"this is a bug of Weft: {kind}" + (f": {text}" if text else ""), hint), FAILED)


def _notes(error: Exception, otherwise: str) -> list[str]:
    """Return the notes of an error, with a hint of ours if they have none."""
    notes = list(getattr(error, "__notes__", ()))
    has_hint = any(note.startswith("hint:") for note in notes)
    return notes if has_hint else [*notes, f"hint: {otherwise}"]


_MESSAGES = {
    errno.ENOENT: "there is no file {}",
    errno.EISDIR: "{} is a folder, not a file",
    errno.ENOTDIR: "a part of {} is a file, not a folder",
    errno.EACCES: "no permission to read or write {}",
    errno.EPERM: "no permission to read or write {}",
    errno.EEXIST: "{} exists already",
    errno.ENOSPC: "there is no space left to write {}",
    errno.EROFS: "{} is on a read-only file system",
}


def _system_message(error: OSError) -> str:
    name = error.filename if error.filename2 is None else error.filename2
    if error.errno in _MESSAGES:
        return _MESSAGES[error.errno].format(name if name is not None else "a file")
    message = error.strerror or str(error) or type(error).__name__
    return message if name is None else f"{name}: {message}"


def _system_hint(error: OSError, command: str) -> str:
    if error.errno == errno.ENOENT and error.filename is not None:
        return similar_file(Path(str(error.filename)))
    if error.errno == errno.ENOSPC:
        return "see weft doctor"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "check its permissions with ls -ld"
    return f"see {command} --help"


def similar_file(path: Path) -> str:
    """Return a hint about which file may be meant by one that does not exist."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError:
        return f"no permission to list {folder}"
    stems = {Path(name).stem: name for name in reversed(names)}
    closest = get_close_matches(path.stem, stems, 1)
    if closest:
        return f"did you mean {folder / stems[closest[0]]}?"
    same_suffix = [name for name in names if path.suffix and name.endswith(path.suffix)]
    where = "this folder" if folder == Path() else str(folder)
    if same_suffix:
        more = " ..." if len(same_suffix) > 4 else ""
        return f"{where} has {', '.join(same_suffix[:4])}{more}"
    return f"{where} has no similar file"
