"""The attributes of an operation under Weft's conventions: defaults filled in, regions named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from weft.interop.comparator import comparison
from weft.lang import Value
from weft.values import FrozenMap, Point

_MONOIDS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}
_BITS = ("and", "or")
_REDUCING = frozenset(
    ["reduce", "reduce_window", "all_reduce", "reduce_scatter", "scatter", "select_and_scatter"]
)
_SHAPED = frozenset(
    [
        "all_gather",
        "all_to_all",
        "bitcast_convert",
        "broadcast_in_dim",
        "constant",
        "custom_call",
        "dynamic_broadcast_in_dim",
        "dynamic_conv",
        "dynamic_gather",
        "dynamic_iota",
        "dynamic_pad",
        "dynamic_reshape",
        "fft",
        "gather",
        "iota",
        "real_dynamic_slice",
        "reduce_scatter",
        "reshape",
        "rng",
        "rng_bit_generator",
        "scatter",
    ]
)
"""The operations whose result's shape does not follow from operands and other attributes."""

_TYPED = frozenset(["constant", "convert", "iota"])
"""Those whose result's dtype does not follow from their operands."""

_ALL_SHAPED = frozenset(["custom_call", "manual_computation"])
"""Those with several results of which that is true."""

_DIRECTIONS = ("NONE", "FORWARD", "BACKWARD", "BOTH")
"""Where a barrier lets axes pass, in the order of its numbers."""

_DROPPED = frozenset(["sharding", "out_sharding", "out_shardings", "callee", "decomposition"])
_KEPT = "sdy.sharding_rule"


def completed(
    op: Any,
    name: str,
    attributes: Mapping[str, Any],
    shapes: Sequence[Point],
    results: Sequence[Value],
) -> FrozenMap[str, Any]:
    """What the application says: attributes in one spelling, and what else a planner needs."""
    said = _spelled(attributes)
    if name in _SHAPED:
        said["result_shape"] = results[0].shape if results else ()
    if name in _TYPED:
        said["dtype"] = results[0].dtype
    if name in _ALL_SHAPED:
        said["result_shapes"] = tuple(value.shape for value in results)
    if said.get("call_target_name") == "X64Combine" and _feeds_a_generator(op):
        said["is_state"] = True
    if name in _REDUCING:
        said |= _combination(op.regions[len(op.regions) - 1].blocks[0])
    match name:
        case "convolution":
            said = _window(len(said["input_spatial_dimensions"]), "lhs", "rhs", "dilation") | said
        case "reduce_window":
            said = _window(len(shapes[0]), "base", "window", "dilations") | said
        case "propagation_barrier":
            said["allowed_direction"] = _DIRECTIONS[said["allowed_direction"]]
        case "rng_bit_generator":
            said["result_shape"] = results[1].shape  # of the bits; the other is the state
        case "sort":
            said["dimension"] = said.get("dimension", -1) % max(1, len(shapes[0]))
            said["comparison_direction"] = comparison(op.regions[0].blocks[0])
        case "select_and_scatter":
            said["comparison_direction"] = comparison(op.regions[0].blocks[0])
    return FrozenMap(said.items())


def _spelled(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the text says that counts, and each number of several under its own name."""
    said: dict[str, Any] = {}
    for key, value in attributes.items():
        if isinstance(value, FrozenMap) and key.endswith("dimension_numbers"):
            said.update(value)
        elif key == _KEPT or not ("." in key or key in _DROPPED):
            said[key] = value
    return said


def _feeds_a_generator(op: Any) -> bool:
    users = (use.owner.name for result in op.results for use in result.uses)
    return "stablehlo.rng_bit_generator" in users


def _window(ndim: int, inner: str, outer: str, noun: str) -> dict[str, Point]:
    """What a window is where nothing is said."""
    ones = (1,) * ndim
    return {
        "window_strides": ones,
        "padding": (0, 0) * ndim,
        f"{inner}_{noun}": ones,
        f"{outer}_{noun}": ones,
    }


def _combination(block: Any) -> dict[str, str]:
    """The monoid that a region is: for each array the same operation on its two arguments.

    A region that gives its last arguments back replaces; one that is a monoid on bits says so; any
    other is custom.
    """
    last = block.operations[len(block.operations) - 1]
    arguments, returned = list(block.arguments), list(last.operands)
    half = len(arguments) // 2
    if returned == arguments[half:]:
        return {"region": "replace"}
    pairs = zip(returned, arguments[:half], arguments[half:])
    names = {_operation_on(value, [one, two]) for value, one, two in pairs}
    if len(names) != 1 or not names <= _MONOIDS.keys():
        return {"monoid": "sum", "region": "custom"}
    monoid = _MONOIDS[names.pop()]
    logical = str(arguments[0].type.element_type) == "i1"
    return {"monoid": monoid} | ({"region": "bitwise"} if monoid in _BITS and not logical else {})


def _operation_on(value: Any, arguments: list[Any]) -> str:
    """The name of the operation that makes a value of these arguments and nothing else."""
    made = None if isinstance(value, ir.BlockArgument) else value.owner
    if made is None or list(made.operands) not in (arguments, arguments[::-1]):
        return ""
    return str(made.name)
