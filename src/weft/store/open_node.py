"""`open`: opens what is at a URL, to read it or to append to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from weft.errors import WeftError
from weft.store.array import Array
from weft.store.create import continue_array
from weft.store.group import Group
from weft.store.hierarchy import (
    find_node,
    load_metadata,
    read_node,
    sink_of,
)
from weft.store.ome.image import open_image
from weft.store.ome.plate import open_plate
from weft.store.ome.positions import open_positions
from weft.store.sink import Sink, Url


def open(  # noqa: A001 - what it does is what everybody calls it
    url: Url | Sink,
    mode: Literal["r", "a"] = "r",
    *,
    threads: int | None = None,
    fsync: bool = False,
    direct: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Open an array, OME image, plate, positions or group: to read, or to append with mode "a".

    An array is an `Array`, and with mode "a" a `Writer`; an image is an `Image` or an
    `ImageWriter`; a plate is a `StoredPlate` or a `PlateWriter`; positions are `StoredPositions` or
    a `PositionsWriter`; any other group is a `Group`. Arrays and groups of Zarr v2 are read as
    well. Appending continues after the frames that are safe: complete shards stay as they are, and
    unfinished files of a writer that was killed are removed. `threads`, `fsync` and `direct` are
    for appending, as in `create`.

    >>> import tempfile
    >>> from weft.store import create
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     create(f"{folder}/a", (None, 5), "uint8", (2, 3)).close()
    ...     open(f"{folder}/a").shape
    (0, 5)
    """
    if mode not in ("r", "a"):
        raise WeftError(f"mode is 'r' or 'a', got {mode!r}")
    sink = sink_of(url, options=options)
    if mode == "a":
        sink = sink_of(sink, fsync=fsync)
        kind = None if sink.fetch("zarr.json", 0, 1) is None else read_kind(sink)
        if kind == "image":
            return open_image(sink, "a", threads=threads)
        if kind in ("plate", "collection"):
            continued: Any = open_plate if kind == "plate" else open_positions
            more = {} if threads is None else {"threads": threads}
            return continued(sink, "a", **more)
        return continue_array(sink, threads=threads, direct=direct)
    node = find_node(sink)
    if node is None or node.kind == "array":
        return Array(sink, load_metadata(sink) if node is None else node.metadata(sink.url))
    readers: dict[str, Any] = {
        "image": open_image,
        "plate": open_plate,
        "collection": open_positions,
    }
    if node.kind in readers:
        return readers[node.kind](sink)
    return Group(sink, node)


def read_kind(sink: Any) -> str | None:
    """Return the kind of the node at a sink; None where its `zarr.json` cannot be read."""
    try:
        node = read_node(sink)
    except WeftError:
        return None  # opening it as an array says what is wrong
    return None if node is None else node.kind
