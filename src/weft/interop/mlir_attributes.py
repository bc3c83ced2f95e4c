"""MLIR types and attributes as shapes, names, numbers and tuples, in Weft's conventions.

`Decoder` converts single attributes; `complete_attributes` makes those of an application: defaults
filled in, regions replaced by the monoid or the order that they compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isnan, prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from weft.lang import Value
from weft.layout.shardy_text import write_symbol
from weft.values import FrozenMap, Point

_DTYPES = {
    "i1": "bool",
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
_NUMBER = re.compile(r"(ui|si|i|f)(\d+)(E\w+)?")
_KINDS = {"ui": "uint", "si": "int", "i": "int", "f": "float"}
_ENUM = re.compile(r"#\w+<\w+ (\w+)>")
_PAIR = re.compile(r"\(([^,()]+),([^,()]+)\)")
_NAMES = re.compile(r'"([^"]*)"')

MOST_ELEMENTS = 1 << 16
"""The largest constant that a graph keeps."""

_TUPLES = (
    ir.DenseBoolArrayAttr,
    ir.DenseI32ArrayAttr,
    ir.DenseI64ArrayAttr,
    ir.DenseIntElementsAttr,
)
_NUMBERINGS = {
    stablehlo.DotDimensionNumbers: (
        "lhs_batching_dimensions rhs_batching_dimensions "
        "lhs_contracting_dimensions rhs_contracting_dimensions"
    ),
    stablehlo.ConvDimensionNumbers: (
        "input_batch_dimension input_feature_dimension input_spatial_dimensions "
        "kernel_input_feature_dimension kernel_output_feature_dimension kernel_spatial_dimensions "
        "output_batch_dimension output_feature_dimension output_spatial_dimensions"
    ),
    stablehlo.GatherDimensionNumbers: (
        "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims "
        "start_index_map index_vector_dim"
    ),
    stablehlo.ScatterDimensionNumbers: (
        "update_window_dims inserted_window_dims input_batching_dims "
        "scatter_indices_batching_dims scattered_dims_to_operand_dims index_vector_dim"
    ),
}
"""Attributes with several fields: each field becomes an attribute."""


class Decoder:
    """Decodes types and attributes, each once; inlined meshes get names."""

    def __init__(self) -> None:
        self.meshes: dict[str, str] = {}
        self._types: dict[Any, tuple[Point, str]] = {}
        self._values: dict[Any, Any] = {}

    def type(self, type_: Any) -> tuple[Point, str]:
        """Return the shape and the dtype; a type that is not an array is a scalar of its name.

        A dynamic dimension is None.
        """
        if type_ not in self._types:
            self._types[type_] = _type(type_)
        return self._types[type_]

    def value(self, attribute: Any) -> Any:
        """Return the attribute as a plain, hashable value; text for unknown kinds."""
        if attribute not in self._values:
            self._values[attribute] = self._value(attribute)
        return self._values[attribute]

    def _value(self, attribute: Any) -> Any:
        match attribute:
            case ir.BoolAttr() | ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr():
                return attribute.value
            case ir.FlatSymbolRefAttr():
                return attribute.value
            case ir.ArrayAttr():
                return tuple(map(self.value, attribute))
            case ir.DictAttr():
                return FrozenMap((each.name, self.value(each.attr)) for each in attribute)
        if isinstance(attribute, _TUPLES):
            return tuple(attribute)
        return isinstance(attribute, ir.UnitAttr) or self._of_dialect(attribute)

    def _of_dialect(self, attribute: Any) -> Any:
        for kind, fields in _NUMBERINGS.items():
            if kind.isinstance(attribute):
                numbers = kind(attribute)
                return FrozenMap((f, _plain(getattr(numbers, f))) for f in fields.split())
        if sdy.TensorShardingAttr.isinstance(attribute):
            return self._sharding(sdy.TensorShardingAttr(attribute))
        if sdy.TensorShardingPerValueAttr.isinstance(attribute):
            return tuple(map(self.value, sdy.TensorShardingPerValueAttr(attribute).shardings))
        text = str(attribute)
        if sdy.ManualAxesAttr.isinstance(attribute):
            return tuple(_NAMES.findall(text))
        enum = _ENUM.fullmatch(text)
        return enum[1] if enum else text

    def _sharding(self, sharding: Any) -> str:
        text = str(sharding).removeprefix("#sdy.sharding")
        mesh = sharding.mesh_or_ref
        if not sdy.MeshAttr.isinstance(mesh):
            return text
        spelled = str(mesh).removeprefix("#sdy.")
        name = self.meshes.setdefault(spelled, f"inlined_mesh_{len(self.meshes)}")
        return text.replace(spelled, f"@{name}", 1)

    def mesh_texts(self) -> list[str]:
        """Return the meshes that were inlined in shardings, as text."""
        return [mesh_text(name, spelled) for spelled, name in self.meshes.items()]


def elements(constant: Any) -> Any:
    """Return a constant's number, if it is the same everywhere, or its numbers row by row.

    None if there are too many for a graph, or Python has no such numbers.
    """
    try:
        made = constant.results[0].type
        if "complex<" in str(made):
            return _complex_elements(str(constant), tuple(made.shape))
        attribute = constant.attributes["value"]
        if attribute.is_splat:
            return attribute.get_splat_value().value
        if len(attribute) <= MOST_ELEMENTS:
            return tuple(attribute)
    except (AttributeError, TypeError, ValueError):
        return None
    return None


def _complex_elements(text: str, shape: Point) -> Any:
    """Return complex numbers, which MLIR's bindings give as text only.

    >>> _complex_elements("dense<(1.0,-2.0)> : tensor<3xcomplex<f32>>", (3,))
    (1-2j)
    """
    found = _PAIR.findall(text.partition("dense<")[2])
    numbers = tuple(complex(float(real), float(imag)) for real, imag in found)
    if len(numbers) == 1 and "dense<(" in text:
        return numbers[0]
    return numbers if len(numbers) == prod(shape) <= MOST_ELEMENTS else None


def mesh_text(name: str, attribute: Any) -> str:
    """Return a mesh in its text form.

    >>> print(mesh_text("m", '#sdy.mesh<["x"=2]>'))
    @m = <["x"=2]>
    """
    return f"{write_symbol(name)} = {str(attribute).removeprefix('#sdy.').removeprefix('mesh')}"


def dtype_name(text: str) -> str:
    """Return the dtype as NumPy and ml_dtypes spell it.

    >>> [dtype_name(t) for t in ("f32", "i1", "ui8", "complex<f32>", "f8E4M3FN", "!quant.x")]
    ['float32', 'bool', 'uint8', 'complex64', 'float8_e4m3fn', 'quant.x']
    """
    number = _NUMBER.fullmatch(text)
    if text in _DTYPES or number is None:
        return _DTYPES.get(text, text.removeprefix("!"))
    kind, bits, layout = number.groups()
    return _KINDS[kind] + bits + (f"_{layout.lower()}" if layout else "")


def _type(type_: Any) -> tuple[Point, str]:
    if not isinstance(type_, ir.RankedTensorType):
        return (), dtype_name(str(type_))
    shape: Any = tuple(
        None if type_.is_dynamic_dim(dim) else size for dim, size in enumerate(type_.shape)
    )
    return shape, dtype_name(str(type_.element_type))


def _plain(field: Any) -> int | tuple[int, ...]:
    return field if isinstance(field, int) else tuple(field)


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
_SHAPED = """
    all_gather all_to_all bitcast_convert broadcast_in_dim constant custom_call
    dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape
    fft gather iota real_dynamic_slice reduce_scatter reshape rng rng_bit_generator scatter
"""
"""The operations whose result shape does not follow from operands and other attributes."""

_TYPED = frozenset(["bitcast_convert", "constant", "convert", "dynamic_iota", "iota"])
"""Those whose result's dtype does not follow from their operands."""

_ALL_SHAPED = frozenset(["custom_call", "manual_computation"])
"""Those with several such results."""

_DIRECTIONS = ("NONE", "FORWARD", "BACKWARD", "BOTH")
"""The directions in which a barrier lets axes propagate, by number."""

_DROPPED = frozenset(["sharding", "out_sharding", "out_shardings", "callee", "decomposition"])
_KEPT = "sdy.sharding_rule"


def complete_attributes(
    op: Any,
    name: str,
    attributes: Mapping[str, Any],
    shapes: Sequence[Point],
    results: Sequence[Value],
) -> FrozenMap[str, Any]:
    """Return the attributes of an application: in one spelling, with defaults and result shapes."""
    result = _spelled(attributes)
    if name in _SHAPED.split():
        result["result_shape"] = results[0].shape if results else ()
    if name in _TYPED:
        result["dtype"] = results[0].dtype
    if name in _ALL_SHAPED:
        result["result_shapes"] = tuple(value.shape for value in results)
    if result.get("call_target_name") == "X64Combine" and _feeds_a_generator(op):
        result["is_state"] = True
    if name in _REDUCING:
        result |= combination(op.regions[len(op.regions) - 1].blocks[0])
    match name:
        case "convolution" | "dynamic_conv":
            result = (
                _window(len(result["input_spatial_dimensions"]), "lhs", "rhs", "dilation") | result
            )
        case "reduce_window":
            result = _window(len(shapes[0]), "base", "window", "dilations") | result
        case "propagation_barrier":
            result["allowed_direction"] = _DIRECTIONS[result["allowed_direction"]]
        case "rng_bit_generator":
            bits = results[1]  # the other is the state
            result |= {"result_shape": bits.shape, "dtype": bits.dtype}
        case "sort":
            result["dimension"] = result.get("dimension", -1) % max(1, len(shapes[0]))
            result["comparison_direction"] = comparison(op.regions[0].blocks[0])
        case "select_and_scatter":
            result["comparison_direction"] = comparison(op.regions[0].blocks[0])
    return FrozenMap(result.items())


def is_described(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes say what the regions of an operation compute."""
    found = [attributes.get(key) for key in ("monoid", "region", "comparison_direction")]
    return any(found) and _CUSTOM not in found


def _spelled(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relevant attributes, with the fields of dimension numbers as their own."""
    result: dict[str, Any] = {}
    for key, value in attributes.items():
        if isinstance(value, FrozenMap) and key.endswith("dimension_numbers"):
            result.update(value)
        elif key == _KEPT or not ("." in key or key in _DROPPED):
            result[key] = value
    return result


def _feeds_a_generator(op: Any) -> bool:
    users = (use.owner.name for result in op.results for use in result.uses)
    return "stablehlo.rng_bit_generator" in users


def _window(ndim: int, inner: str, outer: str, noun: str) -> dict[str, Point]:
    """Return the defaults of a window."""
    ones = (1,) * ndim
    return {
        "window_strides": ones,
        "padding": (0, 0) * ndim,
        f"{inner}_{noun}": ones,
        f"{outer}_{noun}": ones,
    }


def combination(block: Any) -> dict[str, str]:
    """Return the monoid of a region: for each array the same operation on its two arguments.

    A region that returns its last arguments replaces; a monoid on bits is `bitwise`; one that
    finds an element and its `place` is argmax or argmin; any other is custom.
    """
    last = block.operations[len(block.operations) - 1]
    arguments, returned = list(block.arguments), list(last.operands)
    half = len(arguments) // 2
    if returned == arguments[half:]:
        return {"region": "replace"}
    if half == 2 and (monoid := _place_monoid(arguments, returned)):
        return {"monoid": monoid, "region": "place"}
    pairs = zip(returned, arguments[:half], arguments[half:])
    names = {_operation_on(value, [one, two]) for value, one, two in pairs}
    if len(names) != 1 or not names <= _MONOIDS.keys():
        return {"monoid": "sum", "region": "custom"}
    monoid = _MONOIDS[names.pop()]
    logical = str(arguments[0].type.element_type) == "i1"
    return {"monoid": monoid} | ({"region": "bitwise"} if monoid in _BITS and not logical else {})


def _place_monoid(arguments: list[Any], returned: list[Any]) -> str:
    """Return argmax or argmin for a region that keeps an element and its index, as JAX writes it.

    Of `x` at `i` and `y` at `j`, it keeps `x` if that is better or not a number, and the index of
    the first of equal elements.
    """
    x, i, y, j = map(_expression, arguments)
    found = tuple(map(_expression, returned))
    for monoid, direction in (("argmax", "GT"), ("argmin", "LT")):
        better = frozenset([("compare", direction, x, y), ("compare", "NE", x, x)])
        first = ("and", frozenset([("compare", "EQ", x, y), ("compare", "LT", i, j)]))
        index = ("or", frozenset([("or", better), first]))
        if found == (("select", ("or", better), x, y), ("select", index, i, j)):
            return monoid
    return ""


def _expression(value: Any) -> Any:
    """Return a value of a region as nested tuples of operations; an argument by its number."""
    owner = _owner(value)
    if owner is None:
        return value.arg_number
    name, operands = owner.name.partition(".")[2], [_expression(each) for each in owner.operands]
    if name in ("and", "or"):
        return name, frozenset(operands)
    return name, *([_direction(owner)] if name == "compare" else []), *operands


def _operation_on(value: Any, arguments: list[Any]) -> str:
    """Return the name of the operation that computes a value from just these arguments."""
    owner = None if isinstance(value, ir.BlockArgument) else value.owner
    if owner is None or list(owner.operands) not in (arguments, arguments[::-1]):
        return ""
    return str(owner.name)


_SWAPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_CUSTOM = "custom"


def comparison(block: Any) -> str:
    """Return how a region compares its first two arguments: LT, GT and so on, or `custom`."""
    (returned,) = block.operations[len(block.operations) - 1].operands
    owner = _owner(returned)
    if owner is None or owner.name != "stablehlo.compare":
        return _CUSTOM
    arguments = list(block.arguments)
    sides = [_unselected(value) for value in owner.operands]
    numbers = [
        arguments.index(side) if side in arguments else -1 for side in sides if side is not None
    ]
    if numbers == [0, 1]:
        return _direction(owner)
    return _SWAPPED[_direction(owner)] if numbers == [1, 0] else _CUSTOM


def _owner(value: Any) -> Any:
    return None if isinstance(value, ir.BlockArgument) else value.owner


def _direction(compare: Any) -> str:
    """Return the direction; the attribute reads `#stablehlo<comparison_direction LT>`."""
    return str(compare.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]


def _unselected(value: Any) -> Any:
    """Return the argument behind the selections by which JAX unifies zeros and NaNs.

    `select(x == 0, 0, x)` and `select(x != x, NaN, x)` are x, but for the sign of a zero or a NaN.
    """
    owner, tested = _owner(value), []
    while owner is not None:
        test = _owner(owner.operands[0]) if owner.name == "stablehlo.select" else None
        if test is None or test.name != "stablehlo.compare":
            return None
        _, replacement, value = owner.operands
        one, two = test.operands
        given, direction = _number(replacement), _direction(test)
        is_zero = direction == "EQ" and given is not None and given == _number(two)
        is_nan = direction == "NE" and one == two and isinstance(given, float) and isnan(given)
        if not is_zero and not is_nan:
            return None
        tested.append(one)
        owner = _owner(value)
    return value if all(one == value for one in tested) else None


def _number(value: Any) -> Any:
    """Return the number of a scalar constant; None for any other value."""
    owner = _owner(value)
    return None if owner is None or owner.name != "stablehlo.constant" else elements(owner)
