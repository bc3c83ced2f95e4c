"""The small integer arrays from which a program computes the sizes of its arrays.

In a StableHLO program with dynamic dimensions, sizes are integers like any others:
`get_dimension_size` returns one, `multiply` makes another, `dynamic_reshape` takes it. `evaluate`
follows them as numbers and `Size`s; what it cannot simplify yet, such as a comparison, is a `Term`.
`resolve` decides a term as `weft.lang.size` does: for large sizes, with a condition that is
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.size import Size, condition, recording
from weft.values import Point

MOST_ELEMENTS = 64
"""The largest array that is followed."""

_BITS = {"int32": 31, "int64": 63, "bool": 1}
"""The dtypes of sizes, and the bits of their largest numbers."""


class Term(NamedTuple):
    """An operation on numbers that is not simplified yet, such as `n < 4`."""

    operation: str
    operands: tuple[Any, ...]


Element: TypeAlias = int | Size | Term


class SizeArray(NamedTuple):
    """An array of numbers, sizes and terms, row by row."""

    shape: Point
    dtype: str
    elements: tuple[Element, ...]

    def resolved(self) -> tuple[Any, ...]:
        """Return the elements as numbers and sizes."""
        return tuple(map(resolve, self.elements))


_POLYNOMIAL = ("add", "subtract", "multiply", "negate")
_RELATIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def evaluate(
    name: str,
    attributes: Mapping[str, Any],
    operands: Sequence[SizeArray],
    shape: Point,
    dtype: str,
) -> SizeArray | None:
    """Return the result of an operation on small arrays of integers; None if it is not followed.

    >>> n = SizeArray((), "int32", (Size.parse("n"),))
    >>> one = SizeArray((), "int32", (1,))
    >>> evaluate("subtract", {}, [n, one], (), "int32").elements
    (n-1,)
    """
    if dtype not in _BITS or None in shape or prod(shape) > MOST_ELEMENTS:
        return None
    elements = _elements(name, attributes, operands, shape)
    if elements is None or any(
        isinstance(each, int) and abs(each) >= 1 << _BITS[dtype] for each in elements
    ):
        return None
    return SizeArray(shape, dtype, elements)


def _elements(
    name: str, attributes: Mapping[str, Any], operands: Sequence[SizeArray], shape: Point
) -> tuple[Element, ...] | None:
    result: tuple[Element, ...] | None = None
    match name:
        case "constant":
            value: Any = attributes.get("value")
            given: tuple[Any, ...] = value if isinstance(value, tuple) else (value,) * prod(shape)
            result = given if all(isinstance(each, int) for each in given) else None
        case "convert" | "reshape":
            result = operands[0].elements
        case "broadcast_in_dim" if not operands[0].shape:
            result = operands[0].elements * prod(shape)
        case "concatenate" if attributes["dimension"] == 0:
            result = tuple(each for operand in operands for each in operand.elements)
        case "slice" if len(shape) == 1:
            limits = ("start_indices", "limit_indices", "strides")
            result = operands[0].elements[slice(*(attributes[key][0] for key in limits))]
        case "compare":
            result = _pointwise(_RELATIONS[attributes["comparison_direction"]], operands, shape)
        case "and" | "or" | "xor" | "not" if operands[0].dtype != "bool":
            pass  # bits
        case _ if name in _OPERATIONS:
            result = _pointwise(name, operands, shape)
    return result


def _pointwise(
    name: str, operands: Sequence[SizeArray], shape: Point
) -> tuple[Element, ...] | None:
    if any(operand.shape not in ((), shape) for operand in operands):
        return None
    wide = [op.elements if op.shape == shape else op.elements * prod(shape) for op in operands]
    return tuple(_apply(name, *each) for each in zip(*wide))


def _apply(name: str, *operands: Element) -> Any:
    """Return an operation on elements: simplified where that needs no decision."""
    plain = not any(isinstance(each, Term) for each in operands)
    if plain and (name in _POLYNOMIAL or _is_settled(name, operands)):
        return _OPERATIONS[name](*operands)
    if name in ("and", "or") and (name == "or") in operands:
        return name == "or"
    if name == "select":
        flag, one, two = operands
        if isinstance(flag, int):
            return one if flag else two
        return _rounded_down(flag, one, two)
    return Term(name, operands)


def _is_settled(name: str, operands: Sequence[Any]) -> bool:
    """Return whether numbers alone decide an operation; a difference of sizes may be one."""
    if name in _RELATIONS.values():
        return isinstance(operands[0] - operands[1], int)
    return all(isinstance(each, int) for each in operands)


def _rounded_down(flag: Element, one: Element, two: Element) -> Element:
    """Return a selection; JAX's division and remainder that round down are recognised."""
    match two:
        case Term("divide", (a, int(b))) if b > 0 and one == Term("subtract", (two, 1)):
            rest = Term("!=", (Term("remainder", (a, b)), 0))
            if _is_both(flag, Term("!=", (Term("sign", (a,)), 1)), rest):
                return a // b  # type: ignore[no-any-return]
        case Term("remainder", (a, int(b))) if b > 0 and one == Term("add", (two, b)):
            signs = Term("!=", (Term("<", (two, 0)), False))
            if _is_both(flag, signs, Term("!=", (two, 0))):
                return a % b  # type: ignore[no-any-return]
    return Term("select", (flag, one, two))


def _is_both(flag: Element, one: Term, two: Term) -> bool:
    return flag in (Term("and", (one, two)), Term("and", (two, one)))


def resolve(element: Element) -> Any:
    """Return a number, a flag or a size; what is decided about sizes is recorded.

    >>> n = Size.parse("n")
    >>> resolve(Term("maximum", (Term("divide", (n, 2)), 1)))
    n//2
    """
    if not isinstance(element, Term):
        return element
    name, operands = element
    if name == "select":
        flag, one, two = operands
        return resolve(one if resolve(flag) else two)
    if name in ("and", "or"):  # one operand may decide it
        return any(map(resolve, operands)) if name == "or" else all(map(resolve, operands))
    return _OPERATIONS[name](*map(resolve, operands))


def _divide(a: Any, b: Any) -> Any:
    """Divide, rounding towards zero."""
    if not isinstance(b, Size) and b == 0:
        raise WeftError(f"{a} is divided by 0")
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def _least(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two sizes in order; the condition that is recorded allows them to be equal."""
    with recording(None):
        in_order = a <= b
    return (a, b) if (a <= b if in_order else not b <= a) else (b, a)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
    "abs": lambda a: a if a >= 0 else -a,
    "sign": lambda a: 1 if a > 0 else -1 if a < 0 else 0,
    "divide": _divide,
    "remainder": lambda a, b: a - b * _divide(a, b),
    "maximum": lambda a, b: _least(a, b)[1],
    "minimum": lambda a, b: _least(a, b)[0],
    "clamp": lambda low, a, high: _least(_least(low, a)[1], high)[0],
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: not a,
    "select": lambda flag, one, two: one if flag else two,
}
"""StableHLO's operations on numbers, and comparisons by their sign."""


def asserted(element: Element) -> tuple[Any, str, Any]:
    """Return what an assertion says as two sizes and the relation between them."""
    match element:
        case Term(("==" | "!=" | "<" | "<=" | ">" | ">=") as relation, (left, right)):
            return resolve(left), relation, resolve(right)
        case int():
            return int(element), "==", 1
    raise WeftError(f"the condition {element} on sizes is not one that Weft reads")


def condition_of(element: Element) -> str:
    """Return an assertion as a condition of a graph; none if it always holds.

    >>> condition_of(Term(">=", (Size.parse("n-4"), 0)))
    'n >= 4'
    """
    left, relation, right = asserted(element)
    return condition(left, relation, right)
