"""Integer geometry: boxes, affine projections, exact covers, liftings. Everything stands on it."""

from weft.space.cover import Cover, Defect, cover
from weft.space.lifting import Digit, Lifting, digits_of, matching, weigh
from weft.space.projection import Projection
from weft.space.zrange import ZRange

__all__ = [
    "Cover",
    "Defect",
    "Digit",
    "Lifting",
    "Projection",
    "ZRange",
    "cover",
    "digits_of",
    "matching",
    "weigh",
]
