"""`engine_of`: what `run(..., on=...)` means."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.errors import WeftError
from weft.runtime.cluster.engines.dask import Dask
from weft.runtime.cluster.engines.engine import Engine
from weft.runtime.cluster.engines.local import Threads
from weft.runtime.cluster.engines.ray import Ray

_DASK = ("tcp://", "tls://", "ucx://", "ws://", "wss://")


def engine_of(
    on: Any, workers: int | None = None, memory: int | None = None
) -> AbstractContextManager[Engine]:
    """The engine that is meant; what is started for it stops with the block, an engine does not.

    `workers` and `memory`, the bytes that each may use, are for one that is started.

    >>> with engine_of("threads") as engine:
    ...     print(type(engine).__name__)
    Threads
    """
    if isinstance(on, str):
        return _named(on, workers, memory)
    if type(on).__module__.partition(".")[0] == "distributed":
        return Dask(workers, client=on, memory=memory)
    if callable(getattr(on, "start", None)) and hasattr(on, "workers"):
        return nullcontext(on)
    raise _unknown(on)


def _named(on: str, workers: int | None, memory: int | None) -> AbstractContextManager[Engine]:
    match on:
        case "threads":
            return Threads(workers, memory)
        case "ray":
            return Ray(workers, memory=memory)
        case "dask":
            return Dask(workers, memory=memory)
    if on.startswith(_DASK):
        return Dask(workers, address=on, memory=memory)
    if on == "auto" or ":" in on:
        return Ray(workers, address=on, memory=memory)
    raise _unknown(on)


def _unknown(on: object) -> WeftError:
    return WeftError(
        f"nothing runs on {on!r}",
        hint="threads, ray, dask, an address, a Dask client, or an engine of weft.runtime.cluster",
    )
