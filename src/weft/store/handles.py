"""What is sent from process to process, opened once in each: handles to stored arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weft.store.metadata import Metadata
from weft.store.sink import Sink

KEPT = 64
"""Handles that a process keeps open, those that were last used."""

_HELD: dict[str, Any] = {}
_LOCK = threading.Lock()


def arrived(
    token: str, make: Callable[[Sink, Metadata], Any], sink: Sink, metadata: Metadata
) -> Any:
    """The handle that is known by a token here; made of what came along if it is the first time."""
    with _LOCK:
        handle = _HELD.pop(token, None)
        if handle is None:
            handle = make(sink, metadata)
            handle.token = token
        _HELD[token] = handle  # the last to be dropped
        while len(_HELD) > KEPT:
            del _HELD[next(iter(_HELD))]
        return handle
