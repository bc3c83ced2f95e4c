"""Arrays to a mesh and back: what a lowering says, done on the host's model of the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.space import ZRange
from weft.ttmesh.buffer import Bytes, MeshBuffer
from weft.ttmesh.cut import Cut
from weft.ttmesh.held import held_array
from weft.ttmesh.lowering import Lowering
from weft.ttmesh.mapper import block_at
from weft.values import Point

Array = NDArray[Any]


def deliver(array: Array, lowering: Lowering, by: str | None = None) -> MeshBuffer:
    """Write an array to the chips of a mesh, by "writes" or by "copies"; else as is cheaper.

    >>> from weft.ttmesh import ShardTensor2DMesh, lower
    >>> lowering = lower((4, 6), ShardTensor2DMesh((1, 2), dims=[None, 1]), "uint16")
    >>> buffer = deliver(np.arange(24, dtype=np.uint16).reshape(4, 6), lowering)
    >>> buffer.device_bytes(1, 0, 24).view(np.uint16).tolist()
    [3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23]
    """
    item = _item(lowering)
    if array.shape != lowering.shape or array.dtype.itemsize != item:
        raise WeftError(
            f"an array of shape {array.shape} and {array.dtype.itemsize} bytes an element is not "
            f"the {lowering.shape} of {item} that was lowered"
        )
    if by not in (None, "writes", "copies"):
        raise WeftError(f"an array is delivered by 'writes' or by 'copies', not by {by!r}")
    stage = lowering.stage.config
    buffer = MeshBuffer(lowering.mapper.mesh, stage.global_buffer_shape.width * item)
    if (by or lowering.choice) == "copies":
        buffer.write(stage, _staged(array, lowering))
        return buffer
    flat = _padded(array, lowering).reshape(-1)
    for write in lowering.writes:
        end = write.source + write.config.global_buffer_shape.size
        buffer.write(write.config, flat[write.source : end], write.offset * item)
    return buffer


def collect(buffer: MeshBuffer, lowering: Lowering, dtype: Any) -> Array:
    """The array again, read from the chips that hold the first copy of each part."""
    found = np.zeros(lowering.shape, dtype)
    for coord in lowering.stage.coordinates():
        (shard,) = [part for at, part in shards(buffer, lowering, dtype, [coord])]
        for box, inside in _boxes(lowering, coord):
            found[box] = shard[inside]
    return found


def shards(
    buffer: MeshBuffer, lowering: Lowering, dtype: Any, coords: list[Point] | None = None
) -> Iterator[tuple[Point, Array]]:
    """What each chip of the distribution holds, as an array, with its coordinate."""
    cells, item = lowering.mapper.cells, _item(lowering)
    given = lowering.mapper.cuts(lowering.shape)
    for coord in cells.cells() if coords is None else coords:
        shape = tuple(cut.local(block_at(cut, coord)) for cut in lowering.cuts)
        found: Bytes = buffer.device_bytes(cells.device(coord), 0, prod(shape) * item)
        runs = product(*(cut.runs(block_at(cut, coord)) for cut in given))
        boxes = tuple(ZRange([a for a, _ in run], [b for _, b in run]) for run in runs)
        yield coord, held_array(found.view(dtype).reshape(shape), boxes)


def _item(lowering: Lowering) -> int:
    if lowering.datum.tile:
        raise WeftError(
            f"{lowering.datum.name} is packed tile by tile after it is distributed",
            hint="lower it by elements, then pack the shards",
        )
    return lowering.datum.size


def _staged(array: Array, lowering: Lowering) -> Array:
    """The shards one after another, each a row."""
    width = lowering.stage.config.global_buffer_shape.width
    rows = np.zeros((lowering.stage.config.global_buffer_shape.height, width), array.dtype)
    for row, coord in zip(rows, lowering.stage.coordinates()):
        shape = tuple(cut.local(block_at(cut, coord)) for cut in lowering.cuts)
        shard = row[: prod(shape)].reshape(shape)
        for box, inside in _boxes(lowering, coord):
            shard[inside] = array[box]
    return rows


def _boxes(
    lowering: Lowering, coord: Point
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Where in the tensor, and where on the chip, each box lies; padding is in neither."""
    given = lowering.mapper.cuts(lowering.shape)
    each = [
        list(_aligned(cut, padded, block_at(cut, coord)))
        for cut, padded in zip(given, lowering.cuts)
    ]
    for pairs in product(*each):
        yield tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _aligned(cut: Cut, padded: Cut, block: int) -> Iterator[tuple[slice, slice]]:
    at = 0
    for (low, high), length in zip(cut.runs(block), padded.lengths(block)):
        yield slice(low, high), slice(at, at + high - low)
        at += length


def _padded(array: Array, lowering: Lowering) -> Array:
    """The array with zeros at the end of each group that does not fill its blocks."""
    if lowering.padded_shape == lowering.shape:
        return np.ascontiguousarray(array)
    whole = np.zeros(lowering.padded_shape, array.dtype)
    given = lowering.mapper.cuts(lowering.shape)
    places = [list(_filled(cut, padded)) for cut, padded in zip(given, lowering.cuts)]
    for pairs in product(*places):
        whole[tuple(b for _, b in pairs)] = array[tuple(a for a, _ in pairs)]
    return whole


def _filled(cut: Cut, padded: Cut) -> Iterator[tuple[slice, slice]]:
    low = at = 0
    for size, full in zip(cut.groups, padded.groups):
        yield slice(low, low + size), slice(at, at + size)
        low, at = low + size, at + full
