"""Meshes and shardings: which box of an array lies on which cell."""

from weft.layout.mesh import Cell, DeviceMesh
from weft.layout.spec import DimSpec, ShardingSpec
from weft.text.shardy import Axis, SubAxis

__all__ = ["Axis", "Cell", "DeviceMesh", "DimSpec", "ShardingSpec", "SubAxis"]
