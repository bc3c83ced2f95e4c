r"""Graphs as JSON: versioned, checked field by field when it is read, never executed.

    {"weft": 1,
     "meshes": ["@m = <[\"x\"=2]>"],
     "inputs": [{"name": "a", "shape": [8, 4], "dtype": "float32"}],
     "applications": [{"operator": "tanh", "operands": ["a"],
                       "results": [{"name": "b", "dtype": "float32"}], "attributes": {}}],
     "outputs": ["b"],
     "shardings": {"a": "<@m, [{\"x\"}, {}]>"},
     "output_shardings": {"0": "<@m, [{}, {}]>"}}

An error names the path of the field that is wrong: `applications[0].operands[1]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from weft.errors import WeftError
from weft.lang.field import Field as _Field
from weft.lang.field import parse_json
from weft.lang.fusion import with_fused
from weft.lang.graph import Application, Graph, Value
from weft.lang.operator import OPERATORS, Library
from weft.values import FrozenMap

VERSION = 1


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
            "inputs": [value._asdict() for value in graph.inputs],
            "applications": [
                {
                    "operator": application.operator,
                    "operands": list(application.operands),
                    "results": [
                        {"name": name, "dtype": graph.values[name].dtype}
                        for name in application.results
                    ],
                    "attributes": dict(application.attributes),
                }
                for application in graph.applications
            ],
            "outputs": list(graph.outputs),
            "shardings": dict(graph.shardings),
            "output_shardings": {str(place): s for place, s in graph.output_shardings.items()},
        },
        indent=indent,
    )


def from_json(text: str, operators: Library = OPERATORS) -> Graph:
    """Read a graph from its text.

    >>> from_json('{"weft": 1, "inputs": [{"name": "x", "shape": [2, -3]}]}')
    Traceback (most recent call last):
    weft.errors.WeftError: inputs[0].shape[1]: expected a size from 0 to 281474976710656, got -3
    """
    return read_graph(parse_json(text, "the graph"), operators)


def read_graph(root: _Field, operators: Library = OPERATORS) -> Graph:
    """Read a graph from a field of a file."""
    root.fields("weft meshes inputs applications outputs shardings output_shardings")
    if root.at("weft").value != VERSION:
        root.at("weft").fail(f"the version {VERSION}")
    dtypes: dict[str, str] = {}
    inputs = root.at("inputs").items(_value)
    applications = root.at("applications").items(lambda field: _application(field, dtypes))
    operators = with_fused(operators, (application.operator for application in applications))
    return Graph(
        inputs,
        applications,
        root.at("outputs").items(_Field.text),
        root.at("meshes").items(_Field.text),
        root.at("shardings").table(_Field.text),
        {_place(k): v for k, v in root.at("output_shardings").table(_Field.text).items()},
        operators,
        dtypes,
    )


def _value(field: _Field) -> Value:
    field.fields("name shape dtype")
    dtype = "float32" if field.at("dtype").value is None else _dtype(field.at("dtype"))
    return Value(field.at("name").text(), tuple(field.at("shape").items(_Field.size)), dtype)


def _dtype(field: _Field) -> str:
    if field.value not in DTYPES:
        field.fail(f"one of the dtypes {', '.join(DTYPES)}")
    return str(field.value)


def _application(field: _Field, dtypes: dict[str, str]) -> Application:
    field.fields("operator operands results attributes")

    def result(one: _Field) -> str:
        one.fields("name dtype")
        name = one.at("name").text()
        if one.at("dtype").value is not None:
            dtypes[name] = _dtype(one.at("dtype"))
        return name

    attributes: Mapping[str, Any] = field.at("attributes").table(_Field.plain)
    return Application(
        field.at("operator").text(),
        tuple(field.at("operands").items(_Field.text)),
        tuple(field.at("results").items(result)),
        FrozenMap(attributes.items()),
    )


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
