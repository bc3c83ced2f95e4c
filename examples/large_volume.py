"""A volume larger than the memory of a worker: blurred from Zarr to Zarr, and compared.

Run it with `python -m examples.large_volume`. It needs the extra `store`; with `--on ray`
that extra as well, and then workers are processes.
"""

# %%
import sys
import tempfile
from typing import Any

import numpy as np

import weft
from weft import ops, store
from weft.runtime.cluster import Output, recording

engine = sys.argv[2] if sys.argv[1:2] == ["--on"] else "threads"

# %% [markdown]
# The volume: 16 MiB in chunks of 64 KiB. Yours is there already, in a folder or a bucket.

# %%
folder = tempfile.TemporaryDirectory(prefix="weft-volume-")
shape, chunks = (256, 128, 128), (16, 32, 32)
source, target = f"{folder.name}/volume.zarr", f"{folder.name}/blurred.zarr"
volume = np.random.default_rng(0).normal(size=shape).astype("float32")
writer = store.create_shards(source, shape, "float32", chunks, codecs="zstd")
writer.write(writer.reader().box, volume)

# %% [markdown]
# What is computed, of the whole volume, and how it is cut: by the first dimension, over 2 workers.


# %%
def blur(x: Any, weights: Any) -> Any:
    """A volume, blurred along its three dimensions."""
    for dim in range(3):
        x = ops.correlate(x, weights, dim)
    return {"blurred": x}


weights = np.asarray([1, 4, 6, 4, 1], "float32") / 16
graph = weft.trace(
    blur,
    shape,
    weights,
    meshes=['@grid = <["worker"=2]>'],
    shardings={"x": '<@grid, [{"worker"}, {}, {}]>'},
)
plan = weft.Plan.of(weft.propagate(graph))

# %% [markdown]
# A worker may take 12 MiB for arrays. Tasks are cut into tiles until they fit.

# %%
with recording() as runs:
    (made,) = weft.run(
        plan,
        {"x": source, "weights": weights},
        on=engine,
        outputs={"blurred": Output(target, chunks, (32, 64, 64))},
        memory=12 << 20,
    )
print(runs[0])

# %% [markdown]
# The same in one process, in memory, to compare.

# %%
(wanted,) = weft.run(plan, {"x": volume, "weights": weights})
apart = float(np.abs(made.read() - wanted.numpy()).max())
print(f"{made.verify().text}; {apart:.0e} from what one process computes")
folder.cleanup()
