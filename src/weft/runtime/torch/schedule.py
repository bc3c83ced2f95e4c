"""`Schedule`: what one rank sends, receives and puts together in a step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from weft.program import Route
from weft.program.messages import Assembly, Slices, assemblies
from weft.values import Point


class Schedule(NamedTuple):
    """One rank's side of a step; both sides of a message count its boxes in the same order."""

    sends: dict[int, list[Slices]]
    """For each other device the parts of what is held here that go to it."""
    receives: dict[int, list[Slices]]
    """For each other device the parts of what it holds that come here."""
    assembly: Assembly
    """The pieces that are put together here."""
    collective: str
    """The collective that does it, in all groups at once; nothing if messages do."""
    groups: tuple[Point, ...]
    elements: dict[int, tuple[int, int]]
    """The number of elements that each device sends and receives."""

    @property
    def group(self) -> Point:
        """The devices that do the collective together with this one."""
        return next(group for group in self.groups if self.assembly.device in group)

    @property
    def is_even(self) -> bool:
        """Whether all devices send and receive the same number of elements."""
        return len(set(self.elements.values())) == 1


@lru_cache(maxsize=4096)
def schedule(route: Route, kind: str, device: int) -> Schedule:
    """Return what a device does in a transfer."""
    sends: dict[int, list[Slices]] = {}
    receives: dict[int, list[Slices]] = {}
    elements: dict[int, tuple[int, int]] = {}
    for sender, receiver, where in _messages(route):
        size = volume(where)
        sent, received = elements.get(sender, (0, 0))
        elements[sender] = sent + size, received
        sent, received = elements.get(receiver, (0, 0))
        elements[receiver] = sent, received + size
        if sender == device:
            sends.setdefault(receiver, []).append(where)
        if receiver == device:
            receives.setdefault(sender, []).append(where)
    assembly = next(each for each in assemblies(route) if each.device == device)
    collective, groups = _pattern(route, kind)
    return Schedule(sends, receives, assembly, collective, groups, elements)


def volume(where: Slices) -> int:
    """The elements of a part of an array.

    >>> volume((slice(0, 2), slice(3, 7)))
    8
    """
    size = 1
    for part in where:
        size *= part.stop - part.start
    return size


def _messages(route: Route) -> Iterator[tuple[int, int, Slices]]:
    """Yield sender, receiver and part of the sender's array, in an order that all ranks share."""
    for receiver, _, pieces in assemblies(route):
        for piece in pieces:
            for _, sender, where in piece.parts:
                if sender != receiver:
                    yield sender, receiver, where


@lru_cache(maxsize=4096)
def _pattern(route: Route, kind: str) -> tuple[str, tuple[Point, ...]]:
    """The collective that a step is, and the groups that do it; nothing where messages do.

    A step is one if the devices fall into groups of one size in which all talk with all.
    """
    if kind not in _COLLECTIVES:
        return "", ()
    talks = _talks(route)
    groups = dict.fromkeys(tuple(sorted(others)) for others in talks.values())
    regular = all(talks[device] == talks[group[0]] for group in groups for device in group)
    if not regular or len({len(group) for group in groups}) > 1:
        return "", ()
    if kind in ("all_gather", "all_reduce") and not _is_gather(route, talks):
        return "", ()
    return kind, tuple(sorted(groups))


_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


def _talks(route: Route) -> dict[int, frozenset[int]]:
    """For each device those that it sends to or receives from, and itself."""
    cells = route.before.cells
    found = {cells.device(rank): {cells.device(rank)} for rank in range(cells.size)}
    for sender, receiver, _ in _messages(route):
        found[sender].add(receiver)
        found.setdefault(receiver, {receiver}).add(sender)
    return {device: frozenset(others) for device, others in found.items()}


def _is_gather(route: Route, talks: dict[int, frozenset[int]]) -> bool:
    """Whether all hold as much, and send all of it, once, to all whom they talk with."""
    shapes = {box.shape for box in route.before.boxes()}
    whole = tuple(slice(0, n) for n in next(iter(shapes)))
    sent = list(_messages(route))
    pairs = sum(len(others) - 1 for others in talks.values())
    return len(shapes) == 1 and len(sent) == pairs and all(where == whole for *_, where in sent)
