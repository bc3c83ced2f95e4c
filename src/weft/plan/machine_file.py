"""Machines as TOML: versioned, checked field by field when it is read.

    weft_machine = 1
    name = "two hosts"
    latency = 1e-6              # the link along every axis that has none of its own
    bandwidth = 400e9
    shared = false
    memory_bandwidth = 4.8e12   # of a cell; inf where nothing is said
    capacity = 141e9
    overlap = 0.0

    [flops]
    float32 = 67e12

    [links.host]
    latency = 5e-6
    bandwidth = 50e9
    shared = true

    [storage]                   # from a cell to where arrays are stored; 1e9 where nothing is said
    latency = 1e-3
    bandwidth = 2e9
    shared = true

    [operations.ckks-65536]     # seconds that were measured, a row by size
    rotation = [0.004, 0.013]

Whatever is left out is as in `Machine()`. An error names the path of the field that is wrong:
`links.host.bandwidth`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from math import inf
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.lang.dtype import DTYPES
from weft.lang.field import Field

if TYPE_CHECKING:
    from weft.plan.machine import Machine

VERSION = 1
LONGEST = 1 << 20
"""The most bytes of a file."""
DEEPEST = 16
"""The most names in one dotted key; a parser takes time quadratic in them."""

_NAME = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')[ \t]*+"""
_DEEP = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_NAME}\.[ \t]*+){{{DEEPEST}}}")

STORAGE = (0.0, 1e9, False)
"""The link to storage where nothing is said: it counts bytes alone, as the plain machine does."""

FIELDS = (
    "weft_machine name latency bandwidth shared memory_bandwidth capacity overlap flops links "
    "storage operations"
)
NUMBERS = ("latency", "bandwidth", "memory_bandwidth", "capacity", "overlap")


def load_machine(path: str | PathLike[str]) -> dict[str, Any]:
    """What a file says of a machine: the arguments of `Machine`."""
    with Path(path).open("rb") as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise WeftError(f"{path} is no machine: it is longer than {LONGEST} B")
    try:
        text = data.decode()
        if _DEEP.search(text):
            raise WeftError(f"{path} is no machine: a key has more than {DEEPEST} names")
        parsed = tomllib.loads(text)
    except WeftError:
        raise
    except (ValueError, RecursionError) as error:
        raise WeftError(f"{path} is no TOML: {error}") from None
    try:
        return read_machine(Field(parsed, "", "the machine"))
    except WeftError as error:
        error.add_note(f"while reading {path}")
        raise


def read_machine(root: Field) -> dict[str, Any]:
    """What a table says of a machine: the arguments of `Machine`, each checked by itself."""
    root.fields(FIELDS)
    if root.at("weft_machine").value != VERSION:
        root.at("weft_machine").fail(f"the version {VERSION}")
    said: dict[str, Any] = {
        "links": root.at("links").table(_link),
        "flops": root.at("flops").table(_flops),
        "shared": root.at("shared").flag(),
        "operations": root.at("operations").table(lambda kind: kind.table(_row)),
    }
    if root.at("storage").value is not None:
        said["storage"] = _link(root.at("storage"))
    said |= {key: _number(root, key) for key in NUMBERS if root.at(key).value is not None}
    if root.at("name").value not in (None, ""):
        said["name"] = root.at("name").text()
    return said


def _link(field: Field) -> tuple[float, float, bool]:
    field.fields("latency bandwidth shared")
    return _number(field, "latency"), _number(field, "bandwidth"), field.at("shared").flag()


def _flops(field: Field) -> float:
    dtype = field.path.rpartition(".")[2]
    if dtype not in DTYPES:
        raise WeftError(f"{field.path}: there is no such dtype", hint=" ".join(DTYPES))
    return _above_zero(field)


def _row(field: Field) -> list[float]:
    if not isinstance(field.value, list):
        field.fail("a list of seconds")
    return field.items(_seconds)


def _seconds(field: Field) -> float:
    if field.value is None or not 0 <= field.number(0) < inf:
        field.fail("seconds, 0 or more")
    return field.number(0)


def _number(field: Field, key: str) -> float:
    """A field that must be there: a latency from 0 on, a part from 0 to 1, a rate above 0."""
    one = field.at(key)
    if one.value is None:
        one.fail("a number")
    if key == "latency":
        return _seconds(one)
    if key == "overlap" and not 0 <= one.number(0) <= 1:
        one.fail("a part, from 0 to 1")
    return one.number(0) if key == "overlap" else _above_zero(one)


def _above_zero(field: Field) -> float:
    if not field.number(0) > 0:
        field.fail("a number above 0")
    return field.number(0)


def machine_data(machine: Machine) -> dict[str, Any]:
    """The fields of a machine, in the order of the file: what `read_machine` reads."""
    data: dict[str, Any] = {
        "weft_machine": VERSION,
        "name": machine.name,
        "latency": machine.latency,
        "bandwidth": machine.bandwidth,
        "shared": machine.shared,
        "memory_bandwidth": machine.memory_bandwidth,
        "capacity": machine.capacity,
        "overlap": machine.overlap,
        "flops": dict(machine.flops),
        "links": {axis: link._asdict() for axis, link in machine.links.items()},
    }
    if machine.storage != STORAGE:
        data["storage"] = machine.storage._asdict()
    if machine.operations:
        tables = machine.operations.items()
        data["operations"] = {
            kind: {name: list(row) for name, row in table.items()} for kind, table in tables
        }
    return data


def finite(data: Any) -> Any:
    """The data with a word in place of what JSON cannot say.

    >>> finite({"capacity": float("inf"), "overlap": 0.5})
    {'capacity': 'inf', 'overlap': 0.5}
    """
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    return "inf" if data == inf else data


def save_machine(machine: Machine, path: str | PathLike[str]) -> None:
    """Write a machine to a file."""
    text = "\n".join(_table(machine_data(machine), ())) + "\n"
    Path(path).write_text(text, encoding="utf-8")


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table: its values first, then the tables in it."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    if path and (len(inner) < len(table)):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _table(value, (*path, key))


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _value(key)


def _value(value: str | float | list[float]) -> str:
    """A value as TOML writes it; texts are printable, so that no more than two signs need care."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower()  # a list of numbers too
