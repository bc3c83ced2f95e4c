"""`Network`: a graph as layers on encrypted values, and the same layers computed in the clear.

Every operation on an encrypted value must be a linear map, a sum, a product or a polynomial;
everything else is computed in the clear, before the run. A view of a value (a reshape) is that
value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.activations import NAMED, Activation
from weft.ckks.packing import Floats
from weft.ckks.polynomial import Evaluation, evaluate
from weft.errors import WeftError
from weft.lang import (
    OPERATORS,
    Application,
    Block,
    Graph,
    Signature,
    Symbol,
    Tracer,
    Value,
    ops,
)
from weft.values import Point

PairOperation: TypeAlias = Literal["add", "subtract", "multiply"]
"""An element-wise operation on two encrypted tensors."""

Arrays: TypeAlias = Mapping[str, ArrayLike]
"""Arrays by the name of their input."""


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A linear map of encrypted values with weights in the clear: convolution, pool, dense layer.

    A concatenation has several sources, every other layer has one.
    """

    name: str
    operator: str
    sources: tuple[str, ...]
    places: tuple[int, ...]
    """The operand numbers of the sources."""
    signature: Signature
    weight: int | None = None
    """The operand number of the weight; without one all weights are 1."""
    weight_name: str = ""
    bias: str = ""
    factor: float = 1.0
    """A factor of all weights and of the bias."""
    divisors: tuple[Point, ...] = ()
    """For a mean, the number of averaged elements along each dimension of the result: one number
    for each index, or one for all. Empty for other layers."""
    shift: float = 0.0
    """A constant that is added to every element, after the bias."""
    inverts: bool = False
    """Whether the weight divides."""

    levels = 1

    @property
    def scale(self) -> Floats:
        """The factor of the weights of each element of the result, or one for all."""
        rank = len(self.signature.result_shapes[0])
        scale = np.full((1,) * rank, self.factor)
        for dim, counts in enumerate(self.divisors):
            scale = scale / np.reshape(counts, (-1, *(1,) * (rank - dim - 1))[: max(1, rank)])
        return scale if rank else scale.reshape(())


@dataclass(frozen=True, slots=True)
class PairLayer:
    """The sum, the difference or the product of two encrypted values of one shape."""

    name: str
    sources: tuple[str, str]
    operator: PairOperation

    @property
    def levels(self) -> int:
        """The number of levels that it takes."""
        return int(self.operator == "multiply")

    @property
    def sign(self) -> int:
        """The sign of the second value in a sum."""
        return -1 if self.operator == "subtract" else 1


@dataclass(frozen=True, slots=True)
class ShiftLayer:
    """An encrypted value, or its negative, plus a value in the clear."""

    name: str
    sources: tuple[str]
    plain: str
    """The name of the value that is added; empty for none."""
    sign: int = 1
    """The sign of the encrypted value."""
    plain_sign: int = 1

    operator = "shift"
    levels = 0


@dataclass(frozen=True, slots=True)
class PolynomialLayer:
    """A polynomial of every element."""

    name: str
    sources: tuple[str]
    activation: Activation
    evaluation: Evaluation

    operator = "polynomial"

    @property
    def levels(self) -> int:
        """The number of levels that it takes."""
        return self.evaluation.levels


@dataclass(frozen=True, slots=True)
class RepackingLayer:
    """A value in another packing."""

    name: str
    sources: tuple[str]
    levels: int
    """1 if values must be masked, otherwise 0."""

    operator = "reshard"


Layer: TypeAlias = LinearLayer | PairLayer | ShiftLayer | PolynomialLayer | RepackingLayer

BEFORE = ":before"
"""Suffix of the name of a value before its repacking."""

BATCH_NORM = "batch_norm_inference"
SUMS: dict[str, PairOperation] = {"add": "add", "subtract": "subtract"}
VIEWS = ("convert", "reshape", "sharding_constraint")
"""Operators that do not change the numbers; conversions are between floats."""


def encrypted_inputs(graph: Graph, stated: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the encrypted inputs: those stated, or the only one that is not a parameter.

    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w), (1, 8), (8, 4), parameters=["w"])
    >>> encrypted_inputs(graph, None)
    ('x',)
    >>> encrypted_inputs(trace(lambda x, y: x * y, (8,), (8,)), None)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: which input is encrypted? 2 are not known to be parameters: x, y
    hint: state it: encrypted=["x"]; or declare the parameters: trace(..., parameters=[...])
    """
    names = [value.name for value in graph.inputs]
    if stated is not None:
        chosen = (stated,) if isinstance(stated, str) else tuple(dict.fromkeys(stated))
        for name in chosen:
            if name not in names:
                raise WeftError(f"there is no input {name} to encrypt", hint=f"inputs: {names}")
        if not chosen:
            raise WeftError("no input is stated to be encrypted", hint=f"inputs: {names}")
        return chosen
    data = [name for name in names if name not in graph.parameters]
    if len(data) == 1:
        return (data[0],)
    if not names:
        raise WeftError("the graph has no input that could be encrypted")
    if not data:
        raise WeftError(
            f"which input is encrypted? all are parameters: {', '.join(names)}",
            hint=f'state it: encrypted=["{names[0]}"]',
        )
    raise WeftError(
        f"which input is encrypted? {len(data)} are not known to be parameters: {', '.join(data)}",
        hint=f'state it: encrypted=["{data[0]}"]; or declare the parameters: '
        "trace(..., parameters=[...])",
    )


@dataclass(frozen=True, slots=True)
class Network:
    """The layers of a graph in order.

    >>> import numpy as np
    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w) + 1.0, np.ones((1, 8)), np.ones((8, 4)))
    >>> [type(layer).__name__ for layer in Network.of(graph, "x").layers]
    ['LinearLayer', 'ShiftLayer']
    """

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: tuple[Layer, ...]
    views: Mapping[str, str]
    """The value that each view shows."""

    @classmethod
    def of(cls, graph: Graph, encrypted: str | Iterable[str] | None = None) -> Network:
        """Read the layers of a graph.

        `encrypted` names the encrypted inputs (default: the only one that is not a parameter).
        """
        names = encrypted_inputs(graph, encrypted)
        return _NetworkReader(_without_batch_norms(graph), names).network()

    @property
    def clear(self) -> tuple[str, ...]:
        """The inputs of the graph that are not encrypted."""
        return tuple(value.name for value in self.graph.inputs if value.name not in self.inputs)

    @property
    def clear_graph(self) -> Graph:
        """The part of the graph that is computed in the clear."""
        hidden = {name for layer in self.layers for name in (layer.name, *layer.sources)}
        hidden |= set(self.views)
        applications = [each for each in self.graph.applications if hidden.isdisjoint(each.results)]
        inputs = [value for value in self.graph.inputs if value.name not in self.inputs]
        results = [name for each in applications for name in each.results]
        return Graph(inputs, applications, results)

    def shape(self, name: str) -> Point:
        """Return the shape of a value."""
        return self.graph.values[name.removesuffix(BEFORE)].shape

    def uses(self) -> Counter[str]:
        """Return how often each value is read; an output counts as one more read."""
        uses = Counter(name for layer in self.layers for name in layer.sources)
        uses.update(self.views.get(name, name) for name in self.outputs)
        return uses

    def with_repackings(self, levels: Mapping[str, int]) -> Network:
        """Return the network with repackings after some polynomials, given their levels."""
        layers = list[Layer]()
        for layer in self.layers:
            if layer.name in levels:
                before = layer.name + BEFORE
                layers.append(replace(layer, name=before))
                layers.append(RepackingLayer(layer.name, (before,), levels[layer.name]))
            else:
                layers.append(layer)
        return replace(self, layers=tuple(layers))

    def folded(self) -> Network:
        """Return the network with the first factors of polynomials folded into weights before them.

        Only where no other layer reads the results of those linear layers.
        """
        layers = {layer.name: layer for layer in self.layers}
        uses = self.uses()
        for layer in self.layers:
            if isinstance(layer, PolynomialLayer) and _is_free(layer.sources[0], layers, uses):
                evaluation = evaluate(layer.activation, fold=True)
                layers[layer.name] = replace(layer, evaluation=evaluation)
                _multiply(layer.sources[0], layers, evaluation.factor, evaluation.shift)
        return replace(self, layers=tuple(layers.values()))


def _is_free(name: str, layers: Mapping[str, Layer], uses: Counter[str]) -> bool:
    """Whether weights alone can scale a value, and nothing else reads it."""
    layer = layers.get(name)
    if layer is None or uses[name] > 1:
        return False
    if isinstance(layer, PairLayer) and not layer.levels:
        return all(_is_free(each, layers, uses) for each in set(layer.sources))
    return isinstance(layer, LinearLayer)


def _multiply(name: str, layers: dict[str, Layer], factor: float, shift: float) -> None:
    layer = layers[name]
    if isinstance(layer, PairLayer):
        one, two = layer.sources
        _multiply(one, layers, factor, shift)
        _multiply(two, layers, factor, 0.0)
    elif isinstance(layer, LinearLayer):
        layers[name] = replace(
            layer, factor=factor * layer.factor, shift=factor * layer.shift + shift
        )


class _NetworkReader:
    """Reads the layers of a graph."""

    def __init__(self, graph: Graph, encrypted: tuple[str, ...]) -> None:
        self.graph, self.inputs = graph, encrypted
        self.hidden = set(encrypted)
        self.views: dict[str, str] = {}

    def network(self) -> Network:
        layers = tuple(self._layers())
        for name in self.graph.outputs:
            if name not in self.hidden:
                raise WeftError(f"output {name} does not depend on an encrypted value")
        return Network(self.graph, self.inputs, tuple(self.graph.outputs), layers, self.views)

    def _layers(self) -> Iterator[Layer]:
        for application, signature in zip(self.graph.applications, self.graph.signatures):
            places = [n for n, name in enumerate(application.operands) if name in self.hidden]
            if places:
                self.hidden |= set(application.results)
                self._check_dtypes(application)
                yield from self._layer(application, signature, places)

    def _layer(
        self, application: Application, signature: Signature, places: list[int]
    ) -> Iterator[Layer]:
        operator, (name, *others) = application.operator, application.results
        sources = [self._root(application.operands[n]) for n in places]
        if others or application.regions:
            raise _refused(application, "cannot be done on ciphertexts")
        if operator in VIEWS:
            self.views[name] = sources[0]
        elif operator == "polynomial":
            activation = Activation.of(application.attributes)
            yield PolynomialLayer(name, (sources[0],), activation, evaluate(activation, fold=False))
        elif operator == "square" or (
            operator == "power" and self._is_two(application.operands[1])
        ):
            yield PairLayer(name, (sources[0], sources[0]), "multiply")
        elif operator == "negate":
            yield ShiftLayer(name, (sources[0],), "", -1)
        elif operator in SUMS and len(set(signature.operand_shapes)) == 1 and len(places) == 2:
            yield PairLayer(name, (sources[0], sources[1]), SUMS[operator])
        elif operator in SUMS and len(places) == 1:
            yield self._shift(application, signature, places[0])
        elif operator == "multiply" and len(places) == 2:
            if len(set(signature.operand_shapes)) > 1:
                raise _refused(application, "two encrypted operands must have one shape")
            yield PairLayer(name, (sources[0], sources[1]), "multiply")
        else:
            yield self._linear(application, signature, places)

    def _check_dtypes(self, application: Application) -> None:
        """Refuse encrypted integers, booleans and complex numbers: CKKS computes with reals."""
        for name in (*application.operands, *application.results):
            dtype = self.graph.values[name].dtype
            if name in self.hidden and not dtype.startswith(("float", "bfloat")):
                raise WeftError(
                    f"layer {application.results[0]}: {name} has dtype {dtype}; ciphertexts hold "
                    "real numbers, which neither wrap nor round as it does",
                    hint="declare the encrypted inputs as float32 or float64",
                )

    def _is_two(self, name: str) -> bool:
        """Return whether a value is the number 2, which makes a power a product of ciphertexts."""
        made = (one for one in self.graph.applications if one.results == (name,))
        return any(one.operator == "constant" and one.attributes.get("value") == 2 for one in made)

    def _root(self, name: str) -> str:
        return self.views.get(name, name)

    def _shift(self, application: Application, signature: Signature, place: int) -> ShiftLayer:
        if signature.operand_shapes[place] != signature.result_shapes[0]:
            raise _refused(application, "an encrypted operand cannot be broadcast")
        minus = application.operator == "subtract"
        sign = -1 if minus and place else 1
        plain = -1 if minus and not place else 1
        source, other = application.operands[place], application.operands[1 - place]
        return ShiftLayer(application.results[0], (self._root(source),), other, sign, plain)

    def _linear(
        self, application: Application, signature: Signature, places: list[int]
    ) -> LinearLayer:
        operator, line = application.operator, signature.notation
        rest = [n for n in range(len(application.operands)) if n not in places]
        added = [n for n in rest if n in line.once]
        weights = [n for n in rest if n not in added]
        is_joined = operator == "concatenate"
        if (len(places) > 1 and not is_joined) or len(weights) > 1 or len(added) > 1:
            raise _refused(application, "is not linear in one encrypted operand")
        if operator == "divide" and places != [0]:
            raise _refused(application, "nothing can be divided by an encrypted value")
        if operator not in LINEAR:
            raise _refused(application, "cannot be done on ciphertexts")
        divisors: tuple[Point, ...] = ()
        if operator in ("avg_pool", "mean_dim"):
            divisors = _divisors(application, signature)
        return LinearLayer(
            application.results[0],
            operator,
            tuple(self._root(application.operands[n]) for n in places),
            tuple(places),
            signature,
            weights[0] if weights else None,
            application.operands[weights[0]] if weights else "",
            application.operands[added[0]] if added else "",
            divisors=divisors,
            inverts=operator == "divide",
        )


def _without_batch_norms(graph: Graph) -> Graph:
    """Return the graph with each batch norm as a product and a sum with values in the clear."""
    if not any(each.operator == BATCH_NORM for each in graph.applications):
        return graph
    tracer = Tracer(graph.operators)
    tracer.inputs, tracer.used_names = list(graph.inputs), dict.fromkeys(graph.values, 1)
    tracer.dtypes = {name: value.dtype for name, value in graph.values.items()}
    for application in graph.applications:
        if application.operator != BATCH_NORM:
            tracer.applications.append(application)
            continue
        (name,), before = application.results, len(tracer.applications)
        x, scale, offset, mean, variance = (
            Symbol(tracer, graph.values[operand]) for operand in application.operands
        )
        tracer.prefix = f"{name}/"
        shape = [1] * x.ndim
        shape[application.attributes["feature_index"]] = scale.shape[0]
        factor = scale * ops.rsqrt(variance + application.attributes.get("epsilon", 0.0))
        result = x * factor.reshape(shape) + (offset - mean * factor).reshape(shape)
        tracer.rename({result.name: name}, before)
    return Graph(
        graph.inputs,
        tracer.applications,
        graph.outputs,
        operators=graph.operators,
        dtypes=tracer.dtypes,
        parameters=graph.parameters,
    )


def _divisors(application: Application, signature: Signature) -> tuple[Point, ...]:
    """Return the number of elements that a mean divides by, for each dimension of its result."""
    shape, result = signature.operand_shapes[0], signature.result_shapes[0]
    attributes = application.attributes
    if application.operator == "mean_dim":
        count = prod(shape[dim] for dim in attributes["dimensions"])
        return ((count,), *((1,) for _ in result[1:]))
    window, rest = tuple(attributes["window"]), len(shape) - len(attributes["window"])
    divisors: list[Point] = [(1,)] * rest
    if attributes.get("count_include_pad", True):
        return (*divisors, *((size,) for size in window))
    lows = tuple(attributes.get("padding") or (0, 0) * len(window))[::2]
    strides = tuple(attributes.get("strides") or window)
    for size, low, stride, n, count in zip(window, lows, strides, shape[rest:], result[rest:]):
        starts = [stride * index - low for index in range(count)]
        divisors.append(tuple(max(1, min(at + size, n) - max(at, 0)) for at in starts))
    return tuple(divisors)


LINEAR = frozenset(
    (
        *("avg_pool", "broadcast_in_dim", "concatenate", "convolution", "divide", "dot"),
        *("dot_general", "einsum", "linear", "matmul", "mean_dim", "multiply", "reverse"),
        *("slice", "sum_dim", "transpose"),
    )
)
"""Operators that are linear in each operand by their index notation."""


def _refused(application: Application, why: str) -> WeftError:
    operator = application.operator
    hint = "ciphertexts have sums, products with plaintexts, products of two, and rotations"
    if operator in NAMED:
        hint = f"use a polynomial: weft.ckks.fit({operator!r}, degree, low, high)"
    elif operator == "max_pool":
        hint = "use avg_pool"
    return WeftError(f"layer {application.results[0]}: {operator} {why}", hint=hint)


# -- in the clear ----------------------------------------------------------------------------------


def compute(graph: Graph, arrays: Arrays) -> dict[str, Floats]:
    """Return all values of a graph in the clear, its inputs included."""
    values = {value.name: input_array(arrays, value) for value in graph.inputs}
    for application, signature in zip(graph.applications, graph.signatures):
        operands = [values[name] for name in application.operands]
        values |= dict(zip(application.results, _kernel(application, signature, operands)))
    return values


def input_array(arrays: Arrays, value: Value) -> Floats:
    """Return the array of an input as float64, or in its own dtype if that is not a float."""
    if value.name not in arrays:
        raise WeftError(f"there is no array for {value.name}", hint="arrays are given by name")
    array = np.asarray(arrays[value.name])
    if array.dtype.kind not in "biuf":
        raise WeftError(f"{value.name} is an array of {array.dtype}; it must be of real numbers")
    if array.shape != value.shape:
        shapes = list(value.shape), list(array.shape)
        raise WeftError(f"{value.name} has shape {shapes[0]}, and its array {shapes[1]}")
    if value.dtype.startswith(("int", "uint", "bool")):
        return array  # a mask or an index, used in the clear
    return array.astype(np.float64)


def _kernel(
    application: Application, signature: Signature, operands: Sequence[Floats]
) -> tuple[Floats, ...]:
    kernel = OPERATORS.find(application.operator).kernel
    if kernel is None or application.regions:
        raise WeftError(f"{application.results[0]}: {application.operator} has no kernel")
    block = Block(np, signature, application.attributes, signature.space)
    result = kernel(block, *(each[box.slices()] for each, box in zip(operands, block.operands)))
    return result if isinstance(result, tuple) else (result,)


class ClearNetwork:
    """The layers of a network on numbers; `plain` has all values that are not encrypted."""

    def __init__(self, network: Network, plain: Mapping[str, Floats]) -> None:
        self.network, self.plain = network, plain
        graph = network.graph
        self.applications = {
            application.results[0]: (application, signature)
            for application, signature in zip(graph.applications, graph.signatures)
            if application.results
        }

    def values(
        self, arrays: Arrays, watch: Callable[[Layer, list[Floats]], None] | None = None
    ) -> dict[str, Floats]:
        """Return every encrypted value; `watch` is called with each layer and its operands."""
        inputs = {value.name: value for value in self.network.graph.inputs}
        values = {name: input_array(arrays, inputs[name]) for name in self.network.inputs}
        for layer in self.network.layers:
            operands = [values[name] for name in layer.sources]
            if watch is not None:
                watch(layer, operands)
            values[layer.name] = self.layer(layer, operands)
        return values

    def layer(self, layer: Layer, operands: Sequence[Floats]) -> Floats:
        """Return the result of one layer as its ciphertexts hold it: with folded factors."""
        if not isinstance(layer, LinearLayer):  # an operand may be a view of another shape
            shape = self.network.shape(layer.name)
            operands = [each.reshape(shape) for each in operands]
        match layer:
            case LinearLayer():
                return layer.factor * self.linear(layer, operands) + layer.shift
            case PairLayer(operator="multiply"):
                return operands[0] * operands[1]
            case PairLayer():
                return operands[0] + layer.sign * operands[1]
            case ShiftLayer():
                return layer.sign * operands[0] + self.shift(layer)
            case PolynomialLayer():
                return layer.evaluation.value(operands[0])
            case RepackingLayer():
                return operands[0]

    def linear(
        self,
        layer: LinearLayer,
        operands: Sequence[Floats],
        weights: Callable[[Floats], Floats] = lambda weight: weight,
        *,
        bias: bool = True,
    ) -> Floats:
        """Return the result of a linear layer with changed weights, without factor and shift."""
        application, signature = self.applications[layer.name]
        sources = dict(zip(layer.places, operands))
        arrays = list[Floats]()
        for place, name in enumerate(application.operands):
            if place in sources:
                arrays.append(sources[place].reshape(signature.operand_shapes[place]))
            elif place == layer.weight:
                arrays.append(weights(self.plain[name]))
            else:
                arrays.append(self.plain[name] * (1.0 if bias else 0.0))
        (result,) = _kernel(application, signature, arrays)
        return np.asarray(result, np.float64)

    def shift(self, layer: ShiftLayer) -> Floats:
        """Return the array that a shift adds, in the shape of the result."""
        shape = self.network.shape(layer.name)
        if not layer.plain:
            return np.zeros(shape)
        return np.broadcast_to(layer.plain_sign * self.plain[layer.plain], shape)
