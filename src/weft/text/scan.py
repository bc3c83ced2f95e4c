"""A scanner for one-line notations: it knows its column, so every refusal can point."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from weft.errors import ParseError, WeftError

T = TypeVar("T")

_BLANK = re.compile(r"\s*")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
"""What may stand without quotes: the bare identifiers of MLIR."""

_INTEGER = re.compile(r"[0-9]+")
_STRING = re.compile(r'"([^"\\]*)"')

MAX_DIGITS = 18
"""The longest integer that is read: sizes stay within 64 bits, and text cannot make us work."""


class Scanner:
    """Reads tokens from the left; blanks between tokens do not matter.

    >>> scan = Scanner('"x" = 4')
    >>> scan.string(), scan.expect("="), scan.integer(), scan.done
    ('x', None, 4, True)
    """

    __slots__ = ("_at", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise WeftError(f"expected text to read, got {text!r}")
        self.text = text
        self._at = 0
        self._skip_blanks()

    @property
    def column(self) -> int:
        """The column of the next token, from 1."""
        return self._at + 1

    @property
    def done(self) -> bool:
        """True when no token is left."""
        return self._at == len(self.text)

    def accept(self, token: str) -> bool:
        """Take `token` if it is next."""
        found = self.starts(token)
        if found:
            self._advance(self._at + len(token))
        return found

    def expect(self, token: str) -> None:
        """Take `token`, which must be next."""
        if not self.accept(token):
            self.fail(f"expected '{token}', found {self.found}")

    def string(self) -> str:
        """Take a string in double quotes."""
        return self._take(_STRING, "a name in double quotes", group=1)

    def name(self) -> str:
        """Take a bare name: a letter or underscore, then letters, digits, '_', '$' and '.'."""
        return self._take(NAME, "a name")

    def integer(self) -> int:
        """Take a non-negative integer of at most `MAX_DIGITS` digits."""
        column = self.column
        digits = self._take(_INTEGER, "an integer")
        if len(digits) > MAX_DIGITS:
            self.fail(f"an integer of {len(digits)} digits; at most {MAX_DIGITS} are read", column)
        return int(digits)

    def items(
        self, opening: str, closing: str, item: Callable[[], T], most: int | None = None
    ) -> list[T]:
        """Take items between brackets, with commas between them, `most` of them at most.

        >>> scan = Scanner("[1, 2, 3]")
        >>> scan.items("[", "]", scan.integer)
        [1, 2, 3]
        """
        self.expect(opening)
        found: list[T] = []
        while not self.accept(closing):
            if found:
                self.expect(",")
            if len(found) == most:
                self.fail(f"more than {most} entries in one list")
            found.append(item())
        return found

    def starts(self, token: str) -> bool:
        """Whether `token` is next."""
        return self.text.startswith(token, self._at)

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether what is next looks like the pattern."""
        return pattern.match(self.text, self._at) is not None

    def finish(self) -> None:
        """Nothing may be left."""
        if not self.done:
            self.fail(f"expected the end, found {self.found}")

    def fail(self, message: str, column: int | None = None, hint: str | None = None) -> NoReturn:
        """Refuse the text, pointing at `column` (the next token unless given)."""
        raise ParseError(message, text=self.text, column=column or self.column, hint=hint)

    @property
    def found(self) -> str:
        """The next character, as messages show it."""
        return "the end" if self.done else f"'{self.text[self._at]}'"

    def _take(self, pattern: re.Pattern[str], what: str, group: int = 0) -> str:
        match = pattern.match(self.text, self._at)
        if match is None:
            self.fail(f"expected {what}, found {self.found}")
        self._advance(match.end())
        return match.group(group)

    def _advance(self, at: int) -> None:
        self._at = at
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self.text, self._at)
        assert blank is not None  # the pattern matches the empty string
        self._at = blank.end()
