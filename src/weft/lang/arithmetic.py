"""NumPy's operators, methods and indexing for arrays of programs: each applies an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from math import prod
from types import EllipsisType
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.lang.dtype import as_dtype, dtype_name, is_scalar, kind, result_type
from weft.lang.size import Size, as_sizes, recording
from weft.values import Point, as_point

AxisLike: TypeAlias = int | Sequence[int] | None
Index: TypeAlias = int | slice | EllipsisType | None


_TRACER: ContextVar[Any] = ContextVar("tracer", default=None)
"""The tracer of the function that is being traced."""


@contextmanager
def recorded_by(tracer: Any) -> Iterator[None]:
    """Let a tracer record the operators that have no operands."""
    token = _TRACER.set(tracer)
    try:
        yield
    finally:
        _TRACER.reset(token)


def create(name: str, **attributes: Any) -> Any:
    """Return the result of an operator without operands: a symbol while tracing, or a tensor."""
    tracer = _TRACER.get()
    if tracer is not None:
        return tracer.apply(name, (), attributes)[0]
    return _tensors().created(name, attributes)


def as_operand(x: Any) -> Any:
    """Return an array as what operators apply to: captured while tracing, or as a tensor."""
    if hasattr(x, "__weft_apply__"):
        return x
    tracer = _TRACER.get()
    return _tensors().Tensor(x) if tracer is None else tracer.capture(x)


def _tensors() -> Any:
    """Return the module of tensors, which is above this package: that needs no array library."""
    return import_module("weft.runtime.tensor")


def apply_all(name: str, /, *operands: Any, **attributes: Any) -> tuple[Any, ...]:
    """Apply an operator and return all its results.

    Operands are converted as the operator needs: see `weft.lang.dtype`.
    """
    for operand in operands:
        applies = getattr(operand, "__weft_apply__", None)
        if applies is not None:
            results: tuple[Any, ...] = applies(name, operands, attributes)
            return results
    kinds = ", ".join(type(operand).__name__ for operand in operands) or "nothing"
    raise WeftError(
        f"{name} is applied to {kinds}, none of them a tensor of Weft",
        hint="wrap an array: weft.Tensor(array)",
    )


def apply(name: str, /, *operands: Any, **attributes: Any) -> Any:
    """Apply an operator that has one result."""
    return apply_all(name, *operands, **attributes)[0]


def normalize_axis(axis: AxisLike, ndim: int) -> Point:
    """Return axes counted from the front, each once and in order; None means all of them.

    >>> normalize_axis(-1, 3), normalize_axis(None, 2), normalize_axis((2, 0), 3)
    ((2,), (0, 1), (0, 2))
    """
    given = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = as_point(given, "axis")
    for each in axes:
        if not -ndim <= each < ndim:
            raise WeftError(f"axis {each} is out of bounds for an array of rank {ndim}")
    found = sorted({each % ndim for each in axes})
    if len(found) < len(axes):
        raise WeftError(f"axis {axes} names a dimension twice, of an array of rank {ndim}")
    return tuple(found)


def _binary(name: str) -> tuple[Any, Any]:
    """Return the two methods of a binary operator, for either operand."""
    return (
        lambda self, other: apply(name, self, other),
        lambda self, other: apply(name, other, self),
    )


def _method(name: str) -> Any:
    """Return the method that calls a function of `weft.ops`."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(import_module("weft.lang.ops"), name)(self, *args, **options)

    method.__name__ = name
    method.__doc__ = f"Return `weft.ops.{name}` of the array."
    return method


_UFUNCS = {
    "absolute": "abs",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
}
"""The functions of `weft.ops` for NumPy's that have other names."""


def _comparison(direction: str) -> Any:
    return lambda self, other: apply("compare", self, other, comparison_direction=direction)


class Arithmetic(ABC):
    """NumPy's operators and methods, each an application of an operator."""

    __slots__ = ()
    __array_priority__ = 1000

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Return the operator of a NumPy function: `np.exp(x)`, or an array of NumPy plus `x`."""
        name = str(ufunc.__name__)
        function = getattr(
            import_module("weft.lang.ops"), _UFUNCS.get(name, name.replace("arc", "a")), None
        )
        if method != "__call__" or options or function is None:
            called = name if method == "__call__" else f"{name}.{method}"
            with_options = f" with {', '.join(options)}" if options else ""
            raise WeftError(
                f"np.{called}{with_options} cannot be applied to {self!r}",
                hint="weft.ops has the operators; x.numpy() is an array of NumPy",
            )
        return function(*inputs)

    @property
    @abstractmethod
    def shape(self) -> Point:
        """The sizes of the dimensions."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The array with its dimensions reversed."""
        return self.transpose()

    __add__, __radd__ = _binary("add")
    __sub__, __rsub__ = _binary("subtract")
    __mul__, __rmul__ = _binary("multiply")
    __truediv__, __rtruediv__ = _binary("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide")
    __mod__, __rmod__ = _binary("mod")
    __pow__, __rpow__ = _binary("power")
    __matmul__, __rmatmul__ = _binary("matmul")
    __and__, __rand__ = _binary("and")
    __or__, __ror__ = _binary("or")
    __xor__, __rxor__ = _binary("xor")
    __lshift__, __rlshift__ = _binary("shift_left")

    def __rshift__(self, other: Any) -> Any:
        return shift_right(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return shift_right(other, self)

    def __neg__(self) -> Any:
        return apply("negate", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return apply("abs", self)

    def __invert__(self) -> Any:
        return apply("not", self)

    __eq__, __ne__ = _comparison("EQ"), _comparison("NE")
    __lt__, __le__ = _comparison("LT"), _comparison("LE")
    __gt__, __ge__ = _comparison("GT"), _comparison("GE")

    __hash__ = object.__hash__
    """An array is hashed by identity, not by its numbers."""

    def sum(self, axis: AxisLike = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """Return the sum along axes; of integers it has 64 bits, unless a dtype is given."""
        return reduce_along("sum_dim", self, axis, keepdims, dtype)

    def prod(self, axis: AxisLike = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """Return the product along axes; of integers it has 64 bits, unless a dtype is given."""
        return reduce_along("prod_dim", self, axis, keepdims, dtype)

    def mean(self, axis: AxisLike = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        """Return the mean along axes; of integers it is float64, unless a dtype is given."""
        return reduce_along("mean_dim", self, axis, keepdims, dtype)

    def max(self, axis: AxisLike = None, *, keepdims: bool = False) -> Any:
        """Return the largest elements along axes."""
        return reduce_along("max_dim", self, axis, keepdims)

    def min(self, axis: AxisLike = None, *, keepdims: bool = False) -> Any:
        """Return the smallest elements along axes."""
        return reduce_along("min_dim", self, axis, keepdims)

    def all(self, axis: AxisLike = None, *, keepdims: bool = False) -> Any:
        """Return whether all elements along axes are true."""
        return reduce_along("all_dim", self, axis, keepdims)

    def any(self, axis: AxisLike = None, *, keepdims: bool = False) -> Any:
        """Return whether any element along axes is true."""
        return reduce_along("any_dim", self, axis, keepdims)

    def reshape(self, *shape: int | Sequence[int]) -> Any:
        """Return the same elements in another shape; one size may be -1."""
        return apply("reshape", self, result_shape=filled_shape(self.shape, shape))

    def transpose(self, *axes: int | Sequence[int] | None) -> Any:
        """Return the dimensions in another order, reversed by default."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = as_point(given or range(self.ndim)[::-1], "axes")  # type: ignore[arg-type]
        if sorted(axis % max(1, self.ndim) for axis in order) != list(range(self.ndim)):
            raise WeftError(f"axes {order} are not an order of the {self.ndim} dimensions")
        return apply("transpose", self, permutation=tuple(axis % self.ndim for axis in order))

    def astype(self, dtype: Any) -> Any:
        """Return the same numbers in another dtype: a name, or a dtype of NumPy, torch or JAX."""
        return apply("convert", self, dtype=as_dtype(dtype))

    def expand(self, *shape: int | Sequence[int]) -> Any:
        """Return the array broadcast to a shape, as torch does; -1 keeps a size."""
        given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        sizes = as_point(given, "shape")  # type: ignore[arg-type]
        old = (-1,) * (len(sizes) - self.ndim) + self.shape
        filled = tuple(m if n == -1 else n for n, m in zip(sizes, old))
        return _method("broadcast_to")(self, filled)

    argmax = _method("argmax")
    argmin = _method("argmin")
    bitcast = _method("bitcast")
    clip = _method("clip")
    cumsum = _method("cumsum")
    dropout = _method("dropout")
    flatten = _method("flatten")
    masked_fill = _method("masked_fill")
    permute = transpose
    ravel = _method("ravel")
    repeat = _method("repeat")
    round = _method("round")
    softmax = _method("softmax")
    split = _method("split")
    squeeze = _method("squeeze")
    std = _method("std")
    swapaxes = _method("swapaxes")
    take = _method("take")
    tile = _method("tile")
    unsqueeze = _method("unsqueeze")
    var = _method("var")
    view = _method("view")

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def mT(self) -> Any:  # noqa: N802 - the standard's name
        """The matrices with rows and columns exchanged."""
        return _method("matrix_transpose")(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of {self!r}, which has no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        # Without it Python would index upwards until an error.
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return _method("take_index")(self, index)


def reduce_along(
    name: str, x: Any, axis: AxisLike, keepdims: bool = False, dtype: Any = None
) -> Any:
    """Apply a reduction along axes, all of them by default."""
    return apply(
        name,
        x,
        dimensions=normalize_axis(axis, len(x.shape)),
        keepdims=keepdims,
        dtype=None if dtype is None else as_dtype(dtype),
    )


def shift_right(x: Any, by: Any) -> Any:
    """Shift bits down; those of negative integers are filled with ones."""
    dtypes = [operand if is_scalar(operand) else dtype_name(operand.dtype) for operand in (x, by)]
    signed = kind(result_type(*dtypes)) == "int"
    return apply("shift_right_arithmetic" if signed else "shift_right_logical", x, by)


def filled_shape(shape: Point, wanted: Sequence[int | Sequence[int]]) -> Point:
    """Return the new shape, with a size of -1 replaced.

    >>> filled_shape((8, 6), (4, -1)), filled_shape((8, 6), [(48,)])
    ((4, 12), (48,))
    """
    alone = len(wanted) == 1 and not isinstance(wanted[0], int | str | Size)
    given: Any = wanted[0] if alone else wanted
    sizes = list(as_sizes(given, lambda sizes: as_point(sizes, "shape")))
    gaps = [dim for dim, size in enumerate(sizes) if isinstance(size, int) and size < 0]
    if gaps and sizes[gaps[0]] == -1 and len(gaps) == 1:
        known = -prod(sizes)
        if known and prod(shape) % known == 0:
            sizes[gaps.pop()] = prod(shape) // known
    if gaps:
        raise WeftError(f"{list(shape)} cannot be reshaped to {sizes}")
    return tuple(sizes)


def take_slices(x: Any, index: tuple[Index, ...]) -> Any:
    """Apply a basic index: numbers, slices, `...` and None for new dimensions."""
    rank, sizes, shape = len(x.shape), iter(x.shape), list[int]()
    cuts: list[tuple[int, int, int]] = []
    for part in spelled_out(index, rank):
        if part is None:
            shape.append(1)
            continue
        first, stop, step, count = _bounds(part, next(sizes))
        cuts.append((first, stop, step))
        shape += [] if isinstance(part, int) else [count]
    with recording(None):  # it is the same with a slice of everything
        is_cut = cuts != [(0, n, 1) for n in x.shape]
    if is_cut:
        starts, stops, steps = zip(*cuts)
        steps = tuple(map(abs, steps))
        x = apply("slice", x, start_indices=starts, limit_indices=stops, strides=steps)
    flipped = tuple(dim for dim, cut in enumerate(cuts) if cut[2] < 0)
    if flipped:
        x = apply("reverse", x, dimensions=flipped)
    return x if tuple(shape) == tuple(x.shape) else apply("reshape", x, result_shape=tuple(shape))


def spelled_out(index: tuple[Index, ...], rank: int) -> list[Index]:
    """Return the index with an entry for every dimension."""
    used = sum(part is not None and part is not ... for part in index)
    if used > rank or sum(part is ... for part in index) > 1:
        raise WeftError(f"an array of rank {rank} cannot be indexed by {list(index)}")
    parts = list(index) if any(part is ... for part in index) else [*index, ...]
    at = next(n for n, part in enumerate(parts) if part is ...)
    return [*parts[:at], *[slice(None)] * (rank - used), *parts[at + 1 :]]


def _bounds(part: Any, size: int) -> tuple[int, int, int, int]:
    """Return the first element, one past the last, the step, and the count."""
    if isinstance(part, int | Size):
        if not -size <= part < size:
            raise WeftError(f"index {part} is out of bounds for a dimension of size {size}")
        first: Any = part if part >= 0 else part + size
        return first, first + 1, 1, 1
    if not isinstance(part, slice):
        raise WeftError(
            f"expected an integer, a slice, ..., None or an array of integers, got {part!r}"
        )
    if any(isinstance(each, Size) for each in (size, part.start, part.stop)):
        return _symbolic_bounds(part, size)
    try:
        indices = range(*part.indices(size))
    except (TypeError, ValueError) as error:
        raise WeftError(f"{error}: {part}") from None
    if not indices:
        return 0, 0, 1, 0
    ends = sorted((indices[0], indices[-1]))
    return ends[0], ends[1] + 1, indices.step, len(indices)


def _symbolic_bounds(part: slice, size: Any) -> tuple[Any, Any, int, Any]:
    """Return what `_bounds` returns of a slice, where a size is not known yet."""
    step = 1 if part.step is None else part.step
    if step < 1:
        raise WeftError(
            f"a step of {step} along a dimension of size {size}, which is not known yet"
        )

    def place(at: Any, otherwise: Any) -> Any:
        at = otherwise if at is None else at if at >= 0 else at + size
        return min(max(at, 0), size)

    first, stop = place(part.start, 0), place(part.stop, size)
    return (first, stop, step, -((first - stop) // step)) if first <= stop else (0, 0, 1, 0)
