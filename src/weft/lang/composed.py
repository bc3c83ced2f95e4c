"""Functions of `weft.ops` that are made of others, under the names of NumPy and torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index
from typing import Any

from weft.errors import WeftError
from weft.lang.arithmetic import apply, as_operand, create, filled_shape, normalize_axis
from weft.lang.dtype import as_dtype, itemsize, kind, result_type, scalar_of
from weft.lang.size import as_sizes
from weft.values import Point

__all__ = [
    "arange", "bitcast", "conj", "count_nonzero", "diff", "einsum", "eye", "flatten", "full",
    "full_like", "masked_fill", "matrix_transpose", "moveaxis", "ones", "ones_like", "ravel",
    "reciprocal", "repeat", "roll", "split", "swapaxes", "tile", "tril", "triu", "unsqueeze",
    "unstack", "vecdot", "view", "zeros", "zeros_like",
]  # fmt: skip

# Arrays of nothing.


def full(shape: int | Sequence[int], value: Any, dtype: Any = None) -> Any:
    """Return an array of one number: float32 for a float, unless a dtype is given.

    >>> full((2, 3), 7).numpy().tolist()
    [[7, 7, 7], [7, 7, 7]]
    """
    name = as_dtype(dtype) if dtype is not None else result_type(value)
    name = {"float64": "float32", "complex128": "complex64"}.get(name, name) if not dtype else name
    size = as_sizes((shape,) if isinstance(shape, int) else shape)
    return create("constant", value=scalar_of(value, name), dtype=name, result_shape=size)


def zeros(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """Return an array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """Return an array of ones."""
    return full(shape, 1, dtype)


def full_like(x: Any, value: Any, dtype: Any = None) -> Any:
    """Return an array of one number, in the shape and the dtype of another."""
    return full(x.shape, value, x.dtype if dtype is None else dtype)


def zeros_like(x: Any, dtype: Any = None) -> Any:
    """Return zeros, in the shape and the dtype of another array."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Any:
    """Return ones, in the shape and the dtype of another array."""
    return full_like(x, 1, dtype)


def arange(start: int, stop: int | None = None, step: int = 1, dtype: Any = "int64") -> Any:
    """Return integers from `start`, or 0, to below `stop`.

    >>> arange(1, 8, 3).numpy().tolist()
    [1, 4, 7]
    """
    numbers = range(index(start)) if stop is None else range(index(start), index(stop), index(step))
    name = as_dtype(dtype)
    x = create("iota", iota_dimension=0, dtype=name, result_shape=(len(numbers),))
    x = x if numbers.step == 1 else x * scalar_of(numbers.step, name)
    return x if numbers.start == 0 else x + scalar_of(numbers.start, name)


def eye(rows: int, columns: int | None = None, k: int = 0, dtype: Any = "float32") -> Any:
    """Return ones on a diagonal, and zeros beside it.

    >>> eye(2, 3, dtype="int8").numpy().tolist()
    [[1, 0, 0], [0, 1, 0]]
    """
    return _offsets((rows, rows if columns is None else columns), k, "EQ").astype(dtype)


def tril(x: Any, k: int = 0) -> Any:
    """Return the array with zeros above a diagonal."""
    return apply("select", _offsets(x.shape[-2:], k, "LE"), x, scalar_of(0, as_dtype(x.dtype)))


def triu(x: Any, k: int = 0) -> Any:
    """Return the array with zeros below a diagonal."""
    return apply("select", _offsets(x.shape[-2:], k, "GE"), x, scalar_of(0, as_dtype(x.dtype)))


def _offsets(shape: Point, k: int, direction: str) -> Any:
    """Return how the column of each element compares with its row, shifted by k."""
    row, column = (
        create("iota", iota_dimension=n, dtype="int64", result_shape=tuple(shape)) for n in (0, 1)
    )
    return apply("compare", column - row, k, comparison_direction=direction)


# Shapes.


def unsqueeze(x: Any, dim: int) -> Any:
    """Return the array with a new dimension of size 1: torch's name of `expand_dims`."""
    rank = len(x.shape) + 1
    (at,) = normalize_axis(dim, rank)
    return x.reshape((*x.shape[:at], 1, *x.shape[at:]))


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Return the array with some dimensions, by default all of them, as one."""
    if not x.shape:
        return x.reshape((1,))
    (first,), (last,) = (normalize_axis(dim, len(x.shape)) for dim in (start_dim, end_dim))
    if first > last:
        raise WeftError(f"expected start_dim <= end_dim, got {start_dim} and {end_dim}")
    middle = prod(x.shape[first : last + 1])
    return x.reshape((*x.shape[:first], middle, *x.shape[last + 1 :]))


def ravel(x: Any) -> Any:
    """Return the array as one dimension."""
    return flatten(x)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Return the array with some dimensions moved to other places."""
    rank = len(x.shape)
    pairs = [(n,) if isinstance(n, int) else tuple(n) for n in (source, destination)]
    old, new = ([normalize_axis(n, rank)[0] for n in each] for each in pairs)
    if len(set(old)) != len(old) or len(set(new)) != len(old) or len(new) != len(old):
        raise WeftError(f"axes {pairs[0]} cannot be moved to {pairs[1]}")
    places = dict(zip(new, old))
    rest = iter([n for n in range(rank) if n not in old])
    return x.transpose(*(places[n] if n in places else next(rest) for n in range(rank)))


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Return the array with two dimensions exchanged."""
    return moveaxis(x, (axis1, axis2), (axis2, axis1)) if axis1 != axis2 else x


def matrix_transpose(x: Any) -> Any:
    """Return matrices with rows and columns exchanged."""
    return swapaxes(x, -1, -2)


def roll(x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Any:
    """Return the array with elements shifted along axes; those at an end come back at the other."""
    if axis is None:
        return roll(ravel(x), shift, 0).reshape(x.shape)
    shifts, axes = ((n,) if isinstance(n, int) else tuple(n) for n in (shift, axis))
    for by, each in zip(shifts * len(axes) if len(shifts) == 1 else shifts, axes, strict=True):
        (dim,) = normalize_axis(each, len(x.shape))
        at = -by % max(1, x.shape[dim])
        if at:
            parts = [_along(x, dim, slice(at, None)), _along(x, dim, slice(None, at))]
            x = apply("concatenate", *parts, dimension=dim)
    return x


def tile(x: Any, repetitions: int | Sequence[int]) -> Any:
    """Return the array repeated along each dimension.

    >>> tile(arange(3), 2).numpy().tolist()
    [0, 1, 2, 0, 1, 2]
    """
    times = (repetitions,) if isinstance(repetitions, int) else tuple(repetitions)
    rank = max(len(times), len(x.shape))
    times, shape = ((1,) * (rank - len(each)) + tuple(each) for each in (times, x.shape))
    apart = x.reshape(tuple(n for size in shape for n in (1, size)))
    wide = _broadcast(apart, tuple(n for pair in zip(times, shape) for n in pair))
    return wide.reshape(tuple(count * size for count, size in zip(times, shape)))


def repeat(x: Any, repeats: int, axis: int | None = None) -> Any:
    """Return the array with each element repeated, as NumPy's `repeat`; torch's is `tile`."""
    x, axis = (ravel(x), 0) if axis is None else (x, normalize_axis(axis, len(x.shape))[0])
    shape = list(x.shape)
    apart = x.reshape((*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = _broadcast(apart, (*shape[: axis + 1], index(repeats), *shape[axis + 1 :]))
    return wide.reshape((*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


def _broadcast(x: Any, shape: Point) -> Any:
    dims = tuple(range(len(shape)))
    return apply("broadcast_in_dim", x, broadcast_dimensions=dims, result_shape=shape)


def split(x: Any, parts: int | Sequence[int], axis: int = 0) -> tuple[Any, ...]:
    """Return parts along an axis: a number of one size, or cut at given indices, as NumPy does."""
    (dim,) = normalize_axis(axis, len(x.shape))
    size = x.shape[dim]
    if isinstance(parts, int):
        if parts < 1 or size % parts:
            raise WeftError(f"axis {dim} of size {size} cannot be split into {parts} equal parts")
        cuts = list(range(0, size + 1, size // parts)) if size else [0] * (parts + 1)
    else:
        cuts = [0, *parts, size]
    return tuple(_along(x, dim, slice(a, b)) for a, b in pairwise(cuts))


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """Return the arrays along an axis, without that axis."""
    (dim,) = normalize_axis(axis, len(x.shape))
    return tuple(_along(x, dim, n) for n in range(x.shape[dim]))


def _along(x: Any, dim: int, part: Any) -> Any:
    return x[(*[slice(None)] * dim, part, ...)]


# Numbers.


def bitcast(x: Any, dtype: Any) -> Any:
    """Return the bits of the elements in another dtype, as `jax.lax.bitcast_convert_type` does.

    Where the new elements are narrower, those of each old one are a last dimension, the lowest bits
    first; where they are wider, the last dimension holds the parts of one, and is removed.

    >>> bitcast(full((2,), 1.0), "uint16").numpy().tolist()
    [[0, 16256], [0, 16256]]
    """
    name = as_dtype(dtype)
    old, new, shape = itemsize(as_dtype(x.dtype)), itemsize(name), tuple(x.shape)
    kinds = [kind(name), kind(as_dtype(x.dtype))]
    if "bool" in kinds or kinds.count("complex") == 1:
        raise WeftError(f"the bits of {x.dtype} cannot be read as {name}")
    if new < old:
        shape = (*shape, old // new)
    elif new > old:
        if shape[-1:] != (new // old,):
            raise WeftError(
                f"{x.dtype}{list(shape)} cannot be read as {name}: expected a last dimension of "
                f"size {new // old}"
            )
        shape = shape[:-1]
    return apply("bitcast_convert", x, dtype=name, result_shape=shape)


def view(x: Any, *to: Any) -> Any:
    """Return the same bits in another dtype, or the same elements in another shape, as torch does.

    Where elements become wider or narrower, the last dimension becomes shorter or longer.

    >>> view(full((2,), 1.0), "uint16").shape, view(full((6,), 1.0), 2, 3).shape
    ((4,), (2, 3))
    """
    if len(to) != 1 or isinstance(to[0], int | tuple | list):
        return x.reshape(filled_shape(x.shape, to))
    name = as_dtype(to[0])
    old, new, shape = itemsize(as_dtype(x.dtype)), itemsize(name), tuple(x.shape)
    if old == new:
        return bitcast(x, name)
    last = shape[-1] if shape else 0
    if not shape or last * old % new:
        raise WeftError(f"{x.dtype}{list(shape)} has no whole elements of {name} along its end")
    if new > old:
        x = x.reshape((*shape[:-1], last * old // new, new // old))
    return bitcast(x, name).reshape((*shape[:-1], last * old // new))


def reciprocal(x: Any) -> Any:
    """Return one over each element."""
    return 1.0 / x


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return the array with a number where a mask is true."""
    return apply("select", mask, scalar_of(value, as_dtype(x.dtype)), x)


def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return the number of elements that are not zero, along axes."""
    return (x != 0).sum(axis, dtype="int64", keepdims=keepdims)


def diff(x: Any, axis: int = -1) -> Any:
    """Return the differences of neighbours along an axis."""
    (dim,) = normalize_axis(axis, len(x.shape))
    return _along(x, dim, slice(1, None)) - _along(x, dim, slice(None, -1))


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Return the sums of products along an axis, of the conjugate of `x` where it is complex."""
    return (conj(x) * y).sum(axis)


def conj(x: Any) -> Any:
    """Return the complex conjugate: real numbers as they are."""
    if kind(as_dtype(x.dtype)) != "complex":
        return x
    return apply("complex", apply("real", x), -apply("imag", x))


def einsum(equation: str, *operands: Any) -> Any:
    """Return a sum of products: `"ij,jk->ik"`, or with names `"b m k, k n -> b m n"`.

    As in NumPy, `...` stands for dimensions that are broadcast. Without `->` the result has the
    letters that occur once, in alphabetical order.

    >>> from weft import Tensor
    >>> print(einsum("...ij,jk", Tensor.ones((2, 3, 4)), Tensor.ones((4, 5))))
    float32[2, 3, 5]
    """
    arrays = [as_operand(x) for x in operands]
    ranks = [len(x.shape) for x in arrays]
    terms, is_named = _terms(equation, ranks)
    _, arrow, right = equation.partition("->")
    spread = max((rank - len(t) + 1 for t, rank in zip(terms, ranks) if "..." in t), default=0)
    dots = [f"_{n}" for n in range(spread)]
    sizes = dict.fromkeys(dots, 1)
    for number, (written, x) in enumerate(zip(terms, arrays)):
        term = _filled(written, dots[spread - (len(x.shape) - len(written) + 1) :])
        ones = [size == 1 and name in sizes for name, size in zip(term, x.shape)]
        shape = tuple(size for size, one in zip(x.shape, ones) if not one)
        arrays[number] = x.reshape(shape) if any(ones) else x
        terms[number] = [name for name, one in zip(term, ones) if not one]
        sizes |= {name: size for name, size in zip(terms[number], shape) if name in sizes}
    if arrow:
        result = _filled((_words if is_named else _letters)(right), dots)
    else:
        counts = Counter(name for term in terms for name in term if name not in sizes)
        result = [*dots, *sorted(name for name, count in counts.items() if count == 1)]
    kept = [name for name in result if sizes.get(name) != 1]
    made = apply(
        "einsum", *arrays, equation=f"{', '.join(map(' '.join, terms))} -> {' '.join(kept)}"
    )
    if kept == result:
        return made
    lengths = iter(made.shape)
    return made.reshape(tuple(1 if sizes.get(name) == 1 else next(lengths) for name in result))


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], bool]:
    """Return the names of each operand in an equation, and whether they are words, not letters."""
    left, _, result = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise WeftError(f"the equation {equation!r} is of {len(texts)} operands, got {len(ranks)}")
    words, letters = [_words(text) for text in texts], [_letters(text) for text in texts]
    is_named = any(len(term) > 1 + ("..." in term) for term in (*words, _words(result)))
    for terms in (words,) if is_named else (letters, words):
        fits = [
            len(term) - 1 <= rank if "..." in term else len(term) == rank
            for term, rank in zip(terms, ranks)
        ]
        if all(fits):
            return terms, terms is words
    number = fits.index(False)
    raise WeftError(
        f"the equation {equation!r} has {texts[number].strip()!r} for an operand of rank "
        f"{ranks[number]}",
        hint="a letter for each dimension, 'ij,jk->ik', or names, 'b m k, k n -> b m n'",
    )


def _words(text: str) -> list[str]:
    """Return the words of a term; `...` is one of them."""
    return text.replace("...", " ... ").split()


def _letters(text: str) -> list[str]:
    """Return the letters of a term; `...` is one of them."""
    before, dots, after = text.replace(" ", "").partition("...")
    return [*before, *([dots] if dots else []), *after]


def _filled(term: Sequence[str], dots: Sequence[str]) -> list[str]:
    """Return a term with names in place of `...`."""
    return [name for each in term for name in (dots if each == "..." else [each])]
