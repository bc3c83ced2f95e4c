"""`from_torch`: programs of `torch.export` as a `Graph`, by the table of ATen's operators."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.interop.aten import TABLE, AtenNode
from weft.interop.aten.layers import EVAL
from weft.lang import Graph, Symbol, Tracer, Value, ops
from weft.lang.arithmetic import recorded_by
from weft.lang.dtype import dtype_name
from weft.lang.size import Size, as_sizes, recording
from weft.layout import DeviceMesh, ShardingSpec

try:
    import torch
    from torch._decomp import decomposition_table
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputKind, OutputKind
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "programs of torch need torch, which is not installed: pip install 'weft[torch]'",
        name=error.name,
    ) from None

MOST_ELEMENTS = 1 << 16
"""The largest constant that a graph keeps."""

BLOCKS = ("linear", "matmul", "scaled_dot_product_attention", "silu", "stack")
"""Operators that are not decomposed: Weft has one for each, which can be cut in more ways."""

MORE_DECOMPOSED = """
    _native_batch_norm_legit.no_stats adaptive_max_pool2d.default grid_sampler_2d.default
    upsample_bilinear2d.vec upsample_nearest2d.vec upsample_nearest3d.vec
"""
"""Operators that torch can decompose, and does not by default."""

_IGNORED = (
    *("_assert_tensor_metadata", "_assert_scalar", "_assert_async"),
    *("sym_constrain_range_for_size", "_linalg_check_errors"),
)
"""Checks of what is already known, or of data."""

_LOCATION = re.compile(r'File "([^"]*)", line (\d+), in \S+\n\s*(.*)')


def from_torch(
    program: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    meshes: Iterable[DeviceMesh | str] = (),
    shardings: Mapping[str, ShardingSpec | str] | None = None,
    output_shardings: Mapping[int, ShardingSpec | str] | None = None,
    seed: int | None = None,
) -> Graph:
    """Return a module, or a program of `torch.export`, as a graph.

    A module is exported with the arguments given, which may be on the meta device. Parameters and
    buffers are inputs of the graph by their names in `state_dict`, and its `parameters`; arguments
    are inputs by the names that `forward` gives them. Shardings go by those names, and by the
    numbers of outputs; given as text, they name one of `meshes`. Dynamic shapes (those of
    `torch.export.export`) become sizes that are not known yet, named by their `Dim`, or as torch
    names them in a program that is exported already; their ranges are conditions of the graph. An
    ATen operator that is not in the table is an error that names its line.

    A program that draws random numbers, such as a module with dropout in training, has an input
    `random_key`, uint32[2]; with a `seed`, its key is a constant. The numbers are Weft's, not
    torch's.

    >>> module = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU())
    >>> print(from_torch(module, torch.zeros(8, 16)))
    0.weight: float32[4, 16]
    0.bias: float32[4]
    input: float32[8, 16]
    linear/dot_general: float32[8, 4] = dot_general(input, 0.weight,
        lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(1,))
    linear: float32[8, 4] = add(linear/dot_general, 0.bias)
    relu: float32[8, 4] = relu(linear)
    return relu
    """
    if isinstance(program, ExportedProgram) and (args or kwargs):
        raise WeftError(
            "an exported program has its arguments already", hint="give it to from_torch alone"
        )
    with warnings.catch_warnings():  # torch 2.13 warns about its own code
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        if not isinstance(program, ExportedProgram):
            program = torch.export.export(
                program, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
            )
        program = program.run_decompositions(_decompositions())
    return _ProgramReader(program, seed, dynamic_shapes).graph(
        meshes=meshes, shardings=shardings or {}, output_shardings=output_shardings or {}
    )


def _decompositions() -> Any:
    """Return torch's decompositions, without those of operators that Weft has."""
    table = torch.export.default_decompositions()
    for name in BLOCKS:
        table.pop(getattr(torch.ops.aten, name).default, None)
    for name in MORE_DECOMPOSED.split():
        operation = operator.attrgetter(name)(torch.ops.aten)
        table[operation] = decomposition_table[operation]
    return table


_SIZES: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms[1:], terms[0]),
    "Mul": lambda *factors: prod(factors),
    "Pow": lambda base, power: prod([base] * power),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), operator.floordiv),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    "Max": lambda *sizes: reduce(lambda a, b: a if a >= b else b, sizes),
    "Min": lambda *sizes: reduce(lambda a, b: a if a <= b else b, sizes),
}
"""The functions of sizes in torch's programs, by SymPy's names."""

_FLOATS: dict[str, Callable[..., Any]] = {
    "sym_float": lambda x: x,
    "truediv": operator.truediv,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "pow": lambda x, power: ops.sqrt(x) if power == 0.5 else x**power,
    "_sym_sqrt": ops.sqrt,
}
"""Functions of sizes that are not integers: scalars of the program, float64 as in Python."""


class _Results(NamedTuple):
    """The results of a node that has several."""

    results: tuple[Symbol | None, ...]


class _ProgramReader:
    """Records the nodes of a program, one after the other."""

    def __init__(
        self, program: ExportedProgram, seed: int | None = None, dynamic_shapes: Any = None
    ) -> None:
        self.program, self.tracer, self.seed = program, Tracer(), seed
        self.key: Symbol | None = None
        self.draws = 0
        self.names = dict(_names_of_sizes(program, dynamic_shapes))
        """The names of sizes, by those that torch gives them."""
        self.known: dict[Any, Symbol | _Results | Size | int | None] = {}

    def graph(self, **shardings: Any) -> Graph:
        """Return the graph of the program."""
        self._check_outputs()
        for symbol, limits in self.program.range_constraints.items():
            bounds = ((">=", limits.lower), ("<=", limits.upper))
            known = [
                f" {sign} {n}" for sign, n in bounds if n.is_Integer and (sign, n) != (">=", 0)
            ]
            name = self.names.get(str(symbol), str(symbol))
            self.tracer.conditions |= dict.fromkeys(name + limit for limit in known)
        placed = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        with recording(self.tracer.conditions), recorded_by(self.tracer):
            for node in self.program.graph.nodes:
                if node.op == "placeholder":
                    self.known[node] = self._input(node, placed[node.name])
                elif node.op == "call_function" and not _is_ignored(node):
                    self.known[node] = self._call(node)
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        specs = self.program.graph_signature.output_specs
        returned = [
            self._returned(each)
            for each, spec in zip(output.args[0], specs)
            if spec.kind is OutputKind.USER_OUTPUT
        ]
        return self.tracer.graph(returned, **shardings)

    def _check_outputs(self) -> None:
        for spec in self.program.graph_signature.output_specs:
            if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.TOKEN):
                kind = spec.kind.name.lower().replace("_", " ")
                raise WeftError(
                    f"the program has a {kind}, {spec.target or spec.arg.name}: a graph "
                    "cannot mutate its inputs",
                    hint=EVAL,
                )

    def _input(self, node: Any, spec: Any) -> Symbol | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or spec.kind is InputKind.TOKEN:
            return None  # a number or a flag, which is part of the program already
        shape, dtype = self._shape_and_dtype(node, value)
        if spec.kind is InputKind.CONSTANT_TENSOR:
            return self._constant(node, self.program.constants[spec.target])
        is_parameter = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        name = spec.target if is_parameter else node.name
        return self.tracer.input(name, shape, dtype, parameter=is_parameter)

    def _constant(self, node: Any, tensor: Any) -> Symbol:
        """Return a tensor of the program that is not a parameter."""
        if tensor.numel() > MOST_ELEMENTS:
            raise WeftError(
                f"{node.name} is a constant of {tensor.numel()} elements, and a graph keeps "
                f"{MOST_ELEMENTS}",
                hint="make it a buffer of the module: register_buffer",
            )
        shape, dtype = self._shape_and_dtype(node, tensor)
        value = tuple(tensor.flatten().tolist()) if shape else tensor.item()
        attributes = {"value": value, "dtype": dtype, "result_shape": shape}
        self.tracer.prefix = f"{node.name}/"
        return self.tracer.apply("constant", (), attributes)[0]

    def _call(self, node: Any) -> Symbol | _Results | Size | int | None:
        """Return the results of a node; the values between are named after it."""
        if isinstance(node.meta.get("val"), torch.SymInt):
            size: Size | int = self._size(node, node.meta["val"])
            return size
        if isinstance(node.meta.get("val"), torch.SymFloat):
            return self._float(node)
        if node.target is operator.getitem:
            return self._part(*node.args)
        before, self.tracer.prefix = len(self.tracer.applications), f"{node.name}/"
        try:
            result = _converter(node)(
                self._node(node), *self._given(node.args), **self._given(node.kwargs)
            )
        except WeftError as error:
            raise _located(error, node) from None
        results = self._named(node.name, before, result if isinstance(result, tuple) else (result,))
        self._check(node, results)
        return _Results(results) if isinstance(result, tuple) else results[0]

    def _float(self, node: Any) -> Symbol:
        """Return a float that is computed from sizes."""
        name = getattr(node.target, "__name__", str(node.target))
        if name not in _FLOATS:
            raise _located(WeftError(f"{name} of sizes is not a function that Weft reads"), node)
        self.tracer.prefix = f"{node.name}/"
        operands = [
            self.tracer.constant(x, "float64") if isinstance(x, Size) else x
            for x in self._given(node.args)
        ]
        result: Symbol = _FLOATS[name](*operands)
        return result

    def _part(self, source: Any, number: int) -> Symbol:
        made = self.known[source]
        part = made.results[number] if isinstance(made, _Results) else None
        if part is None:
            message = f"result {number} of {source.target} is used, and Weft does not compute it"
            raise _located(WeftError(message), source)
        return part

    def _node(self, node: Any) -> AtenNode:
        value = node.meta.get("val")
        values = value if isinstance(value, tuple | list) else (value,)
        results = tuple(
            Value(node.name, *self._shape_and_dtype(node, v))
            if isinstance(v, torch.Tensor)
            else None
            for v in values
        )
        used = frozenset(user.args[1] for user in node.users if user.target is operator.getitem)
        return AtenNode(self.tracer, results, _common(node), self._random_key, used)

    def _random_key(self) -> Symbol:
        """Return a new key: the number of the draw, folded into the key of the program."""
        if self.key is None:
            self.key = (
                self.tracer.input("random_key", (2,), "uint32")
                if self.seed is None
                else ops.random_key(self.seed)
            )
        self.draws += 1
        key: Symbol = ops.random_fold_in(self.key, self.draws - 1)
        return key

    def _shape_and_dtype(self, node: Any, tensor: Any) -> tuple[tuple[int, ...], str]:
        return as_sizes(self._size(node, n) for n in tensor.shape), dtype_name(tensor.dtype)

    def _size(self, node: Any, size: Any) -> Any:
        """Return a size of torch, which may be an expression in names."""
        if isinstance(size, int):
            return size
        try:
            return self._expression(size.node.expr)
        except (KeyError, WeftError) as error:
            raise WeftError(
                f"{node.name} has the size {size}, which Weft does not read: {error}",
                hint="export the program without dynamic_shapes for it",
            ) from None

    def _expression(self, expression: Any) -> Any:
        """Return an expression of SymPy in names of sizes; a decision in it is a condition."""
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return Size.parse(self.names.get(str(expression), str(expression)))
        return _SIZES[expression.func.__name__](*map(self._expression, expression.args))

    def _given(self, arguments: Any) -> Any:
        """Return the arguments of a node with symbols for nodes."""
        return torch.fx.node.map_aggregate(arguments, self._plain)

    def _plain(self, x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return self.known[x]
        return dtype_name(x) if isinstance(x, torch.dtype) else x

    def _named(
        self, name: str, before: int, made: tuple[Symbol | None, ...]
    ) -> tuple[Symbol | None, ...]:
        """Return the results under the name of their node; returned operands keep theirs."""
        applied = self.tracer.applications
        new = {result for one in applied[before:] for result in one.results}
        finals = [one.name for one in made if one is not None and one.name in new]
        ends = [f".{n}" for n in range(len(finals))] if len(finals) > 1 else [""]
        names = {old: self.tracer.fresh(name + end) for old, end in zip(finals, ends)}
        self.tracer.rename(names, before)
        return tuple(_called(self.tracer, one, names) for one in made)

    def _check(self, node: Any, made: tuple[Symbol | None, ...]) -> None:
        """Raise for results that differ from torch's: the table would be wrong."""
        for wanted, got in zip(self._node(node).results, made):
            if wanted is None or got is None:
                continue
            if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                message = f"{node.target} returns {wanted}, and Weft {got.value}"
                raise _located(WeftError(message), node)

    def _returned(self, node: Any) -> Symbol:
        symbol = self.known.get(node) if isinstance(node, torch.fx.Node) else None
        if isinstance(symbol, Symbol):
            return symbol
        raise WeftError(f"the program returns {node}, which is not a tensor")


def _called(tracer: Tracer, symbol: Symbol | None, names: Mapping[str, str]) -> Symbol | None:
    if symbol is None or symbol.name not in names:
        return symbol
    return Symbol(tracer, symbol.value._replace(name=names[symbol.name]))


def _converter(node: Any) -> Any:
    """Return the converter of a node."""
    packet, _, overload = str(node.target).removeprefix("aten.").partition(".")
    for name in (f"{packet}.{overload}", packet):
        if name in TABLE and str(node.target).startswith("aten."):
            return TABLE[name]
    hint = EVAL if "batch_norm" in packet else None
    raise WeftError(
        f"{node.target} is not an operator that Weft reads",
        hint=hint or "write it with others, or add a function to weft.interop.aten.TABLE",
    )


def _located(error: WeftError, node: Any) -> WeftError:
    """Return the error with the operator and the line of the program that torch recorded."""
    message = str(error)
    if str(node.target) not in message:
        message = f"{node.target}: {message}"
    lines = _LOCATION.findall(node.meta.get("stack_trace") or "")
    place = " at {}, line {}: {}".format(*lines[-1]) if lines else f" at node {node.name}"
    refusal = WeftError(f"{message}{place.rstrip()}")
    for note in getattr(error, "__notes__", ()):
        refusal.add_note(note)
    return refusal


def _names_of_sizes(program: ExportedProgram, dynamic_shapes: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of sizes in torch's program, with those of the dimensions they were given."""
    inputs = [
        node
        for node, spec in zip(program.graph.nodes, program.graph_signature.input_specs)
        if spec.kind is InputKind.USER_INPUT
    ]
    if isinstance(dynamic_shapes, Mapping):
        named = {node.name: node for node in inputs}
        pairs = [*_specs(named, dynamic_shapes, "")]
    else:
        pairs = list(zip(inputs, dynamic_shapes or ()))
    for node, spec in pairs:
        shape = getattr(node.meta.get("val"), "shape", ())
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for dim, given in dims:
            name = getattr(given, "__name__", "")
            if name and not isinstance(shape[dim], int) and shape[dim].node.expr.is_Symbol:
                yield str(shape[dim].node.expr), name


def _specs(inputs: Mapping[str, Any], specs: Any, prefix: str) -> Iterator[tuple[Any, Any]]:
    """Yield inputs with the dimensions given for them; those in containers are `name_key`."""
    if isinstance(specs, Mapping | tuple | list):
        for key, spec in specs.items() if isinstance(specs, Mapping) else enumerate(specs):
            name = f"{prefix}{key}"
            if name in inputs:
                yield inputs[name], spec
            else:
                yield from _specs(inputs, spec, f"{name}_")


def _common(node: Any) -> str:
    """Return the dtype that torch converts the first two arguments to."""
    pair = list(_operands(node.args[:2]))
    return dtype_name(torch.result_type(*pair)) if len(pair) == 2 else ""


def _operands(args: Any) -> Iterator[Any]:
    for arg in args:
        value = arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg
        if isinstance(value, torch.Tensor | bool | int | float):
            yield value


def _is_ignored(node: Any) -> bool:
    """Return whether a node only checks something, or is only used by such nodes."""
    if node.target is operator.getitem and _is_ignored(node.args[0]):
        return True
    if node.target is operator.getitem:
        return bool(node.users) and all(map(_is_ignored, node.users))
    target = node.args[1] if "with_effects" in str(node.target) else node.target
    return any(name in str(target) for name in _IGNORED)
