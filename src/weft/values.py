"""Checks of arguments, and the parts of frozen values that all packages share."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import index
from typing import SupportsIndex, TypeAlias, TypeVar

from weft.errors import WeftError

Point: TypeAlias = tuple[int, ...]

K = TypeVar("K")
T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)

MONOIDS: dict[str, object] = dict.fromkeys(("sum", "prod", "max", "min", "and", "or", "logsumexp"))
"""The monoids that combine partial results, in any grouping and any order, by name.

`weft.lang.monoid` adds the definitions, those of users among them; none is ever replaced.
"""


def monoid_hint() -> str:
    """Return a text that says which monoids there are."""
    own = [name for name, definition in MONOIDS.items() if definition is None]
    return f"the monoids are {', '.join(own)}, and those that you define"


def as_point(values: Iterable[SupportsIndex], what: str, ndim: int | None = None) -> Point:
    """Return the values as a tuple of integers, `ndim` of them if given; errors name `what`.

    >>> as_point([4, 8], "shape", ndim=2)
    (4, 8)
    """
    try:
        point = tuple(map(index, values))
    except TypeError:
        hint = f"write ({values},) for one dimension" if isinstance(values, int) else None
        raise WeftError(f"{what} must be a sequence of integers: {values!r}", hint=hint) from None
    if ndim is not None:
        check_rank(what, point, ndim)
    return point


def as_shape(values: Iterable[SupportsIndex], ndim: int | None = None) -> Point:
    """Return the values as the sizes of an array: integers, none of them negative.

    >>> as_shape([4, 0])
    (4, 0)
    """
    shape = as_point(values, "shape", ndim)
    if min(shape, default=0) < 0:
        dim = next(dim for dim, size in enumerate(shape) if size < 0)
        raise WeftError(f"dimension {dim} has the negative size {shape[dim]} in shape {shape}")
    return shape


def as_count(value: SupportsIndex, what: str) -> int:
    """Return the value as an integer that is not negative.

    >>> as_count(True, "priority")
    1
    """
    try:
        count = index(value)
    except TypeError:
        raise WeftError(f"{what} must be an integer: {value!r}") from None
    if count < 0:
        raise WeftError(f"{what} is {count}; it cannot be negative")
    return count


def as_tuple(values: Iterable[T], what: str, kind: type[T]) -> tuple[T, ...]:
    """Return the values as a tuple, all of one kind.

    >>> as_tuple("ab", "axis_names", str)
    Traceback (most recent call last):
    weft.errors.WeftError: axis_names must be a list of str: 'ab'
    """
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        every = tuple(values)
        if all(isinstance(value, kind) for value in every):
            return every
    raise WeftError(f"{what} must be a list of {kind.__name__}: {values!r}")


def check_list(values: object, what: str) -> None:
    """Raise for a value that is not a list, tuple or other iterable: a single text, a number.

    >>> check_list("ab", "meshes")
    Traceback (most recent call last):
    weft.errors.WeftError: meshes must be a list: 'ab'
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise WeftError(f"{what} must be a list: {values!r}")


def check_rank(what: str, got: Sequence[object], ndim: int) -> None:
    """Raise unless there are `ndim` dimensions.

    >>> check_rank("offset", (1, 2), 3)
    Traceback (most recent call last):
    weft.errors.WeftError: offset has 2 dimensions where 3 are expected: (1, 2)
    """
    if len(got) != ndim:
        raise WeftError(
            f"{what} has {counted(len(got), 'dimension')} where {ndim} are expected: {got}"
        )


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun.

    >>> counted(1, "box", "boxes"), counted(2, "box", "boxes"), counted(0, "cell")
    ('1 box', '2 boxes', '0 cells')
    """
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def scaled(number: float, unit: str) -> str:
    """A number of seconds, bytes or other units, with a prefix of its unit.

    >>> scaled(0.00123, "s"), scaled(4096, "B"), scaled(12_345_678, "B")
    ('1.23 ms', '4096 B', '12.3 MB')
    """
    if unit == "B" and number < 100_000:
        return f"{number:.0f} B"
    if not unit:
        return f"{number:.4g}"
    large = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    small = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
    for power, prefix in small if unit == "s" else large:
        if number >= power:
            return f"{number / power:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def points(start: Point, stop: Point) -> Iterator[Point]:
    """Return the integer points of a box, the last dimension running fastest.

    >>> list(points((0, 5), (2, 7)))
    [(0, 5), (0, 6), (1, 5), (1, 6)]
    """
    if all(high - low < 1 << 16 for low, high in zip(start, stop)):
        return product(*map(range, start, stop))
    head = points(start[:-1], stop[:-1])
    return ((*point, x) for point in head for x in range(start[-1], stop[-1]))


def freeze(value: object, **fields: object) -> None:
    """Set the fields of a frozen value, from inside its constructor."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


class FrozenMap(Mapping[K, V_co]):
    """A mapping that cannot change and has a hash, so that it can be part of a value.

    >>> FrozenMap([("x", "sum")])["x"], {FrozenMap([]): 1}[FrozenMap([])]
    ('sum', 1)
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[K, V_co]]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    # Faster than the methods of Mapping, which look up, catch and copy.

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return bool(self._items == other._items)
        return super().__eq__(other)

    def items(self) -> ItemsView[K, V_co]:
        """Return the keys with their values."""
        return self._items.items()

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)
