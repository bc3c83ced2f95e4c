"""`Metadata`: what the `zarr.json` of a sharded array says, written and read with care."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import WeftError
from weft.store.codecs import Blosc, Codec, Crc32c, Gzip, Lz4, Zstd
from weft.store.dtypes import as_dtype, read_fill, write_fill
from weft.values import FrozenMap, Point

_CODECS: dict[str, type[Any]] = {kind.name: kind for kind in (Zstd, Gzip, Blosc, Lz4, Crc32c)} | {
    "lz4": Lz4
}

MOST = 1 << 26
"""The most bytes of metadata that are read."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """An array as Zarr v3 describes it: a regular grid of shards, each a regular grid of chunks.

    `order` is the order in which the dimensions of a chunk are stored, as `transpose` has it.
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

    @property
    def fill(self) -> Any:
        """The fill value, a scalar of the data type's width."""
        return read_fill(self.dtype, self.fill_value)

    def key(self, shard: Point) -> str:
        """The key of a shard."""
        return "/".join(["c", *map(str, shard)])

    def to_json(self) -> str:
        """The text of `zarr.json`."""
        array: list[Any] = [{"name": "bytes", "configuration": {"endian": self.endian}}]
        if as_dtype(self.dtype)[1].itemsize == 1:
            array = [{"name": "bytes"}]
        before = [{"name": "transpose", "configuration": {"order": list(self.order)}}]
        inner = [*(before if self.order else []), *array, *map(_write_codec, self.codecs)]
        outer: list[Any] = inner
        if self.is_sharded:
            index = [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ]
            configuration = {
                "chunk_shape": list(self.chunks),
                "codecs": inner,
                "index_codecs": index,
                "index_location": self.index_location,
            }
            outer = [{"name": "sharding_indexed", "configuration": configuration}]
        data: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(self.shards)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill_value,
            "codecs": outer,
            "attributes": dict(self.attributes),
        }
        if self.dimension_names is not None:
            data["dimension_names"] = list(self.dimension_names)
        return json.dumps(data, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Metadata:
        """Read what `zarr.json` says; what cannot be read here is refused by name."""
        if len(text) > MOST:
            raise WeftError(f"zarr.json has {len(text)} characters; at most {MOST} are read")
        try:
            data = json.loads(text)
        except ValueError as error:
            raise WeftError(f"zarr.json is no JSON: {error}") from None
        return _Reader(data).metadata()


def _write_codec(codec: Codec) -> dict[str, Any]:
    said = codec.configuration
    return {"name": codec.name, "configuration": said} if said else {"name": codec.name}


class _Reader:
    """Reads metadata field by field."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("zarr_format") != 3:
            raise WeftError("zarr.json is not of Zarr v3: zarr_format must be 3")
        if data.get("node_type") != "array":
            raise WeftError(f"zarr.json describes a {data.get('node_type')!r}, and no array")
        self.data = data

    def metadata(self) -> Metadata:
        data = self.data
        dtype, _ = as_dtype(self._text("data_type"))
        shape = _point(data.get("shape"), "shape", 0)
        grid = self._named("chunk_grid", "regular")
        shards = _point(grid.get("chunk_shape"), "chunk_grid.configuration.chunk_shape", 1)
        if len(shards) != len(shape):
            raise WeftError(f"shape has rank {len(shape)} and chunk_shape rank {len(shards)}")
        keys = self._named("chunk_key_encoding", "default")
        if keys.get("separator", "/") != "/":
            raise WeftError("chunk_key_encoding: only the separator '/' is read")
        codecs, chunks, location, sharded = self._codecs(shards)
        inner = _Chain(codecs, len(shape))
        names = data.get("dimension_names")
        return Metadata(
            shape,
            dtype,
            chunks,
            shards,
            inner.codecs,
            write_fill(dtype, data.get("fill_value")),
            inner.order,
            inner.endian,
            location,
            tuple(names) if isinstance(names, list) else None,
            FrozenMap((data.get("attributes") or {}).items()),
            sharded,
        )

    def _text(self, field: str) -> str:
        value = self.data.get(field)
        if not isinstance(value, str):
            raise WeftError(f"{field}: {value!r} is not read here")
        return value

    def _named(self, field: str, name: str) -> Mapping[str, Any]:
        value = self.data.get(field)
        if not isinstance(value, dict) or value.get("name") != name:
            raise WeftError(f"{field}: only {name!r} is read, got {value!r}")
        said = value.get("configuration", {})
        return said if isinstance(said, dict) else {}

    def _codecs(self, shards: Point) -> tuple[Any, Point, str, bool]:
        codecs = self.data.get("codecs")
        if not isinstance(codecs, list) or not codecs:
            raise WeftError(f"codecs: a list of codecs is wanted, got {codecs!r}")
        first = codecs[0]
        if not isinstance(first, dict) or first.get("name") != "sharding_indexed":
            return codecs, shards, "end", False
        if len(codecs) > 1:
            raise WeftError("codecs: nothing may stand behind sharding_indexed here")
        said = first.get("configuration") or {}
        chunks = _point(said.get("chunk_shape"), "codecs[0].configuration.chunk_shape", 1)
        if len(chunks) != len(shards) or any(s % c for s, c in zip(shards, chunks)):
            raise WeftError(f"chunks of {list(chunks)} do not fill shards of {list(shards)}")
        index = [c.get("name") for c in said.get("index_codecs", []) if isinstance(c, dict)]
        if index not in (["bytes", "crc32c"], ["bytes"]):
            raise WeftError(f"index_codecs: bytes and crc32c are read, got {index}")
        if index == ["bytes"]:
            raise WeftError("index_codecs: an index without a checksum is not read here")
        location = said.get("index_location", "end")
        if location not in ("start", "end"):
            raise WeftError(f"index_location: {location!r} is neither start nor end")
        return said.get("codecs"), chunks, location, True


class _Chain:
    """The codecs of a chunk: an order, an endianness, and what makes bytes of bytes."""

    def __init__(self, given: Any, rank: int) -> None:
        self.order: Point = ()
        self.endian = "little"
        found: list[Codec] = []
        for number, codec in enumerate(given if isinstance(given, list) else []):
            path = f"codecs[{number}]"
            if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
                raise WeftError(f"{path}: {codec!r} is no codec")
            name, said = codec["name"], codec.get("configuration") or {}
            if name == "transpose":
                self.order = _point(said.get("order"), f"{path}.configuration.order", 0)
                if sorted(self.order) != list(range(rank)):
                    raise WeftError(f"{path}: {list(self.order)} is no order of {rank} dimensions")
            elif name == "bytes":
                self.endian = said.get("endian", "little")
            elif name in _CODECS:
                kind = _CODECS[name]
                known = kind.__dataclass_fields__
                found.append(kind(**{k: v for k, v in said.items() if k in known}))
            else:
                raise WeftError(f"{path}: the codec {name!r} is not read here")
        self.codecs = tuple(found)


def _point(value: Any, what: str, least: int) -> Point:
    if not isinstance(value, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= least for n in value
    ):
        raise WeftError(f"{what}: whole numbers from {least} on are wanted, got {value!r}")
    return tuple(value)


def checked(
    shape: Sequence[int | None], chunks: Sequence[int], shards: Sequence[int], append_dim: int = 0
) -> tuple[tuple[int | None, ...], Point, Point]:
    """Shape, chunks and shards that go together.

    >>> checked((None, 100), (4, 10), (8, 40))
    ((None, 100), (4, 10), (8, 40))
    """
    size, small, large = tuple(shape), tuple(map(int, chunks)), tuple(map(int, shards))
    if not len(size) == len(small) == len(large) or not size:
        raise WeftError(
            f"shape, chunks and shards must have one rank, from 1 on: {list(size)}, "
            f"{list(small)}, {list(large)}"
        )
    for dim, (n, c, s) in enumerate(zip(size, small, large)):
        if c < 1 or s < 1 or s % c:
            raise WeftError(f"dimension {dim}: chunks of {c} do not fill shards of {s}")
        if n is None and dim != append_dim:
            raise WeftError(
                f"dimension {dim} cannot be unbounded: only {append_dim} can, to which is appended"
            )
        if n is not None and n < 0:
            raise WeftError(f"dimension {dim} has the size {n}")
    return size, small, large
