"""`Machine`: the rates of the cells and of the links between them, and its TOML file.

    weft_machine = 1
    name = "two hosts"
    latency = 1e-6              # the link along every axis without one of its own
    bandwidth = 400e9
    shared = false
    memory_bandwidth = 4.8e12   # of a cell
    capacity = 141e9
    overlap = 0.0

    [flops]
    float32 = 67e12

    [links.host]
    latency = 5e-6
    bandwidth = 50e9
    shared = true

    [storage]                   # from a cell to where arrays are stored
    latency = 1e-3
    bandwidth = 2e9
    shared = true

    [operations.ckks-65536]     # measured seconds, one row by size
    rotation = [0.004, 0.013]

Fields that are left out are as in `Machine()`. An error names the path of the field:
`links.host.bandwidth`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

from weft.errors import WeftError
from weft.lang.dtype import DTYPES, itemsize
from weft.lang.field import Field, read_text
from weft.values import FrozenMap, freeze

VERSION = 1
MAX_BYTES = 1 << 20
"""The most bytes of a file."""
MAX_NAMES = 16
"""The most names in one dotted key: parsing takes time quadratic in them."""

_NAME = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_NAME}\.[ \t]*+){{{MAX_NAMES}}}")


class Link(NamedTuple):
    """The cost of a message: seconds to start, and bytes per second.

    The cells along an axis have a link each, or share one: then their bytes add up.

    >>> Link(latency=1e-6, bandwidth=50e9)
    Link(latency=1e-06, bandwidth=50000000000.0, shared=False)
    """

    latency: float
    bandwidth: float
    shared: bool = False


@dataclass(frozen=True, slots=True, init=False)
class Machine:
    """The links of a mesh by axis, and the rates of a cell: what the cost model reads.

    `links` gives the link along each axis that differs from the others; `latency`, `bandwidth` and
    `shared` are the link along all other axes. A message along several axes pays for the slowest.
    The default, `Machine()`, counts bytes alone: a gigabyte takes a second.

    A shared link of its own is one for all the cells that differ along its axis alone; the shared
    link of the other axes is one for all that differ along those axes alone, as cells of one host.

    The other fields describe a cell: operations per second by dtype, bytes per second from its
    memory, the bytes it holds, and the fraction of communication that overlaps with computation.
    `storage` is the link of a cell to where arrays are stored, or the one that all cells share.
    `operations` are measured seconds, by kind of work and name: one row by size each.

    >>> machine = Machine({"node": (5e-6, 25e9)}, latency=1e-6, bandwidth=400e9)
    >>> machine.link("node").bandwidth, machine.link("gpu").bandwidth
    (25000000000.0, 400000000000.0)
    """

    name: str
    latency: float
    bandwidth: float
    shared: bool
    memory_bandwidth: float
    capacity: float
    overlap: float
    flops: Mapping[str, float]
    links: Mapping[str, Link]
    storage: Link
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
        storage: tuple[float, float] | tuple[float, float, bool] = (0.0, 1e9, False),
        name: str = "",
        operations: Mapping[str, Mapping[str, Iterable[float]]] | None = None,
    ) -> None:
        fraction = _number(overlap, "overlap")
        if not 0 <= fraction <= 1:
            Field(overlap, "overlap").fail("a fraction from 0 to 1")
        if not isinstance(name, str) or not name.isprintable():
            Field(name, "name").fail("printable text")
        rest = _link((latency, bandwidth, shared), "")
        axes, measured = _items(links, "links"), _items(operations, "operations")
        tables = ((kind, _rows(table, f"operations.{kind}")) for kind, table in measured)
        freeze(
            self,
            links=FrozenMap((axis, _link(link, f"links.{axis}.")) for axis, link in axes),
            latency=rest.latency,
            bandwidth=rest.bandwidth,
            shared=rest.shared,
            flops=FrozenMap((dtype, _flops(x, dtype)) for dtype, x in _items(flops, "flops")),
            memory_bandwidth=_rate(memory_bandwidth, "memory_bandwidth"),
            capacity=_rate(capacity, "capacity"),
            overlap=fraction,
            storage=_link(storage, "storage."),
            name=name,
            operations=FrozenMap((kind, rows) for kind, rows in tables if rows),
        )

    @property
    def rest(self) -> Link:
        """The link along the axes that have none of their own, and between meshes."""
        return Link(self.latency, self.bandwidth, self.shared)

    def link(self, axis: str) -> Link:
        """Return the link along an axis."""
        return self.links.get(axis) or self.rest

    def rate(self, dtype: str) -> float:
        """Return the operations per second on a dtype.

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
        """Read a machine from a TOML file."""
        text = read_text(Path(path), MAX_BYTES)
        if _LONG_KEY.search(text):
            raise WeftError(f"{path} has a key of more than {MAX_NAMES} names")
        try:
            data = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise WeftError(f"{path} is not TOML: {error}") from None
        try:
            return cls.from_field(Field(data, "", "the machine"))
        except WeftError as error:
            error.add_note(f"while reading {path}")
            raise

    def save(self, path: str | PathLike[str]) -> None:
        """Write the machine to a TOML file, from which `load` reads an equal one."""
        text = "\n".join(_toml_lines(self._fields(), ())) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def from_field(cls, field: Field) -> Machine:
        """Read a machine from JSON or TOML data: the inverse of `to_data`."""
        names = [one.name for one in fields(cls)]
        field.fields(" ".join(["weft_machine", *names]))
        if field.at("weft_machine").value != VERSION:
            field.at("weft_machine").fail(f"the version {VERSION}")
        given = {name: value for name in names if (value := field.at(name).value) is not None}
        given["shared"] = field.at("shared").flag()
        given["links"] = field.at("links").table(_link_data)
        if "storage" in given:
            given["storage"] = _link_data(field.at("storage"))
        try:
            return cls(**given)
        except WeftError as error:
            if field.path:
                error.args = (f"{field.path}.{error}",)
            raise

    def to_data(self) -> dict[str, Any]:
        """Return the machine as data for JSON, which has no infinity: it is the text "inf".

        >>> Machine().to_data()["capacity"]
        'inf'
        """

        def finite(data: Any) -> Any:
            if isinstance(data, dict):
                return {key: finite(value) for key, value in data.items()}
            return "inf" if data == inf else data

        data: dict[str, Any] = finite(self._fields())
        return data

    def _fields(self) -> dict[str, Any]:
        """Return the fields in the order of the file, without defaults of rare tables."""
        data: dict[str, Any] = {"weft_machine": VERSION}
        data |= {one.name: getattr(self, one.name) for one in fields(self)}
        data["flops"] = dict(self.flops)
        data["links"] = {axis: link._asdict() for axis, link in self.links.items()}
        data["storage"] = self.storage._asdict()
        data["operations"] = {
            kind: {name: list(row) for name, row in table.items()}
            for kind, table in self.operations.items()
        }
        if self.storage == Machine().storage:
            del data["storage"]
        if not self.operations:
            del data["operations"]
        return data

    def __hash__(self) -> int:
        return hash((self.latency, self.bandwidth, len(self.links)))


# -- checks of fields, each named by its path


def _items(given: object, path: str) -> Iterable[tuple[str, Any]]:
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        Field(given, path).fail("a mapping by name")
    for name in given:
        if not name or not name.isprintable():
            raise WeftError(f"{path}: the name {name!r} is not printable")
    return given.items()


def _link(given: object, path: str) -> Link:
    match given:
        case (latency, bandwidth) | (latency, bandwidth, True | False):
            shared = len(given) == 3 and bool(given[2])
        case _:
            Field(given, path.rstrip(".") or "shared").fail(
                "(seconds, bytes per second), and True as a third if cells share the link"
            )
    rate = _rate(bandwidth, f"{path}bandwidth")
    return Link(_seconds(latency, f"{path}latency"), rate, shared)


def _link_data(field: Field) -> tuple[Any, Any, bool]:
    field.fields(" ".join(Link._fields))
    return field.at("latency").value, field.at("bandwidth").value, field.at("shared").flag()


def _flops(given: object, dtype: str) -> float:
    if dtype not in DTYPES:
        raise WeftError(f"flops.{dtype}: there is no such dtype", hint=" ".join(DTYPES))
    return _rate(given, f"flops.{dtype}")


def _rows(given: object, path: str) -> FrozenMap[str, tuple[float, ...]]:
    rows = list(_items(given, path))
    for name, row in rows:
        if not isinstance(row, Iterable) or isinstance(row, str):
            Field(row, f"{path}.{name}").fail("a list of seconds")
    return FrozenMap(
        (name, tuple(_seconds(x, f"{path}.{name}[{n}]") for n, x in enumerate(row)))
        for name, row in rows
    )


def _seconds(given: object, path: str) -> float:
    seconds = _number(given, path)
    if not 0 <= seconds < inf:
        Field(given, path).fail("seconds, 0 or more")
    return seconds


def _rate(given: object, path: str) -> float:
    rate = _number(given, path)
    if not rate > 0:
        Field(given, path).fail("a number above 0")
    return rate


def _number(given: object, path: str) -> float:
    if isinstance(given, SupportsFloat) and not isinstance(given, int | str):
        return float(given)
    if given is None:
        Field(given, path).fail("a number")
    return Field(given, path).number(inf)


# -- writing TOML, which the standard library only reads


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a table: its values, then the tables inside it."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if path and len(inner) < len(table):
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    for key, value in table.items():
        if key not in inner:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        yield from _toml_lines(value, (*path, key))


def _toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _toml_value(key)


def _toml_value(value: str | float | list[float]) -> str:
    """Return a value as TOML; texts are printable, so only backslash and quote are escaped."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower()  # a list of numbers, too
