"""The operators that Weft ships, one module for each theme: importing this fills `OPERATORS`."""

from weft.lang.library import (
    collective,
    contract,
    custom,
    index,
    linalg,
    pointwise,
    reduce,
    region,
    shape,
    window,
)

__all__ = [
    "collective",
    "contract",
    "custom",
    "index",
    "linalg",
    "pointwise",
    "reduce",
    "region",
    "shape",
    "window",
]
