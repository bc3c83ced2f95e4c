"""Weft: a shard is a box of integers.

Arrays too large for one device, process, ciphertext, chip or file are all cut the same way: count a
program's sub-problems with an integer index space, cut it into boxes, give the boxes to the cells
of a mesh, and project each box onto the arrays by an affine map.

>>> mesh = DeviceMesh("cluster", (2, 4), ("dp", "tp"))
>>> spec = ShardingSpec(mesh, [DimSpec(["dp"]), DimSpec(["tp"])])
>>> print(spec.region((8, 16), (1, 2)))
[4:8, 8:12]
"""

from weft.draw import show
from weft.errors import LayoutError, ParseError, WeftError
from weft.layout import DeviceMesh, DimSpec, ShardingSpec, SubAxis
from weft.space import Lifting, Projection, ZRange, cover

__version__ = "0.1.0"

__all__ = [
    "DeviceMesh",
    "DimSpec",
    "LayoutError",
    "Lifting",
    "ParseError",
    "Projection",
    "ShardingSpec",
    "SubAxis",
    "WeftError",
    "ZRange",
    "__version__",
    "cover",
    "show",
]
