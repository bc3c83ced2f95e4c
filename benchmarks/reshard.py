"""Reshard plans between all shardings on 8 devices: bytes over the least, and time per plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks import reshard_execution
from benchmarks.reshard_peers import Pair, peers
from benchmarks.row import Row, time_each
from weft import DeviceMesh, DimSpec, ShardingSpec, plan_reshard
from weft.plan.resharding.reshard import forget_plans

SETTINGS = [(mesh, rank) for rank in (2, 3) for mesh in ((4, 2), (2, 2, 2), (2, 4))]
SHAPES = {2: (1024, 1024), 3: (64, 128, 128)}
SAMPLE = 200
"""Pairs that DTensor is asked about, of each setting; it may take 30 ms for one."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a planner moves, and what must be moved, for some pairs."""

    received: Sequence[int]
    ideal: Sequence[int]

    @property
    def ratio(self) -> float:
        """Over all pairs together."""
        return sum(self.received) / sum(self.ideal)

    @property
    def ratios(self) -> list[float]:
        """Pair by pair, where anything must move."""
        return [got / least for got, least in zip(self.received, self.ideal) if least]


def run(seconds: float) -> Iterator[Row]:
    """All rows; each may take about `seconds`."""
    found: dict[str, list[tuple[Bytes, Bytes]]] = {}
    for mesh, rank in SETTINGS if seconds else SETTINGS[:1]:
        name = f"reshard/{'x'.join(map(str, mesh))}-rank-{rank}"
        pairs, shape = all_pairs(mesh, rank), SHAPES[rank]
        yield from alone(name, pairs, shape, seconds)
        for peer, make in peers().items():
            asked = sample(pairs, seconds) if "DTensor" in peer else pairs
            ours, theirs = our_bytes(asked, shape), make(asked, shape)
            other = Bytes(theirs.received(), ours.ideal)
            found.setdefault(peer, []).append((ours, other))
            yield Row.against(f"{name}/bytes", ours.ratio, peer, other.ratio, "x least", len(asked))
            yield plan_time(name, asked, shape, peer, theirs, seconds)
            if peer == "DTensor":
                yield cached_time(name, asked, shape, peer, theirs, seconds)
    for peer, each in found.items():
        yield from extremes(peer, each)
    yield from reshard_execution.run(seconds)


def all_pairs(shape: tuple[int, ...], rank: int) -> list[Pair]:
    """All pairs of shardings in which axes cut a dimension in the order of the mesh."""
    mesh = DeviceMesh("m", shape, [f"a{n}" for n in range(len(shape))])
    specs = []
    for dims in product(range(rank + 1), repeat=len(shape)):
        cuts = [[a for a, at in zip(mesh.axis_names, dims) if at == dim] for dim in range(rank)]
        specs.append(ShardingSpec(mesh, list(map(DimSpec, cuts))))
    return list(product(specs, specs))


def sample(pairs: Sequence[Pair], seconds: float) -> Sequence[Pair]:
    """A few of the pairs, always the same."""
    count = min(len(pairs), SAMPLE if seconds else 5)
    return random.Random(0).sample(pairs, count)


def our_bytes(pairs: Sequence[Pair], shape: tuple[int, ...]) -> Bytes:
    """What our plans move."""
    plans = [plan_reshard(src, dst, shape) for src, dst in pairs]
    return Bytes([sum(plan.received) for plan in plans], [plan.ideal for plan in plans])


def cold(pairs: Sequence[Pair], shape: tuple[int, ...]) -> Callable[[], object]:
    """A call that plans all pairs, nothing remembered."""

    def call() -> object:
        forget_plans()
        return [plan_reshard(src, dst, shape) for src, dst in pairs]

    return call


def warm(pairs: Sequence[Pair], shape: tuple[int, ...]) -> Callable[[], object]:
    """A call that asks for all plans once more."""
    return lambda: [plan_reshard(src, dst, shape) for src, dst in pairs]


def alone(
    name: str, pairs: Sequence[Pair], shape: tuple[int, ...], seconds: float
) -> Iterator[Row]:
    """What needs no peer: the memory, and the time of a plan, new and remembered."""
    plans = [plan_reshard(src, dst, shape) for src, dst in pairs]
    over = max(
        peak / (4 * (held + wanted))
        for plan in plans
        for peak, held, wanted in zip(
            plan.peak,
            [box.size for box in plan.src.regions(shape)],
            [box.size for box in plan.dst.regions(shape)],
        )
    )
    yield Row(f"{name}/peak", over, "x source plus destination", len(pairs))
    (new, again), n = time_each(cold(pairs, shape), warm(pairs, shape), seconds=seconds)
    yield Row(f"{name}/plan", new / len(pairs) * 1e6, "us", n)
    yield Row(f"{name}/plan-again", again / len(pairs) * 1e6, "us", n)


def plan_time(
    name: str, pairs: Sequence[Pair], shape: tuple[int, ...], peer: str, theirs: Any, seconds: float
) -> Row:
    """Time of one plan, cold; that of copying Shardy's module is taken off."""
    (mine, other), n = time_each(cold(pairs, shape), theirs.plan, seconds=seconds)
    if hasattr(theirs, "copy"):
        (copying,), _ = time_each(theirs.copy, seconds=seconds / 5)
        other -= copying
    scale = 1e6 / len(pairs)
    return Row.against(f"{name}/plan", mine * scale, peer, other * scale, "us", n)


def cached_time(
    name: str, pairs: Sequence[Pair], shape: tuple[int, ...], peer: str, theirs: Any, seconds: float
) -> Row:
    """Time of one plan that both have made before."""
    (mine, other), n = time_each(warm(pairs, shape), theirs.plan_again, seconds=seconds)
    scale = 1e6 / len(pairs)
    return Row.against(f"{name}/plan-again", mine * scale, peer, other * scale, "us", n)


def extremes(peer: str, found: Sequence[tuple[Bytes, Bytes]]) -> Iterator[Row]:
    """The worst pair of all settings, and how many pairs move no byte too many."""
    mine = [ratio for ours, _ in found for ratio in ours.ratios]
    theirs = [ratio for _, other in found for ratio in other.ratios]
    yield Row.against("reshard/worst", max(mine), peer, max(theirs), "x least", len(mine))
    shares = [100 * sum(ratio == 1 for ratio in each) / len(each) for each in (mine, theirs)]
    yield Row.against(
        "reshard/at-least", shares[0], peer, shares[1], "% of pairs", len(mine), better="higher"
    )
