"""`sink_of`: what a path or an address means.

Zarr groups: the attributes above arrays, written at once and read with care.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from weft.errors import WeftError
from weft.store.files import Folder
from weft.store.metadata import MOST
from weft.store.sink import Sink, Url


def sink_of(
    url: Url | Sink, *, options: Mapping[str, Any] | None = None, fsync: bool = False
) -> Sink:
    """The sink of a path or an address, or one that is given.

    >>> sink_of("here/a.zarr").url
    'here/a.zarr'
    """
    if not isinstance(url, str | PathLike):
        return url
    text = fspath(url)
    parts = urlsplit(text)
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:  # one letter is a drive
        return Folder(Path(unquote(parts.path) if parts.scheme == "file" else text), fsync)
    made: Sink = import_module("weft.store.objects.sink").Objects.of(text, options or {})
    return made


def joined(url: Url, *names: str) -> str:
    """The address of something in a group.

    >>> joined("plate.zarr/", "A", "1")
    'plate.zarr/A/1'
    """
    return "/".join([fspath(url).rstrip("/"), *names])


def group_text(attributes: Mapping[str, Any]) -> bytes:
    """The `zarr.json` of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    return json.dumps(document, indent=2).encode()


def write_group(sink: Sink, attributes: Mapping[str, Any]) -> None:
    """Write the attributes of a group, new or in place of others, at once."""
    sink.put("zarr.json", group_text(attributes))


def read_group(sink: Sink) -> Mapping[str, Any]:
    """The attributes of a group."""
    found = sink.fetch("zarr.json", 0, MOST)
    if found is None:
        raise WeftError(f"{sink.url} holds no Zarr v3 group: there is no zarr.json")
    if found.size > MOST:
        raise WeftError(f"{sink.url}: zarr.json has {found.size} B; at most {MOST} are read")
    try:
        data = json.loads(bytes(found.data))
    except (ValueError, RecursionError) as error:
        raise WeftError(f"{sink.url}: zarr.json is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("zarr_format") != 3:
        raise WeftError(f"{sink.url}: zarr.json is not of Zarr v3: zarr_format must be 3")
    if data.get("node_type") != "group":
        raise WeftError(f"{sink.url} is a Zarr {data.get('node_type')!r}, and no group")
    attributes = data.get("attributes", {})
    if not isinstance(attributes, dict):
        raise WeftError(f"{sink.url}: attributes: {attributes!r} is no object")
    return attributes


def read_ome(sink: Sink) -> Any:
    """What a group says under `ome`."""
    attributes = read_group(sink)
    if "ome" not in attributes:
        raise WeftError(f"{sink.url} is no OME-NGFF group: it has no attribute 'ome'")
    return attributes["ome"]
