"""What an array of a program can do: NumPy's operators, each an application of the library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.lang.dtype import as_dtype, dtype_name, is_scalar, kind, result_type
from weft.values import Point, as_point

Dims: TypeAlias = int | Sequence[int] | None
Index: TypeAlias = int | slice | EllipsisType | None


def apply_all(name: str, /, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
    """Apply an operator of the library and return all its results.

    Operands are converted as the operator's dtypes want it: see `weft.lang.dtype`.
    """
    for operand in operands:
        applies = getattr(operand, "__weft_apply__", None)
        if applies is not None:
            found: tuple[Any, ...] = applies(name, operands, attributes)
            return found
    kinds = ", ".join(type(operand).__name__ for operand in operands) or "nothing"
    raise WeftError(
        f"{name} is applied to {kinds}, none of them a tensor of Weft",
        hint="wrap an array: weft.Tensor(array)",
    )


def apply(name: str, /, *operands: Any, **attributes: Any) -> Any:
    """Apply an operator that makes one result."""
    return apply_all(name, *operands, **attributes)[0]


def as_dims(dims: Dims, rank: int) -> Point:
    """Dimensions counted from either end, all of them for None, each once and in order.

    >>> as_dims(-1, 3), as_dims(None, 2), as_dims((2, 0), 3)
    ((2,), (0, 1), (0, 2))
    """
    given = range(rank) if dims is None else (dims,) if isinstance(dims, int) else dims
    found = as_point(given, "dims")
    for dim in found:
        if not -rank <= dim < rank:
            raise WeftError(f"there is no dimension {dim} in an array of rank {rank}")
    return tuple(sorted({dim % rank for dim in found}))


class Arithmetic(ABC):
    """NumPy's operators on whatever operators can be applied to."""

    __slots__ = ()
    __array_priority__ = 1000
    __array_ufunc__ = None

    @property
    @abstractmethod
    def shape(self) -> Point:
        """The sizes of its dimensions."""

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The dimensions in reverse."""
        return self.transpose()

    def __add__(self, other: Any) -> Any:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return apply("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return apply("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return apply("power", other, self)

    def __matmul__(self, other: Any) -> Any:
        return apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return apply("matmul", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> Any:
        return apply("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return apply("mod", other, self)

    def __neg__(self) -> Any:
        return apply("negate", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return apply("abs", self)

    def __and__(self, other: Any) -> Any:
        return apply("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return apply("and", other, self)

    def __or__(self, other: Any) -> Any:
        return apply("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return apply("or", other, self)

    def __xor__(self, other: Any) -> Any:
        return apply("xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return apply("xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return apply("shift_left", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return apply("shift_left", other, self)

    def __rshift__(self, other: Any) -> Any:
        return shift_right(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return shift_right(other, self)

    def __invert__(self) -> Any:
        return apply("not", self)

    def __eq__(self, other: object) -> Any:
        return apply("compare", self, other, comparison_direction="EQ")

    def __ne__(self, other: object) -> Any:
        return apply("compare", self, other, comparison_direction="NE")

    __hash__ = object.__hash__
    """A tensor is a key by what it is, not by its numbers, so that it may be remembered."""

    def __lt__(self, other: Any) -> Any:
        return apply("compare", self, other, comparison_direction="LT")

    def __le__(self, other: Any) -> Any:
        return apply("compare", self, other, comparison_direction="LE")

    def __gt__(self, other: Any) -> Any:
        return apply("compare", self, other, comparison_direction="GT")

    def __ge__(self, other: Any) -> Any:
        return apply("compare", self, other, comparison_direction="GE")

    def sum(self, dims: Dims = None, keep: bool = False, dtype: Any = None) -> Any:
        """The sum along dimensions; of integers it has 64 bits, unless a dtype is given."""
        return reduce_along("sum_dim", self, dims, keep, dtype)

    def prod(self, dims: Dims = None, keep: bool = False, dtype: Any = None) -> Any:
        """The product along dimensions; of integers it has 64 bits, unless a dtype is given."""
        return reduce_along("prod_dim", self, dims, keep, dtype)

    def mean(self, dims: Dims = None, keep: bool = False, dtype: Any = None) -> Any:
        """The mean along dimensions; of integers it is float64, unless a dtype is given."""
        return reduce_along("mean_dim", self, dims, keep, dtype)

    def max(self, dims: Dims = None, keep: bool = False) -> Any:
        """The largest along dimensions."""
        return reduce_along("max_dim", self, dims, keep)

    def min(self, dims: Dims = None, keep: bool = False) -> Any:
        """The smallest along dimensions."""
        return reduce_along("min_dim", self, dims, keep)

    def reshape(self, *shape: int | Sequence[int]) -> Any:
        """The same elements in another shape; one size may be -1."""
        return apply("reshape", self, result_shape=filled_shape(self.shape, shape))

    def transpose(self, *order: int | Sequence[int]) -> Any:
        """The dimensions in another order, reversed if none is given."""
        given = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
        dims = as_point(given or range(self.ndim)[::-1], "order")  # type: ignore[arg-type]
        if sorted(d % max(1, self.ndim) for d in dims) != list(range(self.ndim)):
            raise WeftError(f"{dims} is not an order of the {self.ndim} dimensions")
        return apply("transpose", self, permutation=tuple(d % self.ndim for d in dims))

    def astype(self, dtype: Any) -> Any:
        """The same numbers in another dtype: a name, or a dtype of NumPy, torch or JAX."""
        return apply("convert", self, dtype=as_dtype(dtype))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        return take_slices(self, index if isinstance(index, tuple) else (index,))


def reduce_along(name: str, x: Any, dims: Dims, keep: bool, dtype: Any = None) -> Any:
    """Reduce along dimensions, all of them unless given."""
    wanted = None if dtype is None else as_dtype(dtype)
    return apply(name, x, dimensions=as_dims(dims, len(x.shape)), keep=keep, dtype=wanted)


def shift_right(x: Any, by: Any) -> Any:
    """Return the bits moved down; those of negative integers are filled up with ones."""
    dtypes = [operand if is_scalar(operand) else dtype_name(operand.dtype) for operand in (x, by)]
    signed = kind(result_type(*dtypes)) == "int"
    return apply("shift_right_arithmetic" if signed else "shift_right_logical", x, by)


def filled_shape(shape: Point, wanted: Sequence[int | Sequence[int]]) -> Point:
    """The shape that is wanted, with a size of -1 worked out.

    >>> filled_shape((8, 6), (4, -1)), filled_shape((8, 6), [(48,)])
    ((4, 12), (48,))
    """
    given = wanted[0] if len(wanted) == 1 and not isinstance(wanted[0], int) else wanted
    sizes = list(as_point(given, "shape"))  # type: ignore[arg-type]
    if sizes.count(-1) == 1:
        known = -prod(sizes)
        if known and prod(shape) % known == 0:
            sizes[sizes.index(-1)] = prod(shape) // known
    if min(sizes, default=0) < 0:
        raise WeftError(f"{list(shape)} cannot be reshaped to {sizes}")
    return tuple(sizes)


def take_slices(x: Any, index: tuple[Index, ...]) -> Any:
    """A basic index of an array: numbers, slices, `...` and new dimensions."""
    rank, sizes, made = len(x.shape), iter(x.shape), list[int]()
    cuts: list[tuple[int, int, int]] = []
    for part in _spelled_out(index, rank):
        if part is None:
            made.append(1)
            continue
        first, stop, step, count = _bounds(part, next(sizes))
        cuts.append((first, stop, step))
        made += [] if isinstance(part, int) else [count]
    if cuts != [(0, n, 1) for n in x.shape]:
        starts, stops, steps = zip(*cuts)
        steps = tuple(map(abs, steps))
        x = apply("slice", x, start_indices=starts, limit_indices=stops, strides=steps)
    flipped = tuple(dim for dim, cut in enumerate(cuts) if cut[2] < 0)
    if flipped:
        x = apply("reverse", x, dimensions=flipped)
    return x if tuple(made) == tuple(x.shape) else apply("reshape", x, result_shape=tuple(made))


def _spelled_out(index: tuple[Index, ...], rank: int) -> list[Index]:
    """The index with a part for every dimension."""
    used = sum(part is not None and part is not ... for part in index)
    if used > rank or sum(part is ... for part in index) > 1:
        raise WeftError(f"an array of rank {rank} cannot be indexed by {list(index)}")
    parts = list(index) if any(part is ... for part in index) else [*index, ...]
    at = next(n for n, part in enumerate(parts) if part is ...)
    return [*parts[:at], *[slice(None)] * (rank - used), *parts[at + 1 :]]


def _bounds(part: Any, size: int) -> tuple[int, int, int, int]:
    """The first element, one past the last, the step, and how many there are."""
    if isinstance(part, int):
        if not -size <= part < size:
            raise WeftError(f"there is no element {part} in a dimension of size {size}")
        return part % size, part % size + 1, 1, 1
    if not isinstance(part, slice):
        raise WeftError(f"an index is a number, a slice, ... or None, got {part!r}")
    places = range(*part.indices(size))
    if not places:
        return 0, 0, 1, 0
    ends = sorted((places[0], places[-1]))
    return ends[0], ends[1] + 1, places.step, len(places)
