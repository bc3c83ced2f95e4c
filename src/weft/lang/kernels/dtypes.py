"""Dtypes inside kernels: those of a library by name, and sums in float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang.block import Block, Kernel
from weft.lang.dtype import LOW_PRECISION, Dtypes, accumulator, dtype_name

Accumulates: TypeAlias = Literal["", "always", "numpy"]


@lru_cache(maxsize=1024)
def native(xp: Any, name: str) -> Any:
    """Return a library's own dtype of a name.

    >>> import numpy
    >>> native(numpy, "float32") is numpy.float32
    True
    """
    library = getattr(xp, "__name__", str(xp))
    found = getattr(xp, name, None)
    if found is None and library.rpartition(".")[2] in ("numpy", "cupy"):
        found = _extended(name)
    if found is None:
        raise WeftError(f"arrays of {library} cannot have the dtype {name}")
    if library == "jax.numpy" and xp.dtype(found) != xp.zeros((), dtype=found).dtype:
        raise WeftError(
            f"JAX makes no {name} as it is set up",
            hint='jax.config.update("jax_enable_x64", True), or say which dtype: x.sum(dtype=...)',
        )
    return found


def summing(xp: Any, name: str) -> Any:
    """Return a library's own dtype in which sums of a dtype are made, which may wrap.

    Torch adds up no uint64; int64 has the same bits.
    """
    is_torch = name == "uint64" and "torch" in getattr(xp, "__name__", "")
    return native(xp, "int64" if is_torch else name)


def _extended(name: str) -> Any:
    """Return a dtype that ml_dtypes adds to NumPy; None if it is not installed or has none."""
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


def accumulating(kernel: Kernel, dtypes: Dtypes, how: Accumulates) -> Kernel:
    """Return a kernel that adds up in float32 where its operands have less, and rounds once.

    Where an application has a `dtype` of its own, operands are converted to that: products of int8
    may be summed in int32.
    """

    def run(block: Block, *operands: Any) -> Any:
        given = tuple([dtype_name(x.dtype) for x in operands])
        wanted = _conversions(dtypes, given, block.attributes.get("dtype"))
        if wanted is None or (how == "numpy" and wanted.native and not _is_numpy(operands)):
            return kernel(block, *operands)
        xp = block.xp
        made = kernel(block, *(cast(xp, x, name) for x, name in zip(operands, wanted.operands)))
        arrays = made if isinstance(made, tuple | list) else (made,)
        names = (*wanted.results, *wanted.results[-1:] * len(arrays))
        return tuple(cast(xp, array, name) for array, name in zip(arrays, names))

    return run


class _Conversions(NamedTuple):
    """The dtypes in which a kernel computes, and those of its results."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    native: bool
    """Whether operands and results have one dtype, which some libraries add up in float32."""


@lru_cache(maxsize=4096)
def _conversions(dtypes: Dtypes, names: tuple[str, ...], said: str | None) -> _Conversions | None:
    """Return what must be converted; None where nothing is."""
    operands = tuple(accumulator(said or name) for name in names)
    if operands == names:
        return None
    results = tuple(dtypes(names, {} if said is None else {"dtype": said}))
    return _Conversions(operands, results, native=len({*names, *results}) == 1)


def _is_numpy(arrays: Sequence[Any]) -> bool:
    return any(type(array).__module__ == "numpy" for array in arrays)


def is_low_precision(dtype: Any) -> bool:
    """Return whether floats of a dtype are added up in float32."""
    return dtype_name(dtype) in LOW_PRECISION
