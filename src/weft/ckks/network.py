"""`Network`: what a graph does to encrypted values, as layers that ciphertexts know.

Everything that touches an encrypted value is a linear map, a sum, a product or a polynomial; what
touches none is computed beforehand. A view of a value (a reshape) is that value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from weft.ckks.activations import NAMED, Activation
from weft.ckks.inputs import encrypted_inputs
from weft.ckks.packing import Floats
from weft.ckks.polynomial import Evaluation, evaluate
from weft.errors import WeftError
from weft.lang import Application, Graph, Signature, Symbol, Tracer, ops
from weft.values import Point


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map of encrypted values with weights that are not: convolution, pool, linear layer.

    A concatenation has several sources, all else has one.
    """

    name: str
    operator: str
    sources: tuple[str, ...]
    places: tuple[int, ...]
    """Which operands of the line the sources are."""
    signature: Signature
    weight: int | None = None
    """Which operand of the line the weight is; without one all pairs count alike."""
    weight_name: str = ""
    bias: str = ""
    factor: float = 1.0
    """All weights and the bias are multiplied by it."""
    divisors: tuple[Point, ...] = ()
    """Of a mean, for each dimension of the result: the elements that are averaged along it, one
    number for each index of the result or one for all. Empty for other layers."""
    shift: float = 0.0
    """What is added to every element, after the bias."""
    inverts: bool = False
    """Whether the weight divides."""

    levels = 1

    @property
    def scale(self) -> Floats:
        """The factor of every weight: one for each element of the result, or one for all."""
        rank = len(self.signature.result_shapes[0])
        made = np.full((1,) * rank, self.factor)
        for dim, counts in enumerate(self.divisors):
            made = made / np.reshape(counts, (-1, *(1,) * (rank - dim - 1))[: max(1, rank)])
        return made if rank else made.reshape(())


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of two encrypted values of one shape; or their difference."""

    name: str
    sources: tuple[str, str]
    sign: int = 1

    operator = "add"
    levels = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """An encrypted value, its sign changed or not, and one that is not encrypted."""

    name: str
    sources: tuple[str]
    plain: str
    """The name of what is added; empty for nothing."""
    sign: int = 1
    """Of the encrypted value."""
    plain_sign: int = 1

    operator = "shift"
    levels = 0


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two encrypted values, element by element."""

    name: str
    sources: tuple[str, str]

    operator = "multiply"
    levels = 1


@dataclass(frozen=True, slots=True)
class Power:
    """A polynomial of every element."""

    name: str
    sources: tuple[str]
    activation: Activation
    evaluation: Evaluation

    operator = "polynomial"

    @property
    def levels(self) -> int:
        """How many levels it takes."""
        return self.evaluation.levels


@dataclass(frozen=True, slots=True)
class Move:
    """A value in another packing."""

    name: str
    sources: tuple[str]
    levels: int
    """How many levels it takes: one where something has to be masked, and else none."""

    operator = "reshard"


Layer: TypeAlias = Linear | Sum | Shift | Product | Power | Move

BEFORE = ":before"
"""Behind the name of a value that is moved: what it was."""

BATCH_NORM = "batch_norm_inference"
SUMS = {"add": 1, "subtract": -1}
VIEWS = ("convert", "reshape", "sharding_constraint")
"""Operators that leave the numbers as they are; conversions are between floats."""


@dataclass(frozen=True, slots=True)
class Network:
    """The layers of a graph in order, and the shapes of their values.

    >>> import numpy as np
    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w) + 1.0, np.ones((1, 8)), np.ones((8, 4)))
    >>> [type(layer).__name__ for layer in Network.of(graph, "x").layers]
    ['Linear', 'Shift']
    """

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layers: tuple[Layer, ...]
    views: Mapping[str, str]
    """Which value each view is one of."""

    @classmethod
    def of(cls, graph: Graph, encrypted: str | Iterable[str] | None = None) -> Network:
        """Read the layers of a graph of which some inputs are encrypted.

        Which are is stated, or is the only input that is not one of the graph's parameters.
        """
        names = encrypted_inputs(graph, encrypted)
        return _Reading(_without_batch_norms(graph), names).network()

    @property
    def clear(self) -> tuple[str, ...]:
        """The inputs of the graph that are not encrypted."""
        return tuple(value.name for value in self.graph.inputs if value.name not in self.inputs)

    @property
    def plain(self) -> Graph:
        """The part of the graph that is computed beforehand."""
        hidden = {name for layer in self.layers for name in (layer.name, *layer.sources)}
        hidden |= set(self.views)
        applications = [each for each in self.graph.applications if hidden.isdisjoint(each.results)]
        inputs = [value for value in self.graph.inputs if value.name not in self.inputs]
        made = [name for each in applications for name in each.results]
        return Graph(inputs, applications, made)

    def shape(self, name: str) -> Point:
        """The shape of a value."""
        return self.graph.values[name.removesuffix(BEFORE)].shape

    def uses(self) -> Counter[str]:
        """How often each value is read; an output is read once more."""
        found = Counter(name for layer in self.layers for name in layer.sources)
        found.update(self.views.get(name, name) for name in self.outputs)
        return found

    def moved(self, levels: Mapping[str, int]) -> Network:
        """The same with moves behind polynomials, each of so many levels."""
        layers = list[Layer]()
        for layer in self.layers:
            if layer.name in levels:
                before = layer.name + BEFORE
                layers.append(replace(layer, name=before))
                layers.append(Move(layer.name, (before,), levels[layer.name]))
            else:
                layers.append(layer)
        return replace(self, layers=tuple(layers))

    def folded(self) -> Network:
        """The same with what polynomials want to be multiplied by put into weights before them.

        Only where nobody else reads what the linear layers make.
        """
        layers = {layer.name: layer for layer in self.layers}
        uses = self.uses()
        for layer in self.layers:
            if isinstance(layer, Power) and _is_free(layer.sources[0], layers, uses):
                evaluation = evaluate(layer.activation, fold=True)
                layers[layer.name] = replace(layer, evaluation=evaluation)
                _multiply(layer.sources[0], layers, evaluation.factor, evaluation.shift)
        return replace(self, layers=tuple(layers.values()))


def _is_free(name: str, layers: Mapping[str, Layer], uses: Counter[str]) -> bool:
    """Whether a value can be made a multiple of itself by weights alone, unseen by others."""
    layer = layers.get(name)
    if layer is None or uses[name] > 1:
        return False
    if isinstance(layer, Sum):
        return all(_is_free(each, layers, uses) for each in set(layer.sources))
    return isinstance(layer, Linear)


def _multiply(name: str, layers: dict[str, Layer], factor: float, shift: float) -> None:
    layer = layers[name]
    if isinstance(layer, Sum):
        one, two = layer.sources
        _multiply(one, layers, factor, shift)
        _multiply(two, layers, factor, 0.0)
    elif isinstance(layer, Linear):
        layers[name] = replace(
            layer, factor=factor * layer.factor, shift=factor * layer.shift + shift
        )


class _Reading:
    """A graph that is being read."""

    def __init__(self, graph: Graph, encrypted: tuple[str, ...]) -> None:
        self.graph, self.inputs = graph, encrypted
        self.hidden = set(encrypted)
        self.views: dict[str, str] = {}

    def network(self) -> Network:
        layers = tuple(self._layers())
        for name in self.graph.outputs:
            if name not in self.hidden:
                raise WeftError(f"output {name} depends on no encrypted value")
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
            yield Power(name, (sources[0],), activation, evaluate(activation, fold=False))
        elif operator == "square":
            yield Product(name, (sources[0], sources[0]))
        elif operator == "negate":
            yield Shift(name, (sources[0],), "", -1)
        elif operator in SUMS and len(set(signature.operand_shapes)) == 1 and len(places) == 2:
            yield Sum(name, (sources[0], sources[1]), SUMS[operator])
        elif operator in SUMS and len(places) == 1:
            yield self._shift(application, signature, places[0])
        elif operator == "multiply" and len(places) == 2:
            if len(set(signature.operand_shapes)) > 1:
                raise _refused(application, "two encrypted operands must have one shape")
            yield Product(name, (sources[0], sources[1]))
        else:
            yield self._linear(application, signature, places)

    def _check_dtypes(self, application: Application) -> None:
        """Refuse encrypted integers, booleans and complex numbers: CKKS computes with reals."""
        for name in (*application.operands, *application.results):
            dtype = self.graph.values[name].dtype
            if name in self.hidden and not dtype.startswith(("float", "bfloat")):
                raise WeftError(
                    f"layer {application.results[0]}: {name} is of dtype {dtype}; ciphertexts hold "
                    "real numbers, which neither wrap nor round as it does",
                    hint="declare the encrypted inputs as float32 or float64",
                )

    def _root(self, name: str) -> str:
        return self.views.get(name, name)

    def _shift(self, application: Application, signature: Signature, place: int) -> Shift:
        if signature.operand_shapes[place] != signature.result_shapes[0]:
            raise _refused(application, "an encrypted operand cannot be broadcast")
        minus = SUMS[application.operator] < 0
        sign = -1 if minus and place else 1
        plain = -1 if minus and not place else 1
        source, other = application.operands[place], application.operands[1 - place]
        return Shift(application.results[0], (self._root(source),), other, sign, plain)

    def _linear(self, application: Application, signature: Signature, places: list[int]) -> Linear:
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
        return Linear(
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
    """Return the graph with each batch norm as a product and a sum of what is known beforehand."""
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
        made = x * factor.reshape(shape) + (offset - mean * factor).reshape(shape)
        tracer.rename({made.name: name}, before)
    return Graph(
        graph.inputs,
        tracer.applications,
        graph.outputs,
        operators=graph.operators,
        dtypes=tracer.dtypes,
        parameters=graph.parameters,
    )


def _divisors(application: Application, signature: Signature) -> tuple[Point, ...]:
    """How many elements a mean divides by, for each dimension of its result."""
    shape, result = signature.operand_shapes[0], signature.result_shapes[0]
    said = application.attributes
    if application.operator == "mean_dim":
        count = prod(shape[dim] for dim in said["dimensions"])
        return ((count,), *((1,) for _ in result[1:]))
    window, rest = tuple(said["window"]), len(shape) - len(said["window"])
    found: list[Point] = [(1,)] * rest
    if said.get("count_include_pad", True):
        return (*found, *((size,) for size in window))
    lows = tuple(said.get("padding") or (0, 0) * len(window))[::2]
    strides = tuple(said.get("strides") or window)
    for size, low, stride, n, count in zip(window, lows, strides, shape[rest:], result[rest:]):
        starts = [stride * index - low for index in range(count)]
        found.append(tuple(max(1, min(at + size, n) - max(at, 0)) for at in starts))
    return tuple(found)


LINEAR = frozenset(
    (
        *("avg_pool", "broadcast_in_dim", "concatenate", "convolution", "divide", "dot"),
        *("dot_general", "einsum", "linear", "matmul", "mean_dim", "multiply", "reverse"),
        *("slice", "sum_dim", "transpose"),
    )
)
"""Operators that are linear in each operand, and say so in their line."""


def _refused(application: Application, why: str) -> WeftError:
    operator = application.operator
    hint = "ciphertexts have sums, products with what is known, products of two, and rotations"
    if operator in NAMED:
        hint = f"a polynomial can stand for it: weft.ckks.fit({operator!r}, degree, low, high)"
    elif operator == "max_pool":
        hint = "take avg_pool"
    return WeftError(f"layer {application.results[0]}: {operator} {why}", hint=hint)
