"""`Block`, one box of an application as its kernel sees it, and helpers that kernels share.

A kernel computes one box with any library that follows the array API standard: it takes the
library from `block.xp`, so this package imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.dtype import LOW_PRECISION, Dtypes, accumulator, dtype_name, itemsize
from weft.lang.signature import Signature
from weft.space import ZRange

Attributes: TypeAlias = Mapping[str, Any]
"""The attributes of an application: numbers, names, and tuples of them."""

Kernel: TypeAlias = Callable[..., Any]
"""Computes one box: `kernel(block, *operands)`."""

Accumulates: TypeAlias = Literal["", "always", "numpy"]


@dataclass(frozen=True, eq=False)
class Block:
    """One box of an application's index space, and the arrays' library.

    A kernel is called as `kernel(block, *operands)`. Each operand holds the image of the box under
    its projection, clipped to the array; the kernel returns an array or a tuple of arrays, the
    images of the box in the results. A block is equal only to itself, so that kernels can cache
    what they derive from it.

    >>> line = Signature.of("2*y+u-1, u -> y  sum: u", [(16,), (3,)], sizes={"y": 8})
    >>> block = Block(None, line, {}, ZRange((0, 0), (4, 3)))
    >>> print(block.image(0), block.operands[0], block.results[0], block.span("y"))
    [-1:8] [0:8] [0:4] range(0, 4)
    """

    xp: Any
    """The namespace of the arrays: NumPy, or any library that follows the array API standard."""
    signature: Signature
    attributes: Attributes
    box: ZRange

    def span(self, name: str) -> range:
        """Return the range of an index dimension in the box."""
        dim = list(self.signature.sizes).index(name)
        return range(self.box.start[dim], self.box.stop[dim])

    def image(self, number: int) -> ZRange:
        """Return the image of the box in an operand, not clipped to the array."""
        return self.signature.operands[number].image_by_dim(self.box)

    @cached_property
    def operands(self) -> tuple[ZRange, ...]:
        """The boxes of the operands that the kernel receives."""
        line = self.signature
        return tuple(p.region(self.box, s) for p, s in zip(line.operands, line.operand_shapes))

    @cached_property
    def results(self) -> tuple[ZRange, ...]:
        """The boxes of the results that the kernel returns."""
        line = self.signature
        return tuple(p.region(self.box, s) for p, s in zip(line.results, line.result_shapes))


def along(axis: int, part: slice | int) -> tuple[Any, ...]:
    """Return the index that selects part of one axis and all of the others."""
    return (*(slice(None),) * axis, part, ...)


def descending(xp: Any, x: Any, axis: int) -> Any:
    """Return the order of the elements along an axis, the largest first; equal ones in order.

    >>> import numpy
    >>> descending(numpy, numpy.asarray([1, 3, 2, 3]), 0)
    array([1, 3, 2, 0])
    """
    last = x.shape[axis] - 1
    return last - xp.flip(xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True), axis=axis)


@lru_cache(maxsize=1024)
def native(xp: Any, name: str) -> Any:
    """Return a library's own dtype of a name.

    >>> import numpy
    >>> native(numpy, "float32") is numpy.float32
    True
    """
    library = getattr(xp, "__name__", str(xp))
    own = getattr(xp, name, None)
    if own is None and library.rpartition(".")[2] in ("numpy", "cupy"):
        own = _extended(name)
    if own is None:
        raise WeftError(f"arrays of {library} cannot have the dtype {name}")
    if library == "jax.numpy" and xp.dtype(own) != xp.zeros((), dtype=own).dtype:
        raise WeftError(
            f"JAX has no {name} as it is configured",
            hint='jax.config.update("jax_enable_x64", True), or give a dtype: x.sum(dtype=...)',
        )
    return own


def summing(xp: Any, name: str) -> Any:
    """Return a library's own dtype for sums of a dtype, which may wrap.

    Torch cannot sum uint64; int64 has the same bits.
    """
    is_torch = name == "uint64" and "torch" in getattr(xp, "__name__", "")
    return native(xp, "int64" if is_torch else name)


def _extended(name: str) -> Any:
    """Return a dtype that ml_dtypes adds to NumPy; None if there is none."""
    try:
        module = import_module("ml_dtypes")
        return import_module("numpy").dtype(getattr(module, name))
    except (ImportError, AttributeError):
        return None


def cast(xp: Any, x: Any, name: str) -> Any:
    """Return the array with elements of a dtype: itself where it has them already."""
    if dtype_name(x.dtype) == name:
        return x
    return xp.astype(x, native(xp, name))


def bitcast(xp: Any, x: Any, dtype: str) -> Any:
    """Return the bits of an array as elements of another dtype; widths that differ are joined.

    An element that is wider than the new ones becomes a last dimension of them, and the last
    dimension of narrower ones becomes one element: the first has the lowest bits.

    >>> import numpy
    >>> bitcast(numpy, numpy.asarray([1.0, 2.0], "float32"), "uint16").tolist()
    [[0, 16256], [0, 16384]]
    """
    old, new = itemsize(dtype_name(x.dtype)), itemsize(dtype)
    joined = x.shape[:-1] if new > old else (*x.shape, old // new) if new < old else x.shape
    if prod(joined) == 0:
        return xp.empty(joined, dtype=native(xp, dtype))
    if not hasattr(x, "view"):  # the standard has no such function
        numpy = import_module("numpy")
        return xp.asarray(bitcast(numpy, numpy.asarray(x), dtype))
    flat = xp.reshape(x, (-1,))
    flat = flat.contiguous() if hasattr(flat, "contiguous") else flat
    flat = xp.ascontiguousarray(flat) if hasattr(xp, "ascontiguousarray") else flat
    return xp.reshape(flat.view(native(xp, dtype)), joined)


def accumulating(kernel: Kernel, dtypes: Dtypes, mode: Accumulates) -> Kernel:
    """Return a kernel that accumulates low precision in float32, and rounds once.

    Where an application has a `dtype` of its own, operands are converted to that: products of int8
    may be summed in int32.
    """

    def run(block: Block, *operands: Any) -> Any:
        given = tuple([dtype_name(x.dtype) for x in operands])
        wanted = _conversions(dtypes, given, block.attributes.get("dtype"))
        if wanted is None or (mode == "numpy" and wanted.native and not _is_numpy(operands)):
            return kernel(block, *operands)
        xp = block.xp
        results = kernel(block, *(cast(xp, x, name) for x, name in zip(operands, wanted.operands)))
        arrays = results if isinstance(results, tuple | list) else (results,)
        names = (*wanted.results, *wanted.results[-1:] * len(arrays))
        return tuple(cast(xp, array, name) for array, name in zip(arrays, names))

    return run


class _Conversions(NamedTuple):
    """The dtypes in which a kernel computes, and those of its results."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    native: bool
    """Whether operands and results have one dtype, for which some libraries use float32 sums."""


@lru_cache(maxsize=4096)
def _conversions(dtypes: Dtypes, names: tuple[str, ...], dtype: str | None) -> _Conversions | None:
    """Return the conversions of a kernel's operands; None if there are none."""
    operands = tuple(accumulator(dtype or name) for name in names)
    if operands == names:
        return None
    results = tuple(dtypes(names, {} if dtype is None else {"dtype": dtype}))
    return _Conversions(operands, results, native=len({*names, *results}) == 1)


def _is_numpy(arrays: Sequence[Any]) -> bool:
    return any(type(array).__module__ == "numpy" for array in arrays)


def is_low_precision(dtype: Any) -> bool:
    """Return whether floats of a dtype are accumulated in float32."""
    return dtype_name(dtype) in LOW_PRECISION
