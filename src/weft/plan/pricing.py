"""What a step costs on a machine: seconds, from the bytes that the slowest cell waits for.

A cell has one port. A message pays the link of the slowest axis that it goes along; the messages
of a step start together, so a step pays one latency. Where few cells hold what many want, their
ports are the bottleneck, and the step takes as long as they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.counts import ranks_in, wanted_and_held
from weft.plan.machine import Link, Machine
from weft.plan.parts import Parts
from weft.space import Digit, ZRange
from weft.values import Point

SAMPLE = 16
"""Of a larger mesh so many cells are looked at where links differ."""


def single_link(machine: Machine, meshes: Iterable[DeviceMesh], is_framed: bool) -> Link | None:
    """The link that all messages pay, if there is one."""
    if not machine.links:
        return machine.rest
    axes = [pair for mesh in meshes for pair in zip(mesh.axis_names, mesh.shape)]
    links = {machine.link(axis) for axis, size in axes if size > 1}
    if not is_framed or not links:  # some messages go between the meshes
        links.add(machine.rest)
    return links.pop() if len(links) == 1 else None


def seconds_of(elements: float, itemsize: int, link: Link) -> float:
    """What so many elements take through a port; nothing takes no time."""
    return link.latency + elements * itemsize / link.bandwidth if elements else 0.0


def busiest(
    before: ShardingSpec, after: ShardingSpec, shape: Point, count: int
) -> tuple[int, float]:
    """The most elements a cell receives, and the most that a cell sends if all send alike.

    `count` parts of each element are combined.
    """
    wanted, held = wanted_and_held(before, after, shape)
    received = [want * count - have for want, have in zip(wanted, held)]
    return max(received), sum(received) / max(1, senders(before, shape))


def senders(spec: ShardingSpec, shape: Point) -> int:
    """How many cells hold anything.

    >>> mesh = DeviceMesh("m", (2, 4), ("x", "y"))
    >>> senders(ShardingSpec.parse('<@m, [{"y"}]>', mesh), (3,))
    6
    """
    if 0 in shape:
        return 0
    filled = prod(-(-n // -(-n // count)) for n, count in zip(shape, spec.grid))
    return filled * (spec.mesh.size // prod(spec.grid))


def seconds_by_axis(
    before: ShardingSpec,
    after: ShardingSpec,
    shape: Point,
    itemsize: int,
    parts: Parts,
    machine: Machine,
    are_alike: bool,
) -> float:
    """What a step takes where links differ: the worst of all cells, or of a sample.

    One cell is looked at if all `are_alike`.
    """
    reaches = list(_reaches(before.mesh, machine))
    taken = [
        _seconds_of_cell(box, at, before, shape, itemsize, parts, reaches, machine)
        for box, at in _cells(before, after, shape, 1 if are_alike else SAMPLE)
    ]
    worst, crowd = max(map(sum, taken)), after.mesh.size / max(1, senders(before, shape))
    if crowd <= 1:
        return worst
    mean = sum(seconds for _, seconds in taken) / len(taken)
    return max(worst, max(latency for latency, _ in taken) + mean * crowd)


def _reaches(mesh: DeviceMesh, machine: Machine) -> Iterator[tuple[Link, set[int]]]:
    """The links from fast to slow, and which axes can be crossed with nothing slower."""
    links = [machine.link(axis) for axis in mesh.axis_names]
    crossed = set[int]()
    for link in sorted(set(links), key=lambda each: (-each.bandwidth, each.latency)):
        crossed |= {dim for dim, each in enumerate(links) if each == link}
        yield link, set(crossed)


def _cells(
    before: ShardingSpec, after: ShardingSpec, shape: Point, most: int
) -> Iterator[tuple[ZRange, Point | None]]:
    """Cells of the destination: what each wants, and where it lies in the source's mesh."""
    size = after.mesh.size
    ranks = ranks_in(before.mesh, after.mesh) or range(size)
    for rank in {k * (size - 1) // max(1, most - 1) for k in range(most)}:
        at = before.mesh.coord(ranks[rank]) if ranks[rank] >= 0 else None
        yield after.region(shape, rank), at


def _seconds_of_cell(
    box: ZRange,
    at: Point | None,
    before: ShardingSpec,
    shape: Point,
    itemsize: int,
    parts: Parts,
    reaches: Sequence[tuple[Link, set[int]]],
    machine: Machine,
) -> tuple[float, float]:
    """The latency that a cell waits for, and the seconds that its port is busy."""
    if at is None:
        latency, bandwidth = machine.rest if box else (0.0, 1.0)
        return latency, box.size * parts.size * itemsize / bandwidth
    latency = taken = 0.0
    near = _reachable(box, at, before, shape, parts, set())
    for link, crossed in reaches:
        found = _reachable(box, at, before, shape, parts, crossed)
        if found > near:
            latency = max(latency, link.latency)
            taken += (found - near) * itemsize / link.bandwidth
            near = found
    return latency, taken


def _reachable(
    box: ZRange, at: Point, before: ShardingSpec, shape: Point, parts: Parts, crossed: set[int]
) -> int:
    """How many elements of a box, in all their parts, lie on cells across those axes only."""
    found = prod(d.radix for run in parts.reduced for d in run.digits if d.dim in crossed)
    for dim, (low, high) in enumerate(zip(box.start, box.stop)):
        fixed = [d for d in before.digits[dim] if d.dim not in crossed]
        extent = -(-shape[dim] // before.grid[dim])
        found *= _covered(low, high, extent, fixed, at) if fixed and high > low else high - low
    return found


def _covered(low: int, high: int, extent: int, fixed: Sequence[Digit], at: Point) -> int:
    """How much of an interval lies in blocks that share those digits with a cell."""
    own = [(d, at[d.dim] // d.divisor % d.radix) for d in fixed]
    return sum(
        min(high, (block + 1) * extent) - max(low, block * extent)
        for block in range(low // extent, (high - 1) // extent + 1)
        if all(block // d.stride % d.radix == value for d, value in own)
    )
