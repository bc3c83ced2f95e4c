"""Start a Ray cluster on this machine for this process alone, and notice when a cluster is gone."""

from __future__ import annotations

import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.runtime.cluster.engines.engine import ONE_THREAD, ClusterError, environment

ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Ray behaves as on macOS and Windows, where it listens on loopback, and reports no usage."""

START_ATTEMPTS = 6
"""Ray gives a node 30 seconds to start, which a busy machine may exceed; so often it is tried."""

MIN_OBJECT_STORE = 80 << 20
"""Ray refuses object stores that are much smaller."""


def start_ray(ray: Any, workers: int, memory: int | None) -> None:
    """Start a cluster on loopback only, without a dashboard and usage reports.

    The object store, which holds the blocks, is as large as the memory of all workers.
    """
    limits = {} if memory is None else _limits(workers * memory)
    _agree_on_token()
    try:
        for attempt in range(START_ATTEMPTS):
            try:
                with environment(ALONE | ONE_THREAD), _no_cluster(), _quiet_forks():
                    ray.init(
                        address="local",
                        num_cpus=workers,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level="error",
                        **limits,
                    )
                break
            except Exception as error:
                _stop_node(error)
                if "timed out during startup" not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
        _check_loopback(ray.util.get_node_ip_address())
    except BaseException:
        ray.shutdown()
        raise


def _stop_node(error: BaseException) -> None:
    """Stop the processes of a node that did not start; Ray leaves them until this process ends."""
    trace = error.__traceback__
    while trace is not None:
        node: Any = trace.tb_frame.f_locals.get("self")
        if type(node).__name__ == "Node" and hasattr(node, "kill_all_processes"):
            with suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
            return
        trace = trace.tb_next


def _limits(memory: int) -> dict[str, int]:
    return {"_memory": memory, "object_store_memory": max(memory, MIN_OBJECT_STORE)}


def _check_loopback(address: str) -> None:
    if address not in ("127.0.0.1", "::1"):
        raise WeftError(
            f"a local cluster of this Ray would listen on {address}, not on loopback alone",
            hint="start a cluster and give its address",
        )


@contextmanager
def _no_cluster() -> Iterator[None]:
    """Set what Ray read from `ALONE` at its import; the processes it starts read it again."""
    constants = needed("ray._private.ray_constants", "ray")
    clusters = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters


@contextmanager
def _quiet_forks() -> Iterator[None]:
    """Suppress the warnings of JAX and Python that a process with threads forks.

    What Ray forks becomes another program at once.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        warnings.filterwarnings("ignore", r".*is multi-threaded, use of fork", DeprecationWarning)
        yield


def _agree_on_token() -> None:
    """Create the token that all clusters of a user share, atomically.

    Ray creates one where there is none; two clusters that start together would each create their
    own, and read that of the other or half of it.
    """
    is_given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    is_off = os.environ.get("RAY_AUTH_MODE", "token").lower() != "token"
    path = Path.home() / ".ray" / "auth_token"
    if is_given or is_off or path.exists() or find_spec("ray._private.authentication") is None:
        return
    with suppress(OSError):  # Ray reports what is wrong with the folder
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)


# -- is the cluster there? -------------------------------------------------------------------------

POLL_SECONDS = 1.0
"""How long a wait lasts before the cluster is checked."""

GONE_SECONDS = 4.0
"""A head that has not answered for so long is gone; a head may be restarted."""


class Heartbeat:
    """Checks whether the head of the cluster and the daemon of this node accept connections.

    Ray itself waits a minute for a head that is gone, and then ends the process that asks.
    """

    def __init__(self, ray: Any) -> None:
        self.head, self.daemon = _head(ray), _daemon()
        self.seen = time.monotonic()

    def is_gone(self, *, at_once: bool = False) -> bool:
        """Return whether one of them does not answer, now or for a while."""
        if _answers(socket.AF_INET, self.head) and _answers(socket.AF_UNIX, self.daemon):
            self.seen = time.monotonic()
            return False
        return at_once or time.monotonic() - self.seen > GONE_SECONDS


def check_reachable(address: str | None) -> None:
    """Refuse an address where nothing listens; Ray would try for two minutes, and then abort."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and not _answers(socket.AF_INET, (host.strip("[]"), int(port))):
        raise ClusterError(
            f"no Ray cluster answers at {address}", hint="is it running? ray status says where"
        )


def _head(ray: Any) -> tuple[str, int] | None:
    """Return the head's host and port; None for a Ray client, which notices a loss itself."""
    if ray.util.client.ray.is_connected():
        return None
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def _daemon() -> str | None:
    """Return the socket of the raylet."""
    node = needed("ray._private.worker", "ray")._global_node
    return getattr(node, "raylet_socket_name", None)


def _answers(family: socket.AddressFamily, address: Any) -> bool:
    """Return whether an address accepts a connection; one that cannot be checked counts as such."""
    if address is None or (isinstance(address, str) and "://" in address):
        return True
    if family == socket.AF_INET and ":" in address[0]:
        family = socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(2.0)
        link.connect(address)
        return True
    return False
