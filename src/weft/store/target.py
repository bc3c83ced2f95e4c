"""Targets: what exists where something is to be created, and how it is replaced.

A target is free if it is absent or empty. Otherwise its `zarr.json` must describe an array or a
group: anything else is refused, and so is an array without `overwrite`. What is replaced follows
from the metadata alone: the shards of an array's grid, the levels and labels that an image lists,
the wells that a plate lists, the images of a collection. Files that do not belong to it stay,
except that nothing else may lie among the shards of an array (below `c/`) or inside a group that
becomes an array: that is refused. Symbolic links are not followed.

A replacement happens at one moment: the atomic write of a `zarr.json` that describes the new array
without any elements. Before it, the old array is untouched; after it, the new array is correct
whichever old shards still exist. These are removed next, and then the final metadata are written. A
journal beside `zarr.json` lets the next writer finish a replacement that was interrupted after that
moment, or forget one that was interrupted before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.store.files import LOCK, UNFINISHED
from weft.store.frames import FOLDER, SEGMENTS, is_segment
from weft.store.hierarchy import ZarrNode, as_mapping, find_node, parse_node, read_node
from weft.store.metadata import MAX_BYTES, KeyEncoding, Metadata, check_written
from weft.store.shard import Index, ShardError, index_size
from weft.store.sink import Sink, StoreEntry
from weft.values import Point

JOURNAL = ".weft.replaced"
"""The value that describes a replacement while it takes place."""

STAGED = "weft-replacing"
"""The group that holds the empty levels of a new image while those of the old one are removed."""

MAX_NAMES = 3
"""Names that a message lists."""

_OURS = re.compile(r"\.weft\.(?:lock|replaced|clock\.[0-9a-f]{32})")
_PATH = re.compile(r"[^./\\][^/\\]*(?:/[^./\\][^/\\]*)*")
_SEGMENT = re.compile(rf"{FOLDER}/(0|[1-9]\d{{0,9}})\.jsonl")
_LISTED = {
    "image": "array",
    "well": "image",
    "plate": "well",
    "labels": "image",
    "collection": "image",
}
"""The kind of the members that a group of each kind lists."""

OME_XML = "OME/METADATA.ome.xml"
"""Where a collection of images describes them in OME-XML."""


def is_path(path: str) -> bool:
    """Return whether a path lies inside of a group: no part of it is hidden, "." or "..".

    >>> is_path("A/1"), is_path("../A"), is_path("/A")
    (True, False, False)
    """
    return bool(_PATH.fullmatch(path))


def is_ours(key: str) -> bool:
    """Return whether a key is that of a lock, a journal, or an unfinished value.

    >>> [is_ours(key) for key in (".weft.lock", "c/0/.1.0123456789ab.partial", ".film.partial")]
    [True, True, False]
    """
    name = key.rpartition("/")[2]
    return bool(_OURS.fullmatch(name) or UNFINISHED.fullmatch(name))


def check_target(sink: Sink, overwrite: bool, hint: str = "pass overwrite=True") -> ZarrNode | None:
    """Refuse a target that may not be written; return the node to be replaced, if any."""
    sink.check_writable()
    node = read_node(sink)
    if node is None:
        _check_empty(sink)
        return None
    if not overwrite:
        raise WeftError(f"{sink.url} holds {node.name} already", hint=hint)
    if sink.is_link:
        raise WeftError(
            f"{sink.url} is a symbolic link, and {node.name} is not replaced through one",
            hint="name the folder itself",
        )
    return node


def _check_empty(sink: Sink) -> None:
    journal = _journal(sink)  # of a new group that was interrupted
    known = {f"{path}/zarr.json" for path in (journal.members if journal else ())}
    others = (
        entry
        for entry in sink.walk("")
        if not is_ours(entry.key)
        and entry.key not in known
        and not (entry.kind == "folder" and f"{entry.key}/zarr.json" in known)
    )
    listed = list(islice(others, MAX_NAMES + 1))
    if not listed:
        return
    if not listed[0].key:
        raise WeftError(f"{sink.url} is a file, not a folder")
    raise WeftError(
        f"{sink.url} is not empty and holds no Zarr v3 array or group: there is {_names(listed)}",
        hint="choose an empty or a new folder; Weft removes only what belongs to an array or group",
    )


def _names(entries: list[StoreEntry]) -> str:
    names = ", ".join(entry.key for entry in entries[:MAX_NAMES])
    return names if len(entries) <= MAX_NAMES else f"{names}, …"


# -- the keys of a node


@dataclass(frozen=True, slots=True)
class ArrayKeys:
    """The keys of an array's shards.

    >>> grid = {"name": "regular", "configuration": {"chunk_shape": [2, 9]}}
    >>> keys = ArrayKeys.of({"shape": [5, 9], "chunk_grid": grid})
    >>> [keys.shard_at(key) for key in ("c/2/0", "c/2", "c/02/0")], keys.is_inside((3, 0))
    ([(2, 0), None, None], False)
    """

    shape: Point
    shards: Point
    keys: KeyEncoding
    slots: int
    """Chunks of a shard; 0 where chunks are not sharded."""
    has_checksum: bool
    index_location: str
    append_dim: int

    @classmethod
    def of_grid(cls, metadata: Metadata) -> ArrayKeys:
        """Return the keys of an array of either version of Zarr, as if it had no shards."""
        return cls(metadata.shape, metadata.shards, metadata.keys, 0, True, "end", 0)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> ArrayKeys:
        """Read the grid of an array from its metadata; codecs need not be supported."""
        grid = as_mapping(data.get("chunk_grid"))
        shape = _point(data.get("shape"))
        shards = _point(as_mapping(grid.get("configuration")).get("chunk_shape"))
        given = data.get("chunk_key_encoding", {"name": "default"})
        encoding = as_mapping({"name": given} if isinstance(given, str) else given)
        name = encoding.get("name")
        separator = as_mapping(encoding.get("configuration")).get(
            "separator", "/" if name == "default" else "."
        )
        is_known = grid.get("name") == "regular" and name in ("default", "v2")
        if shape is None or shards is None or len(shape) != len(shards) or not is_known:
            raise WeftError("zarr.json has a chunk grid or key encoding that is not supported")
        if separator not in ("/", "."):
            raise WeftError(f"zarr.json has an unsupported separator of keys, {separator!r}")
        codecs = data.get("codecs")
        first = as_mapping(codecs[0]) if isinstance(codecs, list) and codecs else {}
        is_sharded = first.get("name") == "sharding_indexed"
        sharding = as_mapping(first.get("configuration")) if is_sharded else {}
        chunks = _point(sharding.get("chunk_shape"))
        slots = 0
        if chunks is not None and len(chunks) == len(shards) and all(chunks):
            slots = prod(s // c for s, c in zip(shards, chunks))
        weft = as_mapping(as_mapping(data.get("attributes")).get("weft"))
        axes = _point(weft.get("axis_order")) or (0,)
        return cls(
            shape,
            shards,
            KeyEncoding("v2" if name == "v2" else "default", separator),
            slots,
            len(sharding.get("index_codecs") or ()) > 1,
            str(sharding.get("index_location", "end")),
            axes[0] if axes[0] < max(1, len(shape)) else 0,
        )

    def shard_at(self, key: str) -> Point | None:
        """Return the shard that a key names, inside the grid or not; None if it names none."""
        parts = key.split(self.keys.separator)
        if not self.shape:
            return () if key == self.keys.key(()) else None
        if self.keys.name == "default":
            if parts[0] != "c":
                return None
            parts = parts[1:]
        if len(parts) != len(self.shape) or not all(map(_is_number, parts)):
            return None
        return tuple(map(int, parts))

    def is_inside(self, at: Point) -> bool:
        """Return whether a shard lies inside the shape of the array."""
        return all(place * size < n for place, size, n in zip(at, self.shards, self.shape))

    def may_follow(self, at: Point) -> bool:
        """Return whether a shard lies after the end of the dimension that is appended to."""
        sides = enumerate(zip(at, self.shards, self.shape))
        return bool(self.slots) and all(
            place * size < n for dim, (place, size, n) in sides if dim != self.append_dim
        )

    def is_shard(self, sink: Sink, key: str) -> bool:
        """Return whether a value is a shard, by the checksum of its index."""
        if not self.has_checksum:
            return False
        count = index_size(self.slots)
        fetched = sink.fetch(key, 0 if self.index_location == "start" else -count, count)
        try:
            return fetched is not None and bool(Index.parse(fetched.data, self.slots))
        except ShardError:
            return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


class ShardKeys(NamedTuple):
    """The keys of the existing shards of an array: inside its shape, and after its end."""

    inside: list[str]
    after: list[str]
    """Complete shards that their writer did not promise before it ended."""


def shards_of(sink: Sink, data: Mapping[str, Any], *, is_strict: bool = True) -> ShardKeys:
    """Return the shards of an array that exist.

    Other files among them are refused; if not `is_strict`, only those with the names of shards.
    """
    try:
        keys = ArrayKeys.of(data)
    except WeftError as error:
        raise WeftError(f"{sink.url}: {error}", hint="remove it yourself") from None
    shards, others = ShardKeys([], []), list[StoreEntry]()
    for entry in sink.walk(keys.keys.root):
        if is_ours(entry.key) and entry.kind == "value":
            continue
        at = keys.shard_at(entry.key)
        if entry.kind == "value" and at is not None and keys.is_inside(at):
            shards.inside.append(entry.key)
        elif (
            entry.kind == "value"
            and at is not None
            and keys.may_follow(at)
            and keys.is_shard(sink, entry.key)
        ):
            shards.after.append(entry.key)
        elif at is not None or (is_strict and keys.keys.root and entry.kind != "folder"):
            others.append(entry)
    if not keys.shape and keys.keys.root and not others and sink.fetch(keys.keys.key(()), 0, 0):
        shards.inside[:] = [keys.keys.key(())]
    if others:
        raise WeftError(
            f"{sink.url}: {_names(others)} lies among the shards of the array and does not belong "
            f"to it",
            hint="move it elsewhere; Weft removes only what the metadata attribute to the array",
        )
    return shards


class OwnedKeys(NamedTuple):
    """The keys that belong to a node, below its own sink, without its `zarr.json`."""

    values: list[str]
    nodes: list[str]
    """The `zarr.json` of members, to be removed after their values."""


def owned_keys(sink: Sink, node: ZarrNode) -> OwnedKeys:
    """Return the keys that the metadata of a node attribute to it."""
    keys = OwnedKeys([], [])
    _collect(sink, node, "", keys)
    return keys


def _collect(sink: Sink, node: ZarrNode, at: str, keys: OwnedKeys) -> None:
    if node.kind == "array":
        inside, after = shards_of(sink, node.data)
        segments = _segments(sink, node.data)
        keys.values.extend(f"{at}{key}" for key in (*inside, *after, *segments))
        return
    for path in _members(sink, node):
        child = _below(sink, path)
        member = read_node(child)
        if member is not None and member.kind == _LISTED[node.kind]:
            _collect(child, member, f"{at}{path}/", keys)
            keys.nodes.append(f"{at}{path}/zarr.json")
    if node.kind == "plate":
        for row in sorted({path.split("/")[0] for path in _members(sink, node)}):
            above = read_node(_below(sink, row))
            if above is not None and above.kind == "group":
                keys.nodes.append(f"{at}{row}/zarr.json")
    beside = {"image": ("labels", "labels"), "collection": ("OME", "group")}.get(node.kind)
    if beside is not None:
        path, kind = beside
        group = read_node(_below(sink, path))
        if group is not None and group.kind == kind:
            _collect(_below(sink, path), group, f"{at}{path}/", keys)
            keys.nodes.append(f"{at}{path}/zarr.json")
    if node.kind == "collection" and sink.fetch(OME_XML, 0, 0) is not None:
        keys.values.append(f"{at}{OME_XML}")


def _segments(sink: Sink, data: Mapping[str, Any]) -> list[str]:
    """Return the keys of an array's metadata of frames; also those that were never promised."""
    count = as_mapping(as_mapping(data.get("attributes")).get("weft")).get(SEGMENTS)
    promised = count if type(count) is int else 0
    return [
        entry.key
        for entry in sink.walk(FOLDER)
        if entry.kind == "value"
        and (named := _SEGMENT.fullmatch(entry.key))
        and (int(named[1]) < promised or is_segment(sink, int(named[1])))
    ]


def _below(sink: Sink, path: str) -> Sink:
    """Return a part of a sink; refuse a symbolic link on the way."""
    for name in path.split("/"):
        sink = sink.below(name)
        if sink.is_link:
            raise WeftError(f"{sink.url} is a symbolic link, and nothing is replaced through one")
    return sink


def _members(sink: Sink, node: ZarrNode) -> list[str]:
    """Return the paths that a group lists: each once, and none that leaves the group."""
    ome = node.ome
    if node.kind == "image":
        listed = [
            level
            for image in _as_list(ome.get("multiscales"))
            for level in _as_list(as_mapping(image).get("datasets"))
        ]
    elif node.kind == "plate":
        listed = as_mapping(ome.get("plate")).get("wells") or []
    elif node.kind == "well":
        listed = as_mapping(ome.get("well")).get("images") or []
    elif node.kind == "labels":
        listed = [{"path": path} for path in _as_list(ome.get("labels"))]
    elif node.kind == "collection":
        listed = [{"path": path} for path in series_of(sink)]
    else:
        return []
    paths = dict[str, None]()
    for one in listed if isinstance(listed, list) else ():
        path = as_mapping(one).get("path")
        if not isinstance(path, str) or not is_path(path):
            raise WeftError(f"{sink.url} lists {path!r}, which is not a path inside of it")
        paths[path] = None
    return list(paths)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def series_of(sink: Sink) -> list[Any]:
    """Return the paths of the images of a collection: those listed, else 0, 1, … as they exist.

    One of Weft's that has no image yet may have one that was never listed.
    """
    group, root = find_node(sink.below("OME")), find_node(sink)
    series = None if group is None else group.ome.get("series")
    if series is not None:
        return _as_list(series)
    paths = list[str]()
    if root is not None and "ome" in as_mapping(root.attributes.get("weft")):
        return paths
    while (image := find_node(sink.below(str(len(paths))))) is not None and image.kind == "image":
        paths.append(str(len(paths)))
    return paths


def remove_after_end(sink: Sink) -> None:
    """Remove complete shards after the end of an array: their writer never promised them."""
    node = read_node(sink)
    if node is not None and node.kind == "array":
        sink.remove(shards_of(sink, node.data, is_strict=False).after)


# -- replacing a node


def replace(
    sink: Sink,
    new: bytes,
    *,
    empty: bytes | None = None,
    members: Mapping[str, bytes] | None = None,
) -> None:
    """Write the `zarr.json` of a new node, replacing the node that exists, if any.

    `empty` describes the same node without elements, where `new` has some. `members` are the
    `zarr.json` of a group's new members by path, still without values; `empty` then lists them
    below `STAGED`. The sink must be locked.
    """
    for text in (new, *(members or {}).values()):
        check_written(sink.url, text)
    recover(sink)
    sink.sweep()
    node = read_node(sink)
    paths = list(members or ())
    if node is None:
        _check_empty(sink)
        if members:
            journal = {"old": "", "empty": new.decode(), "new": new.decode(), "members": paths}
            sink.put(JOURNAL, json.dumps(journal).encode())
            for path, text in members.items():
                sink.put(f"{path}/zarr.json", text)
        sink.put("zarr.json", new)
        sink.delete(JOURNAL)
        return
    old = _replaced(sink, node, paths)
    _check_beside(sink, node, old, new)
    _check_unlocked(sink, old)
    if old.values or old.nodes:
        journal = {
            "old": node.text.decode(),
            "empty": (empty or new).decode(),
            "new": new.decode(),
            "members": paths,
        }
        sink.put(JOURNAL, json.dumps(journal).encode())
        for path, text in (members or {}).items():
            sink.put(f"{STAGED}/{path}/zarr.json", text)
        sink.put("zarr.json", empty or new)
        _finish(sink, old, new, paths)
    else:
        sink.put("zarr.json", new)


def _replaced(sink: Sink, node: ZarrNode, members: list[str]) -> OwnedKeys:
    """Return the keys to remove: those of the old node, and those in the place of new members."""
    keys = owned_keys(sink, node)
    for path in members:
        child = _below(sink, path)
        if f"{path}/zarr.json" in keys.nodes or (existing := check_target(child, True)) is None:
            continue
        if existing.kind != "array":
            raise WeftError(f"{child.url} is {existing.name}, and an array would replace it")
        _collect(child, existing, f"{path}/", keys)
        keys.nodes.append(f"{path}/zarr.json")
    return keys


def _check_unlocked(sink: Sink, old: OwnedKeys) -> None:
    """Refuse to remove members that are being written."""
    for key in old.nodes:
        member = sink.below(key.removesuffix("/zarr.json"))
        if member.fetch(LOCK, 0, 0) is not None:
            member.lock().release()


def _check_beside(sink: Sink, node: ZarrNode, old: OwnedKeys, new: bytes) -> None:
    """Refuse to replace a group by an array if it holds more than what is replaced."""
    if node.kind == "array" or json.loads(new)["node_type"] != "array":
        return
    known = {"zarr.json", *old.values, *old.nodes}
    others = (
        entry
        for entry in sink.walk("")
        if entry.key not in known and not is_ours(entry.key) and entry.kind != "folder"
    )
    listed = list(islice(others, MAX_NAMES + 1))
    if listed:
        raise WeftError(
            f"{sink.url} is a group, and holds more than an array would replace: {_names(listed)}",
            hint="remove what it holds yourself, or choose another place",
        )


def _finish(sink: Sink, old: OwnedKeys, new: bytes, members: list[str]) -> None:
    """Remove the old node, and write the new one; may be repeated."""
    sink.remove(old.values)
    sink.remove(old.nodes)
    for path in members:
        staged = sink.fetch(f"{STAGED}/{path}/zarr.json")
        if staged is not None:
            sink.put(f"{path}/zarr.json", staged.data)
    sink.put("zarr.json", new)
    _forget(sink, members)


def _forget(sink: Sink, members: list[str]) -> None:
    for path in members:
        sink.below(f"{STAGED}/{path}").sweep()
    sink.remove([f"{STAGED}/{path}/zarr.json" for path in members])
    sink.delete(JOURNAL)


class _Journal(NamedTuple):
    """A replacement that is under way: texts of `zarr.json`, and the paths of new members."""

    old: bytes
    empty: bytes
    new: bytes
    members: list[str]


def _journal(sink: Sink) -> _Journal | None:
    fetched = sink.fetch(JOURNAL, 0, 4 * MAX_BYTES)
    if fetched is None:
        return None
    try:
        data = json.loads(bytes(fetched.data))
        members = [path for path in data["members"] if is_path(path)]
        old, empty, new = (data[key].encode() for key in ("old", "empty", "new"))
        return _Journal(old, empty, new, members)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise WeftError(f"{sink.url}/{JOURNAL} is not the journal of a replacement") from None


def recover(sink: Sink) -> None:
    """Finish a replacement that was interrupted after its moment, or forget one before it.

    The sink must be locked. Where `zarr.json` is neither the old nor the new one, another program
    has written it, and nothing is removed.
    """
    journal = _journal(sink)
    if journal is None:
        return
    fetched = sink.fetch("zarr.json", 0, MAX_BYTES + 1)
    now = None if fetched is None else bytes(fetched.data)
    old = parse_node(journal.old)
    if old is not None and now == journal.empty != journal.old:
        _finish(sink, _replaced(sink, old, journal.members), journal.new, journal.members)
        return
    if now is None and not journal.old:  # a new group, of which some members are there
        for path in journal.members:
            child = _below(sink, path)
            member = read_node(child)
            if member is None or not any(owned_keys(child, member)):
                sink.remove([f"{path}/zarr.json"])  # or a folder that was made for it
    _forget(sink, journal.members)


def _point(value: Any) -> Point | None:
    is_point = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
    return tuple(value) if is_point else None
