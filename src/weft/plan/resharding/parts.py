"""The parts of an unreduced array in a reshard: combined, kept, or made."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from weft.errors import LayoutError
from weft.layout import DeviceMesh, ShardingSpec
from weft.layout.shardy_text import write_axis, write_symbol
from weft.plan.resharding.pattern import common_digits, digit_of, monoids_of, strides_between
from weft.program import Combine
from weft.space import Digit


class Kept(NamedTuple):
    """A digit that stays unreduced, on the mesh before and on the mesh after."""

    here: Digit
    there: Digit
    monoid: str


class Parts(NamedTuple):
    """The parts that are combined, kept and made between two shardings."""

    reduced: tuple[Combine, ...] = ()
    """Runs of digits that are combined, on the source's mesh, major to minor; the last first."""
    kept: tuple[Kept, ...] = ()
    """Digits that stay unreduced."""
    masked: tuple[tuple[Digit, str], ...] = ()
    """Digits that become unreduced: the first cell along one keeps the values, others get the
    identity of the monoid."""

    @property
    def size(self) -> int:
        """The number of parts of each element that are combined into one."""
        return prod(digit.radix for run in self.reduced for digit in run.digits)


NONE = Parts()


def parts_between(src: ShardingSpec, dst: ShardingSpec) -> Parts:
    """Return the parts that are combined, kept and made; refuse impossible destinations."""
    return _parts_between(src, dst) if src.partial or dst.partial else NONE


@lru_cache(maxsize=1024)
def _parts_between(src: ShardingSpec, dst: ShardingSpec) -> Parts:
    common = common_digits(src, dst, by_axis=True)
    if common is None:
        _check_none(src, dst)
        return Parts(_runs(part for part in src.parts if part[0].radix > 1))
    ours, theirs = strides_between(src, dst)
    have, want = monoids_of(src, ours, common.radix), monoids_of(dst, theirs, common.radix)

    def here(stride: int) -> Digit:
        return digit_of(src.mesh, ours, stride, common.radix[stride])

    def there(stride: int) -> Digit:
        return digit_of(dst.mesh, theirs, stride, common.radix[stride])

    for stride, monoid in want.items():
        _check_one(stride, monoid, have, common.src.cuts, _name(dst.mesh, there(stride)))
    kept = [stride for stride in have if stride in want]
    _check_order([stride for stride in want if stride in have], kept, have)
    for stride in have:
        if stride not in want:
            name = _name(src.mesh, here(stride))
            _check_inside("combined", name, stride, have, kept)
    for stride in want:
        if stride not in have:
            _check_inside("made", _name(dst.mesh, there(stride)), stride, want, kept)
    return Parts(
        _runs((here(stride), monoid) for stride, monoid in have.items() if stride not in want),
        tuple(Kept(here(stride), there(stride), have[stride]) for stride in kept),
        tuple((there(stride), monoid) for stride, monoid in want.items() if stride not in have),
    )


def _runs(parts: Iterable[tuple[Digit, str]]) -> tuple[Combine, ...]:
    groups = groupby(parts, key=lambda each: each[1])
    return tuple(
        Combine(monoid, tuple(digit._replace(stride=1) for digit, _ in group))
        for monoid, group in groups
    )


def _name(mesh: DeviceMesh, digit: Digit) -> str:
    return write_axis(mesh.axis(digit))


def _check_none(src: ShardingSpec, dst: ShardingSpec) -> None:
    for digit, monoid in dst.parts:
        if digit.radix == 1:
            continue
        meshes = f"{write_symbol(src.mesh.name)} and {write_symbol(dst.mesh.name)}"
        raise LayoutError(
            f"axis {_name(dst.mesh, digit)} is unreduced by {monoid} in the destination, but the "
            f"cells of {meshes} do not match",
            hint="parts are kept or made only where source and destination count the same devices",
        )


def _check_one(
    stride: int, monoid: str, have: dict[int, str], cuts: tuple[tuple[int, ...], ...], name: str
) -> None:
    """Check that a digit was unreduced before, or held replicas."""
    if have.get(stride, monoid) != monoid:
        raise LayoutError(
            f"axis {name} is unreduced by {have[stride]} in the source and by {monoid} in the "
            f"destination: parts of one cannot become parts of the other",
            hint="reshard to replicated cells first",
        )
    for dim, cut in enumerate(cuts):
        if stride in cut:
            raise LayoutError(
                f"axis {name} cuts dimension {dim} of the source and is unreduced by {monoid} in "
                f"the destination: only replicas can become parts",
                hint="reshard to replicated cells first",
            )


def _check_order(there: list[int], here: list[int], monoids: dict[int, str]) -> None:
    if there != here and len({monoids[stride] for stride in here}) > 1:
        raise LayoutError(
            "parts by different monoids are combined in the order of the mesh, minor axes first, "
            "and the destination's mesh has another order"
        )


def _check_inside(
    doing: str, name: str, stride: int, monoids: dict[int, str], kept: list[int]
) -> None:
    """Check that parts are not combined outside parts of another monoid that are kept."""
    order = list(monoids)
    for other in kept:
        if order.index(other) > order.index(stride) and monoids[other] != monoids[stride]:
            raise LayoutError(
                f"parts over axis {name} cannot be {doing} by {monoids[stride]} while parts by "
                f"{monoids[other]} over a minor axis stay: minor axes are combined first",
                hint="combine those over the minor axis too",
            )
