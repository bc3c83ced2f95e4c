"""The seconds of a step on a machine, from the bytes that the slowest cell waits for.

A cell has one port. A message pays the link of the slowest axis that it goes along; the messages
of a step start together, so a step pays one latency. Where few cells hold what many want, their
ports are the bottleneck, and the step takes as long as they need. Where cells share a link, each
waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice, pairwise, product
from math import prod
from typing import NamedTuple

from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.machine import Link, Machine
from weft.plan.resharding.counts import ranks_by_device, ranks_in, sizes, wanted_and_held_by_class
from weft.plan.resharding.parts import Parts
from weft.space import BlockGrid, Digit, ZRange
from weft.values import Point

SAMPLE = 16
"""Cells of a large mesh that are sampled where links differ."""


def single_link(machine: Machine, meshes: Iterable[DeviceMesh], is_common: bool) -> Link | None:
    """Return the one kind of link that all messages use, if there is one and it is not shared."""
    if not machine.links:
        return None if machine.shared else machine.rest
    axes = [pair for mesh in meshes for pair in zip(mesh.axis_names, mesh.shape)]
    links = {machine.link(axis) for axis, size in axes if size > 1}
    if not is_common or not links:  # some messages go between the meshes
        links.add(machine.rest)
    link = links.pop() if len(links) == 1 else None
    return None if link is None or link.shared else link


def seconds_of(elements: float, itemsize: int, link: Link) -> float:
    """Return the seconds to send a number of elements (0 for none)."""
    return link.latency + elements * itemsize / link.bandwidth if elements else 0.0


def busiest(
    before: ShardingSpec, after: ShardingSpec, shape: Point, count: int
) -> tuple[int, float]:
    """The most elements a cell receives, and the most that a cell sends if all send alike.

    `count` parts of each element are combined.
    """
    received = [
        (want * count - have, cells)
        for want, have, cells in wanted_and_held_by_class(before, after, shape)
    ]
    total = sum(size * cells for size, cells in received)
    return max(size for size, _ in received), total / max(1, senders(before, shape))


def senders(spec: ShardingSpec, shape: Point) -> int:
    """Return the number of cells that hold anything.

    >>> mesh = DeviceMesh("m", (2, 4), ("x", "y"))
    >>> senders(ShardingSpec.parse('<@m, [{"y"}]>', mesh), (3,))
    6
    """
    if 0 in shape:
        return 0
    grid = spec.blocks(shape)
    filled = prod(
        sum(each.count for each in grid.classes(dim) if each.extent) for dim in range(grid.ndim)
    )
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
    """Return the seconds of a step over different links: the worst cell of all, or of a sample.

    One cell is looked at if all `are_alike`.
    """
    incoming = _Incoming(before, after, shape, parts, machine)
    size, most = after.mesh.size, 1 if are_alike else SAMPLE
    ranks = {k * (size - 1) // max(1, most - 1) for k in range(most)}
    waits = [incoming.wait(rank, itemsize, are_alike) for rank in ranks]
    worst, crowd = max(wait.seconds for wait in waits), size / max(1, senders(before, shape))
    if crowd <= 1:
        return worst
    mean = sum(wait.port for wait in waits) / len(waits)
    return max(worst, max(wait.latency for wait in waits) + mean * crowd)


class _Wait(NamedTuple):
    """The seconds that one cell waits."""

    latency: float
    port: float
    """The seconds that its own bytes keep its port busy."""
    shared: float
    """The same with the bytes of all cells with which it shares a group of links."""

    @property
    def seconds(self) -> float:
        return self.latency + self.shared


class _Incoming:
    """The elements that come to each cell of the destination, by link group."""

    def __init__(
        self,
        before: ShardingSpec,
        after: ShardingSpec,
        shape: Point,
        parts: Parts,
        machine: Machine,
    ) -> None:
        self.before, self.after, self.shape, self.parts = before, after, shape, parts
        self.all_links, self.rest = link_groups(before.mesh, machine), machine.rest
        self.ranks = ranks_in(before.mesh, after.mesh) or range(after.mesh.size)
        self.known: dict[int, list[int]] = {}

    @cached_property
    def cells(self) -> dict[int, int]:
        """The cells of the destination by their rank in the source's mesh."""
        return {rank: cell for cell, rank in enumerate(self.ranks) if rank >= 0}

    def wait(self, cell: int, itemsize: int, are_alike: bool) -> _Wait:
        """Return how long a cell of the destination waits."""
        if self.ranks[cell] < 0:
            return self._wait_outside(cell, itemsize)
        latency = port = shared = 0.0
        for number, size in enumerate(self._elements(cell)):
            link = self.all_links[number].link
            if size:
                latency, taken = max(latency, link.latency), size * itemsize / link.bandwidth
                port += taken
                shared += taken * self._share(number, cell, are_alike) if link.shared else taken
        return _Wait(latency, port, shared)

    def _wait_outside(self, cell: int, itemsize: int) -> _Wait:
        """Return the wait of a cell outside the source's mesh, by the default link."""
        held, latency, bandwidth = sizes(self.after, self.shape), *self.rest[:2]
        if not held[cell]:
            return _Wait(0.0, 0.0, 0.0)
        scale = self.parts.size * itemsize / bandwidth
        outside = sum(size for size, rank in zip(held, self.ranks) if rank < 0)
        shared = outside if self.rest.shared else held[cell]
        return _Wait(latency, held[cell] * scale, shared * scale)

    def _share(self, number: int, cell: int, are_alike: bool) -> float:
        """Return how much the cells that share links receive, as a multiple of one cell's."""
        mesh, links = self.before.mesh, self.all_links[number]
        count = prod(mesh.shape[dim] for dim in links.axes)
        if are_alike:
            return count
        at = mesh.coord(self.ranks[cell])
        spans = [range(n) if d in links.axes else (at[d],) for d, n in enumerate(mesh.shape)]
        step = -(-count // SAMPLE)
        group = list(islice(product(*spans), 0, None, step))
        found = [self.cells[rank] for each in group if (rank := mesh.rank(each)) in self.cells]
        total = sum(self._elements(each)[number] for each in found)
        return max(1.0, total * count / len(group) / self._elements(cell)[number])

    def _elements(self, cell: int) -> list[int]:
        """Return the elements that come to a cell through each link group."""
        if cell not in self.known:
            box, at = self.after.region(self.shape, cell), self.before.mesh.coord(self.ranks[cell])
            given = box, at, self.before, self.shape, self.parts
            found = [_reachable(*given, links.reach) for links in self.all_links]
            near = [_reachable(*given, frozenset()), *found]
            self.known[cell] = [max(0, far - held) for held, far in pairwise(near)]
        return self.known[cell]


def _reachable(
    box: ZRange,
    at: Point,
    before: ShardingSpec,
    shape: Point,
    parts: Parts,
    crossed: frozenset[int],
) -> int:
    """Return the elements of a box, in all parts, on cells that differ along some axes only."""
    found = prod(d.radix for run in parts.reduced for d in run.digits if d.dim in crossed)
    grid = before.blocks(shape)
    for dim, (low, high) in enumerate(zip(box.start, box.stop)):
        fixed = [d for d in before.digits[dim] if d.dim not in crossed]
        if fixed and high > low:
            found *= _covered(grid, dim, low, high, fixed, at)
        else:
            found *= high - low
    return found


def _covered(
    grid: BlockGrid, dim: int, low: int, high: int, fixed: Sequence[Digit], at: Point
) -> int:
    """Return the length of an interval in blocks that share some digits with a cell."""
    own = [(d, d.of(at)) for d in fixed]
    total = 0
    for block in grid.overlaps(dim, low, high):
        if all(block // d.stride % d.radix == value for d, value in own):
            first, end = grid.span(dim, block)
            total += min(high, end) - max(low, first)
    return total


# Groups of links.


class LinkGroup(NamedTuple):
    """A link, and the mesh axes along which messages use it."""

    link: Link
    axes: frozenset[int]
    reach: frozenset[int]
    """Its axes, and those that cost less: what can be crossed for its price."""

    def group(self, at: Point) -> Point:
        """Return what cells that share the link have in common: their other coordinates."""
        return tuple(x for dim, x in enumerate(at) if dim not in self.axes)


def link_groups(mesh: DeviceMesh, machine: Machine) -> list[LinkGroup]:
    """Return the link groups of a mesh, from fast to slow.

    A shared link of its own is a group of links for its axis; all the axes of the rest share one.

    >>> mesh = DeviceMesh("m", (2, 2, 2), ("host", "x", "y"))
    >>> found = link_groups(mesh, Machine({"host": (0, 1e9)}, bandwidth=1e10, shared=True))
    >>> [(sorted(links.axes), sorted(links.reach)) for links in found]
    [([1, 2], [1, 2]), ([0], [0, 1, 2])]
    """
    axes: dict[tuple[Link, str], set[int]] = {}
    for dim, name in enumerate(mesh.axis_names):
        link = machine.link(name)
        own = name if link.shared and name in machine.links else ""
        axes.setdefault((link, own), set()).add(dim)
    reach: set[int] = set()
    found = []
    for (link, _), dims in sorted(axes.items(), key=_slowness):
        reach |= dims
        found.append(LinkGroup(link, frozenset(dims), frozenset(reach)))
    return found


def _slowness(item: tuple[tuple[Link, str], set[int]]) -> tuple[float, float, bool, int]:
    (link, _), dims = item
    return -link.bandwidth, link.latency, link.shared, min(dims)


def seconds_of_messages(
    messages: Iterable[tuple[int, int, int]], itemsize: int, mesh: DeviceMesh, machine: Machine
) -> float:
    """Return the seconds of messages between devices: those of the busiest device.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> messages = [(0, 1, 1000), (1, 0, 1000)]
    >>> apart, together = Machine(bandwidth=1e9), Machine(bandwidth=1e9, shared=True)
    >>> [seconds_of_messages(messages, 4, mesh, machine) for machine in (apart, together)]
    [4e-06, 8e-06]
    """
    received, sent, added = dict[_Key, int](), dict[_Key, int](), dict[_Key, int]()
    all_links, between, groups = _between(mesh, machine)
    ranks = ranks_by_device(mesh)
    for sender, receiver, count in messages:
        size, one, two = count * itemsize, ranks[sender], ranks[receiver]
        number = between[one][two]
        if size and number is not None:
            for counts, key in ((received, two), (sent, one), (added, groups[number][two])):
                counts[number, key] = counts.get((number, key), 0) + size
    waits: dict[int, list[float]] = {}
    for (number, rank), size in received.items():
        link, group = all_links[number].link, groups[number][rank]
        wait = waits.setdefault(rank, [0.0, 0.0])
        wait[0] = max(wait[0], link.latency)
        wait[1] += (added[number, group] if link.shared else size) / link.bandwidth
    return max([*map(sum, waits.values()), *_sending(sent, all_links)], default=0.0)


_Key = tuple[int, int]
"""The number of a group of links, and of a cell or a group of cells."""


@lru_cache(maxsize=64)
def _between(
    mesh: DeviceMesh, machine: Machine
) -> tuple[list[LinkGroup], list[list[int | None]], list[list[int]]]:
    """Return the link groups, which of them two cells use, and for each the group of a cell."""
    all_links, cells = link_groups(mesh, machine), list(mesh.cells())
    between = [[_group_between(all_links, one, two) for two in cells] for one in cells]
    groups = []
    for links in all_links:
        numbers: dict[Point, int] = {}
        groups.append([numbers.setdefault(links.group(cell), len(numbers)) for cell in cells])
    return all_links, between, groups


def _sending(sent: dict[_Key, int], all_links: list[LinkGroup]) -> Iterator[float]:
    """Return how long each sender is busy."""
    busy: dict[int, list[float]] = {}
    for (number, rank), size in sent.items():
        link, each = all_links[number].link, busy.setdefault(rank, [0.0, 0.0])
        each[0] = max(each[0], link.latency)
        each[1] += size / link.bandwidth
    yield from map(sum, busy.values())


def _group_between(all_links: list[LinkGroup], one: Point, two: Point) -> int | None:
    """Return the number of the link group that a message uses; None between equal cells."""
    crossed = {dim for dim, (a, b) in enumerate(zip(one, two)) if a != b}
    if not crossed:
        return None
    return next(number for number, links in enumerate(all_links) if crossed <= links.reach)
