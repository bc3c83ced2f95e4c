"""A convolution of an encrypted image: planned, encrypted, run on SEAL, compared.

Run it with `python -m examples.encrypted_layer`. It needs the extra `ckks`.
"""

# %%
import numpy as np

from weft import Tensor, ckks, ops, trace

# %% [markdown]
# The layer, with shapes alone: three channels of 16 x 16 to eight. The encrypted input and the
# range of its elements are stated; the first line of the plan repeats them.

# %%
graph = trace(lambda x, w: ops.convolve(x, w, padding=(1, 1)), (1, 3, 16, 16), (8, 3, 3, 3))
plan = ckks.plan(graph, slots=4096, encrypted="x", ranges=1)
print(plan)
print(plan.parameters(security=128))

# %% [markdown]
# The modulus must hold all values, which the weights and the range bound. Then keys are made, the
# image is encrypted, and the layer runs. The weights are in the clear.

# %%
rng = np.random.default_rng(0)
x, w = rng.uniform(-1, 1, (1, 3, 16, 16)), rng.normal(size=(8, 3, 3, 3))
print(ckks.check_bounds(plan, {"w": w}, plan.parameters(security=128)))
backend = ckks.Seal(plan.parameters(security=128), plan.cost.keys, plan.needs_products)
result = ckks.run(plan, {"x": x, "w": w}, backend)["convolution"]

# %% [markdown]
# The predicted and the counted rotations, and the distance from the result in the clear.

# %%
plain = ops.convolve(Tensor(x), Tensor(w), padding=(1, 1)).numpy()
print(f"predicted {plan.cost.rotations} rotations, counted {backend.counters.rotations}")
print(f"at most apart {np.abs(result - plain).max():.0e}")
