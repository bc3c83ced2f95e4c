"""The TILE layout: 32 x 32 tiles of four 16 x 16 faces; each shard is padded by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.ttmesh.distribution import (
    ALONE,
    Boxes,
    blocks_within,
    distribute,
    run_all,
    shard_layout,
    view_of,
)
from weft.ttmesh.formats import (
    FACE,
    ROWS,
    TILE,
    Array,
    Bytes,
    DataType,
    pack_tiles,
    tile_grid,
    unpack_tiles,
)
from weft.values import Point, as_shape

Index: TypeAlias = tuple[slice, ...]

BLOCK = 512 << 10
"""Bytes of tiles written at a time: they and their source rows fit a core's cache."""
CONVERTED_BLOCK = 64 << 10
"""The same where elements change their format, which needs room for intermediate values."""


def tile_count(shape: Iterable[int]) -> int:
    """Return the number of tiles of an array of that shape.

    >>> tile_count((2, 3, 33))
    4
    """
    return tile_grid(as_shape(shape)).size


def tilize(
    array: Array, kind: DataType | None = None, *, pad: float = 0, threads: int = 2
) -> Bytes:
    """Return an array as tiles, `[tiles, bytes]`: matrix by matrix, tiles and faces row by row.

    `kind` is the format on the chip, by default the array's own; `pad` fills the last tiles up.

    >>> tiles = tilize(np.ones((2, 40, 40), "float32"), DataType.BFLOAT8_B)
    >>> tiles.shape, untilize(tiles, (2, 40, 40), DataType.BFLOAT8_B).sum()
    ((8, 1088), np.float32(3200.0))
    """
    chip_kind = _chip_kind(array, kind)
    tiles = _empty_tiles(array.shape, chip_kind)
    jobs = list(_tile_jobs(tiles, array, chip_kind, pad))
    run_all(jobs, threads if tiles.nbytes >= ALONE else 1)
    return tiles


def shard_and_tile(
    array: Array,
    boxes: Iterable[Boxes],
    kind: DataType | None = None,
    *,
    pad: float = 0,
    threads: int = 2,
) -> list[Bytes]:
    """Return the shards of an array as tiles, one for each device, each padded by itself.

    Each shard is read once, directly from the array; devices with the same box share one result.

    >>> from weft.space import ZRange
    >>> whole = np.arange(64 * 64, dtype="float32").reshape(64, 64)
    >>> halves = [ZRange((0, 0), (64, 33)), ZRange((0, 33), (64, 64))]
    >>> [tiles.shape for tiles in shard_and_tile(whole, halves)]
    [(4, 4096), (2, 4096)]
    """
    chip_kind = _chip_kind(array, kind)
    layouts = [shard_layout(each, array.shape) for each in boxes]
    results = {layout.boxes: _empty_tiles(layout.shape, chip_kind) for layout in layouts}
    jobs: list[Callable[[], None]] = []
    for key, tiles in results.items():
        single = len(key) == 1
        shard = view_of(array, key[0]) if single else distribute(array, [key])[0]
        jobs += _tile_jobs(tiles, shard, chip_kind, pad)
    total = sum(tiles.nbytes for tiles in results.values())
    run_all(jobs, threads if total >= ALONE else 1)
    return [results[layout.boxes] for layout in layouts]


def untilize(tiles: Bytes, shape: Iterable[int], kind: DataType, *, threads: int = 2) -> Array:
    """Return the array in its tiles, without padding; formats NumPy lacks become `float32`."""
    sizes = as_shape(shape)
    grid = tile_grid(sizes)
    if tiles.shape != (grid.size, kind.tile_bytes) or tiles.dtype != np.uint8:
        raise WeftError(
            f"{kind.value}{list(sizes)} has {grid.size} tiles of {kind.tile_bytes} bytes, "
            f"got {tiles.dtype}{list(tiles.shape)}"
        )
    lossy = kind.is_block or kind is DataType.BFLOAT16
    array = np.empty(sizes, np.float32 if lossy else kind.storage)
    view, stored = array.reshape(grid.shape), tiles.reshape(*grid.counts, kind.tile_bytes)

    def read(index: Index) -> None:
        part = _elements(view, index)
        values = _from_tiles(np.ascontiguousarray(stored[index]), kind)
        part[...] = values[tuple(map(slice, part.shape))]

    jobs = [partial(read, index) for index in _blocks(view, kind)]
    run_all(jobs, threads if tiles.nbytes >= ALONE else 1)
    return array


# -- blocks of tiles


def _chip_kind(array: Array, kind: DataType | None) -> DataType:
    if kind is None:
        return DataType.of(array.dtype)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise WeftError(f"{array.dtype.name} cannot be converted to {kind.value}")
    return kind


def _empty_tiles(shape: Point, kind: DataType) -> Bytes:
    return np.empty((tile_count(shape), kind.tile_bytes), np.uint8)


def _blocks(view: Array, kind: DataType) -> list[Index]:
    """Return indices that cut the grid of tiles into blocks."""
    limit = BLOCK if view.dtype.name == kind.value else CONVERTED_BLOCK
    return blocks_within(tile_grid(view.shape).counts, kind.tile_bytes, limit)


def _elements(view: Array, index: Index) -> Array:
    """Return the elements in a block of tiles, without padding."""
    *lead, rows, columns = index
    inside = (slice(side.start * TILE, side.stop * TILE) for side in (rows, columns))
    return view[(*lead, *inside)]


def _tile_jobs(
    tiles: Bytes, array: Array, kind: DataType, pad: float
) -> Iterator[Callable[[], None]]:
    grid = tile_grid(array.shape)
    view, stored = array.reshape(grid.shape), tiles.reshape(*grid.counts, kind.tile_bytes)

    def write(index: Index) -> None:
        _to_tiles(stored[index], _fill_up(_elements(view, index), index, pad), kind)

    for index in _blocks(view, kind):
        yield partial(write, index)


def _fill_up(part: Array, index: Index, pad: float) -> Array:
    """Return the elements of a block of tiles, padded where they end within a tile."""
    *lead, rows, columns = (side.stop - side.start for side in index)
    shape = (*lead, rows * TILE, columns * TILE)
    if part.shape == shape:
        return part
    full = np.full(shape, pad, part.dtype)
    full[tuple(map(slice, part.shape))] = part
    return full


def _to_tiles(block: Bytes, values: Array, kind: DataType) -> None:
    """Write elements, in rows of the matrix, to a block of tiles."""
    if kind.is_block:
        faces = np.empty((*block.shape[:-1], ROWS, FACE), np.float32)
        _copy_faces(faces.view(np.uint8), values.astype(np.float32, copy=False))
        block[...] = pack_tiles(faces.reshape(-1, ROWS, FACE), kind).reshape(block.shape)
    else:
        _copy_faces(block, kind.encode(values))


def _copy_faces(block: Bytes, values: Array) -> None:
    """Copy rows of faces, each as one element: sixteen elements are up to 64 contiguous bytes."""
    row = np.dtype(f"V{FACE * values.itemsize}")
    if values.strides[-1] != values.itemsize:
        values = np.ascontiguousarray(values)
    *lead, height, width = values.shape
    rows = values.view(row).reshape(*lead, height // TILE, 2, FACE, width // TILE, 2)
    target = block.reshape(*block.shape[: len(lead) + 2], -1).view(row)
    # From (tile row, face row, row, tile column, face column) to tiles, faces, rows.
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    np.copyto(target.reshape(*target.shape[:-1], 2, 2, FACE), rows.transpose(order))


def _from_tiles(block: Bytes, kind: DataType) -> Array:
    """Return the elements of a block of tiles, in rows of the matrix."""
    *lead, rows, columns, size = block.shape
    stored = (
        unpack_tiles(block.reshape(-1, size), kind) if kind.is_block else block.view(kind.storage)
    )
    faces = stored.reshape(*lead, rows, columns, 2, 2, FACE, FACE)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3, n + 5)
    values = faces.transpose(order).reshape(*lead, rows * TILE, columns * TILE)
    return kind.decode(values)
