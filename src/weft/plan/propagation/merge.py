"""What the tensors of one operator agree on, factor by factor: the basic and the aggressive way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntFlag
from math import gcd, prod
from typing import NamedTuple

from weft.plan.propagation.axes import Piece, Pieces, contains, is_prefix, is_strict_prefix, without
from weft.plan.propagation.factors import Factors, FactorSharding


class Direction(IntFlag):
    """Where axes may go."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3


class Claims(NamedTuple):
    """What the tensors of one operator say of its factors, to be merged in place."""

    operands: Sequence[Factors]
    results: Sequence[Factors]
    replicated: Sequence[Pieces]
    """The axes that each tensor keeps free, operands first."""
    elements: Sequence[int]
    """How many each tensor has."""
    sizes: tuple[int, ...]
    directions: Sequence[Direction]
    is_pointwise: bool = False

    @property
    def tensors(self) -> list[Factors]:
        """The operands, then the results."""
        return [*self.operands, *self.results]

    def suggested(self, factor: int) -> Pieces:
        """The axes that the tensors suggest for a factor, conflicts apart."""
        direction = self.directions[factor]
        if direction == Direction.NONE:
            return ()
        return common_axes(factor, self.operands, self.results, direction)


def agree(old: Pieces, new: Pieces, may_grow: bool) -> tuple[Pieces, bool]:
    """The major axes on which two lists agree, the longer one if `may_grow`; and whether more may.

    >>> x, y, z = (0, 1, 2), (1, 1, 2), (2, 1, 2)
    >>> agree((x,), (x, y), True), agree((x, y), (x, z), True)
    ((((0, 1, 2), (1, 1, 2)), True), (((0, 1, 2),), False))
    """
    result: list[Piece] = []
    for place, (one, two) in enumerate(zip(old, new)):
        if one == two:
            result.append(one)
        elif is_prefix(two, one):
            if place + 1 < len(new):
                return (*result, two), False
            result.append(one)
        elif is_prefix(one, two):
            if not may_grow or place + 1 < len(old):
                return (*result, one), False
            result.append(two)
        else:
            return tuple(result), False
    result += old[len(new) :]
    if may_grow:
        result += new[len(old) :]
    return tuple(result), may_grow


def common_axes(
    factor: int, operands: Sequence[Factors], results: Sequence[Factors], direction: Direction
) -> Pieces:
    """The axes that the tensors of an operator suggest for a factor, conflicts apart."""
    first, second = (results, operands) if direction == Direction.BACKWARD else (operands, results)
    axes: Pieces = ()
    may_grow = True
    for group in (first, second):
        for tensor in group:
            if factor in tensor:
                axes, may_grow = agree(axes, tensor[factor].axes, may_grow)
        if direction != Direction.BOTH:
            may_grow = False
    return axes


def truncate(axes: Pieces, limit: Callable[[Piece, int], Piece | None]) -> Pieces:
    """The axes up to the first of which only a part, or nothing, is allowed.

    `limit` is asked about each axis and how many cells those before it make.
    """
    before = 1
    for place, piece in enumerate(axes):
        allowed = limit(piece, before)
        if allowed is None:
            return axes[:place]
        if allowed != piece:
            return (*axes[:place], allowed)
        before *= piece[2]
    return axes


def within(
    piece: Piece | None, sharding: FactorSharding, replicated: Pieces, before: int, size: int
) -> Piece | None:
    """How much of a piece a factor of a tensor may take, as far as the factor itself goes."""
    piece = without(piece, replicated)
    if piece is None or any(contains(held, piece) for held in sharding.axes):
        return piece
    if sharding.is_open and not sharding.overflow:
        if sharding.is_minor:
            return piece
        part = gcd(size // before, piece[2]) if size % before == 0 else 1
        if part > 1 or piece[2] == 1:
            return piece[0], piece[1], part
    if sharding.axes and is_prefix(sharding.axes[-1], piece):
        return sharding.axes[-1]
    return None


def across(piece: Piece | None, tensor: Factors, factor: int) -> Piece | None:
    """How much of a piece is not held by another factor of a tensor."""
    for other, sharding in tensor.items():
        if other != factor:
            piece = without(without(piece, sharding.overflow), sharding.axes)
    return piece


def merge_basic(claims: Claims) -> set[int]:
    """Give every factor the axes that no tensor objects to; say which tensors changed."""
    tensors = claims.tensors
    changed: set[int] = set()
    for factor, size in enumerate(claims.sizes):

        def allowed(
            piece: Piece, before: int, factor: int = factor, size: int = size
        ) -> Piece | None:
            found: Piece | None = piece
            for tensor, kept in zip(tensors, claims.replicated):
                found = across(found, tensor, factor)
                if found is not None and factor in tensor:
                    found = within(found, tensor[factor], kept, before, size)
                if found is None:
                    return None
            # What became shorter on the way may not nest with what was met before that.
            return found if found == piece else found and allowed(found, before)

        axes = truncate(claims.suggested(factor), allowed)
        for number, tensor in enumerate(tensors):
            if factor in tensor and is_strict_prefix(tensor[factor].axes, axes):
                tensor[factor].axes = axes
                changed.add(number)
    return changed


def _starts(axes: Pieces, first: Pieces) -> bool:
    return axes == first or is_strict_prefix(first, axes)


def merge_aggressive(claims: Claims) -> set[int]:
    """Give every tensor what it can take by itself; say which tensors changed.

    Where two factors of a tensor want the same axis, the one that has it from the larger tensor
    wins, then the one that has it from the earlier. In a pointwise operator more cells win before
    that, and an operand takes no axis that the result does not.
    """
    tensors, split = claims.tensors, len(claims.operands)
    suggested = [claims.suggested(factor) for factor in range(len(claims.sizes))]

    def origin(factor: int) -> tuple[int, int, int, int]:
        cells = prod(size for _, _, size in suggested[factor]) if claims.is_pointwise else 0
        return min(
            (-claims.elements[number], -cells, number, factor)
            for number, tensor in enumerate(tensors)
            if factor in tensor and _starts(tensor[factor].axes, suggested[factor])
        )

    order = sorted((f for f, axes in enumerate(suggested) if axes), key=origin)
    changed: set[int] = set()
    numbers = list(range(len(tensors)))
    if claims.is_pointwise:
        numbers = numbers[split:] + numbers[:split]
    for number in numbers:
        if claims.is_pointwise and number < split:
            suggested = [_within(axes, claims.results, f) for f, axes in enumerate(suggested)]
        tensor, kept = tensors[number], claims.replicated[number]
        for factor in order:
            if factor in tensor:
                axes, size = suggested[factor], claims.sizes[factor]
                if _grow(tensor, factor, axes, kept, size):
                    changed.add(number)
    return changed


def _grow(tensor: Factors, factor: int, axes: Pieces, replicated: Pieces, size: int) -> bool:
    """Give a factor of a tensor as many of the axes as it can take; say whether it has more now."""

    def allowed(piece: Piece, before: int) -> Piece | None:
        return across(within(piece, tensor[factor], replicated, before, size), tensor, factor)

    found = truncate(axes, allowed)
    grows = is_strict_prefix(tensor[factor].axes, found)
    if grows:
        tensor[factor].axes = found
    return grows


def _within(axes: Pieces, results: Sequence[Factors], factor: int) -> Pieces:
    """The axes as far as the results have them."""
    for result in results:
        if factor in result:
            held = result[factor].axes
            axes = axes if _starts(held, axes) else held if _starts(axes, held) else ()
    return axes
