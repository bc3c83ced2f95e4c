"""Staged forms: operators that see a dimension whole, as steps that see a part of it each.

Where a dimension is too large for a cell, or should be cut for speed, a plan uses these instead of
the operator. All of them are made of the operators of the library, so that nothing else has to be
proved or priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isqrt, nan, pi
from typing import TYPE_CHECKING, Any

from weft.lang import ops
from weft.lang.arithmetic import apply
from weft.lang.dtype import accumulator, bounds, kind, real_dtype
from weft.lang.notation import axis_of

if TYPE_CHECKING:
    from weft.lang.graph import Graph
    from weft.lang.rewrite import Match, Rewrite
    from weft.lang.trace import Symbol

Values = Mapping[str, Any]


def staged_forms(blocks: int) -> Iterator[Rewrite]:
    """Return the rewrites of operators as staged forms; scans and sorts take that many blocks."""
    from weft.lang.rewrite import Rewrite

    yield Rewrite("log_softmax in stages", ("log_softmax", "x"), _log_softmax)
    for operands in (("x",), ("x", "w"), ("x", "w", "b")):
        yield Rewrite(_named("layer_norm", operands), ("layer_norm", *operands), _layer_norm)
    for operands in (("x",), ("x", "w")):
        yield Rewrite(_named("rms_norm", operands), ("rms_norm", *operands), _rms_norm)
    yield Rewrite(
        "cumsum in blocks",
        ("cumsum", "x"),
        lambda v, match: _cumsum(v, match, blocks),
        lambda graph, match: _extent(graph, match, "cumsum") >= 2,
        makes_blocks=True,
    )
    yield Rewrite(
        "sort in columns",
        ("sort", "x"),
        lambda v, match: _sort(v, match, blocks),
        lambda graph, match: _can_sort(graph, match, blocks),
        makes_blocks=True,
    )

    yield Rewrite(
        "fft in two steps",
        ("fft", "x"),
        lambda v, match: _fft(v, match, blocks),
        lambda graph, match: _can_transform(graph, match, blocks),
        makes_blocks=True,
    )
    for operands in (("a", "b"), ("a", "b", "c")):
        name = f"concatenate {len(operands)} by padding"
        yield Rewrite(name, ("concatenate", *operands), _concatenate)


def _named(operator: str, operands: tuple[str, ...]) -> str:
    more = {1: "", 2: ", scaled", 3: ", scaled and shifted"}
    return f"{operator}{more[len(operands)]} in stages"


def wide(x: Symbol) -> Symbol:
    """Return a value in the accumulator's dtype, so that stages round once."""
    return typed(accumulator(x.dtype), x)


def typed(dtype: str, x: Symbol) -> Symbol:
    """Return a value in a dtype."""
    converted: Symbol = x if x.dtype == dtype else x.astype(dtype)
    return converted


def _log_softmax(v: Values, match: Match) -> Symbol:
    dim, x = match.attributes("log_softmax").get("dimension", -1), wide(v["x"])
    apart = x - x.max(dim, keepdims=True)
    total = ops.log(ops.exp(apart).sum(dim, keepdims=True))
    return typed(v["x"].dtype, apart - total)


def _layer_norm(v: Values, match: Match) -> Symbol:
    x = wide(v["x"])
    apart = x - x.mean(-1, keepdims=True)
    return _normed(apart, v, match.attributes("layer_norm").get("eps", 1e-5))


def _rms_norm(v: Values, match: Match) -> Symbol:
    return _normed(wide(v["x"]), v, match.attributes("rms_norm").get("eps", 1e-6))


def _normed(x: Symbol, v: Values, eps: float) -> Symbol:
    """Divide by the root of the mean square; then scale and shift by the vectors, if any."""
    made = x / ops.sqrt((x * x).mean(-1, keepdims=True) + eps)
    made = made * wide(v["w"]) if "w" in v else made
    made = made + wide(v["b"]) if "b" in v else made
    return typed(v["x"].dtype, made)


def _axis(x: Any, match: Match, operator: str) -> int:
    return axis_of(match.attributes(operator).get("dimension", -1), x.shape)


def _extent(graph: Graph, match: Match, operator: str) -> int:
    x = graph.values[match.values["x"]]
    return x.shape[_axis(x, match, operator)]


def _padded(x: Any, axis: int, low: int, high: int, below: Any, above: Any) -> Any:
    """Return an array with more elements before and after those along an axis."""
    for count, value, end in ((low, below, "low"), (high, above, "high")):
        if count:
            edges = {f"edge_padding_{each}": (0,) * x.ndim for each in ("low", "high")}
            edges[f"edge_padding_{end}"] = tuple(count * (n == axis) for n in range(x.ndim))
            x = apply("pad", x, value, interior_padding=(0,) * x.ndim, **edges)
    return x


def _sliced(x: Any, axis: int, start: int, size: int) -> Any:
    """Return a part of an array along an axis."""
    if (start, size) == (0, x.shape[axis]):
        return x
    return x[(*(slice(None),) * axis, slice(start, start + size))]


def _split(x: Any, axis: int, count: int, size: int) -> Any:
    """Return one dimension of an array as two."""
    return x.reshape((*x.shape[:axis], count, size, *x.shape[axis + 1 :]))


def _joined(x: Any, axis: int) -> Any:
    """Return two dimensions of an array as one."""
    shape = x.shape
    return x.reshape((*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _concatenate(v: Values, match: Match) -> Symbol:
    """Pad every array to the whole size, and select by position."""
    operands = list(map(v.__getitem__, sorted(v, key=list("abc").index)))
    axis = match.attributes("concatenate")["dimension"]
    size = sum(x.shape[axis] for x in operands)
    zero = False if kind(operands[0].dtype) == "bool" else 0
    first, *others = operands
    made, stop = _padded(first, axis, 0, size - first.shape[axis], zero, zero), first.shape[axis]
    small = "int32" if size < 1 << 31 else "int64"
    counted = {"iota_dimension": 0, "dtype": small, "result_shape": (size,)}
    (place,) = first.__weft_apply__("iota", (), counted)
    place = place.reshape((size, *(1,) * (first.ndim - axis - 1)))
    for x in others:
        width = x.shape[axis]
        more = _padded(x, axis, stop, size - stop - width, zero, zero)
        made, stop = ops.where(place < stop, made, more), stop + width
    result: Symbol = made
    return result


def _cumsum(v: Values, match: Match, blocks: int) -> Symbol:
    """Scan every block, scan the totals of the blocks, and add to each what is before it."""
    attributes, axis = match.attributes("cumsum"), _axis(v["x"], match, "cumsum")
    (result,) = _sum_dtypes(v["x"].dtype, attributes)
    x, size = typed(accumulator(result), v["x"]), v["x"].shape[axis]
    count = min(blocks, size)
    width = -(-size // count)
    parts = _split(_padded(x, axis, 0, count * width - size, 0, 0), axis, count, width)
    order = {"reverse": attributes.get("reverse", False), "dtype": x.dtype}
    exclusive = attributes.get("exclusive", False)
    inside = apply("cumsum", parts, dimension=axis + 1, exclusive=exclusive, **order)
    totals = parts.sum(axis + 1, dtype=x.dtype)
    before = apply("cumsum", totals, dimension=axis, exclusive=True, **order)
    made = _joined(inside + ops.expand_dims(before, axis + 1), axis)
    return typed(result, _sliced(made, axis, 0, size))


def _sum_dtypes(dtype: str, attributes: Mapping[str, Any]) -> Any:
    from weft.lang.operator import OPERATORS

    return OPERATORS["cumsum"].dtypes([dtype], attributes)


# Leighton's columnsort ("Tight bounds on the complexity of parallel sorting", 1985): an array of
# r * s elements is sorted by sorting columns of r elements four times, and by moves between that
# do not depend on the values, if s divides r, r is even and r >= 2 (s - 1)^2.


def _columns(size: int, blocks: int) -> tuple[int, int]:
    """Return the number of columns and their length; fewer than two columns where too few fit.

    There are twice as many columns as blocks, so that each block has some of them evenly.

    >>> _columns(1 << 20, 8), _columns(7, 4), _columns(2, 4)
    ((16, 65536), (2, 4), (1, 2))
    """
    for count in (2 * blocks, *range(blocks, 1, -1)):
        even = count if count % 2 == 0 else 2 * count
        length = -(-size // (count * even)) * even
        if length >= 2 * (count - 1) ** 2 and (count - 1) * length < size:
            return count, length
    return 1, size


def _can_sort(graph: Graph, match: Match, blocks: int) -> bool:
    x, order = graph.values[match.values["x"]], match.attributes("sort")
    plain = order.get("comparison_direction", "LT") in ("LT", "LE", "GT", "GE")
    numbers = kind(x.dtype) != "complex"
    return plain and numbers and _columns(_extent(graph, match, "sort"), blocks)[0] > 1


def _sort(v: Values, match: Match, blocks: int) -> Symbol:
    attributes, x = match.attributes("sort"), v["x"]
    axis = _axis(x, match, "sort")
    size = x.shape[axis]
    count, length = _columns(size, blocks)
    first, last = _ends(x.dtype)
    if attributes.get("comparison_direction", "LT") in ("GT", "GE"):
        first, last = last, first

    def columns(parts: Any) -> Any:
        return apply("sort", parts, **{**attributes, "dimension": axis + 1})

    def turned(parts: Any) -> Any:
        order = [*range(parts.ndim)]
        order[axis], order[axis + 1] = axis + 1, axis
        return parts.transpose(*order)

    whole = count * length
    parts = columns(_split(_padded(x, axis, 0, whole - size, first, last), axis, count, length))
    parts = columns(turned(_split(_joined(parts, axis), axis, length, count)))
    parts = columns(_split(_joined(turned(parts), axis), axis, count, length))
    half, more = length // 2, blocks if count % blocks == 0 else 1
    behind = more * length - half
    shifted = _padded(_joined(parts, axis), axis, half, behind, first, last)
    made = _joined(columns(_split(shifted, axis, count + more, length)), axis)
    result: Symbol = _sliced(made, axis, half, size)
    return result


def _ends(dtype: str) -> tuple[Any, Any]:
    """Return what comes first and last in ascending order: NaN is behind all numbers."""
    match kind(dtype):
        case "bool":
            return False, True
        case "int" | "uint":
            return bounds(dtype)
        case _:
            return -inf, nan


# The four-step transform (Bailey, "FFTs in external or hierarchical memory", 1990): of n1 * n2
# elements as a matrix, transforms along the columns, a factor for each element, and transforms
# along the rows.


def _factors(size: int, blocks: int) -> tuple[int, int]:
    """Return two factors of a size: near its root, and multiples of the blocks where they can be.

    >>> _factors(1 << 20, 8), _factors(6, 4), _factors(7, 4)
    ((1024, 1024), (2, 3), (1, 7))
    """
    most = min(isqrt(size), 1 << 20)
    pairs = [(n, size // n) for n in range(1, most + 1) if size % n == 0] or [(1, size)]
    return max(pairs, key=lambda pair: (pair[0] > 1, sum(n % blocks == 0 for n in pair), pair))


def _can_transform(graph: Graph, match: Match, blocks: int) -> bool:
    attributes, x = match.attributes("fft"), graph.values[match.values["x"]]
    lengths = tuple(attributes["fft_length"])
    plain = attributes.get("fft_type", "FFT") in ("FFT", "IFFT") and lengths == x.shape[-1:]
    return plain and _factors(lengths[0], blocks)[0] > 1


def _fft(v: Values, match: Match, blocks: int) -> Symbol:
    attributes, x = match.attributes("fft"), v["x"]
    name, (size,) = attributes.get("fft_type", "FFT"), attributes["fft_length"]
    rows, columns = _factors(size, blocks)

    def turned(parts: Any) -> Any:
        return parts.transpose(*range(parts.ndim - 2), parts.ndim - 1, parts.ndim - 2)

    def transformed(parts: Any) -> Any:
        return apply("fft", parts, fft_type=name, fft_length=parts.shape[-1:])

    first = transformed(turned(x.reshape((*x.shape[:-1], rows, columns))))
    turn = _turns(x, columns, rows, -1 if name == "FFT" else 1, first.dtype)
    second = transformed(turned(first * turn))
    made: Symbol = turned(second).reshape(x.shape)
    return made


def _turns(x: Any, height: int, width: int, sign: int, dtype: str) -> Any:
    """Return exp(sign * 2πi * b * k / n), for b and k below the height and the width."""
    real = "float64" if height * width >= 1 << 24 else real_dtype(dtype)
    lines = []
    for size, shape in ((height, (height, 1)), (width, (1, width))):
        counted = {"iota_dimension": 0, "dtype": "int64", "result_shape": (size,)}
        lines.append(x.__weft_apply__("iota", (), counted)[0].reshape(shape))
    angle = (lines[0] * lines[1]).astype(real) * (sign * 2 * pi / (height * width))
    return typed(dtype, apply("complex", ops.cos(angle), ops.sin(angle)))
