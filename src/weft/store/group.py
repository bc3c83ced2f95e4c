"""`Group`: the members of a Zarr group, of version 2 or 3, by name or path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from weft.errors import WeftError
from weft.store.array import Array
from weft.store.files import Folder
from weft.store.hierarchy import (
    UNREADABLE,
    ZarrNode,
    consolidated_members,
    find_implied_group,
    find_member,
    find_node,
    implied_group,
    sink_of,
)
from weft.store.metadata import no_node
from weft.store.sink import Sink, Url
from weft.store.threads import for_each
from weft.store.view import HoldsArrays

MAX_DEPTH = 64
"""The most groups inside one another that `tree` shows."""


class Group(HoldsArrays, Mapping[str, Any]):
    """A group: a mapping from the names of its members to arrays and groups.

    `group["a/b"]` is the member b of the group a. Members are found by listing. Where a server
    lists nothing, as over HTTP, they are those that consolidated metadata list; each is then
    described by its own metadata all the same, as consolidated ones may be out of date. A folder
    without metadata that holds members is a group.

    >>> import tempfile
    >>> from weft.store import create
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sink_of(folder).put("zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    ...     create(f"{folder}/a", (4, 5), "uint8", (2, 3)).close()
    ...     print(open_group(folder).tree())
    /
    └── a uint8[0, 5]
    """

    _ARRAYS = "group[name]"

    def __init__(
        self,
        sink: Sink,
        node: ZarrNode,
        path: str = "",
        members: Mapping[str, ZarrNode] | None = None,
    ) -> None:
        self.sink = sink
        self.path = path
        """The path from the group that was opened."""
        self._node = node
        self._consolidated = members
        """The nodes below by path, where consolidated metadata are needed and known."""
        self._found: dict[str, ZarrNode] | None = None

    @property
    def url(self) -> str:
        """Where the group is."""
        return self.sink.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes."""
        return self._node.attributes

    @property
    def ome(self) -> Mapping[str, Any]:
        """The metadata of OME-NGFF among the attributes, empty where there are none."""
        return self._node.ome

    @property
    def kind(self) -> str:
        """The kind of group: image, well, plate, collection, labels, or group."""
        return self._node.kind

    @property
    def zarr_format(self) -> int:
        """The version of Zarr: 2 or 3."""
        return self._node.zarr_format

    # -- members

    def _members(self) -> dict[str, ZarrNode]:
        """Return the direct members by name, sorted."""
        if self._found is None:
            self._found = self._list_members()
        return self._found

    def _list_members(self) -> dict[str, ZarrNode]:
        try:
            names = [name for name in self.sink.folders() if not self._leads_back(name)]
        except WeftError:
            if self._consolidated is None:
                self._consolidated = consolidated_members(self.sink, self._node)
            if self._consolidated is None:
                raise
            return {k: v for k, v in sorted(self._consolidated.items()) if "/" not in k}
        found: dict[str, ZarrNode | None] = dict.fromkeys(names)

        def find(name: str) -> None:
            found[name] = find_member(self.sink.below(name))

        for_each(find, names, kind="decode" if isinstance(self.sink, Folder) else "fetch")
        return {name: node for name, node in found.items() if node is not None}

    def _leads_back(self, name: str) -> bool:
        """Return whether a member is a link to this group, or to one above it."""
        here, below = self.sink, self.sink.below(name)
        if not isinstance(here, Folder) or not isinstance(below, Folder) or not below.is_link:
            return False
        return here.path.resolve().is_relative_to(below.path.resolve())

    def __getitem__(self, path: str) -> Array | Group:
        if not isinstance(path, str):
            raise TypeError(f"a member of a group is found by its name, got {path!r}")
        parts = [part for part in path.split("/") if part]
        found: Array | Group = self
        for number, name in enumerate(parts):
            if not isinstance(found, Group):
                raise KeyError(f"{'/'.join(parts[:number])} in {self.url} is an array")
            found = found._member(name, is_last=number == len(parts) - 1)
        return found

    def _member(self, name: str, is_last: bool) -> Array | Group:
        if name in (".", ".."):
            raise KeyError(name)
        sink = self.sink.below(name)
        node = find_node(sink)
        if node is None and not is_last:
            node = implied_group(self.zarr_format)  # whether it has the member will be seen
        node = node or find_implied_group(sink)
        if node is None:
            listed = (self._consolidated or {}).get(name)
            if listed is not None and not listed.data:  # it has no metadata that could be missing
                return self._open(name, listed)
            is_listed = listed is not None
            why = ": consolidated metadata list it, and are out of date" if is_listed else ""
            raise KeyError(f"{name} is not in {self.url}{why}")
        return self._open(name, node)

    def _open(self, name: str, node: ZarrNode) -> Array | Group:
        sink, path = self.sink.below(name), f"{self.path}/{name}".lstrip("/")
        if node.kind == "array":
            return Array(sink, node.metadata(sink.url))
        if node.kind == UNREADABLE:
            raise node.data["error"]
        if self._consolidated is None:
            return Group(sink, node, path)
        start = f"{name}/"
        members = {k[len(start) :]: v for k, v in self._consolidated.items() if k.startswith(start)}
        return Group(sink, node, path, members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members())

    def __len__(self) -> int:
        return len(self._members())

    def __contains__(self, path: object) -> bool:
        try:
            self[path]  # type: ignore[index]
        except (KeyError, TypeError):
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and (self.url, self._node) == (other.url, other._node)

    def __hash__(self) -> int:
        return hash(self.url)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the names and values of the members that are arrays."""
        for name in self.array_keys():
            yield name, self[name]  # type: ignore[misc]

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield the names and values of the members that are groups."""
        for name in self.group_keys():
            yield name, self[name]  # type: ignore[misc]

    def array_keys(self) -> Iterator[str]:
        """Yield the names of the members that are arrays."""
        return (name for name, node in self._members().items() if node.kind == "array")

    def group_keys(self) -> Iterator[str]:
        """Yield the names of the members that are groups."""
        others = ("array", UNREADABLE)
        return (name for name, node in self._members().items() if node.kind not in others)

    # -- seeing

    def tree(self, level: int | None = None) -> Tree:
        """Return all members as lines of text, down to a number of levels."""
        depth = MAX_DEPTH if level is None else min(level, MAX_DEPTH)
        return Tree("\n".join([f"/{self.name}", *self._lines(depth)]))

    def _lines(self, depth: int) -> Iterator[str]:
        members = list(self._members().items()) if depth > 0 else []
        for number, (name, node) in enumerate(members):
            is_last = number == len(members) - 1
            head, below = ("└── ", "    ") if is_last else ("├── ", "│   ")
            try:
                member = self._open(name, node)
            except WeftError as error:
                yield f"{head}{name} (cannot be read: {error})"
                continue
            if isinstance(member, Array):
                yield f"{head}{name} {member.metadata.dtype}{list(member.shape)}"
            else:
                yield f"{head}{name}"
                yield from (below + line for line in member._lines(depth - 1))

    def __repr__(self) -> str:
        return f"<Group at {self.url}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self.tree(3)))}</pre>"


class Tree(str):
    """Lines of text that are shown as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


def open_group(url: Url | Sink, *, options: Mapping[str, Any] | None = None) -> Group:
    """Open a group to read its members, an image or a plate as well."""
    sink = sink_of(url, options=options)
    node = find_node(sink)
    if node is None:
        raise no_node(sink, "group")
    if node.kind == "array":
        raise WeftError(f"{sink.url} is an array, not a group")
    return Group(sink, node)
