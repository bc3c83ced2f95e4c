"""The main job, from end to end: shard arrays on meshes, look at them, check them.

Run it with `make demo`, or `python -m examples.demo`. It needs Weft, NumPy and pymoo.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from weft import (
    DeviceMesh,
    DimSpec,
    Lifting,
    Plan,
    Projection,
    ShardingSpec,
    Tensor,
    ZRange,
    communication,
    cover,
    ops,
    propagate,
    run,
    search,
    show,
    trace,
)
from weft.plan import Propagation
from weft.plan.machines import H200_NODE


def main() -> None:
    """Run every part; each prints a picture and what was checked."""
    for part in (devices, ciphertexts, halos, files, a_million_cells, a_network, a_search):
        print(f"\n— {(part.__doc__ or '').splitlines()[0]}\n")
        part()
    print("\nAll checks passed.")


def check(what: str, holds: bool) -> None:
    """Say what holds; stop where something does not."""
    if not holds:
        raise SystemExit(f"failed: {what}")
    print(f"  ✓ {what}")


def devices() -> None:
    """An array of 8 x 15 on eight devices, two by four."""
    mesh = DeviceMesh("cluster", (2, 4), ("dp", "tp"))
    spec = ShardingSpec(mesh, [DimSpec(["dp"]), DimSpec(["tp"])])
    show(mesh)
    print()
    show(spec, (8, 15))
    print()
    shape = (8, 15)
    check(
        "the shards tile the array: no overlap, no gap",
        cover(spec.boxes(shape), ZRange.of(shape)).is_exact,
    )
    check("the text form reads back", ShardingSpec.parse(str(spec), mesh) == spec)
    array = [[row * 15 + column for column in range(15)] for row in range(8)]
    rebuilt = [[-1] * 15 for _ in range(8)]
    for box in spec.regions(shape):
        rows, columns = box.slices()
        shard = [line[columns] for line in array[rows]]
        for line, values in zip(rebuilt[rows], shard):
            line[columns] = values
    check("cut into shards and put together again, it is the same array", rebuilt == array)


def ciphertexts() -> None:
    """An image of [3, 224, 224] over ciphertexts, replicated over x."""
    mesh = DeviceMesh("ciphertexts", (4, 3, 2), ("x", "y", "z"))
    spec = ShardingSpec.parse('<@ciphertexts, [{"y"}, {"z"}, {}]>', mesh)
    show(spec, (3, 224, 224))
    print()
    blocks = spec.boxes((3, 224, 224))
    check("six blocks of 1 x 112 x 224", [b.shape for b in blocks] == [(1, 112, 224)] * 6)
    on_their_cells = all(
        spec.region((3, 224, 224), (x, y, z)) == blocks[2 * y + z] for x, y, z in mesh.cells()
    )
    check("mesh[x, j, k] holds block 2j + k, for every x", on_their_cells)


def halos() -> None:
    """A 3 x 3 convolution on 256 x 256, cut into four blocks of rows: what each must read."""
    rows = Projection([[1, 0, 1, 0], [0, 1, 0, 1]], offset=(-1, -1))  # y + u - 1, x + v - 1
    index = ZRange.of((256, 256, 3, 3))
    image = ZRange.of((256, 256))
    reads = [rows.image(block) & image for block in index.tiles((64, 256, 3, 3))]
    for block, read in zip(index.tiles((64, 256, 3, 3)), reads):
        print(f"  output rows {block.start[0]:3}:{block.stop[0]:3}  reads {read}")
    print()
    again = sum(read.size for read in reads) - image.size
    check("six rows are read twice: 6 x 256 elements of halo", again == 6 * 256)
    check("each image is dense", all(rows.is_dense(b) for b in index.tiles((64, 256, 3, 3))))


def files() -> None:
    """Tiles of a 5 x 6 grid, two by three in a shard: where each tile goes."""
    lift = Lifting.tiled((5, 6), (2, 3))
    places = lift.permutation()
    for row in range(5):
        print("  " + " ".join(f"{place:3}" for place in places[row * 6 : row * 6 + 6]))
    print()
    check("it is a permutation, ragged edge and all", sorted(places) == list(range(30)))
    check("the same as strides", lift.address((4, 5)) == lift.addresses()[-1])


def a_million_cells() -> None:
    """One cell of a mesh of 1024 x 1024: the same arithmetic."""
    mesh = DeviceMesh("pod", (1024, 1024), ("x", "y"))
    spec = ShardingSpec(mesh, [DimSpec(["x"]), DimSpec(["y"])])
    begin = time.perf_counter()
    box = spec.region((10**6, 10**6), (511, 770))
    print(f"  cell (511, 770) holds {box}, found in {(time.perf_counter() - begin) * 1e6:.0f} µs\n")
    check(
        "it holds the point that it should", spec.block_of((10**6, 10**6), box.start) == (511, 770)
    )


def transformer_block(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, w1: Any, w2: Any) -> Any:
    """Attention by heads and two layers, each with a residual: x is [batch, position, feature]."""

    def heads(y: Any) -> Any:
        return ops.einsum("b s d, d h e -> b h s e", x, y)

    seen = ops.attention(heads(wq), heads(wk), heads(wv), causal=True)
    x = x + ops.einsum("b h s e, h e d -> b s d", seen, wo)
    return x + ops.gelu(x @ w1) @ w2


def a_network() -> None:
    """A transformer block, traced; three annotations, and the rest follows: Megatron's split."""
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


def a_search() -> None:
    """The block again, larger and with no annotation: the plans worth choosing from."""
    shapes = block_shapes(batch=8, positions=256, features=512, heads=8, hidden=2048)
    mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    begin = time.perf_counter()
    front = search(trace(transformer_block, *shapes.values()), mesh, H200_NODE)
    print(f"on {mesh}, {H200_NODE.name}, in {time.perf_counter() - begin:.1f} s:\n")
    print(front)
    print()
    show(front)
    plan = front.balanced
    print(f"\nplan {front.plans.index(plan)}, between fast and small:\n")
    show(plan)
    print()
    run_and_compare(plan, shapes)


def block_shapes(
    batch: int, positions: int, features: int, heads: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of what a transformer block takes."""
    return {
        "x": (batch, positions, features),
        **dict.fromkeys(("wq", "wk", "wv"), (features, heads, features // heads)),
        "wo": (heads, features // heads, features),
        "w1": (features, hidden),
        "w2": (hidden, features),
    }


def run_and_compare(plan: Plan, shapes: dict[str, tuple[int, ...]]) -> None:
    """Prove a plan of the block, run it on random arrays, and compare with one array."""
    plan.verify()
    check("the proof holds: every element is made once, from what is there", True)
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


def cut_by_heads(found: Propagation) -> bool:
    """Whether the heads of keys and of the output lie as those of the queries."""
    return all(
        spec.dim_specs[dim].axes == ("tp",)
        for spec, dim in ((found.specs["wk"], 1), (found.specs["wo"], 0))
    )


if __name__ == "__main__":
    main()
