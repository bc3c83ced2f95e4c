"""ATen's operators, each said in a few operators of Weft; nothing here needs torch."""

from weft.interop.aten import layers, moves, pointwise, sums
from weft.interop.aten.table import TABLE, To

__all__ = ["TABLE", "To", "layers", "moves", "pointwise", "sums"]
