"""Steps of a plan as boxes: who reads what of whom, how it is put together; and by plain copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import groupby
from math import prod
from typing import Any, NamedTuple, TypeAlias

from weft.lang.kernels.monoids import combination
from weft.layout import DeviceMesh
from weft.plan import Step
from weft.plan.fetch import Fetch
from weft.plan.resharding.counts import ranks_by_device
from weft.plan.resharding.moves import Transfer
from weft.run.arrays import Array, masked, paste
from weft.run.threads import each
from weft.space import ZRange
from weft.values import Point

Held = Mapping[int, Array]
"""The array that each device holds, of the devices that this process looks after."""

Hop: TypeAlias = Step | Fetch
"""What brings boxes from device to device."""

Slices = tuple[slice, ...]

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


class Piece(NamedTuple):
    """A part of what a device receives: where it goes, and who has it where."""

    into: Slices
    parts: tuple[tuple[Point, int, Slices], ...]


class Delivery(NamedTuple):
    """All that one device holds after a step."""

    device: int
    shape: Point
    pieces: tuple[Piece, ...]


def deliveries(
    moves: Iterable[Transfer], held: Mapping[int, ZRange], wanted: Mapping[int, ZRange]
) -> tuple[Delivery, ...]:
    """The pieces of every device that wants a box, in the order of the devices."""
    pieces: dict[int, list[Piece]] = {device: [] for device in wanted}
    for (device, box), parts in groupby(moves, key=lambda move: (move.receiver, move.box)):
        found = tuple((p.part, p.sender, box.slices(held[p.sender].start)) for p in parts)
        pieces[device].append(Piece(box.slices(wanted[device].start), found))
    return tuple(Delivery(device, wanted[device].shape, tuple(p)) for device, p in pieces.items())


def by_device(mesh: DeviceMesh, items: Sequence[Any]) -> dict[int, Any]:
    """What cells have in rank order, by device."""
    return dict(zip(mesh.device_ids or range(mesh.size), items))


def boxes_before(hop: Hop) -> dict[int, ZRange]:
    """The box that each device holds before a step."""
    src = hop.before if isinstance(hop, Step) else hop.src
    return by_device(src.mesh, src.regions(hop.shape))


@lru_cache(maxsize=4096)
def hop_deliveries(hop: Hop) -> tuple[Delivery, ...]:
    """What every device holds after a step, piece by piece."""
    if isinstance(hop, Step):
        wanted = by_device(hop.after.mesh, hop.after.regions(hop.shape))
        return deliveries(hop.moves(), boxes_before(hop), wanted)
    return deliveries(hop.transfers, boxes_before(hop), by_device(hop.src.mesh, hop.needs))


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
    return reduce(combination(xp, monoids[0], below[0].dtype), below)


def mask(xp: Any, held: Held, step: Step) -> Held:
    """The values on the first cells along the axes, nothing on the others."""
    mesh, made = step.after.mesh, dict[int, Array]()
    ranks = ranks_by_device(mesh)
    for device, array in held.items():
        cell = mesh.coord(ranks[device])
        made[device] = array
        for digit, monoid in step.parts.masked:
            if cell[digit.dim] // digit.divisor % digit.radix:
                made[device] = masked(xp, array, monoid)
    return made
