"""Steps of a plan as boxes: which device reads what of whom, whatever carries it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from weft.layout import DeviceMesh
from weft.plan import Step
from weft.plan.delivery import Delivery as Way
from weft.plan.fetch import Fetch
from weft.plan.resharding.moves import Transfer
from weft.space import ZRange
from weft.values import Point

Hop: TypeAlias = Step | Fetch
"""What brings boxes from device to device."""

Slices = tuple[slice, ...]


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


def boxes_after(hop: Hop) -> dict[int, ZRange]:
    """The box that each device holds after a step."""
    if isinstance(hop, Step):
        return by_device(hop.after.mesh, hop.after.regions(hop.shape))
    return by_device(hop.src.mesh, hop.needs)


@lru_cache(maxsize=4096)
def hop_deliveries(hop: Hop) -> tuple[Delivery, ...]:
    """What every device holds after a step, piece by piece."""
    moves = hop.moves() if isinstance(hop, Step) else hop.transfers
    return deliveries(moves, boxes_before(hop), boxes_after(hop))


def hops_of(way: Way) -> Iterator[Hop]:
    """The steps by which an operand comes, one after another."""
    if way.reshard is not None:
        yield from way.reshard.steps
    if way.fetch is not None:
        yield way.fetch


def hidden_devices(step: Step) -> dict[int, str]:
    """The devices on which a mask hides what they hold, and from which monoid."""
    mesh = step.after.mesh
    return {
        mesh.device(cell): monoid
        for cell in mesh.cells()
        for digit, monoid in step.parts.masked
        if digit.of(cell)
    }
