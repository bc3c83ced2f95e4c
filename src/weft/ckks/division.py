"""Polynomials divided by members of a basis, p = q X_k + r: what costs the fewest products.

The members X_0 = 1, X_1 = u, X_2, ... are powers or Chebyshev's polynomials. Some are made, each
from two others; then a sum is made of their multiples, or divided by one of them, where q is made
one level higher. Depth is counted from u, which has depth 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf, isqrt
from typing import Literal, NamedTuple, TypeAlias

Basis: TypeAlias = Literal["power", "chebyshev"]
Coefficients: TypeAlias = tuple[float, ...]


def trimmed(p: Iterable[float]) -> Coefficients:
    """The coefficients up to the last that is not zero.

    >>> trimmed([1, 0, 2, 0])
    (1.0, 0.0, 2.0)
    """
    found = tuple(map(float, p))
    return found[: max((n for n, c in enumerate(found) if c), default=0) + 1]


def divide(basis: Basis, p: Coefficients, k: int) -> tuple[Coefficients, Coefficients]:
    """A polynomial as q X_k + r, where r is of a lower degree than k.

    >>> divide("power", (1, 2, 3, 4), 2), divide("chebyshev", (1, 2, 3, 4), 2)
    (((3, 4), (1, 2)), ((3, 8), (1, -2)))
    """
    if basis == "power":
        return p[k:], p[:k]
    rest, q = list(p), [0.0] * (len(p) - k)
    for n in range(len(p) - 1, k - 1, -1):
        # T_n = 2 T_k T_(n-k) - T_|n-2k|
        q[n - k] = rest[n] if n == k else 2 * rest[n]
        if n > k:
            rest[abs(n - 2 * k)] -= rest[n]
    return tuple(q), tuple(rest[:k])


class Pair(NamedTuple):
    """The two members whose product makes another."""

    more: int
    less: int

    @property
    def apart(self) -> int:
        """T_(a+b) = 2 T_a T_b - T_(a-b)."""
        return self.more - self.less


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Members of a basis that can be made from u, how, and at which depth.

    >>> Members.of("power", (2, 3, 6)).depths
    {1: 0, 2: 1, 3: 2, 6: 3}
    """

    basis: Basis
    pairs: dict[int, Pair]
    depths: dict[int, int]
    level: frozenset[int]
    """Those whose scale is that of their level: squares of such ones."""

    @classmethod
    def of(cls, basis: Basis, wanted: Iterable[int]) -> Members | None:
        """How to make those members; None where some cannot be made of others."""
        pairs, depths, level = dict[int, Pair](), {1: 0}, {1}
        for n in sorted({*wanted} - {1}):
            halves = [Pair(a, n - a) for a in depths if n - a in depths and 2 * a >= n]
            if basis == "chebyshev":
                halves = [pair for pair in halves if not pair.apart or pair.apart in depths]
            if not halves:
                return None
            best = pairs[n] = min(halves, key=lambda pair: (depths[pair.more], pair.apart))
            depths[n] = depths[best.more] + 1
            level |= {n} if not best.apart and best.more in level else set()
        return cls(basis, pairs, depths, frozenset(level))

    def behind(self, used: Iterable[int]) -> list[int]:
        """The members to make for those that are used, each after what it is made of."""
        found, ahead = set[int](), [n for n in used if n > 1]
        while ahead:
            n = ahead.pop()
            if n not in found:
                found.add(n)
                pair = self.pairs[n]
                parts = (*pair, pair.apart) if self.basis == "chebyshev" else tuple(pair)
                ahead += [m for m in parts if m > 1]
        return sorted(found)


def candidates(basis: Basis, degree: int) -> Iterator[Members]:
    """Sets of members to try: multiples of 1 or 2 up to some number, and some doubles of it."""
    seen = set[frozenset[int]]()
    for step in (1, 2):
        for count in range(1, min(degree // step, 2 * isqrt(degree) + 1) + 1):
            wanted = {1, *(step * n for n in range(1, count + 1))}
            giant = step * count
            while giant <= degree:
                wanted.add(giant)
                found = None if frozenset(wanted) in seen else Members.of(basis, wanted)
                seen.add(frozenset(wanted))
                if found is not None:
                    yield found
                giant *= 2


class Shape(NamedTuple):
    """What the cost of a sum depends on."""

    terms: tuple[bool, ...]
    """Which coefficients are not zero, up to the last."""
    is_unit: bool
    """Whether the last one is 1 or -1 and the sum is at the scale of its level: a member of that
    depth can then be added as it is."""

    @classmethod
    def of(cls, p: Coefficients, is_level: bool) -> Shape:
        """The shape of a polynomial that is wanted at the scale of its level, or not."""
        return cls(tuple(map(bool, p)), is_level and abs(p[-1]) == 1)

    @property
    def used(self) -> list[int]:
        """The members of its terms."""
        return [n for n, kept in enumerate(self.terms) if kept and n]


class Way(NamedTuple):
    """What a sum costs, without its own rescale, and the member it is divided by, if it is."""

    products: float
    rescales: int = 0
    plain: int = 0
    by: int = 0


_NO_WAY = Way(inf)


class Ways:
    """The best way to make each sum from some members.

    >>> ways = Ways(Members.of("power", (2,)))
    >>> ways.best(Shape((True, True, True, True), False), 2)
    Way(products=1, rescales=1, plain=2, by=2)
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.best = cache(self._best)

    def free(self, shape: Shape, depth: int) -> int:
        """The term that is added as it is, or 0."""
        top = len(shape.terms) - 1
        is_free = shape.is_unit and top in self.members.level and self.members.depths[top] == depth
        return top if is_free else 0

    def keeps_scale(self, k: int, depth: int) -> bool:
        """Whether q of a sum at the scale of its level is at that of the level above."""
        return k in self.members.level and self.members.depths[k] == depth - 1

    def _best(self, shape: Shape, depth: int) -> Way:
        depths, free = self.members.depths, self.free(shape, depth)
        plain = [n for n in shape.used if n != free]
        if all(n in depths and depths[n] < depth for n in plain):
            return Way(0, 0, len(plain))
        ways = (self._divided(shape, depth, k) for k, deep in depths.items() if deep < depth)
        return min(ways, default=_NO_WAY)

    def _divided(self, shape: Shape, depth: int, k: int) -> Way:
        top = len(shape.terms) - 1
        if not 0 < top - k <= 1 << (depth - 1):  # what is of a higher degree has no room
            return _NO_WAY
        q, r = _halves(self.members.basis, shape.terms, k)
        is_unit = shape.is_unit and self.keeps_scale(k, depth)
        one, two = self.best(Shape(q, is_unit), depth - 1), self.best(Shape(r, False), depth)
        rescales = one.rescales + two.rescales + (one.products + one.plain > 0)
        return Way(1 + one.products + two.products, rescales, one.plain + two.plain, k)


@lru_cache(maxsize=65536)
def _halves(
    basis: Basis, terms: tuple[bool, ...], k: int
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which terms q and r have, where none happen to cancel."""
    rest = list(terms)
    for n in range(len(terms) - 1, k, -1):
        if basis == "chebyshev":
            rest[abs(n - 2 * k)] |= rest[n]
    last = max((n for n in range(k) if rest[n]), default=0)
    return tuple(rest[k:]), tuple(rest[: last + 1])
