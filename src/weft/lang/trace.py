"""`trace`: a Python function, called with symbols, becomes a `Graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, signature
from operator import index
from typing import Any

from weft.errors import LayoutError, WeftError
from weft.lang.arithmetic import Arithmetic, recorded_by
from weft.lang.dtype import as_dtype, dtype_name, is_scalar, scalar_of
from weft.lang.graph import Application, Graph, Value, check_sharding, read_meshes
from weft.lang.operator import OPERATORS, Library, Operator
from weft.lang.size import Size, as_sizes, recording
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.values import FrozenMap, Point


class Symbol(Arithmetic):
    """A value of a program that is being traced: a name, a shape and a dtype.

    `run`, `numpy`, `np.asarray` and `float` compute it if all arrays that it depends on are known:
    those of the tensors that were traced or captured. The inputs of a function that `trace` calls
    have no arrays; computing a value that depends on them is an error.
    """

    __slots__ = ("_tracer", "value")

    def __init__(self, tracer: Tracer, value: Value) -> None:
        self._tracer, self.value = tracer, value

    @property
    def name(self) -> str:
        """The name in the graph."""
        return self.value.name

    @property
    def shape(self) -> Point:
        """The sizes of the dimensions."""
        return self.value.shape

    @property
    def dtype(self) -> str:
        """The dtype of the elements."""
        return self.value.dtype

    def __weft_apply__(
        self, name: str, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Symbol, ...]:
        tracer = self._common_tracer(operands)
        typed = tracer.converted(tracer.operators.find(name), operands)
        return tracer.apply(name, typed, attributes)

    def _common_tracer(self, operands: Sequence[Any]) -> Tracer:
        """Return the tracer that records an application: that of a function, if one is traced."""
        tracers = [operand._tracer for operand in operands if isinstance(operand, Symbol)]
        return next((tracer for tracer in tracers if tracer.is_function()), self._tracer)

    def with_sharding(
        self,
        mesh: DeviceMesh | ShardingSpec | str,
        dims: Iterable[DimSpec | str] | str | None = None,
    ) -> Symbol:
        """Return the value under a sharding: a sharding, or a mesh and one `DimSpec` a dimension.

        Each may be an object or text; the text of a sharding names a mesh of the program. The
        sharding is a constraint for propagation, and a reshard where the value has another one.
        """
        return self._tracer.constrain(self, mesh, dims)

    shard = with_sharding

    def graph(self) -> Graph:
        """Return the program so far, which returns this value."""
        return self._tracer.graph([self])

    def run(self, strategy: str = "user_priority") -> Any:
        """Plan the program that leads to this value, run it, and return the value as a `Tensor`.

        `strategy` is one of `propagate`; the program runs in this process.
        """
        graph, arrays = self._tracer.concrete(self)
        # Imported late: the executor is above this package, which needs no array library.
        (result,) = import_module("weft.runtime.execute").run_graph(graph, arrays, strategy)
        return result

    def numpy(self) -> Any:
        """Return the numbers as a new NumPy array."""
        return self.run().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(f"{self.name} is computed for NumPy, which needs copy=None or True")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __float__(self) -> float:
        return float(self.run())

    def __int__(self) -> int:
        return int(self.run())

    def __complex__(self) -> complex:
        return complex(self.run())

    def __index__(self) -> int:
        return index(self.run())

    def __contains__(self, item: Any) -> bool:
        return item in self.run()

    def __repr__(self) -> str:
        return f"Symbol({self.value})"

    def __bool__(self) -> bool:
        raise WeftError(
            f"{self.name} has no numbers yet: a traced function cannot branch on them",
            hint="use weft.ops.where, branch on shapes, or ask for numbers: bool(x.numpy())",
        )


class Tracer:
    """Records the applications of operators, one after the other."""

    def __init__(self, operators: Library = OPERATORS) -> None:
        self.operators = operators
        self.inputs: list[Value] = []
        self.applications: list[Application] = []
        self.shardings: dict[str, str] = {}
        self.meshes: dict[str, str] = {}
        self.dtypes: dict[str, str] = {}
        self.used_names: dict[str, int] = {}
        self.prefix = ""
        """The prefix of the names of new values."""
        self.captured: dict[str, Any] = {}
        """The arrays that the function captures, by the names of their inputs."""
        self._sources: dict[str, Any] = {}
        """The captured arrays themselves, of which `captured` has copies."""
        self.copied: dict[tuple[Tracer, str], str] = {}
        """The names here of values of other tracers."""
        self.parameters: set[str] = set()
        """The inputs that are parameters of a model; captured arrays are."""
        self.conditions: dict[str, None] = {}
        """What the function decided about sizes that are not known."""

    def input(
        self, name: str, shape: Iterable[int | str], dtype: str, *, parameter: bool = False
    ) -> Symbol:
        """Add an input, which may be a parameter of a model: a weight or a constant."""
        value = Value(self.fresh(name), as_sizes(shape), dtype)
        self.inputs.append(value)
        if parameter:
            self.parameters.add(value.name)
        return Symbol(self, value)

    def capture(self, array: Any, name: str = "input", *, parameter: bool = True) -> Symbol:
        """Return the input for an array, the same each time; it is a parameter of a model.

        The sharding of a tensor becomes that of the input. Any other array is copied, since it may
        change before the program runs; one that changed since it was captured is a new input.
        """
        is_tensor = hasattr(array, "__weft_apply__")
        for known, other in self._sources.items():
            if other is array and (is_tensor or _equal(self.captured[known], array)):
                return Symbol(self, next(v for v in self.inputs if v.name == known))
        symbol = self.input(name, array.shape, dtype_name(array.dtype), parameter=parameter)
        self.captured[symbol.name] = array if is_tensor else _copied(array)
        self._sources[symbol.name] = array
        self.annotate(symbol.name, getattr(array, "annotation", None))
        return symbol

    def annotate(self, name: str, spec: Any) -> None:
        """Record the sharding of an input, and its mesh, unless it is None."""
        if spec is not None:
            self.use_mesh(spec.mesh)
            self.shardings[name] = str(spec)

    def use_mesh(self, mesh: DeviceMesh | str) -> None:
        """Record a mesh by its name; two different meshes of one name are an error."""
        text, name = str(mesh), DeviceMesh.parse(mesh).name
        if self.meshes.setdefault(name, text) != text:
            raise WeftError(f"two meshes are named {name}: {self.meshes[name]} and {text}")

    def copy_from(self, symbol: Symbol, operator: str) -> Symbol:
        """Copy a value of another tracer, with the program that computes it.

        Applications are copied once, and a tensor that both captured is one input. A value that
        depends on an input of another traced function is an error.
        """
        other = symbol._tracer
        inputs, applications = other.program_of(symbol)
        for value in inputs:
            if value.name not in other.captured:
                raise WeftError(
                    f"{operator} is applied to {symbol.value}, which depends on {value} of another "
                    f"traced function",
                    hint="give it to this function as an input",
                )
        for text in other.meshes.values():
            self.use_mesh(text)
        names = {name: own for (tracer, name), own in self.copied.items() if tracer is other}
        for value in inputs:
            if value.name not in names:
                names[value.name] = self.capture(other.captured[value.name], value.name).name
        for application in applications:
            if application.results[0] in names:
                continue
            names |= {result: self.fresh(result) for result in application.results}
            self.applications.append(
                application._replace(
                    operands=tuple(names[name] for name in application.operands),
                    results=tuple(names[name] for name in application.results),
                )
            )
            for result in application.results:
                self.dtypes[names[result]] = other.dtypes[result]
                if result in other.shardings:
                    self.shardings[names[result]] = other.shardings[result]
        self.copied |= {(other, name): own for name, own in names.items()}
        return Symbol(self, symbol.value._replace(name=names[symbol.name]))

    def program_of(self, symbol: Symbol) -> tuple[list[Value], list[Application]]:
        """Return the inputs and the applications that a value depends on."""
        needed, applications = {symbol.name}, list[Application]()
        for application in reversed(self.applications):
            if needed.intersection(application.results):
                needed.update(application.operands)
                applications.append(application)
        return [value for value in self.inputs if value.name in needed], applications[::-1]

    def is_function(self) -> bool:
        """Return whether it traces a function: some of its inputs have no arrays."""
        return any(value.name not in self.captured for value in self.inputs)

    def concrete(self, symbol: Symbol) -> tuple[Graph, dict[str, Any]]:
        """Return the program that computes a value, and the arrays of its inputs."""
        inputs, applications = self.program_of(symbol)
        missing = [str(value) for value in inputs if value.name not in self.captured]
        if missing:
            raise WeftError(
                f"{symbol.value} has no numbers: there is no array for {', '.join(missing)}",
                hint="run a plan of its graph with the arrays: weft.run(propagate(graph), {…})",
            )
        known = {value.name for value in inputs}
        known.update(name for application in applications for name in application.results)
        graph = Graph(
            inputs,
            applications,
            [symbol.name],
            tuple(self.meshes.values()),
            {name: text for name, text in self.shardings.items() if name in known},
            operators=self.operators,
            dtypes=self.dtypes,
        )
        return graph, {value.name: self.captured[value.name] for value in inputs}

    def apply(
        self, name: str, operands: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[Symbol, ...]:
        """Record an application to operands of the right dtypes, and return its results."""
        symbols = [self._operand(name, operand) for operand in operands]
        operator = self.operators.find(name)
        with recording(None):  # a graph applies the rule again where sizes are bound
            line = operator.sign([symbol.shape for symbol in symbols], attributes)
        try:
            dtypes = operator.result_dtypes([symbol.dtype for symbol in symbols], attributes)
        except WeftError as error:
            error.add_note(f"while applying {name} to {', '.join(str(t.value) for t in symbols)}")
            raise
        results = []
        for number, shape in enumerate(line.result_shapes):
            value = Value(
                self.fresh(self.prefix + name), shape, dtypes[min(number, len(dtypes) - 1)]
            )
            self.dtypes[value.name] = value.dtype
            results.append(Symbol(self, value))
        self.applications.append(
            Application(
                name,
                tuple(symbol.name for symbol in symbols),
                tuple(symbol.name for symbol in results),
                FrozenMap((k, v) for k, v in attributes.items() if v is not None),
            )
        )
        return tuple(results)

    def constrain(
        self,
        x: Symbol,
        mesh: DeviceMesh | ShardingSpec | str,
        dims: Iterable[DimSpec | str] | str | None,
    ) -> Symbol:
        """Return the value under a sharding constraint, which must fit the value."""
        own: DeviceMesh | None = None
        try:
            if isinstance(mesh, ShardingSpec):
                own, text = mesh.mesh, str(mesh)
            elif dims is None and isinstance(mesh, str):
                text = mesh
            elif dims is None:
                raise LayoutError(
                    "a sharding needs a mesh and one DimSpec for each dimension, or a spec"
                )
            else:
                own = DeviceMesh.parse(mesh)
                text = dims if isinstance(dims, str) else str(ShardingSpec(own, dims))
            known = self.meshes.values() if own is None else [own]
            check_sharding(text, x.shape, read_meshes(known))
        except WeftError as error:
            error.add_note(f"while sharding {x.value}")
            raise
        if own is not None:
            self.use_mesh(own)
        (result,) = self.apply("sharding_constraint", [x], {})
        self.shardings[result.name] = text
        return result

    def graph(self, outputs: Sequence[Symbol], **changes: Any) -> Graph:
        """Return the program with those values as outputs."""
        parts: dict[str, Any] = {
            "meshes": tuple(self.meshes.values()),
            "shardings": self.shardings,
            "operators": self.operators,
            "dtypes": self.dtypes,
            "parameters": [v.name for v in self.inputs if v.name in self.parameters],
            "conditions": self.conditions,
        }
        names = [symbol.name for symbol in outputs]
        return Graph(self.inputs, self.applications, names, **{**parts, **changes})

    def converted(self, operator: Operator, operands: Sequence[Any]) -> list[Symbol]:
        """Return the operands as symbols of the dtypes that an operator takes.

        Python numbers are weak, and so are sizes, as integers; a NumPy scalar is a constant with
        its own dtype.
        """
        known = [
            operand
            if is_scalar(operand) or isinstance(operand, Size)
            else self._operand(operator.name, operand)
            for operand in operands
        ]
        given = [
            x.dtype if isinstance(x, Symbol) else 1 if isinstance(x, Size) else x for x in known
        ]
        try:
            wanted = operator.conversion(given)
        except WeftError as error:
            error.add_note(f"while applying {operator.name} to {', '.join(map(str, given))}")
            raise
        return [self._typed(x, dtype) for x, dtype in zip(known, wanted)]

    def _typed(self, operand: Any, dtype: str) -> Symbol:
        """Return a symbol, or a Python number, in a dtype."""
        if not isinstance(operand, Symbol):
            return self.constant(operand, dtype)
        if operand.dtype == dtype:
            return operand
        return self.apply("convert", [operand], {"dtype": dtype})[0]

    def constant(self, value: Any, dtype: str) -> Symbol:
        """Return a constant of rank 0."""
        number = value if isinstance(value, Size) else scalar_of(value, dtype)
        attributes = {"value": number, "dtype": dtype, "result_shape": ()}
        value_of = Value(self.fresh(f"{self.prefix}constant"), (), dtype)
        self.dtypes[value_of.name] = dtype
        self.applications.append(
            Application("constant", (), (value_of.name,), FrozenMap(attributes.items()))
        )
        return Symbol(self, value_of)

    def _operand(self, name: str, operand: Any) -> Symbol:
        if isinstance(operand, Symbol):
            return operand if operand._tracer is self else self.copy_from(operand, name)
        if hasattr(operand, "shape") and hasattr(operand, "dtype"):
            if tuple(operand.shape) == () and type(operand).__module__ in ("numpy", "ml_dtypes"):
                return self.constant(operand.item(), dtype_name(operand.dtype))
            return self.capture(operand)
        raise WeftError(f"{name} cannot be applied to a {type(operand).__name__}")

    def rename(self, names: Mapping[str, str], since: int = 0) -> None:
        """Rename values, in the applications from number `since` on."""
        for number, one in enumerate(self.applications[since:], since):
            operands, results = (
                tuple(names.get(name, name) for name in each)
                for each in (one.operands, one.results)
            )
            self.applications[number] = one._replace(operands=operands, results=results)
        for table in (self.dtypes, self.shardings):
            table.update({new: table.pop(old) for old, new in names.items() if old in table})

    def named(self, outputs: Mapping[str, Symbol]) -> list[Symbol]:
        """Rename outputs; another value of that name gets a new one."""
        inputs = {value.name for value in self.inputs}
        names: dict[str, str] = {}
        for name, symbol in outputs.items():
            if not isinstance(name, str):
                raise WeftError(f"expected outputs named by strings, got {name!r}")
            if name != symbol.name and symbol.name in inputs:
                raise WeftError(
                    f"output {name} is the input {symbol.name}, which cannot be renamed"
                )
            if name != symbol.name and name in inputs:
                raise WeftError(f"output {name} has the name of an input")
            if names.setdefault(symbol.name, name) != name:
                raise WeftError(f"outputs {names[symbol.name]} and {name} are one value")
            self.used_names.setdefault(name, 1)
        results = {result for one in self.applications for result in one.results}
        for name in (results - names.keys()).intersection(outputs):
            names[name] = self.fresh(name)
        self.rename(names)
        return [Symbol(self, s.value._replace(name=name)) for name, s in outputs.items()]

    def fresh(self, name: str) -> str:
        """Return a name that is not used yet: with a number from the second value on."""
        count = self.used_names[name] = self.used_names.get(name, 0) + 1
        return name if count == 1 else self.fresh(f"{name}_{count}")


def trace(
    function: Callable[..., Any],
    *inputs: Any,
    meshes: Iterable[DeviceMesh | str] = (),
    shardings: Mapping[str, ShardingSpec | str] | None = None,
    names: Sequence[str] = (),
    operators: Library = OPERATORS,
    parameters: Iterable[str] = (),
    **named: Any,
) -> Graph:
    """Call a function with symbols, and return the operators that it applies as a graph.

    An input is a shape, a `Value`, or anything that has a shape and a dtype; it is named by the
    function's parameter unless `names` are given, and may be given by that name. A size in a shape
    may be a name, `("n", 4)`, for which `Graph.bind` puts a number. Shardings go by the names of
    inputs; tensors that are inputs, or captured, have their own. A function that returns a dict
    names its outputs. `parameters` names the inputs that are weights or constants of a model;
    arrays that the function captures are parameters as well.

    >>> graph = trace(lambda x, w: (x @ w + 1).sum(-1), (8, 16), (16, 4))
    >>> print(graph)
    x: float32[8, 16]
    w: float32[16, 4]
    matmul: float32[8, 4] = matmul(x, w)
    constant: float32[] = constant(, value=1.0, dtype=float32, result_shape=())
    add: float32[8, 4] = add(matmul, constant)
    sum_dim: float32[8] = sum_dim(add, dimensions=(1,), keepdims=False)
    return sum_dim
    >>> trace(lambda x: {"mean": x.mean(0), "most": x.max(0)}, (8, 16)).outputs
    ('mean', 'most')
    >>> print(trace(lambda x: x[1:].reshape(-1), x=("n", 4)))
    x: float32[n, 4]
    slice: float32[n-1, 4] = slice(x, start_indices=(1, 0), limit_indices=(n, 4), strides=(1, 1))
    reshape: float32[4*n-4] = reshape(slice, result_shape=(4*n-4,))
    return reshape
    where n >= 1
    """
    tracer = Tracer(operators)
    for mesh in meshes:
        tracer.use_mesh(mesh)
    if names and len(names) != len(inputs):
        raise WeftError(f"{len(names)} names for {len(inputs)} inputs: {', '.join(names)}")
    symbols = [
        _input(tracer, name, given, bool(names))
        for name, given in zip(names or _names(function, len(inputs)), inputs)
    ]
    _check_names(function, named)
    by_name = {name: _input(tracer, name, given) for name, given in named.items()}
    symbols += by_name.values()
    inputs_by_name = {symbol.name for symbol in symbols}
    for name in (parameters,) if isinstance(parameters, str) else parameters:
        if name not in inputs_by_name:
            raise WeftError(
                f"parameters: {name} is not an input of the function",
                hint=f"inputs: {', '.join(symbol.name for symbol in symbols)}",
            )
        tracer.parameters.add(name)
    with recording(tracer.conditions), recorded_by(tracer):
        returned = function(*symbols[: len(inputs)], **by_name)
    outputs: list[Any] = [returned]
    if isinstance(returned, tuple | list | Mapping):
        outputs = list(returned.values() if isinstance(returned, Mapping) else returned)
    for output in outputs:
        if not isinstance(output, Symbol):
            raise WeftError(
                f"expected a traced function to return tensors, got a {type(output).__name__}"
            )
    if isinstance(returned, Mapping):
        outputs = tracer.named(returned)
    known = [value.name for value in tracer.inputs]
    for name, sharding in (shardings or {}).items():
        if name not in known and name not in tracer.dtypes:
            raise WeftError(
                f"shardings.{name}: the program has no value {name}",
                hint=f"the inputs are {', '.join(known) or 'none'}",
            )
        tracer.shardings[name] = str(sharding)
        if isinstance(sharding, ShardingSpec):
            tracer.use_mesh(sharding.mesh)
    return tracer.graph(outputs)


def _input(tracer: Tracer, name: str, given: Any, is_named: bool = False) -> Symbol:
    if isinstance(given, Value):
        return tracer.input(name if is_named else given.name, given.shape, given.dtype)
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        symbol = tracer.input(name, given.shape, as_dtype(given.dtype))
        tracer.annotate(symbol.name, getattr(given, "annotation", None))
        return symbol
    return tracer.input(name, given, "float32")


def _copied(array: Any) -> Any:
    """Return a copy of an array of any library."""
    copy = getattr(array, "clone", None) or getattr(array, "copy", None)
    return array if copy is None else copy()


def _equal(one: Any, other: Any) -> bool:
    """Return whether two arrays of one shape have the same numbers."""
    return bool((one == other).all())


def _check_names(function: Callable[..., Any], named: Iterable[str]) -> None:
    """Raise for inputs by names that are not parameters of the function."""
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(parameter.kind == Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in named:
        if name not in parameters:
            raise WeftError(
                f"the function has no parameter {name}",
                hint=f"its parameters are {', '.join(parameters) or 'none'}",
            )


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first parameters of a function."""
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return [*names, *(f"input_{n}" for n in range(len(names), count))][:count]
