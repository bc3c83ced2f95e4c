"""The nodes of a Zarr hierarchy by URL: sinks, groups and their attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from weft.errors import WeftError
from weft.store.files import Folder
from weft.store.metadata import MAX_BYTES, fetch_metadata
from weft.store.sink import Sink, Url

_OME_KINDS = {
    "multiscales": "image",
    "well": "well",
    "plate": "plate",
    "labels": "labels",
    "bioformats2raw.layout": "collection",
}
"""The kinds of groups, by the field of their metadata that tells."""


def sink_of(
    url: Url | Sink, *, options: Mapping[str, Any] | None = None, fsync: bool = False
) -> Sink:
    """Return the sink of a path or URL, or the sink that is given.

    >>> sink_of("here/a.zarr").url
    'here/a.zarr'
    """
    if not isinstance(url, str | PathLike):
        return url
    text = fspath(url)
    parts = urlsplit(text)
    if parts.scheme in ("", "file") or len(parts.scheme) == 1:  # one letter is a drive
        return Folder(Path(unquote(parts.path) if parts.scheme == "file" else text), fsync)
    objects: Any = import_module("weft.store.objects.sink")  # needs obstore
    sink: Sink = objects.ObjectSink.of(text, options or {})
    return sink


def joined(url: Url, *names: str) -> str:
    """Return the URL of a member of a group.

    >>> joined("plate.zarr/", "A", "1")
    'plate.zarr/A/1'
    """
    return "/".join([fspath(url).rstrip("/"), *names])


class ZarrNode(NamedTuple):
    """An array or a group as its `zarr.json` describes it."""

    kind: str
    """array, image, well, plate, collection (of images), labels, or group."""
    text: bytes
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kind with its article."""
        return f"{'an' if self.kind in ('array', 'image') else 'a'} {self.kind}"

    @property
    def ome(self) -> Mapping[str, Any]:
        """The metadata of OME-NGFF, empty where there are none."""
        return ome_of(as_mapping(self.data.get("attributes"))) or {}


def read_node(sink: Sink) -> ZarrNode | None:
    """Return the node at a sink; None where there is no `zarr.json`."""
    fetched = sink.fetch("zarr.json", 0, MAX_BYTES + 1)
    if fetched is None:
        return None
    node = parse_node(bytes(fetched.data))
    if node is None:
        raise WeftError(
            f"{sink.url} holds a zarr.json that describes no Zarr v3 array or group",
            hint="remove it yourself, or choose another place",
        )
    return node


def parse_node(text: bytes) -> ZarrNode | None:
    """Return the node that the text of a `zarr.json` describes; None if it describes none."""
    try:
        data = json.loads(text) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("zarr_format") != 3:
        return None
    if data.get("node_type") != "group":
        return ZarrNode("array", text, data) if data.get("node_type") == "array" else None
    group = ZarrNode("group", text, data)
    kind = next((kind for key, kind in _OME_KINDS.items() if key in group.ome), "group")
    return group._replace(kind=kind)


def group_json(attributes: Mapping[str, Any]) -> bytes:
    """Return the `zarr.json` of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    return json.dumps(document, indent=2).encode()


def write_group(sink: Sink, attributes: Mapping[str, Any]) -> None:
    """Write the attributes of a group, new or existing, atomically."""
    sink.put("zarr.json", group_json(attributes))


def read_group(sink: Sink) -> Mapping[str, Any]:
    """Return the attributes of a group."""
    try:
        data = json.loads(fetch_metadata(sink, "group"))
    except (ValueError, RecursionError) as error:
        raise WeftError(f"{sink.url}: zarr.json is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("zarr_format") != 3:
        raise WeftError(f"{sink.url}: zarr.json is not of Zarr v3: zarr_format must be 3")
    if data.get("node_type") != "group":
        raise WeftError(f"{sink.url} is a Zarr {data.get('node_type')!r}, not a group")
    attributes = data.get("attributes", {})
    if not isinstance(attributes, dict):
        raise WeftError(f"{sink.url}: attributes: expected an object, got {attributes!r}")
    return attributes


def ome_of(attributes: Mapping[str, Any]) -> Any:
    """Return the metadata of OME-NGFF among the attributes of a group; None if there are none.

    They are the attribute "ome". A plate or a collection without images keeps them in "weft" until
    it has one: OME-NGFF requires one.
    """
    if "ome" in attributes:
        return attributes["ome"]
    return as_mapping(attributes.get("weft")).get("ome")


def pending(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a group that has no image yet, as OME-NGFF requires one."""
    others = {key: value for key, value in document.items() if key != "ome"}
    return others | {"weft": {**others.get("weft", {}), "ome": document["ome"]}}


def not_pending(attributes: dict[str, Any]) -> None:
    """Move the metadata of a group to their place, now that it has an image."""
    if "ome" not in attributes:
        attributes["ome"] = attributes["weft"].pop("ome")
        if not attributes["weft"]:
            del attributes["weft"]


def read_ome(sink: Sink) -> Any:
    """Return the metadata of OME-NGFF of a group."""
    ome = ome_of(read_group(sink))
    if ome is None:
        raise WeftError(f"{sink.url} is not an OME-NGFF group: it has no attribute 'ome'")
    return ome


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}
