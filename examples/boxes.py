"""Boxes of integers, one picture after the other: devices, ciphertexts, halos, files, a large mesh.

Run it with `python -m examples.boxes`. It needs Weft alone.
"""

# %%
from __future__ import annotations

import time

from weft import BlockGrid, DeviceMesh, DimSpec, Projection, ShardingSpec, ZRange, cover, show


# %%
def main() -> None:
    """Run every part; each prints a picture and its checks."""
    for part in (devices, ciphertexts, halos, files, a_million_cells):
        print(f"\n— {(part.__doc__ or '').splitlines()[0]}\n")
        part()


# %%
def check(what: str, holds: bool) -> None:
    """Print a fact that holds; stop if it does not."""
    if not holds:
        raise SystemExit(f"failed: {what}")
    print(f"  ✓ {what}")


# %%
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


# %%
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


# %%
def halos() -> None:
    """A 3 x 3 convolution on 256 x 256, cut into four blocks of rows: the rows each block reads."""
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


# %%
def files() -> None:
    """Tiles of a 5 x 6 grid, two by three in a shard: where each tile goes."""
    shards = BlockGrid.blocks((5, 6), (2, 3))
    order = [tile for shard in shards.boxes() for tile in shard]
    for row in range(5):
        print("  " + " ".join(f"{order.index((row, column)):3}" for column in range(6)))
    print()
    check("every tile has a place, at the ragged edge too", len(set(order)) == 30)
    check("the last tile is in the last shard", shards.block_of(order[-1]) == (2, 1))


# %%
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


# %%
if __name__ == "__main__":
    main()
