"""Bounds on every value of an encrypted network, and an estimate of its error.

A ciphertext at level l holds scale * value modulo Q, the product of the primes up to l. The
coefficients of its polynomial are averages of the slots times roots of unity, so that none is
larger than the largest slot: values that stay below Q / (2 scale) never wrap. Intervals that hold
for every input of the declared range follow from the weights: a linear layer adds the radii of its
operands times the absolute weights, a polynomial is bounded on the interval of its argument.

The argument of a fitted polynomial is assumed to lie in the range of the fit, because intervals
grow with every layer of a deep network; `run` and `check_ranges` refuse an input for which it does
not.

The error is an estimate, not a bound: it assumes independent Gaussian noise, as is usual for CKKS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, cos, log2, pi, sqrt
from typing import NamedTuple

import numpy as np

from weft.ckks.network import (
    Arrays,
    ClearNetwork,
    LinearLayer,
    PairLayer,
    PolynomialLayer,
    RepackingLayer,
    ShiftLayer,
    compute,
)
from weft.ckks.packing import Floats
from weft.ckks.parameters import BITS, MOST_PRIMES, Parameters
from weft.ckks.plan import EncryptedPlan, PlannedLayer, Range
from weft.ckks.slot_program import execute
from weft.errors import WeftError
from weft.values import Point

ROUNDING = 1e-9
"""The relative widening of intervals, for the rounding of float64."""
HEADROOM = 1.01
"""The largest value that the modulus must hold, in multiples of the bound."""
DEVIATIONS = 8.0
"""Standard deviations of the noise that count as the error: one value in 10^15 exceeds them."""
SECRET = 2 / 3
"""Variance of a coefficient of the secret key, which is -1, 0 or 1."""
FRESH = 3.2**2
"""Variance of a coefficient of fresh noise."""
FLOAT = 2.0**-46
"""Relative error of an encoder that computes with float64."""
HOPS = 4
"""The most consecutive rotations of a ciphertext in a linear layer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The intervals of all values of a plan, for every input in the declared ranges.

    `print` shows a table: the range of every value, its level, the bits that it needs of the bits
    of the modulus there, and its estimated error.
    """

    values: Mapping[str, Range]
    """By name of input and layer, as ciphertexts hold them."""
    assumed: frozenset[str]
    """Values that are assumed to lie in the range of the polynomial that reads them: checked when
    an input is encrypted, not proved in advance."""
    errors: Mapping[str, float]
    """By name, the expected error: eight standard deviations of the estimated noise."""
    rooms: Mapping[str, tuple[int, float, float]]
    """By name, the level, the bits of the largest value at its scale with its sign, and the bits
    of the modulus."""

    def __str__(self) -> str:
        wide = max(map(len, self.values))
        lines = [f"{'value':{wide}}  level  bits of modulus   error  range"]
        for name, limits in self.values.items():
            level, need, room = self.rooms[name]
            shown = f"{limits}" + (" (assumed)" if name in self.assumed else "")
            error = self.errors[name]
            lines.append(
                f"{name:{wide}}  {level:5}  {need:5.1f} of {room:6.1f}  {error:7.1e}  {shown}"
            )
        return "\n".join(lines)


def check_bounds(plan: EncryptedPlan, weights: Arrays, parameters: Parameters) -> Bounds:
    """Return bounds of all values of a plan; refuse parameters that do not hold them.

    `weights` are all inputs that are not encrypted; no key is needed. The modulus of every level
    must hold the values there, and the error of an output must not exceed the plan's tolerance.

    >>> from weft.ckks.plan import plan
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
    plain = compute(plan.network.clear_graph, weights)
    analysis = _BoundsAnalysis(plan, plain, parameters)
    analysis.check()
    return analysis.bounds()


class _BoundedValue(NamedTuple):
    """An encrypted value: the interval of each element, and the standard deviation of its error."""

    middle: Floats
    radius: Floats
    error: Floats

    @property
    def range(self) -> Range:
        below, above = self.middle - self.radius, self.middle + self.radius
        return Range(float(below.min()), float(above.max()))

    def reshaped(self, shape: Point) -> _BoundedValue:
        """Return the value as a view of another shape."""
        return _BoundedValue(*(each.reshape(shape) for each in self))

    @classmethod
    def between(cls, low: Floats, high: Floats, error: Floats) -> _BoundedValue:
        middle = (low + high) / 2
        return cls(middle, (high - low) / 2 + ROUNDING * np.abs(middle), error)


class _Noise:
    """Standard deviations of the noise that operations add to a slot."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.ring = parameters, parameters.ring
        self.rounding = (1 + SECRET * self.ring) / 12

    def slot(self, variance: float, scale: float) -> float:
        """Return the deviation of a slot, the sum of N coefficients times roots of unity."""
        return sqrt(variance * self.ring / 2) / scale

    def fresh(self, level: int) -> float:
        return self.slot(FRESH + 1 / 12, self.parameters.scales[level])

    def encoded(self, scale: float, largest: float = 0.0) -> float:
        """Return the rounding of a plaintext, to integers and by the float64 of the encoder."""
        return self.slot(1 / 12, scale) + FLOAT / DEVIATIONS * largest

    def rescaled(self, scale: float) -> float:
        return self.slot(self.rounding, scale)

    def switched(self, level: int, scale: float) -> float:
        """Return the noise of key switching: of a rotation, or of a relinearisation.

        The digits that SEAL multiplies keys by lie between 0 and a prime. Their mean, half the
        prime in every coefficient, is a sum of roots of unity that reaches 2N / pi in the first
        slot.
        """
        special = self.parameters.special
        parts = sum((prime / special) ** 2 for prime in self.parameters.primes[: level + 1])
        digits = self.ring / 12 + (self.ring / pi) ** 2
        return self.slot(self.rounding + FRESH * digits * parts, scale)


class _BoundsAnalysis:
    """Bounds the values of a plan, layer by layer."""

    def __init__(
        self, plan: EncryptedPlan, plain: Mapping[str, Floats], parameters: Parameters
    ) -> None:
        self.plan, self.parameters = plan, parameters
        self.spare = parameters.depth - plan.depth
        self.noise = _Noise(parameters)
        self.clear = ClearNetwork(plan.network, plain)
        self.values: dict[str, _BoundedValue] = {}
        self.inside: dict[str, float] = {}
        """By polynomial, the largest intermediate value."""
        self.plaintexts: dict[str, list[tuple[int, float]]] = {}
        """By layer, the levels (of the plan) and the largest values of its plaintexts."""
        self.assumed = set[str]()
        self.readers: dict[str, list[PolynomialLayer]] = {}
        for planned in plan.layers:
            if isinstance(planned.layer, PolynomialLayer):
                self.readers.setdefault(planned.layer.sources[0], []).append(planned.layer)
        for name, limits in plan.ranges.items():
            shape = plan.network.shape(name)
            rounding = FLOAT / DEVIATIONS * limits.magnitude
            error = np.full(shape, self.noise.fresh(self.level(name)) + rounding)
            low, high = np.full(shape, limits.low), np.full(shape, limits.high)
            self._add(name, _BoundedValue.between(low, high, error))
        with np.errstate(all="ignore"):  # overflow of float64 is refused below
            for planned in plan.layers:
                self._add(planned.name, self._result(planned))

    def level(self, name: str) -> int:
        """Return the level of a value."""
        return self.plan.levels[name] + self.spare

    def _add(self, name: str, value: _BoundedValue) -> None:
        if not (np.isfinite(value.middle).all() and np.isfinite(value.radius).all()):
            raise WeftError(
                f"{self._called(name)}: its values have no finite bound",
                hint="weights must be finite, and small enough; or declare smaller ranges",
            )
        for layer in self.readers.get(name, ()):
            value = self._within(name, value, layer)
        self.values[name] = value

    def _within(self, name: str, value: _BoundedValue, layer: PolynomialLayer) -> _BoundedValue:
        """Return the part of an interval that lies in the range of the polynomial that reads it."""
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
        return _BoundedValue.between(
            np.clip(below, low, high), np.clip(above, low, high), value.error
        )

    def _result(self, planned: PlannedLayer) -> _BoundedValue:
        layer = planned.layer
        operands = [self.values[name] for name in layer.sources]
        if isinstance(layer, LinearLayer):
            return self._linear(planned, layer, operands)
        start, shape = planned.start + self.spare, self.plan.network.shape(layer.name)
        ready = [
            (self._lowered(each, start) if at > planned.start else each).reshaped(shape)
            for each, at in zip(operands, planned.source_levels)
        ]
        match layer:
            case PairLayer(operator="multiply"):
                return self._product(layer, ready[0], ready[1], start - 1)
            case PairLayer():
                return self._sum(layer, ready[0], ready[1])
            case ShiftLayer():
                (a,) = ready
                added = self.clear.shift(layer)
                self.plaintexts[layer.name] = [(planned.level, _largest(added))]
                middle = layer.sign * a.middle + added
                radius = a.radius + ROUNDING * (np.abs(middle) + a.radius)
                rounded = self.noise.encoded(self.parameters.scales[start], _largest(added))
                return _BoundedValue(middle, radius, a.error + rounded)
            case PolynomialLayer():
                return self._polynomial(layer, ready[0], start)
            case RepackingLayer():
                return self._repacked(planned, ready[0], start)

    def _lowered(self, value: _BoundedValue, level: int) -> _BoundedValue:
        """Return a value that is multiplied by 1 and rescaled, to reach a lower level."""
        scale = self.parameters.scales[level]
        added = self.noise.rescaled(scale) + value.range.magnitude * self.noise.encoded(scale)
        return value._replace(error=value.error + added)

    def _linear(
        self, planned: PlannedLayer, layer: LinearLayer, operands: list[_BoundedValue]
    ) -> _BoundedValue:
        apply, factor = self.clear.linear, layer.factor
        middle = factor * apply(layer, [each.middle for each in operands]) + layer.shift
        radius = apply(layer, [each.radius for each in operands], np.abs, bias=False)
        size = apply(layer, [np.abs(each.middle) for each in operands], np.abs, bias=False)
        radius = abs(factor) * (radius + ROUNDING * size)
        self.plaintexts[layer.name] = [
            (planned.start, self._weight(layer)),
            (planned.level, self._bias(layer)),
        ]
        level, start = planned.level + self.spare, planned.start + self.spare
        scale, noise = self.parameters.scales[level], self.noise
        # Baby steps are rotated before they are multiplied by weights: their noise grows with them.
        turned = HOPS * noise.switched(start, self.parameters.scales[start]) ** 2
        variances = [each.error**2 + turned for each in operands]
        spread = apply(layer, variances, np.square, bias=False) * factor * layer.scale
        # Every plaintext is rounded in all slots, whatever their weights are.
        most = max(each.range.magnitude for each in operands)
        encoded = noise.encoded(self.parameters.scales[start], self._weight(layer))
        rounded = _terms(planned) * (most * encoded) * (most * encoded)  # infinite, if it overflows
        variance = np.abs(spread) + rounded + noise.rescaled(scale) ** 2
        bias = noise.encoded(scale, self._bias(layer))
        return _BoundedValue(middle, radius, np.sqrt(variance) + bias)

    def _weight(self, layer: LinearLayer) -> float:
        """Return the largest weight of a linear layer, as it is encoded."""
        largest = 1.0
        if layer.weight_name:
            weight = self.clear.plain[layer.weight_name]
            largest = _largest(1 / weight if layer.inverts else weight)
        return largest * _largest(layer.scale)

    def _bias(self, layer: LinearLayer) -> float:
        bias = self.clear.plain[layer.bias] if layer.bias else np.zeros(1)
        return _largest(layer.factor * bias + layer.shift)

    def _sum(self, layer: PairLayer, a: _BoundedValue, b: _BoundedValue) -> _BoundedValue:
        error = a.error + b.error
        if layer.sources[0] == layer.sources[1]:
            scale = 1.0 + layer.sign
            return _BoundedValue(scale * a.middle, scale * a.radius, error)
        radius = a.radius + b.radius + ROUNDING * (np.abs(a.middle) + np.abs(b.middle))
        return _BoundedValue(a.middle + layer.sign * b.middle, radius, error)

    def _product(
        self, layer: PairLayer, a: _BoundedValue, b: _BoundedValue, level: int
    ) -> _BoundedValue:
        sizes = [np.abs(each.middle) + each.radius for each in (a, b)]
        added = self.noise.rescaled(self.parameters.scales[level])
        error = sizes[0] * b.error + sizes[1] * a.error + a.error * b.error + added
        ends = [
            (a.middle + i * a.radius) * (b.middle + j * b.radius) for i in (-1, 1) for j in (-1, 1)
        ]
        low, high = np.minimum.reduce(ends), np.maximum.reduce(ends)
        if layer.sources[0] == layer.sources[1]:
            low = np.where(np.abs(a.middle) <= a.radius, 0.0, np.minimum(ends[0], ends[3]))
        return _BoundedValue.between(low, high, error)

    def _repacked(self, planned: PlannedLayer, value: _BoundedValue, level: int) -> _BoundedValue:
        """Return a value that is rotated, and masked if that takes a level."""
        scale = self.parameters.scales[level]
        added = HOPS * self.noise.switched(level, scale)
        if planned.layer.levels:
            terms = sqrt(planned.cost.plain_products)
            added += self.noise.rescaled(self.parameters.scales[level - 1])
            added += terms * value.range.magnitude * self.noise.encoded(scale)
        return value._replace(error=value.error + added)

    def _polynomial(
        self, layer: PolynomialLayer, value: _BoundedValue, level: int
    ) -> _BoundedValue:
        """Return the bounds of a polynomial on the interval of all elements."""
        error = float(np.max(value.error, initial=0.0))
        trace, result = self._trace(layer, self.parameters, level, error)
        self.inside[layer.name] = trace.largest
        low, high = float(result.values.min()), float(result.values.max())
        middle, radius = (low + high) / 2, (high - low) / 2 * trace.widening
        radius += ROUNDING * trace.largest
        shape, last = value.middle.shape, float(result.error.max())
        return _BoundedValue(np.full(shape, middle), np.full(shape, radius), np.full(shape, last))

    def _trace(
        self, layer: PolynomialLayer, parameters: Parameters, level: int, error: float = 0.0
    ) -> tuple[_PolynomialTrace, _TracedRegister]:
        """Run a polynomial on Chebyshev nodes of the interval of its argument."""
        evaluation, limits = layer.evaluation, self.values[layer.sources[0]].range
        points = 32 * max(8, evaluation.degree)
        nodes = np.cos(pi * (np.arange(points) + 0.5) / points)
        at = (limits.high + limits.low) / 2 + (limits.high - limits.low) / 2 * nodes
        # Ehlich and Zeller (1964): a polynomial of degree d that is at most 1 at K Chebyshev nodes
        # is at most 1 / cos(pi d / 2K) between them.
        widening = 1 / cos(pi * evaluation.degree / (2 * points)) * (1 + ROUNDING)
        trace = _PolynomialTrace(parameters, widening)
        first = _TracedRegister(at, np.full(points, error), level, parameters.scales[level])
        program = evaluation.program(parameters, level)
        return trace, execute(program, trace, [trace.record(first)])[0]

    # -- checks ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a modulus that is too small for a value, and an error that is too large."""
        for name in self.values:
            _, need, room = self._room(name, self.parameters)
            if need > room:
                raise self._refused(name)
        for name in self.plan.network.outputs:
            root = self.plan.network.views.get(name, name)
            error, size = self._error(root), self.values[root].range.magnitude
            if size > 0 and error > self.plan.tolerance * size:
                raise WeftError(
                    f"output {name}: an error of {error:.1e} is expected on values up to "
                    f"{size:.3g}, which exceeds the tolerance of {self.plan.tolerance:g} of them",
                    hint=self._precise(root),
                )

    def _error(self, name: str) -> float:
        """Return the expected error of a value."""
        value = self.values[name]
        rounding = FLOAT * (1 + value.range.magnitude)
        return DEVIATIONS * float(np.max(value.error, initial=0.0)) + rounding

    def _room(self, name: str, parameters: Parameters) -> tuple[int, float, float]:
        """Return the level of a value, the bits that it needs there, and those of the modulus.

        A value exists at several levels if it is dropped, or if a polynomial computes with it: the
        tightest is returned.
        """
        spare = parameters.depth - self.plan.depth
        level = self.plan.levels[name] + spare
        size = self.values[name].range.magnitude
        places = [(level, parameters.scales[level], size)]
        for planned in self.plan.layers:
            for source, at in zip(planned.layer.sources, planned.source_levels):
                if source == name and at > planned.start:  # it is dropped at its old scale
                    places.append((planned.start + spare, parameters.scales[at + spare], size))
            if planned.name == name:
                for at, largest in self.plaintexts.get(name, ()):  # SEAL keeps one more bit free
                    places.append((at + spare, parameters.scales[at + spare], 2 * largest))
            if planned.name == name and isinstance(planned.layer, PolynomialLayer):
                places += self._trace(planned.layer, parameters, planned.start + spare)[0].places
        rooms = [(at, _bits(scale, size), parameters.room(at)) for at, scale, size in places]
        return max(rooms, key=lambda each: each[1] - each[2])

    def _called(self, name: str) -> str:
        return f"{'input' if name in self.plan.ranges else 'layer'} {name}"

    def _refused(self, name: str) -> WeftError:
        level, need, room = self._room(name, self.parameters)
        size = self.values[name].range.magnitude
        encoded = (largest for _, largest in self.plaintexts.get(name, ()))
        inside = max([size, self.inside.get(name, 0.0), *encoded])
        on_the_way = "" if inside == size else f", and up to {inside:.6g} on the way,"
        return WeftError(
            f"{self._called(name)}: values up to {size:.6g}{on_the_way} need a modulus of "
            f"{need:.1f} bits, and level {level} has {room:.1f}",
            hint=self._what_fits(),
        )

    def _what_fits(self) -> str:
        """Return parameters of the same ring and security that hold all values, or other advice."""
        options = list[str]()
        given = self.parameters
        for bits in range(given.first_bits + 1, BITS[-1] + 1):
            if self._is_good(first_bits=bits, special_bits=max(bits, given.special_bits)):
                options.append(f"first_bits={bits}")
                break
        if given.depth + 3 <= MOST_PRIMES and self._is_good(depth=given.depth + 1):
            options.append(f"depth={given.depth + 1}")
        if not options:
            for bits in range(given.scale_bits - 1, BITS[0] - 1, -1):
                first = BITS[-1]
                if self._is_good(scale_bits=bits, first_bits=first, special_bits=first):
                    options.append(f"scale_bits={bits} with first_bits={first}")
                    break
        if options:
            return f"{options[0]} would fit" + "".join(f", or {each}" for each in options[1:])
        return (
            f"no parameters of N={given.ring} hold it: scale the weights down, declare smaller "
            "ranges, or fit polynomials on ranges that bound the values between layers"
        )

    def _precise(self, name: str) -> str:
        """Return advice on how to reduce the error."""
        given = self.parameters
        allowed = self.plan.tolerance * self.values[name].range.magnitude
        missing = log2(self._error(name) / allowed)
        bits = given.scale_bits + ceil(missing) if missing < BITS[-1] else BITS[-1]
        if bits + 2 <= BITS[-1] and self._is_good(
            scale_bits=bits, first_bits=min(60, bits + 10), special_bits=60
        ):
            return f"scale_bits={bits} with first_bits={min(60, bits + 10)} would fit"
        return (
            "tiny weights lose their digits, and large ones multiply the noise: scale them alike, "
            f"or plan with a tolerance above {self.plan.tolerance:g}"
        )

    def _is_good(self, **changes: int) -> bool:
        try:
            changed = replace(self.parameters, **changes)
        except WeftError:  # the ring does not hold such a modulus
            return False
        rooms = (self._room(name, changed) for name in self.values)
        return all(need <= room for _, need, room in rooms)

    def bounds(self) -> Bounds:
        """Return the bounds of all values."""
        return Bounds(
            {name: value.range for name, value in self.values.items()},
            frozenset(self.assumed),
            {name: self._error(name) for name in self.values},
            {name: self._room(name, self.parameters) for name in self.values},
        )


def _bits(scale: float, size: float) -> float:
    """Return the bits of a modulus that holds values of a size at a scale, and their signs."""
    return log2(scale) + log2(HEADROOM * size + 2.0**-4) + 1


def _largest(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))


def _terms(planned: PlannedLayer) -> int:
    """Return the largest number of plaintext products that are summed in one ciphertext."""
    assert planned.map is not None
    counts: dict[int, int] = {}
    for (out, _), key in planned.map.blocks.items():
        counts[out] = counts.get(out, 0) + len(planned.map.sets[key])
    return max(counts.values())


class _TracedRegister(NamedTuple):
    """A register of a polynomial: values at some points, their errors, its level and scale."""

    values: Floats
    error: Floats
    level: int
    scale: float


class _PolynomialTrace:
    """The slot operations of a polynomial on sampled values, with the error of every register."""

    def __init__(self, parameters: Parameters, widening: float) -> None:
        self.parameters, self.noise, self.widening = parameters, _Noise(parameters), widening
        self.places: list[tuple[int, float, float]] = []
        """The level, the scale and the size of everything that the modulus must hold."""
        self.largest = 0.0
        """The largest value of a register."""

    def record(self, register: _TracedRegister) -> _TracedRegister:
        """Add a register to the places."""
        size = self.widening * _largest(register.values)
        self.largest = max(self.largest, size)
        self.places.append((register.level, register.scale, size))
        return register

    def add(self, a: _TracedRegister, b: _TracedRegister) -> _TracedRegister:
        """Return the sum."""
        return self.record(a._replace(values=a.values + b.values, error=a.error + b.error))

    def sub(self, a: _TracedRegister, b: _TracedRegister) -> _TracedRegister:
        """Return the difference."""
        return self.record(a._replace(values=a.values - b.values, error=a.error + b.error))

    def negate(self, a: _TracedRegister) -> _TracedRegister:
        """Return the negative."""
        return self.record(a._replace(values=-a.values))

    def add_plain(self, a: _TracedRegister, values: Floats) -> _TracedRegister:
        """Return the sum with a constant."""
        size = _largest(values)
        self.places.append((a.level, a.scale, 2 * size))  # SEAL keeps one more bit free
        error = a.error + self.noise.encoded(a.scale, size)
        return self.record(a._replace(values=a.values + values, error=error))

    def mul_plain(
        self, a: _TracedRegister, values: Floats, scale: float | None = None
    ) -> _TracedRegister:
        """Return the product with a constant."""
        scale = self.parameters.scales[a.level] if scale is None else scale
        size = _largest(values)
        self.places.append((a.level, scale, 2 * size))
        error = size * a.error + np.abs(a.values) * self.noise.encoded(scale)
        return self.record(_TracedRegister(a.values * values, error, a.level, a.scale * scale))

    def mul(self, a: _TracedRegister, b: _TracedRegister) -> _TracedRegister:
        """Return the product."""
        error = np.abs(a.values) * b.error + np.abs(b.values) * a.error + a.error * b.error
        return self.record(_TracedRegister(a.values * b.values, error, a.level, a.scale * b.scale))

    def rotate(self, a: _TracedRegister, steps: int) -> _TracedRegister:
        """Return the register: the order of the points does not matter."""
        return self.record(a)

    def rescale(self, a: _TracedRegister) -> _TracedRegister:
        """Return the register one level lower."""
        scale = a.scale / self.parameters.primes[a.level]
        error = a.error + self.noise.rescaled(scale)
        return self.record(_TracedRegister(a.values, error, a.level - 1, scale))

    def drop(self, a: _TracedRegister, level: int) -> _TracedRegister:
        """Return the register at a lower level."""
        return self.record(a._replace(level=level))
