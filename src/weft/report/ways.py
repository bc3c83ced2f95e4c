"""`Ways`: how values move, each way once: its steps, and who sends what to whom."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from weft.layout.shardy_text import write_axis
from weft.plan import Machine, Reshard, Step, Transfer
from weft.plan.delivery import Delivery
from weft.plan.fetch import Fetch
from weft.plan.resharding.choose import seconds_on
from weft.plan.resharding.media import seconds_of_messages

MOST_CELLS = 64
"""The most devices for which it is said who sends to whom."""
MOST_BOXES = 3
"""Boxes that are named of what goes from one device to another."""


class Ways:
    """A table of ways; one that is there is not written again."""

    def __init__(self, machine: Machine, most_cells: int = MOST_CELLS) -> None:
        self.machine, self.most_cells = machine, most_cells
        self.rows: list[dict[str, Any]] = []
        self.known: dict[Hashable, int] = {}

    def number(self, way: Delivery | Reshard) -> int:
        """The number of a way in the table."""
        reshard, fetch = (way.reshard, way.fetch) if isinstance(way, Delivery) else (way, None)
        key = _key(reshard), fetch and (fetch.src, fetch.shape, fetch.needs)
        if key not in self.known:
            self.known[key] = len(self.rows)
            steps = [self._step(step) for step in reshard.steps] if reshard else []
            if fetch is not None:
                steps.append(self._fetch(fetch, way.itemsize))
            self.rows.append({"steps": steps})
        return self.known[key]

    def _step(self, step: Step) -> dict[str, Any]:
        return {
            "kind": step.kind,
            "axes": ", ".join(map(write_axis, step.axes)),
            "before": str(step.before),
            "after": str(step.after),
            "seconds": seconds_on(step, self.machine),
            "devices": list(step.devices),
            "received": list(step.received),
            **self._pairs(step.transfers, len(step.devices), step.itemsize),
        }

    def _fetch(self, fetch: Fetch, itemsize: int) -> dict[str, Any]:
        mesh = fetch.src.mesh
        devices = list(mesh.device_ids or range(mesh.size))
        moved = (move for move in fetch.transfers if move.sender != move.receiver)
        return {
            "kind": "fetch",
            "axes": "",
            "before": str(fetch.src),
            "after": "the boxes that are needed",
            "seconds": seconds_of_messages(fetch.messages, itemsize, mesh, self.machine),
            "devices": devices,
            "received": [count * itemsize for count in fetch.received],
            **self._pairs(lambda: moved, len(devices), itemsize),
        }

    def _pairs(self, transfers: Any, devices: int, itemsize: int) -> dict[str, Any]:
        """Who sends how many bytes to whom, and which boxes; nothing where they are too many."""
        if devices > self.most_cells:
            return {}
        return {"pairs": list(_paired(transfers(), itemsize))}


def _key(reshard: Reshard | None) -> Hashable:
    return reshard and (str(reshard.src), str(reshard.dst), reshard.shape, reshard.itemsize)


def _paired(transfers: Iterable[Transfer], itemsize: int) -> Iterator[list[Any]]:
    found: dict[tuple[int, int], list[Transfer]] = {}
    for move in transfers:
        found.setdefault((move.sender, move.receiver), []).append(move)
    for (sender, receiver), moves in found.items():
        boxes = [str(move.box) for move in moves[:MOST_BOXES]]
        more = ["…"] * (len(moves) > MOST_BOXES)
        yield [sender, receiver, sum(m.box.size for m in moves) * itemsize, [*boxes, *more]]
