"""How many bytes the elements of a buffer take: by name, or by size."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.errors import WeftError
from weft.ttmesh.formats import TILE, DataType
from weft.values import Point

SIZES = {
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
}
TILES = {kind.value: kind.tile_bytes for kind in DataType if kind.is_block}
"""Formats in which a tile of 32 x 32 shares exponents: the bytes of a tile."""


@dataclass(frozen=True, slots=True)
class Datum:
    """The format of an element: its size, or in a block format the size of a tile.

    >>> Datum.of("bfloat16").size, Datum.of(4).name, Datum.of("bfloat8_b").tile
    (2, '4 bytes', 1088)
    """

    name: str
    size: int
    """0 in a block format: there only whole tiles have a size."""
    tile: int = 0

    @classmethod
    def of(cls, dtype: str | int | Datum) -> Datum:
        """A format by its name, or any format of elements of that many bytes."""
        if isinstance(dtype, Datum):
            return dtype
        if isinstance(dtype, int):
            if dtype < 1:
                raise WeftError(f"an element of {dtype} bytes")
            return cls(f"{dtype} byte" + "s" * (dtype > 1), dtype)
        if dtype in SIZES:
            return cls(dtype, SIZES[dtype])
        if dtype in TILES:
            return cls(dtype, 0, TILES[dtype])
        known = ", ".join([*SIZES, *TILES])
        raise WeftError(f"no format is called {dtype!r}", hint=f"there are {known}")

    def bytes_of(self, shape: Point) -> int:
        """The bytes of an array of that shape; in a block format, of its tiles.

        >>> Datum.of("float32").bytes_of((2, 3)), Datum.of("bfloat4_b").bytes_of((2, 33, 3))
        (24, 2304)
        """
        if not self.tile:
            return prod(shape) * self.size
        *lead, rows, columns = (1, 1, *shape)
        return prod((*lead, -(-rows // TILE), -(-columns // TILE))) * self.tile
