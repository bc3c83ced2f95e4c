"""Propagation through one operator: project shardings to factors, merge them, and lift them back.

A dimension with several factors gives its axes to them from the major end; an axis that is larger
than what is left of a factor is split. Axes that do not divide a factor overflow, and the factors
after it get none. Conflicts between tensors are resolved by one of two merges: `merge_basic` takes
only axes that no tensor objects to, `merge_aggressive` lets every tensor take what it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from math import prod
from typing import NamedTuple, TypeAlias

from weft.lang.rule import FactorRule, TensorFactors
from weft.lang.size import common_divisor, magnitude
from weft.plan.propagation.shardings import (
    AxisRef,
    AxisRefs,
    TensorSharding,
    append,
    contains,
    is_prefix,
    is_strict_prefix,
    prefix_without_overlap,
)


class Direction(IntFlag):
    """The directions in which axes may be propagated."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3


@dataclass(slots=True)
class FactorSharding:
    """The axes of one factor of one tensor."""

    axes: AxisRefs = ()
    overflow: AxisRefs = ()
    is_open: bool = True
    is_minor: bool = True


Factors: TypeAlias = dict[int, FactorSharding]


def project(
    sharding: TensorSharding | None, mapping: TensorFactors, sizes: tuple[int, ...]
) -> Factors:
    """Return the axes of each factor of a tensor."""
    sharding = sharding or TensorSharding.open(len(mapping))
    result: Factors = {}
    for axes, is_open, factors in zip(sharding.axes, sharding.is_open, mapping):
        rest, is_blocked = list(axes), False
        overflow: AxisRefs = ()
        for factor in factors:
            is_minor = factor == factors[-1]
            if is_blocked:
                result[factor] = FactorSharding(is_open=False, is_minor=is_minor)
                continue
            taken = _joined(rest)
            if not is_minor:
                taken, overflow = _take(rest, sizes[factor])
                is_blocked = bool(overflow)
            result[factor] = FactorSharding(taken, overflow, is_open, is_minor)
    return result


def _take(rest: list[AxisRef], size: int) -> tuple[AxisRefs, AxisRefs]:
    """Move axes from `rest` to a factor of `size`; return them and those that overflow it."""
    taken: list[AxisRef] = []
    while rest:
        axis, pre_size, whole = rest[0]
        common = common_divisor(size, whole)
        if whole > 1 and common == 1:
            break
        if whole > common:
            taken.append((axis, pre_size, common))
            rest[0] = (axis, pre_size * common, whole // common)
        else:
            taken.append(rest.pop(0))
        size //= common
    if size > 1 and rest:
        overflow = _joined(rest)
        rest.clear()
        return tuple(taken), overflow
    return tuple(taken), ()


def _joined(axes: Sequence[AxisRef]) -> AxisRefs:
    joined: list[AxisRef] = []
    for axis in axes:
        append(joined, axis)
    return tuple(joined)


def lift(
    factors: Factors,
    mapping: TensorFactors,
    sizes: tuple[int, ...],
    old: TensorSharding | None,
    mesh: int = 0,
) -> TensorSharding:
    """Return the sharding of a tensor whose factors have the given axes."""
    axes, is_open = [], []
    for dim in mapping:
        joined: list[AxisRef] = []
        opened = True
        for factor in dim:
            sharding = factors[factor]
            opened = opened and sharding.is_open
            for more in (sharding.axes, sharding.overflow):
                # only the first axis of a factor can continue the last one of the factor before
                for axis in more[:1]:
                    append(joined, axis)
                joined += more[1:]
            if sharding.overflow or prod(n for _, _, n in sharding.axes) < sizes[factor]:
                break
        axes.append(tuple(joined))
        is_open.append(opened)
    kept = () if old is None else (old.replicated, old.unreduced)
    return TensorSharding(tuple(axes), tuple(is_open), *kept)._replace(mesh=mesh)


class ShardingProjection(NamedTuple):
    """The shardings of the tensors of one operator by factor, merged in place."""

    operands: Sequence[Factors]
    results: Sequence[Factors]
    excluded: Sequence[AxisRefs]
    """For each tensor, operands first, the axes that must not shard it."""
    elements: Sequence[int]
    """For each tensor how many elements it has."""
    sizes: tuple[int, ...]
    directions: Sequence[Direction]
    """For each factor the directions in which it may be propagated."""
    is_pointwise: bool = False

    @property
    def tensors(self) -> list[Factors]:
        """The operands, then the results."""
        return [*self.operands, *self.results]

    def suggested(self, factor: int) -> AxisRefs:
        """Return the axes that the tensors suggest for a factor, up to the first conflict."""
        direction = self.directions[factor]
        if direction == Direction.NONE:
            return ()
        return compatible_axes(factor, self.operands, self.results, direction)


def compatible_prefix(old: AxisRefs, new: AxisRefs, may_grow: bool) -> tuple[AxisRefs, bool]:
    """Return the major axes on which two lists agree, and whether the result may still grow.

    With `may_grow`, where one list continues the other the result is the longer one.

    >>> x, y, z = (0, 1, 2), (1, 1, 2), (2, 1, 2)
    >>> compatible_prefix((x,), (x, y), True), compatible_prefix((x, y), (x, z), True)
    ((((0, 1, 2), (1, 1, 2)), True), (((0, 1, 2),), False))
    """
    result: list[AxisRef] = []
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


def compatible_axes(
    factor: int, operands: Sequence[Factors], results: Sequence[Factors], direction: Direction
) -> AxisRefs:
    """Return the major axes of a factor on which the tensors of an operator agree."""
    first, second = (results, operands) if direction == Direction.BACKWARD else (operands, results)
    axes: AxisRefs = ()
    may_grow = True
    for tensors in (first, second):
        for tensor in tensors:
            if factor in tensor:
                axes, may_grow = compatible_prefix(axes, tensor[factor].axes, may_grow)
        if direction != Direction.BOTH:
            may_grow = False
    return axes


def truncate(axes: AxisRefs, limit: Callable[[AxisRef, int], AxisRef | None]) -> AxisRefs:
    """Return the axes up to the first that is not, or not entirely, allowed.

    `limit(axis, before)` returns the allowed part of an axis; `before` is the product of the sizes
    of the axes before it.
    """
    before = 1
    for place, axis in enumerate(axes):
        allowed = limit(axis, before)
        if allowed is None:
            return axes[:place]
        if allowed != axis:
            return (*axes[:place], allowed)
        before *= axis[2]
    return axes


def _allowed_by_factor(
    axis: AxisRef | None, sharding: FactorSharding, excluded: AxisRefs, before: int, size: int
) -> AxisRef | None:
    """Return the part of an axis that a factor of a tensor can take."""
    axis = prefix_without_overlap(axis, excluded)
    if axis is None or any(contains(own, axis) for own in sharding.axes):
        return axis
    if sharding.is_open and not sharding.overflow:
        if sharding.is_minor:
            return axis
        part = common_divisor(size // before, axis[2]) if size % before == 0 else 1
        if part > 1 or axis[2] == 1:
            return axis[0], axis[1], part
    if sharding.axes and is_prefix(sharding.axes[-1], axis):
        return sharding.axes[-1]
    return None


def _unused_by_others(axis: AxisRef | None, tensor: Factors, factor: int) -> AxisRef | None:
    """Return the part of an axis that no other factor of a tensor uses."""
    for other, sharding in tensor.items():
        if other != factor:
            axis = prefix_without_overlap(axis, sharding.overflow)
            axis = prefix_without_overlap(axis, sharding.axes)
    return axis


def merge_basic(projection: ShardingProjection) -> set[int]:
    """Give every factor the axes that no tensor objects to; return the tensors that changed."""
    tensors = projection.tensors
    changed: set[int] = set()
    for factor, size in enumerate(projection.sizes):

        def allowed(
            axis: AxisRef, before: int, factor: int = factor, size: int = size
        ) -> AxisRef | None:
            part: AxisRef | None = axis
            for tensor, excluded in zip(tensors, projection.excluded):
                part = _unused_by_others(part, tensor, factor)
                if part is not None and factor in tensor:
                    part = _allowed_by_factor(part, tensor[factor], excluded, before, size)
                if part is None:
                    return None
            # A part that became shorter may not coexist with axes that were compared before.
            return part if part == axis else part and allowed(part, before)

        axes = truncate(projection.suggested(factor), allowed)
        for number, tensor in enumerate(tensors):
            if factor in tensor and is_strict_prefix(tensor[factor].axes, axes):
                tensor[factor].axes = axes
                changed.add(number)
    return changed


def merge_aggressive(projection: ShardingProjection) -> set[int]:
    """Let every tensor take the axes it can; return the tensors that changed.

    Where two factors of a tensor want the same axis, the one that has it from the larger tensor
    wins, then the one that has it from the earlier tensor. In a pointwise operator the factor with
    more cells wins before that, and an operand takes no axis that the result does not have.
    """
    tensors, split = projection.tensors, len(projection.operands)
    suggested = [projection.suggested(factor) for factor in range(len(projection.sizes))]
    is_pointwise = projection.is_pointwise

    def precedence(factor: int) -> tuple[int, int, int, int]:
        cells = prod(size for _, _, size in suggested[factor]) if is_pointwise else 0
        return min(
            (-projection.elements[number], -cells, number, factor)
            for number, tensor in enumerate(tensors)
            if factor in tensor and _starts_with(tensor[factor].axes, suggested[factor])
        )

    order = sorted((f for f, axes in enumerate(suggested) if axes), key=precedence)
    changed: set[int] = set()
    numbers = list(range(len(tensors)))
    for number in numbers[split:] + numbers[:split] if is_pointwise else numbers:
        if is_pointwise and number < split:
            suggested = [
                _limit_to_results(axes, projection.results, f) for f, axes in enumerate(suggested)
            ]
        for factor in order:
            if factor in tensors[number] and _extend(
                tensors[number],
                factor,
                suggested[factor],
                projection.excluded[number],
                projection.sizes[factor],
            ):
                changed.add(number)
    return changed


def _extend(tensor: Factors, factor: int, axes: AxisRefs, excluded: AxisRefs, size: int) -> bool:
    """Give a factor of a tensor as many of the axes as it can take; return whether it has more."""

    def allowed(axis: AxisRef, before: int) -> AxisRef | None:
        part = _allowed_by_factor(axis, tensor[factor], excluded, before, size)
        return _unused_by_others(part, tensor, factor)

    taken = truncate(axes, allowed)
    grows = is_strict_prefix(tensor[factor].axes, taken)
    if grows:
        tensor[factor].axes = taken
    return grows


def _starts_with(axes: AxisRefs, first: AxisRefs) -> bool:
    return axes == first or is_strict_prefix(first, axes)


def _limit_to_results(axes: AxisRefs, results: Sequence[Factors], factor: int) -> AxisRefs:
    """Return the axes of a factor as far as the results have them."""
    for result in results:
        if factor in result:
            own = result[factor].axes
            axes = axes if _starts_with(own, axes) else own if _starts_with(axes, own) else ()
    return axes


MERGES = {"basic": merge_basic, "aggressive": merge_aggressive}


def propagate_rule(
    rule: FactorRule,
    shardings: Sequence[TensorSharding | None],
    merge: Callable[[ShardingProjection], set[int]],
    directions: Sequence[Direction],
    is_pointwise: bool = False,
    mesh: int = 0,
) -> list[TensorSharding | None]:
    """Return the new shardings of the tensors of one operator; None where nothing changes."""
    mappings = (*rule.operands, *rule.results)
    tensors = [project(sharding, m, rule.sizes) for sharding, m in zip(shardings, mappings)]
    split = len(rule.operands)
    projection = ShardingProjection(
        tensors[:split],
        tensors[split:],
        [() if sharding is None else sharding.excluded for sharding in shardings],
        [magnitude(prod(rule.sizes[f] for dim in m for f in dim)) for m in mappings],
        rule.sizes,
        directions,
        is_pointwise,
    )
    result: list[TensorSharding | None] = [None] * len(shardings)
    for number in merge(projection):
        old = shardings[number]
        new = lift(tensors[number], mappings[number], rule.sizes, old, mesh)
        if new != old and (old is not None or new.is_sharded):
            result[number] = new
    return result
