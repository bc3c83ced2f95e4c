"""Dtypes: their names and sizes, and the rules by which operators convert them.

The rule is the Python array API standard's, with NumPy's choice where the standard leaves one:

- Arrays of different dtypes are converted to the smallest dtype that holds both (`promote`).
  Python numbers are weak: they take the dtype of the arrays beside them (`result_type`).
- Sums and products of integers have 64 bits, means are float64 (`sum_dtype`, `mean_dtype`).
- Division, roots and exponentials of integers are floats (`float_dtype`).
- Floats of less than 32 bits accumulate in float32, and are rounded once (`accumulator`).

Where NumPy has no such dtype (bfloat16), the rule is JAX's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.errors import WeftError

Kind: TypeAlias = Literal["bool", "int", "uint", "float", "complex"]


class _Type(NamedTuple):
    kind: Kind
    bits: int


_FLOATS = {
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4"), 8),
    **dict.fromkeys(("float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"), 8),
    "float8_e4m3b11fnuz": 8,
    "float4_e2m1fn": 4,
}
_INTEGERS: dict[str, _Type] = {
    **{f"int{bits}": _Type("int", bits) for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": _Type("uint", bits) for bits in (2, 4, 8, 16, 32, 64)},
}
_TYPES: dict[str, _Type] = {
    "bool": _Type("bool", 8),
    **_INTEGERS,
    **{name: _Type("float", bits) for name, bits in _FLOATS.items()},
    "complex64": _Type("complex", 64),
    "complex128": _Type("complex", 128),
}
DTYPES = tuple(_TYPES)
"""The names of all dtypes, as NumPy and ml_dtypes spell them."""

LOW_PRECISION = frozenset(name for name, bits in _FLOATS.items() if bits < 32)
"""The floats that are summed and multiplied in float32."""

Scalar: TypeAlias = bool | int | float | complex
Operand: TypeAlias = "str | Scalar"
"""The dtype of an array, or a Python number, which is weak."""

_SCALARS = (bool, int, float, complex)


def is_scalar(x: object) -> bool:
    """Return whether this is a Python number; NumPy's scalars have a dtype.

    >>> is_scalar(2), is_scalar(True), is_scalar("float32")
    (True, True, False)
    """
    return type(x) in _SCALARS


def itemsize(dtype: str) -> int:
    """Return the bytes of an element; those of less than a byte take a whole one.

    >>> itemsize("float32"), itemsize("bool"), itemsize("complex64"), itemsize("int4")
    (4, 1, 8, 1)
    """
    known = _TYPES.get(dtype)
    if known is not None:
        return max(1, known.bits // 8)
    return sum(each.itemsize for each in components(dtype)) or 1


# Structs: elements of several components.


class Component(NamedTuple):
    """One component of a struct: its name, its dtype, and its shape within one element."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        """The bytes of it in one element."""
        return prod(self.shape) * itemsize(self.dtype)

    def __str__(self) -> str:
        shape = f"[{', '.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.name}: {self.dtype}{shape}"


_STRUCT = re.compile(r"struct<(.+)>")
_COMPONENT = re.compile(r"([A-Za-z_]\w*): (\w+)(?:\[(\d+(?:, \d+)*)\])?(?:, |$)")


def struct_dtype(parts: Iterable[Component]) -> str:
    """Return the dtype of elements with several components.

    >>> struct_dtype([Component("values", "float32", (4,)), Component("size", "int64")])
    'struct<values: float32[4], size: int64>'
    """
    return f"struct<{', '.join(map(str, parts))}>"


@lru_cache(maxsize=1024)
def components(dtype: str) -> tuple[Component, ...]:
    """Return the components of a struct; none for other dtypes.

    >>> [each.itemsize for each in components("struct<values: float32[4], size: int64>")]
    [16, 8]
    """
    found, place, match = list[Component](), 0, _STRUCT.fullmatch(dtype)
    while match is not None and place < len(match[1]):
        part = _COMPONENT.match(match[1], place)
        if part is None or part[2] not in _TYPES:
            return ()
        sizes = tuple(int(size) for size in (part[3] or "").split(", ") if size)
        found.append(Component(part[1], part[2], sizes))
        place = part.end()
    return tuple(found)


def is_dtype(name: object) -> bool:
    """Return whether this is the name of a dtype that Weft knows, or of a struct of them."""
    return isinstance(name, str) and (name in _TYPES or bool(components(name)))


def kind(dtype: str) -> Kind:
    """Return the kind of a dtype that Weft knows.

    >>> kind("uint8"), kind("bfloat16")
    ('uint', 'float')
    """
    if dtype not in _TYPES:
        if names := [each.name for each in components(dtype)]:
            raise WeftError(
                f"{dtype} has components, which are not numbers together",
                hint=f'take one of them: ops.component(x, "{names[0]}")',
            )
        raise WeftError(f"{dtype!r} is not a dtype that Weft knows", hint=", ".join(DTYPES))
    return _TYPES[dtype].kind


@lru_cache(maxsize=1024, typed=True)
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of any library, or of a type of Python.

    >>> dtype_name("int8"), dtype_name(float)
    ('int8', 'float64')
    >>> dtype_name(type("D", (), {"__str__": lambda _: "torch.float32"})())
    'float32'
    """
    if dtype in _PYTHON:
        return _PYTHON[dtype]
    if names := getattr(dtype, "names", None):  # a structured dtype of NumPy
        fields = [(name, dtype[name]) for name in names]
        return struct_dtype(Component(n, dtype_name(f.base), tuple(f.shape)) for n, f in fields)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


_PYTHON: dict[Any, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def as_dtype(dtype: Any) -> str:
    """Return the name of a dtype that Weft knows."""
    name = dtype_name(dtype)
    if not components(name):
        kind(name)
    return name


_SMALL = frozenset(
    n for n, t in _TYPES.items() if t.bits < 8 or (t.kind == "float" and t.bits < 16)
)
"""The dtypes that are never promoted: no rule defines the result."""


@lru_cache(maxsize=4096)
def promote(one: str, two: str) -> str:
    """Return the smallest dtype that holds the numbers of both, as NumPy chooses it.

    >>> promote("uint8", "int8"), promote("uint64", "int64"), promote("int32", "float32")
    ('int16', 'float64', 'float64')
    >>> promote("float16", "bfloat16"), promote("int64", "bfloat16"), promote("int16", "complex64")
    ('float32', 'bfloat16', 'complex64')
    """
    kinds = {kind(one): one, kind(two): two}
    if one == two:
        return one
    if "bool" in kinds:
        return two if kind(one) == "bool" else one
    if not _SMALL.isdisjoint((one, two)):
        raise WeftError(
            f"{one} and {two} have no common dtype", hint="convert one of them to the other"
        )
    if "complex" in kinds:
        return complex_dtype(promote(real_dtype(one), real_dtype(two)))
    if "float" in kinds:
        return _common_float(one, two)
    return max(one, two, key=itemsize) if len(kinds) == 1 else _signed(kinds["int"], kinds["uint"])


def _signed(signed: str, unsigned: str) -> str:
    """Return the dtype that holds signed and unsigned integers; float64 if 64 bits do not."""
    if itemsize(signed) > itemsize(unsigned):
        return signed
    return f"int{16 * itemsize(unsigned)}" if itemsize(unsigned) < 8 else "float64"


def _common_float(one: str, two: str) -> str:
    if "bfloat16" in (one, two):
        other = one if two == "bfloat16" else two
        if kind(other) != "float":
            return "bfloat16"
        return "float32" if other == "float16" else other
    return max(float_dtype(one), float_dtype(two), key=itemsize)


def float_dtype(dtype: str) -> str:
    """Return the float of a root or an exponential: integers become floats.

    >>> [float_dtype(name) for name in ("bool", "uint8", "int16", "int32", "float16", "complex64")]
    ['float16', 'float16', 'float32', 'float64', 'float16', 'complex64']
    """
    if kind(dtype) in ("float", "complex"):
        return dtype
    return {1: "float16", 2: "float32"}.get(itemsize(dtype), "float64")


def real_dtype(dtype: str) -> str:
    """Return the dtype of the real part.

    >>> real_dtype("complex64"), real_dtype("int8")
    ('float32', 'int8')
    """
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def complex_dtype(dtype: str) -> str:
    """Return the complex dtype whose parts hold the numbers of a dtype.

    >>> complex_dtype("float16"), complex_dtype("int32"), complex_dtype("complex64")
    ('complex64', 'complex128', 'complex64')
    """
    if kind(dtype) == "complex":
        return dtype
    return "complex128" if float_dtype(dtype) == "float64" else "complex64"


def sum_dtype(dtype: str) -> str:
    """Return the dtype of a sum or a product: integers have 64 bits.

    >>> sum_dtype("bool"), sum_dtype("int8"), sum_dtype("uint8"), sum_dtype("float16")
    ('int64', 'int64', 'uint64', 'float16')
    """
    return {"bool": "int64", "int": "int64", "uint": "uint64"}.get(kind(dtype), dtype)


def mean_dtype(dtype: str) -> str:
    """Return the dtype of a mean, or of a quotient: float64 for integers.

    >>> mean_dtype("uint8"), mean_dtype("float16")
    ('float64', 'float16')
    """
    return dtype if kind(dtype) in ("float", "complex") else "float64"


def accumulator(dtype: str) -> str:
    """Return the dtype of an accumulator: float32 for floats of less than 32 bits.

    >>> accumulator("bfloat16"), accumulator("float64"), accumulator("int8")
    ('float32', 'float64', 'int8')
    """
    return "float32" if dtype in LOW_PRECISION else dtype


def bounds(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest integer of an integer dtype.

    >>> bounds("int8"), bounds("uint16")
    ((-128, 127), (0, 65535))
    """
    sign, bits = _TYPES[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if sign == "int" else (0, (1 << bits) - 1)


def scalar_of(value: Scalar, dtype: str) -> Scalar:
    """Return a number as the Python type of a dtype.

    >>> scalar_of(2, "float32"), scalar_of(True, "int8"), scalar_of(0.5, "complex64")
    (2.0, 1, (0.5+0j))
    """
    types = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}
    convert = types[kind(dtype)]
    try:
        number: Scalar = convert(value)
    except (OverflowError, TypeError, ValueError):
        raise WeftError(f"{value!r} is not a number of {dtype}") from None
    return number


_RANK = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}
_WEAK = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def result_type(*operands: Operand) -> str:
    """Return the common dtype of arrays and Python numbers.

    >>> result_type("uint16", 0.5), result_type("float32", 2), result_type("bool", 1)
    ('float64', 'float32', 'int64')
    >>> result_type(5, 3), result_type("float32", 1j)
    ('int64', 'complex64')
    """
    strong = [dtype for dtype in operands if isinstance(dtype, str)]
    common = reduce(promote, strong) if strong else ""
    for scalar in operands:
        if not isinstance(scalar, str):
            common = _with_scalar(common, scalar)
    return common


def _with_scalar(common: str, scalar: Scalar) -> str:
    own = _WEAK[type(scalar)]
    if not common:
        return own
    if _RANK[kind(own)] <= _RANK[kind(common)]:
        return common
    if kind(own) == "complex" and kind(common) == "float":
        return complex_dtype(common)
    return own


def _check_fits(operands: Sequence[Operand], dtype: str) -> None:
    """Raise for Python integers that do not fit the dtype."""
    if kind(dtype) not in ("int", "uint"):
        return
    low, high = bounds(dtype)
    for scalar in operands:
        if type(scalar) is int and not low <= scalar <= high:
            raise WeftError(
                f"{scalar} does not fit {dtype}, which holds {low} to {high}",
                hint=f"convert the array first: x.astype({_holding(scalar)!r})",
            )


def _holding(scalar: int) -> str:
    """Return the smallest dtype that holds an integer; float64 beyond 64 bits."""
    for name in ("int8", "int16", "int32", "int64", "uint64"):
        low, high = bounds(name)
        if low <= scalar <= high:
            return name
    return "float64"


Attributes: TypeAlias = Mapping[str, Any]

Conversion: TypeAlias = Callable[[Sequence[Operand]], Sequence[str]]
"""Returns the dtype that each operand is converted to before an operator is applied."""

Dtypes: TypeAlias = Callable[[Sequence[str], Attributes], Sequence[str]]
"""Returns the dtypes of the results from those of the operands; one stands for all results."""


def separate(operands: Sequence[Operand]) -> Sequence[str]:
    """Leave arrays as they are; Python numbers take the common dtype."""
    if all(isinstance(operand, str) for operand in operands):
        return [str(operand) for operand in operands]
    common = result_type(*operands)
    _check_fits(operands, common)
    return [operand if isinstance(operand, str) else common for operand in operands]


def together(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert all operands to their common dtype.

    >>> together(["int8", 2.5])
    ['float64', 'float64']
    """
    if not operands:
        return []
    common = result_type(*operands)
    _check_fits(operands, common)
    return [common] * len(operands)


def as_floats(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert all operands to the smallest float that holds each of them.

    >>> as_floats(["uint8", "int8"]), as_floats(["uint16", "int8"]), as_floats(["bool", 1])
    (['float16', 'float16'], ['float32', 'float32'], ['float64', 'float64'])
    """
    arrays = [float_dtype(operand) for operand in operands if isinstance(operand, str)]
    if len(arrays) < 2 or "bfloat16" in arrays:  # integers take the dtype of a bfloat16
        return [float_dtype(result_type(*operands))] * len(operands)
    numbers = [operand for operand in operands if not isinstance(operand, str)]
    return [result_type(*arrays, *numbers)] * len(operands)


def as_quotients(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert integers to float64, as division and means do.

    >>> as_quotients(["uint8", 2])
    ['float64', 'float64']
    """
    return [mean_dtype(result_type(*operands))] * len(operands)


def as_flags(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert all operands to bool."""
    return ["bool"] * len(operands)


def as_choice(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert a condition to bool, and the alternatives to one dtype."""
    return ["bool", *together(operands[1:])]


def as_compared(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert to the common dtype if that is exact; otherwise leave integers as they are.

    A number that does not fit the dtype beside it can still be compared, and so can signed and
    unsigned integers of 64 bits: NumPy compares them exactly.

    >>> as_compared(["uint8", 300]), as_compared(["uint64", "int64"])
    (['int16', 'int16'], ['uint64', 'int64'])
    """
    typed = [_of_compared(operand, operands) for operand in operands]
    kinds = {kind(dtype) for dtype in typed}
    if kinds == {"int", "uint"} and result_type(*typed) == "float64":
        return typed
    return [result_type(*typed)] * len(typed)


def _of_compared(operand: Operand, operands: Sequence[Operand]) -> str:
    if isinstance(operand, str):
        return operand
    others = [other for other in operands if isinstance(other, str)]
    if type(operand) is int and {kind(other) for other in others} <= {"int", "uint"}:
        for dtype in others:
            low, high = bounds(dtype)
            if low <= operand <= high:
                return dtype
        return _holding(operand)
    return result_type(*others, operand)


def like_first(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the `dtype` among the attributes, or else that of the first operand.

    >>> like_first(["int32", "bool"], {}), like_first([], {"dtype": "int8"})
    (['int32'], ['int8'])
    """
    return [attributes.get("dtype") or (dtypes[0] if dtypes else "float32")]


def like_all(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the one dtype that all operands have, or the `dtype` among the attributes."""
    if len(set(dtypes)) > 1:
        raise WeftError(
            f"the operands are of {' and '.join(dtypes)}", hint="convert one of them to the other"
        )
    return like_first(dtypes, attributes)


def for_kinds(kinds: str, rule: Dtypes = like_all) -> Dtypes:
    """Return a rule that raises for operands of other kinds.

    >>> for_kinds("float complex")(["float16"], {})
    ['float16']
    """
    allowed = frozenset(kinds.split())

    def checked(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
        for dtype in dtypes:
            if kind(dtype) not in allowed:
                words = ", ".join(kinds.split())
                raise WeftError(
                    f"expected a dtype of kind {words}, got {dtype}",
                    hint="convert it first: x.astype(...)",
                )
        return rule(dtypes, attributes)

    return checked


@lru_cache(maxsize=1024)
def numbers_only(rule: Dtypes) -> Dtypes:
    """Return a rule that raises for structs."""

    def checked(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
        for dtype in (*dtypes, attributes.get("dtype") or ""):
            if components(dtype):
                kind(dtype)
        return rule(dtypes, attributes)

    return checked


def summed(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a sum: the `dtype` among the attributes, or 64 bits for integers."""
    return [attributes.get("dtype") or sum_dtype(dtypes[0])]


def averaged(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a mean: the `dtype` among the attributes, or float64 for integers."""
    return [attributes.get("dtype") or mean_dtype(dtypes[0])]


def truth(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return bool."""
    return ["bool"]
