"""`sink_of`: what a path or an address means."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from weft.store.files import Folder
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
