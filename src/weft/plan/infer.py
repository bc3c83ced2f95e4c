"""Place one application whose operands are already sharded.

Propagation gives the axes that cut the index dimensions. Partial operands may stay partial where
the operator allows it; they do if that moves fewer bytes than combining them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from weft.lang import Operator, Signature
from weft.lang.operator import Group
from weft.layout import Axis, DeviceMesh, ShardingSpec
from weft.plan.delivery import deliver
from weft.plan.placed import Placed, Placement, axes_of, fit
from weft.plan.propagation.shardings import AxisRefs, axis_ref, prefix_without_overlap

Kept: TypeAlias = dict[Axis, tuple[str, Sequence[int]]]
"""For an axis the monoid and the operands that stay partial over it."""


def place_operands(
    operator: Operator,
    signature: Signature,
    mesh: DeviceMesh,
    placement: Placement,
    specs: Sequence[ShardingSpec | None],
    itemsizes: Sequence[int],
    alike: Sequence[int] = (),
    dtypes: Sequence[str] = (),
    result_dtypes: Sequence[str] = (),
) -> Placed:
    """Place an application; partial operands stay partial where that moves fewer bytes.

    An operand whose spec is None is replicated. `alike` gives for each operand the first that is
    the same array, which is moved once for both. With the dtypes of operands and results, partial
    integers stay partial in their own dtype only.

    >>> from weft.lang import OPERATORS
    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> parts = ShardingSpec.parse('<@m, [{}], unreduced={"x"}>', mesh)
    >>> add = OPERATORS["add"]
    >>> print(place_operands(add, add.sign([(8,), (8,)]), mesh, {}, [parts] * 2, [4, 4]).results[0])
    <@m, [{}], unreduced={"x"}>
    """
    kept = _kept(operator, signature, mesh, placement, specs, dtypes, result_dtypes)
    placed = fit(mesh, signature, placement, kept)
    if not any(spec is not None and spec.partial for spec in specs):
        return placed
    # Cuts that were dropped to keep blocks of one size leave their axes free; that changes nothing.
    combined = fit(mesh, signature, placement)

    def cost(placed: Placed) -> int:
        return _moved(mesh, placed, specs, itemsizes, alike or range(len(specs)))

    return min((placed, combined), key=cost)


def _kept(
    operator: Operator,
    signature: Signature,
    mesh: DeviceMesh,
    placement: Placement,
    specs: Sequence[ShardingSpec | None],
    dtypes: Sequence[str],
    result_dtypes: Sequence[str],
) -> Kept:
    """Return the axes over which operands may stay partial, beside those of the placement."""
    cuts = {name: axes_of(each) for name, each in placement.items()}
    used: AxisRefs = tuple(axis_ref(mesh, axis) for axes in cuts.values() for axis in axes)
    reduced: Mapping[str, str] = signature.notation.reduced
    monoids = {reduced[dim] for dim, axes in cuts.items() if axes and dim in reduced}
    kept: Kept = {}
    for number, spec in enumerate(specs):
        for axis, monoid in spec.partial.items() if spec is not None else ():
            ref = axis_ref(mesh, axis)
            groups = operator.groups(monoid, signature, dtypes, result_dtypes)
            group = _group(groups, len(specs), number)
            # Parts by two monoids at once would depend on the order in which they are combined.
            if group is None or monoids - {monoid} or prefix_without_overlap(ref, used) != ref:
                continue
            kept[axis] = monoid, group
            monoids.add(monoid)
            used += (ref,)
    return kept


def _group(groups: Sequence[Group], count: int, number: int) -> Sequence[int] | None:
    """Return the operands that may be partial together with this one; None if it may not be."""
    for group in groups:
        if group is ...:
            return range(count)
        if number in group:
            return group
    return None


def _moved(
    mesh: DeviceMesh,
    placed: Placed,
    specs: Sequence[ShardingSpec | None],
    itemsizes: Sequence[int],
    alike: Sequence[int],
) -> int:
    """Return the bytes that move now, and those to combine partial results afterwards."""
    total = 0
    for number, spec in enumerate(specs):
        first = alike[number]
        again = first != number and placed.operands[first] == placed.operands[number] is not None
        if spec is not None and not again:
            total += sum(deliver(placed, number, spec, itemsizes[number]).received)
    for result, shape in zip(placed.results, placed.signature.result_shapes):
        parts = prod(map(mesh.axis_size, result.partial))
        held = prod(result.shard_shape(shape)) * max(itemsizes, default=4)
        total += mesh.size * held * (parts - 1) // parts
    return total
