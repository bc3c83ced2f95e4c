"""The choice of steps: one exchange, or a route through other shardings that is cheaper.

Two things can be saved over one exchange. Copies: cells that want the same box can fetch a piece
of it each and gather the pieces among themselves. Parts: cells can combine pieces and pass on the
result. Both save most where they keep traffic off slow axes. Every shard on the way lies inside the
destination's shard on the same cell, so that a route needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple, TypeAlias

from weft.layout import Axis, DimSpec, ShardingSpec
from weft.layout.sharding import join_digits
from weft.plan.machine import Link, Machine
from weft.plan.resharding.counts import ranks_in
from weft.plan.resharding.parts import parts_between
from weft.plan.resharding.pattern import (
    CommonDigits,
    DigitLayout,
    Kind,
    common_digits,
    digit_of,
    find_change,
    monoids_of,
    most_received,
    name_pattern,
    nests,
    strides_between,
)
from weft.plan.resharding.pricing import busiest, seconds_by_axis, seconds_of, single_link
from weft.plan.resharding.step import Step
from weft.values import Point

PLAIN = Machine()
"""The machine that counts bytes alone."""

BETTER = 1 - 1e-9
"""A longer route must be cheaper by more than a rounding error."""


class Request(NamedTuple):
    """An array to move, and the machine; None asks for the fewest bytes."""

    shape: Point
    itemsize: int
    given: Machine | None

    @property
    def machine(self) -> Machine:
        """The machine that prices are for."""
        return PLAIN if self.given is None else self.given


class Candidate(NamedTuple):
    """A possible step."""

    kind: Kind
    seconds: float
    is_crowded: bool = False
    """Whether the cells that hold the array are fewer than those that want it, and busier."""


def choose_steps(src: ShardingSpec, dst: ShardingSpec, request: Request) -> tuple[Step, ...]:
    """Return the cheapest steps; of equally cheap ones the fewest."""
    common = common_digits(src, dst)
    link = single_link(request.machine, (src.mesh, dst.mesh), common is not None)
    direct = _look(src, dst, common, link, request)
    if direct is None:
        return ()
    step = _step(src, dst, direct, request)
    if direct.seconds and (direct.is_crowded or src.partial or link is None):
        return _best_route(step, link, request) or (step,)
    return (step,)


@lru_cache(maxsize=1 << 14)
def seconds_between(
    kind: str,
    before: ShardingSpec,
    after: ShardingSpec,
    shape: Point,
    itemsize: int,
    machine: Machine,
) -> float:
    """Return what one transfer between two shardings takes on a machine."""
    if kind in ("slice", "mask"):
        return 0.0
    common = common_digits(before, after)
    link = single_link(machine, (before.mesh, after.mesh), common is not None)
    found = _look(before, after, common, link, Request(shape, itemsize, machine))
    return found.seconds if found else 0.0


def _step(before: ShardingSpec, after: ShardingSpec, found: Candidate, request: Request) -> Step:
    shape, itemsize, _ = request
    return Step(found.kind, before, after, shape, itemsize, request.machine, found.seconds)


def _look(
    before: ShardingSpec,
    after: ShardingSpec,
    common: CommonDigits | None,
    link: Link | None,
    request: Request,
) -> Candidate | None:
    """Return the single step between two shardings with its cost; None if there is none."""
    shape = request.shape
    if common is None:
        return _look_apart(before, after, link, request)
    change = find_change(common.src, common.dst)
    kind = name_pattern(change, before.blocks(shape), after.blocks(shape))
    if kind is None:
        return None
    if kind == "slice" or 0 in shape:
        return Candidate("slice", 0.0)
    if link is None:
        kind = _near_first(kind, before)
        return Candidate(kind, _by_axis(kind, before, after, request))
    most = None
    if before.cut_points is None and after.cut_points is None:
        most = most_received(change, common.count(change.reduced), before.grid, after.grid, shape)
    if most is not None:
        return Candidate(kind, seconds_of(most, request.itemsize, link))
    return _weigh(kind, before, after, link, request)


def _by_axis(kind: Kind, before: ShardingSpec, after: ShardingSpec, request: Request) -> float:
    """Return the seconds of a step over links of different speeds."""
    shape, itemsize, _ = request
    alike = kind not in ("exchange", "collective_permute")
    alike = alike and before.is_even(shape) and after.is_even(shape)
    parts = parts_between(before, after)
    return seconds_by_axis(before, after, shape, itemsize, parts, request.machine, alike)


def _weigh(
    kind: Kind, before: ShardingSpec, after: ShardingSpec, link: Link, request: Request
) -> Candidate:
    """Return a step between uneven shards, or between meshes."""
    most, mean = busiest(before, after, request.shape, parts_between(before, after).size)
    if not most:
        return Candidate("slice", 0.0)
    return Candidate(kind, seconds_of(max(most, mean), request.itemsize, link), mean > most)


def _look_apart(
    before: ShardingSpec, after: ShardingSpec, link: Link | None, request: Request
) -> Candidate | None:
    """Return the single step between meshes whose cells do not correspond."""
    alike = before.blocks(request.shape) == after.blocks(request.shape)
    alike = alike and after.mesh.size <= before.mesh.size
    combines = parts_between(before, after).size > 1
    kind: Kind = "collective_permute" if alike and not combines else "exchange"
    found = _weigh(kind, before, after, link or request.machine.rest, request)
    if found.kind == "slice" and not combines and _same_boxes(before, after, request.shape):
        return None
    if link is None and found.seconds:
        kind = _near_first(kind, before)
        return Candidate(kind, _by_axis(kind, before, after, request), found.is_crowded)
    return found


def _near_first(kind: Kind, before: ShardingSpec) -> Kind:
    """Return the kind of a step: over links of different speeds, near replicas send."""
    chooses = kind == "collective_permute" and before.replica_count > 1
    return "exchange" if chooses else kind


def _same_boxes(before: ShardingSpec, after: ShardingSpec, shape: Point) -> bool:
    ranks = ranks_in(before.mesh, after.mesh) or range(after.mesh.size)
    held = before.regions(shape)
    pairs = zip(ranks, after.regions(shape))
    return all(rank >= 0 and held[rank] == box for rank, box in pairs)


def _best_route(direct: Step, link: Link | None, request: Request) -> tuple[Step, ...]:
    """Return the cheapest route through other shardings, if it is cheaper than the direct step."""
    src, dst, limit = direct.before, direct.after, direct.seconds
    start, common = src, common_digits(src, dst, by_axis=True)
    if common is None:  # all that routes can do is gather on the destination's mesh
        start, common = dst, common_digits(dst, dst, by_axis=True)
    best, specs = tuple[Step, ...](), dict[DigitLayout, ShardingSpec]()
    if common is None:
        return best
    by_price = request.given is not None or bool(src.partial)
    for route in find_routes(common, start, dst, request.shape, request.machine):
        commons = [
            CommonDigits(*pair, common.radix) for pair in pairwise((common.src, *route, common.dst))
        ]
        if link and start is src and (_quick_price(commons, link, request) or 0) >= limit * BETTER:
            continue
        for layout in route:
            if layout not in specs:
                specs[layout] = spec_of(common, layout, start, dst)
        between = [specs[layout] for layout in route]
        known = commons if start is src else [common_digits(src, between[0]), *commons[1:]]
        steps = _walk((src, *between, dst), known, request, limit * BETTER)
        if steps and (by_price or _received(steps) <= _received([direct])):
            best, limit = steps, sum(step.seconds for step in steps)
    return best


def _received(steps: Sequence[Step]) -> int:
    return sum(sum(step.received) for step in steps)


def _quick_price(commons: Sequence[CommonDigits], link: Link, request: Request) -> float | None:
    """Return the seconds of a route over equal links and shards; None where they differ."""
    cost = 0.0
    for common in commons:
        if common.src.points is not None or common.dst.points is not None:
            return None
        change = find_change(common.src, common.dst)
        src, dst = (tuple(map(common.count, each.cuts)) for each in (common.src, common.dst))
        most = most_received(change, common.count(change.reduced), src, dst, request.shape)
        if most is None:
            return None
        cost += seconds_of(most, request.itemsize, link)
    return cost


def _walk(
    specs: Sequence[ShardingSpec],
    commons: Sequence[CommonDigits | None],
    request: Request,
    limit: float,
) -> tuple[Step, ...]:
    """Return the steps from each sharding to the next; none if they exceed the limit."""
    steps, taken = [], 0.0
    for (before, after), common in zip(pairwise(specs), commons):
        link = single_link(request.machine, (before.mesh, after.mesh), common is not None)
        found = _look(before, after, common, link, request)
        if found is not None:
            steps.append(_step(before, after, found, request))
            taken += found.seconds
            if taken >= limit:
                return ()
    return tuple(steps)


# Routes.

Route: TypeAlias = tuple[DigitLayout, ...]
"""The layouts between source and destination."""

Pace: TypeAlias = tuple[float, float]  # seconds for a byte, then seconds to start


def find_routes(
    common: CommonDigits, src: ShardingSpec, dst: ShardingSpec, shape: Point, machine: Machine
) -> Iterator[Route]:
    """Yield the routes to price beside the direct one; the digits must be those `by_axis`."""
    _, strides = strides_between(src, dst)
    pace = _paces(common, dst, strides, machine)
    cut = {digit for each in common.dst.cuts for digit in each}
    free = [d for d in common.radix if d not in cut and d not in common.dst.parts]
    reduced = [d for d in common.src.parts if d not in common.dst.parts]
    sets = [[d for d in free if pace[d] <= limit] for limit in sorted({pace[d] for d in free})]
    sets += [[d for d in free if d in reduced]]
    seen = set[Route]()
    for digits in sets:
        for route in _through(common, digits, reduced, pace, shape, _one_monoid(src)):
            if route and route not in seen:
                seen.add(route)
                yield route


def _paces(
    common: CommonDigits, dst: ShardingSpec, strides: Point, machine: Machine
) -> dict[int, Pace]:
    """Return the pace of each digit on the destination's mesh; smaller is faster."""
    paces = {}
    for stride, radix in common.radix.items():
        axis = dst.mesh.axis_names[digit_of(dst.mesh, strides, stride, radix).dim]
        link = machine.link(axis)
        paces[stride] = 1 / link.bandwidth, link.latency
    return paces


def _one_monoid(src: ShardingSpec) -> bool:
    return len(set(src.partial.values())) < 2


def _through(
    common: CommonDigits,
    digits: Sequence[int],
    reduced: Sequence[int],
    pace: Mapping[int, Pace],
    shape: Point,
    commutes: bool,
) -> Iterator[Route]:
    """Routes in which those digits cut the array on the way, the slowest innermost.

    Of equally slow ones those that cut the source come first, in its order: they stay as they are.
    """
    held = [digit for cut in common.src.cuts for digit in cut]
    places = {digit: place for place, digit in enumerate(held)}
    order = sorted(digits, key=lambda d: (pace[d], places.get(d, len(held))))
    for first in range(len(shape)):
        finest = _cut_further(common, common.dst.cuts, order, shape, first)
        parts, points = common.dst.parts, common.dst.points
        yield () if finest is None else (DigitLayout(finest, parts, points),)
        cuts = _cut_by_pace(common, order, pace, shape, first)
        inner = [DigitLayout(each, parts, points) for each in [*cuts.values()][:0:-1]]
        yield tuple(inner)
        if commutes and inner:
            yield (*_combining(common, cuts, digits, reduced, pace), *inner)
        if len(set(pace.values())) < 2:  # then it makes no difference which dimension is cut
            return


def _cut_by_pace(
    common: CommonDigits, order: Sequence[int], pace: Mapping[int, Pace], shape: Point, first: int
) -> dict[Pace, tuple[Point, ...]]:
    """Return the destination's cuts, cut further by one pace after the other."""
    cuts = {(0.0, 0.0): common.dst.cuts}
    last = common.dst.cuts
    for step, group in groupby(order, key=pace.__getitem__):
        placed = _cut_further(common, last, list(group), shape, first)
        if placed is None:
            return {(0.0, 0.0): common.dst.cuts}
        cuts[step] = last = placed
    return cuts


def _combining(
    common: CommonDigits,
    cuts: Mapping[Pace, tuple[Point, ...]],
    digits: Sequence[int],
    reduced: Sequence[int],
    pace: Mapping[int, Pace],
) -> Iterator[DigitLayout]:
    """Layouts in which parts along the faster axes are combined already, those along others not.

    What is left must be scattered later on, so that no cell writes over what it has to send.
    """
    for step in sorted({pace[d] for d in reduced}):
        left = [d for d in reduced if pace[d] > step]
        if left and all(d in digits for d in left):
            cut = [each for limit, each in cuts.items() if limit <= step][-1]
            parts = [d for d in common.src.parts if d in left or d in common.dst.parts]
            yield DigitLayout(cut, tuple(parts), common.dst.points)


def _cut_further(
    common: CommonDigits, cuts: tuple[Point, ...], digits: Sequence[int], shape: Point, first: int
) -> tuple[Point, ...] | None:
    """Return cuts with more digits at the minor end, so that blocks nest; None if impossible.

    Dimensions that are cut at given points stay as they are.
    """
    found, before = list(cuts), list(map(common.count, cuts))
    outer = list(map(common.count, common.dst.cuts))
    homes = {digit: dim for dim, cut in enumerate(common.src.cuts) for digit in cut}
    for digit in digits:
        options, home = [], homes.get(digit, first)
        for dim, (n, cut) in enumerate(zip(shape, found)):
            if common.dst.cut_points(dim) is not None:
                continue
            inner = common.count((*cut, digit))
            if nests(n, outer[dim], inner) and nests(n, before[dim], inner):
                options.append((n % inner > 0, dim != home, dim != first, -n // inner, dim))
        if not options:
            return None
        dim = min(options)[-1]
        found[dim] = (*found[dim], digit)
    return tuple(found)


def spec_of(
    common: CommonDigits, layout: DigitLayout, src: ShardingSpec, dst: ShardingSpec
) -> ShardingSpec:
    """Return a layout in common digits as a sharding on the destination's mesh."""
    ours, theirs = strides_between(src, dst)
    monoids = monoids_of(src, ours, common.radix)

    def axes(digits: Sequence[int]) -> list[Axis]:
        found = [digit_of(dst.mesh, theirs, digit, common.radix[digit]) for digit in digits]
        return list(map(dst.mesh.axis, join_digits(found)))

    partial = [(axes([digit])[0], monoids[digit]) for digit in layout.parts]
    dims = [
        DimSpec(axes(cut), cut_points=layout.cut_points(dim)) for dim, cut in enumerate(layout.cuts)
    ]
    return ShardingSpec(dst.mesh, dims, (), partial)
