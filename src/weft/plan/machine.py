"""`Machine`: what the cells are like, and how fast the links between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import NamedTuple, SupportsFloat

from weft.errors import WeftError
from weft.values import FrozenMap, freeze


class Link(NamedTuple):
    """What a message pays on its way: seconds to start, and bytes in a second.

    >>> Link(latency=1e-6, bandwidth=50e9)
    Link(latency=1e-06, bandwidth=50000000000.0)
    """

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True, init=False)
class Machine:
    """What the cells of a mesh are like: links by mesh axis, and the rates of a cell.

    `links` gives the link along each axis that differs from the others; `latency` and `bandwidth`
    are the link along all the rest. A message that goes along several axes pays for the slowest.
    A machine as it stands, `Machine()`, counts bytes alone: a gigabyte takes a second.

    The other fields describe a cell: operations in a second by dtype, bytes in a second from its
    memory, bytes that it holds, and the part of communication that hides behind computation.

    >>> machine = Machine({"node": (5e-6, 25e9)}, latency=1e-6, bandwidth=400e9)
    >>> machine.link("node"), machine.link("gpu").bandwidth
    (Link(latency=5e-06, bandwidth=25000000000.0), 400000000000.0)
    """

    links: Mapping[str, Link]
    latency: float
    bandwidth: float
    flops: Mapping[str, float]
    memory_bandwidth: float
    capacity: float
    overlap: float

    def __init__(
        self,
        links: Mapping[str, tuple[float, float]] | None = None,
        latency: float = 0.0,
        bandwidth: float = 1e9,
        *,
        flops: Mapping[str, float] | None = None,
        memory_bandwidth: float = inf,
        capacity: float = inf,
        overlap: float = 0.0,
    ) -> None:
        rest = _as_link((latency, bandwidth), "the machine")
        named = _items(links, "links")
        share = _as_number(overlap, "overlap of the machine")
        if not 0 <= share <= 1:
            raise WeftError(f"overlap of the machine is {share}; it is a part, from 0 to 1")
        freeze(
            self,
            links=FrozenMap((axis, _as_link(link, f'axis "{axis}"')) for axis, link in named),
            latency=rest.latency,
            bandwidth=rest.bandwidth,
            flops=FrozenMap(
                (dtype, _as_rate(rate, f"flops of {dtype}"))
                for dtype, rate in _items(flops, "flops")
            ),
            memory_bandwidth=_as_rate(memory_bandwidth, "memory_bandwidth"),
            capacity=_as_rate(capacity, "capacity"),
            overlap=share,
        )

    @property
    def rest(self) -> Link:
        """The link along the axes that have none of their own, and between meshes."""
        return Link(self.latency, self.bandwidth)

    def link(self, axis: str) -> Link:
        """The link along an axis."""
        return self.links.get(axis) or self.rest

    def __hash__(self) -> int:
        return hash((self.latency, self.bandwidth, len(self.links)))


def _items(given: Mapping[str, object] | None, what: str) -> Iterable[tuple[str, object]]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise WeftError(f"{what} of a machine must be a mapping by name: {given!r}")
    return given.items()


def _as_link(given: object, what: str) -> Link:
    match given:
        case (latency, bandwidth):
            start = _as_number(latency, f"latency of {what}")
            if not (start >= 0 and isfinite(start)):
                raise WeftError(f"latency of {what} is {start} s; it must be finite, 0 or more")
            return Link(start, _as_rate(bandwidth, f"bandwidth of {what}"))
    raise WeftError(f"the link of {what} is latency and bandwidth, got {given!r}")


def _as_rate(given: object, what: str) -> float:
    rate = _as_number(given, what)
    if not rate > 0:
        raise WeftError(f"{what} is {rate}; it must be above 0")
    return rate


def _as_number(given: object, what: str) -> float:
    if isinstance(given, SupportsFloat) and not isinstance(given, str):
        return float(given)
    raise WeftError(f"{what} must be a number: {given!r}")
