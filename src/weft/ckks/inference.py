"""A plan on ciphertexts: encrypt, run layer by layer, decrypt; every layer is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.backend import Backend, Cipher, Counters, adjust
from weft.ckks.linear import seen_as
from weft.ckks.links import Portable
from weft.ckks.lower import lower
from weft.ckks.network import Linear, Move, Power, Product, Shift, Sum
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
from weft.lang import OPERATORS, Block, Graph, Signature
from weft.values import Point

Arrays: TypeAlias = Mapping[str, ArrayLike]
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

    def __getitem__(self, name: str) -> Floats:
        return self.outputs[name]


def run(
    plan: Plan, arrays: Arrays, backend: Portable, watch: Watch | None = None, *, workers: int = 1
) -> Outcome:
    """Run a plan on a back-end: the inputs that are encrypted, and all that are not, by name.

    With several `workers`, linear layers are divided between as many processes.

    >>> from weft.ckks.planner import plan
    >>> from weft.lang import ops, trace
    >>> x, w = np.arange(8.0).reshape(1, 8), np.ones((8, 4))
    >>> planned = plan(trace(lambda x, w: ops.linear(x, w), x, w), slots=64)
    >>> backend = Simulator(planned.parameters(security=None))
    >>> run(planned, {"x": x, "w": w}, backend)["linear"]
    array([[28., 28., 28., 28.]])
    """
    plan.check(backend.parameters)
    _check_keys(plan, backend)
    plain = computed(plan.network.plain, arrays)
    return _Run(plan, plain, backend, watch, workers).outcome(arrays)


def _check_keys(plan: Plan, backend: Backend) -> None:
    """Refuse a back-end that lacks a key, with the layer that needs it, before anything runs."""
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
    """What the network makes in slots that are not encrypted; no key is made.

    A value that leaves the range of its polynomial is refused, with the name of the layer.
    """
    backend = Simulator(parameters)

    def watch(placed: Placed, operands: Sequence[Ciphers]) -> None:
        layer = placed.layer
        if isinstance(layer, Power):
            rows = [backend.decrypt(cipher) for cipher in operands[0]]
            values = placed.sources[0].unpack(rows)
            evaluation = layer.evaluation
            if evaluation.folded:
                values = (values - evaluation.shift) / evaluation.factor
            layer.activation.check(values, layer.name)

    return run(plan, arrays, backend, watch)


def computed(graph: Graph, arrays: Arrays) -> dict[str, Floats]:
    """All values of a graph that is not encrypted, its inputs included."""
    found = {value.name: _given(arrays, value.name, value.shape) for value in graph.inputs}
    for application, signature in graph.walk():
        kernel = OPERATORS.find(application.operator).kernel
        if kernel is None:
            raise WeftError(f"{application.results[0]}: {application.operator} has no kernel")
        block = Block(np, signature, application.attributes, signature.space)
        made = kernel(block, *(found[name] for name in application.operands))
        several = made if isinstance(made, tuple) else (made,)
        found |= dict(zip(application.results, several))
    return found


def _given(arrays: Arrays, name: str, shape: Point) -> Floats:
    if name not in arrays:
        raise WeftError(f"there is no array for {name}", hint="arrays are given by name")
    array = np.asarray(arrays[name], np.float64)
    if array.shape != shape:
        raise WeftError(f"{name} has shape {list(shape)}, and its array {list(array.shape)}")
    return array


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

    def outcome(self, arrays: Arrays) -> Outcome:
        network, uses = self.plan.network, self.plan.network.uses()
        for name in network.inputs:
            array = _given(arrays, name, network.shape(name))
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
        return Outcome({name: self._decrypted(name) for name in network.outputs}, tuple(measured))

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
            scales=[layer.factor] * count,
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
