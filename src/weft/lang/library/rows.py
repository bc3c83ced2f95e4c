"""What the lines of the library are made of: dimensions as they are, seen whole, and windows."""

from __future__ import annotations

from collections.abc import Iterable

from weft.lang.notation import Row


def plain(*names: str) -> tuple[Row, ...]:
    """One dimension for each index dimension, as it is.

    >>> print(*plain("b", "m"))
    b m
    """
    return tuple(Row(((name, 1),)) for name in names)


def whole(name: str, source: str = "") -> Row:
    """A dimension that is seen whole; one that is made of another, if that is named.

    >>> print(whole("k"), whole("r", "k"))
    [k] [r<k]
    """
    return Row(((name, 1),), whole=True, source=source)


def numbered(prefix: str, count: int) -> tuple[Row, ...]:
    """So many index dimensions with one letter.

    >>> print(*numbered("i", 3))
    i0 i1 i2
    """
    return plain(*(f"{prefix}{number}" for number in range(count)))


def digits(pairs: Iterable[tuple[str, int]]) -> Row:
    """A dimension in mixed radix, from the names and sizes of its digits, major to minor.

    >>> print(digits([("i", 4), ("j", 3)]))
    3*i+j
    """
    terms: list[tuple[str, int]] = []
    weight = 1
    for name, size in reversed(list(pairs)):
        terms.insert(0, (name, weight))
        weight *= size
    return Row(tuple(terms))
