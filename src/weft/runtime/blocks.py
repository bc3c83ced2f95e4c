"""Run kernels on boxes of an application's index space: on threads where they are large."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from weft.errors import WeftError
from weft.lang import Operator
from weft.lang.dtype import dtype_name
from weft.lang.kernel import Block
from weft.runtime.arrays import Array


def run_block(operator: Operator, block: Block, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The boxes of the results that a kernel makes of the boxes of its operands."""
    if operator.kernel is None:
        raise WeftError(f"{operator.name} has no kernel: it can be planned, not run")
    try:
        made = operator.kernel(block, *operands)
    except (NotImplementedError, RuntimeError) as error:
        if not isinstance(error, NotImplementedError) and "not implemented for" not in str(error):
            raise
        raise WeftError(f"{operator.name} has no kernel for these arrays: {error}") from error
    results = tuple(made) if isinstance(made, tuple | list) else (made,)
    for number, (array, box) in enumerate(zip(results, block.results)):
        if tuple(array.shape) != box.shape:
            raise WeftError(
                f"the kernel of {operator.name} made {list(array.shape)} for box {box} of result "
                f"{number}, which is {list(box.shape)}"
            )
    names = [dtype_name(operand.dtype) for operand in operands]
    check_dtypes(operator.name, results, operator.dtypes(names, block.attributes))
    return results


def check_dtypes(name: str, results: Sequence[Array], declared: Sequence[str]) -> None:
    """Refuse results of other dtypes than an operator declares."""
    for number, array in enumerate(results):
        dtype, wanted = dtype_name(array.dtype), declared[min(number, len(declared) - 1)]
        if dtype != wanted:
            raise WeftError(
                f"the kernel of {name} made {dtype} for result {number}, which is declared as "
                f"{wanted}",
                hint="say what it makes: Operator(..., dtypes=...), or convert in the kernel",
            )


T = TypeVar("T")
U = TypeVar("U")

LARGE = 1 << 18
"""From so many elements on, a box is worth a thread."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="weft")


def each(function: Callable[[T], U], items: Sequence[T], work: int) -> Iterable[U]:
    """The function of every item, in order; `work` is the size of the largest.

    >>> list(each(abs, [-1, 2], work=1 << 20))
    [1, 2]
    """
    if work < LARGE or len(items) < 2:
        return map(function, items)
    return _pool().map(function, items)
