"""The nodes of a Zarr hierarchy by URL: sinks, groups and their attributes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from weft.errors import WeftError
from weft.store import zarr_v2
from weft.store.files import Folder
from weft.store.metadata import (
    MAX_BYTES,
    Metadata,
    check_written,
    checked,
    fetch_metadata,
    no_node,
)
from weft.store.sink import AccessDeniedError, Fetched, Sink, Url
from weft.store.zip_archive import ZipArchive, split_archive

_OME_KINDS = {
    "multiscales": "image",
    "well": "well",
    "plate": "plate",
    "labels": "labels",
    "bioformats2raw.layout": "collection",
}
"""The kinds of groups, by the field of their metadata that tells."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The start of a URL; anything else is a path, also with colons or a drive."""

_CHUNK = re.compile(r"\d+(\.\d+)+")
"""The name of a chunk of an array of several dimensions, beside its `.zarray`."""

UNREADABLE = "unreadable"
"""The kind of a member whose metadata cannot be read."""

MAX_IMPLIED = 4
"""The most folders without metadata inside one another that are taken for groups."""


def sink_of(
    url: Url | Sink, *, options: Mapping[str, Any] | None = None, fsync: bool = False
) -> Sink:
    """Return the sink of a path or URL, or the sink that is given.

    >>> sink_of("here/a.zarr").url
    'here/a.zarr'
    """
    if not isinstance(url, str | PathLike):
        if not hasattr(url, "fetch"):
            raise WeftError(f"expected a path, a URL or a Sink, got {url!r}")
        if options:
            raise WeftError(f"{url.url}: options are for a URL, and a store was given")
        return replace(url, fsync=True) if fsync and isinstance(url, Folder) else url
    text = fspath(url)
    if not text:
        raise WeftError("expected a path or a URL, got an empty text")
    parts = urlsplit(text if _URL.match(text) else "")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise WeftError(
            f"{text} is on the host {parts.netloc!r}, and files are read on this one",
            hint=f"a path is {parts.netloc}{parts.path}, or file:///… from the root on",
        )
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme == "file" else text)
        archive = split_archive(path)
        return Folder(path, fsync) if archive is None else ZipArchive(*archive, str(path))
    objects: Any = import_module("weft.store.objects.sink")  # needs obstore
    sink: Sink = objects.ObjectSink.of(text, options or {})
    return sink


def member_of(sink: Sink, path: str) -> Sink:
    """Return the sink of a member of a group.

    >>> member_of(sink_of("plate.zarr"), "A/1").url
    'plate.zarr/A/1'
    """
    for name in path.split("/"):
        sink = sink.below(name)
    return sink


class ZarrNode(NamedTuple):
    """An array or a group as its metadata describe it."""

    kind: str
    """array, image, well, plate, collection (of images), labels, group, or unreadable."""
    text: bytes
    data: Mapping[str, Any]
    """The document, with the attributes of `.zattrs` where it is of Zarr v2."""
    zarr_format: int = 3
    """The version of Zarr: 2 or 3."""

    @property
    def name(self) -> str:
        """The kind with its article."""
        return f"{'an' if self.kind in ('array', 'image') else 'a'} {self.kind}"

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes, empty where there are none."""
        return as_mapping(self.data.get("attributes"))

    @property
    def ome(self) -> Mapping[str, Any]:
        """The metadata of OME-NGFF, empty where there are none."""
        own = ome_v2 if self.zarr_format == 2 else ome_of
        return as_mapping(own(self.attributes))

    @property
    def consolidated(self) -> Mapping[str, Any] | None:
        """The documents of all members of a group by path, where its `zarr.json` holds them."""
        members = as_mapping(self.data.get("consolidated_metadata")).get("metadata")
        return members if isinstance(members, dict) and self.kind != "array" else None

    def metadata(self, url: str) -> Metadata:
        """Return the metadata of an array; errors name its `url`."""
        file = "zarr.json" if self.zarr_format == 3 else ".zarray"
        try:
            if self.kind != "array":
                raise WeftError(f"{file} describes a 'group', not an array")
            if self.zarr_format == 3:
                return Metadata.from_data(self.data)
            parse = zarr_v2.parse_array
            return checked(lambda data: parse(data, self.attributes), self.data, file)
        except WeftError as error:
            error.args = (
                (f"{url}: {error}",) if self.zarr_format == 3 else (f"{url}/{file}: {error}",)
            )
            raise


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
    return (
        None if not isinstance(data, dict) or data.get("zarr_format") != 3 else as_node(data, text)
    )


def as_node(data: Mapping[str, Any], text: bytes = b"") -> ZarrNode | None:
    """Return the node that a document describes; None if it describes none."""
    if data.get("node_type") != "group":
        return ZarrNode("array", text, data) if data.get("node_type") == "array" else None
    return _as_kind(ZarrNode("group", text, data))


def _as_kind(group: ZarrNode) -> ZarrNode:
    """Return a group with the kind that its metadata of OME-NGFF tell."""
    kind = next((kind for key, kind in _OME_KINDS.items() if key in group.ome), "group")
    return group._replace(kind=kind)


# -- nodes of either version, to read


def find_node(sink: Sink) -> ZarrNode | None:
    """Return the array or group at a sink, of Zarr v3 or else of v2; None where there is none."""
    probe = _Probe(sink)
    fetched = probe.fetch("zarr.json")
    if fetched is not None:
        node = parse_node(bytes(fetched.data))
        return _refused_node(sink, bytes(fetched.data)) if node is None else node
    for file in (".zarray", ".zgroup"):
        document = _parse_document(sink, file, probe.fetch(file))
        if document is not None:
            attributes = _parse_document(sink, ".zattrs", probe.fetch(".zattrs")) or {}
            if file == ".zarray" and "dimension_separator" not in document and _is_nested(sink):
                document["dimension_separator"] = "/"
            return node_v2(file, document, attributes)
    if probe.denied is not None:
        probe.denied.add_note("or there is nothing: some servers answer so for what is missing")
        raise probe.denied
    return None


def _is_nested(sink: Sink) -> bool:
    """Return whether the chunks of an array lie in folders, although its `.zarray` is silent.

    Writers that put them there did not say so before 2021; all would read as fill value.
    """
    if not isinstance(sink, Folder):
        return False
    is_nested = False
    with suppress(OSError), os.scandir(sink.path) as entries:
        for entry in entries:
            if _CHUNK.fullmatch(entry.name):
                return False
            is_nested |= entry.name.isdecimal() and entry.is_dir()
    return is_nested


class _Probe:
    """Fetches the small files that tell what is at a sink.

    Public buckets often answer that access is denied for what does not exist. Where one of the
    files can be read, those that are denied are taken for missing.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.denied: AccessDeniedError | None = None

    def fetch(self, file: str) -> Fetched | None:
        """Return a file; None where it is missing or denied."""
        try:
            return self.sink.fetch(file, 0, MAX_BYTES + 1)
        except AccessDeniedError as error:
            self.denied = self.denied or error
            return None


def find_member(sink: Sink, depth: int = MAX_IMPLIED) -> ZarrNode | None:
    """Return the array or group at a sink; one that cannot be read is a node with its error."""
    try:
        node = find_node(sink)
    except WeftError as error:
        return ZarrNode(UNREADABLE, b"", {"error": error})
    return find_implied_group(sink, depth) if node is None else node


def find_implied_group(sink: Sink, depth: int = MAX_IMPLIED) -> ZarrNode | None:
    """Return a folder without metadata as a group, if there are arrays or groups below it.

    Not every writer describes the groups above its arrays. Links are not searched: they may lead
    back here.
    """
    if not depth or sink.is_link:
        return None
    try:
        names = sink.folders()
    except WeftError:  # HTTP lists nothing
        return None
    members = (find_member(sink.below(name), depth - 1) for name in names)
    first = next(filter(None, members), None)
    return None if first is None else implied_group(first.zarr_format)


def implied_group(zarr_format: int) -> ZarrNode:
    """Return a group that has no metadata of its own."""
    return ZarrNode("group", b"", {}, zarr_format)


def _refused_node(sink: Sink, text: bytes) -> ZarrNode:
    """Return an array that will be refused with a reason, or refuse a document that has none."""
    if len(text) > MAX_BYTES:
        raise WeftError(f"{sink.url}: zarr.json has more than {MAX_BYTES} B")
    try:
        Metadata.from_json(text.decode())
    except UnicodeDecodeError as error:
        raise WeftError(f"{sink.url}: zarr.json is not UTF-8: {error}") from None
    except WeftError as error:
        error.args = (f"{sink.url}: {error}",)
        raise
    raise WeftError(f"{sink.url}: zarr.json describes no Zarr v3 array or group")


def node_v2(file: str, document: Mapping[str, Any], attributes: Mapping[str, Any]) -> ZarrNode:
    """Return the node of Zarr v2 that a `.zarray` or a `.zgroup` describes."""
    kind = "array" if file == ".zarray" else "group"
    node = ZarrNode(kind, b"", {**document, "attributes": dict(attributes)}, 2)
    return node if kind == "array" else _as_kind(node)


def _parse_document(sink: Sink, file: str, fetched: Fetched | None) -> dict[str, Any] | None:
    """Return the JSON object of a small file; None where there is none."""
    if fetched is None:
        return None
    if fetched.size > MAX_BYTES:
        raise WeftError(f"{sink.url}/{file} has {fetched.size} B; at most {MAX_BYTES} are read")
    try:
        data = json.loads(bytes(fetched.data))
    except (ValueError, RecursionError) as error:
        raise WeftError(f"{sink.url}/{file} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise WeftError(f"{sink.url}/{file}: expected an object, got {type(data).__name__}")
    return data


def load_metadata(sink: Sink) -> Metadata:
    """Return the metadata of the array at a sink, of Zarr v3 or v2."""
    node = find_node(sink)
    if node is None:
        raise no_node(sink, "array")
    return node.metadata(sink.url)


def consolidated_members(sink: Sink, node: ZarrNode) -> dict[str, ZarrNode] | None:
    """Return the nodes below a group by path, where consolidated metadata list them.

    zarr-python writes them to the `zarr.json` of a group, and those of v2 to a `.zmetadata`.
    """
    if node.zarr_format == 3:
        listed = node.consolidated
        if listed is None:
            return None
        nodes = {path: as_node(as_mapping(each)) for path, each in listed.items()}
    else:
        document = _parse_document(sink, ".zmetadata", _Probe(sink).fetch(".zmetadata"))
        files = as_mapping((document or {}).get("metadata"))
        if not files:
            return None
        nodes = {
            path.removesuffix(f"/{file}"): node_v2(
                file, as_mapping(each), as_mapping(files.get(f"{path.removesuffix(file)}.zattrs"))
            )
            for path, each in files.items()
            for file in (".zarray", ".zgroup")
            if path.endswith(f"/{file}")
        }
    known = {path: member for path, member in nodes.items() if member and _is_inside(path)}
    for path in list(known):  # groups that have no metadata of their own
        while path := path.rpartition("/")[0]:
            known.setdefault(path, implied_group(node.zarr_format))
    return known


def _is_inside(path: str) -> bool:
    """Return whether a path names something below a group, and nothing beside it."""
    return not {"", ".", ".."} & set(path.split("/"))


def group_json(attributes: Mapping[str, Any]) -> bytes:
    """Return the `zarr.json` of a group."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    return json.dumps(document, indent=2).encode()


def write_group(sink: Sink, attributes: Mapping[str, Any]) -> None:
    """Write the attributes of a group, new or existing, atomically."""
    sink.put("zarr.json", check_written(sink.url, group_json(attributes)))


def read_group(sink: Sink) -> Mapping[str, Any]:
    """Return the attributes of a group."""
    text = fetch_metadata(sink, "group")
    try:
        data = json.loads(text)
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


def ome_v2(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of OME-NGFF 0.4 among the attributes of a group of Zarr v2.

    They are attributes themselves, and each has its version; missing ones are taken for 0.4.
    """
    if not any(key in attributes for key in (*_OME_KINDS, "series")):
        return {}
    images = attributes.get("multiscales")
    first = images[0] if isinstance(images, list) and images else None
    found = (as_mapping(one) for one in (first, attributes.get("plate"), attributes.get("well")))
    version = next((one["version"] for one in found if "version" in one), "0.4")
    return {"version": version, **attributes}


class OmeGroup(NamedTuple):
    """The attributes of a group, and the metadata of OME-NGFF among them."""

    attributes: Mapping[str, Any]
    ome: Any


def read_ome(sink: Sink) -> OmeGroup:
    """Read the metadata of OME-NGFF of a group: 0.5 in Zarr v3, or 0.4 in Zarr v2."""
    node = find_node(sink)
    if node is not None and node.zarr_format == 2 and node.kind != "array":
        return _refuse_none(sink, OmeGroup(node.attributes, node.ome or None))
    attributes = read_group(sink)
    return _refuse_none(sink, OmeGroup(attributes, ome_of(attributes)))


def _refuse_none(sink: Sink, group: OmeGroup) -> OmeGroup:
    if group.ome is None:
        raise WeftError(f"{sink.url} is not an OME-NGFF group: it has no attribute 'ome'")
    return group


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object as it is, and anything else as an empty one."""
    return value if isinstance(value, dict) else {}
