"""`Machine`: what the cells are like, and how fast the links between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from os import PathLike
from typing import NamedTuple, SupportsFloat

from weft.errors import WeftError
from weft.lang.dtype import DTYPES, itemsize
from weft.plan.machine_file import STORAGE, load_machine, save_machine
from weft.values import FrozenMap, freeze


class Link(NamedTuple):
    """What a message pays on its way: seconds to start, and bytes in a second.

    The cells along an axis have a link each, or one that is shared: then their bytes add up.

    >>> Link(latency=1e-6, bandwidth=50e9)
    Link(latency=1e-06, bandwidth=50000000000.0, shared=False)
    """

    latency: float
    bandwidth: float
    shared: bool = False


@dataclass(frozen=True, slots=True, init=False)
class Machine:
    """What the cells of a mesh are like: links by mesh axis, and the rates of a cell.

    `links` gives the link along each axis that differs from the others; `latency`, `bandwidth` and
    `shared` are the link along all the rest. A message that goes along several axes pays for the
    slowest. A machine as it stands, `Machine()`, counts bytes alone: a gigabyte takes a second.

    A link that is shared is one for all the cells that differ along its axis alone; the shared link
    of the rest is one for all that differ along those axes alone, as cells of one host do.

    The other fields describe a cell: operations in a second by dtype, bytes in a second from its
    memory, bytes that it holds, and the part of communication that hides behind computation.
    `storage` is the link of a cell to where arrays are stored, or the one that all cells share.
    `operations` are seconds that were measured, by kind of work and name: a row by size each.

    >>> machine = Machine({"node": (5e-6, 25e9)}, latency=1e-6, bandwidth=400e9)
    >>> machine.link("node").bandwidth, machine.link("gpu").bandwidth
    (25000000000.0, 400000000000.0)
    """

    links: Mapping[str, Link]
    latency: float
    bandwidth: float
    shared: bool
    flops: Mapping[str, float]
    memory_bandwidth: float
    capacity: float
    overlap: float
    storage: Link
    name: str
    operations: Mapping[str, Mapping[str, tuple[float, ...]]]

    def __init__(
        self,
        links: Mapping[str, tuple[float, float] | tuple[float, float, bool]] | None = None,
        latency: float = 0.0,
        bandwidth: float = 1e9,
        *,
        shared: bool = False,
        flops: Mapping[str, float] | None = None,
        memory_bandwidth: float = inf,
        capacity: float = inf,
        overlap: float = 0.0,
        storage: tuple[float, float] | tuple[float, float, bool] = STORAGE,
        name: str = "",
        operations: Mapping[str, Mapping[str, Iterable[float]]] | None = None,
    ) -> None:
        rest = _as_link((latency, bandwidth, shared), "the machine")
        named = _items(links, "links")
        share = _as_number(overlap, "overlap of the machine")
        if not 0 <= share <= 1:
            raise WeftError(f"overlap of the machine is {share}; it is a part, from 0 to 1")
        if not isinstance(name, str) or not name.isprintable():
            raise WeftError(f"the name of a machine is a printable text, got {name!r}")
        rates = [(dtype, _as_flops(rate, dtype)) for dtype, rate in _items(flops, "flops")]
        freeze(
            self,
            links=FrozenMap((axis, _as_link(link, f'axis "{axis}"')) for axis, link in named),
            latency=rest.latency,
            bandwidth=rest.bandwidth,
            shared=rest.shared,
            flops=FrozenMap(rates),
            memory_bandwidth=_as_rate(memory_bandwidth, "memory_bandwidth"),
            capacity=_as_rate(capacity, "capacity"),
            overlap=share,
            storage=_as_link(storage, "storage"),
            name=name,
            operations=_as_operations(operations),
        )

    @property
    def rest(self) -> Link:
        """The link along the axes that have none of their own, and between meshes."""
        return Link(self.latency, self.bandwidth, self.shared)

    def link(self, axis: str) -> Link:
        """The link along an axis."""
        return self.links.get(axis) or self.rest

    def rate(self, dtype: str) -> float:
        """The operations in a second on a dtype.

        One that is not named is no faster than the named ones that are at least as wide.

        >>> machine = Machine(flops={"bfloat16": 990e12, "float32": 67e12})
        >>> machine.rate("int32") == machine.rate("float32"), Machine().rate("int8")
        (True, inf)
        """
        if dtype in self.flops:
            return self.flops[dtype]
        width = itemsize(dtype)
        wide = [rate for other, rate in self.flops.items() if itemsize(other) >= width]
        return max(wide) if wide else min(self.flops.values(), default=inf)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Machine:
        """Read a machine from a TOML file; see `weft.plan.machine_file`."""
        return cls(**load_machine(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the machine to a TOML file, from which `load` reads an equal one."""
        save_machine(self, path)

    def __hash__(self) -> int:
        return hash((self.latency, self.bandwidth, len(self.links)))


def _items(given: object, what: str) -> Iterable[tuple[str, object]]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise WeftError(f"{what} of a machine must be a mapping by name: {given!r}")
    for name in given:
        if not name or not name.isprintable():
            raise WeftError(f"{what} of a machine: {name!r} cannot be a name, it is not printable")
    return given.items()


def _as_link(given: object, what: str) -> Link:
    match given:
        case (latency, bandwidth) | (latency, bandwidth, True | False):
            start = _as_number(latency, f"latency of {what}")
            if not (start >= 0 and isfinite(start)):
                raise WeftError(f"latency of {what} is {start} s; it must be finite, 0 or more")
            rate = _as_rate(bandwidth, f"bandwidth of {what}")
            return Link(start, rate, len(given) == 3 and bool(given[2]))
    raise WeftError(
        f"the link of {what} is latency and bandwidth, got {given!r}",
        hint="write (seconds, bytes in a second), and True as a third if cells share it",
    )


def _as_flops(given: object, dtype: str) -> float:
    if dtype not in DTYPES:
        raise WeftError(f"flops of {dtype}: there is no such dtype", hint=" ".join(DTYPES))
    return _as_rate(given, f"flops of {dtype}")


def _as_operations(given: object) -> FrozenMap[str, FrozenMap[str, tuple[float, ...]]]:
    """Tables that are not empty, each of rows of seconds."""
    tables = []
    for kind, table in _items(given, "operations"):
        rows = _items(table, f"operations.{kind}")
        read = FrozenMap((name, _as_row(row, f"{name} of {kind}")) for name, row in rows)
        tables += [(kind, read)] * (len(read) > 0)
    return FrozenMap(tables)


def _as_row(given: object, what: str) -> tuple[float, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise WeftError(f"{what} is a row of seconds, got {given!r}")
    row = tuple(_as_number(seconds, what) for seconds in given)
    for seconds in row:
        if not (seconds >= 0 and isfinite(seconds)):
            raise WeftError(f"{what} has {seconds} s; they must be finite, 0 or more")
    return row


def _as_rate(given: object, what: str) -> float:
    rate = _as_number(given, what)
    if not rate > 0:
        raise WeftError(f"{what} is {rate}; it must be above 0")
    return rate


def _as_number(given: object, what: str) -> float:
    if isinstance(given, SupportsFloat) and not isinstance(given, str):
        return float(given)
    raise WeftError(f"{what} must be a number: {given!r}")
