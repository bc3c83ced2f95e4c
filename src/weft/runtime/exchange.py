"""Put together what a device has after a transfer; transfers by plain copies in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from weft.lang.monoid import combine
from weft.program.messages import Assembly, Route, Slices, assemblies
from weft.runtime.arrays import Array, empty, paste
from weft.runtime.blocks import each
from weft.values import Point

Held = Mapping[int, Array]
"""The array that each device holds, of the devices that this process looks after."""

Read = Callable[[int, Slices], Array]
"""A part of what a device holds."""


class MovedBytes(NamedTuple):
    """The bytes that devices sent and received, as they were counted."""

    sent: dict[int, int]
    received: dict[int, int]

    def add(self, sender: int, receiver: int, size: int) -> None:
        """Count what goes from one device to another; what stays is not counted."""
        if sender != receiver:
            self.sent[sender] = self.sent.get(sender, 0) + size
            self.received[receiver] = self.received.get(receiver, 0) + size

    def join(self, other: MovedBytes) -> None:
        """Add what was counted elsewhere."""
        for mine, theirs in zip(self, other):
            for device, size in theirs.items():
                mine[device] = mine.get(device, 0) + size


def copy(
    xp: Any, held: Held, route: Route, kind: str = "", cause: object = None
) -> tuple[Held, MovedBytes]:
    """Return the arrays after a transfer, all devices in this process, and what moved."""
    monoids = [run.monoid for run in route.combine]
    dtype = next(iter(held.values())).dtype
    plan = assemblies(route)

    def receive(assembly: Assembly) -> tuple[Array, MovedBytes]:
        counts = MovedBytes({}, {})

        def read(sender: int, where: Slices) -> Array:
            array = held[sender][where]
            counts.add(sender, assembly.device, array.nbytes)
            return array

        return assemble(xp, assembly, monoids, dtype, read), counts

    total, made = MovedBytes({}, {}), dict[int, Array]()
    work = max((prod(assembly.shape) for assembly in plan), default=0)
    for assembly, (array, counts) in zip(plan, each(receive, plan, work)):
        made[assembly.device] = array
        total.join(counts)
    return made, total


def assemble(xp: Any, assembly: Assembly, monoids: Sequence[str], dtype: Any, read: Read) -> Array:
    """Return what one device has, put together from what it reads."""
    shape = assembly.shape
    parts = [(into, _combined(xp, piece, monoids, read)) for into, piece in assembly.pieces]
    if len(parts) == 1 and tuple(parts[0][1].shape) == shape:
        return parts[0][1]
    whole = empty(xp, shape, dtype)
    for into, part in parts:
        whole = paste(whole, into, part)
    return whole


def _combined(
    xp: Any, parts: Sequence[tuple[Point, int, Slices]], monoids: Sequence[str], read: Read
) -> Array:
    """One box, its parts combined: those along the last run first."""
    if len(parts) == 1:
        _, sender, where = parts[0]
        return read(sender, where)
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part[0][:1])]
    below = [
        _combined(xp, [(p[1:], s, w) for p, s, w in group], monoids[1:], read) for group in groups
    ]
    return combine(xp, monoids[0], below)
