r"""Graphs as JSON: versioned, checked field by field when it is read, never executed.

    {"weft": 1,
     "meshes": ["@m = <[\"x\"=2]>"],
     "inputs": [{"name": "a", "shape": [8, 4], "dtype": "float32"}],
     "applications": [{"operator": "tanh", "operands": ["a"],
                       "results": [{"name": "b", "dtype": "float32"}], "attributes": {}}],
     "outputs": ["b"],
     "shardings": {"a": "<@m, [{\"x\"}, {}]>"},
     "output_shardings": {"0": "<@m, [{}, {}]>"}}

An application that runs graphs of its own has them under `regions`: each with inputs, applications,
outputs and shardings. An error names the path of the field that is wrong:
`applications[0].operands[1]`, `applications[3].regions[1].inputs[0].shape`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from weft.draw import clip
from weft.errors import WeftError
from weft.lang.fusion import with_fused
from weft.lang.graph import Application, Graph, Value
from weft.lang.operator import OPERATORS, Library
from weft.values import FrozenMap

VERSION = 1
LARGEST = 1 << 48
"""The largest size of a dimension, far beyond any array: sizes are bounded before they count."""
MOST = 1_000_000
"""The most entries of one list."""
DEEPEST = 4
"""How deep lists may stand in lists in an attribute."""
NESTED = 32
"""How deep regions may stand in regions."""

T = TypeVar("T")


def to_json(graph: Graph, indent: int | None = 1) -> str:
    """The graph as text.

    >>> from weft.lang import Graph, Value
    >>> text = to_json(Graph([Value("x", (2,))], [], ["x"]), indent=None)
    >>> from_json(text) == Graph([Value("x", (2,))], [], ["x"])
    True
    """
    return json.dumps(
        {
            "weft": VERSION,
            "meshes": list(graph.meshes),
            **_written(graph),
            "output_shardings": {str(place): s for place, s in graph.output_shardings.items()},
        },
        indent=indent,
    )


def _written(graph: Graph) -> dict[str, Any]:
    """The fields that a graph and a region have."""
    return {
        "inputs": [value._asdict() for value in graph.inputs],
        "applications": [_applied(graph, application) for application in graph.applications],
        "outputs": list(graph.outputs),
        "shardings": dict(graph.shardings),
    }


def _applied(graph: Graph, application: Application) -> dict[str, Any]:
    written: dict[str, Any] = {
        "operator": application.operator,
        "operands": list(application.operands),
        "results": [
            {"name": name, "dtype": graph.values[name].dtype} for name in application.results
        ],
        "attributes": dict(application.attributes),
    }
    if application.regions:
        written["regions"] = list(map(_written, application.regions))
    return written


def from_json(text: str, operators: Library = OPERATORS) -> Graph:
    """Read a graph from its text.

    >>> from_json('{"weft": 1, "inputs": [{"name": "x", "shape": [2, -3]}]}')
    Traceback (most recent call last):
    weft.errors.WeftError: inputs[0].shape[1]: expected a size from 0 to 281474976710656, got -3
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeftError(f"this is no JSON: {error}") from None
    root = _Field(data, "")
    root.fields("weft meshes inputs applications outputs shardings output_shardings")
    if root.at("weft").value != VERSION:
        root.at("weft").fail(f"the version {VERSION}")
    reader = _Reader(operators)
    return reader.graph(
        root,
        meshes=root.at("meshes").items(_Field.text),
        output_shardings={
            _place(k): v for k, v in root.at("output_shardings").table(_Field.text).items()
        },
    )


class _Field:
    """A part of the data and the path to it."""

    def __init__(self, value: Any, path: str) -> None:
        self.value, self.path = value, path

    def fail(self, expected: str) -> NoReturn:
        shown = clip(repr(self.value), 60)
        raise WeftError(f"{self.path or 'the graph'}: expected {expected}, got {shown}")

    def at(self, key: str) -> _Field:
        return _Field(self.value.get(key), f"{self.path}.{key}".removeprefix("."))

    def fields(self, allowed: str) -> None:
        if not isinstance(self.value, dict):
            self.fail("an object")
        for key in self.value:
            if key not in allowed.split():
                raise WeftError(f"{self.at(key).path}: there is no such field", hint=allowed)

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            self.fail("a text")
        return str(self.value)

    def items(self, read: Callable[[_Field], T]) -> list[T]:
        if self.value is None:
            return []
        if not isinstance(self.value, list) or len(self.value) > MOST:
            self.fail(f"a list of at most {MOST}")
        return [read(_Field(v, f"{self.path}[{n}]")) for n, v in enumerate(self.value)]

    def table(self, read: Callable[[_Field], T]) -> dict[str, T]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or len(self.value) > MOST:
            self.fail(f"an object of at most {MOST} entries")
        return {key: read(self.at(key)) for key in self.value}

    def size(self) -> int:
        n = self.value
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= LARGEST:
            self.fail(f"a size from 0 to {LARGEST}")
        return int(n)

    def plain(self, depth: int = 0) -> Any:
        """A number, a text, a flag, nothing, or a list of such, as a tuple."""
        if isinstance(self.value, list) and depth < DEEPEST:
            return tuple(self.items(lambda field: field.plain(depth + 1)))
        if not isinstance(self.value, str | int | float | bool | None):
            self.fail(f"a number, a text, a flag or a list of them, at most {DEEPEST} deep")
        return self.value


def _value(field: _Field) -> Value:
    field.fields("name shape dtype")
    dtype = "float32" if field.at("dtype").value is None else _dtype(field.at("dtype"))
    return Value(field.at("name").text(), tuple(field.at("shape").items(_Field.size)), dtype)


def _dtype(field: _Field) -> str:
    if field.value not in DTYPES:
        field.fail(f"one of the dtypes {', '.join(DTYPES)}")
    return str(field.value)


class _Reader:
    """Reads a graph and its regions; dtypes are known by name, which no two values share."""

    def __init__(self, operators: Library) -> None:
        self.operators = operators
        self.dtypes: dict[str, str] = {}

    def graph(self, field: _Field, depth: int = 0, **more: Any) -> Graph:
        inputs = field.at("inputs").items(_value)
        applications = field.at("applications").items(lambda f: self.application(f, depth))
        outputs = field.at("outputs").items(_Field.text)
        shardings = field.at("shardings").table(_Field.text)
        operators = with_fused(self.operators, (applied.operator for applied in applications))
        try:
            return Graph(
                inputs,
                applications,
                outputs,
                shardings=shardings,
                operators=operators,
                dtypes=self.dtypes,
                **more,
            )
        except WeftError as error:
            if field.path:
                error.add_note(f"while reading {field.path}")
            raise

    def application(self, field: _Field, depth: int) -> Application:
        field.fields("operator operands results attributes regions")
        attributes: Mapping[str, Any] = field.at("attributes").table(_Field.plain)
        return Application(
            field.at("operator").text(),
            tuple(field.at("operands").items(_Field.text)),
            tuple(field.at("results").items(self.result)),
            FrozenMap(attributes.items()),
            tuple(field.at("regions").items(lambda f: self.region(f, depth + 1))),
        )

    def region(self, field: _Field, depth: int) -> Graph:
        if depth > NESTED:
            field.fail(f"regions at most {NESTED} deep")
        field.fields("inputs applications outputs shardings")
        return self.graph(field, depth)

    def result(self, field: _Field) -> str:
        field.fields("name dtype")
        name = field.at("name").text()
        if field.at("dtype").value is not None:
            self.dtypes[name] = _dtype(field.at("dtype"))
        return name


def _place(key: str) -> int:
    if not key.isdecimal() or len(key) > 9:
        raise WeftError(f"output_shardings.{key}: expected the number of an output")
    return int(key)


DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float4_e2m1fn"),
)
