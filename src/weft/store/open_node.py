"""`open`: opens the array, image, plate or positions at a URL, to read or to append to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from weft.errors import WeftError
from weft.store.create import continue_array, open_array
from weft.store.hierarchy import read_node, sink_of
from weft.store.ome.image import open_image
from weft.store.ome.plate import open_plate
from weft.store.ome.positions import open_positions
from weft.store.sink import Url


def open(  # noqa: A001 - what it does is what everybody calls it
    url: Url,
    mode: Literal["r", "a"] = "r",
    *,
    threads: int | None = None,
    fsync: bool = False,
    direct: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Open an array, OME image, plate or positions: to read, or with mode "a" to append frames.

    An array is an `Array`, and with mode "a" a `Writer`; an image is an `Image` or an
    `ImageWriter`; a plate is a `StoredPlate` or a `PlateWriter`; positions are `StoredPositions` or
    a `PositionsWriter`. Appending continues after the frames that are safe:
    complete shards stay as they are, and unfinished files of a writer that was killed are removed.
    `threads`, `fsync` and `direct` are for appending, as in `create`.

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
    fetched = sink.fetch("zarr.json", 0, 1)
    node = None if fetched is None else read_kind(sink)
    if node == "image" and mode == "a":
        return open_image(url, "a", threads=threads, fsync=fsync, options=options)
    if node == "image":
        return open_image(url, options=options)
    if node in ("plate", "collection"):
        opened: Any = open_plate if node == "plate" else open_positions
        if mode == "r":
            return opened(url, options=options)
        more = {} if threads is None else {"threads": threads}
        return opened(url, "a", fsync=fsync, options=options, **more)
    if mode == "r":
        return open_array(url, options=options)
    return continue_array(url, threads=threads, fsync=fsync, direct=direct, options=options)


def read_kind(sink: Any) -> str | None:
    """Return the kind of the node at a sink; None where its `zarr.json` cannot be read."""
    try:
        node = read_node(sink)
    except WeftError:
        return None  # opening it as an array says what is wrong
    return None if node is None else node.kind
