"""`Machine`: the rates of the cells and of the links between them, and its TOML or JSON file.

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

    [[cells]]                   # cells that differ: by device, or by coordinates along an axis
    devices = [3]
    speed = 0.25
    [[cells]]
    axis = "host"
    coordinates = [1]
    capacity = 80e9

    [measured]                  # the figures that were measured, with the number of samples
    "flops.float32" = 12

Fields that are left out are as in `Machine()`. An error names the path of the field:
`links.host.bandwidth`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from math import inf, prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

from weft.errors import LayoutError, WeftError
from weft.lang.dtype import DTYPES, itemsize
from weft.lang.field import Field, parse_json, read_text
from weft.layout import DeviceMesh
from weft.values import FrozenMap, Point, as_count, as_point, as_tuple, counted, freeze, scaled

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


@dataclass(frozen=True, slots=True)
class CellGroup:
    """Cells that differ from the others: some devices, or the cells at coordinates of an axis.

    `speed` is how many times as fast as others they compute. A cell that is in several groups has
    the product of their speeds and the least of their capacities.

    >>> CellGroup(devices=(3,), speed=0.25)
    CellGroup(devices=(3,), axis='', coordinates=(), speed=0.25, capacity=None)
    """

    devices: Point = ()
    axis: str = ""
    coordinates: Point = ()
    speed: float = 1.0
    capacity: float | None = None
    """The bytes that each of them holds; None: as many as others."""

    def __post_init__(self) -> None:
        devices = as_point(self.devices, "devices")
        coordinates = as_point(self.coordinates, "coordinates")
        if bool(devices) == bool(self.axis) or bool(self.axis) != bool(coordinates):
            raise WeftError(
                "a group of cells has devices, or an axis with coordinates",
                hint='CellGroup(devices=[3]), or CellGroup(axis="x", coordinates=[0, 1])',
            )
        if min((*devices, *coordinates)) < 0 or not isinstance(self.axis, str):
            raise WeftError(f"there are no such cells: {devices or (self.axis, coordinates)}")
        capacity = None if self.capacity is None else _rate(self.capacity, "capacity")
        freeze(self, devices=devices, coordinates=coordinates, capacity=capacity)
        freeze(self, speed=_finite_rate(self.speed, "speed"))

    def has(self, mesh: DeviceMesh, cell: Point) -> bool:
        """Whether a cell of a mesh belongs to the group."""
        if self.axis:
            if self.axis not in mesh.axis_names:
                raise LayoutError(f'there is no axis "{self.axis}" in {mesh}')
            return cell[mesh.axis_names.index(self.axis)] in self.coordinates
        return mesh.device(cell) in self.devices

    def __str__(self) -> str:
        which = f'at {list(self.coordinates)} of "{self.axis}"' if self.axis else str(self.devices)
        if self.devices:
            which = f"{'device' if len(self.devices) == 1 else 'devices'} " + ", ".join(
                map(str, self.devices)
            )
        speed = [] if self.speed == 1 else [f"{self.speed:g} x the speed"]
        room = [] if self.capacity is None else [scaled(self.capacity, "B")]
        return f"{which}: {', '.join([*speed, *room]) or 'as others'}"


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
    `operations` are measured seconds, by kind of work and name: one row by size each. Operators
    with a row in the table `grid` take the seconds of that row, by the number of operations.
    `cells` are the groups of cells that are slower, faster, smaller or larger than the others.
    `measured` says which figures were measured, by their paths, and from how many samples; all
    others are assumed. Printed, a machine is the table of its figures.

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
    cells: tuple[CellGroup, ...]
    measured: Mapping[str, int]

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
        cells: Iterable[CellGroup] = (),
        measured: Mapping[str, int] | None = None,
    ) -> None:
        fraction = _number(overlap, "overlap")
        if not 0 <= fraction <= 1:
            Field(overlap, "overlap").fail("a fraction from 0 to 1")
        if not isinstance(name, str) or not name.isprintable():
            Field(name, "name").fail("printable text")
        rest = _link((latency, bandwidth, shared), "")
        axes, timed = _items(links, "links"), _items(operations, "operations")
        tables = ((kind, _rows(table, f"operations.{kind}")) for kind, table in timed)
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
            cells=as_tuple(cells, "cells", CellGroup),
            measured=FrozenMap(
                (path, as_count(count, f"measured.{path}"))
                for path, count in _items(measured, "measured")
            ),
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

    def seconds(self, work: Mapping[str, int], dtypes: Iterable[str], touched: int) -> float:
        """Return the seconds of operators, given by their operations, on a cell of speed 1.

        They are measured, or the longer of those for the operations, in the slowest of the dtypes,
        and those for the bytes that are read and written.

        >>> machine = Machine(flops={"float32": 1e9}, operations={"grid": {"add": [1.0, 1.0, 3.0]}})
        >>> [machine.seconds({name: 3}, ["float32"], 0) for name in ("exp", "add")]
        [3e-09, 2.0]
        """
        rate = min(map(self.rate, dtypes), default=inf)
        rows = self.operations.get(GRID, _NO_ROWS)
        timed = [name for name, flops in work.items() if flops and rows.get(name)]
        if not timed:
            return max(sum(work.values()) / rate, touched / self.memory_bandwidth)
        rest = sum(flops for name, flops in work.items() if name not in timed)
        return sum(seconds_in(rows[name], work[name]) for name in timed) + rest / rate

    def speeds(self, mesh: DeviceMesh) -> tuple[float, ...] | None:
        """Return how many times as fast each cell of a mesh is, in rank order; None: all alike.

        >>> machine = Machine(cells=[CellGroup(devices=[1], speed=0.5)])
        >>> machine.speeds(DeviceMesh("m", (3,), ("x",)))
        (1.0, 0.5, 1.0)
        """
        return _speeds(self.cells, mesh) if self.cells else None

    def capacities(self, mesh: DeviceMesh) -> tuple[float, ...] | None:
        """Return the bytes that each cell of a mesh holds, in rank order; None: all the same."""
        return _capacities(self.cells, mesh, self.capacity) if self.cells else None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Machine:
        """Read a machine from a TOML file, or from a JSON file, named .json."""
        text = read_text(Path(path), MAX_BYTES)
        if Path(path).suffix == ".json":
            field = parse_json(text, "the machine")
        else:
            if _LONG_KEY.search(text):
                raise WeftError(f"{path} has a key of more than {MAX_NAMES} names")
            try:
                field = Field(tomllib.loads(text), "", "the machine")
            except (ValueError, RecursionError) as error:
                raise WeftError(f"{path} is not TOML: {error}") from None
        try:
            return cls.from_field(field)
        except WeftError as error:
            error.add_note(f"while reading {path}")
            raise

    def save(self, path: str | PathLike[str]) -> None:
        """Write the machine to a TOML file, or a JSON file; `load` reads an equal one."""
        if Path(path).suffix == ".json":
            text = json.dumps(self.to_data(), indent=1)
        else:
            text = "\n".join(_toml_lines(self._fields(), ()))
        Path(path).write_text(text + "\n", encoding="utf-8")

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
        given["cells"] = field.at("cells").items(_group_data)
        given["measured"] = field.at("measured").table(Field.size)
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
            if isinstance(data, list):
                return [finite(value) for value in data]
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
        data["cells"] = [
            {
                one.name: list(value) if isinstance(value, tuple) else value
                for one in fields(group)
                if (value := getattr(group, one.name)) != one.default
            }
            for group in self.cells
        ]
        data["measured"] = dict(self.measured)
        if self.storage == Machine().storage:
            del data["storage"]
        for name in ("operations", "cells", "measured"):
            if not data[name]:
                del data[name]
        return data

    def __str__(self) -> str:
        rows = [(path, text, self._origin(path)) for path, text in _figures(self)]
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{a:{wide[0]}}  {b:{wide[1]}}  {c}".rstrip() for a, b, c in rows]
        return "\n".join([self.name or "a machine", *lines])

    def _origin(self, path: str) -> str:
        count = self.measured.get(path)
        return "assumed" if count is None else f"measured, {counted(count, 'sample')}"

    def __hash__(self) -> int:
        return hash((self.latency, self.bandwidth, len(self.links)))


GRID = "grid"
"""The table of `Machine.operations` with a row for each operator, as measured on clusters."""

_NO_ROWS: Mapping[str, tuple[float, ...]] = FrozenMap(())


def seconds_in(row: tuple[float, ...], flops: int) -> float:
    """Interpolate the seconds for `flops` operations in a row of seconds for 1, 2, 4, … operations.

    Beyond the last entry, seconds grow in proportion to the operations.

    >>> row = (1.0, 1.0, 2.0, 4.0)
    >>> seconds_in(row, 2), seconds_in(row, 3), seconds_in(row, 16)
    (1.0, 1.5, 8.0)
    """
    low = max(flops, 1).bit_length() - 1
    if low >= len(row) - 1:
        return row[-1] * flops / (1 << (len(row) - 1))
    return row[low] + (row[low + 1] - row[low]) * (flops / (1 << low) - 1)


@lru_cache(maxsize=64)
def _speeds(cells: tuple[CellGroup, ...], mesh: DeviceMesh) -> tuple[float, ...] | None:
    found = tuple(
        prod((group.speed for group in cells if group.has(mesh, cell)), start=1.0)
        for cell in mesh.cells()
    )
    return None if set(found) == {1.0} else found


@lru_cache(maxsize=64)
def _capacities(
    cells: tuple[CellGroup, ...], mesh: DeviceMesh, capacity: float
) -> tuple[float, ...] | None:
    found = tuple(
        min(
            (g.capacity for g in cells if g.capacity is not None and g.has(mesh, cell)),
            default=capacity,
        )
        for cell in mesh.cells()
    )
    return None if set(found) == {capacity} else found


def _figures(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the figures of a machine: their paths, and their values as text."""
    for dtype, rate in machine.flops.items():
        yield f"flops.{dtype}", scaled(rate, "flop/s")
    yield "memory_bandwidth", _rate_text(machine.memory_bandwidth)
    yield "capacity", "unlimited" if machine.capacity == inf else scaled(machine.capacity, "B")
    yield "links", _link_text(machine.rest)
    for axis, link in machine.links.items():
        yield f"links.{axis}", _link_text(link)
    yield "storage", _link_text(machine.storage)
    if machine.overlap:
        yield "overlap", f"{machine.overlap:g}"
    for kind, table in machine.operations.items():
        for name, row in table.items():
            yield f"operations.{kind}.{name}", f"{counted(len(row), 'size')}"
    for number, group in enumerate(machine.cells):
        yield f"cells.{number}", str(group)


def _rate_text(rate: float) -> str:
    return "unlimited" if rate == inf else scaled(rate, "B/s")


def _link_text(link: Link) -> str:
    shared = ", shared" if link.shared else ""
    return f"{scaled(link.latency, 's')}, {_rate_text(link.bandwidth)}{shared}"


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


def _group_data(field: Field) -> CellGroup:
    field.fields(" ".join(one.name for one in fields(CellGroup)))
    axis = "" if field.at("axis").value is None else field.at("axis").text()
    given = {
        "devices": field.at("devices").items(Field.size),
        "axis": axis,
        "coordinates": field.at("coordinates").items(Field.size),
        "speed": field.at("speed").number(1.0),
        "capacity": None if field.at("capacity").value is None else field.at("capacity").number(0),
    }
    return field.make(lambda: CellGroup(**given))  # type: ignore[arg-type]


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


def _finite_rate(given: object, path: str) -> float:
    rate = _rate(given, path)
    if rate == inf:
        Field(given, path).fail("a finite number above 0")
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
    lists = {
        key: value
        for key, value in table.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    if path and len(inner) + len(lists) < len(table):
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    for key, value in table.items():
        if key not in inner and key not in lists:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        yield from _toml_lines(value, (*path, key))
    for key, value in lists.items():
        for each in value:
            yield f"\n[[{'.'.join(map(_toml_key, (*path, key)))}]]"
            yield from _toml_lines(each, ())


def _toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _toml_value(key)


def _toml_value(value: str | float | list[float]) -> str:
    """Return a value as TOML; texts are printable, so only backslash and quote are escaped."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower()  # a list of numbers, too
