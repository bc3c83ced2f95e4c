"""`Step`: one collective on the way from a sharding to another, with its exact bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from weft.layout import Axis, ShardingSpec
from weft.layout.shardy_text import write_axis
from weft.plan.machine import Machine
from weft.plan.placed import layout_of
from weft.plan.resharding.counts import ranks_in, sizes, wanted_and_held
from weft.plan.resharding.parts import Parts, parts_between
from weft.plan.resharding.pattern import (
    Kind,
    common_digits,
    digit_of,
    find_change,
    row_major,
    strides_between,
)
from weft.program import Message, Route
from weft.program.messages import messages
from weft.space import Digit, weigh
from weft.values import Point


@dataclass(frozen=True, slots=True)
class Step:
    """One collective: an array that lies as `before` comes to lie as `after`.

    `slice` and `mask` are local. A mask keeps the values on the first cell along the axes that
    become unreduced, and gives the others the identity of the monoid. In `all_gather`,
    `all_to_all`, `reduce_scatter` and `all_reduce` cells talk within groups along `axes`; in
    `collective_permute` each sends one block to at most one other; `exchange` is the general case.
    """

    kind: Kind
    before: ShardingSpec
    after: ShardingSpec
    shape: Point
    itemsize: int
    machine: Machine
    seconds: float
    """The estimated seconds on the machine."""

    @property
    def devices(self) -> Point:
        """The devices of the mesh before, in rank order, then those of the mesh after alone."""
        return union(self.before, self.after)

    @property
    def parts(self) -> Parts:
        """The parts that are combined, kept and made."""
        return parts_between(self.before, self.after)

    @property
    def monoids(self) -> tuple[str, ...]:
        """The monoids that combine parts, for each place of `Message.part`; the last first."""
        return tuple(run.monoid for run in self.parts.reduced)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The mesh axes that it is about, in mesh order: of the mesh after for what is local."""
        return _axes(self)

    @property
    def dims(self) -> Point:
        """The array dimensions whose cuts change."""
        return _dims(self.before, self.after)

    @property
    def received(self) -> Point:
        """The bytes that each of the devices receives."""
        if self.kind in ("slice", "mask"):
            return (0,) * len(self.devices)
        wanted, held = wanted_and_held(self.before, self.after, self.shape)
        count, mesh = self.parts.size, self.after.mesh
        got = [(want * count - have) * self.itemsize for want, have in zip(wanted, held)]
        by_device = dict(zip(mesh.device_ids or range(mesh.size), got))
        return tuple(by_device.get(device, 0) for device in self.devices)

    @property
    def sent(self) -> Point:
        """The bytes that each of the devices sends."""
        return _sent(self)

    @property
    def made(self) -> tuple[int | None, ...]:
        """The bytes of the array that each of the devices makes; None where it makes none.

        A device that receives nothing takes its part of what it has, or has none.
        """
        mesh = self.after.mesh
        held = [size * self.itemsize for size in sizes(self.after, self.shape)]
        if self.kind == "mask":
            digits = [digit for digit, _ in self.parts.masked]
            cells = zip(held, mesh.cells())
            return tuple(size if any(d.of(cell) for d in digits) else None for size, cell in cells)
        if self.after.mesh == self.before.mesh:
            return tuple(size if got else None for size, got in zip(held, self.received))
        by_device = dict(zip(mesh.device_ids or range(mesh.size), held))
        pairs = zip(self.devices, self.received)
        return tuple(by_device[device] if got else None for device, got in pairs)

    @property
    def route(self) -> Route:
        """The layouts and digits that determine the messages."""
        kept = balance = None
        if self.before.mesh != self.after.mesh:
            kept = tuple((each.here, each.there) for each in self.parts.kept)
        if self.kind in ("exchange", "collective_permute"):
            links = [self.machine.link(axis) for axis in self.before.mesh.axis_names]
            balance = tuple((1 / link.bandwidth, link.latency) for link in links)
        before, after = (layout_of(spec, self.shape) for spec in (self.before, self.after))
        is_permuted = self.kind == "collective_permute"
        return Route(before, after, self.parts.reduced, kept, balance, is_permuted)

    def moves(self) -> Iterator[Message]:
        """Every piece of every cell's box after the step.

        A piece whose sender is its receiver is there already. The boxes of a cell tile what it
        holds after the step, once for every part that is combined; the parts of one box come
        one after another: those along the last run of `monoids` are combined first.
        """
        return _masked(self) if self.kind == "mask" else iter(messages(self.route))

    def transfers(self) -> Iterator[Message]:
        """The pieces that go from one device to another."""
        return (move for move in self.moves() if move.sender != move.receiver)

    def kept(self) -> Iterator[Message]:
        """The pieces that cells have already."""
        return (move for move in self.moves() if move.sender == move.receiver)

    def __str__(self) -> str:
        axes = ", ".join(map(write_axis, self.axes))
        return f"{self.kind} {{{axes}}} {self.before} -> {self.after}"


def union(src: ShardingSpec, dst: ShardingSpec) -> Point:
    """The devices of the first sharding in rank order, then those of the second alone."""
    first = src.mesh.device_ids or range(src.mesh.size)
    second = dst.mesh.device_ids or range(dst.mesh.size)
    return tuple(dict.fromkeys((*first, *second)))


def _masked(step: Step) -> Iterator[Message]:
    """Return the boxes of a mask: every cell keeps its own."""
    for cell in step.after.mesh.cells():
        device, box = step.after.mesh.device(cell), step.after.region(step.shape, cell)
        if box:
            yield Message(device, device, box)


def _axes(step: Step) -> tuple[Axis, ...]:
    local = step.kind in ("slice", "mask")
    mesh = step.after.mesh if local else step.before.mesh
    if step.kind == "mask":
        return tuple(mesh.axis(digit) for digit, _ in step.parts.masked)
    common = common_digits(step.before, step.after, by_axis=True)
    if common is None:
        spec, runs = (step.after, ()) if local else (step.before, step.parts.reduced)
        digits = [digit for cut in spec.digits for digit in cut if digit.radix > 1]
        digits += [digit for run in runs for digit in run.digits]
    else:
        strides = strides_between(step.before, step.after)[local]
        change = find_change(common.src, common.dst)
        found = set(change.reduced)
        if step.kind not in ("reduce_scatter", "all_reduce"):
            found |= {digit for each in (*change.gone, *change.new) for digit in each}
        digits = [digit_of(mesh, strides, stride, common.radix[stride]) for stride in found]
    return in_mesh_order(step.after if local else step.before, digits)


def in_mesh_order(spec: ShardingSpec, digits: list[Digit]) -> tuple[Axis, ...]:
    """The axes that digits of a mesh make up together, in mesh order."""
    named = [spec.mesh.axis(digit) for digit in digits]
    return ShardingSpec(spec.mesh, (), replicated_axes=named).replicated_axes


def _dims(before: ShardingSpec, after: ShardingSpec) -> Point:
    common = common_digits(before, after)
    if common is None:
        grids = enumerate(zip(before.grid, after.grid))
        return tuple(dim for dim, counts in grids if max(counts) > 1)
    one, two = common.src, common.dst
    return tuple(
        dim
        for dim, (had, has) in enumerate(zip(one.cuts, two.cuts))
        if had != has or one.cut_points(dim) != two.cut_points(dim)
    )


@lru_cache(maxsize=128)
def _sent(step: Step) -> Point:
    """By formula where the pattern is regular, else counted."""
    mesh = step.before.mesh
    match step.kind:
        case "slice" | "mask":
            return (0,) * len(step.devices)
        case "all_gather":
            times = prod(step.before.grid) // prod(step.after.grid) - 1
            held = [size * times for size in sizes(step.before, step.shape)]
        case "all_reduce":
            held = [size * (step.parts.size - 1) for size in sizes(step.before, step.shape)]
        case "reduce_scatter":
            held = _scattered(step)
        case "all_to_all":
            held = _passed_on(step)
        case _:
            return _counted(step)
    by_device = dict(zip(mesh.device_ids or range(mesh.size), held))
    return tuple(by_device.get(device, 0) * step.itemsize for device in step.devices)


def _scattered(step: Step) -> list[int]:
    """Return what cells send in a reduce-scatter: to each of the group its piece."""
    mesh, strides = step.before.mesh, row_major(step.before.mesh.shape)
    along = [
        digit._replace(stride=strides[digit.dim] * digit.divisor)
        for run in step.parts.reduced
        for digit in run.digits
    ]
    groups = [rank - at for rank, at in enumerate(weigh(mesh.shape, along))]
    kept, back = sizes(step.after, step.shape), ranks_in(step.after.mesh, mesh)
    kept = kept if back is None else [kept[rank] for rank in back]
    totals = dict.fromkeys(groups, 0)
    for group, size in zip(groups, kept):
        totals[group] += size
    return [totals[group] - size for group, size in zip(groups, kept)]


def _passed_on(step: Step) -> list[int]:
    """Return what cells send in an all-to-all: all that they do not keep."""
    _, kept = wanted_and_held(step.before, step.after, step.shape)
    back = ranks_in(step.after.mesh, step.before.mesh)
    kept = kept if back is None else [kept[rank] for rank in back]
    return [size - stays for size, stays in zip(sizes(step.before, step.shape), kept)]


def _counted(step: Step) -> Point:
    sent = dict.fromkeys(step.devices, 0)
    for transfer in step.transfers():
        sent[transfer.sender] += transfer.box.size * step.itemsize
    return tuple(sent.values())
