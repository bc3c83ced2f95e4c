"""Calls of code that someone else wrote, by the name of the target: those that are known.

An operator named `custom_call @target` is what a custom call of that target means; a user adds one
as any other operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.library.rows import numbered, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Operator
from weft.lang.signature import Signature
from weft.values import Point

ALIKE = """
    annotate_device_placement Cholesky CompactWyHelper InspectSharding LayoutConstraint mhlo.erf
    InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular X64SplitHigh X64SplitLow
    xla.megascale.provide_metadata
"""
"""The targets whose operands and results all have one shape, dimension by dimension."""


def sign_alike(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """All operands and results alike.

    >>> print(sign_alike([(8, 4)], {"result_shapes": ((8, 4), (8, 4))}).notation)
    i0 i1 -> i0 i1, i0 i1
    """
    results = _results(attributes)
    if len({*shapes, *results}) > 1:
        raise WeftError(f"the shapes differ: {', '.join(map(str, (*shapes, *results)))}")
    dims = numbered("i", len(next(chain(shapes, results), ())))
    return Signature(Notation([dims] * len(shapes), [dims] * len(results)), shapes)


def sign_combine(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Two halves of 64-bit numbers; the state of a random generator stays whole.

    >>> print(sign_combine([(8,), (8,)], {"result_shapes": ((8,),)}).notation)
    i0, i0 -> i0
    >>> print(sign_combine([(8,), (8,)], {"result_shapes": ((8,),), "is_state": True}).notation)
    [a0], [b0] -> [r0]
    """
    if not attributes.get("is_state"):
        return sign_alike(shapes, attributes)
    (result,) = _results(attributes)
    a, b, r = ([whole(f"{name}{dim}") for dim in range(len(result))] for name in "abr")
    return Signature(Notation([a, b], [r]), shapes, _sizes("r", result))


def sign_eigh(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Eigenvectors and eigenvalues of batches of matrices.

    >>> print(sign_eigh([(8, 6, 6)], {}).notation)
    b0 m n -> b0 m n, b0 n
    """
    batch = numbered("b", len(shapes[0]) - 2)
    m, n = Row((("m", 1),)), Row((("n", 1),))
    return Signature(Notation([(*batch, m, n)], [(*batch, m, n), (*batch, n)]), shapes)


def sign_qr(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Reflectors and their factors, of batches of matrices that are seen whole.

    >>> print(sign_qr([(8, 6, 4)], {"result_shapes": ((8, 6, 4), (8, 4))}).notation)
    b0 [m] [n] -> b0 [m] [n], b0 [k]
    """
    batch = numbered("b", len(shapes[0]) - 2)
    matrix = (*batch, whole("m"), whole("n"))
    size = {"k": _results(attributes)[1][-1]}
    return Signature(Notation([matrix], [matrix, (*batch, whole("k"))]), shapes, size)


def sign_householder(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """The product of reflectors, seen whole but for batches.

    >>> print(sign_householder([(8, 6, 4), (8, 4)], {}).notation)
    b0 [m] [n], b0 [k] -> b0 [m] [n]
    """
    batch = numbered("b", len(shapes[0]) - 2)
    matrix = (*batch, whole("m"), whole("n"))
    return Signature(Notation([matrix, (*batch, whole("k"))], [matrix]), shapes)


def sign_top_k(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Whole along the dimension of which the largest are taken.

    >>> print(sign_top_k([(8, 6)], {"result_shapes": ((8, 2), (8, 2))}).notation)
    i0 [i1] -> i0 [o1<i1], i0 [p1<i1]
    """
    values, places = _results(attributes)
    operand, first, second = list[Row](), list[Row](), list[Row]()
    sizes: dict[str, int] = {}
    for dim, (size, made) in enumerate(zip(shapes[0], values)):
        rows = [Row(((f"i{dim}", 1),))] * 3
        if size != made:
            source = f"i{dim}"
            rows = [whole(source), whole(f"o{dim}", source), whole(f"p{dim}", source)]
            sizes |= {f"o{dim}": made, f"p{dim}": places[dim]}
        for tensor, row in zip((operand, first, second), rows):
            tensor.append(row)
    return Signature(Notation([operand], [first, second]), shapes, sizes)


def sign_partial_reduce(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Values with their places, of which some are kept: those of a part may be all that count.

    >>> made = {"result_shapes": ((8, 2), (8, 2))}
    >>> print(sign_partial_reduce([(8, 6), (8, 6), (), ()], made).notation)
    i0 i1, i0 i1, ,  -> i0 [o1], i0 [p1]
    """
    values, places = _results(attributes)
    dims = numbered("i", len(shapes[0]))
    first, second = list(dims), list(dims)
    sizes: dict[str, int] = {}
    for dim, (size, made) in enumerate(zip(shapes[0], values)):
        if size != made:
            first[dim], second[dim] = whole(f"o{dim}"), whole(f"p{dim}")
            sizes |= {f"o{dim}": made, f"p{dim}": places[dim]}
    return Signature(Notation([dims, dims, (), ()], [first, second]), shapes, sizes)


def _results(attributes: Attributes) -> tuple[Point, ...]:
    return tuple(map(tuple, attributes["result_shapes"]))


def _sizes(name: str, shape: Point) -> dict[str, int]:
    return {f"{name}{dim}": size for dim, size in enumerate(shape)}


for _target in ALIKE.split():
    OPERATORS.add(Operator(f"custom_call @{_target}", sign_alike))
for _target in ("MoveToDevice", "MoveToHost"):
    OPERATORS.add(Operator(f"custom_call @{_target}", sign_alike, passes="both"))
OPERATORS.add(Operator("custom_call @X64Combine", sign_combine))
OPERATORS.add(Operator("custom_call @Eigh", sign_eigh))
for _target in ("Qr", "QrDecompositionBlock"):
    OPERATORS.add(Operator(f"custom_call @{_target}", sign_qr))
OPERATORS.add(Operator("custom_call @ProductOfElementaryHouseholderReflectors", sign_householder))
OPERATORS.add(Operator("custom_call @mhlo.topk", sign_top_k))
for _target in ("ApproxTopK", "PartialReduce"):
    OPERATORS.add(Operator(f"custom_call @{_target}", sign_partial_reduce))
