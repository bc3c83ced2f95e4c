"""The number formats of a chip: plain ones, `bfloat16`, and block floats that share exponents."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.errors import WeftError

Bytes: TypeAlias = NDArray[np.uint8]
TILE, FACE = 32, 16
"""The sides of a tile and of its four faces."""
ROWS = TILE * TILE // FACE
"""The rows of all faces of a tile; in a block format, each has an exponent."""
_QUIET_NAN = 0x7FC0
_SPECIAL = 255
"""The exponent of infinities and of what is not a number."""


class DataType(Enum):
    """What an element is on a chip; the value is its name in the runtime.

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
        """The format that holds a NumPy type as it is; `bfloat16` of `ml_dtypes` is one."""
        for kind in cls:
            if kind.value == dtype.name and not kind.is_block:
                return kind
        named = ", ".join(kind.value for kind in cls)
        raise WeftError(
            f"{dtype.name} is no format of a chip, which are {named}",
            hint="name the format to convert to",
        )

    @property
    def is_block(self) -> bool:
        """Whether the sixteen elements of a face's row share one exponent."""
        return self in (DataType.BFLOAT8_B, DataType.BFLOAT4_B)

    @property
    def mantissa_bits(self) -> int:
        """The bits beside the sign in a block format."""
        return {DataType.BFLOAT8_B: 7, DataType.BFLOAT4_B: 3}[self]

    @property
    def storage(self) -> np.dtype[Any]:
        """What NumPy holds an element as; a block format is bytes."""
        if self.is_block:
            return np.dtype("uint8")
        return np.dtype("uint16" if self is DataType.BFLOAT16 else self.value)

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile of 32 x 32."""
        if self.is_block:
            return ROWS + TILE * TILE * (1 + self.mantissa_bits) // 8
        return TILE * TILE * self.storage.itemsize

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values as they are stored, in any order but for blocks, which have `pack_tiles`.

        >>> DataType.BFLOAT16.encode(np.array([1.0, -2.0], "float32"))
        array([16256, 49152], dtype=uint16)
        """
        if self.is_block:
            raise WeftError(f"{self.value} has tiles and no elements", hint="use pack_tiles")
        if self is DataType.BFLOAT16:
            if values.dtype.name == "bfloat16":
                return values.view(np.uint16)
            return encode_bfloat16(values)
        return values.astype(self.storage, copy=False)

    def decode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Stored elements as values: `bfloat16` as `float32`, the others as they are."""
        return decode_bfloat16(stored) if self is DataType.BFLOAT16 else stored


def encode_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper half of `float32`, rounded to nearest, ties to even; one NaN for all of them.

    >>> [hex(x) for x in encode_bfloat16(np.array([1.00390625, -np.inf, np.nan], "float32"))]
    ['0x3f80', '0xff80', '0x7fc0']
    """
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits  # wraps for NaNs alone, which are overwritten
    rounded >>= np.uint32(16)
    found = rounded.astype(np.uint16)
    nans = np.isnan(single)
    if nans.any():
        found[nans] = _QUIET_NAN
    return found


def decode_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The same numbers as `float32`.

    >>> decode_bfloat16(np.array([0x3F80, 0xC000], "uint16"))
    array([ 1., -2.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack_tiles(faces: NDArray[np.float32], kind: DataType) -> Bytes:
    """Tiles, as rows of their faces `[tiles, 64, 16]`, in a block format: `[tiles, bytes]`.

    First the 64 exponents, then sign and mantissa of each element. A row's exponent is its
    largest. A mantissa with its leading one is shifted to it, bits that fall off are forgotten,
    and what is left is rounded to nearest, ties to even, up to the largest mantissa. Denormals
    are zero, and no zero has a sign. An infinity or NaN has the exponent 255, for its whole row.

    >>> packed = pack_tiles(np.full((1, 64, 16), -1.5, "float32"), DataType.BFLOAT8_B)
    >>> packed.shape, packed[0, 63:66].tolist()
    ((1, 1088), [127, 224, 224])
    """
    width = kind.mantissa_bits
    bits = np.ascontiguousarray(faces, np.float32).view(np.uint32)
    exponents = (bits >> np.uint32(23)).astype(np.uint8)  # the sign falls off
    shared = exponents.max(axis=-1)
    marks = _mantissas(bits, exponents, shared, width)
    if kind is DataType.BFLOAT4_B:
        marks = marks[..., 0::2] | marks[..., 1::2] << np.uint8(4)
    return np.concatenate([shared, marks.reshape(len(marks), -1)], axis=1)


def _mantissas(bits: NDArray[np.uint32], exponents: Bytes, shared: Bytes, width: int) -> Bytes:
    """Sign and rounded mantissa of each element, as bytes."""
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
    """The values in tiles of a block format, as rows of their faces `[tiles, 64, 16]`.

    >>> tile = np.linspace(-1, 1, 1024, dtype="float32").reshape(1, 64, 16)
    >>> back = unpack_tiles(pack_tiles(tile, DataType.BFLOAT8_B), DataType.BFLOAT8_B)
    >>> float(abs(back - tile).max()) <= 2.0**-7
    True
    """
    width = kind.mantissa_bits
    if packed.ndim != 2 or packed.shape[1] != kind.tile_bytes:
        raise WeftError(
            f"tiles of {kind.value} have {kind.tile_bytes} bytes each: an array of shape "
            f"{packed.shape} is given"
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
    """The value of each sign and mantissa, as an integer."""
    half = np.arange(1 << width, dtype=np.float32)
    return np.concatenate([half, -half])


def _with_specials(
    values: NDArray[np.float32], marks: Bytes, shared: Bytes, width: int
) -> NDArray[np.float32]:
    """With an exponent of 255 a mantissa with more than its leading one is not a number."""
    leading = np.uint8(1 << (width - 1))
    rest = marks & (leading - np.uint8(1))
    nans = (shared == _SPECIAL) & ((marks & leading) != 0) & (rest != 0)
    if nans.any():
        sign = (marks >> np.uint8(width)).astype(np.uint32)
        bits = sign << 31 | np.uint32(0x7F800000) | rest.astype(np.uint32) << (24 - width)
        values[nans] = bits[nans].view(np.float32)
    return values
