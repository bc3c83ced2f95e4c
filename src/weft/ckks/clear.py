"""A network in the clear: what its layers compute on numbers that are not encrypted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.network import Layer, Linear, Move, Network, Power, Product, Shift, Sum
from weft.ckks.operations import apply
from weft.ckks.packing import Floats
from weft.errors import WeftError
from weft.lang import OPERATORS, Application, Block, Graph, Signature, Value

Arrays: TypeAlias = Mapping[str, ArrayLike]


def computed(graph: Graph, arrays: Arrays) -> dict[str, Floats]:
    """Compute all values of a graph that is not encrypted, its inputs included."""
    found = {value.name: given(arrays, value) for value in graph.inputs}
    for application, signature in zip(graph.applications, graph.signatures):
        operands = [found[name] for name in application.operands]
        found |= dict(zip(application.results, _kernel(application, signature, operands)))
    return found


def given(arrays: Arrays, value: Value) -> Floats:
    """Return the array of an input: float64, or its own dtype where that is no float."""
    if value.name not in arrays:
        raise WeftError(f"there is no array for {value.name}", hint="arrays are given by name")
    array = np.asarray(arrays[value.name])
    if array.dtype.kind not in "biuf":
        raise WeftError(f"{value.name} is an array of {array.dtype}; it must be of real numbers")
    if array.shape != value.shape:
        shapes = list(value.shape), list(array.shape)
        raise WeftError(f"{value.name} has shape {shapes[0]}, and its array {shapes[1]}")
    if value.dtype.startswith(("int", "uint", "bool")):
        return array  # a mask or an index of what is computed beforehand
    return array.astype(np.float64)


def _kernel(
    application: Application, signature: Signature, operands: Sequence[Floats]
) -> tuple[Floats, ...]:
    kernel = OPERATORS.find(application.operator).kernel
    if kernel is None or application.regions:
        raise WeftError(f"{application.results[0]}: {application.operator} has no kernel")
    block = Block(np, signature, application.attributes, signature.space)
    made = kernel(block, *(each[box.slices()] for each, box in zip(operands, block.operands)))
    return made if isinstance(made, tuple) else (made,)


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
        """Compute every encrypted value; `watch` sees each layer with its operands."""
        inputs = {value.name: value for value in self.network.graph.inputs}
        found = {name: given(arrays, inputs[name]) for name in self.network.inputs}
        for layer in self.network.layers:
            operands = [found[name] for name in layer.sources]
            if watch is not None:
                watch(layer, operands)
            found[layer.name] = self.layer(layer, operands)
        return found

    def layer(self, layer: Layer, operands: Sequence[Floats]) -> Floats:
        """Compute one layer, as its ciphertexts hold it: folded factors and shifts included."""
        if not isinstance(layer, Linear):  # an operand may be a view of a value of another shape
            shape = self.network.shape(layer.name)
            operands = [each.reshape(shape) for each in operands]
        match layer:
            case Linear():
                return layer.factor * self.linear(layer, operands) + layer.shift
            case Sum():
                return operands[0] + layer.sign * operands[1]
            case Shift():
                return layer.sign * operands[0] + self.shift(layer)
            case Product():
                return operands[0] * operands[1]
            case Power():
                made = {0: operands[0]}
                for op in layer.evaluation.operations():
                    made[op.out] = apply(op, made)
                return made[max(made)]
            case Move():
                return operands[0]

    def linear(
        self,
        layer: Linear,
        operands: Sequence[Floats],
        weights: Callable[[Floats], Floats] = lambda weight: weight,
        *,
        bias: bool = True,
    ) -> Floats:
        """Apply the operator of a linear layer, without its factor and shift, to other weights."""
        application, signature = self.applications[layer.name]
        sources = dict(zip(layer.places, operands))
        given = list[Floats]()
        for place, name in enumerate(application.operands):
            if place in sources:
                given.append(sources[place].reshape(signature.operand_shapes[place]))
            elif place == layer.weight:
                given.append(weights(self.plain[name]))
            else:
                given.append(self.plain[name] * (1.0 if bias else 0.0))
        (made,) = _kernel(application, signature, given)
        return np.asarray(made, np.float64)

    def shift(self, layer: Shift) -> Floats:
        """Return what a shift adds, spread over the result."""
        shape = self.network.shape(layer.name)
        if not layer.plain:
            return np.zeros(shape)
        return np.broadcast_to(layer.plain_sign * self.plain[layer.plain], shape)
