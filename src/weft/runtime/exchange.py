"""What a device reads in a step, put together; and steps by plain copies in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

from weft.lang.monoid import combine
from weft.plan import Step
from weft.runtime.arrays import Array, masked, paste
from weft.runtime.hops import Delivery, Hop, Slices, hidden_devices, hop_deliveries
from weft.runtime.threads import each
from weft.values import Point

Held = Mapping[int, Array]
"""The array that each device holds, of the devices that this process looks after."""

Read = Callable[[int, Slices], Array]
"""A part of what a device holds."""


class Counts(NamedTuple):
    """The bytes that devices sent and received, as they were counted."""

    sent: dict[int, int]
    received: dict[int, int]

    def add(self, sender: int, receiver: int, size: int) -> None:
        """Count what goes from one device to another; what stays is not counted."""
        if sender != receiver:
            self.sent[sender] = self.sent.get(sender, 0) + size
            self.received[receiver] = self.received.get(receiver, 0) + size

    def join(self, other: Counts) -> None:
        """Add what was counted elsewhere."""
        for mine, theirs in zip(self, other):
            for device, size in theirs.items():
                mine[device] = mine.get(device, 0) + size


def copy(xp: Any, held: Held, hop: Hop, cause: object = None) -> tuple[Held, Counts]:
    """The arrays after a step, all devices in this process, and what moved."""
    monoids = hop.monoids if isinstance(hop, Step) else ()
    dtype = next(iter(held.values())).dtype
    plan = hop_deliveries(hop)

    def receive(delivery: Delivery) -> tuple[Array, Counts]:
        counts = Counts({}, {})

        def read(sender: int, where: Slices) -> Array:
            array = held[sender][where]
            counts.add(sender, delivery.device, array.nbytes)
            return array

        return assemble(xp, delivery, monoids, dtype, read), counts

    total, made = Counts({}, {}), dict[int, Array]()
    work = max((prod(delivery.shape) for delivery in plan), default=0)
    for delivery, (array, counts) in zip(plan, each(receive, plan, work)):
        made[delivery.device] = array
        total.join(counts)
    return made, total


def assemble(xp: Any, delivery: Delivery, monoids: Sequence[str], dtype: Any, read: Read) -> Array:
    """What one device is to hold, put together from what it reads."""
    shape = delivery.shape
    parts = [(into, _combined(xp, piece, monoids, read)) for into, piece in delivery.pieces]
    if len(parts) == 1 and tuple(parts[0][1].shape) == shape:
        return parts[0][1]
    whole = xp.empty(shape, dtype=dtype)
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


def mask(xp: Any, held: Held, step: Step) -> Held:
    """The values on the first cells along the axes, nothing on the others."""
    hidden = hidden_devices(step)
    return {
        device: masked(xp, array, hidden[device]) if device in hidden else array
        for device, array in held.items()
    }
