"""Operators that slide a window: pooling, and its transpose.

    avg_pool             i0 4*i1+:4 -> i0 i1
    reduce_window        i0 4*i1+:4, + -> i0 i1
    select_and_scatter   i0 i1-3+:7, i0 [s1], -> i0 i1

Kernels count positions of the padded, dilated array: element `a` of an operand is at position
`base * a`, and window `y` begins at position `stride * y - low`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang.dtype import as_quotients, for_kinds, like_all
from weft.lang.kernel import Attributes, Block, Kernel, along
from weft.lang.monoid import combination, identity
from weft.lang.notation import Notation, Row, numbered, whole
from weft.lang.operator import define
from weft.lang.operators.reduce import each_input
from weft.lang.signature import Signature
from weft.values import Point

Both = Callable[[Any, Any], Any]


class Window(NamedTuple):
    """A window that slides along one dimension."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    dilation: int = 1

    @property
    def extent(self) -> int:
        """The positions from its first element to its last."""
        return (self.size - 1) * self.dilation + 1

    @property
    def is_single(self) -> bool:
        """Whether every window is one element, in its own position."""
        return self[:5] == (1, 1, 0, 0, 1)

    @property
    def offsets(self) -> range:
        """The positions of its elements, from its first."""
        return range(0, self.size * self.dilation, self.dilation)

    def count(self, size: int) -> int:
        """Return the number of windows along a dimension."""
        padded = self.low + max(0, (size - 1) * self.base + 1) + self.high
        return (padded - self.extent) // self.stride + 1 if padded >= self.extent else 0

    def positions(self, windows: range, offsets: Sequence[int]) -> range:
        """Return the positions that windows see at some offsets, from the first to the last."""
        if not windows or not offsets:
            return range(0)
        first = self.stride * windows.start - self.low + min(offsets)
        return range(first, self.stride * (windows.stop - 1) - self.low + max(offsets) + 1)


def windows_of(
    sizes: Sequence[int], attributes: Attributes, base: str = "", dilation: str = ""
) -> list[Window]:
    """Return the windows of an application, one for each dimension that they slide along.

    `base` and `dilation` name the attributes of the two dilations.
    """
    ones, padding = (1,) * len(sizes), attributes.get("padding", (0, 0) * len(sizes))
    for name in filter(None, ("window_strides", base, dilation)):
        _check_each(name, attributes.get(name, ones), len(sizes), 1)
    return [
        Window(*each)
        for each in zip(
            sizes,
            attributes.get("window_strides", ones),
            padding[::2],
            padding[1::2],
            attributes.get(base, ones),
            attributes.get(dilation, ones),
        )
    ]


def _pool_row(name: str, window: Window) -> Row:
    """Return the row of an operand that windows are taken from."""
    if window.is_single:
        return Row(((name, 1),))
    return Row(((name, window.stride),), -window.low, window.extent, divisor=window.base)


def sign_reduce_window(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a window of each input for each element of its result.

    >>> pool = {"window_dimensions": (1, 4), "window_strides": (1, 4)}
    >>> print(sign_reduce_window([(8, 16), ()], pool))
    i0 4*i1+:4, +  -> i0 i1  {i0=8, i1=4}
    """
    count = len(shapes) // 2
    windows = windows_of(
        attributes["window_dimensions"], attributes, "base_dilations", "window_dilations"
    )
    sizes = {f"i{dim}": w.count(n) for dim, (w, n) in enumerate(zip(windows, shapes[0]))}
    rows = [_pool_row(f"i{dim}", window) for dim, window in enumerate(windows)]
    operands = [rows] * count + [()] * count
    results = [numbered("i", len(rows))] * count
    return Signature(Notation(operands, results, once=range(count, 2 * count)), shapes, sizes)


def sign_select_and_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an operand like the result; the source is not cut where windows have several elements.

    >>> pool = {"window_dimensions": (1, 4), "window_strides": (1, 4)}
    >>> print(sign_select_and_scatter([(8, 16), (8, 4), ()], pool).notation)
    i0 i1-3+:7, i0 [s1],  -> i0 i1
    """
    windows = windows_of(attributes["window_dimensions"], attributes)
    counts = tuple(window.count(size) for window, size in zip(windows, shapes[0]))
    if tuple(shapes[1]) != counts:
        raise WeftError(f"there are {list(counts)} windows, and a source of {list(shapes[1])}")
    dims, sizes = numbered("i", len(windows)), {f"i{d}": n for d, n in enumerate(shapes[0])}
    operand, source = list(dims), list(dims)
    for dim, window in enumerate(windows):
        if not window.is_single:
            extent = max(2, window.extent)
            operand[dim] = Row(((f"i{dim}", 1),), 1 - extent, 2 * extent - 1)
            source[dim] = whole(f"s{dim}")
    return Signature(Notation([operand, source, ()], [dims]), shapes, sizes)


def sign_pool(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign windows over the last dimensions: `window`, `strides`, `padding` (low, high of each).

    >>> print(sign_pool([(8, 16)], {"window": (4,)}))
    i0 4*i1+:4 -> i0 i1  {i0=8, i1=4}
    """
    (shape,), window = shapes, attributes["window"]
    if not 0 < len(window) <= len(shape):
        raise WeftError(f"a window {tuple(window)} does not slide over {list(shape)}")
    _check_each("window", window, len(window), 1)
    _check_each("strides", attributes.get("strides") or window, len(window), 1)
    _check_each("padding", attributes.get("padding") or (0, 0) * len(window), 2 * len(window), 0)
    line = sign_reduce_window([shape, ()], _over_all_dims(len(shape), attributes))
    return Signature(
        Notation(line.notation.operands[:1], line.notation.results), shapes, line.sizes
    )


def _check_each(what: str, given: Sequence[int], count: int, least: int) -> None:
    if len(given) != count or any(n < least for n in given):
        raise WeftError(f"{what} {tuple(given)}: expected {count} numbers of at least {least}")


def _over_all_dims(rank: int, attributes: Attributes) -> dict[str, Point]:
    """Return the attributes of pooling over the last dimensions, for all dimensions.

    Strides default to the window's size, padding to none.

    >>> _over_all_dims(3, {"window": (2, 3), "padding": (0, 0, 1, 1)})["padding"]
    (0, 0, 0, 0, 1, 1)
    """
    window = tuple(attributes["window"])
    rest = rank - len(window)
    padding = tuple(attributes.get("padding") or (0, 0) * len(window))
    return {
        "window_dimensions": (1,) * rest + window,
        "window_strides": (1,) * rest + tuple(attributes.get("strides") or window),
        "padding": (0, 0) * rest + padding,
    }


def place(xp: Any, x: Any, axis: int, first: int, positions: range, base: int, value: Any) -> Any:
    """Return an array over a range of positions, `base` apart, with a value elsewhere.

    The first element along the axis is number `first`.

    >>> import numpy
    >>> place(numpy, numpy.asarray([1, 2, 3]), 0, 4, range(9, 14), 2, 0)
    array([0, 2, 0, 3, 0])
    """
    size = x.shape[axis]
    if base == 1 and size:
        low = min(max(positions.start, first), first + size)
        high = max(low, min(positions.stop, first + size))
        x = x[along(axis, slice(low - first, high - first))]
        if low == high:
            return _extend(xp, x, axis, len(positions), 0, value)
        return _extend(xp, x, axis, low - positions.start, positions.stop - high, value)
    parts = [divmod(position, base) for position in positions]
    inside = [rest == 0 and first <= at < first + size for at, rest in parts]
    if not any(inside):
        shape = (*x.shape[:axis], len(positions), *x.shape[axis + 1 :])
        return xp.full(shape, value, dtype=x.dtype)
    taken = [at - first if ok else 0 for (at, _), ok in zip(parts, inside)]
    x = xp.take(x, xp.asarray(taken), axis=axis)
    here = xp.reshape(xp.asarray(inside), (len(inside), *(1,) * (x.ndim - axis - 1)))
    return xp.where(here, x, xp.full_like(x, value))


def _extend(xp: Any, x: Any, axis: int, before: int, after: int, value: Any) -> Any:
    """Return an array with a value before and after it along an axis."""
    parts = []
    for count in (before, after):
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        parts.append(xp.full(shape, value, dtype=x.dtype) if count else None)
    kept = [part for part in (parts[0], x, parts[1]) if part is not None]
    return kept[0] if len(kept) == 1 else xp.concat(kept, axis=axis)


def stepped(axis: int, start: int, count: int, step: int) -> tuple[Any, ...]:
    """Return the index of every `step`-th element along an axis."""
    return along(axis, slice(start, start + step * (count - 1) + 1, step))


def combine_windows(xp: Any, x: Any, axis: int, window: Window, both: Both) -> Any:
    """Combine the windows that begin at every position: each from two of half its size."""

    def run(size: int) -> Any:
        if size == 1:
            return x
        half = run(size // 2)
        pairs = _pair(half, half, axis, window.dilation * (size // 2), both)
        return pairs if size % 2 == 0 else _pair(pairs, x, axis, window.dilation * (size - 1), both)

    return run(window.size)


def _pair(one: Any, two: Any, axis: int, step: int, both: Both) -> Any:
    """Combine each element with that of another array some positions on."""
    count = min(one.shape[axis], two.shape[axis] - step)
    return both(one[along(axis, slice(0, count))], two[along(axis, slice(step, step + count))])


def pool(block: Block, x: Any, monoid: str, windows: Sequence[Window]) -> Any:
    """Combine the elements of each window, dimension by dimension."""
    xp, empty = block.xp, identity(block.xp, monoid, x.dtype)
    both = combination(xp, monoid, x.dtype)
    if block.box.is_empty:
        return xp.full(block.results[0].shape, empty, dtype=x.dtype)
    for axis, (window, first) in enumerate(zip(windows, block.operands[0].start)):
        span = block.span(f"i{axis}")
        if window.is_single and len(span) == x.shape[axis]:
            continue
        positions = window.positions(span, window.offsets)
        x = place(xp, x, axis, first, positions, window.base, empty)
        x = combine_windows(xp, x, axis, window, both)
        x = x[stepped(axis, 0, len(span), window.stride)]
    return x


def _known_monoid(attributes: Attributes) -> str:
    if attributes.get("region") in ("custom", "replace"):
        raise WeftError("windows combined by a custom region cannot be run box by box")
    return str(attributes.get("monoid", "sum"))


def reduce_window(block: Block, *operands: Any) -> Any:
    """Reduce the windows of each input, and combine them with its initial value once."""
    at, monoid = block.attributes, _known_monoid(block.attributes)
    windows = windows_of(at["window_dimensions"], at, "base_dilations", "window_dilations")
    half = len(operands) // 2
    results = []
    for x, init in zip(operands[:half], operands[half:]):
        both = combination(block.xp, monoid, x.dtype)
        results.append(both(pool(block, x, monoid, windows), init))
    return tuple(results)


def pooling(monoid: str, mean: bool = False) -> Kernel:
    """Return the kernel of pooling over the last dimensions.

    A mean counts the padding, unless `count_include_pad=False`.
    """

    def kernel(block: Block, x: Any) -> Any:
        attributes = _over_all_dims(x.ndim, block.attributes)
        windows = windows_of(attributes["window_dimensions"], attributes)
        total = pool(block, x, monoid, windows)
        if not mean:
            return total
        if block.attributes.get("count_include_pad", True):
            return total / prod(attributes["window_dimensions"])
        return _divide_by_count(block, total, windows)

    return kernel


def _divide_by_count(block: Block, x: Any, windows: Sequence[Window]) -> Any:
    """Divide each element by the number of array elements in its window."""
    for axis, (window, size) in enumerate(zip(windows, block.signature.operand_shapes[0])):
        starts = [window.stride * y - window.low for y in block.span(f"i{axis}")]
        counts = [max(1, min(at + window.size, size) - max(at, 0)) for at in starts]
        by = block.xp.asarray(counts, dtype=x.dtype)
        x = x / block.xp.reshape(by, (-1, *(1,) * (x.ndim - axis - 1)))
    return x


_KEEPS_FIRST = {"GE": "greater_equal", "GT": "greater", "LE": "less_equal", "LT": "less"}


def select_and_scatter(block: Block, x: Any, source: Any, init: Any) -> Any:
    """Add each element of the source where its window's largest element is.

    `comparison_direction` decides which of two elements stays selected: `GE`, the first of the
    largest, by default. Padding is never selected.
    """
    return _SelectAndScatter(block, x).run(source, init)


class _SelectAndScatter:
    """The windows that meet the box of a result, and the elements that they select."""

    def __init__(self, block: Block, x: Any) -> None:
        at, self.block, self.xp = block.attributes, block, block.xp
        self.monoid = _known_monoid(at)
        compared = at.get("comparison_direction", "GE")
        if compared not in _KEEPS_FIRST:
            raise WeftError(f"windows that select by {compared} cannot be run box by box")
        self.stays = getattr(self.xp, _KEEPS_FIRST[compared])
        self.windows = windows_of(at["window_dimensions"], at)
        counts = block.signature.operand_shapes[1]
        self.box = [block.span(f"i{axis}") for axis in range(x.ndim)]
        self.spans = list(map(_meeting, self.windows, self.box, counts))
        self.x = x

    def run(self, source: Any, init: Any) -> Any:
        xp, shape = self.xp, tuple(map(len, self.box))
        total = xp.broadcast_to(xp.astype(init, source.dtype), shape)
        if not (all(self.spans) and all(self.box)):
            return total
        start = self.block.operands[1].start
        source = source[tuple(slice(s.start - n, s.stop - n) for s, n in zip(self.spans, start))]
        chosen, both = self._chosen(), combination(xp, self.monoid, source.dtype)
        empty = xp.full_like(source, identity(xp, self.monoid, source.dtype))
        for number, offset in enumerate(self._offsets()):
            part = xp.where(chosen == number, source, empty)
            total = both(total, self._placed(part, offset, empty))
        return total

    def _offsets(self) -> Iterator[Point]:
        return product(*(window.offsets for window in self.windows))

    def _placed(self, part: Any, offset: Point, empty: Any) -> Any:
        """Return what the elements at an offset of their windows receive, over the box."""
        value = identity(self.xp, self.monoid, empty.dtype)
        for axis, window in enumerate(self.windows):
            span, by = self.box[axis], window.low - offset[axis]
            positions = range(span.start + by, span.stop + by)
            first = self.spans[axis].start
            part = place(self.xp, part, axis, first, positions, window.stride, value)
        return part

    def _chosen(self) -> Any:
        """Return the number of the offset that each window selects; -1 if it has only padding."""
        xp = self.xp
        x, inside = self.x, xp.ones(self.x.shape, dtype=xp.bool)
        for axis, (window, first) in enumerate(zip(self.windows, self.block.operands[0].start)):
            positions = window.positions(self.spans[axis], window.offsets)
            x = place(xp, x, axis, first, positions, 1, 0)
            inside = place(xp, inside, axis, first, positions, 1, False)
        begin, *others = self._offsets()
        best = self._element(x, begin)
        chosen = xp.astype(self._element(inside, begin), xp.int32) - 1
        for number, offset in enumerate(others, 1):
            here, ok = self._element(x, offset), self._element(inside, offset)
            better = ok & ((chosen < 0) | ~self.stays(best, here))
            best, chosen = xp.where(better, here, best), xp.where(better, number, chosen)
        return chosen

    def _element(self, x: Any, offset: Point) -> Any:
        """Return the element of every window at an offset."""
        for axis, (window, at) in enumerate(zip(self.windows, offset)):
            x = x[stepped(axis, at, len(self.spans[axis]), window.stride)]
        return x


def _meeting(window: Window, span: range, count: int) -> range:
    """Return the windows that meet a range of positions."""
    first = -(-(span.start + window.low - window.size + 1) // window.stride)
    stop = (span.stop - 1 + window.low) // window.stride + 1
    return range(max(0, first), max(0, first, min(count, stop)))


def _window_flops(line: Signature, attributes: Attributes) -> float:
    """Count one operation for each element of a window."""
    return float(prod(attributes.get("window") or attributes["window_dimensions"]))


def _scatter_flops(line: Signature, attributes: Attributes) -> float:
    """Count a comparison and a sum for each element of each window."""
    total = 2 * prod(line.operand_shapes[1]) * prod(attributes["window_dimensions"])
    return total / max(1, line.space.size)


define(
    "avg_pool",
    sign_pool,
    pooling("sum", mean=True),
    keeps={"sum": [(0,)]},
    flops=_window_flops,
    dtypes=for_kinds("float complex"),
    conversion=as_quotients,
    accumulates="always",
    attributes="window strides padding count_include_pad",
)
define(
    "max_pool",
    sign_pool,
    pooling("max"),
    keeps={"max": [(0,)]},
    flops=_window_flops,
    dtypes=for_kinds("bool int uint float"),
    attributes="window strides padding",
)
define(
    "reduce_window",
    sign_reduce_window,
    reduce_window,
    flops=_window_flops,
    dtypes=each_input,
    accumulates="always",
    attributes="""window_dimensions window_strides base_dilations window_dilations padding monoid
            region""",
)
define(
    "select_and_scatter",
    sign_select_and_scatter,
    select_and_scatter,
    flops=_scatter_flops,
    dtypes=like_all,
    accumulates="always",
    attributes="window_dimensions window_strides padding monoid region comparison_direction",
)
