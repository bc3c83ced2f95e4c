"""`Keys`: what the shards of an array are called.

`Metadata`: what the `zarr.json` of a sharded array says, written and read with care.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, Literal

from weft.errors import WeftError
from weft.store.codecs import CODECS, Blosc, Codec, codec_of
from weft.store.dtypes import as_dtype, read_fill, write_fill
from weft.values import FrozenMap, Point, freeze

if TYPE_CHECKING:
    from weft.store.sink import Sink


@dataclass(frozen=True, slots=True)
class Keys:
    """How a key is made of the coordinates of a shard: as Zarr v3 does it, or as v2 did.

    >>> Keys().of((0, 12)), Keys("default", ".").of((0, 12)), Keys("v2", ".").of((0, 12))
    ('c/0/12', 'c.0.12', '0.12')
    >>> Keys().of(()), Keys("v2", ".").of(())
    ('c', '0')
    """

    name: Literal["default", "v2"] = "default"
    separator: Literal["/", "."] = "/"

    def of(self, shard: Point) -> str:
        """The key of a shard."""
        if self.name == "default":
            return self.separator.join(["c", *map(str, shard)])
        return self.separator.join(map(str, shard)) or "0"


_FIELDS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"),
    *("fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"),
}

_KEYS = Keys()

EVERY_SHARD = "every_shard_stored"
"""The field of the attribute "weft" which promises that shards of fill value are stored too."""

MOST = 1 << 24
"""The most bytes of metadata that are read; what they describe takes up to 20 times as many."""

MOST_DIMS = 64
"""The most dimensions of an array, as NumPy has it."""

MOST_SIZE = (1 << 63) - 1
"""The largest size of a dimension."""

_CLIPPED = 1000
"""Characters of a message that repeats what metadata say."""

MOST_ELEMENTS = 2**63 // 16 - 1
"""The most elements of an array, a chunk or a shard: readers count bytes in 64 bits."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """An array as Zarr v3 describes it: a regular grid of shards, each a regular grid of chunks.

    `order` is the order in which the dimensions of a chunk are stored, as `transpose` has it.

    >>> from weft.store.codecs import Zstd
    >>> said = Metadata((9, 9), "uint8", (2, 2), (4, 4), (Zstd(3),))
    >>> Metadata.from_json(said.to_json()) == said
    True
    """

    shape: Point
    dtype: str
    chunks: Point
    shards: Point
    codecs: tuple[Codec, ...] = ()
    fill_value: Any = 0
    """As metadata writes it; `fill` is the same as NumPy holds it."""
    order: Point = ()
    endian: str = "little"
    index_location: str = "end"
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = FrozenMap(())
    is_sharded: bool = True
    """Whether chunks lie in shards; else each chunk is a file, and a shard is one chunk."""
    keys: Keys = _KEYS
    has_checksum: bool = True
    """Whether a checksum stands behind the index of a shard."""
    index_endian: str = "little"
    extensions: Mapping[str, Any] = FrozenMap(())
    """Fields that others wrote and that need not be understood."""

    def __post_init__(self) -> None:
        width = as_dtype(self.dtype)[1].itemsize
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
        """The fill value, a scalar of the data type's width."""
        return read_fill(self.dtype, self.fill_value)

    @property
    def stores_every_shard(self) -> bool:
        """Whether a shard that is not there was lost or not written yet, and not left out.

        Arrays that Weft creates say so in their attributes. Others may leave out shards that are
        all fill value, and then nobody can tell.
        """
        own = self.attributes.get("weft")
        return isinstance(own, Mapping) and own.get(EVERY_SHARD) is True

    def key(self, shard: Point) -> str:
        """The key of a shard."""
        return self.keys.of(shard)

    @classmethod
    def load(cls, sink: Sink) -> Metadata:
        """What the `zarr.json` of a sink says."""
        found = sink.fetch("zarr.json", 0, MOST + 1)
        if found is None:
            older = [name for name in (".zarray", ".zgroup") if sink.fetch(name, 0, 1) is not None]
            if older:
                raise WeftError(
                    f"{sink.url} is of Zarr v2: there is a {older[0]}, and no zarr.json",
                    hint="zarr-python's `zarr migrate v3` brings it to v3",
                )
            raise WeftError(f"{sink.url} holds no Zarr v3 array: there is no zarr.json")
        if found.size > MOST:
            raise WeftError(f"{sink.url}: zarr.json has {found.size} B; at most {MOST} are read")
        try:
            return cls.from_json(bytes(found.data).decode())
        except WeftError as error:
            error.args = (f"{sink.url}: {error}",)
            raise
        except UnicodeDecodeError as error:
            raise WeftError(f"{sink.url}: zarr.json is no UTF-8: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        """Read what `zarr.json` says; what cannot be read here is refused by name."""
        if len(text) > MOST:
            raise WeftError(f"zarr.json has {len(text)} characters; at most {MOST} are read")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WeftError(f"zarr.json is no JSON: {error}") from None
        try:
            return _Reader(data).metadata()
        except WeftError as error:
            if len(str(error)) > _CLIPPED:
                error.args = (f"{str(error)[:_CLIPPED]}…",)
            raise
        except RecursionError:
            raise WeftError("zarr.json is nested too deeply") from None

    def to_json(self) -> str:
        """The text of `zarr.json`."""
        data: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": _named("regular", chunk_shape=list(self.shards)),
            "chunk_key_encoding": _named(self.keys.name, separator=self.keys.separator),
            "fill_value": self.fill_value,
            "codecs": [self._sharding()] if self.is_sharded else self._chain(),
            "attributes": dict(self.attributes),
        }
        if self.dimension_names is not None:
            data["dimension_names"] = list(self.dimension_names)
        return json.dumps(data | dict(self.extensions), indent=2)

    def _sharding(self) -> dict[str, Any]:
        index = [_named("bytes", endian=self.index_endian)]
        return _named(
            "sharding_indexed",
            chunk_shape=list(self.chunks),
            codecs=self._chain(),
            index_codecs=[*index, _named("crc32c")] if self.has_checksum else index,
            index_location=self.index_location,
        )

    def _chain(self) -> list[dict[str, Any]]:
        """The codecs of a chunk."""
        before = [_named("transpose", order=list(self.order))] if self.order else []
        wide = as_dtype(self.dtype)[1].itemsize > 1
        array = _named("bytes", endian=self.endian) if wide else _named("bytes")
        return [*before, array, *(_named(each.name, **each.configuration) for each in self.codecs)]


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


class _Reader:
    """Reads metadata field by field."""

    def __init__(self, data: Any) -> None:
        version = data.get("zarr_format") if isinstance(data, dict) else None
        if version != 3:
            raise WeftError(f"zarr.json is not of Zarr v3: zarr_format is {version!r}")
        if data.get("node_type") != "array":
            raise WeftError(f"zarr.json describes a {data.get('node_type')!r}, and no array")
        if data.get("storage_transformers"):
            raise WeftError(f"storage_transformers: {data['storage_transformers']!r} is not read")
        self.data = data

    def metadata(self) -> Metadata:
        data = self.data
        dtype, _ = as_dtype(_part(data.get("data_type"), "data_type")[0])
        fill = write_fill(dtype, data.get("fill_value"))
        read_fill(dtype, data.get("fill_value"))  # stricter: no number is a boolean
        shape = _point(data.get("shape"), "shape")
        if len(shape) > MOST_DIMS:
            raise WeftError(f"shape: {len(shape)} dimensions; at most {MOST_DIMS} are read")
        grid = self._one_of("chunk_grid", "regular")[1]
        shards = _point(grid.get("chunk_shape"), "chunk_grid.configuration.chunk_shape")
        _check_grid(shape, shards)
        codecs = _Codecs(data.get("codecs"), shape, shards)
        return Metadata(
            shape,
            dtype,
            codecs.chunks,
            shards,
            codecs.codecs,
            fill,
            codecs.order,
            codecs.endian,
            codecs.location,
            self._names(len(shape)),
            FrozenMap(self._attributes().items()),
            codecs.is_sharded,
            self._keys(),
            codecs.has_checksum,
            codecs.index_endian,
            FrozenMap(self._extensions()),
        )

    def _one_of(self, field: str, *names: str) -> tuple[str, Mapping[str, Any]]:
        name, said = _part(self.data.get(field), field)
        if name not in names:
            known = " and ".join(map(repr, names))
            raise WeftError(f"{field}: {known} can be read, got {name!r}")
        return name, said

    def _keys(self) -> Keys:
        name, said = self._one_of("chunk_key_encoding", "default", "v2")
        separator = said.get("separator", "/" if name == "default" else ".")
        if separator not in ("/", "."):
            raise WeftError(f"chunk_key_encoding: the separator is '/' or '.', got {separator!r}")
        return Keys("v2" if name == "v2" else "default", separator)

    def _names(self, rank: int) -> tuple[str | None, ...] | None:
        names = self.data.get("dimension_names")
        if names is None:
            return None
        if not isinstance(names, list) or len(names) != rank:
            raise WeftError(f"dimension_names: {rank} names are wanted, got {names!r}")
        if not all(name is None or isinstance(name, str) for name in names):
            raise WeftError(f"dimension_names: a name is text or null, got {names!r}")
        return tuple(names)

    def _attributes(self) -> Mapping[str, Any]:
        found = self.data.get("attributes", {})
        if not isinstance(found, dict):
            raise WeftError(f"attributes: an object is wanted, got {found!r}")
        return found

    def _extensions(self) -> list[tuple[str, Any]]:
        """Fields that are not of the specification; they must say that they can be ignored."""
        more = [(name, said) for name, said in self.data.items() if name not in _FIELDS]
        for name, said in more:
            if not isinstance(said, dict) or said.get("must_understand") is not False:
                raise WeftError(f"{name}: this field is not understood, and may matter")
        return more


class _Codecs:
    """The codecs of an array: a grid of chunks in each shard if there is one, and their chain."""

    def __init__(self, given: Any, shape: Point, shards: Point) -> None:
        self.chunks, self.is_sharded = shards, False
        self.location, self.has_checksum, self.index_endian = "end", True, "little"
        self.order: Point = ()
        self.endian = "little"
        found = _parts(given, "codecs")
        names = [name for name, _ in found]
        if "sharding_indexed" in names:
            if len(found) > 1:
                names.remove("sharding_indexed")
                raise WeftError(f"codecs: {names[0]!r} beside 'sharding_indexed' is not read here")
            self._open_shard(found[0][1], shape)
            found = _parts(found[0][1].get("codecs"), "codecs[0].configuration.codecs")
        self._read_chain(found, len(shape))

    def _open_shard(self, said: Mapping[str, Any], shape: Point) -> None:
        shards, what = self.chunks, "codecs[0].configuration.chunk_shape"
        self.is_sharded, self.chunks = True, _point(said.get("chunk_shape"), what)
        _check_grid(shape, self.chunks)
        if any(s % c if c else s for s, c in zip(shards, self.chunks)):
            raise WeftError(f"chunks of {list(self.chunks)} do not fill shards of {list(shards)}")
        self.location = said.get("index_location", "end")
        if self.location not in ("start", "end"):
            raise WeftError(f"index_location: {self.location!r} is neither start nor end")
        index = _parts(said.get("index_codecs"), "index_codecs")
        names = [name for name, _ in index]
        if names not in (["bytes", "crc32c"], ["bytes"]):
            raise WeftError(f"index_codecs: bytes and crc32c are read, got {names}")
        self.has_checksum, self.index_endian = len(names) > 1, _endian(index[0][1])

    def _read_chain(self, given: Sequence[tuple[str, Mapping[str, Any]]], rank: int) -> None:
        found: list[Codec] = []
        has_bytes = False
        for number, (name, said) in enumerate(given):
            path = f"codecs[{number}]"
            if name == "transpose" and not has_bytes:
                self.order = _after(self.order, _order(said.get("order"), rank, path))
            elif name == "bytes" and not has_bytes:
                has_bytes, self.endian = True, _endian(said)
            elif name in CODECS and has_bytes:
                found.append(codec_of(name, said, path))
            elif name in (*CODECS, "bytes", "transpose"):
                raise WeftError(f"{path}: {name!r} cannot stand here: transpose, bytes, others")
            else:
                raise WeftError(f"{path}: the codec {name!r} is not read here")
        if not has_bytes:
            raise WeftError("codecs: 'bytes' is missing")
        self.codecs = tuple(found)


def _parts(given: Any, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(given, list) or not given:
        raise WeftError(f"{what}: a list of codecs is wanted, got {given!r}")
    return [_part(value, f"{what}[{number}]") for number, value in enumerate(given)]


def _part(value: Any, what: str) -> tuple[str, Mapping[str, Any]]:
    """A name and what is said of it; a name alone may stand for both."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise WeftError(f"{what}: a name and its configuration are wanted, got {value!r}")
    said = value.get("configuration") or {}
    if not isinstance(said, dict):
        raise WeftError(f"{what}.configuration: an object is wanted, got {said!r}")
    return value["name"], said


def _endian(said: Mapping[str, Any]) -> str:
    found = said.get("endian", "little")
    if found not in ("little", "big"):
        raise WeftError(f"bytes: endian is little or big, got {found!r}")
    return str(found)


def _order(given: Any, rank: int, path: str) -> Point:
    if given in ("C", "F"):
        return tuple(range(rank))[:: 1 if given == "C" else -1]
    found = _point(given, f"{path}.configuration.order")
    if sorted(found) != list(range(rank)):
        raise WeftError(f"{path}: {list(found)} is no order of {rank} dimensions")
    return found


def _after(first: Point, then: Point) -> Point:
    """One order for two, one after the other."""
    return tuple(first[dim] for dim in then) if first else then


def _point(value: Any, what: str) -> Point:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise WeftError(f"{what}: whole numbers from 0 on are wanted, got {value!r}")
    if value and max(value) > MOST_SIZE:
        raise WeftError(f"{what}: {max(value)} is more than {MOST_SIZE}")
    return tuple(value)


def _check_grid(shape: Point, grid: Point) -> None:
    if len(grid) != len(shape):
        raise WeftError(f"shape has rank {len(shape)} and chunk_shape rank {len(grid)}")
    for dim, (n, c) in enumerate(zip(shape, grid)):
        if n and not c:  # some write 0 where the array has no elements
            raise WeftError(f"dimension {dim} of size {n} is cut into chunks of 0")


def checked(
    shape: Sequence[int | None], chunks: Sequence[int], shards: Sequence[int], append_dim: int = 0
) -> tuple[tuple[int | None, ...], Point, Point]:
    """Shape, chunks and shards that go together.

    >>> checked((None, 100), (4, 10), (8, 40))
    ((None, 100), (4, 10), (8, 40))
    """
    size = tuple(None if n is None else _whole(n) for n in shape)
    small, large = tuple(map(_whole, chunks)), tuple(map(_whole, shards))
    if not len(size) == len(small) == len(large) or not size:
        raise WeftError(
            f"shape, chunks and shards must have one rank, from 1 on: {list(size)}, "
            f"{list(small)}, {list(large)}"
        )
    for dim, (n, c, s) in enumerate(zip(size, small, large)):
        if c < 1 or s < 1 or s % c:
            raise WeftError(f"dimension {dim}: chunks of {c} do not fill shards of {s}")
        if n is None and append_dim < 0:
            raise WeftError(f"dimension {dim} has no size")
        if n is None and dim != append_dim:
            raise WeftError(
                f"dimension {dim} cannot be unbounded: only {append_dim} can, to which is appended"
            )
        if n is not None and n < 0:
            raise WeftError(f"dimension {dim} has the size {n}")
    for what, sizes in (("shape", size), ("chunks", small), ("shards", large)):
        if prod(max(1, n or 0) for n in sizes) > MOST_ELEMENTS:
            shown = ["…" if n is None else n for n in sizes]
            raise WeftError(f"{what} of {shown} has more than {MOST_ELEMENTS} elements")
    return size, small, large


def _whole(n: Any) -> int:
    try:
        return index(n)
    except TypeError:
        raise WeftError(f"a size is a whole number, got {n!r}") from None
