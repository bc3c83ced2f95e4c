"""What MLIR types and attributes say, as shapes, names, numbers and tuples of them."""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from weft.errors import WeftError
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
"""The attributes that are several: each field becomes an attribute of its own name."""


class Decoder:
    """Reads types and attributes, each of them once; inlined meshes get names as they are met."""

    def __init__(self) -> None:
        self.meshes: dict[str, str] = {}
        self._types: dict[Any, tuple[Point, str]] = {}
        self._values: dict[Any, Any] = {}

    def type(self, type_: Any) -> tuple[Point, str]:
        """The shape and the dtype; what is no array, such as a token, is a scalar of its name."""
        if type_ not in self._types:
            self._types[type_] = _type(type_)
        return self._types[type_]

    def value(self, attribute: Any) -> Any:
        """The attribute as a plain value that has a hash; text where we know nothing better."""
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
                return FrozenMap((said.name, self.value(said.attr)) for said in attribute)
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
        """The meshes that were inlined in shardings, as text."""
        return [mesh_text(name, spelled) for spelled, name in self.meshes.items()]


def elements(constant: Any) -> Any:
    """A constant's number, if it is the same everywhere, or its numbers row by row.

    None where they are too many to be part of a graph, or of a kind that Python does not have.
    """
    try:
        attribute = constant.attributes["value"]
        if attribute.is_splat:
            return attribute.get_splat_value().value
        if len(attribute) <= MOST_ELEMENTS:
            return tuple(attribute)
    except (AttributeError, TypeError, ValueError):
        return None
    return None


def mesh_text(name: str, attribute: Any) -> str:
    """A mesh in its text form.

    >>> print(mesh_text("m", '#sdy.mesh<["x"=2]>'))
    @m = <["x"=2]>
    """
    return f"{write_symbol(name)} = {str(attribute).removeprefix('#sdy.').removeprefix('mesh')}"


def dtype_name(text: str) -> str:
    """The dtype as NumPy and ml_dtypes spell it.

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
    if not type_.has_static_shape:
        raise WeftError(
            f"{type_} has a dynamic dimension", hint="lower the program for shapes that are known"
        )
    return tuple(type_.shape), dtype_name(str(type_.element_type))


def _plain(field: Any) -> int | tuple[int, ...]:
    return field if isinstance(field, int) else tuple(field)
