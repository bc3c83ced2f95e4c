"""What frozen values share: checks of their arguments, and how they keep them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import TypeAlias, TypeVar

from weft.errors import WeftError

Point: TypeAlias = tuple[int, ...]

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)

MONOIDS = ("sum", "prod", "max", "min", "and", "or", "logsumexp", "softmax")
"""The names of what combines partial results, in any grouping and any order.

`softmax` is the running softmax of attention: a maximum, a sum and a weighted sum carried together.
"""


def as_point(values: Iterable[int], what: str, ndim: int | None = None) -> Point:
    """The values as a tuple of integers, `ndim` of them if given; `what` names them in errors.

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


def as_shape(values: Iterable[int], ndim: int | None = None) -> Point:
    """The values as the sizes of an array: integers, none of them negative.

    >>> as_shape([4, 0])
    (4, 0)
    """
    shape = as_point(values, "shape", ndim)
    if min(shape, default=0) < 0:
        dim = next(dim for dim, size in enumerate(shape) if size < 0)
        raise WeftError(f"dimension {dim} has the negative size {shape[dim]} in shape {shape}")
    return shape


def check_rank(what: str, got: Sequence[object], ndim: int) -> None:
    """Refuse what does not have as many dimensions as it must.

    >>> check_rank("offset", (1, 2), 3)
    Traceback (most recent call last):
    weft.errors.WeftError: offset has 2 dimensions where 3 are expected: (1, 2)
    """
    if len(got) != ndim:
        raise WeftError(f"{what} has {len(got)} dimensions where {ndim} are expected: {got}")


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

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)
