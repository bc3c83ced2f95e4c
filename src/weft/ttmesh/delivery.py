"""Deliver arrays to a mesh and collect them again, on the host's model of the mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh.buffer import MeshBuffer
from weft.ttmesh.distribution import shard_array
from weft.ttmesh.formats import Array
from weft.ttmesh.lowering import Lowering
from weft.ttmesh.mapper import ShardedDim
from weft.values import Point


def deliver(array: Array, lowering: Lowering, by: str | None = None) -> MeshBuffer:
    """Write an array to the chips of a mesh, by "writes" or by "copies"; by default the cheaper.

    >>> from weft.ttmesh import ShardTensor2dMesh, lower
    >>> lowering = lower((4, 6), ShardTensor2dMesh((1, 2), dims=[None, 1]), "uint16")
    >>> buffer = deliver(np.arange(24, dtype=np.uint16).reshape(4, 6), lowering)
    >>> buffer.device_bytes(1, 0, 24).view(np.uint16).tolist()
    [3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23]
    """
    item_size = _item_size(lowering)
    if array.shape != lowering.shape or array.dtype.itemsize != item_size:
        raise WeftError(
            f"an array of shape {array.shape} with {array.dtype.itemsize}-byte elements does "
            f"not match the lowering of {lowering.shape} with {item_size}"
        )
    if by not in (None, "writes", "copies"):
        raise WeftError(f"an array is delivered by 'writes' or by 'copies', not by {by!r}")
    stage = lowering.stage.config
    buffer = MeshBuffer(lowering.mapper.mesh, stage.global_buffer_shape.width * item_size)
    if (by or lowering.choice) == "copies":
        buffer.write(stage, _stage_rows(array, lowering))
        return buffer
    flat = _pad(array, lowering).reshape(-1)
    for write in lowering.writes:
        end = write.source + write.config.global_buffer_shape.size
        buffer.write(write.config, flat[write.source : end], write.offset * item_size)
    return buffer


def collect(buffer: MeshBuffer, lowering: Lowering, dtype: Any) -> Array:
    """Return the array, read from the chips that hold the first copy of each part."""
    array = np.zeros(lowering.shape, dtype)
    dims = lowering.mapper.sharded_dims(lowering.shape)
    for coord, shard in shards(buffer, lowering, dtype, lowering.stage.coordinates()):
        for box, place in _boxes(dims, lowering.dims, coord):
            array[box] = shard[place]
    return array


def shards(
    buffer: MeshBuffer, lowering: Lowering, dtype: Any, coords: Iterable[Point] | None = None
) -> Iterator[tuple[Point, Array]]:
    """Return the shard of each chip of the distribution as an array, with its coordinate."""
    cells, item_size = lowering.mapper.cells, _item_size(lowering)
    dims = lowering.mapper.sharded_dims(lowering.shape)
    for coord in cells.cells() if coords is None else coords:
        shape = _local_shape(lowering, coord)
        data = buffer.device_bytes(cells.device(coord), 0, prod(shape) * item_size)
        sides = product(*(each.spans(each.block(coord)) for each in dims))
        boxes = tuple(ZRange([a for a, _ in side], [b for _, b in side]) for side in sides)
        yield coord, shard_array(data.view(dtype).reshape(shape), boxes)


def _item_size(lowering: Lowering) -> int:
    if lowering.element.tile_bytes:
        raise WeftError(
            f"{lowering.element.name} is packed tile by tile after it is distributed",
            hint="lower it by elements, then pack the shards",
        )
    return lowering.element.size


def _local_shape(lowering: Lowering, coord: Point) -> Point:
    return tuple(sum(each.extents(each.block(coord))) for each in lowering.dims)


def _stage_rows(array: Array, lowering: Lowering) -> Array:
    """Return the shards one after another, each in a row."""
    extent = lowering.stage.config.global_buffer_shape
    rows = np.zeros((extent.height, extent.width), array.dtype)
    dims = lowering.mapper.sharded_dims(lowering.shape)
    for row, coord in zip(rows, lowering.stage.coordinates()):
        shape = _local_shape(lowering, coord)
        shard = row[: prod(shape)].reshape(shape)
        for box, place in _boxes(dims, lowering.dims, coord):
            shard[place] = array[box]
    return rows


def _pad(array: Array, lowering: Lowering) -> Array:
    """Return the array with zeros at the end of each group that does not fill its blocks."""
    if lowering.padded_shape == lowering.shape:
        return np.ascontiguousarray(array)
    whole = np.zeros(lowering.padded_shape, array.dtype)
    dims = lowering.mapper.sharded_dims(lowering.shape)
    sides = (_align(_edges(one), padded.groups) for one, padded in zip(dims, lowering.dims))
    for box, place in _products(sides):
        whole[place] = array[box]
    return whole


def _boxes(
    dims: Iterable[ShardedDim], padded: Iterable[ShardedDim], coord: Point
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return where in the tensor and where on the chip each box lies, without padding."""
    return _products(
        _align(each.spans(each.block(coord)), full.extents(full.block(coord)))
        for each, full in zip(dims, padded)
    )


def _edges(each: ShardedDim) -> list[tuple[int, int]]:
    """Return where the groups of a dimension begin and end."""
    ends = list(accumulate(each.groups))
    return list(zip([0, *ends], ends))


def _align(spans: Iterable[tuple[int, int]], extents: Point) -> list[tuple[slice, slice]]:
    """Return each span with its place; places begin after the full extents of those before."""
    starts = accumulate(extents, initial=0)
    return [
        (slice(low, high), slice(at, at + high - low)) for (low, high), at in zip(spans, starts)
    ]


def _products(
    sides: Iterable[list[tuple[slice, slice]]],
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    for pairs in product(*sides):
        yield tuple(one for one, _ in pairs), tuple(two for _, two in pairs)
