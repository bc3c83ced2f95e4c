r"""Graphs as JSON: versioned, checked field by field when read, never executed.

    {"weft": 1,
     "meshes": ["@m = <[\"x\"=2]>"],
     "inputs": [{"name": "a", "shape": [8, 4], "dtype": "float32"}],
     "applications": [{"operator": "tanh", "operands": ["a"],
                       "results": [{"name": "b", "dtype": "float32"}], "attributes": {}}],
     "outputs": ["b"],
     "shardings": {"a": "<@m, [{\"x\"}, {}]>"},
     "output_shardings": {"0": "<@m, [{}, {}]>"},
     "parameters": ["a"]}

`parameters` names the inputs that are weights or constants of a model; it is optional. A size that
is not known yet is text in a shape, `["n", 4]`, and `{"size": "2*n"}` in an attribute; `conditions`
lists what must hold for such sizes. A complex number is `{"complex": [1.0, -2.0]}`. `monoids` has
the fingerprint of each monoid that a user defined; a graph is refused where the monoid of that name
is another one.

An application that runs graphs of its own has them under `regions`: each with inputs, applications,
outputs and shardings. An error names the path of the wrong field:
`applications[0].operands[1]`, `applications[3].regions[1].inputs[0].shape`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import DTYPES, is_dtype
from weft.lang.field import LARGEST, MOST, parse_json, short_repr
from weft.lang.field import Field as _Field
from weft.lang.fusion import with_fused
from weft.lang.graph import Application, Graph, Value
from weft.lang.monoid import check_definition, definitions_of
from weft.lang.notation import CUSTOM
from weft.lang.operator import OPERATORS, Library
from weft.lang.size import Size, check_condition
from weft.layout.shardy_text import read_mesh, read_sharding
from weft.values import FrozenMap

VERSION = 1
NESTED = 32
"""The deepest nesting of regions."""
MOST_DIMS = 256
"""The most dimensions of a value."""


def to_json(graph: Graph, indent: int | None = 1) -> str:
    """Return the graph as text.

    >>> from weft.lang import Graph, Value
    >>> text = to_json(Graph([Value("x", (2,))], [], ["x"]), indent=None)
    >>> from_json(text) == Graph([Value("x", (2,))], [], ["x"])
    True
    """
    monoids = definitions_of(_monoids(graph))
    return json.dumps(
        {
            "weft": VERSION,
            "meshes": list(graph.meshes),
            **_fields_of(graph),
            "output_shardings": {str(place): s for place, s in graph.output_shardings.items()},
            **({"parameters": list(graph.parameters)} if graph.parameters else {}),
            **({"conditions": list(graph.conditions)} if graph.conditions else {}),
            **({"monoids": monoids} if monoids else {}),
        },
        indent=indent,
        default=str,  # a size in a shape; attributes have none left
    )


def _monoids(graph: Graph) -> Iterator[str]:
    """Yield the monoids of reductions and of shardings, those of regions included."""
    shardings = [*graph.shardings.values(), *graph.output_shardings.values()]
    for application, line in graph.walk():
        yield from (monoid for monoid in line.notation.reduced.values() if monoid != CUSTOM)
        shardings += (text for region in application.regions for text in region.shardings.values())
    for text in shardings:
        yield from (monoid for _, monoid in read_sharding(text).partial)


def check_monoids(field: _Field) -> None:
    """Refuse a file whose monoids are defined differently here."""
    for name, recorded in field.table(_Field.text).items():
        field.at(name).make(check_definition, name, recorded)


def _fields_of(graph: Graph) -> dict[str, Any]:
    """Return the fields that graphs and regions share."""
    return {
        "inputs": [value._asdict() for value in graph.inputs],
        "applications": [
            _application_fields(graph, application) for application in graph.applications
        ],
        "outputs": list(graph.outputs),
        "shardings": dict(graph.shardings),
    }


def _application_fields(graph: Graph, application: Application) -> dict[str, Any]:
    written: dict[str, Any] = {
        "operator": application.operator,
        "operands": list(application.operands),
        "results": [
            {"name": name, "dtype": graph.values[name].dtype} for name in application.results
        ],
        "attributes": {key: _plain(value) for key, value in application.attributes.items()},
    }
    if application.regions:
        written["regions"] = list(map(_fields_of, application.regions))
    return written


def _plain(value: Any) -> Any:
    """Return the value of an attribute with its sizes and complex numbers as objects."""
    if isinstance(value, Size):
        return {"size": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return list(map(_plain, value)) if isinstance(value, tuple | list) else value


def from_json(text: str, operators: Library = OPERATORS) -> Graph:
    """Read a graph from its text.

    >>> from_json('{"weft": 1, "inputs": [{"name": "x", "shape": [2, -3]}]}')
    Traceback (most recent call last):
    weft.errors.WeftError: inputs[0].shape[1]: expected a size from 0 to 281474976710656, got -3
    """
    return read_graph(parse_json(text, "the graph"), operators)


def read_graph(root: _Field, operators: Library = OPERATORS) -> Graph:
    """Read a graph from a field of a file."""
    root.fields(
        "weft meshes inputs applications outputs shardings output_shardings parameters conditions "
        "monoids"
    )
    if root.at("weft").value != VERSION:
        root.at("weft").fail(f"the version {VERSION}")
    check_monoids(root.at("monoids"))
    reader = _GraphReader(operators)
    return reader.graph(
        root,
        meshes=root.at("meshes").items(_mesh),
        output_shardings={
            _output_number(k): v for k, v in root.at("output_shardings").table(_Field.text).items()
        },
        parameters=root.at("parameters").items(_Field.text),
        conditions=root.at("conditions").items(_condition),
    )


def _check_results(graph: Graph) -> None:
    """Raise for results beyond the limits: attributes alone do not bound them."""
    for number, application in enumerate(graph.applications):
        for place, name in enumerate(application.results):
            value, path = graph.values[name], f"applications[{number}].results[{place}]"
            if len(value.shape) > MOST_DIMS:
                raise WeftError(f"{path}: {len(value.shape)} dimensions; at most {MOST_DIMS}")
            for size in value.shape:
                if not isinstance(size, Size) and size > LARGEST:
                    raise WeftError(
                        f"{path}: {name} has a dimension of {short_repr(size)}, above {LARGEST}"
                    )
            if not is_dtype(value.dtype):
                raise WeftError(f"{path}: unknown dtype {short_repr(value.dtype)}")


def _value(field: _Field) -> Value:
    field.fields("name shape dtype")
    dtype = "float32" if field.at("dtype").value is None else _dtype(field.at("dtype"))
    shape = field.at("shape").items(_size)
    if len(shape) > MOST_DIMS:
        field.at("shape").fail(f"at most {MOST_DIMS} dimensions")
    return Value(field.at("name").text(), tuple(shape), dtype)


def _size(field: _Field) -> Any:
    return field.make(Size.parse, field.value) if isinstance(field.value, str) else field.size()


def _condition(field: _Field) -> str:
    return field.make(check_condition, field.text())


def _mesh(field: _Field) -> str:
    """Read the text of a mesh, with at most as many cells as can be planned."""
    text = field.text()
    if prod(size for _, size in field.make(read_mesh, text).axes) > MOST:
        field.fail(f"a mesh of at most {MOST} cells")
    return text


def _dtype(field: _Field) -> str:
    if not is_dtype(field.value):
        field.fail(f"one of the dtypes {', '.join(DTYPES)}")
    return str(field.value)


class _GraphReader:
    """Reads a graph and its regions; names are unique, so dtypes are kept by name."""

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
            graph = Graph(
                inputs,
                applications,
                outputs,
                shardings=shardings,
                operators=operators,
                dtypes=self.dtypes,
                **more,
            )
            _check_results(graph)
        except WeftError as error:
            raise error.at(field.path) if field.path else error  # noqa: B904 - it is the same error
        return graph

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
        return self.graph(field, depth, is_region=True)

    def result(self, field: _Field) -> str:
        field.fields("name dtype")
        name = field.at("name").text()
        if field.at("dtype").value is not None:
            self.dtypes[name] = _dtype(field.at("dtype"))
        return name


def _output_number(key: str) -> int:
    if not key.isdecimal() or len(key) > 9:
        raise WeftError(f"output_shardings.{key}: expected the number of an output")
    return int(key)
