"""The sharding of a tensor seen through the factors of an operator, and back.

A dimension with several factors gives its axes to them from the major end: an axis that is larger
than what is left of a factor is split. What a factor cannot take overflows, and blocks the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple, TypeAlias

from weft.lang.rule import TensorFactors
from weft.plan.propagation.axes import Piece, Pieces, append


class TensorSharding(NamedTuple):
    """How a tensor lies on a mesh, for propagation: pieces of axes, and what is open."""

    axes: tuple[Pieces, ...]
    is_open: tuple[bool, ...]
    replicated: Pieces = ()
    unreduced: Pieces = ()
    mesh: int = 0
    """The number of the mesh on which it lies, to which the axes belong."""

    @classmethod
    def free(cls, ndim: int) -> TensorSharding:
        """The sharding of a tensor about which nothing is known."""
        return cls(((),) * ndim, (True,) * ndim)

    @property
    def kept(self) -> Pieces:
        """The axes that must not cut it: replicated, or used by partial results."""
        return self.replicated + self.unreduced

    @property
    def is_cut(self) -> bool:
        """Whether some axis cuts some dimension."""
        return any(self.axes)


@dataclass(slots=True)
class FactorSharding:
    """The axes of one factor of one tensor."""

    axes: Pieces = ()
    overflow: Pieces = ()
    is_open: bool = True
    is_minor: bool = True


Factors: TypeAlias = dict[int, FactorSharding]


def project(
    sharding: TensorSharding | None, mapping: TensorFactors, sizes: tuple[int, ...]
) -> Factors:
    """The axes of each factor of a tensor."""
    known = TensorSharding.free(len(mapping)) if sharding is None else sharding
    found: Factors = {}
    for axes, is_open, factors in zip(known.axes, known.is_open, mapping):
        rest, blocked = list(axes), False
        overflow: Pieces = ()
        for factor in factors:
            is_minor = factor == factors[-1]
            if blocked:
                found[factor] = FactorSharding(is_open=False, is_minor=is_minor)
                continue
            taken = _joined(rest)
            if not is_minor:
                taken, overflow = _take(rest, sizes[factor])
                blocked = bool(overflow)
            found[factor] = FactorSharding(taken, overflow, is_open, is_minor)
    return found


def _take(rest: list[Piece], size: int) -> tuple[Pieces, Pieces]:
    """Move axes from `rest` to a factor of that size; what does not divide it overflows."""
    taken: list[Piece] = []
    while rest:
        axis, before, whole = rest[0]
        common = gcd(size, whole)
        if whole > 1 and common == 1:
            break
        if whole > common:
            taken.append((axis, before, common))
            rest[0] = (axis, before * common, whole // common)
        else:
            taken.append(rest.pop(0))
        size //= common
    if size > 1 and rest:
        overflow = _joined(rest)
        rest.clear()
        return tuple(taken), overflow
    return tuple(taken), ()


def _joined(pieces: list[Piece]) -> Pieces:
    joined: list[Piece] = []
    for piece in pieces:
        append(joined, piece)
    return tuple(joined)


def _follow(pieces: list[Piece], more: Pieces) -> None:
    """Add what the next factor has; the axis at the seam may go on from the one before."""
    for piece in more[:1]:
        append(pieces, piece)
    pieces += more[1:]


def lift(
    factors: Factors,
    mapping: TensorFactors,
    sizes: tuple[int, ...],
    old: TensorSharding | None,
    mesh: int = 0,
) -> TensorSharding:
    """The sharding of a tensor whose factors have those axes."""
    axes, is_open = [], []
    for dim in mapping:
        pieces: list[Piece] = []
        opened = True
        for factor in dim:
            sharding = factors[factor]
            opened = opened and sharding.is_open
            _follow(pieces, sharding.axes)
            if sharding.overflow:
                _follow(pieces, sharding.overflow)
                break
            if prod(size for _, _, size in sharding.axes) < sizes[factor]:
                break
        axes.append(tuple(pieces))
        is_open.append(opened)
    if old is None:
        return TensorSharding(tuple(axes), tuple(is_open), mesh=mesh)
    return TensorSharding(tuple(axes), tuple(is_open), old.replicated, old.unreduced, mesh)
