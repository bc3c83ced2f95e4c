"""What is said of an error: one line and a hint, and the exit code that goes with it."""

from __future__ import annotations

import errno
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from weft.cli.extras import bringing
from weft.cli.parser import REFUSED
from weft.draw import clip
from weft.errors import WeftError

FAILED = 1
"""The exit code where Weft itself failed."""
INTERRUPTED = 130
"""The exit code that shells know: 128 and the number of the signal."""


class Refusal(NamedTuple):
    """The lines that are printed, and the exit code."""

    lines: tuple[str, ...]
    code: int = REFUSED


def refusal(error: BaseException, command: str) -> Refusal:
    """What to say of an error of a command.

    >>> refusal(WeftError("3 shards do not fit 2 cells", hint="use a larger mesh"), "weft plan")
    Refusal(lines=('3 shards do not fit 2 cells', 'hint: use a larger mesh'), code=2)
    >>> refusal(KeyError("x"), "weft plan").lines[0]
    "this is a bug of Weft: KeyError: 'x'"
    """
    match error:
        case WeftError():
            return Refusal((str(error), *_notes(error, f"{command} --help says what it takes")))
        case KeyboardInterrupt():
            return Refusal(("interrupted",), INTERRUPTED)
        case MemoryError():
            return Refusal(("there is not enough memory", *_hint("weft doctor says how much")))
        case ModuleNotFoundError(name=str(name)) if (extra := bringing(name)) is not None:
            told = f"{name.partition('.')[0]} is needed and not installed"
            return Refusal((told, *_hint(f"pip install 'weft[{extra}]'")))
        case OSError():
            return Refusal((_told(error), *_notes(error, _way_out(error, command))))
    kind, text = type(error).__name__, clip(str(error).partition("\n")[0], 200)
    told = f"this is a bug of Weft: {kind}: {text}" if text else f"this is a bug of Weft: {kind}"
    hint = "the same command with --debug shows the traceback; please report it"
    return Refusal((told, *_hint(hint)), FAILED)


def _notes(error: Exception, otherwise: str) -> list[str]:
    """What an error says beside its message, and another hint if that is none."""
    notes = list(getattr(error, "__notes__", ()))
    if any(note.startswith("hint:") for note in notes):
        return notes
    return [*notes, *_hint(otherwise)]


def _hint(text: str) -> tuple[str]:
    return (f"hint: {text}",)


_WORDS = {
    errno.ENOENT: "there is no file {}",
    errno.EISDIR: "{} is a folder, and no file",
    errno.ENOTDIR: "a part of {} is a file, and no folder",
    errno.EACCES: "{} may not be read or written",
    errno.EPERM: "{} may not be read or written",
    errno.EEXIST: "{} is there already",
    errno.ENOSPC: "there is no space left to write {}",
    errno.EROFS: "{} lies where nothing can be written",
}


def _told(error: OSError) -> str:
    """What the system said, with the name of the file."""
    name = error.filename if error.filename2 is None else error.filename2
    if error.errno in _WORDS:
        return _WORDS[error.errno].format(name if name is not None else "a file")
    told = error.strerror or str(error) or type(error).__name__
    return told if name is None else f"{name}: {told}"


def _way_out(error: OSError, command: str) -> str:
    """What may help."""
    if error.errno == errno.ENOENT and error.filename is not None:
        return missing(Path(str(error.filename)))
    if error.errno == errno.ENOSPC:
        return "weft doctor says how much there is"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "ls -ld says whose it is"
    return f"{command} --help says what it takes"


def missing(path: Path) -> str:
    """What may be meant by a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either"
    try:
        there = sorted(file.name for file in folder.iterdir())
    except OSError:
        return f"{folder} may not be looked into"
    alike = [name for name in there if path.suffix and name.endswith(path.suffix)]
    stems = {Path(name).stem: name for name in reversed(there)}
    found = get_close_matches(path.stem, stems, 1)
    if found:
        return f"did you mean {folder / stems[found[0]]}?"
    if alike:
        more = " ..." if len(alike) > 4 else ""
        return f"{_named(folder)} has {', '.join(alike[:4])}{more}"
    return f"{_named(folder)} has no file like it"


def _named(folder: Path) -> str:
    return "this folder" if folder == Path() else str(folder)
