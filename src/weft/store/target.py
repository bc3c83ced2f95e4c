"""Targets: what lies where something is to be created, and how it is replaced.

A target is free if it is absent or empty. Otherwise it must be an array or a group by its own
`zarr.json`: anything else is refused, and so is an array without `overwrite`. What is replaced is
derived from the metadata alone: the shards of an array's grid, the levels that an image lists, the
wells that a plate lists. Files that do not belong to it stay, except that nothing else may lie
among the shards of an array (below `c/`) or inside a group that becomes an array: that is refused.
No symbolic link is followed.

A replacement happens at one moment: the atomic write of a `zarr.json` that describes the new array
without any elements. Before it, the old array is untouched; after it, the new array is right
whichever of the old shards are still there. They are removed next, and then the final metadata are
written. A journal beside `zarr.json` lets the next writer finish a replacement that was interrupted
after that moment, or forget one that was interrupted before it.
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
from weft.store.metadata import MOST, Keys
from weft.store.shard import Index, ShardError, length
from weft.store.sink import Entry, Sink
from weft.values import Point

JOURNAL = ".weft.replaced"
"""The value that describes a replacement while it takes place."""

STAGED = "weft-replacing"
"""The group that holds the levels of a new image, still empty, while those of the old one go."""

SHOWN = 3
"""Names that a message lists."""

_OURS = re.compile(r"\.weft\.(?:lock|replaced|clock\.[0-9a-f]{32})")
_PATH = re.compile(r"[^./\\][^/\\]*(?:/[^./\\][^/\\]*)*")
_LISTED = {"image": "array", "well": "image", "plate": "well"}
"""What the members are that a group of each kind lists."""

_ARTICLES = {"array": "an", "image": "an"}


def is_ours(key: str) -> bool:
    """Whether a key is that of a lock, of a journal, or of a value that was not finished.

    >>> [is_ours(key) for key in (".weft.lock", "c/0/.1.0123456789ab.partial", ".film.partial")]
    [True, True, False]
    """
    name = key.rpartition("/")[2]
    return bool(_OURS.fullmatch(name) or UNFINISHED.fullmatch(name))


class Node(NamedTuple):
    """An array or a group as its `zarr.json` describes it."""

    kind: str
    """array, image, well, plate, or group."""
    text: bytes
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{_ARTICLES.get(self.kind, 'a')} {self.kind}"


def read_node(sink: Sink) -> Node | None:
    """The node at a sink, None where there is no `zarr.json`."""
    found = sink.fetch("zarr.json", 0, MOST + 1)
    node = None if found is None else _parsed(bytes(found.data))
    if found is not None and node is None:
        raise WeftError(
            f"{sink.url} holds a zarr.json that describes no Zarr v3 array or group",
            hint="remove it yourself, or choose another place",
        )
    return node


def _parsed(text: bytes) -> Node | None:
    """The node that the text of a `zarr.json` describes, None if it describes none."""
    try:
        data = json.loads(text) if len(text) <= MOST else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("zarr_format") != 3:
        return None
    if data.get("node_type") != "group":
        return Node("array", text, data) if data.get("node_type") == "array" else None
    ome = _object(_object(data.get("attributes")).get("ome"))
    kinds = {"multiscales": "image", "well": "well", "plate": "plate"}
    return Node(next((kinds[key] for key in kinds if key in ome), "group"), text, data)


def check_target(sink: Sink, overwrite: bool, hint: str = "pass overwrite=True") -> Node | None:
    """Refuse a target that may not be written; return the node that is to be replaced, if any."""
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
    others = (entry for entry in sink.walk("") if not is_ours(entry.key) and entry.key not in known)
    found = list(islice(others, SHOWN + 1))
    if not found:
        return
    if not found[0].key:
        raise WeftError(f"{sink.url} is a file, and not a folder")
    raise WeftError(
        f"{sink.url} is not empty and holds no Zarr v3 array or group: there is {_names(found)}",
        hint="choose an empty or a new folder; Weft removes nothing that it cannot attribute",
    )


def _names(found: list[Entry]) -> str:
    names = ", ".join(entry.key for entry in found[:SHOWN])
    return names if len(found) <= SHOWN else f"{names}, …"


# -- what belongs to a node


@dataclass(frozen=True, slots=True)
class ArrayKeys:
    """Which keys are those of an array's shards.

    >>> grid = {"name": "regular", "configuration": {"chunk_shape": [2, 9]}}
    >>> keys = ArrayKeys.of({"shape": [5, 9], "chunk_grid": grid})
    >>> keys.place("c/2/0"), keys.place("c/2"), keys.place("c/02/0"), keys.is_inside((3, 0))
    ((2, 0), None, None, False)
    """

    shape: Point
    shards: Point
    keys: Keys
    slots: int
    """Chunks of a shard; 0 where chunks are not sharded."""
    has_checksum: bool
    index_location: str
    append_dim: int

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> ArrayKeys:
        """Read the grid of an array; codecs need not be known."""
        grid = _object(data.get("chunk_grid"))
        shape = _point(data.get("shape"))
        shards = _point(_object(grid.get("configuration")).get("chunk_shape"))
        given = data.get("chunk_key_encoding", {"name": "default"})
        encoding = _object({"name": given} if isinstance(given, str) else given)
        name = encoding.get("name")
        separator = _object(encoding.get("configuration")).get(
            "separator", "/" if name == "default" else "."
        )
        is_known = grid.get("name") == "regular" and name in ("default", "v2")
        if shape is None or shards is None or len(shape) != len(shards) or not is_known:
            raise WeftError("zarr.json has a chunk grid or key encoding that is not known here")
        if separator not in ("/", "."):
            raise WeftError(f"zarr.json has an unknown separator of keys, {separator!r}")
        codecs = data.get("codecs")
        first = _object(codecs[0]) if isinstance(codecs, list) and codecs else {}
        said = (
            _object(first.get("configuration")) if first.get("name") == "sharding_indexed" else {}
        )
        chunks = _point(said.get("chunk_shape"))
        slots = 0
        if chunks is not None and len(chunks) == len(shards) and all(chunks):
            slots = prod(s // c for s, c in zip(shards, chunks))
        weft = _object(_object(data.get("attributes")).get("weft"))
        arrival = _point(weft.get("arrival")) or (0,)
        return cls(
            shape,
            shards,
            Keys("v2" if name == "v2" else "default", separator),
            slots,
            len(said.get("index_codecs") or ()) > 1,
            str(said.get("index_location", "end")),
            arrival[0] if arrival[0] < max(1, len(shape)) else 0,
        )

    @property
    def root(self) -> str:
        """The folder that has all keys, "" where they lie beside `zarr.json`."""
        return "c" if self.keys.name == "default" and self.keys.separator == "/" else ""

    def place(self, key: str) -> Point | None:
        """The shard that a key names, inside the grid or not; None if it names none."""
        parts = key.split(self.keys.separator)
        if not self.shape:
            return () if key == self.keys.of(()) else None
        if self.keys.name == "default":
            if parts[0] != "c":
                return None
            parts = parts[1:]
        if len(parts) != len(self.shape) or not all(map(_is_number, parts)):
            return None
        return tuple(map(int, parts))

    def is_inside(self, at: Point) -> bool:
        """Whether a shard lies in the array as its shape is."""
        return all(place * size < n for place, size, n in zip(at, self.shards, self.shape))

    def may_follow(self, at: Point) -> bool:
        """Whether a shard lies behind the end of the dimension that frames are appended along."""
        sides = enumerate(zip(at, self.shards, self.shape))
        return bool(self.slots) and all(
            place * size < n for dim, (place, size, n) in sides if dim != self.append_dim
        )

    def is_shard(self, sink: Sink, key: str) -> bool:
        """Whether a value is a shard by its index, whose checksum must be right."""
        if not self.has_checksum:
            return False
        count = length(self.slots)
        found = sink.fetch(key, 0 if self.index_location == "start" else -count, count)
        try:
            return found is not None and bool(Index.parse(found.data, self.slots))
        except ShardError:
            return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


class Shards(NamedTuple):
    """The keys of an array's shards: those inside its shape, and those that follow its end."""

    inside: list[str]
    behind: list[str]
    """Complete shards that the metadata did not count yet when their writer ended."""


def shards_of(sink: Sink, data: Mapping[str, Any], *, is_strict: bool = True) -> Shards:
    """The shards that an array has.

    An array among whose shards other files lie is refused; if not `is_strict`, only where they have
    the names of shards.
    """
    try:
        keys = ArrayKeys.of(data)
    except WeftError as error:
        raise WeftError(f"{sink.url}: {error}", hint="remove it yourself") from None
    found, others = Shards([], []), list[Entry]()
    for entry in sink.walk(keys.root):
        if is_ours(entry.key) and entry.kind == "value":
            continue
        at = keys.place(entry.key)
        if entry.kind == "value" and at is not None and keys.is_inside(at):
            found.inside.append(entry.key)
        elif (
            entry.kind == "value"
            and at is not None
            and keys.may_follow(at)
            and keys.is_shard(sink, entry.key)
        ):
            found.behind.append(entry.key)
        elif at is not None or (is_strict and keys.root and entry.kind != "folder"):
            others.append(entry)
    if not keys.shape and keys.root and not others and sink.fetch(keys.keys.of(()), 0, 0):
        found.inside[:] = [keys.keys.of(())]
    if others:
        raise WeftError(
            f"{sink.url}: {_names(others)} lies among the shards of the array and does not belong "
            f"to it",
            hint="move it elsewhere; Weft removes only what the metadata attribute to the array",
        )
    return found


class Belongings(NamedTuple):
    """The keys of all that belongs to a node, below its own sink; its `zarr.json` is not listed."""

    values: list[str]
    nodes: list[str]
    """The `zarr.json` of members, to be removed after their values."""


def belongings(sink: Sink, node: Node) -> Belongings:
    """All that the metadata of a node attribute to it."""
    found = Belongings([], [])
    _collect(sink, node, "", found)
    return found


def _collect(sink: Sink, node: Node, at: str, found: Belongings) -> None:
    if node.kind == "array":
        inside, behind = shards_of(sink, node.data)
        found.values.extend(f"{at}{key}" for key in (*inside, *behind))
        return
    for path in _members(sink, node):
        child = _below(sink, path)
        member = read_node(child)
        if member is not None and member.kind == _LISTED[node.kind]:
            _collect(child, member, f"{at}{path}/", found)
            found.nodes.append(f"{at}{path}/zarr.json")
    if node.kind == "plate":
        for row in sorted({path.split("/")[0] for path in _members(sink, node)}):
            above = read_node(_below(sink, row))
            if above is not None and above.kind == "group":
                found.nodes.append(f"{at}{row}/zarr.json")


def _below(sink: Sink, path: str) -> Sink:
    """A part of a sink; refuse to reach it through a symbolic link."""
    for name in path.split("/"):
        sink = sink.below(name)
        if sink.is_link:
            raise WeftError(f"{sink.url} is a symbolic link, and nothing is replaced through one")
    return sink


def _members(sink: Sink, node: Node) -> list[str]:
    """The paths that a group lists: each once, and none that leaves the group."""
    ome = _object(_object(node.data.get("attributes")).get("ome"))
    if node.kind == "image":
        images = ome.get("multiscales")
        listed = [
            level
            for image in (images if isinstance(images, list) else [])
            for level in (_object(image).get("datasets") or [])
        ]
    elif node.kind == "plate":
        listed = _object(ome.get("plate")).get("wells") or []
    elif node.kind == "well":
        listed = _object(ome.get("well")).get("images") or []
    else:
        return []
    paths = dict[str, None]()
    for one in listed if isinstance(listed, list) else ():
        path = _object(one).get("path")
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise WeftError(f"{sink.url} lists {path!r}, which is no path inside of it")
        paths[path] = None
    return list(paths)


def remove_behind(sink: Sink) -> None:
    """Remove complete shards behind the end of an array: their writer never promised them."""
    node = read_node(sink)
    if node is not None and node.kind == "array":
        sink.remove(shards_of(sink, node.data, is_strict=False).behind)


# -- how it is replaced


def replace(
    sink: Sink,
    new: bytes,
    *,
    empty: bytes | None = None,
    members: Mapping[str, bytes] | None = None,
) -> None:
    """Write the `zarr.json` of a new node in place of whatever recognised node is there.

    `empty` describes the same node without elements, where `new` has some. `members` are the
    `zarr.json` of a group's new members, by path, and still without values; `empty` then lists them
    below `STAGED`. The sink must be locked.
    """
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


def _replaced(sink: Sink, node: Node, members: list[str]) -> Belongings:
    """All that goes: what belongs to the old node, and what lies where new members will."""
    found = belongings(sink, node)
    for path in members:
        child = _below(sink, path)
        if f"{path}/zarr.json" in found.nodes or (there := check_target(child, True)) is None:
            continue
        if there.kind != "array":
            raise WeftError(f"{child.url} is {there.name}, and an array would replace it")
        _collect(child, there, f"{path}/", found)
        found.nodes.append(f"{path}/zarr.json")
    return found


def _check_unlocked(sink: Sink, old: Belongings) -> None:
    """Refuse to remove members that somebody is writing."""
    for key in old.nodes:
        member = sink.below(key.removesuffix("/zarr.json"))
        if member.fetch(LOCK, 0, 0) is not None:
            member.lock().release()


def _check_beside(sink: Sink, node: Node, old: Belongings, new: bytes) -> None:
    """Refuse to make an array of a group that holds more than what is replaced."""
    if node.kind == "array" or json.loads(new)["node_type"] != "array":
        return
    known = {"zarr.json", *old.values, *old.nodes}
    others = (
        entry
        for entry in sink.walk("")
        if entry.key not in known and not is_ours(entry.key) and entry.kind != "folder"
    )
    found = list(islice(others, SHOWN + 1))
    if found:
        raise WeftError(
            f"{sink.url} is a group, and holds more than an array would replace: {_names(found)}",
            hint="remove what it holds yourself, or choose another place",
        )


def _finish(sink: Sink, old: Belongings, new: bytes, members: list[str]) -> None:
    """Remove what belonged to the old node, and write the new one; may be done again."""
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
    """A replacement that is under way, as texts of `zarr.json` and the paths of new members."""

    old: bytes
    empty: bytes
    new: bytes
    members: list[str]


def _journal(sink: Sink) -> _Journal | None:
    found = sink.fetch(JOURNAL, 0, 4 * MOST)
    if found is None:
        return None
    try:
        data = json.loads(bytes(found.data))
        members = [path for path in data["members"] if _PATH.fullmatch(path)]
        old, empty, new = (data[key].encode() for key in ("old", "empty", "new"))
        return _Journal(old, empty, new, members)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise WeftError(f"{sink.url}/{JOURNAL} is not the journal of a replacement") from None


def recover(sink: Sink) -> None:
    """Finish a replacement that was interrupted after its moment, or forget one before it.

    The sink must be locked. Where `zarr.json` is neither the old nor the new one, somebody else has
    written it, and nothing is removed.
    """
    journal = _journal(sink)
    if journal is None:
        return
    found = sink.fetch("zarr.json", 0, MOST + 1)
    now = None if found is None else bytes(found.data)
    old = _parsed(journal.old)
    if old is not None and now == journal.empty != journal.old:
        _finish(sink, _replaced(sink, old, journal.members), journal.new, journal.members)
        return
    if now is None and not journal.old:  # a new group, of which some members are there
        for path in journal.members:
            child = _below(sink, path)
            member = read_node(child)
            if member is not None and not any(belongings(child, member)):
                sink.remove([f"{path}/zarr.json"])
    _forget(sink, journal.members)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _point(value: Any) -> Point | None:
    is_point = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
    return tuple(value) if is_point else None
