"""A plan searched in Weft for a JAX function: JAX keeps the function, and takes the plan.

Run it with `python -m examples.jax_plan`. XLA compiles the function for eight devices of the host,
with the shardings of the plan; the collectives in what it compiled are compared with the plan.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import weft
from weft.interop.hlo import collectives

MESH = weft.DeviceMesh("mesh", (2, 4), ("dp", "tp"))
ROWS, FEATURES, HIDDEN, LAYERS = 32, 128, 512, 2
ROOM = 300_000
"""The bytes that a device may hold: all parameters take 525,312, so that they must be cut."""


STEPS = {"all-reduce": ("reduce_scatter", "all_gather"), "all-gather": ("all_gather",)}
"""What the collectives of XLA are in the plan, where fewest bytes move."""


def network(params: Any, x: Any) -> Any:
    """Layers that normalise, widen, bend and narrow, each with a residual."""
    import jax

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


def predicted(plan: weft.Plan) -> list[tuple[str, int]]:
    """Return the transfers of a plan, and the bytes that all devices receive."""
    rows = [line.split() for line in str(plan).splitlines() if line.endswith(" B")]
    return [(" ".join(row[1:-2]), int(row[-2])) for row in rows]


def kinds(planned: list[tuple[str, int]]) -> list[str]:
    """The steps by their names alone."""
    return [kind for what, _ in planned for kind in what.partition(" of ")[0].split(", ")]


def main() -> None:
    """Search, compile, compare."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MESH.size}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    params, x = arrays()
    mesh = Mesh(np.array(jax.devices()).reshape(MESH.shape), MESH.axis_names)
    rows = NamedSharding(mesh, PartitionSpec("dp"))

    # How rows come and go is said in JAX; how parameters lie is what is searched for.
    wish = jax.jit(network, in_shardings=(None, rows), out_shardings=rows)
    graph = weft.from_jax(wish, params, x)
    front = weft.search(graph, MESH)
    plan = next(plan for plan in front if max(plan.peak) <= ROOM)
    print(f"plan {front.plans.index(plan)} of {len(front)}, {max(plan.peak)} B on a device")

    shardings = weft.to_jax(plan, mesh)
    for name, sharding in shardings.inputs.items():
        print(f"  {name:22} {sharding.spec}")
    given = jax.tree.unflatten(jax.tree.structure((params, x)), shardings.inputs.values())
    jitted = jax.jit(network, in_shardings=given, out_shardings=shardings.outputs[0])
    compiled = jitted.lower(params, x).compile()

    planned, found = predicted(plan), collectives(compiled.as_text(), MESH.size)
    for what, received in planned:
        print(f"predicted  {what}: {received} B")
    for each in found:
        print(f"compiled   {each.kind} of {each.size} B among {each.group}: {each.received} B")
    apart = float(np.abs(compiled(params, x) - network(params, x)).max())
    total, moved = sum(n for _, n in planned), sum(each.received for each in found)
    print(f"at most apart {apart:.1e}")
    print(f"predicted {total} B, compiled {moved} B")
    assert apart < 1e-5
    assert total == moved
    assert kinds(planned) == [kind for each in found for kind in STEPS[each.kind]]


if __name__ == "__main__":
    main()
