"""`Medium`: what messages go through: the links along some axes of a mesh, or one that cells share.

A message pays the slowest axis that it crosses; of equals a shared one, and then the minor one.
What cells receive through a medium that they share adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.layout import DeviceMesh
from weft.plan.machine import Link, Machine
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.resharding.moves import Transfer
from weft.values import Point


class Medium(NamedTuple):
    """A link, and the axes of a mesh along which messages pay it."""

    link: Link
    axes: frozenset[int]
    reach: frozenset[int]
    """Its axes, and those that cost less: what can be crossed for its price."""

    def group(self, at: Point) -> Point:
        """What the cells have in common that share it: their coordinates along the other axes."""
        return tuple(x for dim, x in enumerate(at) if dim not in self.axes)


def media_of(mesh: DeviceMesh, machine: Machine) -> list[Medium]:
    """The media of a mesh, from fast to slow.

    A shared link of its own is a medium for its axis; all the axes of the rest share one.

    >>> mesh = DeviceMesh("m", (2, 2, 2), ("host", "x", "y"))
    >>> found = media_of(mesh, Machine({"host": (0, 1e9)}, bandwidth=1e10, shared=True))
    >>> [(sorted(medium.axes), sorted(medium.reach)) for medium in found]
    [([1, 2], [1, 2]), ([0], [0, 1, 2])]
    """
    axes: dict[tuple[Link, str], set[int]] = {}
    for dim, name in enumerate(mesh.axis_names):
        link = machine.link(name)
        own = name if link.shared and name in machine.links else ""
        axes.setdefault((link, own), set()).add(dim)
    reach: set[int] = set()
    found = []
    for (link, _), dims in sorted(axes.items(), key=_slowness):
        reach |= dims
        found.append(Medium(link, frozenset(dims), frozenset(reach)))
    return found


def _slowness(item: tuple[tuple[Link, str], set[int]]) -> tuple[float, float, bool, int]:
    (link, _), dims = item
    return -link.bandwidth, link.latency, link.shared, min(dims)


def seconds_of_messages(
    messages: Iterable[Transfer], itemsize: int, mesh: DeviceMesh, machine: Machine
) -> float:
    """What messages between the devices of a mesh take: as long as the busiest device needs.

    >>> from weft.space import ZRange
    >>> mesh, pair = DeviceMesh("m", (2,), ("x",)), [(0, 1), (1, 0)]
    >>> messages = [Transfer(*ends, ZRange((0,), (1000,))) for ends in pair]
    >>> apart, together = Machine(bandwidth=1e9), Machine(bandwidth=1e9, shared=True)
    >>> [seconds_of_messages(messages, 4, mesh, machine) for machine in (apart, together)]
    [4e-06, 8e-06]
    """
    received, sent, added = dict[_Key, int](), dict[_Key, int](), dict[_Key, int]()
    media, ranks = media_of(mesh, machine), ranks_by_device(mesh)
    for sender, receiver, box, _ in messages:
        size, one, two = box.size * itemsize, ranks[sender], ranks[receiver]
        number = _medium_between(media, mesh.coord(one), mesh.coord(two))
        if size and number is not None:
            group = media[number].group(mesh.coord(two))
            for counts, key in ((received, (two,)), (sent, (one,)), (added, group)):
                counts[number, key] = counts.get((number, key), 0) + size
    waits: dict[int, list[float]] = {}
    for (number, (rank,)), size in received.items():
        link, group = media[number].link, media[number].group(mesh.coord(rank))
        wait = waits.setdefault(rank, [0.0, 0.0])
        wait[0] = max(wait[0], link.latency)
        wait[1] += (added[number, group] if link.shared else size) / link.bandwidth
    return max([*map(sum, waits.values()), *_sending(sent, media)], default=0.0)


_Key = tuple[int, Point]
"""The number of a medium, and a rank or what the cells of a group have in common."""


def _sending(sent: dict[_Key, int], media: list[Medium]) -> Iterator[float]:
    """How long each sender is busy."""
    busy: dict[Point, list[float]] = {}
    for (number, rank), size in sent.items():
        link, each = media[number].link, busy.setdefault(rank, [0.0, 0.0])
        each[0] = max(each[0], link.latency)
        each[1] += size / link.bandwidth
    yield from map(sum, busy.values())


def _medium_between(media: list[Medium], one: Point, two: Point) -> int | None:
    """The number of the medium that a message between two cells pays; None if they are one."""
    crossed = {dim for dim, (a, b) in enumerate(zip(one, two)) if a != b}
    if not crossed:
        return None
    return next(number for number, medium in enumerate(media) if crossed <= medium.reach)
