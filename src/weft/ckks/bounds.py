"""Bounds on every value of an encrypted network, and an estimate of its error.

A ciphertext at level l holds scale * value modulo Q, the product of the primes up to l. Its
polynomial has coefficients that are averages of the slots times roots of unity, so that none is
larger than the largest slot: values that stay below Q / (2 scale) never wrap. Intervals that hold
for every input of the declared range follow from the weights: a linear layer adds the radii of its
operands times the absolute weights, a polynomial is bounded on the interval of its argument.

The argument of a fitted polynomial is taken to lie in the range of the fit, since the interval of a
deep network says little; `run` and `check_ranges` refuse an input for which it does not.

The error is an estimate, not a bound: independent Gaussian noise, as is usual for CKKS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, cos, log2, pi, sqrt
from typing import NamedTuple

import numpy as np

from weft.ckks import operations as ops
from weft.ckks.clear import Arrays, ClearNetwork, computed
from weft.ckks.inputs import Range
from weft.ckks.network import Linear, Move, Power, Product, Shift, Sum
from weft.ckks.packing import Floats
from weft.ckks.parameters import BITS, MOST_PRIMES, Parameters
from weft.ckks.planner import Placed, Plan
from weft.ckks.polynomial import Evaluation, Ladder
from weft.errors import WeftError
from weft.values import Point

ROUNDING = 1e-9
"""By how much intervals are widened, in parts, for the rounding of float64."""
HEADROOM = 1.01
"""The room of a value in its modulus, in multiples of its bound."""
DEVIATIONS = 8.0
"""Standard deviations of the noise that are promised: one value in 10^15 is further off."""
SECRET = 2 / 3
"""Variance of a coefficient of the secret, which is -1, 0 or 1."""
FRESH = 3.2**2
"""Variance of a coefficient of fresh noise."""
FLOAT = 2.0**-46
"""Relative error of an encoder that computes with float64."""
HOPS = 4
"""Rotations that a ciphertext takes one after the other in a linear layer, at most."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the values of a plan lie, for all inputs in the declared ranges.

    `print` it for a table: the range of every value, its level, the bits that it takes of the bits
    of the modulus there, and the error that is estimated for it.
    """

    values: Mapping[str, Range]
    """By name of input and layer, as ciphertexts hold them."""
    assumed: frozenset[str]
    """Values that are in their range because a polynomial is fitted on it: checked when an input
    is encrypted, and not proved beforehand."""
    errors: Mapping[str, float]
    """By name, the error that is promised: eight standard deviations of the estimated noise."""
    rooms: Mapping[str, tuple[int, float, float]]
    """By name the level, the bits of the largest value at its scale with a sign, and the bits of
    the modulus."""

    def __str__(self) -> str:
        wide = max(map(len, self.values))
        lines = [f"{'value':{wide}}  level  bits of modulus   error  range"]
        for name, found in self.values.items():
            level, need, room = self.rooms[name]
            told = f"{found}" + (" (assumed)" if name in self.assumed else "")
            error = self.errors[name]
            lines.append(
                f"{name:{wide}}  {level:5}  {need:5.1f} of {room:6.1f}  {error:7.1e}  {told}"
            )
        return "\n".join(lines)


def check_bounds(plan: Plan, weights: Arrays, parameters: Parameters) -> Bounds:
    """Bound every value of a plan, and refuse parameters that do not hold them.

    `weights` are all inputs that are not encrypted; no key is needed. The modulus at every level
    must hold the values there, and the error of an output must not exceed the plan's tolerance.

    >>> from weft.ckks.planner import plan
    >>> from weft.lang import ops, trace
    >>> planned = plan(trace(lambda x, w: ops.linear(x, w), (1, 64), (64, 4)), 64, "x", ranges=50)
    >>> weights = {"w": np.full((64, 4), 50.0)}
    >>> large = planned.parameters(security=None, first_bits=59)
    >>> print(check_bounds(planned, weights, large).values["linear"])
    [-160000, 160000]
    >>> check_bounds(planned, weights, planned.parameters(security=None))
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: layer linear: values up to 160000 need a modulus of 58.3 bits, and \
level 0 has 50.0
    hint: first_bits=59 would fit, or depth=2
    """
    plan.check(parameters)
    plain = computed(plan.network.plain, weights)
    found = _Analysis(plan, plain, parameters)
    found.check()
    return found.bounds()


class _Value(NamedTuple):
    """An encrypted value: its interval by element, and the standard deviation of its error."""

    middle: Floats
    radius: Floats
    error: Floats

    @property
    def range(self) -> Range:
        return Range(float((self.middle - self.radius).min()), float(self._high().max()))

    def _high(self) -> Floats:
        return self.middle + self.radius

    def reshaped(self, shape: Point) -> _Value:
        """The same value as a view of another shape."""
        return _Value(*(each.reshape(shape) for each in self))

    @classmethod
    def between(cls, low: Floats, high: Floats, error: Floats) -> _Value:
        middle = (low + high) / 2
        return cls(middle, (high - low) / 2 + ROUNDING * np.abs(middle), error)


class _Noise:
    """Standard deviations of the noise in a slot, by what brings it in."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.ring = parameters, parameters.ring
        self.rounding = (1 + SECRET * self.ring) / 12

    def slot(self, variance: float, scale: float) -> float:
        """A slot is the sum of N coefficients times roots of unity, divided by the scale."""
        return sqrt(variance * self.ring / 2) / scale

    def fresh(self, level: int) -> float:
        return self.slot(FRESH + 1 / 12, self.parameters.scales[level])

    def encoded(self, scale: float, largest: float = 0.0) -> float:
        """The rounding of a plaintext, to integers and by the float64 of the encoder."""
        return self.slot(1 / 12, scale) + FLOAT / DEVIATIONS * largest

    def rescaled(self, scale: float) -> float:
        return self.slot(self.rounding, scale)

    def switched(self, level: int, scale: float) -> float:
        """A change of keys: a rotation, or a relinearisation.

        The digits that SEAL multiplies keys by run from 0 to a prime. Their mean, half the prime in
        every coefficient, is a sum of roots of unity that reaches 2N / pi in the first slot.
        """
        special = self.parameters.special
        parts = sum((prime / special) ** 2 for prime in self.parameters.primes[: level + 1])
        digits = self.ring / 12 + (self.ring / pi) ** 2
        return self.slot(self.rounding + FRESH * digits * parts, scale)


class _Analysis:
    """The values of a plan, bounded layer by layer."""

    def __init__(self, plan: Plan, plain: Mapping[str, Floats], parameters: Parameters) -> None:
        self.plan, self.parameters = plan, parameters
        self.spare = parameters.depth - plan.depth
        self.noise = _Noise(parameters)
        self.clear = ClearNetwork(plan.network, plain)
        self.found: dict[str, _Value] = {}
        self.registers: dict[str, list[float]] = {}
        self.plaintexts: dict[str, list[tuple[int, float]]] = {}
        """By layer the level (of the plan) and the largest value of what is encoded for it."""
        self.assumed = set[str]()
        self.readers: dict[str, list[Power]] = {}
        for placed in plan.layers:
            if isinstance(placed.layer, Power):
                self.readers.setdefault(placed.layer.sources[0], []).append(placed.layer)
        for name, limits in plan.ranges.items():
            shape = plan.network.shape(name)
            rounding = FLOAT / DEVIATIONS * limits.magnitude
            error = np.full(shape, self.noise.fresh(self.level(name)) + rounding)
            low, high = np.full(shape, limits.low), np.full(shape, limits.high)
            self._add(name, _Value.between(low, high, error))
        with np.errstate(all="ignore"):  # what overflows float64 is refused below
            for placed in plan.layers:
                self._add(placed.name, self._made(placed))

    def level(self, name: str) -> int:
        """The level at which a value is made."""
        return self.plan.levels.at[name] + self.spare

    def _add(self, name: str, value: _Value) -> None:
        if not (np.isfinite(value.middle).all() and np.isfinite(value.radius).all()):
            raise WeftError(
                f"{self._called(name)}: its values have no finite bound",
                hint="weights must be finite, and small enough; or declare smaller ranges",
            )
        for layer in self.readers.get(name, ()):
            value = self._within(name, value, layer)
        self.found[name] = value

    def _within(self, name: str, value: _Value, layer: Power) -> _Value:
        """The part of an interval that lies in the range of the polynomial that reads it."""
        evaluation, activation = layer.evaluation, layer.activation
        limits = np.array([activation.low, activation.high])
        if evaluation.folded:
            limits = evaluation.factor * limits + evaluation.shift
        low, high = float(limits.min()), float(limits.max())
        below, above = value.middle - value.radius, value.middle + value.radius
        slack = ROUNDING * max(abs(low), abs(high))
        if (below >= low - slack).all() and (above <= high + slack).all():
            return value
        if (below > high + slack).any() or (above < low - slack).any():
            raise WeftError(
                f"layer {layer.name}: a value of {self._called(name)} lies outside of "
                f"[{activation.low:g}, {activation.high:g}], where {activation.name} fits, "
                "for every input",
                hint="fit the polynomial on a larger range",
            )
        self.assumed.add(name)
        return _Value.between(np.clip(below, low, high), np.clip(above, low, high), value.error)

    def _made(self, placed: Placed) -> _Value:
        layer = placed.layer
        operands = [self.found[name] for name in layer.sources]
        if isinstance(layer, Linear):
            return self._linear(placed, layer, operands)
        start, shape = placed.start + self.spare, self.plan.network.shape(layer.name)
        ready = [
            (self._lowered(each, start) if at > placed.start else each).reshaped(shape)
            for each, at in zip(operands, placed.given)
        ]
        match layer:
            case Sum():
                return self._sum(layer, ready[0], ready[1])
            case Shift():
                (a,) = ready
                added = self.clear.shift(layer)
                self.plaintexts[layer.name] = [(placed.level, _largest(added))]
                middle = layer.sign * a.middle + added
                radius = a.radius + ROUNDING * (np.abs(middle) + a.radius)
                rounded = self.noise.encoded(self.parameters.scales[start], _largest(added))
                return _Value(middle, radius, a.error + rounded)
            case Product():
                return self._product(layer, ready[0], ready[1], start - 1)
            case Power():
                return self._power(layer, ready[0], start)
            case Move():
                return self._moved(placed, ready[0], start)

    def _lowered(self, value: _Value, level: int) -> _Value:
        """A value that is multiplied by 1 and rescaled, to be at a lower level."""
        scale = self.parameters.scales[level]
        added = self.noise.rescaled(scale) + value.range.magnitude * self.noise.encoded(scale)
        return value._replace(error=value.error + added)

    def _linear(self, placed: Placed, layer: Linear, operands: list[_Value]) -> _Value:
        apply, factor = self.clear.linear, layer.factor
        middle = factor * apply(layer, [each.middle for each in operands]) + layer.shift
        radius = apply(layer, [each.radius for each in operands], np.abs, bias=False)
        size = apply(layer, [np.abs(each.middle) for each in operands], np.abs, bias=False)
        radius = abs(factor) * (radius + ROUNDING * size)
        self.plaintexts[layer.name] = [
            (placed.start, self._weight(layer)),
            (placed.level, self._bias(layer)),
        ]
        level, start = placed.level + self.spare, placed.start + self.spare
        scale, noise = self.parameters.scales[level], self.noise
        # Baby steps are rotated before they are multiplied by weights: their noise grows with them.
        turned = HOPS * noise.switched(start, self.parameters.scales[start]) ** 2
        variances = [each.error**2 + turned for each in operands]
        spread = apply(layer, variances, np.square, bias=False) * factor * layer.scale
        # Every plaintext is rounded in all slots, whatever their weights are.
        most = max(each.range.magnitude for each in operands)
        encoded = noise.encoded(self.parameters.scales[start], self._weight(layer))
        rounded = _terms(placed) * (most * encoded) * (most * encoded)  # infinite, if it overflows
        variance = np.abs(spread) + rounded + noise.rescaled(scale) ** 2
        bias = noise.encoded(scale, self._bias(layer))
        return _Value(middle, radius, np.sqrt(variance) + bias)

    def _weight(self, layer: Linear) -> float:
        """The largest weight of a linear layer, as it is encoded."""
        largest = 1.0
        if layer.weight_name:
            weight = self.clear.plain[layer.weight_name]
            largest = _largest(1 / weight if layer.inverts else weight)
        return largest * _largest(layer.scale)

    def _bias(self, layer: Linear) -> float:
        bias = self.clear.plain[layer.bias] if layer.bias else np.zeros(1)
        return _largest(layer.factor * bias + layer.shift)

    def _sum(self, layer: Sum, a: _Value, b: _Value) -> _Value:
        error = a.error + b.error
        if layer.sources[0] == layer.sources[1]:
            scale = 1.0 + layer.sign
            return _Value(scale * a.middle, scale * a.radius, error)
        radius = a.radius + b.radius + ROUNDING * (np.abs(a.middle) + np.abs(b.middle))
        return _Value(a.middle + layer.sign * b.middle, radius, error)

    def _product(self, layer: Product, a: _Value, b: _Value, level: int) -> _Value:
        sizes = [np.abs(each.middle) + each.radius for each in (a, b)]
        added = self.noise.rescaled(self.parameters.scales[level])
        error = sizes[0] * b.error + sizes[1] * a.error + a.error * b.error + added
        ends = [
            (a.middle + i * a.radius) * (b.middle + j * b.radius) for i in (-1, 1) for j in (-1, 1)
        ]
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        if layer.sources[0] == layer.sources[1]:
            low = np.where(np.abs(a.middle) <= a.radius, 0.0, np.minimum(ends[0], ends[3]))
        return _Value.between(low, high, error)

    def _moved(self, placed: Placed, value: _Value, level: int) -> _Value:
        """A value that is rotated, and masked where that takes a level."""
        scale = self.parameters.scales[level]
        added = HOPS * self.noise.switched(level, scale)
        if placed.layer.levels:
            terms = sqrt(placed.cost.plain_products)
            added += self.noise.rescaled(self.parameters.scales[level - 1])
            added += terms * value.range.magnitude * self.noise.encoded(scale)
        return value._replace(error=value.error + added)

    def _power(self, layer: Power, value: _Value, level: int) -> _Value:
        """A polynomial on the interval of all elements, with all that it computes on the way."""
        evaluation, limits = layer.evaluation, value.range
        points = 32 * max(8, evaluation.degree)
        at = np.cos(pi * (np.arange(points) + 0.5) / points)
        at = (limits.high + limits.low) / 2 + (limits.high - limits.low) / 2 * at
        error = np.full(points, float(np.max(value.error, initial=0.0)))
        made = _Registers(self.parameters, self.noise, level).run(evaluation, at, error)
        # Ehlich and Zeller (1964): a polynomial of degree d that is at most 1 at K Chebyshev nodes
        # is at most 1 / cos(pi d / 2K) between them.
        widen = 1 / cos(pi * evaluation.degree / (2 * points)) * (1 + ROUNDING)
        self.registers[layer.name] = [widen * float(np.abs(each).max()) for each in made.values]
        low, high = float(made.values[-1].min()), float(made.values[-1].max())
        middle, radius = (low + high) / 2, (high - low) / 2 * widen
        shape = value.middle.shape
        last = float(made.errors[-1].max())
        radius += ROUNDING * max(self.registers[layer.name])
        return _Value(np.full(shape, middle), np.full(shape, radius), np.full(shape, last))

    # -- what is checked --------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a modulus that is too small for a value, and an error that is too large."""
        for name in self.found:
            _, need, room = self._room(name, self.parameters)
            if need > room:
                raise self._refused(name)
        for name in self.plan.network.outputs:
            root = self.plan.network.views.get(name, name)
            error, size = self._error(root), self.found[root].range.magnitude
            if size > 0 and error > self.plan.tolerance * size:
                raise WeftError(
                    f"output {name}: an error of {error:.1e} is expected on values up to "
                    f"{size:.3g}, which exceeds the tolerance of {self.plan.tolerance:g} of them",
                    hint=self._precise(root),
                )

    def _error(self, name: str) -> float:
        """The error that is promised of a value."""
        value = self.found[name]
        rounding = FLOAT * (1 + value.range.magnitude)
        return DEVIATIONS * float(np.max(value.error, initial=0.0)) + rounding

    def _room(self, name: str, parameters: Parameters) -> tuple[int, float, float]:
        """The level of a value, the bits that it needs there, and those of the modulus.

        Of several places where the value is, or where a polynomial computes on it, the tightest.
        """
        spare = parameters.depth - self.plan.depth
        level = self.plan.levels.at[name] + spare
        size = self.found[name].range.magnitude
        places = [(level, parameters.scales[level], size)]
        for placed in self.plan.layers:
            for source, at in zip(placed.layer.sources, placed.given):
                if source == name and at > placed.start:  # it is dropped at its old scale
                    places.append((placed.start + spare, parameters.scales[at + spare], size))
            if placed.name == name:
                for at, largest in self.plaintexts.get(name, ()):  # SEAL keeps one more bit free
                    places.append((at + spare, parameters.scales[at + spare], 2 * largest))
            if placed.name == name and isinstance(placed.layer, Power):
                bounds = self.registers[name]
                places += _register_places(
                    placed.layer.evaluation, parameters, placed.start + spare, bounds
                )
        rooms = [(at, _bits(scale, size), parameters.room(at)) for at, scale, size in places]
        return max(rooms, key=lambda each: each[1] - each[2])

    def _called(self, name: str) -> str:
        return f"{'input' if name in self.plan.ranges else 'layer'} {name}"

    def _refused(self, name: str) -> WeftError:
        level, need, room = self._room(name, self.parameters)
        size = self.found[name].range.magnitude
        encoded = (largest for _, largest in self.plaintexts.get(name, ()))
        inside = max([size, *self.registers.get(name, ()), *encoded])
        on_the_way = "" if inside == size else f", and up to {inside:.6g} on the way,"
        return WeftError(
            f"{self._called(name)}: values up to {size:.6g}{on_the_way} need a modulus of "
            f"{need:.1f} bits, and level {level} has {room:.1f}",
            hint=self._what_fits(),
        )

    def _fits(self, parameters: Parameters) -> bool:
        rooms = (self._room(name, parameters) for name in self.found)
        return all(need <= room for _, need, room in rooms)

    def _what_fits(self) -> str:
        """Parameters of the same ring and security that hold all values; else what to change."""
        found = list[str]()
        given = self.parameters
        for bits in range(given.first_bits + 1, BITS[-1] + 1):
            if self._is_good(first_bits=bits, special_bits=max(bits, given.special_bits)):
                found.append(f"first_bits={bits}")
                break
        if given.depth + 3 <= MOST_PRIMES and self._is_good(depth=given.depth + 1):
            found.append(f"depth={given.depth + 1}")
        if not found:
            for bits in range(given.scale_bits - 1, BITS[0] - 1, -1):
                first = BITS[-1]
                if self._is_good(scale_bits=bits, first_bits=first, special_bits=first):
                    found.append(f"scale_bits={bits} with first_bits={first}")
                    break
        if found:
            return f"{found[0]} would fit" + "".join(f", or {each}" for each in found[1:])
        return (
            f"no parameters of N={given.ring} hold it: scale the weights down, declare smaller "
            "ranges, or fit polynomials on ranges that bound the values between layers"
        )

    def _precise(self, name: str) -> str:
        """What makes an error smaller."""
        given = self.parameters
        allowed = self.plan.tolerance * self.found[name].range.magnitude
        missing = log2(self._error(name) / allowed)
        bits = given.scale_bits + ceil(missing) if missing < BITS[-1] else BITS[-1]
        if bits + 2 <= BITS[-1] and self._is_good(
            scale_bits=bits, first_bits=min(60, bits + 10), special_bits=60
        ):
            return f"scale_bits={bits} with first_bits={min(60, bits + 10)} would fit"
        return (
            "weights that are tiny lose their digits, and large ones multiply the noise: scale "
            f"them alike, or plan with a tolerance above {self.plan.tolerance:g}"
        )

    def _is_good(self, **changes: int) -> bool:
        given = self.parameters
        names = ("ring", "depth", "scale_bits", "first_bits", "special_bits", "security")
        fields = {name: getattr(given, name) for name in names}
        try:
            return self._fits(Parameters(**(fields | changes)))
        except WeftError:  # the ring has no room for so many bits
            return False

    def bounds(self) -> Bounds:
        """What was found, in short."""
        return Bounds(
            {name: value.range for name, value in self.found.items()},
            frozenset(self.assumed),
            {name: self._error(name) for name in self.found},
            {name: self._room(name, self.parameters) for name in self.found},
        )


def _bits(scale: float, size: float) -> float:
    """The bits of a modulus that holds values of a size at a scale, and their signs."""
    return log2(scale) + log2(HEADROOM * size + 2.0**-4) + 1


def _largest(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))


def _terms(placed: Placed) -> int:
    """How many plaintext products are added up in one ciphertext, at most."""
    assert placed.map is not None
    counts: dict[int, int] = {}
    for (out, _), key in placed.map.blocks.items():
        counts[out] = counts.get(out, 0) + len(placed.map.sets[key])
    return max(counts.values())


class _Run(NamedTuple):
    values: list[Floats]
    errors: list[Floats]


class _Registers:
    """A polynomial on numbers, with the error of every register."""

    def __init__(self, parameters: Parameters, noise: _Noise, level: int) -> None:
        self.parameters, self.noise, self.level = parameters, noise, level

    def run(self, evaluation: Evaluation, at: Floats, error: Floats) -> _Run:
        ladder = Ladder.of(self.parameters, self.level)
        values, errors = {0: at}, {0: error}
        places = _walk(evaluation, self.parameters, self.level)
        for op in evaluation.operations(ladder):
            values[op.out] = ops.apply(op, values)
            errors[op.out] = self._error(op, values, errors, places[op.out].scale)
        order = sorted(values)
        return _Run([values[n] for n in order], [errors[n] for n in order])

    def _error(
        self, op: ops.Op, values: Mapping[int, Floats], errors: Mapping[int, Floats], scale: float
    ) -> Floats:
        a, error = values[op.a], errors[op.a]
        match op:
            case ops.Product():
                b, other = values[op.b], errors[op.b]
                return np.abs(a) * other + np.abs(b) * error + error * other
            case ops.Sum() | ops.Difference():
                return error + errors[op.b]
            case ops.Scaled():
                return abs(op.value) * error + np.abs(a) * self.noise.encoded(op.scale)
            case ops.Rescaled():
                return error + self.noise.rescaled(scale)
            case ops.Shifted():
                return error + self.noise.encoded(scale, abs(op.value))
        return error


class _Place(NamedTuple):
    """The level and the scale of a register."""

    level: int
    scale: float


def _walk(evaluation: Evaluation, parameters: Parameters, level: int) -> dict[int, _Place]:
    """The level and the scale of every register of a polynomial."""
    found = {0: _Place(level, parameters.scales[level])}
    for op in evaluation.operations(Ladder.of(parameters, level)):
        at, scale = found[op.a]
        match op:
            case ops.Product():
                scale *= found[op.b].scale
            case ops.Scaled():
                scale *= op.scale
            case ops.Rescaled():
                scale /= parameters.primes[at]
                at -= 1
            case ops.Dropped():
                at = level - op.depth
        found[op.out] = _Place(at, scale)
    return found


def _register_places(
    evaluation: Evaluation, parameters: Parameters, level: int, bounds: list[float]
) -> list[tuple[int, float, float]]:
    places = _walk(evaluation, parameters, level)
    found = [(*places[number], bound) for number, bound in zip(sorted(places), bounds)]
    for op in evaluation.operations(Ladder.of(parameters, level)):
        if isinstance(op, ops.Shifted):
            found.append((*places[op.a], 2 * abs(op.value)))
        elif isinstance(op, ops.Scaled):
            found.append((places[op.a].level, op.scale, 2 * abs(op.value)))
    return found
