"""`Ranks`: this process among the ranks of a group, where rank r is device r."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.program import Route
from weft.runtime.exchange import Held, MovedBytes
from weft.runtime.local import Cause, Here
from weft.runtime.torch import transport
from weft.runtime.torch.schedule import Schedule, schedule
from weft.values import Point

_ALONG: WeakKeyDictionary[Any, dict[Point, Any]] = WeakKeyDictionary()
"""For each group the smaller groups that were made in it."""


_SUMS = frozenset({"all_reduce", "reduce_scatter"})
NATIVE = {"gloo": frozenset({"all_reduce"})}
"""The sums that a back-end does itself with the bytes that the plan says, where that is not all.

Gloo's reduce_scatter is an all_reduce inside and moves twice as much.
"""


class RankError(WeftError):
    """Another rank did not do its part."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The ranks of a process group, seen from one of them."""

    group: Any
    rank: int
    size: int
    backends: Mapping[str, str]
    """For each type of device what moves its tensors."""

    @classmethod
    def of(cls, group: Any = None) -> Ranks:
        """The ranks of a group that is initialised; without one, of all."""
        if not dist.is_available() or not dist.is_initialized():
            raise WeftError(
                "there is no process group of torch.distributed",
                hint="call torch.distributed.init_process_group() first, under torchrun",
            )
        group = dist.group.WORLD if group is None else group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise WeftError(f"rank {dist.get_rank()} does not belong to the process group given")
        config = dist.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        return cls(group, rank, size, dict(each.split(":", 1) for each in config.split(",")))

    @property
    def here(self) -> Here:
        """The one cell that is here."""
        return Here(self.rank, self._carry)

    def cell(self, mesh: DeviceMesh) -> int:
        """Return the rank of this device among the cells of a mesh."""
        return self.rank if mesh.device_ids is None else mesh.device_ids.index(self.rank)

    @property
    def device(self) -> torch.device:
        """The device for arrays that are on none yet: the CPU, if tensors move from there."""
        if "cpu" in self.backends:
            return torch.device("cpu")
        kind = next(iter(self.backends))
        return torch.device(kind, torch.get_device_module(kind).current_device())

    def check(self, mesh: DeviceMesh) -> None:
        """Refuse a mesh whose devices are not these ranks."""
        if mesh.size != self.size:
            raise WeftError(
                f"{mesh} has {mesh.size} cells, and the process group has {self.size} ranks",
                hint="a mesh has one cell for each rank",
            )
        if mesh.device_ids and sorted(mesh.device_ids) != list(range(self.size)):
            raise WeftError(
                f"{mesh} has the devices {list(mesh.device_ids)}, and the process group the ranks "
                f"0 to {self.size - 1}"
            )

    def agree(self, digest: int, device: torch.device, what: str) -> None:
        """Refuse, on all ranks alike, what not all of them hold."""
        mine = torch.tensor([digest], dtype=torch.int64, device=device)
        every = torch.empty(self.size, dtype=torch.int64, device=device)
        with self._blaming("the comparison of plans", Cause("run", what)):
            dist.all_gather_single(every, mine, group=self.group)
            others = [rank for rank, found in enumerate(every.tolist()) if found != every[0]]
        if others:
            raise RankError(
                f"rank {others[0]} runs another plan than rank 0, or lays its inputs out otherwise",
                hint="make the plan from the same graph and the same shardings on every rank",
            )

    def _carry(
        self, xp: Any, held: Held, route: Route, kind: str, cause: Cause
    ) -> tuple[Held, MovedBytes]:
        mine, plan = held[self.rank], schedule(route, kind, self.rank)
        monoids = [run.monoid for run in route.combine]
        with self._blaming(kind, cause):
            way = self._way(plan, monoids, mine)
            made, sent, received = way(xp, mine, plan, monoids, self._at(way, plan, mine.device))
        counts = MovedBytes({}, {})
        for device, (out, into) in plan.elements.items():
            counts.sent[device] = out * mine.itemsize
            counts.received[device] = into * mine.itemsize
        counts.sent[self.rank], counts.received[self.rank] = sent, received
        return {self.rank: made}, counts

    def _way(self, plan: Schedule, monoids: Sequence[str], mine: torch.Tensor) -> transport.Way:
        native = NATIVE.get(self.backends[mine.device.type], _SUMS)
        adds = tuple(monoids) == ("sum",) and mine.dtype in transport.SUMMED
        adds = adds and plan.collective in native
        if plan.collective and len(plan.group) < self.size and self.group != dist.group.WORLD:
            # Smaller groups are made by all ranks of the world, and not all of them are here.
            return transport.by_messages
        match plan.collective:
            case "all_gather":
                return transport.by_all_gather
            case "all_reduce":
                two = adds and len(plan.group) == 2
                return transport.by_all_reduce if two else transport.by_all_gather
            case "reduce_scatter" if adds and plan.is_even:
                return transport.by_reduce_scatter
            case "all_to_all" | "reduce_scatter":
                return transport.by_all_to_all
        return transport.by_messages

    def _at(self, way: transport.Way, plan: Schedule, device: torch.device) -> transport.Rank:
        """Return the group in which a step communicates: one along some axes, or the whole one."""
        if way is transport.by_messages or len(plan.group) == self.size:
            return transport.Rank(self.rank, self.group, range(self.size))
        made = _ALONG.setdefault(self.group, {})
        for group in plan.groups:
            # Torch wants all ranks to make all groups, in the same order, also those of others.
            if group not in made:
                made[group] = dist.new_group(group, timeout=_timeout(self.group, device))
        return transport.Rank(self.rank, made[plan.group], plan.group)

    @contextmanager
    def _blaming(self, what: str, cause: Cause) -> Iterator[None]:
        """Say which step failed on which rank, and why."""
        try:
            yield
        except RuntimeError as error:
            # Torch puts the place in its sources before what it says, and advice behind it.
            said = re.sub(r"^(\[[^]]*:\d+\]\s*)+", "", str(error)) or type(error).__name__
            why = re.split(r"\.\s|\n", said, maxsplit=1)[0]
            raise RankError(
                f"rank {self.rank} of {self.size} could not finish {what} of {cause}: {why}",
                hint="another rank died, raised or fell behind: look at its messages",
            ) from error


def _timeout(group: Any, device: torch.device) -> timedelta | None:
    """Return the timeout of a group, which is also that of smaller ones."""
    options = getattr(group._get_backend(device), "options", None)
    return getattr(options, "_timeout", None)
