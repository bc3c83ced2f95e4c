"""Kernels that slide a window: convolutions, pooling, and what undoes pooling.

Everything is said in places of the array that the window slides over: element `a` of an operand
lies at place `base * a`, and window `y` begins at place `stride * y - low`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang.block import Attributes, Block, Kernel
from weft.lang.kernels.monoids import combination, identity
from weft.lang.kernels.moves import along, extended
from weft.values import Point

Both = Callable[[Any, Any], Any]


class Slide(NamedTuple):
    """How a window slides along one dimension."""

    size: int
    stride: int = 1
    low: int = 0
    base: int = 1
    dilation: int = 1

    @property
    def is_still(self) -> bool:
        """Whether every window is one element, in its place."""
        return self == Slide(1)._replace(dilation=self.dilation)

    def places(self, windows: range, offsets: Sequence[int]) -> range:
        """From the first place that these windows see to the last, at these offsets."""
        first = self.stride * windows.start - self.low + min(offsets)
        return range(first, self.stride * (windows.stop - 1) - self.low + max(offsets) + 1)

    @property
    def offsets(self) -> range:
        """The places of its elements, from its first."""
        return range(0, self.size * self.dilation, self.dilation)


def slides(sizes: Sequence[int], attributes: Attributes, base: str, dilation: str) -> list[Slide]:
    """How the windows of an application slide, one for each dimension."""
    ones = (1,) * len(sizes)
    return [
        Slide(*each)
        for each in zip(
            sizes,
            attributes.get("window_strides", ones),
            attributes.get("padding", (0, 0) * len(sizes))[::2],
            attributes.get(base, ones),
            attributes.get(dilation, ones),
        )
    ]


def lay(xp: Any, x: Any, axis: int, first: int, places: range, base: int, value: Any) -> Any:
    """An array along a range of places, `base` between its elements, and a value elsewhere.

    The first element along the axis is number `first`.

    >>> import numpy
    >>> lay(numpy, numpy.asarray([1, 2, 3]), 0, 4, range(9, 14), 2, 0)
    array([0, 2, 0, 3, 0])
    """
    size = x.shape[axis]
    if base == 1 and size:
        low = min(max(places.start, first), first + size)
        high = max(low, min(places.stop, first + size))
        x = x[along(axis, slice(low - first, high - first))]
        if low == high:
            return extended(xp, x, axis, len(places), 0, value)
        return extended(xp, x, axis, low - places.start, places.stop - high, value)
    found = [divmod(place, base) for place in places]
    inside = [rest == 0 and first <= at < first + size for at, rest in found]
    if not any(inside):
        return xp.full((*x.shape[:axis], len(places), *x.shape[axis + 1 :]), value, dtype=x.dtype)
    taken = [at - first if ok else 0 for (at, _), ok in zip(found, inside)]
    x = xp.take(x, xp.asarray(taken), axis=axis)
    here = xp.reshape(xp.asarray(inside), (len(inside), *(1,) * (x.ndim - axis - 1)))
    return xp.where(here, x, xp.full_like(x, value))


def stepped(axis: int, start: int, count: int, step: int) -> tuple[Any, ...]:
    """The index of every `step`-th element along an axis."""
    return along(axis, slice(start, start + step * (count - 1) + 1, step))


def slide(xp: Any, x: Any, axis: int, how: Slide, both: Both) -> Any:
    """The windows from every place on, combined: each from two of half its size."""

    def run(size: int) -> Any:
        if size == 1:
            return x
        half = run(size // 2)
        made = _pair(half, half, axis, how.dilation * (size // 2), both)
        return made if size % 2 == 0 else _pair(made, x, axis, how.dilation * (size - 1), both)

    return run(how.size)


def _pair(one: Any, two: Any, axis: int, step: int, both: Both) -> Any:
    """Each element with that of another array some places on."""
    count = min(one.shape[axis], two.shape[axis] - step)
    return both(one[along(axis, slice(0, count))], two[along(axis, slice(step, step + count))])


def pool(block: Block, x: Any, monoid: str, windows: Sequence[Slide]) -> Any:
    """The elements of each window combined, dimension by dimension: a monoid does not mind."""
    xp, nothing = block.xp, identity(block.xp, monoid, x.dtype)
    both = combination(xp, monoid, x.dtype)
    if block.box.is_empty:
        return xp.full(block.results[0].shape, nothing, dtype=x.dtype)
    for axis, (how, first) in enumerate(zip(windows, block.operands[0].start)):
        span = block.span(f"i{axis}")
        if how.is_still and len(span) == x.shape[axis]:
            continue
        x = lay(xp, x, axis, first, how.places(span, how.offsets), how.base, nothing)
        x = slide(xp, x, axis, how, both)
        x = x[stepped(axis, 0, len(span), how.stride)]
    return x


def _known_monoid(attributes: Attributes) -> str:
    if attributes.get("region") in ("custom", "replace"):
        raise WeftError("windows that a region of its own combines cannot be run box by box")
    return str(attributes.get("monoid", "sum"))


def reduce_window(block: Block, *operands: Any) -> Any:
    """The windows of each input reduced, and its initial value, which counts once."""
    at, monoid = block.attributes, _known_monoid(block.attributes)
    windows = slides(at["window_dimensions"], at, "base_dilations", "window_dilations")
    half = len(operands) // 2
    made = []
    for x, init in zip(operands[:half], operands[half:]):
        both = combination(block.xp, monoid, x.dtype)
        made.append(both(pool(block, x, monoid, windows), init))
    return tuple(made)


def last_dims(rank: int, attributes: Attributes) -> dict[str, Point]:
    """The attributes of pooling over the last dimensions, said for all dimensions.

    Strides are the window's unless they are given; there is no padding unless it is.

    >>> last_dims(3, {"window": (2, 3), "padding": (0, 0, 1, 1)})["padding"]
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


def pooling(monoid: str, mean: bool = False) -> Kernel:
    """The kernel of pooling over the last dimensions; a mean counts the padding, too.

    With `count_include_pad=False` it does not.
    """

    def kernel(block: Block, x: Any) -> Any:
        said = last_dims(x.ndim, block.attributes)
        windows = slides(said["window_dimensions"], said, "", "")
        made = pool(block, x, monoid, windows)
        if not mean:
            return made
        if block.attributes.get("count_include_pad", True):
            return made / prod(said["window_dimensions"])
        return _per_element(block, made, windows)

    return kernel


def _per_element(block: Block, x: Any, windows: Sequence[Slide]) -> Any:
    """Each element divided by how many elements of the array its window has."""
    for axis, (how, size) in enumerate(zip(windows, block.signature.operand_shapes[0])):
        starts = [how.stride * y - how.low for y in block.span(f"i{axis}")]
        counts = [max(1, min(at + how.size, size) - max(at, 0)) for at in starts]
        by = block.xp.asarray(counts, dtype=x.dtype)
        x = x / block.xp.reshape(by, (-1, *(1,) * (x.ndim - axis - 1)))
    return x


_KEEPS_FIRST = {"GE": "greater_equal", "GT": "greater", "LE": "less_equal", "LT": "less"}


def select_and_scatter(block: Block, x: Any, source: Any, init: Any) -> Any:
    """Each element of the source added where its window's largest element is.

    `comparison_direction` says which of two elements stays selected: `GE`, the first of the
    largest, unless given. Padding is never selected.
    """
    return _Scatter(block, x).run(source, init)


class _Scatter:
    """The windows that touch the box of a result, and the elements that they select."""

    def __init__(self, block: Block, x: Any) -> None:
        at, self.block, self.xp = block.attributes, block, block.xp
        self.monoid = _known_monoid(at)
        compared = at.get("comparison_direction", "GE")
        if compared not in _KEEPS_FIRST:
            raise WeftError(f"windows that select by {compared} cannot be run box by box")
        self.stays = getattr(self.xp, _KEEPS_FIRST[compared])
        self.how = slides(at["window_dimensions"], at, "", "")
        counts = block.signature.operand_shapes[1]
        self.made = [block.span(f"i{axis}") for axis in range(x.ndim)]
        self.spans = [_touching(how, made, n) for how, made, n in zip(self.how, self.made, counts)]
        self.x = x

    def run(self, source: Any, init: Any) -> Any:
        xp, shape = self.xp, tuple(map(len, self.made))
        total = xp.broadcast_to(xp.astype(init, source.dtype), shape)
        if not (all(self.spans) and all(self.made)):
            return total
        start = self.block.operands[1].start
        source = source[tuple(slice(s.start - n, s.stop - n) for s, n in zip(self.spans, start))]
        chosen, both = self._chosen(), combination(xp, self.monoid, source.dtype)
        nothing = xp.full_like(source, identity(xp, self.monoid, source.dtype))
        for number, offset in enumerate(self._offsets()):
            part = xp.where(chosen == number, source, nothing)
            total = both(total, self._laid(part, offset, nothing))
        return total

    def _offsets(self) -> Iterator[Point]:
        return product(*(how.offsets for how in self.how))

    def _laid(self, part: Any, offset: Point, nothing: Any) -> Any:
        """What goes to the elements at an offset of their windows, over the box of the result."""
        value = identity(self.xp, self.monoid, nothing.dtype)
        for axis, how in enumerate(self.how):
            made = self.made[axis]
            by = how.low - offset[axis]
            places = range(made.start + by, made.stop + by)
            part = lay(self.xp, part, axis, self.spans[axis].start, places, how.stride, value)
        return part

    def _chosen(self) -> Any:
        """The number of the offset that each window selects; -1 if it has nothing but padding."""
        xp = self.xp
        x, inside = self.x, xp.ones(self.x.shape, dtype=xp.bool)
        for axis, (how, first) in enumerate(zip(self.how, self.block.operands[0].start)):
            places = how.places(self.spans[axis], how.offsets)
            x = lay(xp, x, axis, first, places, 1, 0)
            inside = lay(xp, inside, axis, first, places, 1, False)
        begin, *others = self._offsets()
        best, chosen = self._seen(x, begin), xp.astype(self._seen(inside, begin), xp.int32) - 1
        for number, offset in enumerate(others, 1):
            here, ok = self._seen(x, offset), self._seen(inside, offset)
            better = ok & ((chosen < 0) | ~self.stays(best, here))
            best, chosen = xp.where(better, here, best), xp.where(better, number, chosen)
        return chosen

    def _seen(self, x: Any, offset: Point) -> Any:
        """The element of every window at an offset."""
        for axis, (how, at) in enumerate(zip(self.how, offset)):
            x = x[stepped(axis, at, len(self.spans[axis]), how.stride)]
        return x


def _touching(how: Slide, made: range, count: int) -> range:
    """The windows that touch a range of places."""
    first = -(-(made.start + how.low - how.size + 1) // how.stride)
    stop = (made.stop - 1 + how.low) // how.stride + 1
    return range(max(0, first), max(0, first, min(count, stop)))
