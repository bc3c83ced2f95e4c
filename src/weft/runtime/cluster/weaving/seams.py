"""Seams: along which index dimensions a strand can be cut into tiles, and the tiles.

Index dimensions of applications that follow upon each other are one seam where a box of the one is
a box of the other, halos aside. The last applications of a strand are cut along it at the same
places, and what they need of the others follows. A tile of a reduction is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from weft.lang import Row, Signature
from weft.plan import Plan
from weft.runtime.cluster.weaving.strands import Strand, unite
from weft.space import ZRange

Targets = Mapping[int, ZRange]
"""For the last applications of a strand the box of the index space that a tile computes."""


@dataclass(frozen=True, slots=True)
class Seam:
    """Index dimensions that are cut together, at most one of each application."""

    dims: Mapping[int, int]
    """For an application that is cut along it the place of its dimension."""
    along: Mapping[int, str] = field(default_factory=dict)
    """For every application that lies along it the name of its dimension."""


def seams_of(plan: Plan, strand: Strand) -> tuple[Seam, ...]:
    """The seams of a strand."""
    graph, sets = plan.graph, dict[tuple[int, str], list[tuple[int, str]]]()
    for number in strand.applications:
        for name in plan.placed[number].signature.sizes:
            sets[number, name] = [(number, name)]
    makers = {name: n for n in strand.applications for name in graph.applications[n].results}
    for number, place in strand.inner:
        value = graph.applications[number].operands[place]
        maker = makers[value]
        made, line = plan.placed[maker].signature, plan.placed[number].signature
        result = graph.applications[maker].results.index(value)
        for row, other in zip(made.notation.results[result], line.notation.operands[place]):
            one, two = row.plain, _main(other, line)
            if one is not None and two is not None:
                unite(sets, (maker, one), (number, two))
    groups = {id(group): sorted(group) for group in sets.values()}.values()
    found = [_seam(plan, strand, group) for group in groups]
    return tuple(seam for seam in found if seam.dims)


def _main(row: Row, line: Signature) -> str | None:
    """The index dimension that a row moves with: a parallel one before a reduced one."""
    names = [name for name, step in row.terms if step == 1 and row.divisor == 1]
    reduced = line.notation.reduced
    return next(iter(sorted(names, key=lambda name: name in reduced)), None)


def _seam(plan: Plan, strand: Strand, group: Sequence[tuple[int, str]]) -> Seam:
    dims: dict[int, int] = {}
    for number, name in group:
        if number not in dims and _can_cut(plan, strand, number, name):
            dims[number] = list(plan.placed[number].signature.sizes).index(name)
    return Seam(dims, dict(reversed(group)))


def _can_cut(plan: Plan, strand: Strand, number: int, name: str) -> bool:
    """Whether the last applications of a strand may be cut along a dimension."""
    line, results = plan.placed[number].signature, plan.graph.applications[number].results
    if name in line.fixed or number not in strand.ends:
        return False
    if name in line.reduced:
        if len(set(line.notation.reduced.values())) > 1:
            return False
        inside = {plan.graph.applications[n].operands[place] for n, place in strand.inner}
        return inside.isdisjoint(results)  # a part of a reduction is of no use inside
    return all(any(row.plain == name for row in rows) for rows in line.notation.results)


class Cut(NamedTuple):
    """How a seam is cut: at multiples of a length, and around whole shards of what is stored."""

    length: int | None = None
    shard: int = 1
    """What is stored is cut where its shards are, so that most of it is whole ones."""

    def points(self, low: int, high: int, end: int) -> list[int]:
        """Where a span of a dimension, of which the array ends there, is cut, both ends included.

        >>> Cut(64).points(80, 200, 500), Cut(None, 64).points(80, 200, 500)
        ([80, 128, 192, 200], [80, 128, 192, 200])
        >>> Cut(None, 64).points(0, 500, 500)
        [0, 500]
        """
        step = self.length or high - low or 1
        inner = range(low // step * step, high, step) if self.length else ()
        first, last = -(-low // self.shard) * self.shard, high // self.shard * self.shard
        last = high if high == end else last
        return sorted({low, high, *(x for x in (first, last, *inner) if low < x < high)})


def tiles(
    own: Targets, seams: Sequence[Seam], cuts: Sequence[Cut], ends: Sequence[int]
) -> Iterator[Targets]:
    """The boxes of a cell cut along seams, of which the arrays end there.

    >>> own = {0: ZRange((2, 0), (8, 4)), 1: ZRange((0,), (4,))}
    >>> for tile in tiles(own, [Seam({0: 0}), Seam({0: 1, 1: 0})], [Cut(4), Cut(2)], [8, 4]):
    ...     print(", ".join(f"{n}: {box}" for n, box in tile.items()))
    0: [2:4, 0:2], 1: [0:2]
    0: [2:4, 2:4], 1: [2:4]
    0: [4:8, 0:2]
    0: [4:8, 2:4]
    """
    spans = [(seam, _spans(own, seam, cut, end)) for seam, cut, end in zip(seams, cuts, ends)]
    spans = [(seam, parts) for seam, parts in spans if len(parts) > 1]
    for corner in product(*(parts for _, parts in spans)):
        found: dict[int, ZRange] = {}
        for number, box in own.items():
            tile = _tile(number, box, spans, corner)
            if tile is not None:
                found[number] = tile
        if found:
            yield found


Span = tuple[int, int]


def _spans(own: Targets, seam: Seam, cut: Cut, end: int) -> list[Span]:
    """The parts of a seam."""
    boxes = [(box, seam.dims[n]) for n, box in own.items() if n in seam.dims and box]
    if not boxes:
        return []
    low, high = min(b.start[d] for b, d in boxes), max(b.stop[d] for b, d in boxes)
    points = cut.points(low, high, end)
    return list(pairwise(points))


def _tile(
    number: int, box: ZRange, spans: Sequence[tuple[Seam, list[Span]]], corner: Sequence[Span]
) -> ZRange | None:
    """The part of a box in a tile; what is not cut along a seam belongs to the first along it."""
    start, stop = list(box.start), list(box.stop)
    for (seam, parts), (low, high) in zip(spans, corner):
        dim = seam.dims.get(number)
        if dim is None or not box:
            if (low, high) != parts[0]:
                return None
            continue
        start[dim], stop[dim] = max(start[dim], low), min(stop[dim], high)
        if start[dim] >= stop[dim]:
            return None
    return ZRange(start, stop)
