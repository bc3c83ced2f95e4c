"""`Metadata`: the `zarr.json` of an array, written, and read with checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import (
    CODECS,
    Blosc,
    Codec,
    CodecLike,
    as_codecs,
    codec_of,
    is_reading_only,
    is_text,
    with_checksum,
)
from weft.store.dtypes import (
    NAMES,
    TEXT,
    as_dtype,
    dtype_name,
    foreign_dtype,
    numpy_dtype,
    read_fill,
    write_fill,
)
from weft.store.files import Folder
from weft.store.filters import ARRAY_FILTERS, READ_ONLY, Filter, Reorder, VlenText, read_filter
from weft.store.json_data import as_attributes
from weft.store.zip_archive import ZipArchive, is_torn_archive
from weft.values import FrozenMap, Point, check_list, freeze

if TYPE_CHECKING:
    from weft.store.sink import Sink

MAX_BYTES = 1 << 24
"""The most bytes of metadata that are read; parsed, they take up to 20 times as many."""

MAX_WRITTEN = MAX_BYTES - (1 << 16)
"""The most bytes of metadata of a new node: while it is recorded, they grow a little."""

MAX_DIMS = 64
"""The most dimensions of an array, as in NumPy."""

MAX_SIZE = (1 << 63) - 1
"""The largest size of a dimension."""

MAX_ELEMENTS = 2**63 // 16 - 1
"""The most elements of an array, a chunk or a shard: readers count bytes in 64 bits."""

EVERY_SHARD = "every_shard_stored"
"""The field of the attribute "weft" which promises that shards of fill value are stored too."""

OWN = ("axis_order", "frame_ndim", "frames", "frame_segments", EVERY_SHARD)
"""The fields that Weft writes to the attribute "weft" of an array."""

_FIELDS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}
_MAX_DIVIDED = 1 << 40
"""The largest size whose divisors are looked for, for a message."""

_MAX_MESSAGE = 1000
"""Characters of a message that quotes metadata."""


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """How the coordinates of a shard become a key: as in Zarr v3, or as in v2.

    >>> KeyEncoding().key((0, 12)), KeyEncoding("default", ".").key((0, 12))
    ('c/0/12', 'c.0.12')
    >>> KeyEncoding("v2", ".").key((0, 12)), KeyEncoding().key(()), KeyEncoding("v2", ".").key(())
    ('0.12', 'c', '0')
    """

    name: Literal["default", "v2"] = "default"
    separator: Literal["/", "."] = "/"

    def key(self, shard: Point) -> str:
        """Return the key of a shard."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, shard)])
        return self.separator.join(map(str, shard)) or "0"

    @property
    def root(self) -> str:
        """The folder that has all keys, "" where they lie beside `zarr.json`."""
        return "c" if self.name == "default" and self.separator == "/" else ""


_KEYS = KeyEncoding()


@dataclass(frozen=True, slots=True)
class Metadata:
    """An array as Zarr v3 describes it: a regular grid of shards, each a regular grid of chunks.

    `order` is the order in which the dimensions of a chunk are stored, as in the codec `transpose`.

    >>> from weft.store.codecs import Zstd
    >>> metadata = Metadata((9, 9), "uint8", (2, 2), (4, 4), (Zstd(3),))
    >>> Metadata.from_json(metadata.to_json()) == metadata
    True
    """

    shape: Point
    dtype: str
    chunks: Point
    shards: Point
    codecs: tuple[Codec, ...] = ()
    fill_value: Any = 0
    """As in `zarr.json`; `fill` is the NumPy scalar."""
    order: Point = ()
    endian: str = "little"
    index_location: str = "end"
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = FrozenMap(())
    is_sharded: bool = True
    """Whether chunks lie in shards; else each chunk is a file, and a shard is one chunk."""
    keys: KeyEncoding = _KEYS
    has_checksum: bool = True
    """Whether the index of a shard has a checksum."""
    index_endian: str = "little"
    extensions: Mapping[str, Any] = FrozenMap(())
    """Fields of other writers that need not be understood."""
    zarr_format: Literal[2, 3] = 3
    """The version of Zarr; arrays of version 2 are only read."""

    def __post_init__(self) -> None:
        width = numpy_dtype(self.dtype).itemsize
        codecs = tuple(
            replace(codec, typesize=width)
            if isinstance(codec, Blosc) and not codec.typesize
            else codec
            for codec in self.codecs
        )
        freeze(self, codecs=codecs, fill_value=write_fill(self.dtype, self.fill_value))
        if self.order == tuple(range(len(self.shape))):
            freeze(self, order=())
        if width == 1:
            freeze(self, endian="little")
        if not self.is_sharded:
            freeze(self, index_location="end", has_checksum=True, index_endian="little")

    @property
    def fill(self) -> Any:
        """The fill value, a NumPy scalar."""
        return read_fill(self.dtype, self.fill_value)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of the elements of a decoded chunk, with their byte order.

        Zarr v2 declares it. In v3 the codec `bytes` does, except that filters, which come before
        it, give elements in the byte order of this machine.
        """
        dtype = numpy_dtype(self.dtype)
        if (
            self.zarr_format == 2
            or self.dtype == TEXT
            or any(_is_filter(codec) for codec in self.codecs)
        ):
            return dtype
        return dtype.newbyteorder(">" if self.endian == "big" else "<")

    @property
    def is_writable(self) -> bool:
        """Whether Weft writes arrays of this kind, rather than only reading them."""
        known = self.zarr_format == 3 and not is_reading_only(self.codecs)
        return known and self.dtype in NAMES

    @property
    def stores_every_shard(self) -> bool:
        """Whether a missing shard was lost or not written yet, rather than left out.

        Arrays that Weft creates say so in their attributes. Other writers may leave out shards
        that are all fill value, which cannot be told from lost ones.
        """
        return own_attributes(self.attributes).get(EVERY_SHARD) is True

    def key(self, shard: Point) -> str:
        """Return the key of a shard."""
        return self.keys.key(shard)

    @classmethod
    def load(cls, sink: Sink) -> Metadata:
        """Read the `zarr.json` of a sink."""
        text = fetch_metadata(sink, "array")
        try:
            return cls.from_json(text.decode())
        except WeftError as error:
            error.args = (f"{sink.url}: {error}",)
            raise
        except UnicodeDecodeError as error:
            raise WeftError(f"{sink.url}: zarr.json is not UTF-8: {error}") from None

    @classmethod
    def from_data(cls, data: Any) -> Metadata:
        """Read the document of a `zarr.json`; what cannot be read here is refused by name."""
        return checked(_parse, data, "zarr.json")

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        """Read the text of `zarr.json`; what cannot be read here is refused by name."""
        if len(text) > MAX_BYTES:
            raise WeftError(f"zarr.json has {len(text)} characters; at most {MAX_BYTES} are read")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WeftError(f"zarr.json is not JSON: {error}") from None
        return cls.from_data(data)

    def to_json(self) -> str:
        """Return the text of `zarr.json`."""
        if self.zarr_format != 3:
            raise WeftError("arrays of Zarr v2 are read, and not written")
        data: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": _data_type(self.dtype),
            "chunk_grid": _named("regular", chunk_shape=list(self.shards)),
            "chunk_key_encoding": _named(self.keys.name, separator=self.keys.separator),
            "fill_value": self.fill_value,
            "codecs": [self._sharding_codec()] if self.is_sharded else self._chunk_codecs(),
            "attributes": dict(self.attributes),
        }
        if self.dimension_names is not None:
            data["dimension_names"] = list(self.dimension_names)
        return json.dumps(data | dict(self.extensions), indent=2)

    def _sharding_codec(self) -> dict[str, Any]:
        index = [_named("bytes", endian=self.index_endian)]
        return _named(
            "sharding_indexed",
            chunk_shape=list(self.chunks),
            codecs=self._chunk_codecs(),
            index_codecs=[*index, _named("crc32c")] if self.has_checksum else index,
            index_location=self.index_location,
        )

    def _chunk_codecs(self) -> list[dict[str, Any]]:
        transpose = [_named("transpose", order=list(self.order))] if self.order else []
        is_wide = numpy_dtype(self.dtype).itemsize > 1
        array = _named("bytes", endian=self.endian) if is_wide else _named("bytes")
        codecs = [(_is_filter(c), _named(c.name, **c.configuration)) for c in self.codecs]
        filters = [codec for is_filter, codec in codecs if is_filter]
        if is_text(self.codecs):
            return [*transpose, *(codec for _, codec in codecs)]
        return [
            *transpose,
            *filters,
            array,
            *(codec for is_filter, codec in codecs if not is_filter),
        ]


def _is_filter(codec: Codec) -> bool:
    return isinstance(codec, Filter | Reorder) and codec.is_array_filter


def checked(parse: Callable[[Any], Metadata], data: Any, file: str) -> Metadata:
    """Return parsed metadata; messages that quote a document stay short."""
    try:
        return parse(data)
    except WeftError as error:
        if len(str(error)) > _MAX_MESSAGE:
            error.args = (f"{str(error)[:_MAX_MESSAGE]}…",)
        raise
    except RecursionError:
        raise WeftError(f"{file} is nested too deeply") from None


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def _data_type(name: str) -> object:
    """Return a data type as in `zarr.json`."""
    if name in NAMES or name == TEXT:
        return name
    dtype = numpy_dtype(name)
    if dtype.names is not None:
        fields = [[key, _data_type(dtype_name(dtype[key]))] for key in dtype.names]
        return _named("structured", fields=fields)
    if dtype.kind in "mM":
        unit, count = np.datetime_data(dtype)
        kind = "datetime64" if dtype.kind == "M" else "timedelta64"
        return _named(f"numpy.{kind}", unit=unit, scale_factor=count)
    kinds = {"U": "fixed_length_utf32", "S": "null_terminated_bytes", "V": "raw_bytes"}
    return _named(kinds[dtype.kind], length_bytes=dtype.itemsize)


def no_node(sink: Sink, kind: str) -> WeftError:
    """Return the error for a place where there is no array or group, with what is there instead."""
    why, hint = "it has no zarr.json (Zarr v3), .zarray or .zgroup (Zarr v2)", None
    if isinstance(sink, Folder) and sink.path.is_file():
        why = "it is a file, not a folder"
        if is_torn_archive(sink.path):
            why = "it is a zip archive without its directory, which is written when it is closed"
    elif isinstance(sink, Folder) and not sink.path.exists():
        why = "the folder does not exist"
    elif isinstance(sink, Folder | ZipArchive) and (names := sink.folders()):
        more = f", … ({len(names)} in all)" if len(names) > 5 else ""
        hint = f"its folders are {', '.join(names[:5])}{more}"
    return WeftError(f"there is no Zarr {kind} at {sink.url}: {why}", hint=hint)


def fetch_metadata(sink: Sink, kind: str) -> bytes:
    """Return the `zarr.json` of an array or a group; refuse a store without one."""
    fetched = sink.fetch("zarr.json", 0, MAX_BYTES + 1)
    if fetched is None:
        older = [name for name in (".zarray", ".zgroup") if sink.fetch(name, 0, 1) is not None]
        if older:
            raise WeftError(
                f"{sink.url} is of Zarr v2: there is a {older[0]}, and no zarr.json",
                hint="zarr-python's `zarr migrate v3` converts it to v3",
            )
        raise no_node(sink, kind)
    if fetched.size > MAX_BYTES:
        raise WeftError(f"{sink.url}: zarr.json has {fetched.size} B; at most {MAX_BYTES} are read")
    return bytes(fetched.data)


def check_written(url: str, text: bytes) -> bytes:
    """Return the text of a `zarr.json`; refuse one that would be too large to be read."""
    if len(text) > MAX_WRITTEN:
        raise WeftError(
            f"{url}: zarr.json would have {len(text)} B; at most {MAX_WRITTEN} are written",
            hint="what belongs to a frame is metadata of `append`; attributes are for the whole",
        )
    return text


def own_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attribute "weft", which holds the fields `OWN`; empty where there is none."""
    own = attributes.get("weft")
    return own if isinstance(own, Mapping) else {}


def without_own(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes without the fields that Weft wrote for the array they were copied from."""
    kept = as_attributes(attributes)
    if "weft" in kept:
        if not isinstance(kept["weft"], dict):
            raise WeftError(f"attributes.weft: Weft adds fields of its own, got {kept['weft']!r}")
        kept["weft"] = {key: value for key, value in kept["weft"].items() if key not in OWN}
    return kept


def make_metadata(
    shape: Point,
    dtype: Any,
    chunks: Point,
    shards: Point,
    *,
    codecs: CodecLike | Sequence[CodecLike] = (),
    checksum: bool = True,
    fill_value: Any = 0,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    order: Sequence[int] = (),
    endian: str = "little",
    index_location: str = "end",
    is_sharded: bool = True,
) -> Metadata:
    """Return the metadata of a new array; refuse what does not fit together.

    With `checksum`, every chunk has a CRC32C of its stored bytes. The attribute "weft" promises
    that every shard is stored, those that are all fill value too.

    >>> make_metadata((9, 9), "uint8", (2, 2), (4, 4), codecs="zstd").codecs
    (Zstd(level=1, checksum=False, table=0), Crc32c())
    """
    name, kind = as_dtype(dtype)
    if index_location not in ("start", "end"):
        raise WeftError(f"index_location: {index_location!r} is neither start nor end")
    if endian not in ("little", "big"):
        raise WeftError(f"endian: {endian!r} is neither little nor big")
    if order and sorted(order) != list(range(len(shape))):
        raise WeftError(f"{list(order)} is not a permutation of {len(shape)} dimensions")
    names = None if dimension_names is None else _parse_names(list(dimension_names), len(shape))
    for one in filter(None, names or ()):
        if (names or ()).count(one) > 1:  # tensorstore and xarray do not open it
            raise WeftError(f"dimension_names: {one!r} is the name of two dimensions")
    fill = _new_fill(name, fill_value)
    chain = as_codecs(codecs, kind.itemsize)
    own = {**own_attributes(attributes or {}), EVERY_SHARD: True}
    return Metadata(
        shape,
        name,
        chunks,
        shards,
        with_checksum(chain) if checksum else chain,
        fill,
        tuple(order),
        endian,
        index_location,
        names,
        FrozenMap({**(attributes or {}), "weft": own}.items()),
        is_sharded,
    )


def _new_fill(name: str, value: Any) -> object:
    """Return the fill value of a new array as in `zarr.json`; refuse one that is another number."""
    try:
        fill = write_fill(name, value)
        is_infinite = isinstance(fill, float) and not np.isfinite(read_fill(name, fill))
        if is_infinite or (name == "bool" and (value is None or value != fill)):
            raise WeftError(f"{value!r} is not a fill value of {name}")
    except WeftError as error:
        raise WeftError(f"fill_value: {error}") from None
    return fill


def without_elements(metadata: Metadata) -> Metadata:
    """Return the metadata of the same array without elements."""
    if 0 in metadata.shape:
        return metadata
    if metadata.shape:
        return replace(metadata, shape=(0, *metadata.shape[1:]))
    return Metadata((0,), metadata.dtype, (1,), (1,), is_sharded=False)


# -- reading zarr.json


def _parse(data: Any) -> Metadata:
    version = data.get("zarr_format") if isinstance(data, dict) else None
    if version != 3:
        raise WeftError(f"zarr.json is not of Zarr v3: zarr_format is {version!r}")
    if data.get("node_type") != "array":
        raise WeftError(f"zarr.json describes a {data.get('node_type')!r}, not an array")
    if data.get("storage_transformers"):
        raise WeftError(f"storage_transformers: {data['storage_transformers']!r} is not supported")
    dtype = _parse_data_type(data.get("data_type"), "data_type")
    try:
        fill = write_fill(dtype, data.get("fill_value"))
        read_fill(dtype, data.get("fill_value"))  # stricter: a number is not a boolean
    except WeftError as error:
        raise error.at("fill_value") from None
    shape = parse_point(data.get("shape"), "shape")
    check_rank(shape)
    grid = _parse_one_of(data, "chunk_grid", "regular")[1]
    shards = parse_point(grid.get("chunk_shape"), "chunk_grid.configuration.chunk_shape")
    check_grid(shape, shards)
    codecs = _parse_list(data.get("codecs"), "codecs")
    sharding = _parse_sharding(codecs, shape, shards)
    if sharding.is_sharded:
        codecs = _parse_list(codecs[0][1].get("codecs"), "codecs[0].configuration.codecs")
    order, endian, chain = _parse_chain(codecs, sharding.chunks, dtype)
    return Metadata(
        shape,
        dtype,
        sharding.chunks,
        shards,
        chain,
        fill,
        order,
        endian,
        sharding.location,
        _parse_names(data.get("dimension_names"), len(shape)),
        FrozenMap(_parse_attributes(data).items()),
        sharding.is_sharded,
        _parse_keys(data),
        sharding.has_checksum,
        sharding.index_endian,
        FrozenMap(_parse_extensions(data)),
    )


class _Sharding(NamedTuple):
    """The codec `sharding_indexed` of an array, or its absence."""

    chunks: Point
    is_sharded: bool = False
    location: str = "end"
    has_checksum: bool = True
    index_endian: str = "little"


def _parse_sharding(
    codecs: list[tuple[str, Mapping[str, Any]]], shape: Point, shards: Point
) -> _Sharding:
    names = [name for name, _ in codecs]
    if "sharding_indexed" not in names:
        return _Sharding(shards)
    if len(names) > 1:
        names.remove("sharding_indexed")
        raise WeftError(f"codecs: {names[0]!r} beside 'sharding_indexed' is not supported")
    options = codecs[0][1]
    chunks = parse_point(options.get("chunk_shape"), "codecs[0].configuration.chunk_shape")
    check_grid(shape, chunks)
    if any(s % c if c else s for s, c in zip(shards, chunks)):
        raise WeftError(f"chunks of {list(chunks)} do not fill shards of {list(shards)}")
    location = options.get("index_location", "end")
    if location not in ("start", "end"):
        raise WeftError(f"index_location: {location!r} is neither start nor end")
    index = _parse_list(options.get("index_codecs"), "index_codecs")
    names = [name for name, _ in index]
    if names not in (["bytes", "crc32c"], ["bytes"]):
        raise WeftError(f"index_codecs: bytes and crc32c are supported, got {names}")
    return _Sharding(chunks, True, location, len(names) > 1, _parse_endian(index[0][1]))


_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")


def _parse_data_type(given: Any, path: str, depth: int = 0) -> str:
    """Return the name of a data type of Zarr v3 or of one that others add to it."""
    name, options = _parse_named(given, path)
    if name in NAMES or (name == TEXT and not depth):
        return name
    size = options.get("length_bytes")
    kinds = {"null_terminated_bytes": "|S{}", "raw_bytes": "|V{}", "fixed_length_utf32": "<U{}"}
    if name in kinds and type(size) is int and size > 0:
        if name == "fixed_length_utf32" and size % 4:
            raise WeftError(f"{path}: {size} B are not whole characters of 4 B")
        count = size // 4 if name == "fixed_length_utf32" else size
        return dtype_name(foreign_dtype(kinds[name].format(count)))
    if name in ("numpy.datetime64", "numpy.timedelta64"):
        unit, count = options.get("unit"), options.get("scale_factor", 1)
        if unit not in _UNITS or type(count) is not int or not 0 < count < 1 << 31:
            raise WeftError(f"{path}: {unit!r} and {count!r} are not a unit and its factor")
        kind = "<M8" if name == "numpy.datetime64" else "<m8"
        unit = "us" if unit == "μs" else unit
        return dtype_name(foreign_dtype(kind if unit == "generic" else f"{kind}[{count}{unit}]"))
    if name.startswith("r") and name[1:].isdecimal() and len(name) < 12:
        bits = int(name[1:])
        if bits and bits % 8 == 0:
            return dtype_name(foreign_dtype(f"|V{bits // 8}"))
    if name in ("structured", "struct") and depth < 8:
        return dtype_name(foreign_dtype(_parse_fields(options.get("fields"), path, depth)))
    raise WeftError(f"{path}: {given!r} is not supported", hint=", ".join(NAMES))


def _parse_fields(given: Any, path: str, depth: int) -> list[list[Any]]:
    """Return the fields of a record, as Zarr v2 lists them."""
    if not isinstance(given, list) or not given:
        raise WeftError(f"{path}.configuration.fields: expected a list of fields, got {given!r}")
    fields = []
    for number, each in enumerate(given):
        where = f"{path}.configuration.fields[{number}]"
        if isinstance(each, dict):
            each = [each.get("name"), each.get("data_type")]  # noqa: PLW2901 - the other spelling
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            raise WeftError(f"{where}: expected a name and a data type, got {each!r}")
        dtype = numpy_dtype(_parse_data_type(each[1], where, depth + 1))
        inner = dtype_name(dtype)
        fields.append([each[0], json.loads(inner) if dtype.names is not None else dtype.str])
    return fields


def _parse_chain(
    codecs: Sequence[tuple[str, Mapping[str, Any]]], chunks: Point, dtype: str
) -> tuple[Point, str, tuple[Codec, ...]]:
    """Return the storage order, the endianness, and the codecs from bytes to bytes.

    Filters are codecs from bytes to bytes too, once elements are in storage order.
    """
    names = [name for name, _ in codecs]
    first = "vlen-utf8" if dtype == TEXT else "bytes"
    for number, name in enumerate(names):
        if name not in (first, "transpose") and _short(name) is None:
            raise WeftError(f"codecs[{number}]: the codec {name!r} is not supported")
    if first not in names:
        raise WeftError(f"codecs: {first!r} is missing")
    middle = names.index(first)
    order, filters = _parse_filters(codecs[:middle], chunks, numpy_dtype(dtype))
    endian = _parse_endian(codecs[middle][1])
    chain = _stored_order(filters, endian)
    if dtype == TEXT:
        if filters:
            raise WeftError("codecs: filters of texts are not supported")
        chain = [VlenText()]
    for number, (name, options) in enumerate(codecs[middle + 1 :], middle + 1):
        path, short = f"codecs[{number}]", _short(name)
        if short is None or short in ARRAY_FILTERS:
            raise _out_of_order(number, name)
        if short in READ_ONLY and name != "crc32c":
            chain.append(read_filter(short, options, path, dtype=numpy_dtype(dtype)))
        else:
            chain.append(codec_of(short, options, path))
    return order, endian, tuple(chain)


def _parse_filters(
    codecs: Sequence[tuple[str, Mapping[str, Any]]], chunks: Point, dtype: np.dtype[Any]
) -> tuple[Point, list[Codec]]:
    """Return the storage order of a chunk, and its filters."""
    order, filters, shape = Point(), list[Codec](), chunks
    for number, (name, options) in enumerate(codecs):
        path, short = f"codecs[{number}]", _short(name)
        if name == "transpose":
            then = _parse_order(options.get("order"), len(shape), path)
            if filters:
                filters.append(Reorder(shape, then, dtype.itemsize))
            else:
                order = tuple(order[dim] for dim in then) if order else then
            shape = tuple(shape[dim] for dim in then)
        elif short is None or short not in ARRAY_FILTERS:
            raise _out_of_order(number, name)
        else:
            codec = read_filter(short, options, path, dtype=dtype, is_native=True)
            filters.append(codec)
            dtype = np.dtype(codec.encoded or dtype).newbyteorder("=")
            if short == "packbits":
                shape = (1 + -(-prod(shape) // 8),)
    return order, filters


def _short(name: str) -> str | None:
    """Return the name of a codec without the prefix that others give it; None if unknown."""
    if name in CODECS:
        return name
    short = name.removeprefix("numcodecs.")
    return short if short != name and (short in CODECS or short in READ_ONLY) else None


def _out_of_order(number: int, name: str) -> WeftError:
    return WeftError(
        f"codecs[{number}]: {name!r} is out of order: transpose comes first, then bytes, "
        f"then others"
    )


def _stored_order(chain: list[Codec], endian: str) -> list[Codec]:
    """Return filters so that the last reads elements in the byte order of `bytes`."""
    for place in range(len(chain) - 1, -1, -1):
        codec = chain[place]
        if isinstance(codec, Filter) and codec.encoded:
            stored = np.dtype(codec.encoded).newbyteorder(">" if endian == "big" else "<")
            chain[place] = replace(codec, encoded=stored.str)
            return chain
    return chain


def _parse_one_of(
    data: Mapping[str, Any], field: str, *names: str
) -> tuple[str, Mapping[str, Any]]:
    name, options = _parse_named(data.get(field), field)
    if name not in names:
        known = " and ".join(map(repr, names))
        raise WeftError(f"{field}: {known} can be read, got {name!r}")
    return name, options


def _parse_keys(data: Mapping[str, Any]) -> KeyEncoding:
    name, options = _parse_one_of(data, "chunk_key_encoding", "default", "v2")
    separator = options.get("separator", "/" if name == "default" else ".")
    if separator not in ("/", "."):
        raise WeftError(f"chunk_key_encoding: the separator is '/' or '.', got {separator!r}")
    return KeyEncoding("v2" if name == "v2" else "default", separator)


def _parse_names(names: Any, rank: int) -> tuple[str | None, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != rank:
        raise WeftError(f"dimension_names: expected {rank} names, got {names!r}")
    if not all(name is None or isinstance(name, str) for name in names):
        raise WeftError(f"dimension_names: a name is text or null, got {names!r}")
    return tuple(names)


def _parse_attributes(data: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = data.get("attributes", {})
    if not isinstance(attributes, dict):
        raise WeftError(f"attributes: expected an object, got {attributes!r}")
    return attributes


def _parse_extensions(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return fields outside the specification, which must say that they can be ignored."""
    more = [(name, value) for name, value in data.items() if name not in _FIELDS]
    for name, value in more:
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            raise WeftError(
                f"{name}: unknown field, which may not be ignored without must_understand: false"
            )
    return more


def _parse_list(given: Any, field: str) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(given, list) or not given:
        raise WeftError(f"{field}: expected a list of codecs, got {given!r}")
    return [_parse_named(value, f"{field}[{number}]") for number, value in enumerate(given)]


def _parse_named(value: Any, field: str) -> tuple[str, Mapping[str, Any]]:
    """Return a name and its configuration; a name alone may stand for both."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise WeftError(f"{field}: expected a name and its configuration, got {value!r}")
    options = value.get("configuration") or {}
    if not isinstance(options, dict):
        raise WeftError(f"{field}.configuration: expected an object, got {options!r}")
    return value["name"], options


def _parse_endian(options: Mapping[str, Any]) -> str:
    endian = options.get("endian", "little")
    if endian not in ("little", "big"):
        raise WeftError(f"bytes: endian is little or big, got {endian!r}")
    return str(endian)


def _parse_order(given: Any, rank: int, path: str) -> Point:
    if given in ("C", "F"):
        return tuple(range(rank))[:: 1 if given == "C" else -1]
    order = parse_point(given, f"{path}.configuration.order")
    if sorted(order) != list(range(rank)):
        raise WeftError(f"{path}: {list(order)} is not a permutation of {rank} dimensions")
    return order


def parse_point(value: Any, field: str) -> Point:
    """Return the integers of a list, each from 0 on."""
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise WeftError(f"{field}: expected integers from 0 on, got {value!r}")
    if value and max(value) > MAX_SIZE:
        raise WeftError(f"{field}: {max(value)} is more than {MAX_SIZE}")
    return tuple(value)


def check_rank(shape: Point) -> Point:
    """Return the shape of an array, or refuse one of too many dimensions."""
    if len(shape) > MAX_DIMS:
        raise WeftError(f"shape: {len(shape)} dimensions; at most {MAX_DIMS} are read")
    return shape


def check_grid(shape: Point, grid: Point) -> None:
    """Refuse chunks that do not cut a shape."""
    if len(grid) != len(shape):
        raise WeftError(f"shape has rank {len(shape)} and chunk_shape rank {len(grid)}")
    for dim, (n, c) in enumerate(zip(shape, grid)):
        if n and not c:  # some write 0 where the array has no elements
            raise WeftError(f"dimension {dim} of size {n} is cut into chunks of 0")


# -- shapes of new arrays


def check_shapes(
    shape: Sequence[int | None],
    chunks: Sequence[int],
    shards: Sequence[int] | None,
    append_dim: int = 0,
) -> tuple[tuple[int | None, ...], Point, Point]:
    """Return the shape, chunks and shards of a new array; refuse what does not fit together.

    Without shards, each has one chunk.

    >>> check_shapes((None, 100), (4, 10), (8, 40))
    ((None, 100), (4, 10), (8, 40))
    """
    shards = chunks if shards is None else shards
    for what, given in (("shape", shape), ("chunks", chunks), ("shards", shards)):
        check_list(given, what)
    size = tuple(None if n is None else _as_size(n) for n in shape)
    small, large = tuple(map(_as_size, chunks)), tuple(map(_as_size, shards))
    if not len(size) == len(small) == len(large) or not size:
        raise WeftError(
            f"shape, chunks and shards must have one rank, from 1 on: {list(size)}, "
            f"{list(small)}, {list(large)}"
        )
    for dim, (n, c, s) in enumerate(zip(size, small, large)):
        if c < 1 or s < 1:
            raise WeftError(f"dimension {dim}: chunks of {c} do not fill shards of {s}")
        if s % c:
            raise WeftError(
                f"dimension {dim}: chunks of {c} do not fill shards of {s}",
                hint=f"shards of {[_nearest_multiple(*pair) for pair in zip(large, small)]} or "
                f"chunks of {[_nearest_divisor(*pair) for pair in zip(small, large)]} would fit",
            )
        if n is None and append_dim < 0:
            raise WeftError(f"dimension {dim} has no size")
        if n is None and dim != append_dim:
            raise WeftError(
                f"dimension {dim} cannot be unbounded: only {append_dim}, which is appended to"
            )
        if n is not None and n < 0:
            raise WeftError(f"dimension {dim} has the size {n}")
    for what, sizes in (("shape", size), ("chunks", small), ("shards", large)):
        if prod(max(1, n or 0) for n in sizes) > MAX_ELEMENTS:
            shown = ["…" if n is None else n for n in sizes]
            raise WeftError(f"{what} of {shown} has more than {MAX_ELEMENTS} elements")
    return size, small, large


def _nearest_multiple(size: int, of: int) -> int:
    """Return the multiple of a positive size that is nearest, and at least once.

    >>> _nearest_multiple(100, 32), _nearest_multiple(5, 32)
    (96, 32)
    """
    return max(1, (2 * size + of) // (2 * of)) * of if of > 0 else size


def _nearest_divisor(size: int, of: int) -> int:
    """Return the divisor that is nearest; 1 where that would take long to find.

    >>> _nearest_divisor(32, 100), _nearest_divisor(7, 16)
    (25, 8)
    """
    if not 0 < of < _MAX_DIVIDED:
        return 1
    low = (n for n in range(1, isqrt(of) + 1) if of % n == 0)
    return min((d for n in low for d in (n, of // n)), key=lambda d: (abs(d - size), -d))


def _as_size(n: Any) -> int:
    try:
        return index(n)
    except TypeError:
        raise WeftError(f"a size must be an integer, got {n!r}") from None
