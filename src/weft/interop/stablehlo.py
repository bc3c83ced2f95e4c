"""Read StableHLO text, such as `jax.jit(f).lower(...).as_text()`, into a `Graph`.

Values keep the names of the text. Calls are inlined: the values of a function that `%1` calls are
`1/arg0`, `1/cst`, `1/0`, and its result is `1`; arrays enter and leave by an edge. Loops, choices
and manual computations have regions, whose values are `3/body/0`, `4/branch1/0`, `5/0`. An
operation that no operator describes is opaque: none of its dimensions can be cut, so that it is
computed on replicated arrays.

Dynamic dimensions become sizes that are not known yet: `weft.interop.dynamic` follows them.

`weft.interop.mlir` parses the text into the records of this module; `Builder` makes the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.interop.dynamic import DYNAMIC, SizeTracker
from weft.interop.threefry import is_threefry
from weft.lang import (
    OPERATORS,
    Application,
    Graph,
    Library,
    Notation,
    Operator,
    Row,
    Signature,
    Value,
)
from weft.lang.dtype import Component, struct_dtype
from weft.lang.monoid import highest, largest, lowest
from weft.layout.shardy_text import read_mesh, read_sharding, write_symbol
from weft.values import FrozenMap, Point

OPAQUE = "opaque:"
"""The prefix of the name of an operation that no operator describes."""

DEEPEST = 150
"""The deepest nesting of calls and regions."""
MOST_INLINED = 80_000
"""The most applications that inlining may add."""
LONGEST_PATH = 4096
"""The longest prefix of the names of values in calls and regions."""

_NOTHING: FrozenMap[str, Any] = FrozenMap(())
_ENTERING: FrozenMap[str, Any] = FrozenMap([("enters", True)])
"""The attributes of an edge into a call; an edge out of it has none."""

_LABELS = {"while": ("cond", "body"), "if": ("true", "false")}
"""The names of an operation's regions in the names of their values."""


def read(text: str, names: Sequence[str] = ()) -> Graph:
    """Return the graph of a module's text, with its meshes and shardings; `names` renames inputs.

    >>> graph = read('''
    ...     sdy.mesh @m = <["x"=2]>
    ...     func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>})
    ...             -> tensor<8xf32> {
    ...         %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<8xf32>) -> tensor<8xf32>
    ...         return %0 : tensor<8xf32>
    ...     }
    ... ''')
    >>> graph.meshes, dict(graph.shardings), opaque(graph)
    (('@m = <["x"=2]>',), {'arg0': '<@m, [{"x"}]>'}, ['custom_call @mystery'])
    """
    return Builder(parse(text), names).graph()


def opaque(graph: Graph) -> list[str]:
    """Return the operations that no operator describes, each once, in program order."""
    names = (application.operator for application, _ in graph.walk())
    return list(dict.fromkeys(n.removeprefix(OPAQUE) for n in names if n.startswith(OPAQUE)))


def parse(text: str) -> Module:
    """Parse the text of a module; this needs jaxlib."""
    try:
        module: Module = import_module("weft.interop.mlir").parse(text)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise
        message = f"reading StableHLO needs {error.name}, which is not installed"
        raise WeftError(message, hint="pip install weft[jax]") from None
    return module


class Region(NamedTuple):
    """A block inside an operation; values that it uses and does not define are captured."""

    arguments: tuple[Value, ...]
    body: tuple[Operation, ...]
    returned: tuple[str, ...]


class Operation(NamedTuple):
    """One operation; values have the names that the printer gives them."""

    name: str
    operands: tuple[str, ...]
    operand_shapes: tuple[Point, ...]
    captured: Mapping[str, Point]
    """The values that its regions capture, with shapes, if the regions are not read."""
    results: tuple[Value, ...]
    attributes: FrozenMap[str, Any]
    shardings: tuple[str, ...]
    """Those of the results, or none."""
    callee: str
    """The function that it calls, if any."""
    regions: tuple[Region, ...] = ()
    """The regions of loops, choices, manual and named computations."""


class Function(NamedTuple):
    """A function of one block; a sharding is empty where there is none."""

    arguments: tuple[Value, ...]
    argument_shardings: tuple[str, ...]
    body: tuple[Operation, ...]
    returned: tuple[str, ...]
    returned_shardings: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    """The names of sizes that are arguments; empty where an argument is none."""
    labels: tuple[str, ...] = ()
    """The names that JAX gave the arguments, or empty."""


class Module(NamedTuple):
    """A module: `main` and the functions that it calls."""

    meshes: tuple[str, ...]
    functions: Mapping[str, Function]
    main: str


@dataclass(slots=True)
class GraphParts:
    """A graph under construction: its applications, and the dtypes and shardings of results."""

    applications: list[Application] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)
    """The constants that hold sizes, by the names of the sizes."""
    dtypes: dict[str, str] = field(default_factory=dict)
    shardings: dict[str, str] = field(default_factory=dict)


class Builder:
    """Builds the graph of `main`: calls are inlined, regions become graphs."""

    def __init__(
        self,
        module: Module,
        inputs: Sequence[str] = (),
        shapes: Sequence[Point] = (),
        labelled: bool = False,
    ) -> None:
        self.module = module
        self.inputs = inputs
        """The names of the inputs, if they differ from those in the text."""
        self.shapes = shapes
        """The shapes of the arguments of `main`, if the text does not have them."""
        self.labelled = labelled
        """Whether inputs are named by JAX's names of arguments."""
        self.library = Library(OPERATORS)
        self.values: dict[str, Value] = {}
        self.sizes = SizeTracker(module, self.values)
        meshes = map(read_mesh, module.meshes)
        self.maximal = {mesh.name for mesh in meshes if not mesh.axes and mesh.device_ids}
        """The meshes that are a single device."""
        self.calling: list[str] = []
        self.known: dict[object, bool] = {}
        self.generators: dict[str, bool] = {}
        """Whether functions are Threefry, by name."""
        self.constants: set[str] = set()
        """The names of the constants that hold sizes."""
        self.count = 0
        self.depth = 0
        written = sum(_count(function.body) for function in module.functions.values())
        self.left = written + MOST_INLINED
        """The number of applications that may still be added."""

    def graph(self) -> Graph:
        """Return the graph of the module."""
        main = self.module.functions[self.module.main]
        parts = GraphParts()
        code, arguments = self.sizes.enter(main, self.shapes)
        own = [value.name for value in arguments if value.name not in self.sizes]
        named = dict(zip(own, self._named(code, own)))
        given = {value.name: value for value in arguments}
        inputs = [given[local]._replace(name=name) for local, name in named.items()]
        names = {
            inner.name: named.get(value.name, value.name)
            for inner, value in zip(code.arguments, arguments)
        }
        self.values.update((value.name, value) for value in inputs)
        shardings = dict(zip((value.name for value in main.arguments), main.argument_shardings))
        for local, name in named.items():
            if shardings.get(local):
                parts.shardings[name] = shardings[local]
        self.calling.append(self.module.main)
        path = "main/" if _clash(code, names.values()) else ""
        outputs = self._body(parts, code, names, path, [path + name for name in code.returned])
        wanted = {n: s for n, s in enumerate(main.returned_shardings) if s}
        return Graph(
            inputs,
            parts.applications,
            [self._array(parts, name) for name in outputs],
            self.module.meshes,
            parts.shardings,
            wanted,
            self.library,
            parts.dtypes,
            conditions=self.sizes.conditions,
        )

    def _named(self, code: Function, own: Sequence[str]) -> Sequence[str]:
        """Return the names of the inputs, which are `own` in the text."""
        if self.inputs and len(self.inputs) != len(own):
            raise WeftError(
                f"{len(self.inputs)} names are given for {len(own)} inputs: "
                f"{', '.join(self.inputs)}"
            )
        if self.inputs or not self.labelled:
            return self.inputs or own
        sizes = code.sizes or ("",) * len(code.arguments)
        names: list[str] = []
        for label in (label for label, size in zip(code.labels, sizes) if not size):
            is_new = label and label not in names
            names.append(label if is_new else f"{label or 'arg'}.{len(names)}")
        return names

    def _body(
        self,
        parts: GraphParts,
        code: Function | Region,
        names: dict[str, str],
        path: str,
        targets: Sequence[str] = (),
    ) -> list[str]:
        """Add the operations; `names` maps arguments, and then all values, to their names here.

        Returned values are named by `targets`, others by `path` and their own name.
        """
        if self.depth == DEEPEST:
            raise WeftError(f"@{self.calling[-1]}: calls and regions are more than {DEEPEST} deep")
        if len(path) > LONGEST_PATH:
            raise WeftError(
                f"@{self.calling[-1]}: the names of values inside would have more than "
                f"{LONGEST_PATH} characters"
            )
        self.depth += 1
        for local, target in zip(code.returned, targets):
            names.setdefault(local, target)
        for operation in code.body:
            if operation.name == "named_computation" and operation.regions:
                self._named_computation(parts, operation, names, path)
            elif self.sizes.follow(operation, names, path):
                pass  # sizes are not part of the graph
            elif operation.callee:
                self._call(parts, operation, names, path)
            else:
                self._apply(parts, operation, names, path)
        self.depth -= 1
        return [names[local] for local in code.returned]

    def _call(
        self, parts: GraphParts, operation: Operation, names: dict[str, str], path: str
    ) -> None:
        """Inline a call; a composite is replaced by its decomposition, without edges."""
        if operation.callee in self.calling:
            cycle = [*self.calling[self.calling.index(operation.callee) :], operation.callee]
            raise WeftError(f"a function calls itself: {' -> '.join(f'@{name}' for name in cycle)}")
        function = self.module.functions[operation.callee]
        if self._is_threefry(operation.callee):
            pairs = zip(operation.operands, function.arguments)
            given = [name for name, value in pairs if value.dtype == "uint32"]
            words = operation._replace(name="threefry2x32", operands=tuple(given), callee="")
            self._apply(parts, words._replace(attributes=_NOTHING), names, path)
            return
        self.calling.append(operation.callee)
        if operation.name == "composite":
            self._inline(parts, operation, function, names, path, None)
        else:
            arguments = self._filled(function.argument_shardings, function.arguments)
            results = self._filled(function.returned_shardings, operation.results)
            boundary = arguments, operation.shardings or results
            self._inline(parts, operation, function, names, path, boundary)
        self.calling.pop()

    def _is_threefry(self, name: str) -> bool:
        """Return whether a function is the generator of random numbers, which is an operator."""
        if name not in self.generators:
            function = self.module.functions[name]
            self.generators[name] = is_threefry(function, self.module.functions)
        return self.generators[name]

    def _named_computation(
        self, parts: GraphParts, operation: Operation, names: dict[str, str], path: str
    ) -> None:
        """Inline a named computation, which may capture values."""
        (body,) = operation.regions
        arguments = operation.attributes.get("in_shardings", ("",) * len(body.arguments))
        results = operation.shardings or ("",) * len(operation.results)
        self._inline(parts, operation, body, names, path, (arguments, results), dict(names))

    def _inline(
        self,
        parts: GraphParts,
        operation: Operation,
        code: Function | Region,
        names: dict[str, str],
        path: str,
        boundary: tuple[Sequence[str], Sequence[str]] | None,
        seen: dict[str, str] | None = None,
    ) -> None:
        """Add the body of a call; values enter and leave by edges, with the shardings there."""
        inside = f"{path}{self._name(operation)}/"
        inner = {} if seen is None else seen
        free = ("",) * (len(code.arguments) + len(operation.results))
        arguments, results = boundary or (free, free)
        for value, local, sharding in zip(code.arguments, operation.operands, arguments):
            crossed = value._replace(name=inside + value.name)
            inner[value.name] = (
                self._cross(parts, names[local], crossed, sharding, _ENTERING)
                if boundary
                else names[local]
            )
        made = [
            value._replace(name=names.get(value.name, path + value.name))
            for value in operation.results
        ]
        crossing = [bool(boundary and value.shape) for value in made]
        targets = [
            inside + local if crosses else result.name
            for local, result, crosses in zip(code.returned, made, crossing)
        ]
        returned = self._body(parts, code, inner, inside, targets)
        for given, name, result, sharding in zip(operation.results, returned, made, results):
            names[given.name] = (
                self._cross(parts, name, result, sharding, _NOTHING) if boundary else name
            )

    def _filled(self, shardings: Sequence[str], values: Sequence[Value]) -> Sequence[str]:
        """Return the shardings of a call: where one is missing, it is open on the mesh of others.

        A sharding on a single device is ignored.
        """
        meshes = (read_sharding(text).mesh for text in shardings if text)
        mesh = next((name for name in meshes if name not in self.maximal), None)
        if mesh is None:
            return ("",) * len(shardings)
        return [
            text or f"<{write_symbol(mesh)}, [{', '.join(['{?}'] * len(value.shape))}]>"
            for text, value in zip(shardings, values)
        ]

    def _cross(
        self,
        parts: GraphParts,
        name: str,
        value: Value,
        sharding: str,
        attributes: FrozenMap[str, Any],
    ) -> str:
        """Return the name of a value after an edge; scalars and sizes need none."""
        if not value.shape or name in self.sizes:
            return name
        value = value._replace(shape=self.values[name].shape)
        edge = Operation(
            "data_flow_edge", (name,), (value.shape,), {}, (value,), attributes, (sharding,), ""
        )
        self._add(parts, edge, (name,), (value,))
        return value.name

    def _apply(
        self, parts: GraphParts, operation: Operation, names: dict[str, str], path: str
    ) -> None:
        name = self._name(operation)
        results = [
            value._replace(name=names.setdefault(value.name, path + value.name))
            for value in operation.results
        ]
        regions, taken = [], dict[str, None]()
        operands = [names[local] for local in (*operation.operands, *operation.captured)]
        if operation.name in DYNAMIC:
            operation, operands = self.sizes.fixed(operation, operands)
        operands = [self._array(parts, operand) for operand in operands]
        for number, region in enumerate(operation.regions):
            inside = f"{path}{name}/{_label(operation, number)}"
            given = [self.values[operand].shape for operand in operands]
            graph, outside = self._region(region, names, inside, given)
            regions.append(graph)
            taken.update(outside)
        if operation.attributes.get("region") == "place":
            if self._add_place(parts, operation, operands, results):
                return
            custom = {**operation.attributes, "monoid": "sum", "region": "custom"}
            operation = operation._replace(attributes=FrozenMap(custom.items()))
        if operation.name == "top_k" and self._add_top(
            parts, operation, self.values[operands[0]], results
        ):
            return
        if self.sizes.is_active:
            operator = _operator_name(operation)
            operation, results = self.sizes.sized(operator, operation, operands, results, regions)
        self._add(parts, operation, [*operands, *taken], results, tuple(regions))

    def _add_place(
        self,
        parts: GraphParts,
        operation: Operation,
        operands: Sequence[str],
        results: Sequence[Value],
    ) -> bool:
        """Add a reduction that finds an element and its index as the monoid argmax or argmin.

        Its operands are an array, the indices along the dimension, and the identities of both;
        if they are others, the reduction stays one by a custom region.
        """
        attributes = operation.attributes
        if operation.name != "reduce":
            return False
        made = {one.results[0]: one for one in parts.applications if len(one.results) == 1}
        index, *starts = (made.get(name) for name in operands[1:])
        array, dims = self.values[operands[0]], attributes["dimensions"]
        worst = (lowest if attributes["monoid"] == "argmax" else highest)(array.dtype)
        if (
            index is None
            or index.operator != "iota"
            or (index.attributes["iota_dimension"],) != dims
            or [None if one is None else one.attributes.get("value") for one in starts]
            != [worst, 0]
        ):
            return False
        shape = tuple(n for dim, n in enumerate(array.shape) if dim not in dims)
        value, place = (each._replace(shape=shape) for each in results)
        pair = [Component("value", array.dtype), Component("index", "int64")]
        self._add_pair(parts, array, (value, place), attributes["monoid"], dims, pair)
        self._annotate(parts, operation, results)
        return True

    def _add_top(
        self, parts: GraphParts, operation: Operation, array: Value, results: Sequence[Value]
    ) -> bool:
        """Add the `k` largest elements of the last dimension, and their indices, as a monoid."""
        count, size = operation.attributes.get("k"), array.shape[-1] if array.shape else 0
        if not isinstance(count, int) or not isinstance(size, int) or not 0 < count <= size:
            return False
        pair = [Component("values", array.dtype, (count,)), Component("indices", "int64", (count,))]
        dims = (len(array.shape) - 1,)
        self._add_pair(parts, array, results, largest(count).name, dims, pair)
        self._annotate(parts, operation, results)
        return True

    def _add_pair(
        self,
        parts: GraphParts,
        array: Value,
        results: Sequence[Value],
        monoid: str,
        dims: Point,
        components: Sequence[Component],
    ) -> None:
        """Add a reduction by a monoid with two components, of which the second are indices."""
        shape = tuple(n for dim, n in enumerate(array.shape) if dim not in dims)
        value, place = results
        pair = Value(f"{value.name}/{monoid}", shape, struct_dtype(components))
        index64 = Value(f"{value.name}/index", place.shape, "int64")
        how = {"dimensions": dims, "keepdims": False, "monoid": monoid}
        first, second = (each.name for each in components)
        for name, operand, result, given in (
            ("aggregate", array, pair, how),
            ("component", pair, value, {"name": first, "result_shape": value.shape}),
            ("component", pair, index64, {"name": second, "result_shape": place.shape}),
            ("convert", index64, place, {"dtype": place.dtype}),
        ):
            one = Operation(name, (), (operand.shape,), {}, (), FrozenMap(given.items()), (), "")
            self._add(parts, one, (operand.name,), (result,))

    def _annotate(self, parts: GraphParts, operation: Operation, results: Sequence[Value]) -> None:
        """Keep the shardings that are written on the results of an operation."""
        parts.shardings.update(
            (value.name, s) for value, s in zip(results, operation.shardings) if s
        )

    def _array(self, parts: GraphParts, name: str) -> str:
        """Return the name of a value of the graph; sizes become constants."""
        if name not in self.sizes:
            return name
        if name not in parts.sizes:
            size, value = self.sizes.known[name], self.sizes.numbers(name)
            own = name
            while own in self.constants:
                own = f"{own}'"
            self.constants.add(own)
            given = {"value": value if size.shape else value[0], "dtype": size.dtype}
            attributes = FrozenMap({**given, "result_shape": size.shape}.items())
            parts.applications.append(Application("constant", (), (own,), attributes))
            parts.dtypes[own] = size.dtype
            self.values[own] = Value(own, size.shape, size.dtype)
            parts.sizes[name] = own
        return parts.sizes[name]

    def _region(
        self, region: Region, names: Mapping[str, str], path: str, shapes: Sequence[Point]
    ) -> tuple[Graph, dict[str, None]]:
        """Return the graph of a region, and the values that it captures.

        Arguments of unknown size have the shapes of the operands.
        """
        parts = GraphParts()
        arguments = [
            value._replace(
                name=path + value.name, shape=shape if None in value.shape else value.shape
            )
            for value, shape in zip(region.arguments, (*shapes, *[()] * len(region.arguments)))
        ]
        self.values.update((value.name, value) for value in arguments)
        inner = {**names, **{v.name: path + v.name for v in region.arguments}}
        outputs = self._body(parts, region, inner, path)
        outputs = [self._array(parts, name) for name in outputs]
        made = {value.name for value in arguments}
        made.update(name for applied in parts.applications for name in applied.results)
        used = [name for applied in parts.applications for name in applied.operands]
        outside = dict.fromkeys(name for name in (*used, *outputs) if name not in made)
        graph = Graph(
            [*arguments, *(self.values[name] for name in outside)],
            parts.applications,
            outputs,
            shardings=parts.shardings,
            operators=self.library,
            dtypes=parts.dtypes,
            is_region=True,
        )
        return graph, outside

    def _add(
        self,
        parts: GraphParts,
        operation: Operation,
        operands: Sequence[str],
        results: Sequence[Value],
        regions: tuple[Graph, ...] = (),
    ) -> None:
        """Add an application, opaque if no operator gives these results for these operands."""
        self.left -= 1
        if self.left < 0:
            raise WeftError(
                f"inlining the calls of @{self.module.main} makes more than {MOST_INLINED} "
                f"operations beyond those of the text",
            )
        name, attributes = _operator_name(operation), operation.attributes
        shapes = tuple(value.shape for value in results)
        if not regions and not self._describes(name, operation, shapes):
            name = OPAQUE + name
            attributes = FrozenMap({**attributes, "result_shapes": shapes}.items())
            if name not in self.library:
                self.library.add(Operator(name, sign_opaque, attributes=None))
        elif name in self.library:
            attributes = FrozenMap(self.library[name].known(attributes).items())
            attributes = self._with_dtype(self.library[name], operands, results, attributes)
        made = tuple(value.name for value in results)
        parts.applications.append(Application(name, tuple(operands), made, attributes, regions))
        parts.dtypes.update((value.name, value.dtype) for value in results)
        self._annotate(parts, operation, results)
        self.values.update((value.name, value) for value in results)

    def _with_dtype(
        self,
        operator: Operator,
        operands: Sequence[str],
        results: Sequence[Value],
        attributes: FrozenMap[str, Any],
    ) -> FrozenMap[str, Any]:
        """Return the attributes with the dtype of the result, where the operator needs it.

        A product of bfloat16 may be declared as float32, and one of int8 as int32.
        """
        if operator.kernel is None or len(results) != 1 or "dtype" in attributes:
            return attributes
        given, wanted = [self.values[name].dtype for name in operands], [results[0].dtype]
        with_dtype = FrozenMap({**attributes, "dtype": results[0].dtype}.items())
        try:
            if list(operator.result_dtypes(given, attributes)) == wanted:
                return attributes
            operator.check(with_dtype)
            made = list(operator.result_dtypes(given, with_dtype))
        except WeftError:
            return attributes  # it can be planned; running it raises an error
        return with_dtype if made == wanted else attributes

    def _describes(self, name: str, operation: Operation, shapes: tuple[Point, ...]) -> bool:
        """Return whether an operator gives those shapes for those operands."""
        if name not in OPERATORS or operation.captured:
            return False
        key = name, operation.operand_shapes, operation.attributes, shapes
        if key not in self.known:
            try:
                given = OPERATORS[name].known(operation.attributes)
                signature = OPERATORS[name].sign(operation.operand_shapes, given)
                self.known[key] = signature.result_shapes == shapes
            except WeftError:
                self.known[key] = False
        return self.known[key]

    def _name(self, operation: Operation) -> str:
        """Return the prefix of values inside: the first result, or else a number."""
        if operation.results:
            return operation.results[0].name.partition("#")[0]
        self.count += 1
        return f"{operation.callee or operation.name}.{self.count}"


def _count(body: Iterable[Operation]) -> int:
    """Count operations at any depth."""
    return sum(1 + sum(_count(region.body) for region in op.regions) for op in body)


def _clash(main: Function, names: Iterable[str]) -> bool:
    """Return whether an input has the name of a result."""
    made = {value.name for operation in main.body for value in operation.results}
    return not made.isdisjoint(names)


def _label(operation: Operation, number: int) -> str:
    """Return the name of one region of several."""
    if len(operation.regions) == 1:
        return ""
    labels = _LABELS.get(operation.name, ())
    return f"{labels[number]}/" if number < len(labels) else f"branch{number}/"


def _operator_name(operation: Operation) -> str:
    """Return the name of the operator; that of a custom call includes its target."""
    target = operation.attributes.get("call_target_name")
    return f"custom_call @{target}" if operation.name == "custom_call" else operation.name


def sign_opaque(shapes: Sequence[Point], attributes: Mapping[str, Any]) -> Signature:
    """Sign operands and results of which no dimension may be cut."""
    sizes: dict[str, int] = {}

    def rows(shape: Point) -> list[Row]:
        names = [f"d{len(sizes) + n}" for n in range(len(shape))]
        sizes.update(zip(names, shape))
        return [Row(((name, 1),), whole=True) for name in names]

    operands, results = list(map(rows, shapes)), list(map(rows, attributes["result_shapes"]))
    return Signature(Notation(operands, results), shapes, sizes)
