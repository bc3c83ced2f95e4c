"""A plan on ciphertexts: encrypt, run layer by layer, decrypt; every layer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.ckks.backend import Backend, Cipher, Counters, adjust
from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.clear import Arrays, ClearNetwork, computed, given
from weft.ckks.inputs import check_range
from weft.ckks.linear import seen_as
from weft.ckks.links import Portable
from weft.ckks.lower import lower
from weft.ckks.network import BEFORE, Layer, Linear, Move, Power, Product, Shift, Sum
from weft.ckks.packing import Floats
from weft.ckks.parallel import execute as divided
from weft.ckks.parameters import Parameters
from weft.ckks.plaintext import Slots
from weft.ckks.planner import Placed, Plan
from weft.ckks.pointwise import Pairs, lower_pairs, lower_polynomial
from weft.ckks.program import (
    AddPlain,
    Drop,
    Free,
    Negate,
    Program,
    Step,
    then,
)
from weft.ckks.simulator import Simulator
from weft.errors import WeftError
from weft.lang import Signature

Ciphers: TypeAlias = list[Cipher[Any]]
Watch: TypeAlias = Callable[[Placed, Sequence[Ciphers]], None]
"""Is shown each layer before it runs, with its operands."""


class Measured(NamedTuple):
    """What the back-end counted in one layer."""

    name: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of a run."""

    outputs: dict[str, Floats]
    """The decrypted outputs by name."""
    measured: tuple[Measured, ...]
    bounds: Bounds
    """Where the values lie, and the errors that are promised."""

    def __getitem__(self, name: str) -> Floats:
        return self.outputs[name]


def run(
    plan: Plan, arrays: Arrays, backend: Portable, watch: Watch | None = None, *, workers: int = 1
) -> Outcome:
    """Run a plan on a back-end: the inputs that are encrypted, and all that are not, by name.

    Before anything is encrypted, all values are bounded by the weights and the declared ranges
    (`check_bounds`), and inputs outside of those ranges or of the polynomials' are refused. With
    several `workers`, linear layers are divided between as many processes.

    >>> from weft.ckks.planner import plan
    >>> from weft.lang import ops, trace
    >>> x, w = np.arange(8.0).reshape(1, 8), np.ones((8, 4))
    >>> graph = trace(lambda x, w: ops.linear(x, w), x, w)
    >>> planned = plan(graph, slots=64, encrypted="x", ranges=8)
    >>> backend = Simulator(planned.parameters(security=None))
    >>> run(planned, {"x": x, "w": w}, backend)["linear"]
    array([[28., 28., 28., 28.]])
    """
    known = check_bounds(plan, arrays, backend.parameters)
    _check_keys(plan, backend)
    plain = computed(plan.network.plain, arrays)
    inputs = _checked_inputs(plan, arrays, plain)
    return _Run(plan, plain, backend, watch, workers).outcome(inputs, known)


def _checked_inputs(plan: Plan, arrays: Arrays, plain: dict[str, Floats]) -> dict[str, Floats]:
    """Return the inputs that are encrypted; refuse values for which the bounds do not hold.

    Those are values outside of the declared ranges, and values with which a polynomial would be
    evaluated outside of the range that it is fitted on: the network is computed in the clear, by
    whoever encrypts, to know.
    """
    values = {value.name: value for value in plan.network.graph.inputs}
    inputs = {name: given(arrays, values[name]) for name in plan.encrypted}
    for name, array in inputs.items():
        check_range(name, array, plan.ranges[name])

    def watch(layer: Layer, operands: list[Floats]) -> None:
        if isinstance(layer, Power):
            at, evaluation = operands[0], layer.evaluation
            if evaluation.folded:
                at = (at - evaluation.shift) / evaluation.factor
            layer.activation.check(at, layer.name.removesuffix(BEFORE))

    if any(isinstance(layer, Power) for layer in plan.network.layers):
        ClearNetwork(plan.network, plain).values(inputs, watch)
    return inputs


def _check_keys(plan: Plan, backend: Backend) -> None:
    """Refuse a back-end that lacks a key, with the layer that needs it, before anything runs."""
    if plan.needs_products and not backend.relinearise:
        first = next(placed for placed in plan.layers if placed.cost.products)
        raise WeftError(
            f"layer {first.name}: there is no key for a product of two ciphertexts",
            hint="make a back-end with relinearise=True",
        )
    known = plan.cost.keys if backend.rotations is None else backend.rotations
    for placed in plan.layers:
        missing = sorted(placed.cost.keys - known)
        if missing:
            raise WeftError(
                f"layer {placed.name}: there is no key for rotations by {missing[0]}"
                + (f" and {len(missing) - 1} more" if missing[1:] else ""),
                hint="make a back-end with the rotations plan.cost.keys",
            )


def check_ranges(plan: Plan, arrays: Arrays, parameters: Parameters) -> Outcome:
    """Run the network on the simulator; no key is made.

    An input outside of its declared range is refused, a value that leaves the range of its
    polynomial, with the name of the layer, and a modulus that is too small for a value.
    """
    return run(plan, arrays, Simulator(parameters))


class _Run:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        plain: dict[str, Floats],
        backend: Portable,
        watch: Watch | None,
        workers: int,
    ) -> None:
        self.plan, self.plain, self.backend, self.watch = plan, plain, backend, watch
        self.workers = workers
        self.parameters = backend.parameters
        self.spare = backend.parameters.depth - plan.depth
        """Levels that the plan does not need: everything is so much higher."""
        self.values: dict[str, Ciphers] = {}

    def outcome(self, inputs: Mapping[str, Floats], bounds: Bounds) -> Outcome:
        network, uses = self.plan.network, self.plan.network.uses()
        for name in network.inputs:
            array = inputs[name]
            level = self.plan.levels.at[name] + self.spare
            rows = seen_as(self.plan.packings[name], array.shape, name).pack(array)
            self.values[name] = [self.backend.encrypt(row, level) for row in rows]
        measured = list[Measured]()
        for placed in self.plan.layers:
            before = self.backend.counters.copy()
            self._layer(placed)
            measured.append(Measured(placed.name, self.backend.counters - before))
            for name in placed.layer.sources:
                uses[name] -= 1
                if not uses[name]:
                    del self.values[name]
        outputs = {name: self._decrypted(name) for name in network.outputs}
        return Outcome(outputs, tuple(measured), bounds)

    def _decrypted(self, name: str) -> Floats:
        root = self.plan.network.views.get(name, name)
        rows = [self.backend.decrypt(cipher) for cipher in self.values[root]]
        packing = self.plan.packings[root]
        return packing.unpack(rows).reshape(self.plan.network.shape(name))

    def _layer(self, placed: Placed) -> None:
        operands = [self.values[name] for name in placed.layer.sources]
        if self.watch is not None:
            self.watch(placed, operands)
        start = placed.start + self.spare
        if not isinstance(placed.layer, Linear):
            operands = [self._lowered(each, start) for each in operands]
        inputs = [cipher for each in operands for cipher in each]
        count = self.workers if isinstance(placed.layer, Linear) else 1
        program = self._program(placed)
        self.values[placed.name] = divided(program, self.backend, inputs, count)

    def _lowered(self, ciphers: Ciphers, level: int) -> Ciphers:
        """Ciphertexts at a lower level and its scale, where they are higher."""
        if self.backend.level_of(ciphers[0]) == level:
            return ciphers
        return [adjust(self.backend, cipher, level) for cipher in ciphers]

    def _program(self, placed: Placed) -> Program:
        layer, count = placed.layer, placed.target.ciphertexts
        start = placed.start + self.spare
        match layer:
            case Linear():
                return self._linear(placed, layer)
            case Move():
                assert placed.move is not None
                return placed.move.program
            case Power():
                masks = [np.where(row < 0, 0.0, 1.0) for row in placed.target.numbers()]
                return lower_polynomial(layer.evaluation, self.parameters, start, count, masks)
            case Sum():
                kind: Pairs = "add" if layer.sign > 0 else "subtract"
                return lower_pairs(kind, (start, start), count).program
            case Product():
                return lower_pairs("multiply", (start, start), count).program
            case Shift():
                return self._shift(placed, layer, count)

    def _linear(self, placed: Placed, layer: Linear) -> Program:
        assert placed.map is not None
        assert placed.split is not None
        weight: Floats | None = self.plain[layer.weight_name] if layer.weight_name else None
        if weight is not None and layer.inverts:
            weight = 1 / weight
        start, level = placed.start + self.spare, placed.level + self.spare
        levels = [at + self.spare for at in placed.given]
        count = len(placed.map.parts)
        program = lower(
            placed.map,
            placed.split,
            [weight] * count,
            scales=[layer.scale] * count,
            biases=[self._bias(layer)],
            encoded=[self.parameters.adjusting_scale(at, level) for at in levels],
        )
        high = [
            at > start
            for source, at in zip(placed.map.sources, levels)
            for _ in range(source.ciphertexts)
        ]
        return _dropped(program, high, start) if any(high) else program

    def _bias(self, layer: Linear) -> Floats | None:
        if not layer.bias and not layer.shift:
            return None
        total = np.full((1,) * len(layer.signature.result_shapes[0]), layer.shift)
        if layer.bias:
            total = total + layer.factor * _spread(self.plain[layer.bias], layer.signature)
        return total

    def _shift(self, placed: Placed, layer: Shift, count: int) -> Program:
        shape = self.plan.network.shape(layer.name)
        rows: list[Floats] = []
        if layer.plain:
            array = np.broadcast_to(layer.plain_sign * self.plain[layer.plain], shape)
            rows = seen_as(placed.target, shape, layer.name).pack(array)

        def steps(a: int, out: int) -> list[Step]:
            if not layer.plain:
                return [Negate(out, a)]
            if layer.sign > 0:
                return [AddPlain(out, a, Slots(rows[a]))]
            negative = out + count
            return [Negate(negative, a), AddPlain(out, negative, Slots(rows[a])), Free(negative)]

        return _each(count, steps)


def _spread(bias: Floats, signature: Signature) -> Floats:
    """A bias with the rank of the result: each of its dimensions is the result's of that row."""
    line = signature.notation
    (place,) = line.once
    rows, result = line.operands[place], line.results[0]
    sizes = [bias.shape[rows.index(row)] if row in rows else 1 for row in result]
    return bias.reshape(sizes)


def _each(count: int, make: Callable[[int, int], list[Step]]) -> Program:
    """The same steps on each ciphertext, which is freed."""

    def steps() -> list[Step]:
        made = list[Step]()
        for number in range(count):
            made += [*make(number, count + number), Free(number)]
        return made

    return Program(count, tuple(range(count, 2 * count)), steps)


def _dropped(program: Program, high: Sequence[bool], level: int) -> Program:
    """A program some of whose operands are brought to a level first, at the scale they have."""
    count = program.inputs
    steps: list[Step] = []
    for number, is_high in enumerate(high):
        if is_high:
            steps += [Drop(count + number, number, level), Free(number)]
    ready = [number + count * is_high for number, is_high in enumerate(high)]
    return then(Program(count, tuple(ready), lambda: steps), program)
