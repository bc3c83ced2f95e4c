"""A baseline for propagation: greedily, operator by operator, the placement with the fewest bytes.

The sharding of each operand suggests axes for index dimensions, and axes over which it is partial.
Where suggestions conflict, each order of the operands gives a placement, and the cheapest is taken:
the bytes that move before the kernel runs, and those to combine partial results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import prod
from typing import NamedTuple

from weft.lang import FactorRule, Operator, Signature, factor_rule
from weft.layout import Axis, ShardingSpec
from weft.plan.delivery import deliver
from weft.plan.placed import Placed, fit
from weft.plan.propagation.factors import project
from weft.plan.propagation.shardings import (
    AxisRefs,
    TensorSharding,
    axis_ref,
    named_axis,
    prefix_without_overlap,
)
from weft.values import FrozenMap

MOST_ORDERS = 6
"""How many orders of the operands are tried: all of them for three."""


class _Claim(NamedTuple):
    """A suggestion of one operand: axes for an index dimension, or for a monoid."""

    dim: str
    monoid: str
    axes: AxisRefs


class _Candidate(NamedTuple):
    """A candidate placement."""

    cuts: Mapping[str, AxisRefs]
    kept: Mapping[Axis, tuple[str, Sequence[int]]]
    granted: int
    """How many suggestions are followed entirely."""


def choose(
    operator: Operator,
    signature: Signature,
    specs: Sequence[ShardingSpec | None],
    itemsizes: Sequence[int],
    alike: Sequence[int] = (),
) -> Placed:
    """Return the placement of an application; an operand whose spec is None is replicated.

    `alike` gives for each operand the first that is the same array: it is moved once for both.

    >>> from weft import DeviceMesh
    >>> from weft.lang import OPERATORS
    >>> mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    >>> matmul = OPERATORS["matmul"]
    >>> line = matmul.sign([(8, 4), (4, 6)])
    >>> rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    >>> dict(choose(matmul, line, [rows, None], [4, 4]).placement)
    {'m': ('x',), 'n': (), 'k': ()}
    """
    return _Choice(operator, signature, specs, itemsizes, alike).best()


class _Choice:
    def __init__(
        self,
        operator: Operator,
        signature: Signature,
        specs: Sequence[ShardingSpec | None],
        itemsizes: Sequence[int],
        alike: Sequence[int],
    ) -> None:
        self.alike = alike or range(len(specs))
        self.operator, self.signature = operator, signature
        self.specs, self.itemsizes = specs, itemsizes
        self.mesh = next(spec.mesh for spec in specs if spec is not None)
        rule = factor_rule(signature)
        self.claims = [
            list(_claims(rule, number, spec)) if spec is not None else []
            for number, spec in enumerate(specs)
        ]

    def best(self) -> Placed:
        found: dict[object, _Candidate] = {}
        for candidate in self._candidates():
            if candidate.granted == sum(map(len, self.claims)):
                return self._placed(candidate)
            found.setdefault((FrozenMap(candidate.cuts.items()), *candidate.kept), candidate)
        placed = list(map(self._placed, found.values()))
        return placed[0] if len(placed) == 1 else min(placed, key=self.cost)

    def _candidates(self) -> Iterator[_Candidate]:
        speaking = [number for number, claims in enumerate(self.claims) if claims]
        for order in islice(permutations(speaking), MOST_ORDERS):
            yield self._candidate(order, keep=True)
        if any(claim.monoid for claims in self.claims for claim in claims):
            yield self._candidate(speaking, keep=False)
        yield self._candidate((), keep=False)

    def _candidate(self, order: Sequence[int], keep: bool) -> _Candidate:
        """Follow the suggestions of the operands in an order."""
        used: AxisRefs = ()
        cuts: dict[str, AxisRefs] = {}
        kept: dict[Axis, tuple[str, Sequence[int]]] = {}
        monoids, granted = set[str](), 0
        for number in order:
            for claim in self.claims[number]:
                if claim.dim in cuts:
                    granted += cuts[claim.dim] == claim.axes
                    continue
                monoid = claim.monoid or self.signature.notation.reduced.get(claim.dim, "")
                group = self._group(claim, number) if claim.monoid else ()
                refused = claim.monoid and (not keep or group is None)
                # Parts by two monoids at once would depend on the order in which they are combined.
                if refused or (monoid and monoids - {monoid}):
                    continue
                free = _free(claim.axes, used)
                used += free
                granted += free == claim.axes
                monoids |= {monoid} if monoid and free else set()
                if claim.monoid:
                    kept |= {named_axis(self.mesh, p): (monoid, group or ()) for p in free}
                elif free:
                    cuts[claim.dim] = free
        return _Candidate(cuts, kept, granted)

    def _group(self, claim: _Claim, number: int) -> Sequence[int] | None:
        """Return the operands that may be partial together with this one."""
        for group in self.operator.groups(claim.monoid, self.signature):
            if group is ...:
                return range(len(self.specs))
            if number in group:
                return group
        return None

    def _placed(self, candidate: _Candidate) -> Placed:
        """Return the placement without cuts that would leave the results in uneven blocks."""
        placement = {
            dim: [named_axis(self.mesh, axis) for axis in axes]
            for dim, axes in candidate.cuts.items()
        }
        return fit(self.mesh, self.signature, placement, candidate.kept)

    def cost(self, placed: Placed) -> tuple[int, int]:
        """Return the bytes that move now and to combine partial results; then how little is cut."""
        total = sum(
            sum(deliver(placed, number, spec, self.itemsizes[number]).received)
            for number, spec in enumerate(self.specs)
            if spec is not None and not self._is_moved_already(placed, number)
        )
        for spec, shape in zip(placed.results, self.signature.result_shapes):
            parts = prod(map(self.mesh.axis_size, spec.partial))
            held = prod(spec.shard_shape(shape)) * max(self.itemsizes, default=4)
            total += self.mesh.size * held * (parts - 1) // parts
        used = sum(len(axes) for axes in placed.placement.values())
        return total, -used

    def _is_moved_already(self, placed: Placed, number: int) -> bool:
        first = self.alike[number]
        return first != number and placed.operands[first] == placed.operands[number] is not None


def _claims(rule: FactorRule, number: int, spec: ShardingSpec) -> Iterator[_Claim]:
    """Yield the suggestions of an operand."""
    axes = tuple(tuple(axis_ref(spec.mesh, axis) for axis in dim.axes) for dim in spec.dim_specs)
    sharding = TensorSharding(axes, (True,) * spec.ndim)
    for factor, held in project(sharding, rule.operands[number], rule.sizes).items():
        name = rule.names[factor]
        if held.axes and rule.kinds[factor] != "whole" and not name.startswith("_"):
            yield _Claim(name, "", held.axes)
    for axis, monoid in spec.partial.items():
        yield _Claim(f"partial {axis}", monoid, (axis_ref(spec.mesh, axis),))


def _free(axes: AxisRefs, used: AxisRefs) -> AxisRefs:
    """Return the major axes that are not used yet."""
    found: AxisRefs = ()
    for axis in axes:
        rest = prefix_without_overlap(axis, used)
        if rest is not None:
            found += (rest,)
        if rest != axis:
            break
    return found
