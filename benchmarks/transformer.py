"""A transformer's training step as StableHLO, with Megatron's shardings: something real to plan."""

from __future__ import annotations

import os
import sys
from typing import Any


def train_step_text(blocks: int, width: int = 256, heads: int = 8, batch: int = 16) -> str:
    """The text of one step of gradient descent, lowered by JAX on a mesh of 2 x 4 host devices."""
    if "jax" not in sys.modules:
        flag = "--xla_force_host_platform_device_count=8"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:8], dtype=object).reshape(2, 4), ("dp", "tp"))
    length = 128

    def on(*axes: str | None) -> Any:
        return NamedSharding(mesh, PartitionSpec(*axes))

    shapes = {
        "qkv": ((width, 3, heads, width // heads), on(None, None, "tp", None)),
        "out": ((heads, width // heads, width), on("tp", None, None)),
        "up": ((width, 4 * width), on(None, "tp")),
        "down": ((4 * width, width), on("tp", None)),
        "gain": ((2, width), on(None, None)),
    }

    def norm(x: Any, gain: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain

    def block(x: Any, w: Any) -> Any:
        q, k, v = jnp.einsum("btd,dchs->cbhts", norm(x, w["gain"][0]), w["qkv"])
        scores = jnp.einsum("bhts,bhus->bhtu", q, k) / np.sqrt(width // heads)
        mask = jnp.tril(jnp.ones((length, length), bool))
        seen = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.einsum("bhtu,bhus,hsd->btd", seen, v, w["out"])
        return x + jax.nn.gelu(norm(x, w["gain"][1]) @ w["up"]) @ w["down"]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        for w in weights:
            x = block(x, w)
        return ((x - y) ** 2).mean()

    def step(weights: Any, x: Any, y: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weights, x, y)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)

    one = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, (shape, _) in shapes.items()}
    placed = {name: sharding for name, (_, sharding) in shapes.items()}
    data = jax.ShapeDtypeStruct((batch, length, width), jnp.float32)
    shardings = ([placed] * blocks, on("dp", None, None), on("dp", None, None))
    lowered = jax.jit(step, in_shardings=shardings).lower([one] * blocks, data, data)
    return str(lowered.as_text())
