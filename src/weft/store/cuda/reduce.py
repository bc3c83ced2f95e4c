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
            "#define VISIT_ALL(in, rows, n, window) \\",
            " \\\n".join([*_coordinates(inner, factors), *_loops(inner, factors)]),
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
    """All elements of a window that are there, in the order in which they arrive.

    Loops have constant ends, so that they are unrolled; where windows always fit, nothing is asked.
    """
    lines, at = [], "a0"
    for dim, factor in enumerate(factors):
        size = "rows" if dim == 0 else f"{inner[dim - 1]}ull"
        fits = factor == 1 or (dim > 0 and inner[dim - 1] % factor == 0)
        asked = "" if fits else f" if (a{dim} < {size})"
        step = f"a{dim} = o{dim} * {factor}ull + b{dim}"
        lines.append(f"    for (u32 b{dim} = 0; b{dim} < {factor}; ++b{dim})")
        lines.append(f"    for (u64 {step}, once{dim} = 1; once{dim}; once{dim} = 0){asked}")
        if dim:
            at = f"({at} * {size} + a{dim})"
    return [*lines, f"        visit(window, in[{at}]);"]
