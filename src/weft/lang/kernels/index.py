"""Kernels that read and write at computed places: gather, scatter and embeddings.

The dimensions of the array that are chosen from become one, of rows; the others are kept as they
are. A row that is not in the box is not seen: another box has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Attributes, Block
from weft.lang.kernels.monoids import combination
from weft.lang.kernels.moves import along
from weft.values import Point


def embedding(block: Block, table: Any, indices: Any) -> Any:
    """The row of a table for each index; one that is outside takes the nearest there is."""
    xp, size, box = block.xp, block.signature.operand_shapes[0][0], block.operands[0]
    key = xp.clip(_whole_numbers(xp, xp.reshape(indices, (-1,))), 0, size - 1) - box.start[0]
    inside = None if box.shape[0] == size else (key >= 0) & (key < box.shape[0])
    rows = _take_rows(xp, table, key, inside)
    return xp.reshape(rows, (*indices.shape, table.shape[1]))


def gather(block: Block, x: Any, indices: Any) -> Any:
    """Slices at each index, moved until they lie inside; rows of another box are zeros."""
    at, sizes = block.attributes, block.attributes["slice_sizes"]
    hidden = tuple(at.get("collapsed_slice_dims", ()))
    batching = dict(
        zip(at.get("operand_batching_dims", ()), at.get("start_indices_batching_dims", ()))
    )
    lookup = _Lookup(block, sizes, hidden, batching, at["start_index_map"])
    starts = lookup.starts(indices)
    for dim, start in starts.items():
        starts[dim] = block.xp.clip(start, 0, lookup.shape[dim] - sizes[dim])
    key, inside = lookup.keys(starts)
    rows = _take_rows(block.xp, lookup.rows(x), key, inside)
    return lookup.sliced(rows, at["offset_dims"])


def scatter(block: Block, *operands: Any) -> Any:
    """Updates combined with inputs at each index, or put there: then the last of several stays.

    A window that does not lie inside the array as a whole is dropped, and so is what is not in the
    box.
    """
    at, xp, half = block.attributes, block.xp, len(operands) // 2
    if at.get("region") == "custom":
        raise WeftError("a scatter by a region of its own cannot be run box by box")
    inputs, indices, updates = operands[:half], operands[half], operands[half + 1 :]
    lookup, window = _scattering(block)
    starts = lookup.starts(indices)
    fits = None
    for dim, start in starts.items():
        ok = (start >= 0) & (start <= lookup.shape[dim] - lookup.sizes[dim])
        fits = ok if fits is None else fits & ok
    key, inside = lookup.keys(starts, fits)
    if inside is not None:
        key = xp.where(inside, key, xp.full_like(key, lookup.count))
    monoid = "" if at.get("region") == "replace" else at.get("monoid", "sum")
    put = _Put(xp, key, lookup.count, monoid)
    return tuple(
        lookup.unrowed(put(lookup.rows(x), lookup.flattened(new, window)))
        for x, new in zip(inputs, updates)
    )


def _scattering(block: Block) -> tuple[_Lookup, Point]:
    """What a scatter writes to: its windows are the slices of a gather."""
    at, window = block.attributes, tuple(block.attributes["update_window_dims"])
    shape, updates = block.signature.operand_shapes[0], block.signature.operand_shapes[-1]
    hidden = tuple(at.get("inserted_window_dims", ()))
    batching = dict(
        zip(at.get("input_batching_dims", ()), at.get("scatter_indices_batching_dims", ()))
    )
    extents = iter(updates[dim] for dim in window)
    sizes = [1 if d in hidden or d in batching else next(extents) for d in range(len(shape))]
    return _Lookup(block, sizes, hidden, batching, _mapped(at)), window


def _mapped(attributes: Attributes) -> Point:
    """Which dimension each part of an index is for, as the text or the bindings of MLIR say it."""
    for name in ("scatter_dims_to_operand_dims", "scattered_dims_to_operand_dims"):
        if name in attributes:
            return tuple(attributes[name])
    raise WeftError("a scatter needs scatter_dims_to_operand_dims")


class _Lookup:
    """Which elements of an array belong to each index.

    `sizes` has the extent of a slice in each dimension; slices do not have the `hidden` ones, nor
    those that are batches, each of which has its place among the dimensions of the indices.
    """

    def __init__(
        self,
        block: Block,
        sizes: Sequence[int],
        hidden: Sequence[int],
        batching: dict[int, int],
        mapped: Sequence[int],
    ) -> None:
        self.xp, self.sizes, self.mapped, self.batching = block.xp, sizes, mapped, batching
        self.vector = block.attributes["index_vector_dim"]
        self.shape, dims = block.signature.operand_shapes[0], range(len(sizes))
        self.box, self.places = block.operands[0], block.operands[len(block.operands) // 2]
        self.seen = [dim for dim in dims if dim not in hidden and dim not in batching]
        self.chosen = [d for d in dims if sizes[d] != self.shape[d] or d not in self.seen]
        self.partial = [dim for dim in self.chosen if dim in self.seen]
        self.kept = [dim for dim in dims if dim not in self.chosen]
        self.batch = [dim for dim in range(self.places.ndim) if dim != self.vector]
        self.count = prod(self.box.shape[dim] for dim in self.chosen)
        """How many rows there are to choose from."""
        self.single = (-1, *(1,) * len(self.partial))
        """The shape of a number for each index, beside the elements of its slice."""

    def starts(self, indices: Any) -> dict[int, Any]:
        """Where each slice begins, for the dimensions that the indices speak of."""
        xp = self.xp
        if self.vector == indices.ndim:
            indices = xp.expand_dims(indices, axis=self.vector)
        return {
            dim: _whole_numbers(xp, xp.reshape(indices[along(self.vector, number)], self.single))
            for number, dim in enumerate(self.mapped)
        }

    def keys(self, starts: dict[int, Any], inside: Any = None) -> tuple[Any, Any]:
        """The row of each element of each slice, and which of them lie in the box."""
        xp, count = self.xp, prod(self.places.shape[dim] for dim in self.batch)
        shape = (count, *(self.sizes[dim] for dim in self.partial))
        key = xp.reshape(xp.arange(count) * 0, self.single)
        for dim in self.chosen:
            extent = self.box.shape[dim]
            at = self._along(dim, starts) - self.box.start[dim]
            if extent != self.shape[dim]:
                ok = (at >= 0) & (at < extent)
                inside = ok if inside is None else inside & ok
            key = key * extent + at
        key = xp.reshape(xp.broadcast_to(key, shape), (-1,))
        if inside is not None:
            inside = xp.reshape(xp.broadcast_to(inside, shape), (-1,))
        return key, inside

    def _along(self, dim: int, starts: dict[int, Any]) -> Any:
        """The coordinate in one dimension of each element of each slice."""
        xp = self.xp
        if dim in self.batching:
            return self._batch_places(self.batching[dim])
        start = starts.get(dim, 0)
        if dim not in self.partial:
            return start
        after = len(self.partial) - 1 - self.partial.index(dim)
        return xp.reshape(xp.arange(self.sizes[dim]), (-1, *(1,) * after)) + start

    def _batch_places(self, dim: int) -> Any:
        """The coordinate of each index in one of its dimensions."""
        xp, places = self.xp, self.places
        line = xp.arange(places.start[dim], places.stop[dim])
        line = xp.reshape(line, tuple(-1 if d == dim else 1 for d in self.batch))
        every = xp.broadcast_to(line, tuple(places.shape[d] for d in self.batch))
        return xp.reshape(every, self.single)

    def rows(self, x: Any) -> Any:
        """The array with rows to choose from, and what is kept."""
        xp = self.xp
        x = xp.permute_dims(x, (*self.chosen, *self.kept))
        return xp.reshape(x, (self.count, prod(self.box.shape[dim] for dim in self.kept)))

    def unrowed(self, rows: Any) -> Any:
        """Rows as they lie in the array."""
        xp, order = self.xp, (*self.chosen, *self.kept)
        x = xp.reshape(rows, tuple(self.box.shape[dim] for dim in order))
        return xp.permute_dims(x, tuple(order.index(dim) for dim in range(len(order))))

    def _slice_axes(self, rank: int, window: Sequence[int]) -> tuple[int, ...]:
        """For each axis of (indices, parts, kept) its place in the slices."""
        places = dict(zip(self.seen, sorted(window)))
        batch = [axis for axis in range(rank) if axis not in window]
        return (*batch, *(places[d] for d in self.partial), *(places[d] for d in self.kept))

    def sliced(self, rows: Any, window: Sequence[int]) -> Any:
        """Rows as they lie in the slices."""
        xp = self.xp
        batch = [self.places.shape[dim] for dim in self.batch]
        parts = [self.sizes[dim] for dim in self.partial]
        x = xp.reshape(rows, (*batch, *parts, *(self.box.shape[dim] for dim in self.kept)))
        axes = self._slice_axes(x.ndim, window)
        return xp.permute_dims(x, tuple(axes.index(axis) for axis in range(x.ndim)))

    def flattened(self, updates: Any, window: Sequence[int]) -> Any:
        """Slices as rows, one for each element of each that is chosen."""
        xp = self.xp
        x = xp.permute_dims(updates, self._slice_axes(updates.ndim, window))
        width = prod(self.box.shape[dim] for dim in self.kept)
        count = prod(x.shape[: x.ndim - len(self.kept)])
        return xp.reshape(x, (count, width))


def _whole_numbers(xp: Any, x: Any) -> Any:
    """Indices as the integers that the library counts with."""
    return xp.astype(x, xp.arange(1).dtype)


def _take_rows(xp: Any, rows: Any, key: Any, inside: Any) -> Any:
    """Rows by their numbers; zeros where they are not inside."""
    if rows.shape[0] == 0:
        return xp.zeros((key.shape[0], rows.shape[1]), dtype=rows.dtype)
    if inside is None:
        return xp.take(rows, key, axis=0)
    taken = xp.take(rows, xp.where(inside, key, xp.zeros_like(key)), axis=0)
    return xp.where(xp.expand_dims(inside, axis=1), taken, xp.zeros_like(taken))


class _Put:
    """Puts updates into rows by their numbers; those past the end are dropped.

    Nothing is written in place, so that any library will do: updates are sorted by number, those
    of one number are combined, two, four, eight at a time, and each row looks up its own.
    """

    def __init__(self, xp: Any, key: Any, count: int, monoid: str) -> None:
        self.xp, self.monoid, self.is_empty = xp, monoid, not (count and key.shape[0])
        if self.is_empty:
            return
        self.order = xp.argsort(key, stable=True)
        self.key = xp.take(key, self.order, axis=0)
        wanted = xp.astype(xp.arange(count), key.dtype)
        last = xp.searchsorted(self.key, wanted, side="right") - 1
        self.last = xp.where(last < 0, xp.zeros_like(last), last)
        self.hit = xp.expand_dims(xp.take(self.key, self.last, axis=0) == wanted, axis=1)

    def __call__(self, rows: Any, updates: Any) -> Any:
        if self.is_empty:
            return rows
        xp = self.xp
        updates = xp.take(updates, self.order, axis=0)
        if not self.monoid:
            return xp.where(self.hit, xp.take(updates, self.last, axis=0), rows)
        both = combination(xp, self.monoid, rows.dtype)
        found = xp.take(self._totals(updates, both), self.last, axis=0)
        return xp.where(self.hit, both(rows, found), rows)

    def _totals(self, updates: Any, both: Callable[[Any, Any], Any]) -> Any:
        """Updates of one number combined: the last of each run of numbers has them all."""
        xp, key, step = self.xp, self.key, 1
        while step < key.shape[0]:
            same = xp.expand_dims(key[step:] == key[:-step], axis=1)
            later = updates[step:, :]
            joined = xp.where(same, both(updates[:-step, :], later), later)
            updates = xp.concat([updates[:step, :], joined], axis=0)
            step *= 2
        return updates
