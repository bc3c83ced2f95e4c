"""StableHLO text into a `Graph`: whatever `jax.jit(f).lower(...).as_text()` prints.

Calls are inlined. Values keep the names of the text; those of a function that `%1` calls are
`1/cst`, `1/0`, and what it returns is `1`. What no operator describes is opaque: each of its
dimensions is seen whole, so that it is computed on replicated arrays and stops no one else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from weft.errors import WeftError
from weft.interop.records import Function, Module, Operation
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
from weft.values import FrozenMap, Point

_OPAQUE = "opaque:"
_NOTHING: FrozenMap[str, Any] = FrozenMap(())


def read(text: str) -> Graph:
    """Read the text of a module, with its meshes and shardings.

    >>> graph = read('''
    ...     sdy.mesh @m = <["x"=2]>
    ...     func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>})
    ...             -> tensor<8xf32> {
    ...         %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<8xf32>) -> tensor<8xf32>
    ...         return %0 : tensor<8xf32>
    ...     }
    ... ''')
    >>> graph.meshes, dict(graph.shardings), opaque(graph)
    (('@m = <["x"=2]>',), {'arg0': '<@m, [{"x"}]>'}, ['custom_call'])
    """
    return _Inliner(_parse(text)).graph()


def opaque(graph: Graph) -> list[str]:
    """The operations that no operator describes, each once, in the order of the program."""
    names = (application.operator for application in graph.applications)
    found = (name.removeprefix(_OPAQUE) for name in names if name.startswith(_OPAQUE))
    return list(dict.fromkeys(found))


def _parse(text: str) -> Module:
    try:
        module: Module = import_module("weft.interop.mlir").parse(text)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise
        message = f"reading StableHLO needs {error.name}, which is not installed"
        raise WeftError(message, hint="pip install weft[jax]") from None
    return module


class _Inliner:
    """Makes applications of the operations of `main` and of all that it calls."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.library = Library(OPERATORS)
        self.applications: list[Application] = []
        self.dtypes: dict[str, str] = {}
        self.shardings: dict[str, str] = {}
        self.calling: list[str] = []
        self.known: dict[object, bool] = {}

    def graph(self) -> Graph:
        main = self.module.functions[self.module.main]
        for value, sharding in zip(main.arguments, main.argument_shardings):
            if sharding:
                self.shardings[value.name] = sharding
        own = {value.name: value.name for value in main.arguments}
        self.calling.append(self.module.main)
        outputs = self._body(main, own, "", main.returned)
        wanted = {n: s for n, s in enumerate(main.returned_shardings) if s}
        return Graph(
            main.arguments,
            self.applications,
            outputs,
            self.module.meshes,
            self.shardings,
            wanted,
            self.library,
            self.dtypes,
        )

    def _body(
        self, function: Function, names: dict[str, str], path: str, targets: Sequence[str]
    ) -> list[str]:
        """Add a function's operations; `names` are those of its arguments, then of all its values.

        What it makes and returns is named by `targets`, anything else by `path` and its own name.
        """
        for local, target in zip(function.returned, targets):
            names.setdefault(local, target)
        for operation in function.body:
            if operation.callee and operation.callee not in self.calling:
                self._call(operation, names, path)
            else:
                self._apply(operation, names, path)
        return [names[local] for local in function.returned]

    def _call(self, operation: Operation, names: dict[str, str], path: str) -> None:
        """Inline a call; shardings at its border become constraints."""
        function = self.module.functions[operation.callee]
        inside = f"{path}{_call_name(operation, len(self.applications))}/"
        inner = {
            value.name: self._constrain(names[local], value._replace(name=inside + value.name), s)
            for value, local, s in zip(
                function.arguments, operation.operands, function.argument_shardings
            )
        }
        results = [
            value._replace(name=names.get(value.name, path + value.name))
            for value in operation.results
        ]
        shardings = operation.shardings or function.returned_shardings
        targets = [
            inside + local if sharding else result.name
            for local, result, sharding in zip(function.returned, results, shardings)
        ]
        self.calling.append(operation.callee)
        made = self._body(function, inner, inside, targets)
        self.calling.pop()
        for value, name, result, sharding in zip(operation.results, made, results, shardings):
            names[value.name] = self._constrain(name, result, sharding)

    def _constrain(self, name: str, value: Value, sharding: str) -> str:
        """The named value itself, or if there is a sharding the value made from it under that."""
        if not sharding:
            return name
        constraint = Operation(
            "sharding_constraint", (name,), (value.shape,), {}, (value,), _NOTHING, (sharding,), ""
        )
        self._add(constraint, (name,), (value,))
        return value.name

    def _apply(self, operation: Operation, names: dict[str, str], path: str) -> None:
        results = []
        for value in operation.results:
            name = names.setdefault(value.name, path + value.name)
            results.append(value._replace(name=name))
        operands = tuple(names[local] for local in (*operation.operands, *operation.captured))
        self._add(operation, operands, results)

    def _add(self, operation: Operation, operands: Sequence[str], results: Sequence[Value]) -> None:
        """Add an application, opaque if no operator makes these results of these operands."""
        name, attributes = operation.name, operation.attributes
        shapes = tuple(value.shape for value in results)
        if not self._describes(operation, shapes):
            name = _OPAQUE + name
            attributes = FrozenMap({**attributes, "result_shapes": shapes}.items())
            if name not in self.library:
                self.library.add(Operator(name, _sign_opaque))
        made = tuple(value.name for value in results)
        self.applications.append(Application(name, tuple(operands), made, attributes))
        self.dtypes.update((value.name, value.dtype) for value in results)
        self.shardings.update(
            (value.name, s) for value, s in zip(results, operation.shardings) if s
        )

    def _describes(self, operation: Operation, shapes: tuple[Point, ...]) -> bool:
        """Whether an operator of the library makes those shapes of those operands."""
        if operation.name not in OPERATORS or operation.captured:
            return False
        key = operation.name, operation.operand_shapes, operation.attributes, shapes
        if key not in self.known:
            operator = OPERATORS[operation.name]
            try:
                signature = operator.sign(operation.operand_shapes, operation.attributes)
                self.known[key] = signature.result_shapes == shapes
            except WeftError:
                self.known[key] = False
        return self.known[key]


def _call_name(operation: Operation, number: int) -> str:
    if operation.results:
        return operation.results[0].name.partition("#")[0]
    return f"{operation.callee}.{number}"


def _sign_opaque(shapes: Sequence[Point], attributes: Mapping[str, Any]) -> Signature:
    """Every dimension of every operand and result is an index dimension that is seen whole."""
    sizes: dict[str, int] = {}

    def rows(shape: Point) -> list[Row]:
        names = [f"d{len(sizes) + n}" for n in range(len(shape))]
        sizes.update(zip(names, shape))
        return [Row(((name, 1),), whole=True) for name in names]

    operands, results = list(map(rows, shapes)), list(map(rows, attributes["result_shapes"]))
    return Signature(Notation(operands, results), shapes, sizes)
