"""Errors: the message names and numbers what failed; context and hints are notes."""

from __future__ import annotations

import re
from typing import Self

_PATH = re.compile(r"[^\W\d]\w*(\[\d+\]|\.)")
"""The start of a path: `applications[3]`, `shardings.x`."""


class WeftError(ValueError):
    """An error in the input. The first line names what failed; context and hints are notes.

    >>> try:
    ...     raise WeftError("3 shards do not fit 2 cells", hint="use a larger mesh")
    ... except WeftError as error:
    ...     print(error, error.__notes__)
    3 shards do not fit 2 cells ['hint: use a larger mesh']
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.add_note(f"hint: {hint}")

    def at(self, path: str) -> Self:
        """Return the error with a path at the start of its message.

        >>> print(WeftError("there is no operator nope").at("applications[2]").at("regions[0]"))
        regions[0].applications[2]: there is no operator nope
        """
        message = str(self)
        joint = "." if _PATH.match(message) else ": "
        self.args = (f"{path}{joint}{message}",)
        return self


class LayoutError(WeftError):
    """A mesh or a sharding that contradicts itself, or an array that does not fit it."""


class ParseError(WeftError):
    r"""Text that is not in the notation; `column` counts from 1.

    >>> error = ParseError("expected ']'", text='@m = <["x"=2>', column=13)
    >>> print(error, *error.__notes__, sep="\n")
    column 13: expected ']'
    @m = <["x"=2>
                ^
    """

    def __init__(self, message: str, *, text: str, column: int, hint: str | None = None) -> None:
        super().__init__(f"column {column}: {message}")
        self.text = text
        self.column = column
        self.add_note(_pointing(text, column))
        if hint is not None:
            self.add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is rebuilt from `args`, which hold one string and not our keywords.
        return _rebuild, (str(self), self.__dict__)


def _pointing(text: str, column: int, width: int = 60) -> str:
    """The text with a caret under the column; of a long text only the surroundings."""
    line_start = text.rfind("\n", 0, column - 1) + 1
    line_stop = text.find("\n", column - 1)
    line_stop = len(text) if line_stop < 0 else line_stop
    start = max(line_start, column - 1 - width)
    stop = min(line_stop, column - 1 + width)
    before = "…" if start > line_start else ""
    after = "…" if stop < line_stop else ""
    caret = " " * (len(before) + column - 1 - start) + "^"
    return f"{before}{text[start:stop]}{after}\n{caret}"


def _rebuild(message: str, state: dict[str, object]) -> ParseError:
    error = ParseError.__new__(ParseError, message)
    error.__dict__.update(state)
    return error
