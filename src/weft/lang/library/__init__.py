"""The operators that Weft ships, one module for each theme: importing this fills `OPERATORS`."""

from weft.lang.library import (
    blocks,
    collective,
    contract,
    index,
    linalg,
    nn,
    pointwise,
    reduce,
    shape,
    window,
)

__all__ = [
    "blocks",
    "collective",
    "contract",
    "index",
    "linalg",
    "nn",
    "pointwise",
    "reduce",
    "shape",
    "window",
]
