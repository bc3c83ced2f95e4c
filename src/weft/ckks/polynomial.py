"""How a polynomial of a ciphertext is evaluated: at the least depth, with few products.

All terms of a sum are added before its one rescale, and every coefficient is encoded at the scale
that brings its term to that of the sum: nothing is ever adjusted, and the result is at the scale of
its level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import copysign, inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.polynomial import Polynomial

from weft.ckks.activations import Activation
from weft.ckks.division import (
    Basis,
    Coefficients,
    Members,
    Shape,
    Ways,
    candidates,
    divide,
    trimmed,
)
from weft.ckks.operations import (
    Counts,
    Difference,
    Dropped,
    Negated,
    Op,
    Product,
    Rescaled,
    Scaled,
    Shifted,
    Sum,
    apply,
    count,
    execute,
)
from weft.ckks.parameters import Parameters
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.ckks.backend import Backend, Cipher

STEEP = 2.0**16
"""How far the powers of an argument may grow before it is normalised: their coefficients shrink as
much, and are encoded with as many bits less."""


class Ladder(NamedTuple):
    """The scales of levels and the primes that rescales divide by, by depth from the argument."""

    scale: Callable[[int], float]
    prime: Callable[[int], float]

    @classmethod
    def of(cls, parameters: Parameters, level: int) -> Ladder:
        """Those of an argument at a level."""
        scales, primes = parameters.scales, parameters.primes
        return cls(lambda depth: scales[level - depth], lambda depth: float(primes[level - depth]))


UNIT = Ladder(lambda _: 1.0, lambda _: 1.0)
"""For counting, where scales do not matter."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A polynomial in a basis, and the members of the basis that are made for it.

    >>> evaluation = plan([1, 2, 3, 4])
    >>> evaluation.members, evaluation.counts.products, evaluation.counts.levels
    ((2,), 2, 2)
    """

    coefficients: Coefficients
    basis: Basis
    members: tuple[int, ...]
    """Those that are made, beside 1 and the argument u."""
    factor: float = 1.0
    """u is factor * x + shift."""
    shift: float = 0.0
    folded: bool = True
    """Whether the layer before makes u; else it is made here, for a level, where it is not x."""

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return len(self.coefficients) - 1

    @property
    def is_normalised_here(self) -> bool:
        """Whether the first level goes to making u."""
        return not self.folded and (self.factor, self.shift) != (1.0, 0.0)

    @property
    def levels(self) -> int:
        """How many levels it takes."""
        return self.is_normalised_here + _levels(self.basis, self.coefficients)

    @property
    def counts(self) -> Counts:
        """What it costs for one ciphertext."""
        return count(self.levels, self.operations())

    def operations(self, ladder: Ladder = UNIT) -> tuple[Op, ...]:
        """The operations, on scales by depth; the last one makes the result."""
        members = Members.of(self.basis, self.members)
        assert members is not None, self
        writer = _Writer(members, ladder, int(self.is_normalised_here))
        writer.write(self)
        return tuple(writer.done)

    def run(self, backend: Backend, argument: Cipher[Any]) -> Cipher[Any]:
        """The polynomial of a ciphertext, which is u where that is folded, and else x.

        >>> from weft.ckks.simulator import Simulator
        >>> backend = Simulator(Parameters(64, depth=3, security=None))
        >>> made = plan([1, 2, 3]).run(backend, backend.encrypt([0.0, 1.0, 2.0]))
        >>> made, backend.decrypt(made)[:3].tolist()
        (Cipher(level=1, scale=2^40.000), [1.0, 6.0, 17.0])
        """
        level = backend.level_of(argument)
        if level < self.levels:
            raise WeftError(
                f"a polynomial of degree {self.degree} takes {self.levels} levels and its argument "
                f"has {level}",
                hint="parameters of a larger depth, or a polynomial of a lower degree",
            )
        made, operations = {0: argument}, self.operations(Ladder.of(backend.parameters, level))
        for op in operations:
            made[op.out] = execute(op, backend, made, level)
        return made[max(made)]

    def __call__(self, x: float) -> float:
        """What it makes of a number that is not encrypted."""
        made = {0: self.factor * x + self.shift if self.folded else x}
        for op in self.operations():
            made[op.out] = apply(op, made)
        return made[max(made)]


def _levels(basis: Basis, p: Coefficients) -> int:
    """ceil(log2(d + 1)); where the last power needs no coefficient, ceil(log2(d))."""
    is_unit = basis == "power" and abs(p[-1]) == 1
    return (len(p) - 1 - is_unit).bit_length()


class _Value(NamedTuple):
    register: int
    depth: int
    scale: float


class _Writer:
    """Writes the operations of an evaluation down, and knows the depth and scale of every value."""

    def __init__(self, members: Members, ladder: Ladder, depth: int) -> None:
        self.members, self.ways, self.first = members, Ways(members), depth
        self.ladder = Ladder(
            lambda deep: ladder.scale(deep + depth), lambda deep: ladder.prime(deep + depth)
        )
        self.start = _Value(0, -depth, ladder.scale(0))
        self.known: dict[int, _Value] = {}
        self.done: list[Op] = []

    def write(self, evaluation: Evaluation) -> None:
        argument = self.start
        if evaluation.is_normalised_here:
            target = self.ladder.scale(0) * self.ladder.prime(-1)
            argument = self.rescale(self.plain(argument, evaluation.factor, -1, target))
            argument = self.shifted(argument, evaluation.shift)
        self.known[1] = argument
        p, levels = evaluation.coefficients, _levels(evaluation.basis, evaluation.coefficients)
        for n in self.members.behind(self._used(p, levels, evaluation.basis == "power")):
            self.known[n] = self._member(n)
        self._sum(p, levels, self.ladder.scale(levels), evaluation.basis == "power")

    def _used(self, p: Coefficients, depth: int, is_level: bool) -> Iterator[int]:
        """The members that a sum uses, as divisors or in terms."""
        shape = Shape.of(p, is_level)
        by = self.ways.best(shape, depth).by
        if not by:
            yield from shape.used
            return
        q, r = divide(self.members.basis, p, by)
        yield by
        yield from self._used(q, depth - 1, is_level and self.ways.keeps_scale(by, depth))
        yield from self._used(trimmed(r), depth, False)

    def _member(self, n: int) -> _Value:
        pair = self.members.pairs[n]
        made = self.product(self.known[pair.more], self.known[pair.less])
        if self.members.basis == "chebyshev":
            made = self.sum(made, made)
            if pair.apart:
                less = self.plain(self.known[pair.apart], -1.0, made.depth, made.scale)
                return self.rescale(self.sum(made, less))
            return self.shifted(self.rescale(made), -1.0)
        return self.rescale(made)

    def _sum(self, p: Coefficients, depth: int, scale: float, is_level: bool) -> _Value:
        """A polynomial at a depth and a scale."""
        before = scale * self.ladder.prime(depth - 1) if depth else scale
        terms, constant, free = self._terms(p, depth, before, is_level)
        made = self.rescale(reduce(self.sum, terms)) if terms else None
        if free:
            made = self._with(made, self.known[free], p[-1])
        assert made is not None, p
        return self.shifted(made, constant)

    def _with(self, made: _Value | None, member: _Value, sign: float) -> _Value:
        """A member added to a sum, or taken from it, as it is."""
        if made is None:
            return member if sign > 0 else self._put(Negated, member, member.register)
        kind = Sum if sign > 0 else Difference
        return self._put(kind, made, made.register, member.register)

    def _terms(
        self, p: Coefficients, depth: int, scale: float, is_level: bool
    ) -> tuple[list[_Value], float, int]:
        """The terms of a sum, one level above it and not rescaled; the constant; what is free."""
        shape = Shape.of(p, is_level)
        by = self.ways.best(shape, depth).by
        if not by:
            free = self.ways.free(shape, depth)
            used = [n for n in shape.used if n != free]
            return [self.plain(self.known[n], p[n], depth - 1, scale) for n in used], p[0], free
        q, r = divide(self.members.basis, p, by)
        member, keeps = self.known[by], is_level and self.ways.keeps_scale(by, depth)
        first = self.product(self._sum(q, depth - 1, scale / member.scale, keeps), member)
        terms, constant, _ = self._terms(trimmed(r), depth, scale, False)
        return [first, *terms], constant, 0

    def _put(self, kind: Callable[..., Op], like: _Value, *given: float) -> _Value:
        """Write an operation down whose result is at the depth and the scale of a value."""
        op = kind(len(self.done) + 1, *given)
        self.done.append(op)
        return like._replace(register=op.out)

    def dropped(self, a: _Value, depth: int) -> _Value:
        if a.depth == depth:
            return a
        below = a._replace(depth=depth)
        return self._put(Dropped, below, a.register, depth + self.first)

    def plain(self, a: _Value, value: float, depth: int, scale: float) -> _Value:
        """A multiple at a depth, such that its scale before the rescale is the one given."""
        a = self.dropped(a, depth)
        made = a._replace(scale=scale)
        return self._put(Scaled, made, a.register, value, scale / a.scale)

    def product(self, a: _Value, b: _Value) -> _Value:
        depth = max(a.depth, b.depth)
        a, b = self.dropped(a, depth), self.dropped(b, depth)
        made = a._replace(scale=a.scale * b.scale)
        return self._put(Product, made, a.register, b.register)

    def sum(self, a: _Value, b: _Value) -> _Value:
        return self._put(Sum, a, a.register, b.register)

    def shifted(self, a: _Value, value: float) -> _Value:
        return self._put(Shifted, a, a.register, value) if value else a

    def rescale(self, a: _Value) -> _Value:
        made = a._replace(depth=a.depth + 1, scale=a.scale / self.ladder.prime(a.depth))
        return self._put(Rescaled, made, a.register)


def plan(coefficients: Iterable[float], basis: Basis = "power") -> Evaluation:
    """The best evaluation of a polynomial of a ciphertext as it is.

    Of degree d it takes ceil(log2(d + 1)) levels; ceil(log2(d)) where the last coefficient is 1 or
    -1, of powers. Of all ways at this depth it has the fewest products, then rescales, then plain
    products.

    >>> plan([1, 2, 3, 4, 5]).counts.products, plan([1, 2, 3, 4, 1]).counts.levels
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
    levels, is_level = _levels(basis, p), basis == "power"
    found = []
    for members in candidates(basis, len(p) - 1):
        if Ways(members).best(Shape.of(p, is_level), levels).products < inf:
            made = Evaluation(p, basis, tuple(members.pairs))
            found.append((made.counts, made))
    return min(found, key=lambda each: each[0])[1]


def evaluate(activation: Activation, fold: bool = True, basis: Basis | None = None) -> Evaluation:
    """The best evaluation of an activation of x.

    With `fold` the linear layer before gives u = factor * x + shift in place of x, by its weights
    and its bias. Where the degree is a power of two this makes the polynomial one of powers whose
    last coefficient is 1 or -1 (and whose last but one is 0), which saves a level; of degree 2 it
    is one square, and a constant. Else it normalises the range to [-1, 1], for Chebyshev's
    polynomials. Without `fold`, powers of x are taken where they do not grow much on the range, and
    Chebyshev's polynomials of x normalised, for one level more, where they do.

    >>> from weft.ckks.activations import fit
    >>> relu = fit("relu", 2, -8, 8)
    >>> evaluate(relu).counts[:4], evaluate(relu, fold=False).counts[:4]
    ((1, 1, 0, 1), (2, 1, 1, 2))
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
        found = plan(activation.coefficients, basis)
        return replace(found, factor=factor, shift=shift, folded=fold)
    p = trimmed(activation.power)
    return _monic(p) if fold else plan(p)


def _monic(p: Coefficients) -> Evaluation:
    """Powers of u = a (x - s): the last coefficient is 1 or -1 and the one before is 0."""
    degree = len(p) - 1
    if not degree:
        return plan(p)
    factor = abs(p[-1]) ** (1 / degree)
    centre = -p[-2] / (degree * p[-1])
    moved = Polynomial(p)(Polynomial([centre, 1 / factor])).coef
    exact = [*map(float, moved[:-2]), 0.0, copysign(1.0, p[-1])]
    return replace(plan(exact), factor=factor, shift=-factor * centre)
