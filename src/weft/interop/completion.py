"""The attributes of an operation under Weft's conventions: defaults filled in, regions named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    said: dict[str, Any] = {}
    for key, value in attributes.items():
        if isinstance(value, FrozenMap) and key.endswith("dimension_numbers"):
            said.update(value)
        elif key == _KEPT or not ("." in key or key in _DROPPED):
            said[key] = value
    if name in _SHAPED:
        said["result_shape"] = results[0].shape if results else ()
    if name in _ALL_SHAPED:
        said["result_shapes"] = tuple(value.shape for value in results)
    if name in _REDUCING:
        said |= _combination(op.regions[len(op.regions) - 1].blocks[0])
    match name:
        case "convolution":
            said = _window(len(said["input_spatial_dimensions"]), "lhs", "rhs", "dilation") | said
        case "reduce_window":
            said = _window(len(shapes[0]), "base", "window", "dilations") | said
        case "propagation_barrier":
            said["allowed_direction"] = _DIRECTIONS[said["allowed_direction"]]
        case "sort":
            said["dimension"] = said.get("dimension", -1) % max(1, len(shapes[0]))
        case "custom_call" if said["call_target_name"] == "X64Combine" and _feeds_a_generator(op):
            said["is_state"] = True
        case "triangular_solve":
            said["transpose_a"] = said["transpose_a"] not in ("NO_TRANSPOSE", False)
    return FrozenMap(said.items())


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
    """The monoid that a region is: one operation on its two arguments.

    A region that gives its last argument back replaces; any other is custom.
    """
    *body, last = (inner.operation for inner in block.operations)
    arguments, returned = list(block.arguments), list(last.operands)
    if not body and returned == arguments[1:]:
        return {"region": "replace"}
    if len(body) == 1 and len(arguments) == 2 and body[0].name in _MONOIDS:
        operands = list(body[0].operands)
        if operands in (arguments, arguments[::-1]) and returned == list(body[0].results):
            return {"monoid": _MONOIDS[body[0].name]}
    return {"monoid": "sum", "region": "custom"}
