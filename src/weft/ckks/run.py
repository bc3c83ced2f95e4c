"""Run a plan on ciphertexts: encrypt, run the program of every layer, decrypt; count all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.ckks.backends import Backend, Ciphertext, Simulator
from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.linear import view_as
from weft.ckks.lower import lower, lower_pairs, lower_polynomial
from weft.ckks.network import (
    BEFORE,
    Arrays,
    ClearNetwork,
    Layer,
    LinearLayer,
    PairLayer,
    PolynomialLayer,
    RepackingLayer,
    ShiftLayer,
    compute,
    input_array,
)
from weft.ckks.packing import Floats
from weft.ckks.parallel import execute_parallel
from weft.ckks.parameters import Parameters
from weft.ckks.plan import EncryptedPlan, PlannedLayer, check_range
from weft.ckks.slot_program import (
    OperationCounts,
    SlotProgram,
    SlotProgramBuilder,
    SlotValues,
)
from weft.errors import WeftError
from weft.lang import Signature

Ciphertexts: TypeAlias = list[Ciphertext[Any]]


class LayerCounts(NamedTuple):
    """The operations that the back-end counted in one layer."""

    name: str
    counters: OperationCounts


Watch: TypeAlias = Callable[[PlannedLayer, OperationCounts, float], None]
"""A function that is called after each layer, with its operations and seconds."""


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """The decrypted outputs of a run, with the operations that were counted."""

    outputs: dict[str, Floats]
    """The outputs by name."""
    measured: tuple[LayerCounts, ...]
    """The operations of each layer."""
    bounds: Bounds
    """The ranges and the expected errors of all values."""
    seconds: tuple[float, ...] = ()
    """The seconds of each layer."""

    def __getitem__(self, name: str) -> Floats:
        return self.outputs[name]


def run(
    plan: EncryptedPlan,
    arrays: Arrays,
    backend: Backend,
    watch: Watch | None = None,
    *,
    workers: int = 1,
) -> InferenceResult:
    """Run a plan on a back-end; `arrays` has all inputs by name, encrypted or not.

    Before anything is encrypted, all values are bounded by the weights and the declared ranges
    (`check_bounds`), and inputs outside of those ranges or of the polynomials' are refused. Linear
    layers are divided between `workers` processes.

    >>> from weft.ckks.plan import plan
    >>> from weft.lang import ops, trace
    >>> x, w = np.arange(8.0).reshape(1, 8), np.ones((8, 4))
    >>> graph = trace(lambda x, w: ops.linear(x, w), x, w)
    >>> planned = plan(graph, slots=64, encrypted="x", ranges=8)
    >>> backend = Simulator(planned.parameters(security=None))
    >>> run(planned, {"x": x, "w": w}, backend)["linear"]
    array([[28., 28., 28., 28.]])
    """
    bounds = check_bounds(plan, arrays, backend.parameters)
    _check_keys(plan, backend)
    plain = compute(plan.network.clear_graph, arrays)
    inputs = _checked_inputs(plan, arrays, plain)
    return _Inference(plan, plain, backend, watch, workers).result(inputs, bounds)


def _checked_inputs(
    plan: EncryptedPlan, arrays: Arrays, plain: dict[str, Floats]
) -> dict[str, Floats]:
    """Return the encrypted inputs; refuse values for which the bounds do not hold.

    Those are values outside of the declared ranges, and values for which a polynomial would be
    evaluated outside of the range that it is fitted on: whoever encrypts computes the network in
    the clear to find out.
    """
    values = {value.name: value for value in plan.network.graph.inputs}
    inputs = {name: input_array(arrays, values[name]) for name in plan.encrypted}
    for name, array in inputs.items():
        check_range(name, array, plan.ranges[name])

    def watch(layer: Layer, operands: list[Floats]) -> None:
        if isinstance(layer, PolynomialLayer):
            at, evaluation = operands[0], layer.evaluation
            if evaluation.folded:
                at = (at - evaluation.shift) / evaluation.factor
            layer.activation.check(at, layer.name.removesuffix(BEFORE))

    if any(isinstance(layer, PolynomialLayer) for layer in plan.network.layers):
        ClearNetwork(plan.network, plain).values(inputs, watch)
    return inputs


def _check_keys(plan: EncryptedPlan, backend: Backend) -> None:
    """Refuse a back-end that lacks a key, with the layer that needs it, before anything runs."""
    if plan.needs_products and not backend.relinearise:
        first = next(planned for planned in plan.layers if planned.cost.products)
        raise WeftError(
            f"layer {first.name}: there is no key for a product of two ciphertexts",
            hint="make a back-end with relinearise=True",
        )
    known = plan.cost.keys if backend.rotations is None else backend.rotations
    for planned in plan.layers:
        missing = sorted(planned.cost.keys - known)
        if missing:
            raise WeftError(
                f"layer {planned.name}: there is no key for rotations by {missing[0]}"
                + (f" and {len(missing) - 1} more" if missing[1:] else ""),
                hint="make a back-end with the rotations plan.cost.keys",
            )


def check_ranges(plan: EncryptedPlan, arrays: Arrays, parameters: Parameters) -> InferenceResult:
    """Run the network on the simulator, without keys.

    Refused are an input outside of its declared range, a value outside of the range of its
    polynomial, with the name of the layer, and a modulus that is too small for a value.
    """
    return run(plan, arrays, Simulator(parameters))


class _Inference:
    """One run of a plan."""

    def __init__(
        self,
        plan: EncryptedPlan,
        plain: dict[str, Floats],
        backend: Backend,
        watch: Watch | None,
        workers: int,
    ) -> None:
        self.plan, self.plain, self.backend, self.watch = plan, plain, backend, watch
        self.workers, self.parameters = workers, backend.parameters
        self.spare = backend.parameters.depth - plan.depth
        """Levels that the plan does not need: every value is that much higher."""
        self.values: dict[str, Ciphertexts] = {}

    def result(self, inputs: Mapping[str, Floats], bounds: Bounds) -> InferenceResult:
        """Run all layers."""
        network, uses = self.plan.network, self.plan.network.uses()
        for name, array in inputs.items():
            level = self.plan.levels[name] + self.spare
            rows = view_as(self.plan.packings[name], array.shape, name).pack(array)
            self.values[name] = [self.backend.encrypt(row, level) for row in rows]
        measured, seconds = list[LayerCounts](), list[float]()
        for planned in self.plan.layers:
            before, begin = self.backend.counters.copy(), perf_counter()
            self._run_layer(planned)
            counted = self.backend.counters - before
            measured.append(LayerCounts(planned.name, counted))
            seconds.append(perf_counter() - begin)
            if self.watch is not None:
                self.watch(planned, counted, seconds[-1])
            for name in planned.layer.sources:
                uses[name] -= 1
                if not uses[name]:
                    del self.values[name]
        outputs = {name: self._decrypted(name) for name in network.outputs}
        return InferenceResult(outputs, tuple(measured), bounds, tuple(seconds))

    def _decrypted(self, name: str) -> Floats:
        root = self.plan.network.views.get(name, name)
        rows = [self.backend.decrypt(each) for each in self.values[root]]
        return self.plan.packings[root].unpack(rows).reshape(self.plan.network.shape(name))

    def _run_layer(self, planned: PlannedLayer) -> None:
        workers = self.workers if isinstance(planned.layer, LinearLayer) else 1
        inputs = [each for name in planned.layer.sources for each in self.values[name]]
        program = self._lower(planned)
        self.values[planned.name] = execute_parallel(program, self.backend, inputs, workers)

    def _lower(self, planned: PlannedLayer) -> SlotProgram:
        """Return the program of a layer, from its operands at their levels to its result."""
        layer, count = planned.layer, planned.outputs
        start = planned.start + self.spare
        levels = [at + self.spare for at in planned.source_levels]
        match layer:
            case LinearLayer():
                return self._lower_linear(planned, layer, levels, start)
            case PolynomialLayer():
                masks = [np.where(row < 0, 0.0, 1.0) for row in planned.target.numbers()]
                return lower_polynomial(
                    layer.evaluation, self.parameters, start, count, masks, levels[0]
                )
            case PairLayer():
                pair = levels[0], levels[1]
                return lower_pairs(layer.operator, self.parameters, pair, count, start)
            case RepackingLayer() | ShiftLayer():
                builder = SlotProgramBuilder(planned.inputs)
                ready = [
                    builder.adjust(number, self.parameters, levels[0], start)
                    for number in range(planned.inputs)
                ]
                if isinstance(layer, ShiftLayer):
                    return builder.program(self._shift(planned, layer, builder, ready))
                assert planned.repacking is not None
                return builder.program(builder.inline(planned.repacking.program, ready))

    def _lower_linear(
        self, planned: PlannedLayer, layer: LinearLayer, levels: Sequence[int], start: int
    ) -> SlotProgram:
        assert planned.map is not None
        assert planned.split is not None
        weight: Floats | None = self.plain[layer.weight_name] if layer.weight_name else None
        if weight is not None and layer.inverts:
            weight = 1 / weight
        count = len(planned.map.parts)
        stop = planned.level + self.spare
        return lower(
            planned.map,
            planned.split,
            [weight] * count,
            scales=[layer.scale] * count,
            bias=self._bias(layer),
            encoded=[self.parameters.adjusting_scale(at, stop) for at in levels],
            drop=[start if at > start else None for at in levels],
        )

    def _bias(self, layer: LinearLayer) -> Floats | None:
        if not layer.bias and not layer.shift:
            return None
        total = np.full((1,) * len(layer.signature.result_shapes[0]), layer.shift)
        if layer.bias:
            total = total + layer.factor * _broadcast(self.plain[layer.bias], layer.signature)
        return total

    def _shift(
        self,
        planned: PlannedLayer,
        layer: ShiftLayer,
        builder: SlotProgramBuilder,
        registers: list[int],
    ) -> list[int]:
        if layer.sign < 0:
            registers = [builder.negate(register) for register in registers]
        if not layer.plain:
            return registers
        shape = self.plan.network.shape(layer.name)
        array = np.broadcast_to(layer.plain_sign * self.plain[layer.plain], shape)
        rows = view_as(planned.target, shape, layer.name).pack(array)
        return [builder.add_plain(a, SlotValues(row)) for a, row in zip(registers, rows)]


def _broadcast(bias: Floats, signature: Signature) -> Floats:
    """Return a bias with the rank of the result, its dimensions matched by their index."""
    line = signature.notation
    (place,) = line.once
    rows, result = line.operands[place], line.results[0]
    sizes = [bias.shape[rows.index(row)] if row in rows else 1 for row in result]
    return bias.reshape(sizes)
