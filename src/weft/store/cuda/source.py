"""The source of the scatter kernel, generated from the lifting of a tiling.

A move is a few bytes of a line of a tile. Its number is split into the digits of its place in the
tile, and the tile's number into those of the tile, dimension by dimension; sizes are constants, so
that no division is left to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.store.tiling import Tiling
from weft.values import Point

WIDTHS = (16, 8, 4, 2, 1)
"""The bytes that a thread may move at a time."""


def stored_levels(tiling: Tiling, order: Sequence[int]) -> list[int]:
    """The dimensions from the grain on, as a tile has them, by how they arrive."""
    places = list(order) or list(range(len(tiling.chunks)))
    return sorted(range(tiling.grain, len(tiling.dims)), key=lambda n: places.index(tiling.dims[n]))


def width_of(tiling: Tiling, order: Sequence[int], itemsize: int) -> int:
    """How many bytes can be moved at a time: lines must be contiguous where they come from."""
    last = stored_levels(tiling, order)[-1]
    if last != len(tiling.dims) - 1 or last == tiling.grain:
        return itemsize
    size, chunk = tiling.sizes[last] or 0, tiling.extents[last]
    return next(w for w in WIDTHS if not (size * itemsize % w or chunk * itemsize % w))


def scatter_source(tiling: Tiling, order: Sequence[int], itemsize: int, swapped: int = 1) -> str:
    """What stands before the scatter kernel; so many bytes at a time are turned around.

    >>> tiling = Tiling((None, 6, 8), (2, 3, 4), (2, 6, 8))
    >>> print(scatter_source(tiling, (), 2).splitlines()[1])
    #define WIDTH 8
    """
    width = min(width_of(tiling, order, itemsize), 16)
    per = width // itemsize
    levels = stored_levels(tiling, order)
    lines: list[str] = []
    rest = "move"
    for level in reversed(levels):
        extent = tiling.extents[level]
        if level == levels[-1]:
            extent //= per
        scale = f" * {per}u" if level == levels[-1] and per > 1 else ""
        if level == levels[0]:
            lines.append(f"    u32 p{level} = ({rest}){scale};")
        else:
            lines.append(f"    u32 p{level} = ({rest}) % {extent}u{scale};")
        rest = f"({rest}) / {extent}u"
    lines += _tile_lines(tiling)
    inside = [f"x{n} < {size}u" for n, size in _inner(tiling)]
    terms = [f"(u64)x{n} * {tiling.units[n]}ull" for n, _ in _inner(tiling)]
    grain = tiling.grain
    terms.append(f"(u64)p{grain} * {tiling.units[grain]}ull")
    body = "\n".join(
        [
            *lines,
            f"    row = p{grain};",
            f"    at = {' + '.join(terms)};",
            f"    return {' && '.join(inside) or 'true'};",
        ]
    )
    tile = prod(tiling.chunks) * itemsize
    return "\n".join(
        [
            f"#define ITEM {itemsize}",
            f"#define WIDTH {width}",
            f"#define SWAPPED {swapped}",
            f"#define ROW {tiling.units[grain] * itemsize}ull",
            f"#define TILES {tiling.tiles}ull",
            f"#define VECTORS {tile // width}u",
            '#include "threads.h"',
            "WEFT_DEVICE bool source(u32 number, u32 move, u32& row, u64& at) {",
            "    (void)number;",
            body,
            "}",
            "",
        ]
    )


def _inner(tiling: Tiling) -> list[tuple[int, int]]:
    """The dimensions behind the grain, and their sizes."""
    return list(enumerate(tiling.inner, tiling.grain + 1))


def _tile_lines(tiling: Tiling) -> list[str]:
    """Where a tile is along every dimension behind the grain, and with it an element."""
    lines, rest = [], "number"
    for place in reversed(range(len(tiling.inner))):
        level, count = tiling.grain + 1 + place, tiling.inner_counts[place]
        tile = f"({rest})" if place == 0 else f"({rest}) % {count}u"
        lines.append(f"    u32 x{level} = {tile} * {tiling.extents[level]}u + p{level};")
        rest = f"({rest}) / {count}u"
    return lines


def moves_of(tiling: Tiling, order: Sequence[int], itemsize: int, low: int, end: int) -> Point:
    """The first and last move of a tile's rows, where these are one behind the other, or all."""
    width = width_of(tiling, order, itemsize)
    count = prod(tiling.chunks) * itemsize // width
    rows = tiling.extents[tiling.grain]
    if stored_levels(tiling, order)[0] != tiling.grain or count % rows:
        return 0, count
    return low * (count // rows), end * (count // rows)


def tile_order(tiling: Tiling) -> Point:
    """The tiles of an epoch in the order of their shards and slots."""
    lead = (0,) * (tiling.grain + 1)
    return tuple(tile for group in tiling.groups(lead) for tile in group.tiles)
