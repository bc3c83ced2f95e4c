"""Steps of a reshard in one process: boxes copied from array to array, counted as they go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import groupby
from typing import Any, NamedTuple

from weft.lang.kernels.monoids import combination
from weft.layout import DeviceMesh
from weft.plan import Reshard, Step
from weft.plan.fetch import Fetch
from weft.plan.moves import Transfer
from weft.run.arrays import Array, masked, paste
from weft.space import ZRange
from weft.values import Point

Held = Mapping[int, Array]
"""The array that each device holds."""

Slices = tuple[slice, ...]


class Counts(NamedTuple):
    """The bytes that devices sent and received, as they were counted."""

    sent: dict[int, int]
    received: dict[int, int]


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


@lru_cache(maxsize=4096)
def _deliveries(step: Step) -> tuple[Delivery, ...]:
    before, after = step.before, step.after
    held = by_device(before.mesh, before.regions(step.shape))
    wanted = by_device(after.mesh, after.regions(step.shape))
    return deliveries(step.moves(), held, wanted)


def run_reshard(xp: Any, held: Held, plan: Reshard) -> tuple[Held, list[Counts]]:
    """The arrays after all steps, and what each step moved."""
    counts = []
    for step in plan.steps:
        held, counted = run_step(xp, held, step)
        counts.append(counted)
    return held, counts


def run_step(xp: Any, held: Held, step: Step) -> tuple[Held, Counts]:
    """The arrays after one step, and what it moved."""
    if step.kind == "mask":
        return _mask(xp, held, step), Counts({}, {})
    return deliver(xp, held, _deliveries(step), step.monoids)


def run_fetch(xp: Any, held: Held, fetch: Fetch) -> tuple[Held, Counts]:
    """The boxes that the cells need."""
    return deliver(xp, held, fetch_deliveries(fetch), ())


@lru_cache(maxsize=4096)
def fetch_deliveries(fetch: Fetch) -> tuple[Delivery, ...]:
    """The pieces of every device that needs a box."""
    mesh = fetch.src.mesh
    held = by_device(mesh, fetch.src.regions(fetch.shape))
    return deliveries(fetch.transfers, held, by_device(mesh, fetch.needs))


def deliver(
    xp: Any, held: Held, plan: Sequence[Delivery], monoids: Sequence[str]
) -> tuple[Held, Counts]:
    """Put together what every device is to hold."""
    counts = Counts({}, {})
    like = next(iter(held.values()))
    made: dict[int, Array] = {}
    for device, shape, pieces in plan:
        parts = [
            (into, _combined(xp, held, device, piece, monoids, counts)) for into, piece in pieces
        ]
        if len(parts) == 1 and tuple(parts[0][1].shape) == shape:
            made[device] = parts[0][1]
            continue
        whole = xp.empty(shape, dtype=like.dtype)
        for into, part in parts:
            whole = paste(whole, into, part)
        made[device] = whole
    return made, counts


def _combined(
    xp: Any,
    held: Held,
    device: int,
    parts: Sequence[tuple[Point, int, Slices]],
    monoids: Sequence[str],
    counts: Counts,
) -> Array:
    """One box, its parts combined: those along the last run first."""
    if len(parts) == 1:
        _, sender, where = parts[0]
        array = held[sender][where]
        if sender != device:
            counts.sent[sender] = counts.sent.get(sender, 0) + array.nbytes
            counts.received[device] = counts.received.get(device, 0) + array.nbytes
        return array
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part[0][:1])]
    below = [
        _combined(xp, held, device, [(p[1:], s, w) for p, s, w in group], monoids[1:], counts)
        for group in groups
    ]
    return reduce(combination(xp, monoids[0], below[0].dtype), below)


def _mask(xp: Any, held: Held, step: Step) -> Held:
    """The values on the first cells along the axes, nothing on the others."""
    mesh, made = step.after.mesh, dict[int, Array]()
    for cell in mesh.cells():
        device = mesh.device(cell)
        array = held[device]
        for digit, monoid in step.parts.masked:
            if cell[digit.dim] // digit.divisor % digit.radix:
                array = masked(xp, array, monoid)
        made[device] = array
    return made
