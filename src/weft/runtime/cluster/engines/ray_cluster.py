"""`start_ray`: a Ray cluster of this machine, for this process alone."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.cluster.engines.limits import ONE_THREAD, setting

ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray as it is on macOS and Windows, where it listens on loopback, and without usage reports."""

LEAST_STORE = 80 << 20
"""Ray refuses object stores that are much smaller."""


def start_ray(ray: Any, workers: int, memory: int | None) -> None:
    """Start a cluster: on loopback alone, no dashboard, nothing told to anybody.

    The object store is as large as what the workers may use: their blocks lie in it.
    """
    limits = {} if memory is None else _limits(workers * memory)
    _agree_on_token()
    try:
        with setting(ALONE | ONE_THREAD), _no_cluster(), _quiet_forks():
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                **limits,
            )
        _check_loopback(ray.util.get_node_ip_address())
    except BaseException:
        ray.shutdown()
        raise


def _limits(memory: int) -> dict[str, int]:
    return {"_memory": memory, "object_store_memory": max(memory, LEAST_STORE)}


def _check_loopback(address: str) -> None:
    if address not in ("127.0.0.1", "::1"):
        raise WeftError(
            f"a local cluster of this Ray would listen on {address}, not on loopback alone",
            hint="start a cluster and give its address",
        )


@contextmanager
def _no_cluster() -> Iterator[None]:
    """Ray reads the first of `ALONE` when it is imported; what it starts reads it again."""
    constants = needed("ray._private.ray_constants", "ray")
    clusters = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters


@contextmanager
def _quiet_forks() -> Iterator[None]:
    """No warnings that this process has threads and forks.

    JAX and Python give them. What Ray forks turns into another program at once.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        warnings.filterwarnings("ignore", r".*is multi-threaded, use of fork", DeprecationWarning)
        yield


def _agree_on_token() -> None:
    """One token for the clusters of a user, made at once.

    Ray makes one where there is none; two that start together would each make their own, and read
    that of the other or half of it.
    """
    said = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    is_off = os.environ.get("RAY_AUTH_MODE", "token").lower() != "token"
    path = Path.home() / ".ray" / "auth_token"
    if said or is_off or path.exists() or find_spec("ray._private.authentication") is None:
        return
    with suppress(OSError):  # Ray will say what is wrong with the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)
