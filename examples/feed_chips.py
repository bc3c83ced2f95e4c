"""A mesh of chips to feed: weights as the fewest writes, delivered to a model of the mesh.

Run it with `python -m examples.feed_chips`. It needs the extra `ttmesh`, and no chip.
"""

# %%
import numpy as np

from weft import show
from weft.ttmesh import Mapper, Shard, ShardTensor2dMesh, collect, deliver, lower, shards

MESH = (2, 4)

# %% [markdown]
# Three weights, and which dimension the rows and the columns of the mesh cut. Queries, keys and
# values are one tensor: each of the three groups is cut, so that a chip holds its heads of all.

# %%
weights = {
    "qkv": ((256, 768), Mapper(MESH, [None, Shard(1, groups=3)])),
    "up": ((256, 1024), ShardTensor2dMesh(MESH, dims=[0, 1])),
    "down": ((1024, 256), ShardTensor2dMesh(MESH, dims=[1, 0])),
}
show(lower((1024, 256), weights["down"][1], "bfloat16"))

# %% [markdown]
# Each is lowered, delivered to a model of the mesh, looked at chip by chip, and collected again.

# %%
for name, (shape, mapper) in weights.items():
    array = np.random.default_rng(0).integers(0, 1 << 15, shape).astype("uint16")
    lowered = lower(shape, mapper, "bfloat16")
    buffer = deliver(array, lowered)
    boxes = mapper.boxes(shape)
    for (chip, held), mine in zip(shards(buffer, lowered, np.uint16), boxes):
        parts = [array[box.slices()] for box in mine]
        if not np.array_equal(held, np.concatenate(parts, axis=1)):
            raise SystemExit(f"chip {chip} holds something else of {name}")
    if not np.array_equal(collect(buffer, lowered, np.uint16), array):
        raise SystemExit(f"{name} came back as something else")
    write = lowered.writes[0].config
    print(f"{name}: writes: {lowered.count}, buffer {write.global_buffer_shape}, ", end="")
    print(f"shard {write.shard_shape}, {write.mesh_shard_orientation.name}")
