"""The operators that Weft ships, one module for each theme: importing this fills `OPERATORS`."""

from weft.lang.library import (
    blocks,
    collective,
    contract,
    custom,
    index,
    linalg,
    nn,
    pointwise,
    reduce,
    region,
    shape,
    window,
)

__all__ = [
    "blocks",
    "collective",
    "contract",
    "custom",
    "index",
    "linalg",
    "nn",
    "pointwise",
    "reduce",
    "region",
    "shape",
    "window",
]

from weft.lang.library import declared  # noqa: F401 - when all operators are there
