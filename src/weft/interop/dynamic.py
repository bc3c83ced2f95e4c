"""Programs with dynamic dimensions: follow the integers from which they compute sizes.

Such a program takes sizes from its arguments (`get_dimension_size`), computes others, and gives
them to operations such as `dynamic_reshape`. `SizeTracker` keeps the integers apart from the graph;
the operations become those of fixed sizes, with sizes as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.interop.size_values import SizeArray, asserted, condition_of, evaluate
from weft.lang import OPERATORS, Graph, Value
from weft.lang.size import Size, bind, recording
from weft.values import FrozenMap, Point

if TYPE_CHECKING:
    from weft.interop.stablehlo import Function, Module, Operation

DYNAMIC = {
    "dynamic_broadcast_in_dim": ("broadcast_in_dim", 1, "result_shape"),
    "dynamic_conv": ("convolution", 2, "padding"),
    "dynamic_gather": ("gather", 2, "slice_sizes"),
    "dynamic_iota": ("iota", 0, "result_shape"),
    "dynamic_pad": ("pad", 2, "edge_padding_low edge_padding_high interior_padding"),
    "dynamic_reduce_window": (
        "reduce_window",
        2,
        "window_dimensions window_strides base_dilations window_dilations padding",
    ),
    "dynamic_reshape": ("reshape", 1, "result_shape"),
    "real_dynamic_slice": ("slice", 1, "start_indices limit_indices strides"),
}
"""Operations that take sizes as operands: the operator that has them as attributes, how many other
operands it has, and the names of those attributes."""


class SizeTracker:
    """The integers of a program from which it computes sizes, by the names of values."""

    def __init__(self, module: Module, values: dict[str, Value]) -> None:
        self.module, self.values = module, values
        main = module.functions[module.main]
        self.is_active = any(None in value.shape for value in main.arguments) or any(main.sizes)
        """Whether the program has dimensions of unknown size."""
        self.known: dict[str, SizeArray] = {}
        self.conditions: dict[str, None] = {}
        """What must hold for sizes, in order."""
        self._calling: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def numbers(self, name: str) -> tuple[Any, ...]:
        """Return an array's numbers and sizes; what is decided about them is a condition."""
        with recording(self.conditions):
            return self.known[name].resolved()

    # -- where a program begins

    def enter(self, main: Function, shapes: Sequence[Point]) -> tuple[Function, list[Value]]:
        """Return the function to start with, and its arguments, named as in `main`.

        A program may begin with a function that finds sizes in the shapes of its arguments, checks
        them and calls another, as those of `jax.export` do: it is that other one, and the checks
        are conditions. Without `shapes`, sizes are named after arguments.
        """
        arguments = [
            value._replace(
                shape=tuple(
                    Size.parse(f"{value.name}_{dim}") if n is None else n
                    for dim, n in enumerate(shape)
                )
            )
            for value, shape in zip(main.arguments, shapes or [v.shape for v in main.arguments])
        ]
        if not self.is_active:
            return main, arguments
        call = next((op for op in reversed(main.body) if op.callee), None)
        if call is not None and main.returned == tuple(value.name for value in call.results):
            inner = self.module.functions[call.callee]
            names = {value.name: value.name for value in arguments}
            while (equal := self._check(main, call, inner, arguments, names)) and not shapes:
                arguments = [v._replace(shape=bind(v.shape, equal)) for v in arguments]
            if equal is not None and {v.name for v in arguments} <= {*call.operands}:
                return inner, [self.values[names[local]] for local in call.operands]
        self.known.clear()
        self.conditions.clear()
        for value, size in zip(arguments, main.sizes):
            if size:
                self.known[value.name] = SizeArray((), value.dtype, (Size.parse(size),))
        return main, arguments

    def _check(
        self,
        main: Function,
        call: Operation,
        inner: Function,
        arguments: Sequence[Value],
        names: dict[str, str],
    ) -> dict[str, Any] | None:
        """Follow a function that checks sizes and calls another; None if it does anything else.

        Returns what the checks say about the sizes that were named here, by name. `names` gets
        those of the sizes.
        """
        self.known.clear()
        self.conditions.clear()
        self.values.update((value.name, value) for value in arguments)
        own = {str(n) for v in arguments for n in v.shape if isinstance(n, Size)}
        equal: dict[str, Any] = {}
        for operation in main.body:
            if operation is not call and not self.follow(operation, names, "main/"):
                return None
            if _is_assertion(operation):
                checked = self.known[names[operation.operands[0]]]
                left, relation, right = asserted(checked.elements[0])
                if relation == "==" and str(left) in own and left != right:
                    equal.setdefault(str(left), right)
        for local, size in zip(call.operands, inner.sizes):
            known = self.known.get(names.get(local, ""))
            if size and known is not None and str(known.elements[0]) in own - {size}:
                equal.setdefault(str(known.elements[0]), Size.parse(size))
        return {name: size for name, size in equal.items() if name.isidentifier()}

    # -- operations

    def follow(self, operation: Operation, names: dict[str, str], path: str) -> bool:
        """Follow an operation on sizes, which is left out of the graph; False if it is another."""
        if not self.is_active:
            return False
        given = [self.known.get(names.get(local, "")) for local in operation.operands]
        if _is_assertion(operation) and given[0] is not None:
            with recording(self.conditions):
                if text := condition_of(given[0].elements[0]):
                    self.conditions[text] = None
            return True
        if operation.callee:
            return None not in given and self._follow_call(operation, names, path)
        if len(operation.results) != 1 or operation.regions:
            return False
        (result,) = operation.results
        found: SizeArray | None = None
        if operation.name == "get_dimension_size":
            shape = self.values[names[operation.operands[0]]].shape
            found = SizeArray((), result.dtype, (shape[operation.attributes["dimension"]],))
        else:
            sizes = [each for each in given if each is not None]
            if len(sizes) == len(given):
                found = evaluate(
                    operation.name, operation.attributes, sizes, result.shape, result.dtype
                )
        if found is None:
            return False
        name = names.setdefault(result.name, path + result.name)
        self.known[name] = found
        self.values[name] = Value(name, found.shape, found.dtype)
        return True

    def _follow_call(self, operation: Operation, names: dict[str, str], path: str) -> bool:
        """Follow a function of sizes; False if it computes anything else."""
        if operation.callee in self._calling:
            return False
        function = self.module.functions[operation.callee]
        results = [value.name for value in operation.results]
        inside = f"{path}{results[0].partition('#')[0] if results else operation.callee}/"
        arguments = (value.name for value in function.arguments)
        inner = dict(zip(arguments, (names[local] for local in operation.operands)))
        self._calling.append(operation.callee)
        is_followed = all(self.follow(each, inner, inside) for each in function.body)
        self._calling.pop()
        if is_followed:
            names |= zip(results, (inner[local] for local in function.returned))
        return is_followed

    def fixed(self, operation: Operation, operands: Sequence[str]) -> tuple[Operation, list[str]]:
        """Return an operation that takes sizes as operands as one that has them as attributes."""
        name, count, keys = DYNAMIC[operation.name]
        sizes: dict[str, Any] = {}
        for key, operand in zip(keys.split(), operands[count:]):
            if operand not in self.known:
                raise WeftError(
                    f"{operation.name} takes {key} from {operand}, which depends on data",
                    hint="sizes are computed from those of the arguments",
                )
            sizes[key] = self.numbers(operand)
        attributes = FrozenMap({**operation.attributes, **sizes}.items())
        return operation._replace(name=name, attributes=attributes), list(operands[:count])

    def sized(
        self,
        name: str,
        operation: Operation,
        operands: Sequence[str],
        results: Sequence[Value],
        regions: Sequence[Graph],
    ) -> tuple[Operation, list[Value]]:
        """Return the operation with the shapes of its operands, and its results with theirs.

        `name` is that of the operator.
        """
        shapes = tuple(self.values[operand].shape for operand in operands)
        operation = operation._replace(operand_shapes=shapes)
        if regions:
            last = regions[-1]
            made = [last.values[output].shape for output in last.outputs]
        elif not any(None in value.shape for value in results):
            return operation, list(results)
        else:
            if name not in OPERATORS or operation.captured:
                raise WeftError(
                    f"{name} has a result of unknown size, and no operator describes it",
                    hint=f"it is {results[0].name}; read the program for fixed sizes",
                )
            given = {k: v for k, v in operation.attributes.items() if not _has_unknown(v)}
            try:
                with recording(None):
                    signature = OPERATORS[name].sign(shapes, OPERATORS[name].known(given))
            except WeftError as error:
                raise error.at(f"{operation.name} of unknown sizes") from None
            operation = operation._replace(attributes=FrozenMap(given.items()))
            made = list(signature.result_shapes)
        for value, shape in zip(results, made):
            if len(shape) != len(value.shape) or any(
                n is not None and n != m for n, m in zip(value.shape, shape)
            ):
                declared = ["?" if n is None else n for n in value.shape]
                raise WeftError(
                    f"{operation.name} returns {value.name} of shape {list(shape)}, and "
                    f"{declared} is declared"
                )
        return operation, [v._replace(shape=shape) for v, shape in zip(results, made)]


def _is_assertion(operation: Operation) -> bool:
    """Return whether an operation checks sizes when the program is called."""
    return operation.attributes.get("call_target_name") == "shape_assertion"


def _has_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and any(map(_has_unknown, value)))
