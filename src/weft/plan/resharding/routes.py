"""Ways from one sharding to another through others that lie inside the destination.

Two things can be saved over one exchange. Copies: cells that want the same box can fetch a piece
of it each and gather the pieces among themselves. Parts: cells can combine pieces and pass on the
result. Both save most where they keep traffic off slow axes. Every shard on the way lies inside the
destination's shard on the same cell, so that a route needs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from weft.layout import DimSpec, ShardingSpec
from weft.layout.sharding import join_digits
from weft.layout.shardy_text import Axis
from weft.plan.machine import Machine
from weft.plan.resharding.frame import Frame, Layout, digit_of, monoids_of, worths_between
from weft.plan.resharding.pattern import nests
from weft.values import Point

Route: TypeAlias = tuple[Layout, ...]
"""The layouts between source and destination."""

Pace: TypeAlias = tuple[float, float]  # seconds for a byte, then seconds to start


def find_routes(
    frame: Frame, src: ShardingSpec, dst: ShardingSpec, shape: Point, machine: Machine
) -> Iterator[Route]:
    """Routes worth pricing, beside the direct one; the frame must be one `by_axis`."""
    _, worths = worths_between(src, dst)
    pace = _paces(frame, dst, worths, machine)
    cut = {digit for each in frame.dst.cuts for digit in each}
    free = [d for d in frame.radix if d not in cut and d not in frame.dst.parts]
    reduced = [d for d in frame.src.parts if d not in frame.dst.parts]
    sets = [[d for d in free if pace[d] <= limit] for limit in sorted({pace[d] for d in free})]
    sets += [[d for d in free if d in reduced]]
    seen = set[Route]()
    for digits in sets:
        for route in _through(frame, digits, reduced, pace, shape, _one_monoid(src)):
            if route and route not in seen:
                seen.add(route)
                yield route


def _paces(frame: Frame, dst: ShardingSpec, worths: Point, machine: Machine) -> dict[int, Pace]:
    """How slow each digit is to cross on the destination's mesh; smaller is faster."""
    paces = {}
    for worth, radix in frame.radix.items():
        axis = dst.mesh.axis_names[digit_of(dst.mesh, worths, worth, radix).dim]
        link = machine.link(axis)
        paces[worth] = 1 / link.bandwidth, link.latency
    return paces


def _one_monoid(src: ShardingSpec) -> bool:
    return len(set(src.partial.values())) < 2


def _through(
    frame: Frame,
    digits: Sequence[int],
    reduced: Sequence[int],
    pace: Mapping[int, Pace],
    shape: Point,
    commutes: bool,
) -> Iterator[Route]:
    """Routes in which those digits cut the array on the way, the slowest innermost.

    Of equally slow ones those that cut the source come first, in its order: they stay as they are.
    """
    held = [digit for cut in frame.src.cuts for digit in cut]
    places = {digit: place for place, digit in enumerate(held)}
    order = sorted(digits, key=lambda d: (pace[d], places.get(d, len(held))))
    for first in range(len(shape)):
        finest = _cut_further(frame, frame.dst.cuts, order, shape, first)
        yield () if finest is None else (Layout(finest, frame.dst.parts),)
        cuts = _cut_by_pace(frame, order, pace, shape, first)
        inner = [Layout(each, frame.dst.parts) for each in [*cuts.values()][:0:-1]]
        yield tuple(inner)
        if commutes and inner:
            yield (*_combining(frame, cuts, digits, reduced, pace), *inner)
        if len(set(pace.values())) < 2:  # then it makes no difference which dimension is cut
            return


def _cut_by_pace(
    frame: Frame, order: Sequence[int], pace: Mapping[int, Pace], shape: Point, first: int
) -> dict[Pace, tuple[Point, ...]]:
    """The destination's cuts, cut further by one pace after the other; only those if it fails."""
    cuts = {(0.0, 0.0): frame.dst.cuts}
    last = frame.dst.cuts
    for step, group in groupby(order, key=pace.__getitem__):
        placed = _cut_further(frame, last, list(group), shape, first)
        if placed is None:
            return {(0.0, 0.0): frame.dst.cuts}
        cuts[step] = last = placed
    return cuts


def _combining(
    frame: Frame,
    cuts: Mapping[Pace, tuple[Point, ...]],
    digits: Sequence[int],
    reduced: Sequence[int],
    pace: Mapping[int, Pace],
) -> Iterator[Layout]:
    """Layouts in which parts along the faster axes are combined already, those along others not.

    What is left must be scattered later on, so that no cell writes over what it has to send.
    """
    for step in sorted({pace[d] for d in reduced}):
        left = [d for d in reduced if pace[d] > step]
        if left and all(d in digits for d in left):
            cut = [each for limit, each in cuts.items() if limit <= step][-1]
            parts = [d for d in frame.src.parts if d in left or d in frame.dst.parts]
            yield Layout(cut, tuple(parts))


def _cut_further(
    frame: Frame, cuts: tuple[Point, ...], digits: Sequence[int], shape: Point, first: int
) -> tuple[Point, ...] | None:
    """The cuts with more digits at the minor end, blocks inside those before, and the last ones."""
    found, before = list(cuts), list(map(frame.count, cuts))
    outer = list(map(frame.count, frame.dst.cuts))
    homes = {digit: dim for dim, cut in enumerate(frame.src.cuts) for digit in cut}
    for digit in digits:
        options, home = [], homes.get(digit, first)
        for dim, (n, cut) in enumerate(zip(shape, found)):
            inner = frame.count((*cut, digit))
            if nests(n, outer[dim], inner) and nests(n, before[dim], inner):
                options.append((n % inner > 0, dim != home, dim != first, -n // inner, dim))
        if not options:
            return None
        dim = min(options)[-1]
        found[dim] = (*found[dim], digit)
    return tuple(found)


def spec_of(frame: Frame, layout: Layout, src: ShardingSpec, dst: ShardingSpec) -> ShardingSpec:
    """A layout of the frame as a sharding on the destination's mesh."""
    ours, theirs = worths_between(src, dst)
    monoids = monoids_of(src, ours, frame.radix)

    def axes(digits: Sequence[int]) -> list[Axis]:
        found = [digit_of(dst.mesh, theirs, digit, frame.radix[digit]) for digit in digits]
        return list(map(dst.mesh.axis, join_digits(found)))

    partial = [(axes([digit])[0], monoids[digit]) for digit in layout.parts]
    return ShardingSpec(dst.mesh, [DimSpec(axes(cut)) for cut in layout.cuts], (), partial)
