"""What the lines of the library are made of: dimensions as they are, seen whole, and windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.errors import WeftError
from weft.lang.notation import Row
from weft.values import Point


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


def aligned(prefix: str, shapes: Sequence[Point]) -> tuple[list[list[Row]], tuple[Row, ...]]:
    """The rows of arrays that are repeated to one shape, as NumPy does, and those of that shape.

    >>> rows, made = aligned("i", [(8, 4), (1, 4), (4,)])
    >>> print(*(" ".join(map(str, row)) for row in rows), " ".join(map(str, made)), sep=", ")
    i0 i1, 1 i1, i1, i0 i1
    """
    rank = max(map(len, shapes))
    single = [
        all(shape[dim - rank] == 1 for shape in shapes if dim >= rank - len(shape))
        for dim in range(rank)
    ]
    dims = numbered(prefix, rank)
    rows = [
        [
            Row() if size == 1 and not single[dim] else dims[dim]
            for dim, size in enumerate(shape, rank - len(shape))
        ]
        for shape in shapes
    ]
    return rows, dims


def place(dim: int, shape: Point) -> int:
    """A dimension counted from the front, if there is one.

    >>> place(-1, (8, 4))
    1
    """
    if not -len(shape) <= dim < len(shape):
        raise WeftError(f"{list(shape)} has no dimension {dim}")
    return dim % len(shape)
