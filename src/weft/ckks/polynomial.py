"""Polynomials of a ciphertext: the evaluation of least depth with the fewest products.

A polynomial is a sum of members of a basis, X_0 = 1, X_1 = u, X_2, ...: powers or Chebyshev
polynomials. Some members are computed, each as the product of two others. A sum is then computed
from multiples of these members, or divided by one of them, p = q X_k + r, where q is computed one
level higher. Depth is counted from the argument u, which has depth 0.

All terms of a sum are added before its one rescale, and every coefficient is encoded at the scale
that gives its term the scale of the sum: nothing is adjusted, and the result has the scale of its
level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from math import copysign, inf, isfinite, isqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.polynomial import Polynomial, chebyshev, polynomial

from weft.ckks.activations import Activation
from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import (
    Constant,
    OperationCounts,
    SlotProgram,
    SlotProgramBuilder,
    count,
    execute,
)
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.ckks.backends import Backend, Ciphertext

STEEP = 2.0**16
"""How far powers of an argument may grow before it is normalised: their coefficients shrink as
much, and are encoded with as many bits less."""

Basis: TypeAlias = Literal["power", "chebyshev"]
Coefficients: TypeAlias = tuple[float, ...]


# -- division by members of a basis ---------------------------------------------------------------


def trimmed(p: Iterable[float]) -> Coefficients:
    """Return the coefficients up to the last that is not zero.

    >>> trimmed([1, 0, 2, 0])
    (1.0, 0.0, 2.0)
    """
    given = tuple(map(float, p))
    return given[: max((n for n, c in enumerate(given) if c), default=0) + 1]


def divide(basis: Basis, p: Coefficients, k: int) -> tuple[Coefficients, Coefficients]:
    """Return q and r of p = q X_k + r, where r has a lower degree than k.

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


class MemberPair(NamedTuple):
    """Two members whose product gives another."""

    more: int
    less: int

    @property
    def apart(self) -> int:
        """The member that is subtracted: T_(a+b) = 2 T_a T_b - T_(a-b)."""
        return self.more - self.less


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Members of a basis that are computed from u, with their factors and depths.

    >>> Members.of("power", (2, 3, 6)).depths
    {1: 0, 2: 1, 3: 2, 6: 3}
    """

    basis: Basis
    pairs: dict[int, MemberPair]
    depths: dict[int, int]
    level: frozenset[int]
    """Those at the scale of their level: repeated squares of u."""

    @classmethod
    def of(cls, basis: Basis, wanted: Iterable[int]) -> Members | None:
        """Return the factors of each member; None if one is not a product of others."""
        pairs, depths, level = dict[int, MemberPair](), {1: 0}, {1}
        for n in sorted({*wanted} - {1}):
            halves = [MemberPair(a, n - a) for a in depths if n - a in depths and 2 * a >= n]
            if basis == "chebyshev":
                halves = [pair for pair in halves if not pair.apart or pair.apart in depths]
            if not halves:
                return None
            best = pairs[n] = min(halves, key=lambda pair: (depths[pair.more], pair.apart))
            depths[n] = depths[best.more] + 1
            level |= {n} if not best.apart and best.more in level else set()
        return cls(basis, pairs, depths, frozenset(level))

    def needed_for(self, used: Iterable[int]) -> list[int]:
        """Return all members to compute for those that are used, factors first."""
        result, pending = set[int](), [n for n in used if n > 1]
        while pending:
            n = pending.pop()
            if n not in result:
                result.add(n)
                pair = self.pairs[n]
                parts = (*pair, pair.apart) if self.basis == "chebyshev" else tuple(pair)
                pending += [m for m in parts if m > 1]
        return sorted(result)


def candidates(basis: Basis, degree: int) -> Iterator[Members]:
    """Return sets of members to try: multiples of 1 or 2 up to a number, and doubles of it."""
    seen = set[frozenset[int]]()
    for step in (1, 2):
        for most in range(1, min(degree // step, 2 * isqrt(degree) + 1) + 1):
            wanted = {1, *(step * n for n in range(1, most + 1))}
            giant = step * most
            while giant <= degree:
                wanted.add(giant)
                members = None if frozenset(wanted) in seen else Members.of(basis, wanted)
                seen.add(frozenset(wanted))
                if members is not None:
                    yield members
                giant *= 2


class SumShape(NamedTuple):
    """The properties of a sum that its cost depends on."""

    terms: tuple[bool, ...]
    """Which coefficients are not zero, up to the last."""
    is_unit: bool
    """Whether the last one is 1 or -1 and the sum is at the scale of its level: a member of that
    depth can then be added as it is."""

    @classmethod
    def of(cls, p: Coefficients, is_level: bool) -> SumShape:
        """Return the shape of a polynomial; `is_level`: it must have the scale of its level."""
        return cls(tuple(map(bool, p)), is_level and abs(p[-1]) == 1)

    @property
    def used(self) -> list[int]:
        """The members of its terms."""
        return [n for n, kept in enumerate(self.terms) if kept and n]


class SumCost(NamedTuple):
    """The cost of a sum without its own rescale, and the member that it is divided by, or 0."""

    products: float
    rescales: int = 0
    plain: int = 0
    by: int = 0


class DivisionSearch:
    """The cheapest evaluation of each sum from given members.

    >>> search = DivisionSearch(Members.of("power", (2,)))
    >>> search.best(SumShape((True, True, True, True), False), 2)
    SumCost(products=1, rescales=1, plain=2, by=2)
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.best = cache(self._best)

    def free(self, shape: SumShape, depth: int) -> int:
        """Return the term that is added as it is, or 0."""
        top = len(shape.terms) - 1
        is_free = shape.is_unit and top in self.members.level and self.members.depths[top] == depth
        return top if is_free else 0

    def keeps_scale(self, k: int, depth: int) -> bool:
        """Whether q has the scale of its level if the sum does."""
        return k in self.members.level and self.members.depths[k] == depth - 1

    def _best(self, shape: SumShape, depth: int) -> SumCost:
        depths, free = self.members.depths, self.free(shape, depth)
        plain = [n for n in shape.used if n != free]
        if all(n in depths and depths[n] < depth for n in plain):
            return SumCost(0, 0, len(plain))
        costs = (self._divided(shape, depth, k) for k, deep in depths.items() if deep < depth)
        return min(costs, default=SumCost(inf))

    def _divided(self, shape: SumShape, depth: int, k: int) -> SumCost:
        top = len(shape.terms) - 1
        if not 0 < top - k <= 1 << (depth - 1):  # a higher degree needs more levels
            return SumCost(inf)
        q, r = _divided_terms(self.members.basis, shape.terms, k)
        is_unit = shape.is_unit and self.keeps_scale(k, depth)
        one, two = self.best(SumShape(q, is_unit), depth - 1), self.best(SumShape(r, False), depth)
        rescales = one.rescales + two.rescales + (one.products + one.plain > 0)
        return SumCost(1 + one.products + two.products, rescales, one.plain + two.plain, k)


@lru_cache(maxsize=65536)
def _divided_terms(
    basis: Basis, terms: tuple[bool, ...], k: int
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return the terms of q and r, assuming that none cancel."""
    rest = list(terms)
    for n in range(len(terms) - 1, k, -1):
        if basis == "chebyshev":
            rest[abs(n - 2 * k)] |= rest[n]
    last = max((n for n in range(k) if rest[n]), default=0)
    return tuple(rest[k:]), tuple(rest[: last + 1])


# -- evaluations ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A polynomial in a basis, and the members of the basis that are computed for it.

    >>> evaluation = plan([1, 2, 3, 4])
    >>> evaluation.members, evaluation.counts.products, evaluation.levels
    ((2,), 2, 2)
    """

    coefficients: Coefficients
    basis: Basis
    members: tuple[int, ...]
    """Those that are computed, besides 1 and the argument u."""
    factor: float = 1.0
    """u is factor * x + shift."""
    shift: float = 0.0
    folded: bool = True
    """Whether the layer before computes u; otherwise it takes a level here, unless u is x."""

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return len(self.coefficients) - 1

    @property
    def is_normalised_here(self) -> bool:
        """Whether u is computed here, with the first level."""
        return not self.folded and (self.factor, self.shift) != (1.0, 0.0)

    @property
    def levels(self) -> int:
        """The number of levels that it takes."""
        return self.is_normalised_here + _levels(self.basis, self.coefficients)

    @property
    def counts(self) -> OperationCounts:
        """The operations on one ciphertext."""
        return count(self.program())

    def program(
        self, parameters: Parameters | None = None, level: int | None = None
    ) -> SlotProgram:
        """Return the program on a ciphertext at a level (default: all scales and primes are 1)."""
        top = self.levels if parameters is None else parameters.level(level)
        scales = (1.0,) * (top + 1) if parameters is None else parameters.scales
        primes = scales if parameters is None else parameters.primes
        members = Members.of(self.basis, self.members)
        assert members is not None, self
        writer = _EvaluationWriter(members, top, scales, primes, int(self.is_normalised_here))
        return writer.builder.program([writer.write(self)])

    def run(self, backend: Backend, argument: Ciphertext[Any]) -> Ciphertext[Any]:
        """Return the polynomial of a ciphertext, which holds u if that is folded, otherwise x.

        >>> from weft.ckks.backends import Simulator
        >>> backend = Simulator(Parameters(64, depth=3, security=None))
        >>> result = plan([1, 2, 3]).run(backend, backend.encrypt([0.0, 1.0, 2.0]))
        >>> result, backend.decrypt(result)[:3].tolist()
        (Ciphertext(level=1, scale=2^40.000), [1.0, 6.0, 17.0])
        """
        if argument.level < self.levels:
            raise WeftError(
                f"a polynomial of degree {self.degree} takes {self.levels} levels and its argument "
                f"has {argument.level}",
                hint="parameters of a larger depth, or a polynomial of a lower degree",
            )
        program = self.program(backend.parameters, argument.level)
        return execute(program, backend, [argument])[0]

    def value(self, argument: Floats) -> Floats:
        """Return the polynomial of numbers, which are u if that is folded, otherwise x."""
        u = argument if self.folded else self.factor * argument + self.shift
        values = {"power": polynomial.polyval, "chebyshev": chebyshev.chebval}
        return np.asarray(values[self.basis](u, self.coefficients), np.float64)


def _levels(basis: Basis, p: Coefficients) -> int:
    """Return ceil(log2(d + 1)), or ceil(log2(d)) where the last power needs no coefficient."""
    is_unit = basis == "power" and abs(p[-1]) == 1
    return (len(p) - 1 - is_unit).bit_length()


class _Term(NamedTuple):
    """A register with the depth and the scale of its ciphertext."""

    register: int
    depth: int
    scale: float


class _EvaluationWriter:
    """Writes the program of an evaluation, with the depth and scale of every value."""

    def __init__(
        self,
        members: Members,
        top: int,
        scales: Sequence[float],
        primes: Sequence[float],
        first: int,
    ) -> None:
        self.members, self.search = members, DivisionSearch(members)
        self.scales, self.primes, self.builder = scales, primes, SlotProgramBuilder(1)
        self.level = top - first
        """The level of depth 0: that of u."""
        self.start = _Term(0, -first, scales[top])
        self.known: dict[int, _Term] = {}

    def scale(self, depth: int) -> float:
        """Return the scale of the level at a depth."""
        return self.scales[self.level - depth]

    def prime(self, depth: int) -> float:
        """Return the prime that a rescale at a depth divides by."""
        return float(self.primes[self.level - depth])

    def write(self, evaluation: Evaluation) -> int:
        """Write all instructions; return the register of the result."""
        argument = self.start
        if evaluation.is_normalised_here:
            target = self.scale(0) * self.prime(-1)
            argument = self.rescale(self.mul_plain(argument, evaluation.factor, -1, target))
            argument = self.shifted(argument, evaluation.shift)
        self.known[1] = argument
        p, levels = evaluation.coefficients, _levels(evaluation.basis, evaluation.coefficients)
        is_level = evaluation.basis == "power"
        for n in self.members.needed_for(self._used(p, levels, is_level)):
            self.known[n] = self._member(n)
        return self._sum(p, levels, self.scale(levels), is_level).register

    def _used(self, p: Coefficients, depth: int, is_level: bool) -> Iterator[int]:
        """Return the members that a sum uses, as divisors or in terms."""
        shape = SumShape.of(p, is_level)
        by = self.search.best(shape, depth).by
        if not by:
            yield from shape.used
            return
        q, r = divide(self.members.basis, p, by)
        yield by
        yield from self._used(q, depth - 1, is_level and self.search.keeps_scale(by, depth))
        yield from self._used(trimmed(r), depth, False)

    def _member(self, n: int) -> _Term:
        pair = self.members.pairs[n]
        product = self.mul(self.known[pair.more], self.known[pair.less])
        if self.members.basis == "power":
            return self.rescale(product)
        double = self.add(product, product)
        if not pair.apart:
            return self.shifted(self.rescale(double), -1.0)
        less = self.mul_plain(self.known[pair.apart], -1.0, double.depth, double.scale)
        return self.rescale(self.add(double, less))

    def _sum(self, p: Coefficients, depth: int, scale: float, is_level: bool) -> _Term:
        """Write a polynomial at a depth and a scale."""
        before = scale * self.prime(depth - 1) if depth else scale
        terms, constant, free = self._terms(p, depth, before, is_level)
        total = self.rescale(reduce(self.add, terms)) if terms else None
        if free:
            total = self._plus_member(total, self.known[free], p[-1])
        assert total is not None, p
        return self.shifted(total, constant)

    def _plus_member(self, total: _Term | None, member: _Term, sign: float) -> _Term:
        """Add a member to a sum, or subtract it, as it is."""
        if total is None:
            negative = member.register if sign > 0 else self.builder.negate(member.register)
            return member._replace(register=negative)
        combine = self.builder.add if sign > 0 else self.builder.sub
        return total._replace(register=combine(total.register, member.register))

    def _terms(
        self, p: Coefficients, depth: int, scale: float, is_level: bool
    ) -> tuple[list[_Term], float, int]:
        """Return the terms of a sum before its rescale, its constant, and its free member or 0."""
        shape = SumShape.of(p, is_level)
        by = self.search.best(shape, depth).by
        if not by:
            free = self.search.free(shape, depth)
            used = [n for n in shape.used if n != free]
            terms = [self.mul_plain(self.known[n], p[n], depth - 1, scale) for n in used]
            return terms, p[0], free
        q, r = divide(self.members.basis, p, by)
        member, keeps = self.known[by], is_level and self.search.keeps_scale(by, depth)
        first = self.mul(self._sum(q, depth - 1, scale / member.scale, keeps), member)
        terms, constant, _ = self._terms(trimmed(r), depth, scale, False)
        return [first, *terms], constant, 0

    def _dropped(self, a: _Term, depth: int) -> _Term:
        if a.depth == depth:
            return a
        register = self.builder.drop(a.register, self.level - depth)
        return _Term(register, depth, a.scale)

    def mul_plain(self, a: _Term, value: float, depth: int, scale: float) -> _Term:
        """Write a multiple at a depth, such that its scale before the rescale is the given one."""
        a = self._dropped(a, depth)
        register = self.builder.mul_plain(a.register, Constant(value), scale / a.scale)
        return _Term(register, depth, scale)

    def mul(self, a: _Term, b: _Term) -> _Term:
        """Write a product, at the greater depth of its factors."""
        depth = max(a.depth, b.depth)
        a, b = self._dropped(a, depth), self._dropped(b, depth)
        return _Term(self.builder.mul(a.register, b.register), depth, a.scale * b.scale)

    def add(self, a: _Term, b: _Term) -> _Term:
        """Write a sum."""
        return a._replace(register=self.builder.add(a.register, b.register))

    def shifted(self, a: _Term, value: float) -> _Term:
        """Write a sum with a constant, unless that is 0."""
        if not value:
            return a
        return a._replace(register=self.builder.add_plain(a.register, Constant(value)))

    def rescale(self, a: _Term) -> _Term:
        """Write a rescale."""
        return _Term(self.builder.rescale(a.register), a.depth + 1, a.scale / self.prime(a.depth))


def plan(coefficients: Iterable[float], basis: Basis = "power") -> Evaluation:
    """Return the best evaluation of a polynomial of a ciphertext as it is.

    A degree of d takes ceil(log2(d + 1)) levels; ceil(log2(d)) in powers if the last coefficient is
    1 or -1. Of all evaluations at this depth it has the fewest products, then the fewest plaintext
    products, then the fewest rescales.

    >>> plan([1, 2, 3, 4, 5]).counts.products, plan([1, 2, 3, 4, 1]).levels
    (2, 2)
    """
    p = trimmed(coefficients)
    if len(p) == 1:
        raise WeftError(
            f"a polynomial of degree 0, {p[0]:g}, has no ciphertext in it",
            hint="what follows needs no encryption: replace the value by the number",
        )
    if not all(map(isfinite, p)):
        raise WeftError(f"a polynomial has the coefficients {list(p)}")
    return _planned(p, basis)


@lru_cache(maxsize=256)
def _planned(p: Coefficients, basis: Basis) -> Evaluation:
    levels, shape = _levels(basis, p), SumShape.of(p, basis == "power")
    evaluations = [
        Evaluation(p, basis, tuple(members.pairs))
        for members in candidates(basis, len(p) - 1)
        if DivisionSearch(members).best(shape, levels).products < inf
    ]
    return min(evaluations, key=_rank)


def _rank(evaluation: Evaluation) -> tuple[int, ...]:
    counts = evaluation.counts
    dear = counts.products, counts.plain_products, counts.rescales
    return (*dear, counts.additions, counts.plain_additions, counts.drops)


def evaluate(activation: Activation, fold: bool = True, basis: Basis | None = None) -> Evaluation:
    """Return the best evaluation of an activation of x.

    With `fold` the linear layer before computes u = factor * x + shift in place of x, by its
    weights and its bias. Where the degree is a power of two this makes the polynomial one of powers
    whose last coefficient is 1 or -1 (and whose last but one is 0), which saves a level; for degree
    2 it is one square and a constant. Otherwise it normalises the range to [-1, 1], for Chebyshev
    polynomials. Without `fold`, powers of x are used where they do not grow much on the range, and
    Chebyshev polynomials of x normalised, for one level more, where they do.

    >>> from weft.ckks.activations import fit
    >>> relu = fit("relu", 2, -8, 8)
    >>> evaluate(relu).levels, evaluate(relu, fold=False).levels
    (1, 2)
    """
    degree = activation.degree
    if basis is None:
        if fold:
            basis = "chebyshev" if degree & (degree - 1) else "power"
        else:
            most = max(1.0, abs(activation.low), abs(activation.high))
            basis = "power" if most**degree <= STEEP else "chebyshev"
    if basis == "chebyshev":
        half = (activation.high - activation.low) / 2
        factor, shift = 1 / half, -(activation.high + activation.low) / 2 / half
        return replace(
            plan(activation.coefficients, basis), factor=factor, shift=shift, folded=fold
        )
    p = trimmed(activation.power)
    return _monic(p) if fold else plan(p)


def _monic(p: Coefficients) -> Evaluation:
    """Use powers of u = a (x - s): the last coefficient is 1 or -1, the one before it 0."""
    degree = len(p) - 1
    if not degree:
        return plan(p)
    factor = abs(p[-1]) ** (1 / degree)
    centre = -p[-2] / (degree * p[-1])
    moved = Polynomial(p)(Polynomial([centre, 1 / factor])).coef
    exact = [*map(float, moved[:-2]), 0.0, copysign(1.0, p[-1])]
    return replace(plan(exact), factor=factor, shift=-factor * centre)
