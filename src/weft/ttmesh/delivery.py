"""Deliver arrays to a mesh and collect them again, on the host's model of the mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.ttmesh.buffer import MeshBuffer
from weft.ttmesh.distribution import distribute, gather, shard_array
from weft.ttmesh.formats import Array
from weft.ttmesh.lowering import Lowering
from weft.ttmesh.mapper import boxes_at
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
    padded = array
    if lowering.padded_shape != lowering.shape:
        padded = np.zeros(lowering.padded_shape, array.dtype)
        for inside, group in _groups(lowering):
            padded[group] = array[inside]
    stage = lowering.stage.config
    buffer = MeshBuffer(lowering.mapper.mesh, stage.global_buffer_shape.width * item_size)
    if (by or lowering.choice) == "copies":
        buffer.write(stage, _stage_rows(padded, lowering))
        return buffer
    flat = np.ascontiguousarray(padded).reshape(-1)
    for write in lowering.writes:
        end = write.source + write.config.global_buffer_shape.size
        buffer.write(write.config, flat[write.source : end], write.offset * item_size)
    return buffer


def collect(buffer: MeshBuffer, lowering: Lowering, dtype: Any) -> Array:
    """Return the array, read from the chips that hold the first copy of each part."""
    coords = list(lowering.stage.coordinates())
    parts = [shard for _, shard in shards(buffer, lowering, dtype, coords)]
    boxes = [boxes_at(lowering.dims, coord) for coord in coords]
    padded = gather(parts, boxes, lowering.padded_shape)
    if lowering.padded_shape == lowering.shape:
        return padded
    array = np.empty(lowering.shape, dtype)
    for inside, group in _groups(lowering):
        array[inside] = padded[group]
    return array


def shards(
    buffer: MeshBuffer, lowering: Lowering, dtype: Any, coords: Iterable[Point] | None = None
) -> Iterator[tuple[Point, Array]]:
    """Return the shard of each chip of the distribution as an array, with its coordinate."""
    cells, item_size = lowering.mapper.cells, _item_size(lowering)
    dims = lowering.mapper.sharded_dims(lowering.shape)
    for coord in cells.cells() if coords is None else coords:
        shape = lowering.local_shape(coord)
        data = buffer.device_bytes(cells.device(coord), 0, prod(shape) * item_size)
        yield coord, shard_array(data.view(dtype).reshape(shape), boxes_at(dims, coord))


def _item_size(lowering: Lowering) -> int:
    if lowering.element.tile_bytes:
        raise WeftError(
            f"{lowering.element.name} is packed tile by tile after it is distributed",
            hint="lower it by elements, then pack the shards",
        )
    return lowering.element.size


def _stage_rows(padded: Array, lowering: Lowering) -> Array:
    """Return the shards one after another, each in a row."""
    extent = lowering.stage.config.global_buffer_shape
    rows = np.zeros((extent.height, extent.width), padded.dtype)
    coords = list(lowering.stage.coordinates())
    shapes = map(lowering.local_shape, coords)
    out = [row[: prod(shape)].reshape(shape) for row, shape in zip(rows, shapes)]
    distribute(padded, (boxes_at(lowering.dims, coord) for coord in coords), out=out)
    return rows


def _groups(lowering: Lowering) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return where each group lies in the tensor, and in the padded tensor."""
    sides = []
    dims = lowering.mapper.sharded_dims(lowering.shape)
    for sizes, padded in ((each.groups, full.groups) for each, full in zip(dims, lowering.dims)):
        starts = zip(accumulate(sizes, initial=0), accumulate(padded, initial=0))
        sides.append([(slice(a, a + n), slice(b, b + n)) for (a, b), n in zip(starts, sizes)])
    for pairs in product(*sides):
        yield tuple(inside for inside, _ in pairs), tuple(group for _, group in pairs)
