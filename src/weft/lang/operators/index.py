"""Gather, scatter and embeddings: reads and writes at computed indices.

    embedding   v d, b0 b1 -> b0 b1 d          sum: v
    gather      i0 i1, b0 [v] -> b0 i1         sum: i0
    scatter     + i0 i1, b0 [v], b0 i1 -> i0 i1   sum: b0

In the kernels the indexed dimensions of an array become one dimension of rows; the others are kept.
Rows outside the box are skipped: another box has them.

Indices outside the array follow the attribute `bounds`:

    refuse      an error: the default of `embedding`
    from_end    negative ones count from the end, as in NumPy; others are errors
    clip        a slice is moved into the array: the default of `gather`, as in StableHLO
    drop        an update is left out: the default of `scatter`, as in StableHLO
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.dtype import for_kinds, like_all
from weft.lang.kernel import Attributes, Block, along
from weft.lang.monoid import combination
from weft.lang.notation import Notation, Row, numbered, plain, whole
from weft.lang.operator import Keeps, define
from weft.lang.signature import Signature
from weft.values import Point


def sign_embedding(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a row of a table for each index; rows are summed over where the table is cut.

    >>> print(sign_embedding([(100, 8), (2, 5)], {}).notation)
    v d, b0 b1 -> b0 b1 d  sum: v
    """
    if len(shapes) != 2 or len(shapes[0]) != 2:
        raise WeftError(
            f"embedding takes a table of rank 2 and indices, got {list(map(list, shapes))}"
        )
    v, d = plain("v", "d")
    places = numbered("b", len(shapes[1]))
    return Signature(Notation([(v, d), places], [(*places, d)], {"v": "sum"}), shapes)


def embedding(block: Block, table: Any, indices: Any) -> Any:
    """Look up the row of each index."""
    xp, size, box = block.xp, block.signature.operand_shapes[0][0], block.operands[0]
    key = _as_indices(xp, xp.reshape(indices, (-1,)))
    key = _within(xp, key, size, block.attributes.get("bounds", "refuse")) - box.start[0]
    inside = None if box.shape[0] == size else (key >= 0) & (key < box.shape[0])
    rows = _take_rows(xp, table, key, inside)
    return xp.reshape(rows, (*indices.shape, table.shape[1]))


def _index_rows(rank: int, vector: int) -> list[Row]:
    """Return the rows of the indices: batches, and the index vector, which is never cut."""
    return [whole("v") if dim == vector else plain(f"b{dim}")[0] for dim in range(rank)]


def _slices(
    rank: int, window: Sequence[int], indices: list[Row]
) -> Iterator[tuple[int, Row | None]]:
    """Return the dimensions of the slices, each with its row of the indices if it is a batch."""
    batches = (row for row in indices if not row.whole)
    for dim in range(rank):
        yield dim, None if dim in window else next(batches)


def _slice_dims(rank: int, hidden: Sequence[int], batching: Sequence[int]) -> list[int]:
    """Return the dimensions of the operand that slices have."""
    return [dim for dim in range(rank) if dim not in hidden and dim not in batching]


def sign_gather(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign slices of the operand at each index; an indexed dimension that is cut is summed over.

    >>> rows = dict(
    ...     offset_dims=(1,), collapsed_slice_dims=(0,), index_vector_dim=1, slice_sizes=(1, 8)
    ... )
    >>> print(sign_gather([(100, 8), (5, 1)], rows).notation)
    i0 i1, b0 [v] -> b0 i1  sum: i0
    """
    (shape, indices), slices = shapes, attributes["slice_sizes"]
    collapsed = attributes.get("collapsed_slice_dims", ())
    batching = attributes.get("operand_batching_dims", ())
    places = _index_rows(len(indices), attributes["index_vector_dim"])
    operand = list(plain(*(f"i{dim}" for dim in range(len(shape)))))
    for dim, place in zip(batching, attributes.get("start_indices_batching_dims", ())):
        operand[dim] = places[place]
    reduced = {f"i{dim}": "sum" for dim in collapsed if shape[dim] > 1}
    for dim in collapsed:
        operand[dim] = operand[dim] if shape[dim] > 1 else whole(f"i{dim}")
    seen = iter(_slice_dims(len(shape), collapsed, batching))
    result, sizes, offset = [], {}, attributes["offset_dims"]
    rank = sum(not row.whole for row in places) + len(offset)
    for _, batch in _slices(rank, offset, places):
        dim = -1 if batch else next(seen)
        row = batch or operand[dim]
        if batch is None and slices[dim] != shape[dim]:
            row, sizes[f"o{dim}"] = whole(f"o{dim}"), slices[dim]
            if slices[dim] == 1:
                reduced[f"i{dim}"] = "sum"
            else:
                operand[dim], row = whole(f"i{dim}"), whole(f"o{dim}", f"i{dim}")
        result.append(row)
    return Signature(Notation([operand, places], [result], reduced), shapes, sizes)


def gather(block: Block, x: Any, indices: Any) -> Any:
    """Take slices at each index; rows of another box are zeros."""
    at, sizes = block.attributes, block.attributes["slice_sizes"]
    hidden = tuple(at.get("collapsed_slice_dims", ()))
    batching = dict(
        zip(at.get("operand_batching_dims", ()), at.get("start_indices_batching_dims", ()))
    )
    lookup = _Lookup(block, sizes, hidden, batching, at["start_index_map"])
    starts = lookup.starts(indices)
    for dim, start in starts.items():
        count = lookup.shape[dim] - sizes[dim] + 1
        starts[dim] = _within(block.xp, start, count, at.get("bounds", "clip"))
    key, inside = lookup.keys(starts)
    rows = _take_rows(block.xp, lookup.rows(x), key, inside)
    return lookup.sliced(rows, at["offset_dims"])


def sign_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign updates that are written into inputs at each index, combined by a monoid if any.

    Without one the indices are not cut, because their order matters.

    >>> rows = dict(update_window_dims=(1,), inserted_window_dims=(0,), index_vector_dim=1)
    >>> print(sign_scatter([(100, 8), (5, 1), (5, 8)], rows).notation)
    + i0 i1, b0 [v], b0 i1 -> i0 i1  sum: b0
    """
    count = len(shapes) // 2
    shape, indices, updates = shapes[0], shapes[count], shapes[-1]
    inserted = attributes.get("inserted_window_dims", ())
    batching = attributes.get("input_batching_dims", ())
    shared = attributes.get("scatter_indices_batching_dims", ())
    places = _index_rows(len(indices), attributes["index_vector_dim"])
    monoid = "" if attributes.get("region") else attributes.get("monoid", "sum")
    reduced: dict[str, str] = {}
    for dim, row in enumerate(places):
        if not row.whole and dim not in shared:
            reduced |= {f"b{dim}": monoid} if monoid else {}
            places[dim] = row if monoid else row._replace(whole=True)
    operand = list(plain(*(f"i{dim}" for dim in range(len(shape)))))
    for dim, place in zip(batching, shared):
        operand[dim] = places[place]
    seen = iter(_slice_dims(len(shape), inserted, batching))
    vector = attributes["index_vector_dim"]
    batches = iter([row for dim, row in enumerate(places) if dim != vector])
    update = []
    for dim, size in enumerate(updates):
        if dim not in attributes["update_window_dims"]:
            update.append(next(batches))
            continue
        into = next(seen)
        if size != shape[into]:
            operand[into] = whole(f"i{into}")
        update.append(operand[into] if size == shape[into] else whole(f"u{dim}"))
    operands = [*[operand] * count, places, *[update] * count]
    line = Notation(operands, [operand] * count, reduced, once=range(count) if reduced else ())
    return Signature(line, shapes)


def scatter(block: Block, *operands: Any) -> Any:
    """Combine updates with inputs at each index, or write them: the last of several remains.

    A window that is not inside the array is dropped, and so are elements outside the box.
    """
    at, xp, half = block.attributes, block.xp, len(operands) // 2
    if at.get("region") == "custom":
        raise WeftError("a scatter by a custom region cannot be run box by box")
    inputs, indices, updates = operands[:half], operands[half], operands[half + 1 :]
    lookup, window = _scattering(block)
    starts = lookup.starts(indices)
    fits = None
    for dim, start in starts.items():
        count = lookup.shape[dim] - lookup.sizes[dim] + 1
        starts[dim] = _within(xp, start, count, at.get("bounds", "drop"))
        ok = (starts[dim] >= 0) & (starts[dim] < count)
        fits = ok if fits is None else fits & ok
    key, inside = lookup.keys(starts, fits)
    if inside is not None:
        key = xp.where(inside, key, xp.full_like(key, lookup.count))
    monoid = "" if at.get("region") == "replace" else at.get("monoid", "sum")
    write = _ScatterRows(xp, key, lookup.count, monoid)
    return tuple(
        lookup.unrowed(write(lookup.rows(x), lookup.flattened(new, window)))
        for x, new in zip(inputs, updates)
    )


def _scattering(block: Block) -> tuple[_Lookup, Point]:
    """Return the rows that a scatter writes to: its windows are the slices of a gather."""
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
    """Return the dimension of each part of an index; MLIR's text and bindings differ in a name."""
    for name in ("scatter_dims_to_operand_dims", "scattered_dims_to_operand_dims"):
        if name in attributes:
            return tuple(attributes[name])
    raise WeftError("a scatter needs scatter_dims_to_operand_dims")


class _Lookup:
    """The elements of an array that belong to each index.

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
        """The number of rows."""
        self.single = (-1, *(1,) * len(self.partial))
        """The shape of one number per index, broadcast over the elements of its slice."""

    def starts(self, indices: Any) -> dict[int, Any]:
        """Return where each slice begins, for the dimensions that the indices give."""
        xp = self.xp
        if self.vector == indices.ndim:
            indices = xp.expand_dims(indices, axis=self.vector)
        return {
            dim: _as_indices(xp, xp.reshape(indices[along(self.vector, number)], self.single))
            for number, dim in enumerate(self.mapped)
        }

    def keys(self, starts: dict[int, Any], inside: Any = None) -> tuple[Any, Any]:
        """Return the row of each element of each slice, and which of them are in the box."""
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
        """Return the coordinate in one dimension of each element of each slice."""
        xp = self.xp
        if dim in self.batching:
            return self._batch_places(self.batching[dim])
        start = starts.get(dim, 0)
        if dim not in self.partial:
            return start
        after = len(self.partial) - 1 - self.partial.index(dim)
        return xp.reshape(xp.arange(self.sizes[dim]), (-1, *(1,) * after)) + start

    def _batch_places(self, dim: int) -> Any:
        """Return the coordinate of each index in one of its dimensions."""
        xp, places = self.xp, self.places
        line = xp.arange(places.start[dim], places.stop[dim])
        line = xp.reshape(line, tuple(-1 if d == dim else 1 for d in self.batch))
        every = xp.broadcast_to(line, tuple(places.shape[d] for d in self.batch))
        return xp.reshape(every, self.single)

    def rows(self, x: Any) -> Any:
        """Return the array as rows by kept elements."""
        xp = self.xp
        x = xp.permute_dims(x, (*self.chosen, *self.kept))
        return xp.reshape(x, (self.count, prod(self.box.shape[dim] for dim in self.kept)))

    def unrowed(self, rows: Any) -> Any:
        """Return rows in the shape of the array."""
        xp, order = self.xp, (*self.chosen, *self.kept)
        x = xp.reshape(rows, tuple(self.box.shape[dim] for dim in order))
        return xp.permute_dims(x, tuple(order.index(dim) for dim in range(len(order))))

    def _slice_axes(self, rank: int, window: Sequence[int]) -> tuple[int, ...]:
        """Return for each axis of (indices, parts, kept) its axis in the slices."""
        places = dict(zip(self.seen, sorted(window)))
        batch = [axis for axis in range(rank) if axis not in window]
        return (*batch, *(places[d] for d in self.partial), *(places[d] for d in self.kept))

    def sliced(self, rows: Any, window: Sequence[int]) -> Any:
        """Return rows in the shape of the slices."""
        xp = self.xp
        batch = [self.places.shape[dim] for dim in self.batch]
        parts = [self.sizes[dim] for dim in self.partial]
        x = xp.reshape(rows, (*batch, *parts, *(self.box.shape[dim] for dim in self.kept)))
        axes = self._slice_axes(x.ndim, window)
        return xp.permute_dims(x, tuple(axes.index(axis) for axis in range(x.ndim)))

    def flattened(self, updates: Any, window: Sequence[int]) -> Any:
        """Return slices as rows, one for each indexed element."""
        xp = self.xp
        x = xp.permute_dims(updates, self._slice_axes(updates.ndim, window))
        width = prod(self.box.shape[dim] for dim in self.kept)
        count = prod(x.shape[: x.ndim - len(self.kept)])
        return xp.reshape(x, (count, width))


def _as_indices(xp: Any, x: Any) -> Any:
    """Return indices in the library's default integer dtype."""
    return xp.astype(x, xp.arange(1).dtype)


def _within(xp: Any, at: Any, count: int, bounds: str) -> Any:
    """Return indices below a count; those outside are treated as `bounds` says."""
    if bounds == "drop":
        return at
    if bounds == "clip":
        return xp.clip(at, 0, max(0, count - 1))
    if bounds not in ("refuse", "from_end"):
        raise WeftError(f"bounds is refuse, from_end, clip or drop, got {bounds!r}")
    if 0 in at.shape:
        return at
    lowest = -count if bounds == "from_end" else 0
    for wrong in (int(xp.min(at)), int(xp.max(at))):
        if not lowest <= wrong < count:
            expected = f"expected {lowest} to {count - 1}" if count else "there are no elements"
            raise WeftError(f"index {wrong} is out of bounds: {expected}")
    return xp.where(at < 0, at + count, at) if lowest else at


def _take_rows(xp: Any, rows: Any, key: Any, inside: Any) -> Any:
    """Return rows by number; zeros where they are not inside."""
    if rows.shape[0] == 0:
        return xp.zeros((key.shape[0], rows.shape[1]), dtype=rows.dtype)
    if inside is None:
        return xp.take(rows, key, axis=0)
    taken = xp.take(rows, xp.where(inside, key, xp.zeros_like(key)), axis=0)
    return xp.where(xp.expand_dims(inside, axis=1), taken, xp.zeros_like(taken))


class _ScatterRows:
    """Writes updates into rows by number; those past the end are dropped.

    Nothing is written in place, so that any array library can be used: updates are sorted by row,
    those of one row are combined by doubling, and each row looks up its own.
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
        totals = xp.take(self._totals(updates, both), self.last, axis=0)
        return xp.where(self.hit, both(rows, totals), rows)

    def _totals(self, updates: Any, both: Callable[[Any, Any], Any]) -> Any:
        """Combine the updates of one row: the last of each run has the total."""
        xp, key, step = self.xp, self.key, 1
        while step < key.shape[0]:
            same = xp.expand_dims(key[step:] == key[:-step], axis=1)
            later = updates[step:, :]
            joined = xp.where(same, both(updates[:-step, :], later), later)
            updates = xp.concat([updates[:step, :], joined], axis=0)
            step *= 2
        return updates


def _inputs_and_updates(count: int) -> Keeps:
    """Return the operands that may be partial together: all but the indices."""
    return {"own": [tuple(n for n in range(count) if n != count // 2)]}


def _updates(line: Signature, attributes: Attributes) -> float:
    """Count one operation for each element of the updates."""
    total = prod(line.operand_shapes[-1]) * (len(line.operand_shapes) // 2)
    return total / max(1, line.space.size)


def _indexed(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of an array that is indexed by integers."""
    for_kinds("int uint")(dtypes[1:2], {})
    return [dtypes[0]]


def _scattered(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of the inputs, which the updates must have too."""
    count = len(dtypes) // 2
    for_kinds("int uint")(dtypes[count : count + 1], {})
    for dtype, update in zip(dtypes, dtypes[count + 1 :]):
        like_all([dtype, update], {})
    return dtypes[:count]


define(
    "gather",
    sign_gather,
    gather,
    keeps={"sum": [(0,)]},
    flops=0,
    dtypes=_indexed,
    attributes="""slice_sizes collapsed_slice_dims operand_batching_dims start_indices_batching_dims
            start_index_map index_vector_dim offset_dims bounds""",
)
define(
    "scatter",
    sign_scatter,
    scatter,
    keeps=_inputs_and_updates,
    flops=_updates,
    dtypes=_scattered,
    attributes="""update_window_dims inserted_window_dims input_batching_dims
            scatter_indices_batching_dims scattered_dims_to_operand_dims
            scatter_dims_to_operand_dims index_vector_dim monoid region bounds""",
)
define(
    "embedding",
    sign_embedding,
    embedding,
    keeps={"sum": [(0,)]},
    flops=0,
    dtypes=_indexed,
    attributes="bounds",
)
