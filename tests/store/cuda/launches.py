"""The three launches of an encoder, on the host."""

import numpy as np
from tests.store.cuda.host import Buffer, empty, u32, u64
from tests.store.reference import literals, runs


def by_runs(host, rows, typesize, **more):
    blocks = -(-rows.shape[1] // runs.BLOCK)
    return by_kernels(host, "runs", rows, [u32(typesize)], blocks, blocks, runs.BLOCK, **more)


def by_literals(host, rows, typesize, **more):
    blocks = -(-rows.shape[1] // (literals.PIECE * typesize))
    pieces, slot = blocks * typesize, literals.PIECE + 16
    return by_kernels(host, "literals", rows, [u32(typesize)], blocks, pieces, slot, **more)


def by_zstd(host, rows, **more):
    pieces, slot = -(-rows.shape[1] // literals.PIECE), literals.PIECE + 16
    return by_kernels(host, "zstd", rows, [], pieces, pieces, slot, **more)


def by_kernels(host, name, rows, typesize, blocks, pieces, slot, shift=0, gap=0, absent=()):
    """Frames at offsets that leave no room between them, in any order."""
    count, size = rows.shape
    source = Buffer(np.pad(rows, ((0, 0), (0, gap))), shift)
    given = [source, u64(size + gap)]
    slots, sizes = empty(count * pieces * slot, "u1"), empty(count * pieces, "u4")
    starts, totals = empty(count * blocks, "u4"), empty(count, "u8")
    shape = [u64(size), *typesize]
    host.launch(f"weft_{name}_blocks", count * pieces, *given, *shape, slots, sizes)
    host.launch(f"weft_{name}_sizes", count, *shape, sizes, starts, totals)
    totals.array[list(absent)] = 0
    order = host.rng.permutation(count)
    offsets = Buffer(np.zeros(count, "u8"))
    ends = np.cumsum(totals.array[order])
    offsets.array[order] = ends - totals.array[order]
    out = empty(int(ends[-1]), "u1", int(host.rng.integers(16)))
    given = [] if name == "zstd" else given
    made = [*given, *shape, slots, sizes, starts, totals, offsets, out]
    host.launch(f"weft_{name}_frames", count * pieces, *made)
    places = zip(offsets.array.tolist(), totals.array.tolist())
    return [out.array[at : at + total].tobytes() for at, total in places]
