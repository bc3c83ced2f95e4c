"""`plan`: packings, levels, splits and rotation keys for a whole network, with exact counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf, isfinite, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from weft.ckks.activations import values_outside
from weft.ckks.bsgs import Split, split
from weft.ckks.calibrate import OperationTimes
from weft.ckks.choose_packings import choose_packings
from weft.ckks.linear import LinearMap, joined, linear
from weft.ckks.lower import Repacking, predict, reshard
from weft.ckks.network import (
    BEFORE,
    Layer,
    LinearLayer,
    Network,
    PairLayer,
    PolynomialLayer,
    RepackingLayer,
    ShiftLayer,
    encrypted_inputs,
)
from weft.ckks.packing import Packing
from weft.ckks.parameters import RINGS, Parameters
from weft.ckks.slot_program import OperationCounts
from weft.errors import WeftError
from weft.lang import Graph
from weft.values import as_count, counted

KEY_LIMITS = (None, 64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2)
"""Limits of the keys of one layer, tried in turn until those of all layers are few enough."""
TOLERANCE = 1e-3
"""Default of the largest accepted error of an output, relative to its range."""
LISTED = 8
"""Parameters in the clear that a plan's first line names; the rest are counted."""
COUNTED = (
    *("rotations", "plain_products", "products", "rescales", "additions", "plain_additions"),
    "levels",
)
"""The counts of a plan's description."""
UNKNOWN = "-"
"""Shown for seconds at a level that was not measured."""

Limits: TypeAlias = float | Sequence[float]
"""A range as a caller declares it: (low, high), or one number r for (-r, r)."""


# -- ranges of encrypted inputs -------------------------------------------------------------------


class Range(NamedTuple):
    """A closed interval of real numbers.

    >>> print(Range(-1, 1), Range(0, 2.5).magnitude)
    [-1, 1] 2.5
    """

    low: float
    high: float

    @property
    def magnitude(self) -> float:
        """The largest absolute value in it."""
        return max(abs(self.low), abs(self.high))

    @classmethod
    def of(cls, limits: Limits, name: str) -> Range:
        """Return the range that a caller declares for an input.

        >>> Range.of(2, "x"), Range.of((0, 1), "x")
        (Range(low=-2.0, high=2.0), Range(low=0.0, high=1.0))
        """
        try:
            array = np.asarray(limits, np.float64)
            low, high = (-array, array) if array.ndim == 0 else array
            declared = cls(float(low), float(high))
        except (TypeError, ValueError):
            declared = cls(1.0, -1.0)
        if not all(map(isfinite, declared)) or declared.low > declared.high:
            raise WeftError(
                f"the range of {name} is {limits!r}: expected r for [-r, r], or (low, high)"
            )
        return declared

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


DEFAULT_RANGE = Range(-1.0, 1.0)
"""The range of an encrypted input whose range is not declared."""


def declared_ranges(
    encrypted: Sequence[str], ranges: Limits | Mapping[str, Limits] | None
) -> dict[str, Range]:
    """Return the range of each encrypted input: as declared, or [-1, 1].

    >>> declared_ranges(["x", "y"], {"y": (0, 255)})["y"]
    Range(low=0.0, high=255.0)
    """
    if ranges is None:
        ranges = {}
    if not isinstance(ranges, Mapping):
        return {name: Range.of(ranges, name) for name in encrypted}
    for name in ranges:
        if name not in encrypted:
            raise WeftError(
                f"a range is declared for {name}, which is not encrypted",
                hint=f"encrypted: {', '.join(encrypted)}",
            )
    return {
        name: Range.of(ranges[name], name) if name in ranges else DEFAULT_RANGE
        for name in encrypted
    }


def check_range(name: str, values: ArrayLike, limits: Range) -> None:
    """Refuse values outside of the declared range of an input.

    >>> check_range("x", [0.5, 3.0], Range(-1, 1))
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: input x: the value 3 is outside of its declared range [-1, 1]
    hint: 1 of 2 values are outside; scale the input, or plan with ranges={"x": (-1, 3)}
    """
    outside = values_outside(values, limits.low, limits.high)
    if outside is None:
        return
    if not isfinite(outside.worst):
        raise WeftError(f"input {name}: values must be finite numbers; one is nan or infinite")
    raise WeftError(
        f"input {name}: the value {outside.worst:g} is outside of its declared range {limits}",
        hint=f"{outside.summary}; scale the input, or plan with "
        f'ranges={{"{name}": ({outside.low:g}, {outside.high:g})}}',
    )


# -- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PlannedLayer:
    """A layer with its packings, levels, split and operation counts."""

    layer: Layer
    sources: tuple[Packing, ...]
    target: Packing
    source_levels: tuple[int, ...]
    """The levels of its operands."""
    level: int
    """The level of its result."""
    cost: OperationCounts
    map: LinearMap | None = None
    split: Split | None = None
    repacking: Repacking | None = None

    @property
    def name(self) -> str:
        """The name of its result."""
        return self.layer.name

    @property
    def start(self) -> int:
        """The level that it starts at: operands at higher levels are lowered to it first."""
        return self.level + self.layer.levels

    @property
    def inputs(self) -> int:
        """The number of ciphertexts of its operands."""
        return sum(source.ciphertexts for source in self.sources)

    @property
    def outputs(self) -> int:
        """The number of ciphertexts of its result."""
        return self.target.ciphertexts

    @property
    def ciphertext_bytes(self) -> int:
        """The bytes of the ciphertexts of its operands and its result, at their levels."""
        sizes = [(each.ciphertexts, at) for each, at in zip(self.sources, self.source_levels)]
        sizes.append((self.outputs, self.level))
        return sum(count * (level + 1) * 32 * self.target.slots for count, level in sizes)

    @property
    def mesh(self) -> str:
        """The ciphertexts of a linear layer as a mesh: x outputs, y inputs, z blocks of rows.

        The index space of a convolution is cut by x along features, by y along channels and by z
        along rows.
        """
        if not isinstance(self.layer, LinearLayer):
            return ""
        z = max(_row_blocks(packing) for packing in (*self.sources, self.target))
        return f"x={-(-self.outputs // z)} y={-(-self.inputs // z)} z={z}"

    def describe(self, times: OperationTimes | None) -> dict[str, Any]:
        """Return the layer as plain data."""
        return {
            "name": self.name,
            "operator": self.layer.operator,
            "mesh": self.mesh,
            "packing": str(self.target),
            "start": max(self.source_levels),
            "level": self.level,
            **_describe_counts(self.cost),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "bytes": self.ciphertext_bytes,
            "seconds": self.seconds(times),
        }

    def seconds(self, times: OperationTimes | None) -> float | None:
        """Return the expected seconds; None if they are unknown at its level."""
        if times is None or self.start > times.depth:
            return None
        return times.seconds(self.cost, self.start)


def _describe_counts(cost: OperationCounts) -> dict[str, Any]:
    return {**{name: getattr(cost, name) for name in COUNTED}, "keys": sorted(cost.keys)}


def _row_blocks(packing: Packing) -> int:
    """Return the number of blocks that the rows of a packing are cut into."""
    if len(packing.shape) < 2:
        return 1
    first = sum(map(len, packing.radices[:-2]))
    last = first + len(packing.radices[-2])  # a dimension of size 1 has no digits
    return prod(packing.spec.grid[first:last])


@dataclass(frozen=True, eq=False)
class EncryptedPlan:
    """A network with its packings, levels, splits and keys; `print` shows it as a table."""

    network: Network
    slots: int
    ranges: Mapping[str, Range]
    """The declared range of each encrypted input; values outside are refused."""
    packings: Mapping[str, Packing]
    levels: Mapping[str, int]
    """The level of every value."""
    layers: tuple[PlannedLayer, ...]
    times: OperationTimes | None = None
    tolerance: float = TOLERANCE
    """The largest accepted error of an output, relative to its largest value."""
    declared: bool = True
    """Whether the caller declared a range of every encrypted input."""

    @property
    def encrypted(self) -> tuple[str, ...]:
        """The inputs that are encrypted."""
        return self.network.inputs

    @property
    def clear(self) -> tuple[str, ...]:
        """The inputs that are not encrypted: whoever runs the plan sees them."""
        return self.network.clear

    @property
    def headline(self) -> str:
        """The first line of the plan: which inputs are encrypted, and which are not."""
        encrypted = ", ".join(f"{name} in {limits}" for name, limits in self.ranges.items())
        if not self.declared:
            encrypted += " (the default range)"
        parameters = self.network.graph.parameters
        weights = [name for name in self.clear if name in parameters]
        data = ", ".join(name for name in self.clear if name not in parameters)
        parts = [data] if data else []
        if weights:
            more = len(weights) - LISTED
            shown = ", ".join(weights[:LISTED]) + (f" and {more} more" if more > 0 else "")
            kind = "parameter" if len(weights) == 1 else counted(len(weights), "parameter")
            parts.append(f"the {kind} {shown}")
        return f"encrypted: {encrypted}; in the clear: {', and '.join(parts) or 'nothing'}"

    @property
    def depth(self) -> int:
        """The number of levels from the inputs to the outputs."""
        return depth_of(self.network, self.levels)

    @cached_property
    def cost(self) -> OperationCounts:
        """The operations of all layers."""
        total = reduce(
            OperationCounts.__add__, (each.cost for each in self.layers), OperationCounts()
        )
        return replace(total, levels=self.depth)

    @property
    def linear(self) -> tuple[PlannedLayer, ...]:
        """The linear layers."""
        return tuple(each for each in self.layers if isinstance(each.layer, LinearLayer))

    @property
    def needs_products(self) -> bool:
        """Whether there are products of ciphertexts, which need a key of their own."""
        return self.cost.products > 0

    def seconds(self, times: OperationTimes | None = None) -> float:
        """Return the expected seconds on one core, by measured times."""
        known = times or self.times
        if known is None:
            raise WeftError("no operation times are known", hint="measure: weft.ckks.calibrate")
        return sum((known.seconds(each.cost, each.start) for each in self.layers), 0.0)

    def parameters(
        self, security: int | None = 128, *, depth: int | None = None, **bits: int
    ) -> Parameters:
        """Return parameters of these slots and this depth, or of a greater one.

        `bits` are `scale_bits`, `first_bits` and `special_bits`. Whether the modulus holds the
        values depends on the weights: see `check_bounds`.
        """
        levels = self.depth if depth is None else depth
        return Parameters(2 * self.slots, levels, security=security, **bits)

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that do not fit, before keys are made."""
        if parameters.slots != self.slots:
            raise WeftError(
                f"the plan is for {self.slots} slots and N={parameters.ring} has "
                f"{parameters.slots}",
                hint=f"plan again with slots={parameters.slots}, or take N={2 * self.slots}",
            )
        if parameters.depth < self.depth:
            short = self.depth - parameters.depth
            first = next(each for each in self.layers if each.level < short)
            raise WeftError(
                f"layer {first.name}: no level is left for it; the network takes "
                f"{counted(self.depth, 'level')} and N={parameters.ring} is given "
                f"{parameters.depth}",
                hint=_deeper(self.depth, self.slots, parameters),
            )

    def key_bytes(self, parameters: Parameters) -> int:
        """Return the bytes of all rotation keys, and of the one for products."""
        return (len(self.cost.keys) + self.needs_products) * parameters.rotation_key_bytes

    def describe(self) -> dict[str, Any]:
        """Return the plan as plain data: the headline, the layers and the total."""
        return {
            "headline": self.headline,
            "encrypted": {name: list(limits) for name, limits in self.ranges.items()},
            "in_the_clear": list(self.clear),
            "slots": self.slots,
            "depth": self.depth,
            "layers": [layer.describe(self.times) for layer in self.layers],
            "total": {
                **_describe_counts(self.cost),
                "inputs": self._ciphertexts(self.network.inputs),
                "outputs": self._ciphertexts(self.network.outputs),
            },
        }

    def _ciphertexts(self, names: Iterable[str]) -> int:
        roots = [self.network.views.get(name, name) for name in names]
        return sum(self.packings[root].ciphertexts for root in roots)

    def __str__(self) -> str:
        return _table(self)


def _deeper(depth: int, slots: int, parameters: Parameters) -> str:
    try:
        fits = Parameters.fitting(depth, slots, parameters.security or 128, parameters.scale_bits)
        return f"N={fits.ring} with depth={depth} would fit at {fits.security}-bit security"
    except WeftError:
        return f"no ring of the standard holds depth {depth}: cut the network, or bootstrap"


def _table(plan: EncryptedPlan) -> str:
    """Return the headline, then the layers and their counts; seconds where times are known."""
    times, cost = plan.times, plan.cost
    heads = ("layer", "operator", "mesh", "ciphertexts", "rotations", "products", "levels")
    rows = [[*heads, "keys", "MiB"]]
    for each in plan.layers:
        row = [each.name, each.layer.operator, each.mesh, f"{each.inputs} > {each.outputs}"]
        row += [f"{each.cost.rotations:,}", _products(each.cost)]
        row += [f"{max(each.source_levels)} > {each.level}", str(len(each.cost.keys))]
        rows.append([*row, f"{each.ciphertext_bytes / 2**20:,.1f}"])
    total = ["total", "", "", "", f"{cost.rotations:,}", _products(cost), str(plan.depth)]
    rows.append([*total, str(len(cost.keys)), ""])
    if times is not None:
        seconds = [each.seconds(times) for each in plan.layers]
        shown = [UNKNOWN if each is None else f"{each:,.2f}" for each in seconds]
        known = [each for each in seconds if each is not None]
        whole = f"{sum(known):,.2f}" if len(known) == len(seconds) else UNKNOWN
        rows = [[*row, cell] for row, cell in zip(rows, ["seconds", *shown, whole])]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join(
            f"{cell:{width}}" if place < 3 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    rule = "-" * len(lines[0])
    return "\n".join([plan.headline, "", lines[0], rule, *lines[1:-1], rule, lines[-1]])


def _products(cost: OperationCounts) -> str:
    """Return the products with plaintexts, and those of ciphertexts."""
    return f"{cost.plain_products:,}" + (f" + {cost.products:,}" if cost.products else "")


# -- planning -------------------------------------------------------------------------------------


def plan(
    graph: Graph,
    slots: int,
    encrypted: str | Iterable[str] | None = None,
    *,
    ranges: Limits | Mapping[str, Limits] | None = None,
    keys: int | None = None,
    memory: int | None = None,
    times: OperationTimes | None = None,
    packed: Mapping[str, Packing] | None = None,
    tolerance: float = TOLERANCE,
) -> EncryptedPlan:
    """Plan a network on ciphertexts with a number of slots.

    `encrypted` names the encrypted inputs (default: the only input that is not one of the graph's
    `parameters`). `ranges` declares where the elements of encrypted inputs lie: a number r for
    [-r, r], a pair (low, high), or either by name (default: [-1, 1]). `keys` is the largest number
    of rotation keys, `memory` the largest number of bytes for them (default: unlimited). Operation
    `times` are minimised if given, otherwise rotations. `packed` fixes the packings of some values.
    A run is refused if the expected error of an output exceeds `tolerance`, relative to the largest
    value that the output can have.

    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w), np.ones((1, 64)), np.ones((64, 64)))
    >>> planned = plan(graph, slots=1024, encrypted="x")
    >>> planned.cost.rotations
    14
    >>> print(planned.headline)
    encrypted: x in [-1, 1] (the default range); in the clear: w
    """
    check_slots(slots)
    if not 0 < tolerance < inf:
        raise WeftError(f"tolerance is {tolerance}; it must be above 0")
    names = encrypted_inputs(graph, encrypted)
    limits = declared_ranges(names, ranges)
    declared = ranges is not None and (
        not isinstance(ranges, Mapping) or all(name in ranges for name in names)
    )
    network = Network.of(graph, names).folded()
    packings = choose_packings(network, slots, times, packed or {})
    network, packings = _with_repackings(network, packings)
    levels = value_levels(network)
    if memory is not None:
        depth = depth_of(network, levels)
        room = memory // Parameters(2 * slots, depth, security=None).rotation_key_bytes
        keys = room if keys is None else min(keys, room)
    layers = _within_keys(network, packings, levels, keys)
    return EncryptedPlan(
        network, slots, limits, packings, levels, layers, times, tolerance, declared
    )


def check_slots(slots: int) -> None:
    """Refuse a number of slots that no ring has.

    >>> check_slots(1000)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: slots=1000 is not a power of two: a ring N has N/2 slots
    hint: slots=512 or slots=1024 would fit
    """
    count, least, most = as_count(slots, "slots"), RINGS[0] // 2, RINGS[-1] // 2
    if count > most:
        raise WeftError(
            f"slots={count} is more than the {most} slots of the largest ring, N={RINGS[-1]}",
            hint=f"slots={most} or less: larger tensors take several ciphertexts",
        )
    if count < least:
        raise WeftError(
            f"slots={count} is less than the {least} slots of the smallest ring, N={RINGS[0]}",
            hint=f"slots={least} or more; rings that are secure have {1024 // 2} or more",
        )
    if count & (count - 1):
        below = 1 << (count.bit_length() - 1)
        raise WeftError(
            f"slots={count} is not a power of two: a ring N has N/2 slots",
            hint=f"slots={below} or slots={2 * below} would fit",
        )


def value_levels(network: Network) -> dict[str, int]:
    """Return the level of every value: as low as its readers allow, since low levels are cheap.

    Outputs are at level 0. A value that is read at several levels is computed at the highest.
    """
    names = (*network.inputs, *(layer.name for layer in network.layers))
    levels = dict.fromkeys(names, 0)
    for layer in reversed(network.layers):
        for source in layer.sources:
            levels[source] = max(levels[source], levels[layer.name] + layer.levels)
    return levels


def depth_of(network: Network, levels: Mapping[str, int]) -> int:
    """Return the highest level of an input."""
    return max((levels[name] for name in network.inputs), default=0)


def _with_repackings(
    network: Network, packings: dict[str, Packing]
) -> tuple[Network, dict[str, Packing]]:
    """Add a repacking after each polynomial whose result has another packing."""
    levels = dict[str, int]()
    for layer in network.layers:
        if (
            isinstance(layer, PolynomialLayer)
            and packings[layer.name] != packings[layer.sources[0]]
        ):
            before = packings[layer.sources[0]]
            levels[layer.name] = reshard(before, packings[layer.name]).cost.levels
            packings[layer.name + BEFORE] = before
    return network.with_repackings(levels), packings


def _within_keys(
    network: Network, packings: Mapping[str, Packing], levels: Mapping[str, int], keys: int | None
) -> tuple[PlannedLayer, ...]:
    """Return all layers, with few enough rotation keys in all."""
    fewest = inf
    for limit in KEY_LIMITS if keys is not None else (None,):
        layers = tuple(_planned_layer(each, packings, levels, limit) for each in network.layers)
        used = len(frozenset().union(*(each.cost.keys for each in layers)))
        if keys is None or used <= keys:
            return layers
        fewest = min(fewest, used)
    raise WeftError(f"{fewest} rotation keys are the fewest that were found, {keys} are allowed")


def _planned_layer(
    layer: Layer, packings: Mapping[str, Packing], levels: Mapping[str, int], keys: int | None
) -> PlannedLayer:
    sources = tuple(packings[name] for name in layer.sources)
    target, level = packings[layer.name], levels[layer.name]
    start = level + layer.levels
    planned = PlannedLayer(
        layer,
        sources,
        target,
        tuple(levels[name] for name in layer.sources),
        level,
        _slotwise(layer),
    )
    higher = [
        (source.ciphertexts, at - start)
        for source, at in zip(sources, planned.source_levels)
        if at > start
    ]
    if isinstance(layer, LinearLayer):
        maps = [
            linear(layer.signature, source, target, place, layer.weight)
            for source, place in zip(sources, layer.places)
        ]
        joint = maps[0] if len(maps) == 1 else joined(maps)
        diagonal_split = split(joint, keys)
        has_bias = bool(layer.bias or layer.shift)
        cost = predict(joint, diagonal_split, has_bias, drops=sum(count for count, _ in higher))
        return replace(planned, cost=cost, map=joint, split=diagonal_split)
    if isinstance(layer, RepackingLayer):
        planned = replace(planned, repacking=reshard(sources[0], target, keys))
    cost = planned.cost.repeated(target.ciphertexts)
    if planned.repacking is not None:
        cost = planned.repacking.cost
    # Operands at higher levels are adjusted: a drop if they are far, a plain product, a rescale.
    adjusted = sum(count for count, _ in higher)
    far = sum(count for count, above in higher if above > 1)
    cost = cost + OperationCounts(plain_products=adjusted, rescales=adjusted, drops=far)
    return replace(planned, cost=replace(cost, levels=layer.levels))


def _slotwise(layer: Layer) -> OperationCounts:
    """Return the operations on one ciphertext of a layer that works slot by slot."""
    match layer:
        case PolynomialLayer():
            return layer.evaluation.counts
        case PairLayer(operator="multiply"):
            return OperationCounts(products=1, rescales=1)
        case ShiftLayer():
            return OperationCounts(
                additions=int(layer.sign < 0), plain_additions=int(bool(layer.plain))
            )
    return OperationCounts(additions=1)
