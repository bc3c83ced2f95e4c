"""Kernels that move elements: where each comes from is what the line says."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang.block import Block
from weft.lang.kernels.dtypes import cast, native
from weft.lang.notation import Row


class _Recipe(NamedTuple):
    """How an operand's box becomes the result's: what is None is not done."""

    slices: tuple[slice | int, ...] | None
    flipped: tuple[int, ...] | None
    taken: tuple[tuple[int, tuple[int, ...]], ...]
    split: tuple[int, ...] | None
    order: tuple[int, ...] | None
    spread: tuple[tuple[int, ...], tuple[int, ...]] | None
    made: tuple[int, ...]

    def apart(self, xp: Any, x: Any) -> Any:
        """The operand with an axis for each of its index dimensions."""
        if self.slices is not None:
            x = x[self.slices]
        if self.flipped is not None:
            x = xp.flip(x, axis=self.flipped)
        for axis, places in self.taken:
            x = xp.take(x, xp.asarray(places), axis=axis)
        return x if self.split is None else xp.reshape(x, self.split)


def move(block: Block, x: Any, *_: Any) -> Any:
    """Each element of the result from its place in the first operand."""
    xp, recipe = block.xp, _recipe(block)
    x = recipe.apart(xp, x)
    if recipe.order is not None:
        x = xp.permute_dims(x, recipe.order)
    if recipe.spread is not None:
        x = xp.broadcast_to(xp.reshape(x, recipe.spread[0]), recipe.spread[1])
    return x if tuple(x.shape) == recipe.made else xp.reshape(x, recipe.made)


def reshape(block: Block, x: Any) -> Any:
    """The same elements in another shape.

    Digits that the two shapes do not share stand together, and are read whole: they are spelled
    anew, and cut then.
    """
    line, xp = block.signature.notation, block.xp
    given = {name for row in line.operands[0] for name in row.dims}
    wanted = [name for row in line.results[0] for name in _digits(row)]
    if given == set(wanted):
        return move(block, x)
    recipe, sizes = _recipe(block), block.signature.sizes
    spelled = [len(block.span(n)) if n in given else sizes[n] for n in wanted]
    x = xp.reshape(recipe.apart(xp, x), tuple(spelled))
    spans = [block.span(name) for name in wanted]
    kept = [slice(None) if n in given else slice(s.start, s.stop) for n, s in zip(wanted, spans)]
    return xp.reshape(x[tuple(kept)], recipe.made)


@lru_cache(maxsize=4096)
def _recipe(block: Block) -> _Recipe:
    reader = _Reader(block)
    for row, start in zip(block.signature.notation.operands[0], block.operands[0].start):
        reader.read(row, start)
    return reader.recipe()


class _Reader:
    """Takes an operand apart into index dimensions, and puts those together into the result."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.slices: list[slice | int] = []
        self.flipped: list[int] = []
        self.taken: list[tuple[int, tuple[int, ...]]] = []
        self.names: list[str] = []
        self.kept = 0

    def read(self, row: Row, start: int) -> None:
        """See one dimension of the operand, whose box begins at `start`."""
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
        places = [offset]
        for name, weight in terms:
            places = [at + weight * x for at in places for x in self.block.span(name)]
        if places == list(range(places[0], places[0] + len(places)) if places else []):
            self.slices.append(slice(places[0], places[-1] + 1) if places else slice(0, 0))
        else:
            self.slices.append(slice(None))
            self.taken.append((self.kept, tuple(places)))

    def recipe(self) -> _Recipe:
        box, have = self.block.results[0].shape, self.block.operands[0].shape
        size = {name: len(self.block.span(name)) for name in self.block.signature.sizes}
        wanted = [name for row in self.block.signature.notation.results[0] for name in _digits(row)]
        order = [self.names.index(name) for name in wanted if name in self.names]
        split = tuple(size[name] for name in self.names)
        single = tuple(size[name] if name in self.names else 1 for name in wanted)
        full = tuple(size[name] for name in wanted)
        return _Recipe(
            None if _is_all(self.slices, have) else tuple(self.slices),
            tuple(self.flipped) or None,
            tuple(self.taken),
            split if len(split) != self.kept else None,
            tuple(order) if order != list(range(len(order))) else None,
            (single, full) if prod(single) != prod(full) else None,
            box,
        )


def _digits(row: Row) -> list[str]:
    """The index dimensions of a row, major to minor."""
    return [name for name, _ in sorted(row.terms, key=lambda term: -abs(term[1]))]


def _is_all(slices: list[slice | int], shape: tuple[int, ...]) -> bool:
    return all(
        isinstance(s, slice) and s.indices(n) == (0, n, 1) for s, n in zip(slices, shape)
    ) and len(slices) == len(shape)


def along(axis: int, part: slice | int) -> tuple[Any, ...]:
    """The index of a part of an axis, and of all of the others."""
    return (*(slice(None),) * axis, part, ...)


def extended(xp: Any, x: Any, axis: int, before: int, after: int, value: Any) -> Any:
    """An array with a value before and after it along an axis."""
    parts = []
    for count in (before, after):
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        parts.append(xp.full(shape, value, dtype=x.dtype) if count else None)
    found = [part for part in (parts[0], x, parts[1]) if part is not None]
    return found[0] if len(found) == 1 else xp.concat(found, axis=axis)


def pad(block: Block, x: Any, value: Any) -> Any:
    """The operand where the result has it, a value elsewhere."""
    xp = block.xp
    if 0 in x.shape:
        return xp.broadcast_to(value, block.results[0].shape)
    inside = None
    attributes, have = block.attributes, block.operands[0]
    for axis, made in enumerate(zip(block.results[0].start, block.results[0].stop)):
        low, step = attributes["edge_padding_low"][axis], attributes["interior_padding"][axis] + 1
        places = [divmod(at - low, step) for at in range(*made)]
        first, stop = have.start[axis], have.stop[axis]
        is_in = [rest == 0 and first <= at < stop for at, rest in places]
        taken = [at - first if ok else 0 for (at, _), ok in zip(places, is_in)]
        x = xp.take(x, xp.asarray(taken), axis=axis)
        here = xp.reshape(xp.asarray(is_in), (len(is_in), *(1,) * (x.ndim - axis - 1)))
        inside = here if inside is None else inside & here
    return x if inside is None else xp.where(inside, x, value)


def concatenate(block: Block, *parts: Any) -> Any:
    """The operands side by side."""
    return block.xp.concat(parts, axis=block.attributes["dimension"])


def _starts(xp: Any, places: Any, shape: tuple[int, ...], made: tuple[int, ...]) -> list[Any]:
    """Where a slice begins, moved until it lies inside."""
    counting = xp.arange(1).dtype
    return [
        xp.clip(xp.astype(place, counting), 0, size - extent)
        for place, size, extent in zip(places, shape, made)
    ]


def dynamic_slice(block: Block, x: Any, *places: Any) -> Any:
    """A slice at a computed place; dimensions that are kept whole may be cut."""
    xp, sizes = block.xp, block.attributes["slice_sizes"]
    whole = block.signature.operand_shapes[0]
    for axis, start in enumerate(_starts(xp, places, whole, sizes)):
        if sizes[axis] != whole[axis]:
            x = xp.take(x, xp.arange(sizes[axis]) + start, axis=axis)
    return x


def dynamic_update_slice(block: Block, x: Any, update: Any, *places: Any) -> Any:
    """The operand with another array at a computed place."""
    xp, whole = block.xp, block.signature.operand_shapes[0]
    small = block.signature.operand_shapes[1]
    inside = None
    for axis, start in enumerate(_starts(xp, places, whole, small)):
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
    """Each element is its place along one dimension."""
    xp, axis, box = block.xp, block.attributes["iota_dimension"], block.results[0]
    line = xp.arange(box.start[axis], box.stop[axis])
    line = cast(xp, line, block.attributes.get("dtype", "int64"))
    line = xp.reshape(line, (-1, *(1,) * (box.ndim - axis - 1)))
    return xp.broadcast_to(line, box.shape)


def constant(block: Block) -> Any:
    """A number everywhere, or an array of numbers in the attributes, row by row."""
    if "value" not in block.attributes:
        raise WeftError("a constant of this size, or of this dtype, was not kept: it cannot be run")
    xp, box, value = block.xp, block.results[0], block.attributes["value"]
    dtype = native(xp, block.attributes.get("dtype", "float32"))
    if not isinstance(value, tuple):
        return xp.full(box.shape, value, dtype=dtype)
    whole = xp.reshape(xp.asarray(value, dtype=dtype), block.signature.result_shapes[0])
    return whole[box.slices()]
