"""Codecs that other writers use, and that Weft only decodes: those of `numcodecs`.

Zarr v2 names them by an `id`, Zarr v3 as `numcodecs.…`. Some compress bytes or check them. Others
map elements to elements (`delta`, `fixedscaleoffset`, …): in v2 of any bytes, in v3 of the chunk as
an array. Flattened in storage order, a chunk is the same bytes in both cases, so that all of them
are codecs from bytes to bytes here.

`numcodecs` itself decodes whatever changes elements. Streams are decompressed here, so that they
give no more bytes than a chunk has. Codecs that would run code, as `pickle`, are not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store.decompress import CodecError, copy_into, inflate
from weft.store.dtypes import NAMES, Bytes
from weft.values import FrozenMap, Point

ARRAY_FILTERS = ("delta", "fixedscaleoffset", "quantize", "packbits", "astype", "bitround")
"""Codecs from elements to elements."""

CHECKSUMS = ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")
STREAMS = ("zlib", "bz2", "lzma")
READ_ONLY = (*ARRAY_FILTERS, *CHECKSUMS, *STREAMS, "shuffle")
"""The codecs of this module, by their `id` in `numcodecs`."""

MAX_DICTIONARY = 1 << 28
"""The most bytes of an LZMA dictionary: the highest preset has 64 MiB."""

_XZ, _ALONE, _RAW = 1, 2, 3
"""The formats of LZMA, as Python numbers them."""

PIECE = 1 << 20
"""Bytes that are decompressed at a time."""

_DTYPE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|[mM]8(?:\[\d{0,9}[a-zA-Z]{1,2}\])?)")
_OPTIONS = {
    "delta": ("dtype", "astype"),
    "fixedscaleoffset": ("offset", "scale", "dtype", "astype"),
    "quantize": ("digits", "dtype", "astype"),
    "astype": ("encode_dtype", "decode_dtype"),
    "bitround": ("keepbits",),
    "crc32": ("location",),
    "crc32c": ("location",),
    "adler32": ("location",),
    "jenkins_lookup3": ("initval",),
    "shuffle": ("elementsize",),
    "lzma": ("format", "filters"),
}
"""The options that decoding needs; others, as the level of compression, are ignored."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A codec of `numcodecs` that is only decoded.

    >>> delta = read_filter("delta", {"dtype": "<i4", "astype": "|i1"}, "filters[0]")
    >>> np.frombuffer(delta.decode(bytes([5, 1, 1]), 12), "<i4"), delta.encoded_size(12)
    (array([5, 6, 7], dtype=int32), 3)
    """

    id: str
    settings: Mapping[str, Any]
    """The options that decoding needs."""
    encoded: str = ""
    """The NumPy dtype of encoded elements, "" for those of bytes."""
    decoded: str = ""
    is_native: bool = False
    """Whether decoded elements are in the byte order of this machine, as in v3."""
    configuration: Mapping[str, Any] = field(default=FrozenMap(()), hash=False)
    """As in the metadata."""

    @property
    def name(self) -> str:
        """The name in `zarr.json`."""
        return f"numcodecs.{self.id}"

    @property
    def is_array_filter(self) -> bool:
        """Whether it maps elements to elements, and comes before `bytes` in v3."""
        return self.id in ARRAY_FILTERS

    def encoded_size(self, size: int) -> int | None:
        """Return the encoded size of a number of bytes; None where it depends on their content."""
        if self.id in CHECKSUMS:
            return size + 4
        if self.id == "packbits":
            return 1 + -(-size // 8)
        if self.id in STREAMS:
            return None
        if self.encoded and self.decoded:
            return size // np.dtype(self.decoded).itemsize * np.dtype(self.encoded).itemsize
        return size

    def encode(self, data: Bytes) -> Bytes:
        """Refuse: arrays with this codec are only read."""
        raise WeftError(f"the codec {self.name!r} is read, and not written")

    def decode(self, data: Bytes, limit: int) -> Bytes:
        """Return the decoded bytes, at most `limit`."""
        try:
            decoded = self._decode(data, limit)
        except CodecError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise CodecError(f"{self.id} cannot decode {len(data)} B: {error}") from None
        if len(decoded) > limit:
            raise CodecError(f"{self.id} gives {len(decoded)} B, and at most {limit} B are wanted")
        return decoded

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """Decode into a buffer of the exact size."""
        copy_into(self.decode(data, len(out)), out)

    def _decode(self, data: Bytes, limit: int) -> Bytes:
        if self.id in STREAMS:
            return b"".join(self._stream(data, limit))
        raw = np.frombuffer(data, self.encoded or np.uint8)
        if self.id == "bitround":
            return raw.astype(self.decoded).data.cast("B") if self.encoded else data
        if self.id in CHECKSUMS and len(data) < 4:
            raise CodecError(f"{len(data)} B are too few for a checksum")
        wanted = self.settings.get("astype", self.settings.get("encode_dtype"))
        if wanted is not None:
            raw = raw.astype(wanted, copy=False)
        with np.errstate(all="ignore"):
            decoded = _numcodec(self).decode(raw)
        if not isinstance(decoded, np.ndarray):
            return memoryview(decoded)
        found = decoded
        if self.is_native:
            found = found.astype(found.dtype.newbyteorder("="), copy=False)
        return np.ascontiguousarray(found).reshape(-1).view(np.uint8).data

    def _stream(self, data: Bytes, limit: int) -> Iterator[bytes]:
        if self.id == "zlib":
            return inflate(data, limit, 15)
        return _decompress(self, data, limit)


@dataclass(frozen=True, slots=True)
class Reorder:
    """Dimensions in another order, where a filter comes before: the codec `transpose`.

    >>> Reorder((2, 3), (1, 0), 1).decode(b"adbecf", 6)
    b'abcdef'
    """

    shape: Point
    order: Point
    itemsize: int

    name = "transpose"
    is_array_filter = True

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration in `zarr.json`."""
        return {"order": list(self.order)}

    def encoded_size(self, size: int) -> int:
        """Return the same size."""
        return size

    def encode(self, data: Bytes) -> Bytes:
        """Refuse: arrays with filters are only read."""
        raise WeftError("a chunk is transposed before other filters, where it is written")

    def decode(self, data: Bytes, limit: int) -> Bytes:
        """Return the elements in the order of the dimensions before."""
        if len(data) != prod(self.shape) * self.itemsize:
            raise CodecError(f"{len(data)} B are not the elements of {list(self.shape)}")
        raw = np.frombuffer(data, f"V{self.itemsize}")
        stored = raw.reshape([self.shape[dim] for dim in self.order])
        return stored.transpose(np.argsort(self.order)).tobytes()

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """Decode into a buffer of the exact size."""
        copy_into(self.decode(data, len(out)), out)


@dataclass(frozen=True, slots=True)
class VlenText:
    """Texts of any length: their number, then of each its bytes in UTF-8 after their number.

    >>> VlenText().elements(bytes([2, 0, 0, 0, 1, 0, 0, 0]) + b"a" + bytes(4), 2)
    array(['a', ''], dtype=StringDType())
    """

    name = "vlen-utf8"
    configuration = FrozenMap[str, Any](())
    is_array_filter = False

    def encoded_size(self, size: int) -> None:
        """Return None: it depends on the texts."""

    def encode(self, data: Bytes) -> Bytes:
        """Refuse: arrays of texts are only read."""
        raise WeftError("arrays of texts of any length are read, and not written")

    def decode(self, data: Bytes, limit: int) -> Bytes:
        """Refuse: texts are elements, and not bytes of a chunk."""
        raise CodecError("texts of any length come first among the codecs of a chunk")

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """Refuse, as `decode`."""
        self.decode(data, len(out))

    def elements(self, data: Bytes, count: int) -> np.ndarray[Any, Any]:
        """Return the texts of a chunk of `count` elements."""
        raw, at, found = bytes(data), 4, list[str]()
        if len(raw) < 4 or int.from_bytes(raw[:4], "little") != count:
            raise CodecError(f"{len(raw)} B are not {count} texts")
        for _ in range(count):
            size = int.from_bytes(raw[at : at + 4], "little")
            at += 4
            if at + size > len(raw):
                raise CodecError(f"a text ends at {at + size} B, and a chunk at {len(raw)} B")
            try:
                found.append(raw[at : at + size].decode())
            except UnicodeDecodeError as error:
                raise CodecError(f"a text is not UTF-8: {error}") from None
            at += size
        if at != len(raw):
            raise CodecError(f"{count} texts end at {at} B, and a chunk at {len(raw)} B")
        return np.array(found, np.dtypes.StringDType())


MAX_TEXT = 1 << 27
"""The most bytes of the texts of a chunk, which metadata do not limit."""


@lru_cache(maxsize=256)
def _numcodec(codec: Filter) -> Any:
    """Return the codec of `numcodecs`."""
    registry = needed("numcodecs", "store")
    return registry.get_codec({"id": codec.id, **codec.settings})


def _decompress(codec: Filter, data: Bytes, limit: int) -> Iterator[bytes]:
    """Yield the content of all streams of bzip2 or LZMA, some bytes at a time, at most `limit`."""
    left, given = limit, bytes(data)
    library = import_module(codec.id)  # not every Python has it
    errors = (OSError, EOFError, MemoryError, getattr(library, "LZMAError", OSError))
    try:
        while True:
            unpacker = library.BZ2Decompressor() if codec.id == "bz2" else _lzma(library, codec)
            while not unpacker.eof:
                part = unpacker.decompress(given, min(left + 1, PIECE))
                given = b""
                if not part and unpacker.needs_input and not unpacker.eof:
                    raise CodecError(f"{codec.id} has no end")
                left -= len(part)
                if left < 0:
                    raise CodecError(f"{codec.id} has more than {limit} B")
                yield part
            given = unpacker.unused_data
            if not given.strip(b"\0"):
                return
    except errors as error:
        raise CodecError(f"{codec.id} cannot decode {len(data)} B: {error}") from None


def _lzma(lzma: Any, codec: Filter) -> Any:
    kind, filters = codec.settings.get("format", _XZ), codec.settings.get("filters")
    if kind == _RAW:
        return lzma.LZMADecompressor(kind, filters=[dict(each) for each in filters or ()])
    return lzma.LZMADecompressor(kind, memlimit=MAX_DICTIONARY)


# -- from metadata


def read_filter(
    name: str,
    options: Mapping[str, Any],
    path: str,
    *,
    dtype: np.dtype[Any] | None = None,
    is_native: bool = False,
) -> Filter:
    """Return the codec of an `id`, or refuse it; `dtype` is that of the elements, where known."""
    if name not in READ_ONLY:
        raise WeftError(f"{path}: the codec {name!r} is not supported")
    given = {key: options[key] for key in _OPTIONS.get(name, ()) if options.get(key) is not None}
    if dtype is not None and name in ("fixedscaleoffset", "quantize"):
        given.setdefault("dtype", dtype.str)
    if dtype is not None and name == "astype":
        given.setdefault("decode_dtype", dtype.str)
    if dtype is not None and name == "shuffle":
        given.setdefault("elementsize", dtype.itemsize)
    encoded, decoded = _element_types(name, given, path)
    if name == "bitround" and dtype is not None:
        encoded = decoded = dtype.str
    _check_numbers(name, given, path)
    settings = FrozenMap((key, _frozen(value)) for key, value in given.items())
    codec = Filter(name, settings, encoded, decoded, is_native, FrozenMap(options.items()))
    try:
        _numcodec(codec)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise WeftError(f"{path}: {name} does not take {given!r}: {error}") from None
    return codec


def _frozen(value: Any) -> Any:
    """Return the filters of LZMA so that they can be hashed."""
    return tuple(FrozenMap(each.items()) for each in value) if isinstance(value, list) else value


def _element_types(name: str, given: dict[str, Any], path: str) -> tuple[str, str]:
    """Return the dtypes of encoded and decoded elements, and set both in the options."""
    if name == "packbits":
        return "|u1", "|b1"
    if name == "astype":
        keys = "encode_dtype", "decode_dtype"
    elif name in ("delta", "fixedscaleoffset", "quantize"):
        keys = "astype", "dtype"
        given.setdefault("astype", given.get("dtype"))
    else:
        return "", ""
    found = []
    for key in keys:
        text = given.get(key)
        is_known = isinstance(text, str) and (text in NAMES or _DTYPE.fullmatch(text))
        try:
            dtype = np.dtype(text) if is_known and text != "bfloat16" else None
        except (TypeError, ValueError):
            dtype = None
        if dtype is None:
            raise WeftError(f"{path}.{key}: expected a data type, got {text!r}")
        given[key] = dtype.str
        found.append(dtype.str)
    return found[0], found[1]


def _check_numbers(name: str, given: Mapping[str, Any], path: str) -> None:
    """Refuse numbers that are none, or sizes that nothing has."""
    for key in ("offset", "scale", "digits", "keepbits", "elementsize", "initval", "format"):
        value = given.get(key)
        kinds = (int, float) if key in ("offset", "scale") else (int,)
        if value is not None and (type(value) not in kinds or abs(value) > 1 << 62):
            raise WeftError(f"{path}.{key}: expected a number, got {value!r}")
    if name == "shuffle" and not 0 <= given.get("elementsize", 4) < 1 << 20:
        raise WeftError(f"{path}.elementsize: {given['elementsize']} is no size")
    if name == "lzma":
        _check_lzma(given, path)


def _check_lzma(given: Mapping[str, Any], path: str) -> None:
    kind, filters = given.get("format", _XZ), given.get("filters")
    if kind not in (_XZ, _ALONE, _RAW):
        raise WeftError(f"{path}.format: {kind!r} is not a format of LZMA")
    if kind != _RAW:
        return
    is_list = isinstance(filters, list) and 0 < len(filters) <= 4
    if not is_list or not all(
        isinstance(each, dict) and all(type(value) is int for value in each.values())
        for each in filters or ()
    ):
        raise WeftError(f"{path}.filters: expected a list of LZMA filters, got {filters!r}")
    if any(each.get("dict_size", 0) > MAX_DICTIONARY for each in filters or ()):
        raise WeftError(f"{path}.filters: at most {MAX_DICTIONARY} B of dictionary are read")
