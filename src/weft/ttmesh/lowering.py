"""`lower`: from a mapper and a shape to the fewest writes of sharded buffers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from weft.draw import Drawing, Drawn, Patch, Scale, draw_patches, few, limits
from weft.errors import LayoutError, WeftError
from weft.layout import DeviceMesh
from weft.space import ZRange
from weft.ttmesh.buffer import WORD, Extent, ShardedBufferConfig, check_shard_bytes, row_fault
from weft.ttmesh.flatten import (
    Flattening,
    RegularPart,
    Repeat,
    TensorDigit,
    flatten_2d,
    regular_parts,
)
from weft.ttmesh.formats import DataType, Element
from weft.ttmesh.mapper import Mapper, ShardedDim
from weft.ttmesh.mesh import as_rows_and_columns, box_of
from weft.values import Point, as_shape, counted

Uneven: TypeAlias = Literal["refuse", "pad", "ragged"]

TRANSFER_SECONDS = 5e-6
"""Seconds to start a transfer to one chip, whatever its size."""
COPY_RATE = 5e9
"""Bytes per second of a strided copy with long contiguous runs."""
RUN_SECONDS = 20e-9
"""Additional seconds for each contiguous run of a strided copy."""


@dataclass(frozen=True, slots=True)
class BufferWrite:
    """One buffer written to the mesh: a contiguous piece of the tensor.

    The rows of the buffer are the dimensions of `view` before the pivot, the columns the others.
    The piece begins at element `source` of the tensor and at `offset` of each chip's shard.
    """

    config: ShardedBufferConfig
    view: Point
    pivot: int
    source: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RepeatedWrite:
    """Writes that differ only in where they begin."""

    first: BufferWrite
    repeats: tuple[Repeat, ...] = ()

    @property
    def count(self) -> int:
        """The number of writes."""
        return prod(repeat.size for repeat in self.repeats)

    def __iter__(self) -> Iterator[BufferWrite]:
        for at in product(*(range(repeat.size) for repeat in self.repeats)):
            source = sum(x * repeat.source for x, repeat in zip(at, self.repeats))
            local = sum(x * repeat.local for x, repeat in zip(at, self.repeats))
            yield replace(
                self.first, source=self.first.source + source, offset=self.first.offset + local
            )


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    """A buffer with a row for each shard, as long as the longest and a whole number of words."""

    config: ShardedBufferConfig
    cells: DeviceMesh
    row_axes: Point
    """The axes of the distribution along which rows differ, major to minor."""

    def coordinates(self) -> Iterator[Point]:
        """Return, for each row, the first coordinate of the distribution that gets it."""
        sizes = [n if axis in self.row_axes else 1 for axis, n in enumerate(self.cells.shape)]
        return iter(ZRange.of(sizes))


class DeliveryCost(NamedTuple):
    """The seconds of direct writes and of a copy first, without moving the bytes to the chips."""

    writes: float
    copies: float
    fault: str | None
    """What the runtime would get wrong in the writes, if anything."""


@dataclass(frozen=True, slots=True)
class Lowering(Drawn):
    """A distribution as the fewest possible writes of sharded buffers.

    >>> from weft.ttmesh import ShardTensor2dMesh
    >>> lowered = lower((1, 1, 8192, 10240), ShardTensor2dMesh((8, 4), dims=[3, 2]), "bfloat16")
    >>> (write,) = lowered.writes
    >>> print(write.config.shard_shape, write.config.mesh_shard_orientation.name, write.pivot)
    2048 x 1280 COL_MAJOR 3
    """

    mapper: Mapper
    shape: Point
    dims: tuple[ShardedDim, ...]
    """How the dimensions are cut, after padding."""
    element: Element
    uneven: Uneven
    repeated_writes: tuple[RepeatedWrite, ...]
    stage: StagingBuffer
    """The alternative: a copy on the host with the shards one after another, in one write."""
    cost: DeliveryCost

    @property
    def count(self) -> int:
        """The number of writes."""
        return sum(each.count for each in self.repeated_writes)

    @property
    def writes(self) -> tuple[BufferWrite, ...]:
        """The writes, directly from the tensor."""
        return tuple(write for each in self.repeated_writes for write in each)

    @property
    def padded_shape(self) -> Point:
        """The shape that is written: that of the tensor, or larger with padding."""
        return tuple(each.size for each in self.dims)

    @property
    def choice(self) -> Literal["writes", "copies"]:
        """The faster of writes from the tensor, and a copy first with one write, that is right."""
        cost = self.cost
        return "copies" if cost.fault or cost.copies < cost.writes else "writes"

    def local_shape(self, coord: Point) -> Point:
        """Return the shape of the shard, with padding, at a coordinate of the distribution."""
        return tuple(sum(each.extents(each.block(coord))) for each in self.dims)

    def drawing(self) -> Drawing:
        """Draw the boxes of the tensor, each with the chips that hold it."""
        holders: dict[ZRange, list[str]] = {}
        for rank, boxes in enumerate(self.mapper.boxes(self.shape)):
            for box in boxes:
                if box:
                    holders.setdefault(box, []).append(str(self.mapper.mesh.device(rank)))
        ticks = [
            sorted({edge for box in holders for edge in (box.start[dim], box.stop[dim])})
            for dim in range(len(self.shape))
        ]
        while len(ticks) > 2 and len(ticks[0]) == 2:  # leading dimensions that are not cut
            ticks.pop(0)
        scales = [Scale.through(marks, limit) for marks, limit in zip(ticks, limits(len(ticks)))]
        first = len(self.shape) - len(ticks)
        patches = (
            Patch(box.start[first:], box.stop[first:], few(iter(names), len(names)), number)
            for number, (box, names) in enumerate(holders.items())
        )
        title = f"{list(self.shape)} on {self.mapper.mesh} · {counted(self.count, 'write')}"
        return draw_patches(patches, scales, title)


def lower(
    shape: Sequence[int],
    mapper: Mapper,
    dtype: str | int | DataType = "float32",
    uneven: Uneven = "refuse",
    strict: bool = False,
    device_shard_layout: Hashable = None,
) -> Lowering:
    """Return the fewest writes that give each chip the shard that the mapper assigns to it.

    `dtype` is the name of a format or the bytes of an element. Sizes that the mesh does not divide
    are refused; or padded at the end of the dimension (of each group); or, `ragged`, the last
    shards are short or empty. `strict` allows one config with the flattening (x, b·z·y), and
    refuses the rest.

    >>> from weft.ttmesh import ShardTensor2dMesh
    >>> lower((1, 3, 90, 160, 32), ShardTensor2dMesh((2, 4), dims=[2, 3]), "bfloat16").count
    3
    """
    sizes, element = as_shape(shape), Element.of(dtype)
    if uneven not in ("refuse", "pad", "ragged"):
        raise WeftError(f"uneven is 'refuse', 'pad' or 'ragged', not {uneven!r}")
    dims, cells = mapper.sharded_dims(sizes), mapper.cells
    for dim, size in enumerate(sizes):
        if size < 1:
            raise WeftError(f"dimension {dim} of {sizes} is empty: there is nothing to write")
    if uneven == "refuse" or strict:
        for each in dims:
            each.check_even(cells)
    if uneven == "pad":
        dims = tuple(each.padded() for each in dims)
    parts = list(regular_parts(dims, cells.shape))
    if strict:
        _check_strict(dims, cells, parts)
    writes: list[RepeatedWrite] = []
    for part in parts:
        flat = flatten_2d(part.view, part.digits, part.mesh_box.shape, element.size, strict)
        assert flat is not None  # with everything separated there is always one
        writes += _repeated_writes(part, flat, cells, element, device_shard_layout)
    stage = _staging_buffer(dims, cells, element)
    cost = _delivery_cost(dims, writes, stage, element)
    if strict and cost.fault:
        raise WeftError(cost.fault, hint="without strict it is copied on the host first")
    return Lowering(mapper, sizes, dims, element, uneven, tuple(writes), stage, cost)


def _repeated_writes(
    part: RegularPart, flat: Flattening, cells: DeviceMesh, element: Element, layout: Hashable
) -> Iterator[RepeatedWrite]:
    """Return a write for each coordinate separated on the mesh, repeated for the other digits."""
    rest = part.digits[len(flat.separated) :]
    size = _buffer_bytes(part.view, rest, flat.whole, element)
    kept = [digit for digit in flat.separated if digit.axis is None]
    repeats = (*part.repeats, *(Repeat(d.size, d.source, d.local) for d in kept))
    view = list(part.view)
    for digit in flat.separated:
        view[digit.dim] //= digit.size
    for box, source in _mesh_parts(part, flat):
        mesh = as_rows_and_columns(box_of(cells, box), flat.row_axes)
        config = ShardedBufferConfig(mesh, size, flat.shard, flat.whole, flat.orientation, layout)
        check_shard_bytes(config)
        yield RepeatedWrite(
            BufferWrite(config, tuple(view), flat.pivot, source, part.local), repeats
        )


def _mesh_parts(part: RegularPart, flat: Flattening) -> Iterator[tuple[ZRange, int]]:
    """Return the boxes of the mesh that are written, and where in the tensor each begins."""
    box = part.mesh_box
    steps = [(d.axis, d.size, d.source) for d in flat.separated if d.axis is not None]
    steps += [(axis, box.shape[axis], 0) for axis in flat.copied_axes]
    for at in product(*(range(size) for _, size, _ in steps)):
        start, stop, source = list(box.start), list(box.stop), part.source
        for x, (axis, _, step) in zip(at, steps):
            start[axis] += x
            stop[axis] = start[axis] + 1
            source += x * step
        yield ZRange(start, stop), source


def _buffer_bytes(
    view: Point, digits: Sequence[TensorDigit], whole: Extent, element: Element
) -> int:
    """Return the bytes of a buffer; in a block format every shard consists of whole tiles."""
    if not element.tile_bytes:
        return whole.size * element.size
    local = [1] * len(view)
    for digit in digits:
        local[digit.dim] *= 1 if digit.axis is not None else digit.size
    return element.bytes_of(tuple(local)) * prod(d.size for d in digits if d.axis is not None)


# -- a copy on the host first


def _staging_buffer(
    dims: Sequence[ShardedDim], cells: DeviceMesh, element: Element
) -> StagingBuffer:
    """Return the shards as rows of one buffer: always one write."""
    local = tuple(sum(each.extents(0)) for each in dims)
    width = prod(local)
    while row_fault(width, element.size):
        width += 1
    cutting = {axis for each in dims for axis in each.axes if cells.shape[axis] > 1}
    everything = {axis for axis, size in enumerate(cells.shape) if size > 1}
    for axes in (sorted(cutting), sorted(everything)):
        digits = [TensorDigit(cells.shape[axis], axis, 0, 0, 0) for axis in axes]
        digits += [TensorDigit(width, None, 1, 1, 1)] * (width > 1)
        flat = flatten_2d((1, 1), digits, cells.shape, element.size)
        if flat and not flat.separated and not flat.copied_axes:
            break
    assert flat is not None  # rows for all chips in order are always one config
    rows = prod(cells.shape[axis] for axis in axes)
    size = rows * (element.bytes_of(local) if element.tile_bytes else width * element.size)
    mesh = as_rows_and_columns(cells, flat.row_axes)
    config = ShardedBufferConfig(mesh, size, flat.shard, flat.whole, flat.orientation)
    return StagingBuffer(config, cells, tuple(axes))


def _delivery_cost(
    dims: Sequence[ShardedDim],
    writes: Sequence[RepeatedWrite],
    stage: StagingBuffer,
    element: Element,
) -> DeliveryCost:
    """Price a transfer for each chip of each write, and a copy with one transfer for each chip."""
    transfers = sum(each.first.config.mesh_device.size * each.count for each in writes)
    run = 1
    for each in reversed(dims):
        run *= each.extents(0)[0]
        if each.count > 1:
            break
    runs = stage.config.global_buffer_shape.size / max(1, run)
    copies = stage.config.global_buffer_size / COPY_RATE + runs * RUN_SECONDS
    copies += stage.cells.size * TRANSFER_SECONDS
    widths = (each.first.config.physical_shard_shape.width for each in writes)
    faults = (row_fault(width, element.size) for width in widths)
    return DeliveryCost(transfers * TRANSFER_SECONDS, copies, next(filter(None, faults), None))


# -- strict: one config, with the flattening (x, b·z·y), on rows and columns


def _check_strict(
    dims: Sequence[ShardedDim], mesh: DeviceMesh, parts: Sequence[RegularPart]
) -> None:
    """Raise if one config with that flattening cannot write the tensor, with the reason."""
    hint = "without strict=True it is lowered with more writes"
    if mesh.ndim != 2:
        raise LayoutError(f"a config has rows and columns: {mesh} has {mesh.ndim} axes", hint=hint)
    cut = [each for each in dims if each.count > 1]
    for each in cut:
        if len(each.groups) > 1:
            what = f"{each.describe(mesh)} in {len(each.groups)} groups"
            raise LayoutError(f"{what}, and one config cuts in one piece", hint=hint)
    (part,) = parts
    if flatten_2d(part.view, part.digits, mesh.shape, WORD, strict=True):
        return
    for each in cut:
        if reason := _what_is_before(each, dims):
            raise LayoutError(f"{each.describe(mesh)}, {reason}", hint=hint)
    raise AssertionError("a tensor that cannot be flattened has a dimension in the way")


def _what_is_before(each: ShardedDim, dims: Sequence[ShardedDim]) -> str | None:
    """Return which dimensions before one are in the rows of the flattened buffer and not cut."""
    if each.dim == len(dims) - 1:
        return None
    before = [(other.dim, other.size // other.count) for other in dims[: each.dim]]
    kept = [(dim, size) for dim, size in before if size > 1]
    if not kept:
        return None
    names = " and ".join(f"dimension {dim}" for dim, _ in kept)
    return (
        f"and {names} before it {'keeps' if len(kept) == 1 else 'keep'} "
        f"{prod(size for _, size in kept)} on each chip: "
        "its shards are not blocks of rows of (x, b·z·y)"
    )
