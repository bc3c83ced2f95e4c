"""`plan_reshard`: the steps that take an array from one sharding to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from typing import SupportsIndex, TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import LayoutError, WeftError
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.picture import draw_reshard, write_reshard
from weft.plan.resharding.choose import Request, choose_steps
from weft.plan.resharding.counts import shared, sizes_of, wanted_and_held
from weft.plan.resharding.parts import Parts, parts_between
from weft.plan.resharding.step import Step, union
from weft.values import Point, as_count, as_point, as_shape, counted


@dataclass(frozen=True, slots=True, repr=False)
class Reshard(Drawn):
    """The steps that take an array from one sharding to another, with their exact bytes.

    What it says of each cell stands in the order of `devices`.

    >>> from weft import DeviceMesh
    >>> mesh = DeviceMesh("m", (4,), ("x",))
    >>> rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    >>> plan = plan_reshard(rows, ShardingSpec.parse('<@m, [{}, {"x"}]>', mesh), (8, 8))
    >>> [step.kind for step in plan.steps], plan.received, plan.peak
    (['all_to_all'], (48, 48, 48, 48), (128, 128, 128, 128))
    >>> print(next(plan.steps[0].transfers()))
    1 -> 0 [2:4, 0:2]
    """

    src: ShardingSpec
    dst: ShardingSpec
    shape: Point
    itemsize: int
    machine: Machine
    steps: tuple[Step, ...]

    @property
    def devices(self) -> Point:
        """The devices of the source's mesh in rank order, then those of the destination alone."""
        return union(self.src, self.dst)

    @property
    def price(self) -> float:
        """The estimated seconds of the steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def received(self) -> Point:
        """The bytes that each of the devices receives."""
        return self._sum([(step.devices, step.received) for step in self.steps])

    @property
    def sent(self) -> Point:
        """The bytes that each of the devices sends."""
        return self._sum([(step.devices, step.sent) for step in self.steps])

    @property
    def peak(self) -> Point:
        """The bytes that each of the devices holds at most, messages on their way not counted.

        At every step that is the source, what the step before made, and what this step makes. What
        a device takes of an array that it has is no array of its own, but that one stays; parts
        are combined as they come.
        """
        devices, there = self.devices, self.src.mesh.device_ids or range(self.src.mesh.size)
        source = self._sum([(there, sizes_of(self.src, self.shape, self.itemsize))])
        made = [dict(zip(step.devices, step.made)) for step in self.steps]
        most, _ = along([[each.get(d) for d in devices] for each in made], len(devices))
        return tuple(map(int.__add__, source, most))

    def peak_beside(self, frees_source: bool = True, made: Sequence[Made] | None = None) -> Point:
        """Return the most that cells of one mesh hold beyond the source, until all is their own.

        A view is copied, unless it is a view of all that is left: the source is freed, or it is
        not. What the steps make may be given, where it is known.
        """
        if frees_source and not self.steps:
            return (0,) * self.dst.mesh.size
        source, final = (sizes_of(s, self.shape, self.itemsize) for s in (self.src, self.dst))
        steps = [step.made for step in self.steps] if made is None else made
        most, beside = along(steps, len(final))
        return tuple(
            max(top, (last or 0) + size)
            if size < (had if last is None else last) or (last is None and not frees_source)
            else max(top, last or 0)
            for top, size, had, last in zip(most, final, source, beside)
        )

    @property
    def ideal(self) -> int:
        """The bytes that all cells together must receive at least, whatever the steps.

        What a cell wants and does not have must come. Where p parts are combined and w cells want
        the result, p - 1 values must meet for each element and w - 1 cells must be told; one more
        if nobody who wants it has a part of it.
        """
        parts = parts_between(self.src, self.dst)
        wanted, held = wanted_and_held(self.src, self.dst, self.shape)
        if parts.size == 1:
            return (sum(wanted) - sum(held)) * self.itemsize
        met = shared(self.src, self.dst, self.shape, [there for _, there, _ in parts.kept])
        elements = prod(self.shape) * prod(there.radix for _, there, _ in parts.kept)
        return (elements * (parts.size - 1) + sum(wanted) - met) * self.itemsize

    def drawing(self) -> Drawing:
        """Return a picture of the messages, step by step."""
        return draw_reshard(self)

    def _sum(self, counts: Iterable[tuple[Iterable[int], Iterable[int]]]) -> Point:
        totals = dict.fromkeys(self.devices, 0)
        for devices, numbers in counts:
            for device, number in zip(devices, numbers):
                totals[device] += number
        return tuple(totals.values())

    def __repr__(self) -> str:
        kinds = ", ".join(step.kind for step in self.steps)
        array = f"{list(self.shape)} of {self.itemsize} B"
        return f"Reshard({self.src} -> {self.dst}, {array}: [{kinds}])"

    def __str__(self) -> str:
        return write_reshard(self)


Made: TypeAlias = Sequence[int | None]
"""For each cell the bytes of the array that a step makes there; None where it is a view."""


def along(steps: Iterable[Made], count: int) -> tuple[list[int], list[int | None]]:
    """Return the most that cells hold of what steps make, and the array that each made last."""
    most, beside = [0] * count, list[int | None]([None] * count)
    for made in steps:
        cells = zip(most, beside, made)
        most = [max(top, (old or 0) + (new or 0)) for top, old, new in cells]
        beside = [old if new is None else new for old, new in zip(beside, made)]
    return most, beside


def plan_reshard(
    src: ShardingSpec,
    dst: ShardingSpec,
    shape: Iterable[SupportsIndex],
    itemsize: SupportsIndex = 4,
    machine: Machine | None = None,
) -> Reshard:
    """Return the cheapest steps that take an array from one sharding to another.

    The two may lie on different meshes: cells are matched by device. `itemsize` is the bytes of
    an element. With a machine the steps are those that take the least time on it; without one
    those that move the fewest bytes. Plans are remembered.

    >>> from weft import DeviceMesh
    >>> mesh = DeviceMesh("m", (2, 4), ("x", "y"))
    >>> sums = ShardingSpec.parse('<@m, [{"x"}, {}], unreduced={"y"}>', mesh)
    >>> plan = plan_reshard(sums, ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh), (8, 8))
    >>> [step.kind for step in plan.steps], sum(plan.received) == plan.ideal
    (['reduce_scatter', 'all_gather'], True)
    """
    if not (isinstance(src, ShardingSpec) and isinstance(dst, ShardingSpec)):
        raise WeftError(f"source and destination must be ShardingSpecs, got {src!r} and {dst!r}")
    try:
        array, width = tuple(map(index, shape)), index(itemsize)
    except TypeError:
        array, width = as_point(shape, "shape"), as_count(itemsize, "itemsize")
    return _plan(src, dst, array, width, machine)


@lru_cache(maxsize=1 << 14)
def _plan(
    src: ShardingSpec, dst: ShardingSpec, shape: Point, itemsize: int, machine: Machine | None
) -> Reshard:
    request = Request(shape, itemsize, machine)
    _check(src, dst, request)
    parts = parts_between(src, dst)
    start, end = src.canonical(shape), dst.canonical(shape)
    goal = _unmasked(end, parts) if parts.masked else end
    steps = choose_steps(start, goal, request)
    if parts.masked:
        steps += (Step("mask", goal, end, shape, itemsize, request.machine, 0.0),)
    return Reshard(src, dst, shape, itemsize, request.machine, steps)


def forget_plans() -> None:
    """Empty the memory of plans, for those who measure how long planning takes."""
    _plan.cache_clear()


def _unmasked(dst: ShardingSpec, parts: Parts) -> ShardingSpec:
    """Return the destination with replicas in place of the parts that are made."""
    kept = [(dst.mesh.axis(there), monoid) for _, there, monoid in parts.kept]
    return ShardingSpec(dst.mesh, dst.dim_specs, dst.replicated_axes, kept)


def _check(src: ShardingSpec, dst: ShardingSpec, request: Request) -> None:
    if src.ndim != dst.ndim:
        raise LayoutError(
            f"the source is a sharding of {counted(src.ndim, 'dimension')}, {src}, and the "
            f"destination of {dst.ndim}, {dst}"
        )
    as_shape(request.shape, src.ndim)
    if as_count(request.itemsize, "itemsize") < 1:
        raise WeftError("itemsize is 0; an element has at least one byte")
    check_machine(request.machine, (src.mesh, dst.mesh))


def check_machine(machine: Machine, meshes: Sequence[DeviceMesh]) -> None:
    """Refuse a machine that has a link along an axis that no mesh has."""
    if not isinstance(machine, Machine):
        raise WeftError(f"machine must be a Machine, got {machine!r}")
    known = {axis for mesh in meshes for axis in mesh.axis_names}
    named = [(axis, "a link") for axis in machine.links]
    named += [(group.axis, "a group of cells") for group in machine.cells if group.axis]
    for axis, what in named:
        if axis not in known:
            names = " nor ".join(dict.fromkeys(map(str, meshes)))
            raise LayoutError(f'the machine has {what} along axis "{axis}", but {names} has none')
    sizes = {axis: n for mesh in meshes for axis, n in zip(mesh.axis_names, mesh.shape)}
    for group in machine.cells:
        for at in group.coordinates:
            if at >= sizes[group.axis]:
                raise LayoutError(
                    f'the machine has cells at {at} of axis "{group.axis}", which has '
                    f"{counted(sizes[group.axis], 'coordinate')}"
                )
