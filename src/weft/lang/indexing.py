"""NumPy's indexing by integer arrays, and updates at computed places.

Negative indices count from the end, and others outside an array are errors when the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_int
from typing import Any

from weft.errors import WeftError
from weft.lang.arithmetic import apply, as_operand, create, normalize_axis, spelled_out, take_slices
from weft.lang.dtype import dtype_name, kind
from weft.lang.size import Size
from weft.values import Point

__all__ = ["gather_at", "scatter_at", "take", "take_along_axis", "take_index"]

MOST_CONSTANTS = 1 << 16
"""The most indices that are written into a program; larger arrays are inputs of it."""

_MODES = {"raise": "from_end", "clip": "clip"}


def take(x: Any, indices: Any, axis: int | None = None, *, mode: str = "raise") -> Any:
    """Return the elements at indices along an axis, of the flattened array without one.

    Negative indices count from the end, and others outside the array are errors when the program
    runs. With `mode="clip"` indices are clipped to the array instead, negative ones to 0.
    """
    if mode not in _MODES:
        raise WeftError(f"mode is 'raise' or 'clip', got {mode!r}")
    x, indices = as_operand(x), _as_indices(indices)
    x, axis = (x.reshape(-1), 0) if axis is None else (x, normalize_axis(axis, len(x.shape))[0])
    rest = [dim for dim in range(len(x.shape)) if dim != axis]
    rows = x.transpose(axis, *rest) if axis else x
    rows = rows if len(rows.shape) == 2 else rows.reshape(x.shape[axis], -1)
    result = apply("embedding", rows, indices, bounds=_MODES[mode])
    shape = (*indices.shape, *(x.shape[dim] for dim in rest))
    result = result if result.shape == shape else result.reshape(shape)
    count = len(indices.shape)
    order = [*range(count, count + axis), *range(count), *range(count + axis, len(result.shape))]
    return result.transpose(*order) if axis else result


def take_along_axis(x: Any, indices: Any, axis: int = -1, *, bounds: str = "from_end") -> Any:
    """Return for each index the element that it names along an axis; other sizes are the same.

    >>> from weft import Tensor
    >>> take_along_axis(Tensor([[3, 1, 2], [6, 5, 4]]), Tensor([[0, -1], [2, 2]])).tolist()
    [[3, 2], [4, 4]]
    """
    x, indices = as_operand(x), _as_indices(indices)
    rank = len(x.shape)
    (axis,) = normalize_axis(axis, rank)
    others = tuple(dim for dim in range(rank) if dim != axis)
    if len(indices.shape) != rank or any(x.shape[d] != indices.shape[d] for d in others):
        raise WeftError(
            f"indices {list(indices.shape)} along axis {axis} of {list(x.shape)}: "
            "the other sizes must be equal"
        )
    return apply(
        "gather",
        x,
        indices.reshape((*indices.shape, 1)),
        slice_sizes=(1,) * rank,
        collapsed_slice_dims=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=others,
        start_index_map=(axis,),
        index_vector_dim=rank,
        offset_dims=(),
        bounds=bounds,
    )


def take_index(x: Any, key: Any) -> Any:
    """Return `x[key]`: integers, slices, `...`, None and integer arrays, as in NumPy."""
    parts = [_part(each) for each in (key if isinstance(key, tuple) else (key,))]
    if not any(map(_is_array, parts)):
        return take_slices(x, tuple(parts))
    parts = spelled_out(tuple(parts), len(x.shape))
    x = take_slices(x, tuple(slice(None) if _is_array(part) else part for part in parts))
    left = [part for part in parts if not isinstance(part, int | Size)]
    dims = [dim for dim, part in enumerate(left) if _is_array(part)]
    arrays = [left[dim] for dim in dims]
    chosen = [n for n, part in enumerate(parts) if _is_array(part) or isinstance(part, int | Size)]
    # NumPy: where the indices stand together, so do the dimensions that they make; else in front
    together = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    at = chosen[0] if together else 0
    if len(arrays) == 1 and at == dims[0]:
        return take(x, arrays[0], at)
    return gather_at(x, arrays, dims, at)


def gather_at(x: Any, arrays: Sequence[Any], dims: Sequence[int], at: int) -> Any:
    """Return the slices of an array at places that several integer arrays give together.

    The arrays are broadcast, and give a place along `dims`. The dimensions of the places begin at
    dimension `at` of the result; the others keep their order.
    """
    places = _places(arrays)
    count, rest = len(places.shape) - 1, len(x.shape) - len(dims)
    return apply(
        "gather",
        x,
        places,
        slice_sizes=tuple(1 if dim in dims else n for dim, n in enumerate(x.shape)),
        collapsed_slice_dims=tuple(dims),
        start_index_map=tuple(dims),
        index_vector_dim=count,
        offset_dims=_around(at, count, rest),
        bounds="from_end",
    )


def scatter_at(
    x: Any,
    arrays: Sequence[Any],
    dims: Sequence[int],
    at: int,
    updates: Any,
    monoid: str = "",
    bounds: str = "from_end",
) -> Any:
    """Return an array with updates at places: written, or combined with what is there by a monoid.

    Places are those of `gather_at`, and `updates` has the shape of its result. Of several updates
    that are written to one place the last remains.
    """
    places = _places(arrays)
    count, rest = len(places.shape) - 1, len(x.shape) - len(dims)
    combined = {"monoid": monoid} if monoid else {"region": "replace"}
    return apply(
        "scatter",
        x,
        places,
        updates,
        update_window_dims=_around(at, count, rest),
        inserted_window_dims=tuple(dims),
        scatter_dims_to_operand_dims=tuple(dims),
        index_vector_dim=count,
        bounds=bounds,
        **combined,
    )


def _around(at: int, count: int, rest: int) -> Point:
    """Return the dimensions of a result that are not those of the places."""
    return (*range(at), *range(at + count, rest + count))


def _places(arrays: Sequence[Any]) -> Any:
    """Return integer arrays, broadcast to one shape, as index vectors along a last dimension."""
    given = [_as_indices(array) for array in arrays]
    shape = broadcast_shape([array.shape for array in given])
    rank = len(shape)
    columns = [
        apply(
            "broadcast_in_dim",
            array.reshape((*(1,) * (rank - len(array.shape)), *array.shape, 1)),
            broadcast_dimensions=tuple(range(rank + 1)),
            result_shape=(*shape, 1),
        )
        for array in given
    ]
    return columns[0] if len(columns) == 1 else apply("concatenate", *columns, dimension=rank)


def broadcast_shape(shapes: Sequence[Point]) -> Point:
    """Return the shape to which index arrays are broadcast.

    >>> broadcast_shape([(3,), (2, 1)])
    (2, 3)
    """
    rank = max(map(len, shapes))
    found: list[int] = []
    for sizes in zip(*((*(1,) * (rank - len(shape)), *shape) for shape in shapes)):
        wide = [n for n in sizes if n != 1]
        if any(n != wide[0] for n in wide):
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise WeftError(f"indices of shapes {listed} do not broadcast")
        found.append(wide[0] if wide else 1)
    return tuple(found)


def _is_array(part: Any) -> bool:
    return hasattr(part, "shape")


def _part(part: Any) -> Any:
    """Return one part of an index: an integer, a slice, `...`, None or an array of integers."""
    if isinstance(part, list):
        part = _constant(part)
    if part is None or part is ... or isinstance(part, slice):
        return part
    if not hasattr(part, "shape"):
        return _integer(part)
    if dtype_name(part.dtype) == "bool":
        raise WeftError(
            "an array cannot be indexed by a mask: how many elements it selects is not known "
            "before the program runs",
            hint="ops.where(mask, x, 0), or a reduction of that",
        )
    if hasattr(part, "__weft_apply__") or part.shape != ():
        return _as_indices(part)
    return _integer(part)


def _integer(part: Any) -> Any:
    """Return an integer, or what else is not an index, for `take_slices` to refuse."""
    if isinstance(part, bool):
        return str(part)
    try:
        return as_int(part)
    except TypeError:
        return part


def _as_indices(indices: Any) -> Any:
    """Return integers as an operand; lists of them are constants of the program."""
    if isinstance(indices, int | list | tuple):
        return _constant(indices)
    if not hasattr(indices, "__weft_apply__") and indices.size <= MOST_CONSTANTS:
        return _constant(indices.tolist())
    indices = as_operand(indices)
    if kind(dtype_name(indices.dtype)) not in ("int", "uint"):
        raise WeftError(f"indices are integers, got {dtype_name(indices.dtype)}")
    return indices


def _constant(indices: Any) -> Any:
    """Return nested sequences of integers as a constant."""
    shape: list[int] = []
    each = indices
    while isinstance(each, list | tuple):
        shape.append(len(each))
        each = each[0] if each else 0
    flat = indices if isinstance(indices, list | tuple) else [indices]
    for _ in shape[1:]:
        if len({len(row) if isinstance(row, list | tuple) else -1 for row in flat}) > 1:
            raise WeftError(f"indices are integers in rows of one length, got {indices!r}")
        flat = [number for row in flat for number in row]
    if any(isinstance(number, bool) or not isinstance(number, int) for number in flat):
        raise WeftError(f"indices are integers, got {indices!r}")
    return create("constant", value=tuple(flat), dtype="int64", result_shape=tuple(shape))
