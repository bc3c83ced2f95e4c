"""`plan`: packings, levels, baby and giant steps and keys for a whole network, with exact costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import inf

from weft.ckks.bsgs import Split, split
from weft.ckks.calibrate import OperationTimes
from weft.ckks.choice import choose_packings
from weft.ckks.cost import Cost, predict
from weft.ckks.inputs import Limits, Range, declared_ranges, encrypted_inputs, headline
from weft.ckks.levels import Levels
from weft.ckks.linear import LinearMap, joined, linear
from weft.ckks.network import BEFORE, Layer, Linear, Move, Network, Power, Product, Shift
from weft.ckks.packing import Packing
from weft.ckks.parameters import RINGS, Parameters
from weft.ckks.reshard import Reshard, reshard
from weft.ckks.table import table
from weft.errors import WeftError
from weft.lang import Graph
from weft.values import as_count, counted

FEWER = (None, 64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2)
"""Keys of one layer that are tried in turn, until those of all layers are few enough."""


TOLERANCE = 1e-3
"""The error of an output that a plan accepts unless another is given, in parts of its range."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A layer with all that was chosen for it."""

    layer: Layer
    sources: tuple[Packing, ...]
    target: Packing
    given: tuple[int, ...]
    """The levels that its operands are made at."""
    level: int
    """That of its result."""
    cost: Cost
    map: LinearMap | None = None
    split: Split | None = None
    move: Reshard | None = None

    @property
    def name(self) -> str:
        """The value that it makes."""
        return self.layer.name

    @property
    def start(self) -> int:
        """The level that it starts at: operands that are higher are lowered first."""
        return self.level + self.layer.levels


@dataclass(frozen=True, eq=False)
class Plan:
    """A network with its packings, levels, steps and keys; `print` it for a table."""

    network: Network
    slots: int
    ranges: Mapping[str, Range]
    """The declared range of each encrypted input; values outside are refused."""
    packings: Mapping[str, Packing]
    levels: Levels
    layers: tuple[Placed, ...]
    times: OperationTimes | None = None
    tolerance: float = TOLERANCE
    """The largest error of an output that is expected, in parts of its largest value."""
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
        return headline(self.ranges, self.clear, self.network.graph.parameters, self.declared)

    @property
    def depth(self) -> int:
        """The levels that it takes from the input to the output."""
        return self.levels.depth

    @cached_property
    def cost(self) -> Cost:
        """What all layers take."""
        total = reduce(Cost.__add__, (placed.cost for placed in self.layers), Cost())
        return replace(total, levels=self.depth)

    @property
    def linear(self) -> tuple[Placed, ...]:
        """The linear layers."""
        return tuple(placed for placed in self.layers if isinstance(placed.layer, Linear))

    @property
    def needs_products(self) -> bool:
        """Whether there are products of ciphertexts, which need a key of their own."""
        return self.cost.products > 0

    def seconds(self, times: OperationTimes | None = None) -> float:
        """What it should take by measured times."""
        known = times or self.times
        if known is None:
            raise WeftError("no operation times are known", hint="measure: weft.ckks.calibrate")
        return sum((known.seconds(each.cost, each.start) for each in self.layers), 0.0)

    def parameters(
        self, security: int | None = 128, *, depth: int | None = None, **bits: int
    ) -> Parameters:
        """Return parameters of these slots and this depth, or of a greater one that is given.

        `bits` are `scale_bits`, `first_bits` and `special_bits`. Whether the modulus holds the
        values depends on the weights: `check_bounds` says.
        """
        levels = self.depth if depth is None else depth
        return Parameters(2 * self.slots, levels, security=security, **bits)

    def check(self, parameters: Parameters) -> None:
        """Refuse parameters that do not fit, before there are keys."""
        if parameters.slots != self.slots:
            raise WeftError(
                f"the plan is for {self.slots} slots and N={parameters.ring} has "
                f"{parameters.slots}",
                hint=f"plan again with slots={parameters.slots}, or take N={2 * self.slots}",
            )
        if parameters.depth < self.depth:
            short = self.depth - parameters.depth
            first = next(p for p in self.layers if p.level < short)
            raise WeftError(
                f"layer {first.name}: no level is left for it; the network takes "
                f"{counted(self.depth, 'level')} and N={parameters.ring} is given "
                f"{parameters.depth}",
                hint=_deeper(self.depth, self.slots, parameters),
            )

    def key_bytes(self, parameters: Parameters) -> int:
        """The bytes of all rotation keys, and of the one for products."""
        keys = len(self.cost.keys) * parameters.rotation_key_bytes
        return keys + self.needs_products * parameters.relinearisation_key_bytes

    def __str__(self) -> str:
        return table(self)


def _deeper(depth: int, slots: int, given: Parameters) -> str:
    try:
        fits = Parameters.fitting(depth, slots, given.security or 128, given.scale_bits)
        return f"N={fits.ring} with depth={depth} would fit at {fits.security}-bit security"
    except WeftError:
        return f"no ring of the standard holds depth {depth}: cut the network, or bootstrap"


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
) -> Plan:
    """Choose how a network runs on ciphertexts of so many slots.

    `encrypted` names the inputs that are encrypted. It may be left out where exactly one input is
    not one of the graph's `parameters`. `ranges` declares where the elements of encrypted inputs
    lie: a number r for [-r, r], a pair (low, high), or either by name; the default is [-1, 1].
    At most so many rotation `keys` are used, or so many bytes of `memory` for them, if given. By
    operation `times` seconds are minimised, otherwise rotations. Values may be `packed` by hand.
    A run is refused if the noise that is expected in an output exceeds `tolerance`, in parts of the
    largest value that the output can have.

    >>> import numpy as np
    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w), np.ones((1, 64)), np.ones((64, 64)))
    >>> made = plan(graph, slots=1024, encrypted="x")
    >>> made.cost.rotations
    14
    >>> print(made.headline)
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
    found = choose_packings(network, slots, times, packed or {})
    network, found = _with_moves(network, found)
    levels = Levels.of(network)
    if memory is not None:
        room = memory // Parameters(2 * slots, levels.depth, security=None).rotation_key_bytes
        keys = room if keys is None else min(keys, room)
    placed = _fewer(network, found, levels, keys)
    return Plan(network, slots, limits, found, levels, tuple(placed), times, tolerance, declared)


def check_slots(slots: int) -> None:
    """Refuse a number of slots that no ring has.

    >>> check_slots(1000)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: slots=1000 is no power of two: a ring N has N/2 slots
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
            f"slots={count} is no power of two: a ring N has N/2 slots",
            hint=f"slots={below} or slots={2 * below} would fit",
        )


def _with_moves(network: Network, found: dict[str, Packing]) -> tuple[Network, dict[str, Packing]]:
    """The network with a move behind each polynomial whose result is packed otherwise."""
    levels = dict[str, int]()
    for layer in network.layers:
        if isinstance(layer, Power) and found[layer.name] != found[layer.sources[0]]:
            before = found[layer.sources[0]]
            levels[layer.name] = reshard(before, found[layer.name]).cost.levels
            found[layer.name + BEFORE] = before
    return network.moved(levels), found


def _fewer(
    network: Network, found: Mapping[str, Packing], levels: Levels, keys: int | None
) -> list[Placed]:
    """All layers, with few enough keys in all."""
    fewest = inf
    for each in FEWER if keys is not None else (None,):
        placed = [_placed(layer, found, levels, each) for layer in network.layers]
        used = len(frozenset().union(*(each.cost.keys for each in placed)))
        if keys is None or used <= keys:
            return placed
        fewest = min(fewest, used)
    raise WeftError(f"{fewest} rotation keys are the fewest that were found, {keys} are allowed")


def _placed(layer: Layer, found: Mapping[str, Packing], levels: Levels, keys: int | None) -> Placed:
    sources = tuple(found[name] for name in layer.sources)
    target, level = found[layer.name], levels.at[layer.name]
    given = tuple(levels.at[name] for name in layer.sources)
    if isinstance(layer, Linear):
        maps = [
            linear(layer.signature, source, target, place, layer.weight)
            for source, place in zip(sources, layer.places)
        ]
        whole = maps[0] if len(maps) == 1 else joined(maps)
        parted = split(whole, keys)
        has_bias = bool(layer.bias or layer.shift)
        cost = predict(whole, parted, [has_bias])
        return Placed(layer, sources, target, given, level, cost, whole, parted)
    move = reshard(sources[0], target, keys) if isinstance(layer, Move) else None
    if move is not None:
        cost = move.cost
    else:
        count = target.ciphertexts
        cost = replace(_cost(layer, count), inputs=len(sources) * count, outputs=count)
        cost = replace(cost, levels=layer.levels)
    # What is read at a lower level than it has is brought there: a plain product and a rescale.
    high = [source for source, at in zip(sources, given) if at > level + layer.levels]
    lowered = sum(source.ciphertexts for source in high)
    products, rescales = cost.plain_products + lowered, cost.rescales + lowered
    cost = replace(cost, plain_products=products, rescales=rescales)
    return Placed(layer, sources, target, given, level, cost, move=move)


def _cost(layer: Layer, count: int) -> Cost:
    """What a layer that works slot by slot takes on so many ciphertexts."""
    if isinstance(layer, Power):
        counts = layer.evaluation.counts
        return Cost(
            plain_products=count * counts.plain_products,
            products=count * counts.products,
            rescales=count * counts.rescales,
            additions=count * counts.additions,
            plain_additions=count * counts.plain_additions,
        )
    if isinstance(layer, Product):
        return Cost(products=count, rescales=count)
    if isinstance(layer, Shift):
        negated = count * (layer.sign < 0)
        return Cost(additions=negated, plain_additions=count * bool(layer.plain))
    return Cost(additions=count)
