"""Operators that move elements and compute nothing.

    reshape            2*i0+i1 i2 -> i0 6*i1+i2
    transpose          i0 i1 -> i1 i0
    broadcast_in_dim   i0 1 -> i0 i1
    slice              i0 2*i1+1 -> i0 i1
    pad                i0 i1-1, -> i0 i1
    concatenate        i0 [i1], i0 [i1-6] -> i0 [i1]

One kernel, `move`, follows the line: it reads each element of the result from where the operand's
row says it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang.dtype import (
    Conversion,
    Dtypes,
    Operand,
    dtype_name,
    like_all,
    like_first,
    promote,
    result_type,
    separate,
    together,
)
from weft.lang.kernel import Attributes, Block, Kernel, bitcast, cast, native
from weft.lang.notation import Notation, Row, digits, numbered, plain, whole
from weft.lang.operator import Keeps, Passes, Sign, define
from weft.lang.signature import Signature
from weft.lang.size import common_divisor
from weft.values import Point


def sign_broadcast_in_dim(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a broadcast: an operand's dimension is one of the result's, or is 1 and repeated.

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


def sign_created(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a result without operands.

    >>> print(sign_created([], {"result_shape": (8, 3)}))
     -> i0 i1  {i0=8, i1=3}
    """
    result = attributes["result_shape"]
    sizes = {f"i{dim}": size for dim, size in enumerate(result)}
    return Signature(Notation([], [numbered("i", len(result))]), shapes, sizes)


def sign_transpose(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the same dimensions in another order."""
    dims = numbered("i", len(shapes[0]))
    return Signature(Notation([dims], [[dims[dim] for dim in attributes["permutation"]]]), shapes)


def sign_reshape(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a reshape: both shapes in the finest mixed radix that they share.

    >>> print(sign_reshape([(8, 6)], {"result_shape": (4, 12)}))
    2*i0+i1 i2 -> i0 6*i1+i2  {i0=4, i1=2, i2=6}
    """
    shape, result = shapes[0], attributes["result_shape"]
    if prod(shape) != prod(result):
        raise WeftError(
            f"{list(shape)} has {prod(shape)} elements and {list(result)} has {prod(result)}"
        )
    if prod(shape) == 0:
        sizes = {f"j{dim}": size for dim, size in enumerate(result)}
        empty = Notation([[whole(f"i{dim}") for dim in range(len(shape))]], [map(whole, sizes)])
        return Signature(empty, shapes, sizes)
    old, new = _ReshapeSide(shape), _ReshapeSide(result)
    _factor(old, new)
    sizes = {name: n for dim in old.digits + new.digits for name, n in dim}
    return Signature(Notation([old.rows()], [new.rows()]), shapes, sizes)


class _ReshapeSide:
    """One shape of a reshape, split into digits from the major end."""

    def __init__(self, shape: Point) -> None:
        self.digits: list[list[tuple[str, int]]] = [[] for _ in shape]
        self.dims = [(dim, size) for dim, size in enumerate(shape) if size != 1]
        self.done = 1
        self.left = self.dims[0][1] if self.dims else 1

    def take(self, name: str, size: int) -> None:
        """Append a digit to the dimension that is being split."""
        self.digits[self.dims[0][0]].append((name, size))
        self.done *= size
        self.left //= size
        if self.left == 1:
            self.dims.pop(0)
            self.left = self.dims[0][1] if self.dims else 1

    def catch_up(self, ahead: _ReshapeSide) -> int:
        """Return the next digit of the side that is behind: up to the other if it divides."""
        gap, rest = divmod(ahead.done, self.done)
        if rest == 0 and self.left % gap == 0:
            return gap
        common = common_divisor(self.left, ahead.left)
        return self.left // common if self.left > common else self.left

    def rows(self) -> list[Row]:
        return [digits(pairs) for pairs in self.digits]


def _factor(old: _ReshapeSide, new: _ReshapeSide) -> None:
    """Split both shapes into the digits that they share, and others where they differ."""
    number = 0
    while old.dims or new.dims:
        common = common_divisor(old.left, new.left) if old.done == new.done else 1
        if common > 1:
            old.take(f"i{number}", common)
            new.take(f"i{number}", common)
        elif old.done == new.done:
            old.take(f"i{number}", old.left)
            new.take(f"j{number}", new.left)
        elif old.done < new.done:
            old.take(f"i{number}", old.catch_up(new))
        else:
            new.take(f"j{number}", new.catch_up(old))
        number += 1


def sign_reverse(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign some dimensions reversed.

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
    """Sign a slice with strides.

    >>> cut = {"start_indices": (0, 1), "limit_indices": (8, 6), "strides": (1, 2)}
    >>> print(sign_slice([(8, 6)], cut))
    i0 2*i1+1 -> i0 i1  {i0=8, i1=3}
    """
    operand, sizes = [], dict[str, int]()
    limits, strides = attributes["limit_indices"], attributes["strides"]
    for dim, start in enumerate(attributes["start_indices"]):
        count = max(0, -((start - limits[dim]) // strides[dim]))
        stride = strides[dim] if count > 1 else 1
        sizes[f"i{dim}"] = count
        operand.append(Row(((f"i{dim}", stride),), start))
    return Signature(Notation([operand], [numbered("i", len(operand))]), shapes, sizes)


def sign_pad(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign padding at both ends and between elements.

    >>> by = {"edge_padding_low": (0, 1), "edge_padding_high": (0, 2), "interior_padding": (0, 0)}
    >>> print(sign_pad([(8, 6), ()], by))
    i0 i1-1,  -> i0 i1  {i0=8, i1=9}
    """
    operand, sizes = [], dict[str, int]()
    high, interior = attributes["edge_padding_high"], attributes["interior_padding"]
    for dim, low in enumerate(attributes["edge_padding_low"]):
        size, step = shapes[0][dim], interior[dim] + 1
        padded = low + max(0, (size - 1) * step + 1) + high[dim]
        sizes[f"i{dim}"] = padded
        operand.append(Row(((f"i{dim}", 1),), -low, divisor=step if size > 1 else 1))
    return Signature(Notation([operand, ()], [numbered("i", len(operand))]), shapes, sizes)


def sign_concatenate(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign operands side by side axis one dimension, which is not cut.

    >>> print(sign_concatenate([(8, 6), (8, 3)], {"dimension": 1}))
    i0 [i1], i0 [i1-6] -> i0 [i1]  {i0=8, i1=9}
    """
    axis = attributes["dimension"]
    parts = [shape[axis] for shape in shapes]
    dims = numbered("i", len(shapes[0]))
    operands = []
    for start in accumulate(parts[:-1], initial=0):
        rows = list(dims)
        rows[axis] = Row(((f"i{axis}", 1),), -start, whole=True)
        operands.append(rows)
    result = [*dims[:axis], whole(f"i{axis}"), *dims[axis + 1 :]]
    return Signature(Notation(operands, [result]), shapes, {f"i{axis}": sum(parts)})


def sign_bitcast_convert(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a bitcast; where element sizes differ, the parts of one are a last dimension.

    >>> print(sign_bitcast_convert([(8,)], {"result_shape": (8, 4)}))
    i0 -> i0 [k]  {i0=8, k=4}
    """
    result = attributes.get("result_shape", shapes[0])
    dims = numbered("i", min(len(shapes[0]), len(result)))
    sides = [[*dims, whole("k")] if len(s) > len(dims) else dims for s in (shapes[0], result)]
    sizes = {"k": result[-1]} if len(result) > len(dims) else {}
    return Signature(Notation(sides[:1], sides[1:]), shapes, sizes)


def sign_dynamic_slice(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a slice at computed indices: sliced dimensions are not cut.

    >>> print(sign_dynamic_slice([(8, 6), (), ()], {"slice_sizes": (8, 2)}))
    i0 [i1], ,  -> i0 [o1<i1]  {i0=8, o1=2, i1=6}
    """
    operand, result = [], []
    sizes: dict[str, int] = {}
    for dim, (size, kept) in enumerate(zip(shapes[0], attributes["slice_sizes"])):
        (same,) = plain(f"i{dim}")
        operand.append(same if size == kept else whole(f"i{dim}"))
        result.append(same if size == kept else whole(f"o{dim}", f"i{dim}"))
        sizes |= {} if size == kept else {f"o{dim}": kept}
    return Signature(Notation([operand, *[()] * (len(shapes) - 1)], [result]), shapes, sizes)


def sign_dynamic_update_slice(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign an operand and an update; dimensions where the update is smaller are not cut.

    >>> print(sign_dynamic_update_slice([(8, 6), (8, 2), (), ()], {}).notation)
    i0 i1, i0 [u1], ,  -> i0 i1
    """
    dims = numbered("i", len(shapes[0]))
    update = [
        dims[dim] if size == small else whole(f"u{dim}")
        for dim, (size, small) in enumerate(zip(shapes[0], shapes[1]))
    ]
    return Signature(Notation([dims, update, *[()] * (len(shapes) - 2)], [dims]), shapes)


class _Move(NamedTuple):
    """The steps from an operand's box to the result's; None: not needed."""

    slices: tuple[slice | int, ...] | None
    flipped: tuple[int, ...] | None
    taken: tuple[tuple[int, tuple[int, ...]], ...]
    split: tuple[int, ...] | None
    order: tuple[int, ...] | None
    spread: tuple[tuple[int, ...], tuple[int, ...]] | None
    shape: tuple[int, ...]

    def split_dims(self, xp: Any, x: Any) -> Any:
        """Return the operand with an axis for each of its index dimensions."""
        if self.slices is not None:
            x = x[self.slices]
        if self.flipped is not None:
            x = xp.flip(x, axis=self.flipped)
        for axis, places in self.taken:
            x = xp.take(x, xp.asarray(places), axis=axis)
        return x if self.split is None else xp.reshape(x, self.split)


def move(block: Block, x: Any, *_: Any) -> Any:
    """Read each element of the result from where the first operand has it."""
    xp, steps = block.xp, _move_of(block)
    x = steps.split_dims(xp, x)
    if steps.order is not None:
        x = xp.permute_dims(x, steps.order)
    if steps.spread is not None:
        x = xp.broadcast_to(xp.reshape(x, steps.spread[0]), steps.spread[1])
    return x if tuple(x.shape) == steps.shape else xp.reshape(x, steps.shape)


def reshape(block: Block, x: Any) -> Any:
    """Return the same elements in another shape.

    Digits that the two shapes do not share are read whole, and cut after the reshape.
    """
    line, xp = block.signature.notation, block.xp
    given = {name for row in line.operands[0] for name in row.dims}
    wanted = [name for row in line.results[0] for name in _names_of(row)]
    if given == set(wanted):
        return move(block, x)
    steps, sizes = _move_of(block), block.signature.sizes
    full = [len(block.span(n)) if n in given else sizes[n] for n in wanted]
    x = xp.reshape(steps.split_dims(xp, x), tuple(full))
    spans = [block.span(name) for name in wanted]
    kept = [slice(None) if n in given else slice(s.start, s.stop) for n, s in zip(wanted, spans)]
    return xp.reshape(x[tuple(kept)], steps.shape)


@lru_cache(maxsize=4096)
def _move_of(block: Block) -> _Move:
    builder = _MoveBuilder(block)
    for row, start in zip(block.signature.notation.operands[0], block.operands[0].start):
        builder.read(row, start)
    return builder.steps()


class _MoveBuilder:
    """Splits an operand into index dimensions, and joins those into the result."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.slices: list[slice | int] = []
        self.flipped: list[int] = []
        self.taken: list[tuple[int, tuple[int, ...]]] = []
        self.names: list[str] = []
        self.kept = 0

    def read(self, row: Row, start: int) -> None:
        """Add one dimension of the operand, whose box begins at `start`."""
        terms = sorted(row.terms, key=lambda term: -abs(term[1]))
        if not terms:
            self.slices.append(row.offset - start)
            return
        if len(terms) == 1:
            self._stride(terms[0], row.offset - start)
        else:
            self._digits(terms, row.offset - start)
        self.names += [name for name, _ in terms]
        self.kept += 1

    def _stride(self, term: tuple[str, int], offset: int) -> None:
        name, step = term
        span = self.block.span(name)
        ends = sorted((offset + step * span.start, offset + step * (span.stop - 1)))
        self.slices.append(slice(ends[0], ends[1] + 1, abs(step)) if span else slice(0, 0))
        if step < 0:
            self.flipped.append(self.kept)

    def _digits(self, terms: list[tuple[str, int]], offset: int) -> None:
        indices = [offset]
        for name, weight in terms:
            indices = [at + weight * x for at in indices for x in self.block.span(name)]
        if indices == list(range(indices[0], indices[0] + len(indices)) if indices else []):
            self.slices.append(slice(indices[0], indices[-1] + 1) if indices else slice(0, 0))
        else:
            self.slices.append(slice(None))
            self.taken.append((self.kept, tuple(indices)))

    def steps(self) -> _Move:
        box, have = self.block.results[0].shape, self.block.operands[0].shape
        size = {name: len(self.block.span(name)) for name in self.block.signature.sizes}
        rows = self.block.signature.notation.results[0]
        wanted = [name for row in rows for name in _names_of(row)]
        order = [self.names.index(name) for name in wanted if name in self.names]
        split = tuple(size[name] for name in self.names)
        single = tuple(size[name] if name in self.names else 1 for name in wanted)
        full = tuple(size[name] for name in wanted)
        return _Move(
            None if _is_all(self.slices, have) else tuple(self.slices),
            tuple(self.flipped) or None,
            tuple(self.taken),
            split if len(split) != self.kept else None,
            tuple(order) if order != list(range(len(order))) else None,
            (single, full) if prod(single) != prod(full) else None,
            box,
        )


def _names_of(row: Row) -> list[str]:
    """Return the index dimensions of a row, major to minor."""
    return [name for name, _ in sorted(row.terms, key=lambda term: -abs(term[1]))]


def _is_all(slices: list[slice | int], shape: tuple[int, ...]) -> bool:
    return all(
        isinstance(s, slice) and s.indices(n) == (0, n, 1) for s, n in zip(slices, shape)
    ) and len(slices) == len(shape)


def pad(block: Block, x: Any, value: Any) -> Any:
    """Return the operand with a value around and between its elements."""
    xp = block.xp
    if 0 in x.shape:
        return xp.broadcast_to(value, block.results[0].shape)
    inside = None
    attributes, have = block.attributes, block.operands[0]
    for axis, bounds in enumerate(zip(block.results[0].start, block.results[0].stop)):
        low, step = attributes["edge_padding_low"][axis], attributes["interior_padding"][axis] + 1
        sources = [divmod(at - low, step) for at in range(*bounds)]
        first, stop = have.start[axis], have.stop[axis]
        is_in = [rest == 0 and first <= at < stop for at, rest in sources]
        taken = [at - first if ok else 0 for (at, _), ok in zip(sources, is_in)]
        x = xp.take(x, xp.asarray(taken), axis=axis)
        here = xp.reshape(xp.asarray(is_in), (len(is_in), *(1,) * (x.ndim - axis - 1)))
        inside = here if inside is None else inside & here
    return x if inside is None else xp.where(inside, x, value)


def concatenate(block: Block, *parts: Any) -> Any:
    """Return the operands side by side."""
    return block.xp.concat(parts, axis=block.attributes["dimension"])


def _starts(xp: Any, indices: Any, shape: tuple[int, ...], extents: tuple[int, ...]) -> list[Any]:
    """Return where a slice begins, clipped so that it is inside the array."""
    counting = xp.arange(1).dtype
    return [
        xp.clip(xp.astype(index, counting), 0, size - extent)
        for index, size, extent in zip(indices, shape, extents)
    ]


def dynamic_slice(block: Block, x: Any, *indices: Any) -> Any:
    """Return a slice at computed indices; dimensions that are not sliced may be cut."""
    xp, sizes = block.xp, block.attributes["slice_sizes"]
    whole = block.signature.operand_shapes[0]
    for axis, start in enumerate(_starts(xp, indices, whole, sizes)):
        if sizes[axis] != whole[axis]:
            x = xp.take(x, xp.arange(sizes[axis]) + start, axis=axis)
    return x


def dynamic_update_slice(block: Block, x: Any, update: Any, *indices: Any) -> Any:
    """Return the operand with another array at computed indices."""
    xp, whole = block.xp, block.signature.operand_shapes[0]
    small = block.signature.operand_shapes[1]
    inside = None
    for axis, start in enumerate(_starts(xp, indices, whole, small)):
        if small[axis] == whole[axis]:
            continue
        box = block.results[0]
        at = xp.arange(box.start[axis], box.stop[axis]) - start
        is_in = (at >= 0) & (at < small[axis])
        if small[axis] == 0:
            return x
        update = xp.take(update, xp.where(is_in, at, xp.zeros_like(at)), axis=axis)
        here = xp.reshape(is_in, (-1, *(1,) * (x.ndim - axis - 1)))
        inside = here if inside is None else inside & here
    return update if inside is None else xp.where(inside, update, x)


def iota(block: Block) -> Any:
    """Return each element's index along one dimension."""
    xp, axis, box = block.xp, block.attributes["iota_dimension"], block.results[0]
    line = xp.arange(box.start[axis], box.stop[axis])
    line = cast(xp, line, block.attributes.get("dtype", "int64"))
    line = xp.reshape(line, (-1, *(1,) * (box.ndim - axis - 1)))
    return xp.broadcast_to(line, box.shape)


def constant(block: Block) -> Any:
    """Return a number everywhere, or an array given in the attributes, row by row."""
    if "value" not in block.attributes:
        raise WeftError("a constant of this size, or of this dtype, was not kept: it cannot be run")
    xp, box, value = block.xp, block.results[0], block.attributes["value"]
    dtype = native(xp, block.attributes.get("dtype", "float32"))
    if not isinstance(value, tuple):
        return xp.full(box.shape, value, dtype=dtype)
    whole = xp.reshape(xp.asarray(value, dtype=dtype), block.signature.result_shapes[0])
    return whole[box.slices()]


def _move(name: str, sign: Sign, kernel: Kernel, attributes: str, passes: Passes = "") -> None:
    keeps: Keeps = {"any": [(0,)]}
    rule: Dtypes = like_first
    conversion: Conversion = separate
    if kernel in (pad, dynamic_update_slice):
        keeps, conversion, rule = {"any": [(0, 1)]}, _as_first, _first_pair
    define(
        name,
        sign,
        kernel,
        attributes,
        passes=passes,
        keeps=keeps,
        flops=0,
        dtypes=rule,
        conversion=conversion,
    )


def _as_first(operands: Sequence[Operand]) -> Sequence[str]:
    """Convert the second operand to the dtype of the first; indices stay as they are."""
    first, second, *indices = operands
    if isinstance(second, str) and isinstance(first, str) and promote(first, second) != first:
        raise WeftError(
            f"{second} does not fit into {first}", hint=f"convert it: .astype({first!r})"
        )
    dtype = result_type(first, *(() if isinstance(second, str) else (second,)))
    if dtype != first:
        raise WeftError(f"{second!r} does not fit into {first}")
    return [dtype, dtype, *(index if isinstance(index, str) else "int64" for index in indices)]


def _first_pair(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    return like_all(dtypes[:2], attributes)


_move("reshape", sign_reshape, reshape, "result_shape", "both")
_move("transpose", sign_transpose, move, "permutation", "both")
_move("dynamic_slice", sign_dynamic_slice, dynamic_slice, "slice_sizes", "forward")
_move("dynamic_update_slice", sign_dynamic_update_slice, dynamic_update_slice, "", "forward")
_move(
    "broadcast_in_dim",
    sign_broadcast_in_dim,
    move,
    "broadcast_dimensions result_shape",
    "backward",
)
_move("reverse", sign_reverse, move, "dimensions")
_move("slice", sign_slice, move, "start_indices limit_indices strides")
_move("pad", sign_pad, pad, "edge_padding_low edge_padding_high interior_padding")
define(
    "concatenate",
    sign_concatenate,
    concatenate,
    keeps={"any": [...]},
    flops=0,
    dtypes=like_all,
    conversion=together,
    attributes="dimension",
)
define(
    "constant",
    sign_created,
    constant,
    flops=0,
    attributes="value result_shape",
)
define(
    "iota",
    sign_created,
    iota,
    flops=0,
    dtypes=lambda _, attributes: [attributes.get("dtype") or "int64"],
    attributes="iota_dimension result_shape",
)
define(
    "bitcast_convert",
    sign_bitcast_convert,
    lambda block, x: bitcast(block.xp, x, block.attributes.get("dtype") or dtype_name(x.dtype)),
    passes="both",
    flops=0,
    attributes="result_shape",
)
