"""The main job from end to end: plan, run, store, compute on a cluster, and more.

Run it with `make demo`, or `python -m examples.demo`. It needs the extra `demo`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from examples.boxes import check
from weft import (
    DeviceMesh,
    Plan,
    Tensor,
    ckks,
    communication,
    ops,
    propagate,
    report,
    run,
    search,
    show,
    store,
    trace,
)
from weft.plan import Propagation
from weft.plan.machines import H200_NODE
from weft.runtime.cluster import Output, Progress, Ray, recording, run_on
from weft.ttmesh import ShardTensor2dMesh, lower


@dataclass
class Story:
    """The results that steps pass on."""

    folder: Path
    made: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    """Run every step; each prints its results and checks."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weft-demo-") as folder:
        story = Story(Path(folder))
        for number, step in enumerate(STEPS, 1):
            what = (step.__doc__ or "").splitlines()[0]
            print(f"\n[{number}/{len(STEPS)}] {what}\n", flush=True)
            step(story)
    print(f"\nAll checks passed, in {time.perf_counter() - begin:.0f} s.")


def transformer_block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, w1: Any, w2: Any) -> Any:
    """Attention by heads and two layers, each with a residual: x is [batch, position, feature]."""

    def heads(y: Any) -> Any:
        return ops.einsum("b s d, d h e -> b h s e", x, y)

    seen = ops.attention(heads(wq), heads(wk), heads(wv), causal=True)
    x = x + ops.einsum("b h s e, h e d -> b s d", seen, wo)
    return x + ops.gelu(x @ w1) @ w2


def a_network(story: Story) -> None:
    """Trace a transformer block and propagate three shardings: Megatron's split."""
    shapes = block_shapes(batch=4, positions=16, features=32, heads=4, hidden=128)
    graph = trace(
        transformer_block,
        *shapes.values(),
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings={
            "x": '<@m, [{"dp"}, {}, {}]>',
            "wq": '<@m, [{}, {"tp"}, {}]>',
            "w1": '<@m, [{}, {"tp"}]>',
        },
    )
    found = propagate(graph)
    print(found)
    for name, dim, why in (("wk", 1, "wk"), ("wo", 0, "wo"), ("w2", 0, "w2")):
        print(f"\nwhy is {why} cut?")
        print(*found.explain(name, dim), sep="\n")
    print("\nwhat moves, and when:\n")
    plan = Plan.of(found)
    print(plan)
    print()
    check("keys and the output go by heads, as the queries do", cut_by_heads(found))
    check("w2 is cut by rows, as Megatron does", str(found.specs["w2"]).startswith('<@m, [{"tp"'))
    run_and_compare(plan, shapes)


def a_search(story: Story) -> None:
    """Search plans of a larger block, without any shardings given."""
    shapes = block_shapes(batch=8, positions=256, features=512, heads=8, hidden=2048)
    mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    begin = time.perf_counter()
    front = search(trace(transformer_block, *shapes.values()), mesh, H200_NODE)
    print(f"on {mesh}, {H200_NODE.name}, in {time.perf_counter() - begin:.1f} s:\n")
    show(front)
    plan = front.balanced
    print(f"\nplan {front.plans.index(plan)}, between fast and small:\n")
    show(plan)
    print()
    story.made["front"], story.made["block"] = front, run_and_compare(plan, shapes)


def a_store(story: Story) -> None:
    """Stream its output into a sharded Zarr array, and read it with zarr-python."""
    made = story.made["block"]
    with store.create(
        story.folder / "block.zarr",
        shape=made.shape,
        dtype=made.dtype,
        chunks=(1, 64, 128),
        shards=(2, 256, 512),
        codecs="zstd",
    ) as writer:
        for sample in made:
            writer.append(sample[None])
    found = zarr.open_array(story.folder / "block.zarr", mode="r")
    print(f"  {found.info_complete()}".replace("\n", "\n  "))
    check("zarr-python reads what was streamed", np.array_equal(found[...], made))


def a_cluster(story: Story) -> None:
    """Blur and average a volume on a local cluster, from Zarr to Zarr, in little memory."""
    shape = (128, 192, 192)
    volume = np.random.default_rng(0).normal(size=shape).astype("float32")
    source = store.create_shards(story.folder / "volume.zarr", shape, "float32", (32, 64, 64))
    source.write(source.reader().box, volume)
    weights = np.asarray([1, 4, 6, 4, 1], "float32") / 16
    graph = trace(
        blur,
        volume,
        weights,
        meshes=['@m = <["worker"=2]>'],
        shardings={"x": '<@m, [{"worker"}, {}, {}]>'},
    )
    plan = Plan.of(propagate(graph))
    outputs = {
        "blurred": Output(story.folder / "blurred.zarr", (32, 64, 64), (32, 64, 192)),
        "mean": Output(story.folder / "mean.zarr", (64, 64), (192, 192)),
    }

    def watch(progress: Progress) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r  {progress.done} of {progress.total} tasks \033[K")

    print("  starting Ray on this machine …", flush=True)
    with Ray(workers=2, memory=216 << 20) as engine, recording() as records:
        inputs = {"x": str(story.folder / "volume.zarr"), "weights": weights}
        blurred, mean = run_on(engine, plan, inputs, outputs, watch=watch)
    sys.stderr.write("\r\033[K" if sys.stderr.isatty() else "")
    story.made["run"] = records[0]
    print(f"  {records[0]}".replace("\n", "\n  "), "\n")
    (wanted, average) = run(plan, {"x": volume, "weights": weights})
    check(
        "the shards hold what one process computes",
        bool(
            np.allclose(blurred.read(), wanted.numpy(), atol=1e-5)
            and np.allclose(mean.read(), average.numpy(), atol=1e-5)
        ),
    )
    check("the bytes between workers are those that were predicted", records[0].is_exact)
    most, bound = max(task.peak for task in records[0].tasks), records[0].bound or 0
    check(f"a worker took {most >> 20} MiB, of the {bound >> 20} MiB said before", most <= bound)


def blur(x: Any, weights: Any) -> Any:
    """Return a volume blurred along its three dimensions, and its mean over the first."""
    for dim in range(3):
        x = ops.correlate(x, weights, dim)
    return {"blurred": x, "mean": x.mean(0)}


def a_secret(story: Story) -> None:
    """Convolve an encrypted image: predicted and counted rotations, and the error."""
    graph = trace(lambda x, w: ops.convolve(x, w, padding=(1, 1)), (1, 3, 16, 16), (8, 3, 3, 3))
    story.made["ckks"] = plan = ckks.plan(graph, slots=4096, encrypted="x")
    backend = ckks.Seal(plan.parameters(), plan.cost.keys)
    rng = np.random.default_rng(0)
    x, w = rng.uniform(-1, 1, (1, 3, 16, 16)), rng.normal(size=(8, 3, 3, 3))
    made = ckks.run(plan, {"x": x, "w": w}, backend)["convolution"]
    print(f"  {plan.headline}\n  {plan.parameters()}\n  {plan.cost}\n")
    plain = ops.convolve(Tensor(x), Tensor(w), padding=(1, 1)).numpy()
    apart, counted = float(np.abs(made - plain).max()), backend.counters.rotations
    check(f"{counted} rotations, as planned", counted == plan.cost.rotations)
    check(f"decrypted, it is the convolution, to {apart:.0e}", apart < 1e-5)


def some_chips(story: Story) -> None:
    """Lower weights for 32 chips to one write, and draw which chip holds what."""
    lowered = lower((1, 1, 8192, 10240), ShardTensor2dMesh((8, 4), dims=[3, 2]), "bfloat16")
    show(lowered)
    print()
    check("one write is enough", len(lowered.writes) == 1)


def a_report(story: Story) -> None:
    """Write all results to one page for the browser."""
    page = report.write(
        "weft-report.html",
        front=story.made["front"],
        run=story.made["run"],
        ckks=story.made["ckks"],
        store=story.folder / "blurred.zarr",
        title="The demo of Weft",
    )
    size = page.stat().st_size
    check(f"{page.resolve()} has {size} B: one file, no network", size < 2_000_000)


def block_shapes(
    batch: int, positions: int, features: int, heads: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs of a transformer block."""
    return {
        "x": (batch, positions, features),
        **dict.fromkeys(("wq", "wk", "wv"), (features, heads, features // heads)),
        "wo": (heads, features // heads, features),
        "w1": (features, hidden),
        "w2": (hidden, features),
    }


def run_and_compare(plan: Plan, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Verify and run a plan on random arrays, compare with NumPy, and return the result."""
    plan.verify()
    check("the proof holds: the plan computes the graph", True)
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=s).astype("float32") / 16 for name, s in shapes.items()}
    with communication() as moved:
        (found,) = run(plan, inputs)
    whole = transformer_block(*map(Tensor, inputs.values()))
    apart = float(np.abs(found.numpy() - whole.numpy()).max())
    check(f"eight shards compute what one array does, to {apart:.0e}", apart < 1e-5)
    predicted, counted = sum(plan.received), moved.received
    check(f"{predicted} bytes were predicted to move, {counted} were counted", predicted == counted)
    most, held = max(plan.peak), max(moved.peak)
    check(f"{most} bytes were predicted on the fullest cell, {held} were counted", most == held)
    return found.numpy()


def cut_by_heads(found: Propagation) -> bool:
    """Return whether the heads of keys and output are sharded as those of the queries."""
    return all(
        spec.dim_specs[dim].axes == ("tp",)
        for spec, dim in ((found.specs["wk"], 1), (found.specs["wo"], 0))
    )


STEPS: tuple[Callable[[Story], None], ...] = (
    a_network,
    a_search,
    a_store,
    some_chips,
    a_secret,
    a_cluster,
    a_report,
)


if __name__ == "__main__":
    main()
