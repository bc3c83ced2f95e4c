"""Meshes and shardings: which box of an array is on which cell."""

from weft.layout.mesh import Cell, DeviceMesh
from weft.layout.sharding import DimSpec, ShardingSpec
from weft.layout.shardy_text import Axis, SubAxis

__all__ = ["Axis", "Cell", "DeviceMesh", "DimSpec", "ShardingSpec", "SubAxis"]
