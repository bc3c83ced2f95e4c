"""Operators that move elements and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd, prod

from weft.errors import WeftError
from weft.lang.block import Attributes, Kernel
from weft.lang.dtype import (
    Conversion,
    Dtypes,
    Operand,
    like_all,
    like_first,
    promote,
    result_type,
    separate,
    together,
)
from weft.lang.kernels import moves
from weft.lang.library.rows import digits, numbered, plain, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Keeps, Operator, Passes, Sign
from weft.lang.signature import Signature
from weft.values import Point


def sign_broadcast_in_dim(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """An operand's dimension is a result's, or it is single and repeated.

    >>> into = {"broadcast_dimensions": (0, 2), "result_shape": (8, 3, 5)}
    >>> print(sign_broadcast_in_dim([(8, 1)], into))
    i0 1 -> i0 i1 i2  {i0=8, i1=3, i2=5}
    """
    result = attributes["result_shape"]
    dims = numbered("i", len(result))
    operand = [
        Row() if size == 1 != result[dim] else dims[dim]
        for size, dim in zip(shapes[0], attributes["broadcast_dimensions"])
    ]
    sizes = {f"i{dim}": size for dim, size in enumerate(result)}
    return Signature(Notation([operand], [dims]), shapes, sizes)


def sign_made(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A result that is made of nothing.

    >>> print(sign_made([], {"result_shape": (8, 3)}))
     -> i0 i1  {i0=8, i1=3}
    """
    result = attributes["result_shape"]
    sizes = {f"i{dim}": size for dim, size in enumerate(result)}
    return Signature(Notation([], [numbered("i", len(result))]), shapes, sizes)


def sign_transpose(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The same dimensions in another order."""
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims], [[dims[dim] for dim in attributes["permutation"]]]), shapes)


class _Side:
    """One shape of a reshape, taken apart from the major end."""

    def __init__(self, shape: Point) -> None:
        self.digits: list[list[tuple[str, int]]] = [[] for _ in shape]
        self.dims = [(dim, size) for dim, size in enumerate(shape) if size != 1]
        self.done = 1
        self.left = self.dims[0][1] if self.dims else 1

    def take(self, name: str, size: int) -> None:
        """Give the next digit to the dimension that is being taken apart."""
        self.digits[self.dims[0][0]].append((name, size))
        self.done *= size
        self.left //= size
        if self.left == 1:
            self.dims.pop(0)
            self.left = self.dims[0][1] if self.dims else 1

    def catch_up(self, ahead: _Side) -> int:
        """The next digit of the side that is behind: up to the other if it divides."""
        gap, rest = divmod(ahead.done, self.done)
        if rest == 0 and self.left % gap == 0:
            return gap
        common = gcd(self.left, ahead.left)
        return self.left // common if self.left > common else self.left

    def rows(self) -> list[Row]:
        return [digits(pairs) for pairs in self.digits]


def _factor(given: _Side, wanted: _Side) -> None:
    """Take both shapes apart into the digits that they share, and others where they cannot."""
    number = 0
    while given.dims or wanted.dims:
        common = gcd(given.left, wanted.left) if given.done == wanted.done else 1
        if common > 1:
            given.take(f"i{number}", common)
            wanted.take(f"i{number}", common)
        elif given.done == wanted.done:
            given.take(f"i{number}", given.left)
            wanted.take(f"j{number}", wanted.left)
        elif given.done < wanted.done:
            given.take(f"i{number}", given.catch_up(wanted))
        else:
            wanted.take(f"j{number}", wanted.catch_up(given))
        number += 1


def sign_reshape(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Both shapes in the finest mixed radix that they share.

    >>> print(sign_reshape([(8, 6)], {"result_shape": (4, 12)}))
    2*i0+i1 i2 -> i0 6*i1+i2  {i0=4, i1=2, i2=6}
    """
    shape, result = shapes[0], attributes["result_shape"]
    if prod(shape) != prod(result):
        raise WeftError(
            f"{list(shape)} has {prod(shape)} elements and {list(result)} has {prod(result)}"
        )
    if prod(shape) == 0:
        made = {f"j{dim}": size for dim, size in enumerate(result)}
        empty = Notation([[whole(f"i{dim}") for dim in range(len(shape))]], [map(whole, made)])
        return Signature(empty, shapes, made)
    given, wanted = _Side(shape), _Side(result)
    _factor(given, wanted)
    sizes = {name: n for dim in given.digits + wanted.digits for name, n in dim}
    return Signature(Notation([given.rows()], [wanted.rows()]), shapes, sizes)


def sign_reverse(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Some dimensions from their end.

    >>> print(sign_reverse([(8, 6)], {"dimensions": (1,)}).notation)
    i0 -i1+5 -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    operand = list(dims)
    for dim in attributes["dimensions"]:
        operand[dim] = Row(((f"i{dim}", -1),), shapes[0][dim] - 1)
    sizes = {f"i{dim}": size for dim, size in enumerate(shapes[0])}
    return Signature(Notation([operand], [dims]), shapes, sizes)


def sign_slice(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Each result element from its place in the operand.

    >>> cut = {"start_indices": (0, 1), "limit_indices": (8, 6), "strides": (1, 2)}
    >>> print(sign_slice([(8, 6)], cut))
    i0 2*i1+1 -> i0 i1  {i0=8, i1=3}
    """
    operand, sizes = [], dict[str, int]()
    limits, strides = attributes["limit_indices"], attributes["strides"]
    for dim, start in enumerate(attributes["start_indices"]):
        made = max(0, -(-(limits[dim] - start) // strides[dim]))
        stride = strides[dim] if made > 1 else 1
        sizes[f"i{dim}"] = made
        operand.append(Row(((f"i{dim}", stride),), start))
    return Signature(Notation([operand], [numbered("i", len(operand))]), shapes, sizes)


def sign_pad(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Each result element from its place in the operand, which may lie outside.

    >>> by = {"edge_padding_low": (0, 1), "edge_padding_high": (0, 2), "interior_padding": (0, 0)}
    >>> print(sign_pad([(8, 6), ()], by))
    i0 i1-1,  -> i0 i1  {i0=8, i1=9}
    """
    operand, sizes = [], dict[str, int]()
    high, interior = attributes["edge_padding_high"], attributes["interior_padding"]
    for dim, low in enumerate(attributes["edge_padding_low"]):
        size, step = shapes[0][dim], interior[dim] + 1
        made = low + max(0, (size - 1) * step + 1) + high[dim]
        sizes[f"i{dim}"] = made
        operand.append(Row(((f"i{dim}", 1),), -low, divisor=step if size > 1 else 1))
    return Signature(Notation([operand, ()], [numbered("i", len(operand))]), shapes, sizes)


def sign_concatenate(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along one dimension, in which each operand has its place.

    >>> print(sign_concatenate([(8, 6), (8, 3)], {"dimension": 1}))
    i0 [i1], i0 [i1-6] -> i0 [i1]  {i0=8, i1=9}
    """
    along = attributes["dimension"]
    parts = [shape[along] for shape in shapes]
    dims = numbered("i", len(shapes[0]))
    operands = []
    for start in accumulate(parts[:-1], initial=0):
        rows = list(dims)
        rows[along] = Row(((f"i{along}", 1),), -start, whole=True)
        operands.append(rows)
    result = [*dims[:along], whole(f"i{along}"), *dims[along + 1 :]]
    return Signature(Notation(operands, [result]), shapes, {f"i{along}": sum(parts)})


def sign_bitcast_convert(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The same elements; one of several parts lies along a last dimension, seen whole.

    >>> print(sign_bitcast_convert([(8,)], {"result_shape": (8, 4)}))
    i0 -> i0 [k]  {i0=8, k=4}
    """
    result = attributes.get("result_shape", shapes[0])
    dims = numbered("i", min(len(shapes[0]), len(result)))
    sides = [[*dims, whole("k")] if len(s) > len(dims) else dims for s in (shapes[0], result)]
    sizes = {"k": result[-1]} if len(result) > len(dims) else {}
    return Signature(Notation(sides[:1], sides[1:]), shapes, sizes)


def sign_dynamic_slice(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the dimensions that are sliced, for nobody knows where.

    >>> print(sign_dynamic_slice([(8, 6), (), ()], {"slice_sizes": (8, 2)}))
    i0 [i1], ,  -> i0 [o1<i1]  {i0=8, o1=2, i1=6}
    """
    operand, result = [], []
    sizes: dict[str, int] = {}
    for dim, (size, made) in enumerate(zip(shapes[0], attributes["slice_sizes"])):
        (same,) = plain(f"i{dim}")
        operand.append(same if size == made else whole(f"i{dim}"))
        result.append(same if size == made else whole(f"o{dim}", f"i{dim}"))
        sizes |= {} if size == made else {f"o{dim}": made}
    return Signature(Notation([operand, *[()] * (len(shapes) - 1)], [result]), shapes, sizes)


def sign_dynamic_update_slice(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The operand as it is, and an update that is seen whole where it is smaller.

    >>> print(sign_dynamic_update_slice([(8, 6), (8, 2), (), ()], {}).notation)
    i0 i1, i0 [u1], ,  -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    update = [
        dims[dim] if size == small else whole(f"u{dim}")
        for dim, (size, small) in enumerate(zip(shapes[0], shapes[1]))
    ]
    return Signature(Notation([dims, update, *[()] * (len(shapes) - 2)], [dims]), shapes)


_MOVES = {"any": [(0,)]}
_TOGETHER = {"any": [(0, 1)]}


def _move(name: str, sign: Sign, kernel: Kernel = moves.move, passes: Passes = "") -> None:
    keeps: Keeps = _MOVES
    rule: Dtypes = like_first
    conversion: Conversion = separate
    if kernel in (moves.pad, moves.dynamic_update_slice):
        keeps, conversion, rule = _TOGETHER, _as_first, _first_pair
    OPERATORS.add(
        Operator(name, sign, kernel, passes, keeps, flops=0, dtypes=rule, conversion=conversion)
    )


def _as_first(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert the second operand to the dtype of the first; places stay as they are."""
    first, second, *places = operands
    if isinstance(second, str) and isinstance(first, str) and promote(first, second) != first:
        raise WeftError(
            f"{second} does not fit into {first}", hint=f"convert it: .astype({first!r})"
        )
    dtype = result_type(first, *(() if isinstance(second, str) else (second,)))
    if dtype != first:
        raise WeftError(f"{second!r} does not fit into {first}")
    return [dtype, dtype, *(place if isinstance(place, str) else "int64" for place in places)]


def _first_pair(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return like_all(dtypes[:2], attributes)


_move("reshape", sign_reshape, moves.reshape, "both")
_move("transpose", sign_transpose, passes="both")
_move("dynamic_slice", sign_dynamic_slice, moves.dynamic_slice, "forward")
_move("dynamic_update_slice", sign_dynamic_update_slice, moves.dynamic_update_slice, "forward")
_move("broadcast_in_dim", sign_broadcast_in_dim, passes="backward")
_move("reverse", sign_reverse)
_move("slice", sign_slice)
_move("pad", sign_pad, moves.pad)
OPERATORS.add(
    Operator(
        "concatenate",
        sign_concatenate,
        moves.concatenate,
        keeps={"any": [...]},
        flops=0,
        dtypes=like_all,
        conversion=together,
    )
)
OPERATORS.add(Operator("constant", sign_made, moves.constant, flops=0))
OPERATORS.add(
    Operator(
        "iota",
        sign_made,
        moves.iota,
        flops=0,
        dtypes=lambda _, attributes: [attributes.get("dtype") or "int64"],
    )
)
OPERATORS.add(Operator("bitcast_convert", sign_bitcast_convert, passes="both", flops=0))
