"""`Graph`: values and applications of operators, in SSA form, validated when it is created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from weft.draw import Drawing, Drawn, clip
from weft.errors import LayoutError, ParseError, WeftError
from weft.lang.operator import OPERATORS, Library
from weft.lang.picture import draw_graph
from weft.lang.region import add_region, region_attributes
from weft.lang.signature import Signature
from weft.lang.size import as_sizes, bind, check_condition, names_in, recording
from weft.layout import DeviceMesh, ShardingSpec
from weft.layout.shardy_text import read_sharding, write_symbol
from weft.values import FrozenMap, Point, as_count, counted, freeze


class Value(NamedTuple):
    """An array of the program: its name, its shape and its dtype.

    >>> print(Value("x", (8, 16), "float32"))
    x: float32[8, 16]
    """

    name: str
    shape: Point
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


class Application(NamedTuple):
    """An operator applied to values; `results` names its results.

    Some operators run graphs of their own, their regions: the condition and the body of a loop,
    the branches of a choice. A region's inputs are its block arguments, then the values that it
    captures, under their own names; the application's operands end with all captured values.
    """

    operator: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, Any] = FrozenMap(())
    regions: tuple[Graph, ...] = ()

    def __str__(self) -> str:
        attributes = "".join(f", {key}={value}" for key, value in self.attributes.items())
        return (
            f"{', '.join(self.results)} = {self.operator}({', '.join(self.operands)}{attributes})"
        )


@dataclass(frozen=True, slots=True, init=False)
class Graph(Drawn):
    """A program: its inputs, its applications in order, and which values it returns.

    Meshes and shardings may be given as objects or as text, and are stored as text. A sharding must
    fit its value and its mesh; those of a graph that `is_region` are checked against the meshes of
    the graph that it is part of. `output_shardings` gives an output another sharding than its
    value has. `parameters` names the inputs that are weights or constants of a model.

    >>> from weft.lang import Application, Library, Operator, Value
    >>> graph = Graph(
    ...     inputs=[Value("x", (8, 16)), Value("w", (16, 4))],
    ...     applications=[Application("matmul", ("x", "w"), ("y",))],
    ...     outputs=["y"],
    ...     operators=Library({"matmul": Operator("matmul", "m k, k n -> m n  sum: k")}),
    ... )
    >>> print(graph)
    x: float32[8, 16]
    w: float32[16, 4]
    y: float32[8, 4] = matmul(x, w)
    return y
    """

    inputs: tuple[Value, ...]
    applications: tuple[Application, ...]
    outputs: tuple[str, ...]
    meshes: tuple[str, ...]
    shardings: Mapping[str, str]
    output_shardings: Mapping[int, str]
    parameters: tuple[str, ...]
    """The inputs known to be parameters of a model (weights, buffers, captured arrays)."""
    conditions: tuple[str, ...]
    """What must hold for the sizes that are not known yet, such as `n > 1`."""
    values: Mapping[str, Value] = field(init=False, compare=False)
    """The values of this graph itself."""
    all_values: Mapping[str, Value] = field(init=False, compare=False)
    """Those of its regions as well, in the order of the program: regions before results."""
    signatures: tuple[Signature, ...] = field(init=False, compare=False)
    operators: Library = field(init=False, compare=False)
    is_region: bool = field(init=False, compare=False)

    def __init__(
        self,
        inputs: Iterable[Value],
        applications: Iterable[Application],
        outputs: Iterable[str],
        meshes: Iterable[DeviceMesh | str] = (),
        shardings: Mapping[str, ShardingSpec | str] | None = None,
        output_shardings: Mapping[int, ShardingSpec | str] | None = None,
        operators: Library = OPERATORS,
        dtypes: Mapping[str, str] | None = None,
        parameters: Iterable[str] = (),
        is_region: bool = False,
        conditions: Iterable[str] = (),
    ) -> None:
        given, every = tuple(inputs), tuple(applications)
        values: dict[str, Value] = {}
        everything: dict[str, Value] = {}
        for number, value in enumerate(given):
            with located(f"inputs[{number}]"):
                _add(values, everything, value._replace(shape=as_sizes(value.shape)))
        signatures = []
        for number, application in enumerate(every):
            with located(f"applications[{number}]"):
                for region in application.regions:
                    add_region(values, everything, region)
                applied = _apply(application, values, operators, dtypes or {})
                signatures.append(applied.signature)
                for value in applied.results:
                    _add(values, everything, value)
        wanted = tuple(outputs)
        named = [(f"outputs[{number}]", name) for number, name in enumerate(wanted)]
        for path, name in (*named, *((f"shardings.{name}", name) for name in shardings or {})):
            if name not in values:
                raise WeftError(f"{path}: {name} is not a value of the graph")
        for number in output_shardings or {}:
            if not 0 <= number < len(wanted):
                raise WeftError(f"output_shardings.{number}: the graph has {len(wanted)} outputs")
        weights = tuple(dict.fromkeys(parameters))
        _check_parameters(weights, given)
        specs = [*(shardings or {}).values(), *(output_shardings or {}).values()]
        own = [spec.mesh for spec in specs if isinstance(spec, ShardingSpec)]
        listed = tuple(dict.fromkeys(map(str, (*meshes, *own))))
        known = read_meshes(listed) if listed or not is_region else None
        freeze(
            self,
            inputs=given,
            applications=every,
            outputs=wanted,
            meshes=listed,
            shardings=FrozenMap((k, str(v)) for k, v in (shardings or {}).items()),
            output_shardings=FrozenMap((k, str(v)) for k, v in (output_shardings or {}).items()),
            parameters=weights,
            conditions=tuple(filter(None, map(check_condition, conditions))),
            values=FrozenMap(values.items()),
            all_values=FrozenMap(everything.items()),
            signatures=tuple(signatures),
            operators=operators,
            is_region=is_region,
        )
        self.check_shardings(known)

    def drawing(self) -> Drawing:
        """Draw the applications, their values, and their index dimensions."""
        return draw_graph(self)

    @property
    def unknown_sizes(self) -> tuple[str, ...]:
        """The names of sizes that are not known yet.

        >>> from weft import trace
        >>> graph = trace(lambda x, w: x @ w, ("n", 4), (4, "m"))
        >>> graph.unknown_sizes, graph.bind(m=8).unknown_sizes
        (('m', 'n'), ('n',))
        """
        found = set[str]()
        for value in self.all_values.values():
            found |= names_in(value.shape)
        for application, _ in self.walk():
            found |= names_in(tuple(application.attributes.values()))
        return tuple(sorted(found))

    def bind(self, given: Mapping[str, int] | None = None, /, **more: int) -> Graph:
        """Return the graph with numbers for names of sizes.

        Every shape rule is applied again. Sizes for which one of them gives another shape than was
        traced, or that do not meet a condition of the trace, are refused.

        >>> from weft import trace
        >>> print(trace(lambda x: x + x[:1], ("n", 4)).bind(n=32))
        x: float32[32, 4]
        slice: float32[1, 4] = slice(x, start_indices=(0, 0), limit_indices=(1, 4), strides=(1, 1))
        add: float32[32, 4] = add(x, slice)
        return add
        """
        names, sizes = self.unknown_sizes, {**(given or {}), **more}
        for name, size in sizes.items():
            if name not in names:
                raise WeftError(
                    f"no size of the graph is named {name}",
                    hint=f"sizes without a number: {', '.join(names) or 'none'}",
                )
            as_count(size, name)
        conditions = [check_condition(text, sizes) for text in self.conditions]
        bound = self._bound(sizes, [text for text in conditions if text])
        for name, value in self.all_values.items():
            traced = bind(value.shape, sizes)
            if bound.all_values[name].shape != traced:
                numbers = ", ".join(f"{name}={size}" for name, size in sizes.items())
                raise WeftError(
                    f"with {numbers}, {name} has the shape {list(bound.all_values[name].shape)}, "
                    f"and {list(value.shape)} was traced",
                    hint=f"trace again with {numbers}",
                )
        return bound

    def _bound(self, sizes: Mapping[str, int], conditions: Iterable[str] = ()) -> Graph:
        inputs = [value._replace(shape=bind(value.shape, sizes)) for value in self.inputs]
        applications = [
            application._replace(
                attributes=FrozenMap(
                    (key, bind(value, sizes)) for key, value in application.attributes.items()
                ),
                regions=tuple(region._bound(sizes) for region in application.regions),
            )
            for application in self.applications
        ]
        return Graph(
            inputs,
            applications,
            self.outputs,
            self.meshes,
            self.shardings,
            self.output_shardings,
            self.operators,
            {name: value.dtype for name, value in self.all_values.items()},
            self.parameters,
            self.is_region,
            conditions,
        )

    def check_bound(self, what: str) -> None:
        """Raise for sizes that are not known yet; `what` needs all of them."""
        if names := self.unknown_sizes:
            given = ", ".join(f"{name}=…" for name in names)
            raise WeftError(
                f"{what} needs a number for {', '.join(names)}", hint=f"graph.bind({given})"
            )

    def check_dtypes(self) -> None:
        """Raise for a kernel that takes or returns other dtypes than declared.

        Programs of other frameworks can be planned, but not run, with such dtypes.
        """
        for number, application in enumerate(self.applications):
            operator = self.operators.find(application.operator)
            with located(f"applications[{number}]"):
                for region in application.regions:
                    region.check_dtypes()
                if operator.kernel is None or application.regions:
                    continue
                given = [self.values[name].dtype for name in application.operands]
                dtypes = operator.result_dtypes(given, application.attributes)
                for n, name in enumerate(application.results):
                    dtype = dtypes[min(n, len(dtypes) - 1)]
                    if dtype != self.values[name].dtype:
                        raise WeftError(
                            f"{application.operator} returns {dtype} for its operands, and "
                            f"{self.values[name]} is declared"
                        )

    def walk(self) -> Iterator[tuple[Application, Signature]]:
        """Yield the applications, each followed by those of its regions, with their signatures."""
        for application, signature in zip(self.applications, self.signatures):
            yield application, signature
            for region in application.regions:
                yield from region.walk()

    def check_shardings(self, meshes: Mapping[str, DeviceMesh] | None) -> None:
        """Raise for shardings that do not fit their values or the meshes (None: not known yet)."""
        for name, text in self.shardings.items():
            with located(f"shardings.{name}"):
                check_sharding(text, self.values[name].shape, meshes)
        for number, text in self.output_shardings.items():
            with located(f"output_shardings.{number}"):
                check_sharding(text, self.values[self.outputs[number]].shape, meshes)
        for number, application in enumerate(self.applications if meshes is not None else ()):
            for n, region in enumerate(application.regions):
                with located(f"applications[{number}].regions[{n}]"):
                    region.check_shardings(meshes)

    def __repr__(self) -> str:
        given = ", ".join(value.name for value in self.inputs)
        many = counted(len(self.applications), "application")
        return clip(f"Graph({many}: {given} -> {', '.join(self.outputs)})", 100)

    def __str__(self) -> str:
        lines = [*self.meshes, *self._lines(self.inputs)]
        where = [f"where {', '.join(self.conditions)}"] if self.conditions else []
        return "\n".join([*lines, f"return {', '.join(self.outputs)}", *where])

    def _lines(self, inputs: Iterable[Value]) -> Iterator[str]:
        """Yield the inputs and the applications; regions follow theirs, indented."""
        for value in inputs:
            sharding = self.shardings.get(value.name)
            yield f"{value} {sharding}" if sharding else str(value)
        for application in self.applications:
            results = ", ".join(str(self.values[name]) for name in application.results)
            applied = str(application).partition(" = ")[2]
            yield f"{results} = {applied}" if results else applied
            for name in application.results:
                if name in self.shardings:
                    yield f"    {name} {self.shardings[name]}"
            for number, region in enumerate(application.regions):
                own = [value for value in region.inputs if value.name not in self.values]
                yield f"  region {number}:"
                yield from (f"    {line}" for line in region._lines(own))
                yield f"    return {', '.join(region.outputs)}"


def read_meshes(meshes: Iterable[DeviceMesh | str]) -> dict[str, DeviceMesh]:
    """Return meshes by name; two of one name are an error.

    >>> read_meshes(['@m = <["x"=2]>'])["m"].shape
    (2,)
    """
    known: dict[str, DeviceMesh] = {}
    for number, given in enumerate(meshes):
        with located(f"meshes[{number}]"):
            mesh = DeviceMesh.parse(given)
            if mesh.name in known:
                raise LayoutError(
                    f"two meshes are named {write_symbol(mesh.name)}: {known[mesh.name]}, {mesh}"
                )
        known[mesh.name] = mesh
    return known


def check_sharding(text: str, shape: Point, meshes: Mapping[str, DeviceMesh] | None) -> None:
    """Raise for a sharding that does not fit an array of that shape, or the meshes.

    Without meshes only the notation and the rank are checked: a region has those of its graph.

    >>> check_sharding('<@m, [{"z"}]>', (8,), read_meshes(['@m = <["x"=2]>']))
    Traceback (most recent call last):
    weft.errors.LayoutError: axis "z" cuts dimension 0, but is not an axis of mesh @m
    hint: the mesh is @m = <["x"=2]>
    while reading <@m, [{"z"}]>
    """
    try:
        name, rank = _mesh_and_rank(text)
    except ParseError as error:
        error.args = (f"{text!r} is not a sharding: {error}",)
        raise
    mesh = None if meshes is None else meshes.get(name)
    if mesh is not None:
        _parse_sharding(text, mesh)
    elif meshes is not None:
        known = ", ".join(map(write_symbol, meshes)) or "none"
        raise LayoutError(f"mesh {write_symbol(name)} is not known: {text}", hint=f"known: {known}")
    if rank != len(shape) and (rank or (mesh is not None and mesh.ndim)):
        raise LayoutError(
            f"the sharding has {counted(rank, 'dimension')} and the array has {len(shape)}, "
            f"{list(shape)}: {text}"
        )


def parse_sharding(text: str, meshes: Mapping[str, DeviceMesh]) -> ShardingSpec:
    """Return a sharding, cached: thousands of values have few different ones.

    >>> meshes = read_meshes(['@m = <["x"=2]>'])
    >>> parse_sharding('<@m, [{"x"}]>', meshes) is parse_sharding('<@m, [{"x"}]>', meshes)
    True
    """
    mesh = meshes.get(_mesh_and_rank(text)[0])
    return ShardingSpec.parse(text, meshes) if mesh is None else _parse_sharding(text, mesh)


_parse_sharding = lru_cache(maxsize=4096)(ShardingSpec.parse)


@lru_cache(maxsize=4096)
def _mesh_and_rank(text: str) -> tuple[str, int]:
    sharding = read_sharding(text)
    return sharding.mesh, len(sharding.dims)


def _add(values: dict[str, Value], everything: dict[str, Value], value: Value) -> None:
    if value.name in everything:
        raise WeftError(f"two values are named {value.name}")
    values[value.name] = everything[value.name] = value


def _check_parameters(parameters: tuple[str, ...], inputs: tuple[Value, ...]) -> None:
    """Raise for parameters that are not inputs of the graph."""
    names = {value.name for value in inputs}
    for number, name in enumerate(parameters):
        if name not in names:
            raise WeftError(f"parameters[{number}]: {name} is not an input of the graph")


class _Applied(NamedTuple):
    signature: Signature
    results: list[Value]


@contextmanager
def located(path: str) -> Iterator[None]:
    """Prefix errors raised inside with a path."""
    try:
        yield
    except WeftError as error:
        raise error.at(path)  # noqa: B904 - it is the same error


def _apply(
    application: Application,
    values: Mapping[str, Value],
    operators: Library,
    dtypes: Mapping[str, str],
) -> _Applied:
    """Check one application, and return its signature and results."""
    name, operands, results, attributes, regions = application
    for operand in operands:
        if operand not in values:
            raise WeftError(f"{name} uses {operand} before it is defined")
    if regions:
        attributes = region_attributes(name, application, values)
    shapes = [values[operand].shape for operand in operands]
    operator = operators.find(name)
    with recording(None):  # binding applies the rule again
        signature = operator.sign(shapes, attributes)
    if len(signature.result_shapes) != len(results):
        raise WeftError(
            f"{name} has {len(signature.result_shapes)} results, and {len(results)} are named"
        )
    given = [dtypes.get(result, "") for result in results]
    if not all(given):
        own = operator.result_dtypes([values[operand].dtype for operand in operands], attributes)
        given = [dtype or own[min(n, len(own) - 1)] for n, dtype in enumerate(given)]
    return _Applied(signature, list(map(Value, results, signature.result_shapes, given)))
