"""Zarr v2: the `.zarray` of an array as `Metadata`. Arrays of version 2 are read, and not written.

A chunk of v2 is a chunk of v3: its filters and its compressor are codecs from bytes to bytes, in
that order, and `order: "F"` is a transposition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.codecs import Codec, Crc32c, codec_of
from weft.store.dtypes import TEXT, dtype_name, foreign_dtype, numpy_dtype, read_fill, zero_fill
from weft.store.filters import READ_ONLY, VlenText, read_filter
from weft.store.metadata import KeyEncoding, Metadata, check_grid, check_rank, parse_point
from weft.values import FrozenMap

_OURS = ("zstd", "gzip", "blosc", "lz4")
"""The codecs of v2 whose frames are those of v3."""

_MAX_CODECS = 32


def parse_array(data: Any, attributes: Mapping[str, Any]) -> Metadata:
    """Return the metadata of an array from its `.zarray` and `.zattrs`; refuse what is not read.

    >>> text = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<u2", "order": "C",
    ...         "compressor": None, "filters": None, "fill_value": None}
    >>> metadata = parse_array(text, {})
    >>> metadata.dtype, metadata.key((1,)), metadata.fill
    ('uint16', '1', np.uint16(0))
    """
    version = data.get("zarr_format") if isinstance(data, dict) else None
    if version != 2:
        raise WeftError(f"zarr_format: expected 2, got {version!r}")
    dtype = _dtype(data)
    name = dtype_name(dtype) if data.get("dtype") != "bfloat16" else "bfloat16"
    shape = check_rank(parse_point(data.get("shape"), "shape"))
    chunks = parse_point(data.get("chunks"), "chunks")
    check_grid(shape, chunks)
    order = data.get("order", "C")
    if order not in ("C", "F"):
        raise WeftError(f"order: expected 'C' or 'F', got {order!r}")
    separator = data.get("dimension_separator", ".")
    if separator not in (".", "/"):
        raise WeftError(f"dimension_separator: expected '.' or '/', got {separator!r}")
    return Metadata(
        shape,
        name,
        chunks,
        chunks,
        (*_filters(data.get("filters")), *_compressor(data.get("compressor"))),
        _fill(name, dtype, data.get("fill_value")),
        tuple(reversed(range(len(shape)))) if order == "F" else (),
        attributes=FrozenMap(attributes.items()),
        dimension_names=_dimension_names(attributes, len(shape)),
        is_sharded=False,
        keys=KeyEncoding("v2", separator),
        zarr_format=2,
    )


def _dtype(data: Mapping[str, Any]) -> np.dtype[Any]:
    given, filters = data.get("dtype"), data.get("filters")
    first = filters[0] if isinstance(filters, list) and filters else None
    if given == "|O" and isinstance(first, dict) and first.get("id") == VlenText.name:
        return numpy_dtype(TEXT)
    if given == "bfloat16":  # as tensorstore writes it
        return np.dtype("<u2")
    try:
        return foreign_dtype(given)
    except WeftError as error:
        raise error.at("dtype") from None


def _fill(name: str, dtype: np.dtype[Any], given: Any) -> Any:
    """Return a fill value as v3 writes it; none counts as zeros, as other readers take it."""
    if given is None:
        return zero_fill(dtype)
    value = bool(given) if dtype.kind == "b" and given in (0, 1) else given
    if dtype.kind == "S" and given in (0, ""):
        value = ""
    if dtype.kind in "UT" and given == 0:
        value = ""
    if dtype.kind == "V" and given in (0, ""):
        value = zero_fill(dtype)
    if dtype.kind == "c" and type(given) in (int, float):
        value = [given, 0]
    try:
        read_fill(name, value)
    except WeftError as error:
        raise error.at("fill_value") from None
    return value


def _filters(given: Any) -> list[Codec]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > _MAX_CODECS:
        raise WeftError(f"filters: expected a list of codecs, got {given!r}")
    return [_codec(each, f"filters[{number}]") for number, each in enumerate(given)]


def _compressor(given: Any) -> list[Codec]:
    return [] if given is None else [_codec(given, "compressor")]


def _codec(given: Any, path: str) -> Codec:
    """Return a codec from its dictionary; an `id` names it."""
    if not isinstance(given, dict) or not isinstance(given.get("id"), str):
        raise WeftError(f"{path}: expected a codec with its id, got {given!r}")
    name, options = given["id"], {key: value for key, value in given.items() if key != "id"}
    if name in _OURS:
        return codec_of(name, options, path)
    if name == VlenText.name and path == "filters[0]":
        return VlenText()
    if name == "crc32c" and options.get("location", "end") == "end":
        return Crc32c()
    if name not in READ_ONLY:
        raise WeftError(f"{path}: the codec {name!r} is not supported")
    return read_filter(name, options, path)


def _dimension_names(attributes: Mapping[str, Any], rank: int) -> tuple[str | None, ...] | None:
    """Return the names that xarray stores as an attribute, where there are some."""
    names = attributes.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list) or len(names) != rank:
        return None
    return tuple(names) if all(isinstance(name, str) for name in names) else None
