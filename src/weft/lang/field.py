"""JSON from files: its size is bounded before it is parsed, then it is checked field by field.

A `Field` is a part of the data; errors name its path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from weft.draw import clip
from weft.errors import WeftError
from weft.lang.size import Size

LARGEST = 1 << 48
"""The largest size of a dimension, far beyond any array."""
MOST = 1_000_000
"""The most entries of one list, and the most cells of a mesh."""
MOST_VALUES = 4_000_000
"""The most values of one text of JSON: parsed, they take less than 500 MB."""
LONGEST = 1 << 26
"""The longest text of JSON that is parsed, in characters."""
DEEPEST = 4
"""The deepest nesting of lists in an attribute."""

T = TypeVar("T")


def read_text(path: Path, longest: int = LONGEST) -> str:
    """Return the text of a file of at most `longest` bytes.

    No more than that is read, so that an endless device or pipe is an error, too.
    """
    with path.open("rb") as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise WeftError(f"{path} has more than {longest} B")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WeftError(
            f"{path} is not text: {error}", hint="graphs, plans and runs are JSON"
        ) from None


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Half of a surrogate pair, which is invalid without the other half."""


def parse_json(text: str, whole: str) -> Field:
    r"""Parse the text of `whole`; its contents are not checked yet.

    Texts above `LONGEST` characters or `MOST_VALUES` values are not parsed.

    >>> parse_json('{"weft": 1}', "the graph").value
    {'weft': 1}
    """
    if len(text) > LONGEST:
        raise WeftError(f"{whole} has {len(text)} characters; at most {LONGEST} are read")
    # Each value has a comma or a bracket before it; an object takes more memory than a list.
    count = text.count(",") + text.count("[") + 4 * text.count("{")
    if count > MOST_VALUES:
        raise WeftError(f"{whole} may have {count} values; at most {MOST_VALUES} are read")
    try:
        data = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WeftError("invalid JSON: it has half of a Unicode character") from None
    except (ValueError, RecursionError) as error:
        raise WeftError(f"invalid JSON: {error}") from None
    return Field(data, "", whole)


def short_repr(value: object) -> str:
    """Return the start of a value's `repr`, also for integers that are too long to be printed.

    >>> short_repr(10**5000), short_repr("x")
    ('an integer of 16610 bits', "'x'")
    """
    try:
        return clip(repr(value), 60)
    except ValueError:  # Python does not print integers of thousands of digits
        bits = value.bit_length() if isinstance(value, int) else 0
        return f"an integer of {bits} bits" if bits else f"a {type(value).__name__}"


class Field:
    """A part of the data and the path to it; `whole` is what the data is called.

    >>> Field({"size": -1}, "", "the file").at("size").size()
    Traceback (most recent call last):
    weft.errors.WeftError: size: expected a size from 0 to 281474976710656, got -1
    """

    __slots__ = ("path", "value", "whole")

    def __init__(self, value: Any, path: str, whole: str = "the graph") -> None:
        self.value, self.path, self.whole = value, path, whole

    def fail(self, expected: str) -> NoReturn:
        """Raise an error: what was expected, and what it is."""
        got = short_repr(self.value)
        raise WeftError(f"{self.path or self.whole}: expected {expected}, got {got}")

    def at(self, key: str) -> Field:
        """Return a field of an object; its value is None if it is missing."""
        if not isinstance(self.value, dict | None):
            self.fail("an object")
        path = f"{self.path}.{key}" if self.path else key
        return Field((self.value or {}).get(key), path, self.whole)

    def fields(self, allowed: str) -> None:
        """Raise unless this is an object with no other fields than those."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        known = allowed.split()
        for key in self.value:
            if key not in known:
                path = clip(self.at(key).path, 200)
                raise WeftError(f"{path}: unknown field", hint=allowed)

    def make(self, kind: Callable[..., T], *args: Any) -> T:
        """Return `kind(*args)`; an error that it raises gets the path of the field.

        >>> from weft.values import as_shape
        >>> Field([2, -1], "grid").make(as_shape, [2, -1])
        Traceback (most recent call last):
        weft.errors.WeftError: grid: dimension 1 has the negative size -1 in shape (2, -1)
        """
        try:
            return kind(*args)
        except WeftError as error:
            refused = WeftError(f"{self.path or self.whole}: {error}")
            for note in getattr(error, "__notes__", ()):
                refused.add_note(note)
            raise refused from None

    def text(self) -> str:
        """Return a string that is not empty."""
        if not isinstance(self.value, str) or not self.value:
            self.fail("a string")
        return str(self.value)

    def items(self, read: Callable[[Field], T]) -> list[T]:
        """Return a list, each entry read by a function; empty if missing."""
        if self.value is None:
            return []
        if not isinstance(self.value, list) or len(self.value) > MOST:
            self.fail(f"a list of at most {MOST}")
        return [read(Field(v, f"{self.path}[{n}]")) for n, v in enumerate(self.value)]

    def table(self, read: Callable[[Field], T]) -> dict[str, T]:
        """Return an object with any names, each entry read by a function; empty if missing."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or len(self.value) > MOST:
            self.fail(f"an object of at most {MOST} entries")
        return {key: read(self.at(key)) for key in self.value}

    def number(self, otherwise: float) -> float:
        """Return a number, which may be the string "inf"; `otherwise` if missing."""
        n = self.value
        if n is None or n == "inf":
            return otherwise if n is None else inf
        if isinstance(n, bool) or not isinstance(n, int | float):
            self.fail("a number")
        try:
            return float(n)
        except OverflowError:
            self.fail("a number that fits a float")

    def flag(self) -> bool:
        """Return true or false; false if missing."""
        if not isinstance(self.value, bool | None):
            self.fail("true or false")
        return bool(self.value)

    def size(self) -> int:
        """Return an integer that may be the size of a dimension."""
        n = self.value
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= LARGEST:
            self.fail(f"a size from 0 to {LARGEST}")
        return int(n)

    def plain(self, depth: int = 0) -> Any:
        """Return a number, a string, a flag, None, a size, or a list of such as a tuple."""
        if isinstance(self.value, dict) and [*self.value] == ["size"]:
            return self.at("size").make(Size.parse, self.at("size").text())
        if isinstance(self.value, dict) and [*self.value] == ["complex"]:
            parts = self.at("complex").items(lambda field: field.number(0.0))
            return complex(*parts) if len(parts) == 2 else self.at("complex").fail("two numbers")
        if isinstance(self.value, list) and depth < DEEPEST:
            return tuple(self.items(lambda field: field.plain(depth + 1)))
        if not isinstance(self.value, str | int | float | bool | None):
            self.fail(f"a number, a string, a flag or a list of them, at most {DEEPEST} deep")
        return self.value
