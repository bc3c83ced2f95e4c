"""A model to shard over GPUs: a transformer block is searched, proved, run on shards and compared.

Run it with `python -m examples.shard_model`. It needs the extra `run`, and no GPU.
"""

# %%
from typing import Any

import numpy as np

from weft import DeviceMesh, Tensor, communication, ops, run, search, trace
from weft.plan.machines import H200_NODE

# %% [markdown]
# The block: attention by heads and two layers, each with a residual. `x` is
# [batch, position, feature]. Tracing it takes shapes; no weight is made.


# %%
def block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, w1: Any, w2: Any) -> Any:
    """Attention by heads and two layers, each with a residual."""
    q, k, v = (ops.einsum("b s d, d h e -> b h s e", x, w) for w in (wq, wk, wv))
    x = x + ops.einsum("b h s e, h e d -> b s d", ops.attention(q, k, v, causal=True), wo)
    return x + ops.gelu(x @ w1) @ w2


BATCH, POSITIONS, FEATURES, HEADS = 8, 64, 256, 8
projection = (FEATURES, HEADS, FEATURES // HEADS)
shapes = {
    "x": (BATCH, POSITIONS, FEATURES),
    **dict.fromkeys(("wq", "wk", "wv"), projection),
    "wo": (*projection[1:], FEATURES),
    "w1": (FEATURES, 4 * FEATURES),
    "w2": (4 * FEATURES, FEATURES),
}
graph = trace(block, *shapes.values())

# %% [markdown]
# The plans worth choosing from, on eight GPUs as a mesh of 2 x 4.

# %%
front = search(graph, DeviceMesh("gpus", (2, 4), ("dp", "tp")), H200_NODE)
print(front)

# %% [markdown]
# All weights take 3.1 MB. The fastest plan of which a GPU holds less than 2 MB:

# %%
plan = next(plan for plan in front if max(plan.peak) < 2_000_000)
print(plan)

# %% [markdown]
# The proof, and a run on eight shards in this process, with bytes counted.

# %%
plan.verify()
rng = np.random.default_rng(0)
inputs = {name: rng.normal(size=shape).astype("float32") / 16 for name, shape in shapes.items()}
with communication() as moved:
    (made,) = run(plan, inputs)
whole = block(*map(Tensor, inputs.values())).numpy()
apart = float(np.abs(made.numpy() - whole).max())
print(f"eight shards compute what one array does, to {apart:.0e}")
print(f"predicted {sum(plan.received)} B, counted {moved.received} B")
print(f"predicted {max(plan.peak)} B on the fullest GPU, counted {max(moved.peak)} B")
