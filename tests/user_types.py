"""What a user writes must pass `mypy --strict`; `make types` checks this file, nobody runs it."""

import numpy as np

import weft
from weft import (
    BlockGrid,
    DeviceMesh,
    DimSpec,
    Projection,
    ShardingSpec,
    SubAxis,
    ZRange,
    cover,
    show,
)

mesh = DeviceMesh("m", [2, 4], ["x", "y"], device_ids=range(8))
dim = DimSpec(["x", SubAxis("y", 1, 2)], is_open=True, priority=1)
spec = ShardingSpec(mesh, [dim, DimSpec()], replicated_axes=["y:(2)2"])
partial = ShardingSpec(mesh, (DimSpec(["x"]),), partial={"y": "sum"})
parts = ShardingSpec(mesh, (DimSpec(["x"]),), partial={SubAxis("y", 1, 2): "max"})
box = ZRange([0, 1], [2, 3])
array = np.zeros((4, 4))[box.slices()]
region: ZRange = spec.region((8, 8), (1, 2)) & spec.region([8, 8], 3)
projection = Projection([[1, 0], [0, 1]], offset=[0, -1]) @ Projection.identity(2)
image: ZRange = projection(box).hull(projection((1, 2)))
text: str = str(ShardingSpec.parse("<@m, [{}]>", {"m": mesh}).partial.get("y", "none"))
blocks: list[ZRange] = BlockGrid.blocks((5, 6), [2, 3]).boxes()
show(mesh)
show(spec, (8, 8))
show([box, region])
weft.show(cover([box], box))
