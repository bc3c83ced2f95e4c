"""The source of the reduction kernel, generated from the windows of a level."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.errors import WeftError

METHODS = ("mean", "min", "max", "median", "first")
MOST = 64
"""The elements of a window, at most: a thread holds them all."""

_NUMBERS = {
    "bool": ("unsigned char", "unsigned int"),
    "uint8": ("unsigned char", "unsigned int"),
    "uint16": ("unsigned short", "unsigned int"),
    "uint32": ("unsigned int", "unsigned long long"),
    "uint64": ("unsigned long long", "unsigned __int128"),
    "int8": ("signed char", "int"),
    "int16": ("short", "int"),
    "int32": ("int", "long long"),
    "int64": ("long long", "__int128"),
    "float32": ("float", "double"),
    "float64": ("double", "double"),
}
"""The types of elements, and those in which they are added."""


def reduce_source(inner: Sequence[int], factors: Sequence[int], method: str, name: str) -> str:
    """What stands before the reduction kernel; `inner` are the sizes behind the outermost.

    >>> print(reduce_source((4,), (1, 2), "mean", "uint16").splitlines()[0])
    typedef unsigned short Number;
    """
    if name not in _NUMBERS:
        raise WeftError(f"levels of {name} are not made on a GPU", hint=", ".join(_NUMBERS))
    window = prod(factors)
    if window > MOST:
        raise WeftError(f"a window of {window} elements; a GPU takes at most {MOST}")
    number, total = _NUMBERS[name]
    return "\n".join(
        [
            f"typedef {number} Number;",
            f"typedef {total} Sum;",
            f"#define METHOD {METHODS.index(method)}",
            f"#define IS_WHOLE {int(np.dtype(name).kind in 'biu')}",
            f"#define IS_SIGNED {int(np.dtype(name).kind == 'i')}",
            f"#define IS_BOOL {int(name == 'bool')}",
            f"#define WINDOW {window}",
            '#include "threads.h"',
            "WEFT_DEVICE u32 gather(const Number* in, u64 rows, u64 n, Number* values) {",
            *_coordinates(inner, factors),
            "    u32 count = 0;",
            *_loops(inner, factors),
            "    return count;",
            "}",
            "",
        ]
    )


def _coordinates(inner: Sequence[int], factors: Sequence[int]) -> list[str]:
    """Where a window is along every dimension."""
    lines, rest = [], "n"
    for dim in reversed(range(1, len(factors))):
        size = -(-inner[dim - 1] // factors[dim])
        lines.append(f"    u64 o{dim} = {rest} % {size}ull;")
        rest = f"({rest} / {size}ull)"
    return [*lines, f"    u64 o0 = {rest};"]


def _loops(inner: Sequence[int], factors: Sequence[int]) -> list[str]:
    """All elements of a window that are there, in the order in which they arrive."""
    lines = []
    for dim, factor in enumerate(factors):
        size = "rows" if dim == 0 else f"{inner[dim - 1]}ull"
        a, start = f"a{dim}", f"o{dim} * {factor}ull"
        lines.append(
            f"    for (u64 {a} = {start}; {a} < {start} + {factor} && {a} < {size}; ++{a})"
        )
    at = "a0"
    for dim in range(1, len(factors)):
        at = f"({at} * {inner[dim - 1]}ull + a{dim})"
    return [*lines, f"        values[count++] = in[{at}];"]
