"""The operators that Weft ships, one module for each family: importing this fills `OPERATORS`.

A module has, for each operator, its index notation (`sign_*`), its kernel, and one `Operator` with
the rules for dtypes, partial operands, cost and memory.
"""

from weft.lang.operators import (
    aggregate,
    contract,
    convolution,
    index,
    linalg,
    nn,
    planned_only,
    pointwise,
    random,
    reduce,
    regions,
    shape,
    window,
)

__all__ = [
    "aggregate",
    "contract",
    "convolution",
    "index",
    "linalg",
    "nn",
    "planned_only",
    "pointwise",
    "random",
    "reduce",
    "regions",
    "shape",
    "window",
]
