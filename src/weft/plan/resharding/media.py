"""`Medium`: what messages go through: the links along some axes of a mesh, or one that cells share.

A message pays the slowest axis that it crosses; of equals a shared one, and then the minor one.
What cells receive through a medium that they share adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from weft.layout import DeviceMesh
from weft.plan.machine import Link, Machine
from weft.plan.resharding.counts import ranks_by_device
from weft.values import Point


class Message(NamedTuple):
    """So many elements from one device to another."""

    sender: int
    receiver: int
    size: int


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
    messages: Iterable[tuple[int, int, int]], itemsize: int, mesh: DeviceMesh, machine: Machine
) -> float:
    """What messages between the devices of a mesh take: as long as the busiest device needs.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> messages = [Message(0, 1, 1000), Message(1, 0, 1000)]
    >>> apart, together = Machine(bandwidth=1e9), Machine(bandwidth=1e9, shared=True)
    >>> [seconds_of_messages(messages, 4, mesh, machine) for machine in (apart, together)]
    [4e-06, 8e-06]
    """
    received, sent, added = dict[_Key, int](), dict[_Key, int](), dict[_Key, int]()
    media, ways, groups = _between(mesh, machine)
    ranks = ranks_by_device(mesh)
    for sender, receiver, count in messages:
        size, one, two = count * itemsize, ranks[sender], ranks[receiver]
        number = ways[one][two]
        if size and number is not None:
            for counts, key in ((received, two), (sent, one), (added, groups[number][two])):
                counts[number, key] = counts.get((number, key), 0) + size
    waits: dict[int, list[float]] = {}
    for (number, rank), size in received.items():
        link, group = media[number].link, groups[number][rank]
        wait = waits.setdefault(rank, [0.0, 0.0])
        wait[0] = max(wait[0], link.latency)
        wait[1] += (added[number, group] if link.shared else size) / link.bandwidth
    return max([*map(sum, waits.values()), *_sending(sent, media)], default=0.0)


_Key = tuple[int, int]
"""The number of a medium, and of a cell or a group of cells."""


@lru_cache(maxsize=64)
def _between(
    mesh: DeviceMesh, machine: Machine
) -> tuple[list[Medium], list[list[int | None]], list[list[int]]]:
    """The media, which of them every two cells pay, and for each the group of every cell."""
    media, cells = media_of(mesh, machine), list(mesh.cells())
    ways = [[_medium_between(media, one, two) for two in cells] for one in cells]
    groups = []
    for medium in media:
        numbers: dict[Point, int] = {}
        groups.append([numbers.setdefault(medium.group(cell), len(numbers)) for cell in cells])
    return media, ways, groups


def _sending(sent: dict[_Key, int], media: list[Medium]) -> Iterator[float]:
    """How long each sender is busy."""
    busy: dict[int, list[float]] = {}
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
