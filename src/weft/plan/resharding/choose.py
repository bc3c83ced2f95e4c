"""The choice of steps: one exchange, or a route that is cheaper on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from weft.layout import ShardingSpec
from weft.plan.machine import Link, Machine
from weft.plan.resharding.counts import ranks_in
from weft.plan.resharding.frame import Frame, Layout, find_frame
from weft.plan.resharding.parts import parts_between
from weft.plan.resharding.pattern import Kind, find_change, most_received, name_pattern
from weft.plan.resharding.pricing import busiest, seconds_by_axis, seconds_of, single_link
from weft.plan.resharding.routes import find_routes, spec_of
from weft.plan.resharding.step import Step
from weft.values import Point

PLAIN = Machine()
"""The machine that counts bytes alone."""

BETTER = 1 - 1e-9
"""A longer way must be cheaper by more than rounding."""


class Job(NamedTuple):
    """What is moved, and on which machine; None stands for the plain one, and for fewest bytes."""

    shape: Point
    itemsize: int
    given: Machine | None

    @property
    def machine(self) -> Machine:
        """The machine that prices are for."""
        return PLAIN if self.given is None else self.given


class Found(NamedTuple):
    """What one step would be."""

    kind: Kind
    seconds: float
    is_crowded: bool = False
    """Whether the cells that hold the array are fewer than those that want it, and busier."""


def choose_steps(src: ShardingSpec, dst: ShardingSpec, job: Job) -> tuple[Step, ...]:
    """The cheapest steps; of equals the fewest."""
    frame = find_frame(src, dst)
    link = single_link(job.machine, (src.mesh, dst.mesh), frame is not None)
    direct = _look(src, dst, frame, link, job)
    if direct is None:
        return ()
    step = _step(src, dst, direct, job)
    if direct.seconds and (direct.is_crowded or src.partial or link is None):
        return _best_route(step, link, job) or (step,)
    return (step,)


def seconds_on(step: Step, machine: Machine) -> float:
    """Return what a step takes on another machine than the one it was chosen for."""
    if step.kind in ("slice", "mask") or machine == step.machine:
        return step.seconds
    return seconds_between(step.kind, step.before, step.after, step.shape, step.itemsize, machine)


@lru_cache(maxsize=1 << 14)
def seconds_between(
    kind: str,
    before: ShardingSpec,
    after: ShardingSpec,
    shape: Point,
    itemsize: int,
    machine: Machine,
) -> float:
    """Return what one transfer between two shardings takes on a machine."""
    if kind in ("slice", "mask"):
        return 0.0
    frame = find_frame(before, after)
    link = single_link(machine, (before.mesh, after.mesh), frame is not None)
    found = _look(before, after, frame, link, Job(shape, itemsize, machine))
    return found.seconds if found else 0.0


def _step(before: ShardingSpec, after: ShardingSpec, found: Found, job: Job) -> Step:
    shape, itemsize, _ = job
    return Step(found.kind, before, after, shape, itemsize, job.machine, found.seconds)


def _look(
    before: ShardingSpec,
    after: ShardingSpec,
    frame: Frame | None,
    link: Link | None,
    job: Job,
) -> Found | None:
    """What one step between two shardings is, and what it costs; None if nothing is to do."""
    shape = job.shape
    if frame is None:
        return _look_apart(before, after, link, job)
    change = find_change(frame.src, frame.dst)
    kind = name_pattern(change, before.grid, after.grid, shape)
    if kind is None:
        return None
    if kind == "slice" or 0 in shape:
        return Found("slice", 0.0)
    if link is None:
        kind = _near_first(kind, before)
        return Found(kind, _by_axis(kind, before, after, job))
    most = most_received(change, frame.count(change.reduced), before.grid, after.grid, shape)
    if most is not None:
        return Found(kind, seconds_of(most, job.itemsize, link))
    return _weigh(kind, before, after, link, job)


def _by_axis(kind: Kind, before: ShardingSpec, after: ShardingSpec, job: Job) -> float:
    """A step priced where links differ; in a regular one all cells do the same."""
    shape, itemsize, _ = job
    alike = kind not in ("exchange", "collective_permute")
    alike = alike and before.is_even(shape) and after.is_even(shape)
    parts = parts_between(before, after)
    return seconds_by_axis(before, after, shape, itemsize, parts, job.machine, alike)


def _weigh(kind: Kind, before: ShardingSpec, after: ShardingSpec, link: Link, job: Job) -> Found:
    """A step between uneven shards, or between meshes, priced cell by cell."""
    most, mean = busiest(before, after, job.shape, parts_between(before, after).size)
    if not most:
        return Found("slice", 0.0)
    return Found(kind, seconds_of(max(most, mean), job.itemsize, link), mean > most)


def _look_apart(
    before: ShardingSpec, after: ShardingSpec, link: Link | None, job: Job
) -> Found | None:
    """The same for meshes whose cells do not correspond."""
    alike = before.grid == after.grid and after.mesh.size <= before.mesh.size
    combines = parts_between(before, after).size > 1
    kind: Kind = "collective_permute" if alike and not combines else "exchange"
    found = _weigh(kind, before, after, link or job.machine.rest, job)
    if found.kind == "slice" and not combines and _same_boxes(before, after, job.shape):
        return None
    if link is None and found.seconds:
        kind = _near_first(kind, before)
        return Found(kind, _by_axis(kind, before, after, job), found.is_crowded)
    return found


def _near_first(kind: Kind, before: ShardingSpec) -> Kind:
    """Where links differ and replicas can be chosen, near ones come before one for each."""
    chooses = kind == "collective_permute" and before.replica_count > 1
    return "exchange" if chooses else kind


def _same_boxes(before: ShardingSpec, after: ShardingSpec, shape: Point) -> bool:
    ranks = ranks_in(before.mesh, after.mesh) or range(after.mesh.size)
    held = before.regions(shape)
    pairs = zip(ranks, after.regions(shape))
    return all(rank >= 0 and held[rank] == box for rank, box in pairs)


def _best_route(direct: Step, link: Link | None, job: Job) -> tuple[Step, ...]:
    """The cheapest route through other shardings, if one is cheaper than the direct way."""
    src, dst, limit = direct.before, direct.after, direct.seconds
    start, frame = src, find_frame(src, dst, by_axis=True)
    if frame is None:  # all that routes can do is gather on the destination's mesh
        start, frame = dst, find_frame(dst, dst, by_axis=True)
    best, specs = tuple[Step, ...](), dict[Layout, ShardingSpec]()
    if frame is None:
        return best
    by_price = job.given is not None or bool(src.partial)
    for route in find_routes(frame, start, dst, job.shape, job.machine):
        frames = [Frame(*pair, frame.radix) for pair in pairwise((frame.src, *route, frame.dst))]
        if link and start is src and (_quick_price(frames, link, job) or 0) >= limit * BETTER:
            continue
        for layout in route:
            if layout not in specs:
                specs[layout] = spec_of(frame, layout, start, dst)
        between = [specs[layout] for layout in route]
        known = frames if start is src else [find_frame(src, between[0]), *frames[1:]]
        steps = _walk((src, *between, dst), known, job, limit * BETTER)
        if steps and (by_price or _received(steps) <= _received([direct])):
            best, limit = steps, sum(step.seconds for step in steps)
    return best


def _received(steps: Sequence[Step]) -> int:
    return sum(sum(step.received) for step in steps)


def _quick_price(frames: Sequence[Frame], link: Link, job: Job) -> float | None:
    """What a route costs where all links and shards are alike; None where they are not."""
    cost = 0.0
    for frame in frames:
        change = find_change(frame.src, frame.dst)
        src, dst = (tuple(map(frame.count, each.cuts)) for each in (frame.src, frame.dst))
        most = most_received(change, frame.count(change.reduced), src, dst, job.shape)
        if most is None:
            return None
        cost += seconds_of(most, job.itemsize, link)
    return cost


def _walk(
    specs: Sequence[ShardingSpec], frames: Sequence[Frame | None], job: Job, limit: float
) -> tuple[Step, ...]:
    """The steps from each sharding to the next; none if they take as long as the limit."""
    steps, taken = [], 0.0
    for (before, after), frame in zip(pairwise(specs), frames):
        link = single_link(job.machine, (before.mesh, after.mesh), frame is not None)
        found = _look(before, after, frame, link, job)
        if found is not None:
            steps.append(_step(before, after, found, job))
            taken += found.seconds
            if taken >= limit:
                return ()
    return tuple(steps)
