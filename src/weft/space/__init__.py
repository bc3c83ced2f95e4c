"""Integer geometry: boxes, affine projections, block grids, exact covers."""

from weft.space.block_grid import BlockClass, BlockGrid
from weft.space.cover import Cover, Defect, cover
from weft.space.digit import Digit, digits_of, matching, weigh
from weft.space.projection import Projection
from weft.space.zrange import ZRange

__all__ = [
    "BlockClass",
    "BlockGrid",
    "Cover",
    "Defect",
    "Digit",
    "Projection",
    "ZRange",
    "cover",
    "digits_of",
    "matching",
    "weigh",
]
