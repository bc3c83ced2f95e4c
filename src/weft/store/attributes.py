"""`Attributes`: the attributes of an array or a group, of which every change is written at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.store.hierarchy import read_node, sink_of
from weft.store.json_data import as_json
from weft.store.metadata import check_written, no_node
from weft.store.sink import Sink, Url, writing

Change: TypeAlias = Callable[[dict[str, Any]], None]
"""Changes the attributes of a node in place."""

RESERVED = ("weft", "ome")
"""The attributes that Weft writes itself."""


class Attributes(MutableMapping[str, Any]):
    """The attributes of a node, as a mapping; each change is one atomic write.

    Values are copies: to change one inside, assign it again. `update` changes several at once. The
    attributes "weft" and "ome" are written by Weft alone.

    >>> import tempfile
    >>> from weft.store import create, open
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old = {"sample": 7}
    ...     with create(f"{folder}/a", (None, 5), "uint8", (2, 3), attributes=old) as writer:
    ...         writer.attrs["operator"] = "Ada"
    ...     writer.attrs.update(sample=8, medium="water")
    ...     stored = open(f"{folder}/a").metadata.attributes
    ...     {name: stored[name] for name in stored if name != "weft"}
    {'sample': 8, 'operator': 'Ada', 'medium': 'water'}
    """

    def __init__(
        self, read: Callable[[], Mapping[str, Any]], change: Callable[[Change], None]
    ) -> None:
        self._read, self._change = read, change

    def __getitem__(self, name: str) -> Any:
        return deepcopy(self._read()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._read()))

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(dict(self._read()))

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        self[name]  # a KeyError where there is none
        _check_name(name)
        self._change(lambda attributes: attributes.pop(name, None))

    def update(self, *given: Any, **more: Any) -> None:
        """Set several attributes with one atomic write."""
        values = dict(*given, **more)
        for name in values:
            _check_name(name)
        plain = as_json(values, "attributes")
        self._change(lambda attributes: attributes.update(plain))

    def clear(self) -> None:
        """Remove all attributes, except those that Weft writes."""

        def remove(attributes: dict[str, Any]) -> None:
            for name in [name for name in attributes if name not in RESERVED]:
                del attributes[name]

        self._change(remove)


def _check_name(name: Any) -> None:
    if name in RESERVED:
        raise WeftError(f"the attribute {name!r} is written by Weft alone")


def attributes(url: Url | Sink, *, options: Mapping[str, Any] | None = None) -> Attributes:
    """Return the attributes of a stored array or group, to look at and to change.

    While a writer is open they are changed through its `attrs`: another one is refused.

    >>> import tempfile
    >>> from weft.store import Stream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Stream(f"{folder}/run").close()
    ...     attributes(f"{folder}/run")["sample"] = 7
    ...     attributes(f"{folder}/run")
    {'sample': 7}
    """
    sink = sink_of(url, options=options)
    _load(sink)
    return node_attributes(sink)


def node_attributes(sink: Sink, *, is_locked: Callable[[], bool] = lambda: False) -> Attributes:
    """Return the attributes of a node; for a change its sink is locked, unless it `is_locked`."""

    def change(how: Change) -> None:
        (change_attributes if is_locked() else lock_and_change)(sink, how)

    return Attributes(lambda: _attributes_in(_load(sink)), change)


def change_attributes(sink: Sink, change: Change) -> None:
    """Change the attributes of a node, with one atomic write; the caller holds its lock.

    Everything else stays, except for consolidated metadata, which would hide new members.
    """
    data = _load(sink)
    kept = deepcopy(dict(_attributes_in(data)))
    change(kept)
    others = {key: value for key, value in data.items() if key != "consolidated_metadata"}
    with writing(sink.url):
        put_metadata(sink, json.dumps({**others, "attributes": kept}, indent=2))


def lock_and_change(sink: Sink, change: Change) -> None:
    """Change the attributes of a node that nobody is writing."""
    with writing(sink.url):
        lock = sink.lock()
        try:
            change_attributes(sink, change)
        finally:
            lock.release()


def put_metadata(sink: Sink, text: str) -> None:
    """Write the `zarr.json` of a node, unless no reader would take it."""
    sink.put("zarr.json", check_written(sink.url, text.encode()))


def _load(sink: Sink) -> Mapping[str, Any]:
    node = read_node(sink)
    if node is None:
        raise no_node(sink, "array or group")
    return node.data


def _attributes_in(data: Mapping[str, Any]) -> Mapping[str, Any]:
    given = data.get("attributes", {})
    if not isinstance(given, Mapping):
        raise WeftError(f"attributes: expected an object, got {given!r}")
    return given
