"""Gather and scatter: slices at places that only the indices know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from weft.errors import WeftError
from weft.lang.block import Attributes
from weft.lang.dtype import for_kinds, like_all
from weft.lang.kernels import index as kernels
from weft.lang.library.rows import numbered, plain, whole
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Keeps, Operator
from weft.lang.signature import Signature
from weft.values import Point


def _index_rows(rank: int, vector: int) -> list[Row]:
    """The rows of the indices: batches, and the vector that is one index, seen whole."""
    return [whole("v") if dim == vector else plain(f"b{dim}")[0] for dim in range(rank)]


def _slices(
    rank: int, window: Sequence[int], indices: list[Row]
) -> Iterator[tuple[int, Row | None]]:
    """The dimensions of the slices: each with its row among the indices, if it is a batch."""
    batches = (row for row in indices if not row.whole)
    for dim in range(rank):
        yield dim, None if dim in window else next(batches)


def _seen(rank: int, hidden: Sequence[int], batching: Sequence[int]) -> list[int]:
    """The dimensions of the operand that slices have."""
    return [dim for dim in range(rank) if dim not in hidden and dim not in batching]


def sign_gather(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Slices of the operand at each index; what is chosen from is summed over where it is cut.

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
    seen = iter(_seen(len(shape), collapsed, batching))
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


def sign_scatter(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Updates that are put into inputs at each index, combined by a monoid if there is one.

    Without one, or where it works on bits, indices are seen whole, since their order counts.

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
    seen = iter(_seen(len(shape), inserted, batching))
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


def sign_embedding(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """A row of a table for each index; rows are summed over where the table is cut.

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


def _inputs_and_updates(count: int) -> Keeps:
    """All but the indices."""
    return {"own": [tuple(n for n in range(count) if n != count // 2)]}


def _updates(line: Signature, attributes: Attributes) -> float:
    """One operation for each element of the updates."""
    made = prod(line.operand_shapes[-1]) * (len(line.operand_shapes) // 2)
    return made / max(1, line.space.size)


def _indexed(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of an array that is indexed by integers."""
    for_kinds("int uint")(dtypes[1:2], {})
    return [dtypes[0]]


def _scattered(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtypes of the inputs, which the updates have too."""
    count = len(dtypes) // 2
    for_kinds("int uint")(dtypes[count : count + 1], {})
    for dtype, update in zip(dtypes, dtypes[count + 1 :]):
        like_all([dtype, update], {})
    return dtypes[:count]


OPERATORS.add(
    Operator("gather", sign_gather, kernels.gather, keeps={"sum": [(0,)]}, flops=0, dtypes=_indexed)
)
OPERATORS.add(
    Operator(
        "scatter",
        sign_scatter,
        kernels.scatter,
        keeps=_inputs_and_updates,
        flops=_updates,
        dtypes=_scattered,
    )
)
OPERATORS.add(
    Operator(
        "embedding",
        sign_embedding,
        kernels.embedding,
        keeps={"sum": [(0,)]},
        flops=0,
        dtypes=_indexed,
    )
)
