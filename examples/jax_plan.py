"""A plan searched in Weft for a JAX function: JAX keeps the function, and takes the plan.

Run it with `python -m examples.jax_plan`. XLA compiles the function for eight devices of the host,
with the shardings of the plan; the collectives in what it compiled are compared with the plan.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

import weft
from weft.interop.hlo import collectives
from weft.plan.machines import H200_NODE

MESH = weft.DeviceMesh("mesh", (2, 4), ("dp", "tp"))
ROWS, FEATURES, HIDDEN, LAYERS = 32, 128, 512, 2
CAPACITY = 300_000
"""The bytes that a device has: all parameters take 525,312, so that they must be cut."""


def network(params: Any, x: Any) -> Any:
    """Layers that normalise, widen, bend and narrow, each with a residual."""
    import jax  # noqa: PLC0415 - after the number of devices is set

    for layer in params["layers"]:
        size = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        hidden = jax.nn.gelu((x * size * layer["gain"]) @ layer["up"])
        x = x + hidden @ layer["down"]
    return x


def arrays() -> tuple[Any, Any]:
    """Random parameters, and rows to apply them to."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return (rng.normal(size=shape) / shape[0] ** 0.5).astype("float32")

    layer = {"gain": (FEATURES,), "up": (FEATURES, HIDDEN), "down": (HIDDEN, FEATURES)}
    layers = [{name: array(*shape) for name, shape in layer.items()} for _ in range(LAYERS)]
    return {"layers": layers}, array(ROWS, FEATURES)


def main() -> None:
    """Search, compile, compare."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MESH.size}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax  # noqa: PLC0415

    params, x = arrays()
    graph = weft.from_jax(network, params, x)
    machine = replace(H200_NODE, capacity=CAPACITY)
    plan = weft.search(graph, MESH, machine, objectives=("time",))[0]
    print(plan)

    shardings = weft.to_jax(plan)
    for name, sharding in shardings.inputs.items():
        print(f"{name:22} {sharding.spec}")
    given = jax.tree.unflatten(jax.tree.structure((params, x)), shardings.inputs.values())
    jitted = jax.jit(network, in_shardings=given, out_shardings=shardings.outputs[0])
    compiled = jitted.lower(params, x).compile()

    found = collectives(compiled.as_text(), MESH.size)
    for each in found:
        print(f"compiled: {each.kind} of {each.size} B among {each.group}: {each.received} B")
    predicted, moved = sum(plan.received), sum(each.received for each in found)
    apart = float(np.abs(compiled(params, x) - network(params, x)).max())
    print(f"at most apart {apart:.1e}")
    print(f"predicted {predicted} B, compiled {moved} B")
    assert apart < 1e-5
    assert predicted == moved


if __name__ == "__main__":
    main()
