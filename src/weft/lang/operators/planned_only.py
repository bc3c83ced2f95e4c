"""Operators that are planned and have no kernel: collectives and custom calls.

An operator named `custom_call @target` is the custom call of that target; a user adds one like any
other operator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

from weft.errors import WeftError
from weft.lang.kernel import Attributes
from weft.lang.notation import Notation, Row, numbered, whole
from weft.lang.operator import Passes, Sign, define
from weft.lang.operators.pointwise import sign_pointwise
from weft.lang.signature import Signature
from weft.values import Point


def sign_all_reduce(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign as many results as operands, all of one shape."""
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims] * len(shapes), [dims] * len(shapes)), shapes)


def _change_dims(shapes: Sequence[Point], result: Point, changed: Collection[int]) -> Signature:
    """Sign operands and results that share all dimensions but some, which are not cut.

    >>> print(_change_dims([(8, 4)], (16, 4), [0]))
    [i0] j1 -> [o0] j1  {o0=16, j1=4, i0=8}
    """
    kept = numbered("j", len(result))
    operand = [whole(f"i{dim}") if dim in changed else row for dim, row in enumerate(kept)]
    new = [whole(f"o{dim}") if dim in changed else row for dim, row in enumerate(kept)]
    sizes = {f"o{dim}": result[dim] for dim in changed}
    return Signature(Notation([operand] * len(shapes), [new] * len(shapes)), shapes, sizes)


def sign_all_gather(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign parts that are joined along a dimension, which is not cut."""
    return _change_dims(shapes, attributes["result_shape"], [attributes["all_gather_dim"]])


def sign_reduce_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a result that is scattered along a dimension, which is not cut."""
    return _change_dims(shapes, attributes["result_shape"], [attributes["scatter_dimension"]])


def sign_all_to_all(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an exchange of two dimensions, which are not cut."""
    changed = {attributes["split_dimension"], attributes["concat_dimension"]}
    return _change_dims(shapes, attributes["result_shape"], sorted(changed))


ALIKE = """
    annotate_device_placement Cholesky CompactWyHelper InspectSharding LayoutConstraint mhlo.erf
    InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular X64SplitHigh X64SplitLow
    xla.megascale.provide_metadata
"""
"""The targets whose operands and results all have one shape."""


def sign_alike(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign operands and results of one shape.

    >>> print(sign_alike([(8, 4)], {"result_shapes": ((8, 4), (8, 4))}).notation)
    i0 i1 -> i0 i1, i0 i1
    """
    results = _results(attributes)
    if len({*shapes, *results}) > 1:
        raise WeftError(f"the shapes differ: {', '.join(map(str, (*shapes, *results)))}")
    dims = numbered("i", len(next(chain(shapes, results), ())))
    return Signature(Notation([dims] * len(shapes), [dims] * len(results)), shapes)


def sign_combine(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign two halves of 64-bit numbers; the state of a random generator is not cut.

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
    """Sign the eigenvectors and eigenvalues of batches of matrices.

    >>> print(sign_eigh([(8, 6, 6)], {}).notation)
    b0 m n -> b0 m n, b0 n
    """
    batch = numbered("b", len(shapes[0]) - 2)
    m, n = Row((("m", 1),)), Row((("n", 1),))
    return Signature(Notation([(*batch, m, n)], [(*batch, m, n), (*batch, n)]), shapes)


def sign_qr(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign reflectors and their factors, for batches of matrices.

    >>> print(sign_qr([(8, 6, 4)], {"result_shapes": ((8, 6, 4), (8, 4))}).notation)
    b0 [m] [n] -> b0 [m] [n], b0 [k]
    """
    batch = numbered("b", len(shapes[0]) - 2)
    matrix = (*batch, whole("m"), whole("n"))
    size = {"k": _results(attributes)[1][-1]}
    return Signature(Notation([matrix], [matrix, (*batch, whole("k"))]), shapes, size)


def sign_householder(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign products of reflectors, for batches of matrices.

    >>> print(sign_householder([(8, 6, 4), (8, 4)], {}).notation)
    b0 [m] [n], b0 [k] -> b0 [m] [n]
    """
    batch = numbered("b", len(shapes[0]) - 2)
    matrix = (*batch, whole("m"), whole("n"))
    return Signature(Notation([matrix, (*batch, whole("k"))], [matrix]), shapes)


def sign_top_k(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the largest elements along a dimension, which is not cut, and their indices.

    >>> print(sign_top_k([(8, 6)], {"result_shapes": ((8, 2), (8, 2))}).notation)
    i0 [i1] -> i0 [o1<i1], i0 [p1<i1]
    """
    values, indices = _results(attributes)
    operand, first, second = list[Row](), list[Row](), list[Row]()
    sizes: dict[str, int] = {}
    for dim, (size, count) in enumerate(zip(shapes[0], values)):
        rows = [Row(((f"i{dim}", 1),))] * 3
        if size != count:
            source = f"i{dim}"
            rows = [whole(source), whole(f"o{dim}", source), whole(f"p{dim}", source)]
            sizes |= {f"o{dim}": count, f"p{dim}": indices[dim]}
        for tensor, row in zip((operand, first, second), rows):
            tensor.append(row)
    return Signature(Notation([operand], [first, second]), shapes, sizes)


def sign_partial_reduce(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign values with their indices, of which some are kept.

    >>> shapes = {"result_shapes": ((8, 2), (8, 2))}
    >>> print(sign_partial_reduce([(8, 6), (8, 6), (), ()], shapes).notation)
    i0 i1, i0 i1, ,  -> i0 [o1], i0 [p1]
    """
    values, indices = _results(attributes)
    dims = numbered("i", len(shapes[0]))
    first, second = list(dims), list(dims)
    sizes: dict[str, int] = {}
    for dim, (size, count) in enumerate(zip(shapes[0], values)):
        if size != count:
            first[dim], second[dim] = whole(f"o{dim}"), whole(f"p{dim}")
            sizes |= {f"o{dim}": count, f"p{dim}": indices[dim]}
    return Signature(Notation([dims, dims, (), ()], [first, second]), shapes, sizes)


def _results(attributes: Attributes) -> tuple[Point, ...]:
    return tuple(map(tuple, attributes["result_shapes"]))


def _sizes(name: str, shape: Point) -> dict[str, int]:
    return {f"{name}{dim}": size for dim, size in enumerate(shape)}


def _add(name: str, sign: Sign, attributes: str = "", passes: Passes = "") -> None:
    define(name, sign, passes=passes, attributes=attributes)


_add("all_reduce", sign_all_reduce)
_add("collective_broadcast", sign_pointwise)
_add("collective_permute", sign_pointwise)
_add("cross-replica-sum", sign_pointwise)
_add("all_gather", sign_all_gather, "all_gather_dim result_shape")
_add("reduce_scatter", sign_reduce_scatter, "scatter_dimension result_shape")
_add(
    "all_to_all",
    sign_all_to_all,
    "split_dimension concat_dimension split_count result_shape",
)
for _targets, _sign, _passes in (
    (ALIKE, sign_alike, ""),
    ("MoveToDevice MoveToHost", sign_alike, "both"),
    ("X64Combine", sign_combine, ""),
    ("Eigh", sign_eigh, ""),
    ("Qr QrDecompositionBlock", sign_qr, ""),
    ("ProductOfElementaryHouseholderReflectors", sign_householder, ""),
    ("mhlo.topk", sign_top_k, ""),
    ("ApproxTopK PartialReduce", sign_partial_reduce, ""),
):
    for _target in _targets.split():
        _add(
            f"custom_call @{_target}",
            _sign,
            "result_shapes is_state",
            "both" if _passes else "",
        )
