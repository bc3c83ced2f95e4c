"""Number formats of a chip: plain ones, `bfloat16`, and block floats that share exponents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError
from weft.space import BlockGrid
from weft.values import Point

Array: TypeAlias = NDArray[Any]
Bytes: TypeAlias = NDArray[np.uint8]
TILE, FACE = 32, 16
"""The sides of a tile and of its four faces."""
ROWS = TILE * TILE // FACE
"""The rows of all four faces of a tile; in a block format, each row has an exponent."""
NUMPY_ONLY = ("float16", "int16", "int8")
"""Formats that a buffer may hold and a chip does not compute with."""
_QUIET_NAN = 0x7FC0
_SPECIAL = 255
"""The exponent of infinities and NaNs."""


class DataType(Enum):
    """The format of an element on a chip; the value is its name in ttnn.

    >>> DataType.BFLOAT8_B.tile_bytes, DataType.BFLOAT4_B.tile_bytes, DataType.BFLOAT16.tile_bytes
    (1088, 576, 2048)
    >>> DataType.of(np.dtype("int32"))
    <DataType.INT32: 'int32'>
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    BFLOAT8_B = "bfloat8_b"
    BFLOAT4_B = "bfloat4_b"
    UINT32 = "uint32"
    INT32 = "int32"
    UINT16 = "uint16"
    UINT8 = "uint8"

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> DataType:
        """Return the format that holds a NumPy dtype unchanged; `ml_dtypes` has `bfloat16`."""
        for kind in cls:
            if kind.value == dtype.name and not kind.is_block:
                return kind
        named = ", ".join(kind.value for kind in cls)
        raise WeftError(
            f"{dtype.name} is not a format of a chip; the formats are {named}",
            hint="name the format to convert to",
        )

    @property
    def is_block(self) -> bool:
        """Whether the sixteen elements of a face's row share one exponent."""
        return self in (DataType.BFLOAT8_B, DataType.BFLOAT4_B)

    @property
    def mantissa_bits(self) -> int:
        """The bits of a mantissa in a block format."""
        return {DataType.BFLOAT8_B: 7, DataType.BFLOAT4_B: 3}[self]

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy dtype that holds an element; bytes for a block format."""
        if self.is_block:
            return np.dtype("uint8")
        return np.dtype("uint16" if self is DataType.BFLOAT16 else self.value)

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile of 32 x 32."""
        if self.is_block:
            return ROWS + TILE * TILE * (1 + self.mantissa_bits) // 8
        return TILE * TILE * self.storage.itemsize

    def encode(self, values: Array) -> Array:
        """Return values as they are stored; block formats have `pack_tiles` instead.

        >>> DataType.BFLOAT16.encode(np.array([1.0, -2.0], "float32"))
        array([16256, 49152], dtype=uint16)
        """
        if self.is_block:
            raise WeftError(f"{self.value} encodes tiles, not elements", hint="use pack_tiles")
        if self is DataType.BFLOAT16:
            if values.dtype.name == "bfloat16":
                return values.view(np.uint16)
            return encode_bfloat16(values)
        return values.astype(self.storage, copy=False)

    def decode(self, stored: Array) -> Array:
        """Return stored elements as values: `bfloat16` as `float32`, the others unchanged."""
        return decode_bfloat16(stored) if self is DataType.BFLOAT16 else stored


@dataclass(frozen=True, slots=True)
class Element:
    """The size of an element in a buffer: its bytes, or in a block format those of a tile.

    >>> Element.of("bfloat16").size, Element.of(4).name, Element.of("bfloat8_b").tile_bytes
    (2, '4 bytes', 1088)
    """

    name: str
    size: int
    """0 in a block format: there only whole tiles have a size."""
    tile_bytes: int = 0
    """0 unless it is a block format."""

    @classmethod
    def of(cls, dtype: str | int | DataType) -> Element:
        """Return an element by the name of its format, or by its number of bytes."""
        if isinstance(dtype, int):
            if dtype < 1:
                raise WeftError(f"an element has at least 1 byte, got {dtype}")
            return cls(f"{dtype} byte" + "s" * (dtype > 1), dtype)
        name = dtype.value if isinstance(dtype, DataType) else dtype
        if name in NUMPY_ONLY:
            return cls(name, np.dtype(name).itemsize)
        try:
            kind = DataType(name)
        except ValueError:
            known = ", ".join([*(kind.value for kind in DataType), *NUMPY_ONLY])
            raise WeftError(f"unknown format {name!r}", hint=f"the formats are {known}") from None
        return cls(name, 0, kind.tile_bytes) if kind.is_block else cls(name, kind.storage.itemsize)

    def bytes_of(self, shape: Point) -> int:
        """Return the bytes of an array of that shape; in a block format, those of its tiles.

        >>> Element.of("float32").bytes_of((2, 3)), Element.of("bfloat4_b").bytes_of((2, 33, 3))
        (24, 2304)
        """
        if self.tile_bytes:
            return tile_grid(shape).size * self.tile_bytes
        return prod(shape) * self.size


def tile_grid(shape: Point) -> BlockGrid:
    """Return the tiles of an array of that shape; an array of lower rank is one matrix.

    >>> tile_grid((2, 3, 33)).counts, tile_grid((5,)).counts
    ((2, 1, 2), (1, 1))
    """
    sizes = (1,) * (2 - len(shape)) + shape
    return BlockGrid.blocks(sizes, (1,) * (len(sizes) - 2) + (TILE, TILE))


def encode_bfloat16(values: Array) -> NDArray[np.uint16]:
    """Return the upper half of each `float32`, rounded to nearest even; every NaN becomes one.

    >>> [hex(x) for x in encode_bfloat16(np.array([1.00390625, -np.inf, np.nan], "float32"))]
    ['0x3f80', '0xff80', '0x7fc0']
    """
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits  # wraps only for NaNs, which are overwritten
    rounded >>= np.uint32(16)
    encoded = rounded.astype(np.uint16)
    encoded[np.isnan(single)] = _QUIET_NAN
    return encoded


def decode_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return `bfloat16` numbers as `float32`.

    >>> decode_bfloat16(np.array([0x3F80, 0xC000], "uint16"))
    array([ 1., -2.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack_tiles(faces: NDArray[np.float32], kind: DataType) -> Bytes:
    """Pack tiles, given as rows of faces `[tiles, 64, 16]`, into a block format `[tiles, bytes]`.

    First come the 64 exponents, then sign and mantissa of each element. A row's exponent is the
    largest in it. A mantissa with its leading one is shifted to that exponent, dropping bits, then
    rounded to nearest even, at most to the largest mantissa. Denormals become zero, and zero has no
    sign. An infinity or NaN gives its whole row the exponent 255.

    >>> packed = pack_tiles(np.full((1, 64, 16), -1.5, "float32"), DataType.BFLOAT8_B)
    >>> packed.shape, packed[0, 63:66].tolist()
    ((1, 1088), [127, 224, 224])
    """
    width = kind.mantissa_bits
    bits = np.ascontiguousarray(faces, np.float32).view(np.uint32)
    exponents = (bits >> np.uint32(23)).astype(np.uint8)  # drops the sign
    shared = exponents.max(axis=-1)
    marks = _mantissas(bits, exponents, shared, width)
    if kind is DataType.BFLOAT4_B:
        marks = marks[..., 0::2] | marks[..., 1::2] << np.uint8(4)
    return np.concatenate([shared, marks.reshape(len(marks), -1)], axis=1)


def _mantissas(bits: NDArray[np.uint32], exponents: Bytes, shared: Bytes, width: int) -> Bytes:
    """Return sign and rounded mantissa of each element, as bytes."""
    cut, most = np.uint32(24 - width), np.uint32((1 << width) - 1)
    mantissa = bits & np.uint32(0x7FFFFF)
    mantissa |= np.uint32(1 << 23)
    mantissa *= exponents != 0
    mantissa >>= np.minimum(shared[..., None] - exponents, np.uint8(31))
    odd = mantissa >> cut
    odd &= np.uint32(1)
    mantissa += odd
    mantissa += np.uint32((1 << (23 - width)) - 1)
    mantissa >>= cut
    np.minimum(mantissa, most, out=mantissa)
    signs = (bits >> np.uint32(31)) * (mantissa != 0)
    mantissa |= signs << np.uint32(width)
    return mantissa.astype(np.uint8)


def unpack_tiles(packed: Bytes, kind: DataType) -> NDArray[np.float32]:
    """Return the values of tiles in a block format, as rows of faces `[tiles, 64, 16]`.

    >>> tile = np.linspace(-1, 1, 1024, dtype="float32").reshape(1, 64, 16)
    >>> back = unpack_tiles(pack_tiles(tile, DataType.BFLOAT8_B), DataType.BFLOAT8_B)
    >>> float(abs(back - tile).max()) <= 2.0**-7
    True
    """
    width = kind.mantissa_bits
    if packed.ndim != 2 or packed.shape[1] != kind.tile_bytes:
        raise WeftError(
            f"tiles of {kind.value} have {kind.tile_bytes} bytes each, got shape {packed.shape}"
        )
    shared, marks = packed[:, :ROWS, None], packed[:, ROWS:]
    if kind is DataType.BFLOAT4_B:
        marks = np.stack([marks & np.uint8(15), marks >> np.uint8(4)], axis=-1)
    marks = marks.reshape(-1, ROWS, FACE)
    scale = np.ldexp(np.float32(1), shared.astype(np.int32) - (126 + width))
    with np.errstate(over="ignore"):
        values = _signed(width)[marks] * scale
    return _with_specials(values, marks, shared, width)


def _signed(width: int) -> NDArray[np.float32]:
    """Return the integer value of each combination of sign and mantissa."""
    half = np.arange(1 << width, dtype=np.float32)
    return np.concatenate([half, -half])


def _with_specials(
    values: NDArray[np.float32], marks: Bytes, shared: Bytes, width: int
) -> NDArray[np.float32]:
    """Replace values that are NaN: exponent 255, and a mantissa with more than its leading one."""
    leading = np.uint8(1 << (width - 1))
    rest = marks & (leading - np.uint8(1))
    nans = (shared == _SPECIAL) & ((marks & leading) != 0) & (rest != 0)
    if nans.any():
        sign = (marks >> np.uint8(width)).astype(np.uint32)
        bits = sign << 31 | np.uint32(0x7F800000) | rest.astype(np.uint32) << (24 - width)
        values[nans] = bits[nans].view(np.float32)
    return values
