"""Records of operations into applications: calls inlined, regions into graphs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import WeftError
from weft.interop.records import Function, Module, Operation, Region
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
from weft.layout.shardy_text import read_mesh, read_sharding, write_symbol
from weft.values import FrozenMap, Point

OPAQUE = "opaque:"
"""What stands before the name of an operation that no operator describes."""

DEEPEST = 150
"""How deep calls and regions may stand in each other."""
MOST_INLINED = 80_000
"""The most applications of a graph beyond the operations of its text: calls are inlined."""
LONGEST_PATH = 4096
"""The most characters of the path that stands before the names of values in calls and regions."""

_NOTHING: FrozenMap[str, Any] = FrozenMap(())
_ENTERS: FrozenMap[str, Any] = FrozenMap([("enters", True)])
"""What is said of an edge into a call, where one out of it says nothing."""

_LABELS = {"while": ("cond", "body"), "if": ("true", "false")}
"""What the regions of an operation are called in the names of the values in them."""


@dataclass(slots=True)
class Block:
    """A graph in the making: its applications, and what is said of the values they make."""

    applications: list[Application] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    shardings: dict[str, str] = field(default_factory=dict)


class Builder:
    """Makes a graph of `main`, of all that it calls, and of their regions."""

    def __init__(self, module: Module, inputs: Sequence[str] = ()) -> None:
        self.module = module
        self.inputs = inputs
        """The names of the inputs, where they are to have others than in the text."""
        self.library = Library(OPERATORS)
        self.values: dict[str, Value] = {}
        meshes = map(read_mesh, module.meshes)
        self.maximal = {mesh.name for mesh in meshes if not mesh.axes and mesh.device_ids}
        """The meshes that are one device."""
        self.calling: list[str] = []
        self.known: dict[object, bool] = {}
        self.count = 0
        self.depth = 0
        written = sum(_count(function.body) for function in module.functions.values())
        self.left = written + MOST_INLINED
        """How many more applications there may be."""

    def graph(self) -> Graph:
        """The graph of the whole module."""
        main = self.module.functions[self.module.main]
        block = Block()
        own = dict(zip((value.name for value in main.arguments), self._named(main)))
        arguments = [value._replace(name=own[value.name]) for value in main.arguments]
        self.values.update((value.name, value) for value in arguments)
        for value, sharding in zip(arguments, main.argument_shardings):
            if sharding:
                block.shardings[value.name] = sharding
        self.calling.append(self.module.main)
        path = "main/" if _clash(main, own.values()) else ""
        outputs = self._body(block, main, own, path, [path + name for name in main.returned])
        wanted = {n: s for n, s in enumerate(main.returned_shardings) if s}
        return Graph(
            arguments,
            block.applications,
            outputs,
            self.module.meshes,
            block.shardings,
            wanted,
            self.library,
            block.dtypes,
        )

    def _named(self, main: Function) -> Sequence[str]:
        if self.inputs and len(self.inputs) != len(main.arguments):
            raise WeftError(
                f"{len(self.inputs)} names are given for {len(main.arguments)} inputs: "
                f"{', '.join(self.inputs)}"
            )
        return self.inputs or [value.name for value in main.arguments]

    def _body(
        self,
        block: Block,
        code: Function | Region,
        names: dict[str, str],
        path: str,
        targets: Sequence[str] = (),
    ) -> list[str]:
        """Add the operations; `names` are those of arguments, then of all values that are seen.

        What is made and returned is named by `targets`, anything else by `path` and its own name.
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
                self._named_computation(block, operation, names, path)
            elif operation.callee:
                self._call(block, operation, names, path)
            else:
                self._apply(block, operation, names, path)
        self.depth -= 1
        return [names[local] for local in code.returned]

    def _call(self, block: Block, operation: Operation, names: dict[str, str], path: str) -> None:
        """Inline a call; a composite is what stands for it, and has no border."""
        if operation.callee in self.calling:
            cycle = [*self.calling[self.calling.index(operation.callee) :], operation.callee]
            raise WeftError(f"a function calls itself: {' -> '.join(f'@{name}' for name in cycle)}")
        function = self.module.functions[operation.callee]
        self.calling.append(operation.callee)
        if operation.name == "composite":
            self._inline(block, operation, function, names, path, None)
        else:
            arguments = self._filled(function.argument_shardings, function.arguments)
            results = self._filled(function.returned_shardings, operation.results)
            border = arguments, operation.shardings or results
            self._inline(block, operation, function, names, path, border)
        self.calling.pop()

    def _named_computation(
        self, block: Block, operation: Operation, names: dict[str, str], path: str
    ) -> None:
        """A call whose function stands where it is called, and may use what is outside."""
        (body,) = operation.regions
        arguments = operation.attributes.get("in_shardings", ("",) * len(body.arguments))
        results = operation.shardings or ("",) * len(operation.results)
        self._inline(block, operation, body, names, path, (arguments, results), dict(names))

    def _inline(
        self,
        block: Block,
        operation: Operation,
        code: Function | Region,
        names: dict[str, str],
        path: str,
        border: tuple[Sequence[str], Sequence[str]] | None,
        seen: dict[str, str] | None = None,
    ) -> None:
        """Add the code of a call; at its border, with the shardings there, values cross edges."""
        inside = f"{path}{self._name(operation)}/"
        inner = {} if seen is None else seen
        free = ("",) * (len(code.arguments) + len(operation.results))
        arguments, results = border or (free, free)
        for value, local, sharding in zip(code.arguments, operation.operands, arguments):
            crossed = value._replace(name=inside + value.name)
            inner[value.name] = (
                self._cross(block, names[local], crossed, sharding, _ENTERS)
                if border
                else names[local]
            )
        made = [
            value._replace(name=names.get(value.name, path + value.name))
            for value in operation.results
        ]
        crossing = [bool(border and value.shape) for value in made]
        targets = [
            inside + local if crosses else result.name
            for local, result, crosses in zip(code.returned, made, crossing)
        ]
        returned = self._body(block, code, inner, inside, targets)
        for given, name, result, sharding in zip(operation.results, returned, made, results):
            names[given.name] = (
                self._cross(block, name, result, sharding, _NOTHING) if border else name
            )

    def _filled(self, shardings: Sequence[str], values: Sequence[Value]) -> Sequence[str]:
        """Shardings at a border: if one cuts dimensions, where none is they are open on its mesh.

        A sharding that only names a device does not count, and counts for nothing alone.
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
        self, block: Block, name: str, value: Value, sharding: str, said: FrozenMap[str, Any]
    ) -> str:
        """What a value is beyond the edge at a border; an element is what it is."""
        if not value.shape:
            return name
        edge = Operation(
            "data_flow_edge", (name,), (value.shape,), {}, (value,), said, (sharding,), ""
        )
        self._add(block, edge, (name,), (value,))
        return value.name

    def _apply(self, block: Block, operation: Operation, names: dict[str, str], path: str) -> None:
        name = self._name(operation)
        results = [
            value._replace(name=names.setdefault(value.name, path + value.name))
            for value in operation.results
        ]
        regions, taken = [], dict[str, None]()
        for number, region in enumerate(operation.regions):
            graph, outside = self._region(
                region, names, f"{path}{name}/{_label(operation, number)}"
            )
            regions.append(graph)
            taken.update(outside)
        operands = [names[local] for local in (*operation.operands, *operation.captured)]
        self._add(block, operation, [*operands, *taken], results, tuple(regions))

    def _region(
        self, region: Region, names: Mapping[str, str], path: str
    ) -> tuple[Graph, dict[str, None]]:
        """The graph of a region, and what it takes from outside."""
        block = Block()
        arguments = [value._replace(name=path + value.name) for value in region.arguments]
        self.values.update((value.name, value) for value in arguments)
        inner = {**names, **{v.name: path + v.name for v in region.arguments}}
        outputs = self._body(block, region, inner, path)
        made = {value.name for value in arguments}
        made.update(name for applied in block.applications for name in applied.results)
        used = [name for applied in block.applications for name in applied.operands]
        outside = dict.fromkeys(name for name in (*used, *outputs) if name not in made)
        graph = Graph(
            [*arguments, *(self.values[name] for name in outside)],
            block.applications,
            outputs,
            shardings=block.shardings,
            operators=self.library,
            dtypes=block.dtypes,
            is_region=True,
        )
        return graph, outside

    def _add(
        self,
        block: Block,
        operation: Operation,
        operands: Sequence[str],
        results: Sequence[Value],
        regions: tuple[Graph, ...] = (),
    ) -> None:
        """Add an application, opaque if no operator makes these results of these operands."""
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
                self.library.add(Operator(name, _sign_opaque, attributes=None))
        elif name in self.library:
            attributes = FrozenMap(self.library[name].known(attributes).items())
            attributes = self._with_dtype(self.library[name], operands, results, attributes)
        made = tuple(value.name for value in results)
        block.applications.append(Application(name, tuple(operands), made, attributes, regions))
        block.dtypes.update((value.name, value.dtype) for value in results)
        block.shardings.update(
            (value.name, s) for value, s in zip(results, operation.shardings) if s
        )
        self.values.update((value.name, value) for value in results)

    def _with_dtype(
        self,
        operator: Operator,
        operands: Sequence[str],
        results: Sequence[Value],
        attributes: FrozenMap[str, Any],
    ) -> FrozenMap[str, Any]:
        """The attributes with the dtype of the result, where an operator makes it only then.

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
            return attributes  # it can be planned, and is refused where it is run
        return with_dtype if made == wanted else attributes

    def _describes(self, name: str, operation: Operation, shapes: tuple[Point, ...]) -> bool:
        """Whether an operator of the library makes those shapes of those operands."""
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
        """What the values inside are named after: the first result, or else a number."""
        if operation.results:
            return operation.results[0].name.partition("#")[0]
        self.count += 1
        return f"{operation.callee or operation.name}.{self.count}"


def _count(body: Iterable[Operation]) -> int:
    """How many operations there are, at any depth."""
    return sum(1 + sum(_count(region.body) for region in op.regions) for op in body)


def _clash(main: Function, names: Iterable[str]) -> bool:
    """Whether an input has the name of something that is made."""
    made = {value.name for operation in main.body for value in operation.results}
    return not made.isdisjoint(names)


def _label(operation: Operation, number: int) -> str:
    """What stands in a path for one region of several."""
    if len(operation.regions) == 1:
        return ""
    labels = _LABELS.get(operation.name, ())
    return f"{labels[number]}/" if number < len(labels) else f"branch{number}/"


def _operator_name(operation: Operation) -> str:
    """The name of the operator; of a custom call it says the target."""
    target = operation.attributes.get("call_target_name")
    return f"custom_call @{target}" if operation.name == "custom_call" else operation.name


def _sign_opaque(shapes: Sequence[Point], attributes: Mapping[str, Any]) -> Signature:
    """Every dimension of every operand and result is an index dimension that is seen whole."""
    sizes: dict[str, int] = {}

    def rows(shape: Point) -> list[Row]:
        names = [f"d{len(sizes) + n}" for n in range(len(shape))]
        sizes.update(zip(names, shape))
        return [Row(((name, 1),), whole=True) for name in names]

    operands, results = list(map(rows, shapes)), list(map(rows, attributes["result_shapes"]))
    return Signature(Notation(operands, results), shapes, sizes)
