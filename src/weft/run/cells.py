"""`Cells`: the cells that this process looks after, and the one way arrays go between cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.layout import DeviceMesh
from weft.plan import Step
from weft.plan.resharding.counts import ranks_by_device
from weft.run.arrays import Array
from weft.run.exchange import Counts, Held, Hop, copy, mask
from weft.run.ledger import Communication, Movement, active
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

    def devices(self, mesh: DeviceMesh) -> Sequence[int]:
        """The devices of a mesh that are here, in rank order."""
        return mesh.device_ids or range(mesh.size) if self.device is None else (self.device,)

    def ranks(self, mesh: DeviceMesh) -> Sequence[int]:
        """The cells of a mesh that are here."""
        if self.device is None:
            return range(mesh.size)
        return (ranks_by_device(mesh)[self.device],)

    def move(self, xp: Any, shards: Shards, hops: Iterable[Hop], cause: Cause) -> Shards:
        """The shards after some steps: refused if beyond a budget, counted as they go."""
        steps = tuple(hops)
        if not steps:
            return shards
        ledgers = active()
        for ledger in ledgers:
            received = sum(_received(hop, shards[0]) for hop in steps)
            ledger.allow(received, cause.operator, str(cause.tensor))
        first, last = steps[0], steps[-1]
        mesh = first.before.mesh if isinstance(first, Step) else first.src.mesh
        held: Held = dict(zip(self.devices(mesh), shards))
        for hop in steps:
            if isinstance(hop, Step) and hop.kind == "mask":
                held = mask(xp, held, hop)
                continue
            held, counts = self.carry(xp, held, hop, cause)
            if ledgers:
                _note(ledgers, hop, cause, counts)
        mesh = last.after.mesh if isinstance(last, Step) else last.src.mesh
        return [held[device] for device in self.devices(mesh)]


ALL = Cells()
"""All cells in one process."""


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
