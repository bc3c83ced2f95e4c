"""A camera to record: frames into a sharded Zarr array, looked at meanwhile, and read back.

Run it with `python -m examples.record_camera`. It needs the extra `store`.
"""

# %%
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft import ZRange, store

FRAMES, HEIGHT, WIDTH, RATE = 100, 512, 512, 50


# %% [markdown]
# Something that makes frames: a signal with photon noise, 50 of them in a second.


# %%
def camera() -> Iterator[Any]:
    """Frames of uint16, as they come."""
    rng = np.random.default_rng(0)
    noise = rng.poisson(100, (16, HEIGHT, WIDTH)).astype("uint16")
    begin = time.perf_counter()
    for number in range(FRAMES):
        time.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
        yield noise[number % 16] + np.uint16(number)


# %% [markdown]
# The recording. The first dimension has no end yet; memory is known before the first frame.

# %%
folder = tempfile.TemporaryDirectory(prefix="weft-camera-")
place = f"{folder.name}/run.zarr"
with store.create(
    place,
    shape=(None, HEIGHT, WIDTH),
    dtype="uint16",
    chunks=(8, 128, 128),
    shards=(32, 512, 512),
    codecs="blosc-zstd",
    dimension_names=["t", "y", "x"],
    threads=2,
) as writer:
    print(f"holds at most {writer.memory() / 1e6:.1f} MB")
    for number, frame in enumerate(camera(), 1):
        writer.append(frame)
        if number % 25 == 0:
            writer.flush()
            print(f"{number} frames came, and a reader sees {store.open(place).shape[0]}")
    metrics = writer.metrics()

# %% [markdown]
# Back again: a box of it, then all of it.

# %%
array = store.open(place)
corner = array.read(ZRange((0, 0, 0), (FRAMES, 8, 8)))
print(f"the corner grew by {corner[-1].mean() - corner[0].mean():.0f}")
print(f"{array.shape[0]} frames, {array.verify().text}")
print(metrics)
folder.cleanup()
