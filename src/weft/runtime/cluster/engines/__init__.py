"""The engines that run tasks: Ray, Dask, or threads of this process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.errors import WeftError
from weft.runtime.cluster.engines.dask import Dask
from weft.runtime.cluster.engines.engine import Engine
from weft.runtime.cluster.engines.ray import Ray
from weft.runtime.cluster.engines.threads import Threads

_DASK_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")


def engine_of(  # noqa: PLR0911 - one for each kind of engine
    on: Any, workers: int | None = None, memory: int | None = None
) -> AbstractContextManager[Engine]:
    """Return the engine that `run(..., on=...)` names.

    What is started for it stops with the block; an engine that is passed in does not. `workers`
    and `memory`, the bytes that each may use, are for an engine that is started.

    >>> with engine_of("threads") as engine:
    ...     print(type(engine).__name__)
    Threads
    """
    match on:
        case "threads":
            return Threads(workers, memory)
        case "ray":
            return Ray(workers, memory=memory)
        case "dask":
            return Dask(workers, memory=memory)
        case str() if on.startswith(_DASK_SCHEMES):
            return Dask(workers, address=on, memory=memory)
        case str() if on == "auto" or ":" in on:
            return Ray(workers, address=on, memory=memory)
    if type(on).__module__.partition(".")[0] == "distributed":
        return Dask(workers, client=on, memory=memory)
    if not isinstance(on, str) and callable(getattr(on, "start", None)) and hasattr(on, "workers"):
        return nullcontext(on)
    raise WeftError(
        f"nothing runs on {on!r}",
        hint="threads, ray, dask, an address, a Dask client, or an engine of weft.runtime.cluster",
    )
