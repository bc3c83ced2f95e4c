"""`Cells`: the cells that this process looks after, and the one way arrays go between cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from weft.layout import DeviceMesh
from weft.plan import Step
from weft.plan.resharding.counts import ranks_by_device
from weft.runtime.arrays import Array
from weft.runtime.exchange import Counts, Held, copy, mask
from weft.runtime.hops import Hop
from weft.runtime.ledger import Communication, Movement, active
from weft.runtime.meter import Meter, Trail
from weft.values import Point

Shards = Sequence[Array]
"""The arrays of the cells of this process, in rank order; one alone stands for all."""


class Cause(NamedTuple):
    """For which operator something moves, and what messages call it."""

    operator: str
    tensor: object
    """Made a text only where a message needs one."""

    def __str__(self) -> str:
        return f"{self.tensor} for {self.operator}"


@dataclass(frozen=True, slots=True)
class Cells:
    """Which cells of a mesh run in this process, and what brings boxes to them.

    >>> mesh = DeviceMesh("m", (4,), ("x",), device_ids=(3, 2, 1, 0))
    >>> ALL.ranks(mesh), Cells(device=1).ranks(mesh)
    (range(0, 4), (2,))
    """

    device: int | None = None
    """The only device that is here; None where all of them are."""
    carry: Callable[[Any, Held, Hop, Cause], tuple[Held, Counts]] = copy
    """The arrays here after a step, and what it moved."""
    meter: Meter | None = None
    """What counts the bytes that they hold; None where nobody asks."""

    def devices(self, mesh: DeviceMesh) -> Sequence[int]:
        """The devices of a mesh that are here, in rank order."""
        return mesh.device_ids or range(mesh.size) if self.device is None else (self.device,)

    def ranks(self, mesh: DeviceMesh) -> Sequence[int]:
        """The cells of a mesh that are here."""
        if self.device is None:
            return range(mesh.size)
        return (ranks_by_device(mesh)[self.device],)

    def held(self, mesh: DeviceMesh, shards: Shards) -> Held:
        """The shards by device."""
        devices = self.devices(mesh)
        return dict(zip(devices, shards if len(shards) > 1 else [shards[0]] * len(devices)))

    @contextmanager
    def counting(self) -> Iterator[Cells]:
        """The same cells with a meter, if anybody wants to know what they hold."""
        if not active() or self.meter is not None:
            yield self
            return
        meter = Meter()
        yield replace(self, meter=meter)
        for ledger in active():
            ledger.reach(meter.most)

    def move(self, xp: Any, shards: Shards, hops: Iterable[Hop], cause: Cause) -> Shards:
        """The shards after some steps, maybe as views of those before, which others hold."""
        steps = tuple(hops)
        if not steps:
            return shards
        before, after = mesh_before(steps[0]), mesh_after(steps[-1])
        with self.counting() as cells:
            held = cells.held(before, shards)
            if cells.meter is not None and self.meter is None:
                cells.meter.hold(held)
            trail = cells.travel(xp, Trail(held, cells.meter), steps, cause)
        return [trail.held[device] for device in self.devices(after)]

    def keep(
        self,
        xp: Any,
        shards: Shards,
        hops: Iterable[Hop],
        cause: Cause,
        *,
        mesh: DeviceMesh,
        gone: bool,
    ) -> Shards:
        """The shards after some steps, arrays of their own; those before are `gone` then, or not.

        What is a view of something larger is copied, so that the rest need not stay.
        """
        steps, meter = tuple(hops), self.meter
        if not steps and gone:
            return shards
        held = self.held(mesh, shards)
        mark = meter.mark() if meter is not None else {}
        trail = self.travel(xp, Trail(held, meter), steps, cause)
        views = trail.views(gone)
        copies = {device: xp.asarray(trail.held[device], copy=True) for device in views}
        trail.step({**trail.held, **copies}, copies)
        if meter is not None:
            meter.back(mark)
            if gone:
                meter.drop(held)
            meter.hold(trail.held)
        return [trail.held[device] for device in self.devices(mesh)]

    def travel(self, xp: Any, trail: Trail, steps: Sequence[Hop], cause: Cause) -> Trail:
        """Take the steps: refused if beyond a budget, counted as they go."""
        ledgers = active()
        like = next(iter(trail.held.values()))
        for ledger in ledgers if steps else ():
            received = sum(_received(hop, like) for hop in steps)
            ledger.allow(received, cause.operator, str(cause.tensor))
        for hop in steps:
            if isinstance(hop, Step) and hop.kind == "mask":
                made = mask(xp, trail.held, hop)
                trail.step(made, [d for d, array in made.items() if array is not trail.held[d]])
                continue
            made, counts = self.carry(xp, trail.held, hop, cause)
            trail.step(made, [device for device in made if counts.received.get(device)])
            if ledgers:
                _note(ledgers, hop, cause, counts)
        return trail


ALL = Cells()
"""All cells in one process."""


def mesh_before(hop: Hop) -> DeviceMesh:
    """The mesh on which an array lies before a step."""
    return hop.before.mesh if isinstance(hop, Step) else hop.src.mesh


def mesh_after(hop: Hop) -> DeviceMesh:
    """The mesh on which it lies then."""
    return hop.after.mesh if isinstance(hop, Step) else hop.src.mesh


def name_of(hop: Hop) -> str:
    """What messages call a step."""
    return hop.kind if isinstance(hop, Step) else "fetch"


def _received(hop: Hop, like: Array) -> int:
    """The bytes that all devices will receive."""
    width = 1 if isinstance(hop, Step) else int(like.dtype.itemsize)
    return sum(hop.received) * width


def _note(ledgers: Sequence[Communication], hop: Hop, cause: Cause, counts: Counts) -> None:
    """Write down what moved."""
    if name_of(hop) == "slice":
        return
    devices = hop.devices if isinstance(hop, Step) else ALL.devices(hop.src.mesh)

    def of_each(count: dict[int, int]) -> Point:
        return tuple(count.get(device, 0) for device in devices)

    what = (cause.operator, str(cause.tensor), name_of(hop))
    movement = Movement(*what, of_each(counts.sent), of_each(counts.received))
    for ledger in ledgers:
        ledger.movements.append(movement)
