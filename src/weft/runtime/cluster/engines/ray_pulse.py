"""`Pulse`: whether the cluster of this process still lives.

Ray itself waits a minute for a head that is gone, and then ends the process that asks.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from weft.extra import needed
from weft.runtime.cluster.engines.engine import ClusterError

LOOK = 1.0
"""The seconds that a wait lasts before the cluster is looked at."""

PATIENCE = 4.0
"""A head that does not answer for so many seconds is gone: one may be started again."""


class Pulse:
    """The head of the cluster and the daemon of this node, as those who listen."""

    def __init__(self, ray: Any) -> None:
        self.head, self.daemon = _head(ray), _daemon()
        self.seen = time.monotonic()

    def is_gone(self, *, at_once: bool = False) -> bool:
        """Whether one of them does not answer, and has not for a while."""
        if _answers(socket.AF_INET, self.head) and _answers(socket.AF_UNIX, self.daemon):
            self.seen = time.monotonic()
            return False
        return at_once or time.monotonic() - self.seen > PATIENCE


def check_reached(address: str | None) -> None:
    """Refuse an address where nobody listens; Ray would ask for two minutes, and then abort."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit() and not _answers(socket.AF_INET, (host.strip("[]"), int(port))):
        raise ClusterError(
            f"no Ray cluster answers at {address}", hint="is it running? ray status says where"
        )


def _head(ray: Any) -> tuple[str, int] | None:
    """The head's host and port; none for a client that Ray passes on, which hears itself."""
    if ray.util.client.ray.is_connected():
        return None
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def _daemon() -> str | None:
    """The socket of the raylet."""
    node = needed("ray._private.worker", "ray")._global_node
    return getattr(node, "raylet_socket_name", None)


def _answers(family: socket.AddressFamily, address: Any) -> bool:
    """Whether somebody takes a connection; who cannot be asked does."""
    if address is None or (isinstance(address, str) and "://" in address):
        return True
    if family == socket.AF_INET and ":" in address[0]:
        family = socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(2.0)
        link.connect(address)
        return True
    return False
