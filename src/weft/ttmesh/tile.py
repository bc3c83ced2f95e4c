"""The TILE layout: 32 x 32 tiles of four 16 x 16 faces, each shard padded for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.ttmesh.blocks import ALONE, cuts, run_all
from weft.ttmesh.copies import Boxes, distribute, lay_out, part
from weft.ttmesh.formats import FACE, ROWS, TILE, Bytes, DataType, pack_tiles, unpack_tiles
from weft.ttmesh.streams import Array
from weft.values import Point, as_shape

BLOCK = 512 << 10
"""Bytes of tiles made at a time: they, and the rows they are made of, fit a core's cache."""
CONVERTED = 64 << 10
"""The same where elements change their format, which takes room for what is between."""


def padded_shape(shape: Iterable[int]) -> Point:
    """The shape in whole tiles: the last two dimensions up to multiples of 32.

    >>> padded_shape((2, 3, 33)), padded_shape((5,))
    ((2, 32, 64), (32, 32))
    """
    *lead, height, width = _matrices(as_shape(shape))
    return (*lead, -(-height // TILE) * TILE, -(-width // TILE) * TILE)


def tile_count(shape: Iterable[int]) -> int:
    """The tiles of an array of that shape, the padded ones too.

    >>> tile_count((2, 3, 33))
    4
    """
    return prod(padded_shape(shape)) // (TILE * TILE)


def tilize(
    array: Array, kind: DataType | None = None, *, pad: float = 0, threads: int = 2
) -> Bytes:
    """An array as tiles, `[tiles, bytes]`: matrix by matrix, tiles and faces row by row.

    `kind` is the format on the chip, by default the array's own; `pad` fills the last tiles up.

    >>> tiles = tilize(np.ones((2, 40, 40), "float32"), DataType.BFLOAT8_B)
    >>> tiles.shape, untilize(tiles, (2, 40, 40), DataType.BFLOAT8_B).sum()
    ((8, 1088), np.float32(3200.0))
    """
    made = _room(array.shape, _kind(array, kind))
    jobs = list(_jobs(made, array, _kind(array, kind), pad))
    run_all(jobs, threads if made.nbytes >= ALONE else 1)
    return made


def shard_and_tile(
    array: Array,
    boxes: Iterable[Boxes],
    kind: DataType | None = None,
    *,
    pad: float = 0,
    threads: int = 2,
) -> list[Bytes]:
    """The shards of an array as tiles, one for each device, each padded for itself.

    Each shard is read once, where it lies in the array; devices with the same box share one.

    >>> from weft.space import ZRange
    >>> whole = np.arange(64 * 64, dtype="float32").reshape(64, 64)
    >>> halves = [ZRange((0, 0), (64, 33)), ZRange((0, 33), (64, 64))]
    >>> [tiles.shape for tiles in shard_and_tile(whole, halves)]
    [(4, 4096), (2, 4096)]
    """
    chip = _kind(array, kind)
    plans = [lay_out(entry, array.shape) for entry in boxes]
    made = {plan.boxes: _room(plan.shape, chip) for plan in plans}
    jobs: list[Callable[[], None]] = []
    for key, tiles in made.items():
        shard = part(array, key[0]) if len(key) == 1 else distribute(array, [key])[0]
        jobs += _jobs(tiles, shard, chip, pad)
    total = sum(tiles.nbytes for tiles in made.values())
    run_all(jobs, threads if total >= ALONE else 1)
    return [made[plan.boxes] for plan in plans]


def untilize(tiles: Bytes, shape: Iterable[int], kind: DataType, *, threads: int = 2) -> Array:
    """The array in its tiles, without padding; formats that NumPy lacks come as `float32`."""
    sizes = as_shape(shape)
    room = (tile_count(sizes), kind.tile_bytes)
    if tiles.shape != room or tiles.dtype != np.uint8:
        raise WeftError(
            f"{kind.value}{list(sizes)} has {room[0]} tiles of {room[1]} bytes: "
            f"{tiles.dtype}{list(tiles.shape)} is given"
        )
    plain = np.dtype("float32") if kind.is_block or kind is DataType.BFLOAT16 else kind.storage
    array = np.empty(sizes, plain)
    view = array.reshape(_matrices(sizes))
    jobs = [_reading(tiles, view, index, kind) for index in _indices(view, kind)]
    run_all(jobs, threads if tiles.nbytes >= ALONE else 1)
    return array


# -- blocks of tiles


def _matrices(shape: Point) -> Point:
    """The shape with a height and a width."""
    return (1,) * (2 - len(shape)) + shape


def _kind(array: Array, kind: DataType | None) -> DataType:
    if kind is None:
        return DataType.of(array.dtype)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise WeftError(f"{array.dtype.name} does not become {kind.value}")
    return kind


def _room(shape: Point, kind: DataType) -> Bytes:
    return np.empty((tile_count(shape), kind.tile_bytes), np.uint8)


def _grid(shape: Point) -> Point:
    """The tiles in each dimension."""
    *lead, height, width = padded_shape(shape)
    return (*lead, height // TILE, width // TILE)


def _indices(view: Array, kind: DataType) -> Iterator[tuple[slice, ...]]:
    """Blocks of the grid of tiles."""
    limit = BLOCK if view.dtype.name == kind.value else CONVERTED
    return cuts(_grid(view.shape), kind.tile_bytes, limit)


def _part(view: Array, index: tuple[slice, ...]) -> Array:
    """The elements in a block of tiles, as far as there are some."""
    *lead, rows, columns = index
    within = (slice(side.start * TILE, side.stop * TILE) for side in (rows, columns))
    return view[(*lead, *within)]


def _jobs(tiles: Bytes, array: Array, kind: DataType, pad: float) -> Iterator[Callable[[], None]]:
    view = array.reshape(_matrices(array.shape))
    for index in _indices(view, kind):
        yield _writing(tiles, view, index, kind, pad)


def _writing(
    tiles: Bytes, view: Array, index: tuple[slice, ...], kind: DataType, pad: float
) -> Callable[[], None]:
    def write() -> None:
        block = tiles.reshape(*_grid(view.shape), -1)[index]
        _write(block, _whole(_part(view, index), block.shape, pad), kind)

    return write


def _whole(part: Array, block: Point, pad: float) -> Array:
    """The elements of a block of tiles; where they end within a tile, filled up."""
    *lead, rows, columns, _ = block
    shape = (*lead, rows * TILE, columns * TILE)
    if part.shape == shape:
        return part
    whole = np.full(shape, pad, part.dtype)
    whole[tuple(map(slice, part.shape))] = part
    return whole


def _write(block: Bytes, values: Array, kind: DataType) -> None:
    if kind.is_block:
        shape = (*block.shape[:-1], ROWS, FACE)
        faces = np.empty(shape, np.float32)
        _copy_faces(faces.view(np.uint8), values.astype(np.float32, copy=False))
        packed = pack_tiles(faces.reshape(-1, ROWS, FACE), kind)
        block[...] = packed.reshape(block.shape)
    else:
        _copy_faces(block, kind.encode(values))


def _copy_faces(block: Bytes, values: Array) -> None:
    """Rows of faces, each moved as one element: sixteen of them are up to 64 bytes in a row."""
    run = FACE * values.itemsize
    if values.strides[-1] != values.itemsize:
        values = np.ascontiguousarray(values)
    *lead, height, width = values.shape
    runs = values.view(f"V{run}").reshape(*lead, height // TILE, 2, FACE, width // TILE, 2)
    target = block.reshape(*block.shape[: len(lead) + 2], -1).view(f"V{run}")
    np.copyto(_faces(target), _in_order(runs, len(lead)))


def _faces(target: NDArray[Any]) -> NDArray[Any]:
    return target.reshape(*target.shape[:-1], 2, 2, FACE)


def _in_order(runs: NDArray[Any], lead: int) -> NDArray[Any]:
    """From rows of the matrix to rows of faces: tile row and column, face row and column, row."""
    order = (lead, lead + 3, lead + 1, lead + 4, lead + 2)
    return runs.transpose(*range(lead), *order)


def _reading(
    tiles: Bytes, view: Array, index: tuple[slice, ...], kind: DataType
) -> Callable[[], None]:
    def read() -> None:
        block = tiles.reshape(*_grid(view.shape), -1)[index]
        values = _read(np.ascontiguousarray(block), kind)
        part = _part(view, index)
        part[...] = values[tuple(map(slice, part.shape))]

    return read


def _read(block: Bytes, kind: DataType) -> Array:
    """The elements of a block of tiles, in rows of the matrix."""
    *lead, rows, columns, size = block.shape
    if kind.is_block:
        stored: Array = unpack_tiles(block.reshape(-1, size), kind)
    else:
        stored = block.view(kind.storage)
    faces = stored.reshape(*lead, rows, columns, 2, 2, FACE, FACE)
    first = len(lead)
    order = (first, first + 2, first + 4, first + 1, first + 3, first + 5)
    values = faces.transpose(*range(first), *order)
    return kind.decode(values.reshape(*lead, rows * TILE, columns * TILE))
