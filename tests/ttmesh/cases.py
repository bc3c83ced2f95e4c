"""Random cases for the comparison with ttnn: mapper configs, tensors in tiles, chip layouts."""

import random
from math import prod

import numpy as np

from weft.errors import WeftError
from weft.ttmesh.buffer import Extent, ShardOrientation
from weft.ttmesh.chip import (
    ChipLayout,
    CoreGrid,
    CoreRange,
    Layout,
    NdSharded,
    Scheme,
    Sharded,
)
from weft.ttmesh.formats import DataType
from weft.ttmesh.mapper import runtime_shards

REASONS = {
    "placements": ("does not match the number of placements", "placements for the"),
    "too large": ("does not match the device shape size", "needs [0-9]+ chips of [0-9]+$"),
    "offset rank": ("must have the same dimensionality", "the mesh .* has"),
    "outside": ("does not fit within the mesh device shape", "ends before"),
    "new order": ("requires a row-major reshape", "rearranges the chips"),
    "dimension": ("Invalid dimension index", "cuts dimension -?[0-9]+ of a tensor"),
    "twice": ("dims must be unique", "cuts each dimension by one"),
    "empty": ("No chunks were produced", "of size 0 has no chunks"),
    "chunks": ("ND sharding requires the number of chunks", "chunks for the"),
    "uneven": ("Shard shape mismatch", "and a shorter last one"),
}
"""Each reason for a refusal, with patterns of the messages of ttnn and of Weft."""


def random_case(rng: random.Random) -> dict:
    """Return a config: mostly valid, often with one error, seldom with several."""
    ndim = rng.choice([1, 2, 2, 2, 2, 2, 3, 4])
    mesh = [rng.randint(1, {1: 12, 2: 8, 3: 3, 4: 3}[ndim]) for _ in range(ndim)]
    if ndim == 2:
        mesh = [rng.randint(1, 4), rng.randint(1, 8)]
    over, offset = _part(rng, mesh)
    cells = over or mesh
    rank = rng.randint(1, 5)
    free = rng.sample(range(rank), rank)
    placements = [_placement(rng, rank, free) for _ in cells]
    if rng.random() < 0.02:
        placements = placements[:-1] if rng.random() < 0.5 else [*placements, None]
    return {
        "mesh": mesh,
        "over": over,
        "offset": offset,
        "placements": placements,
        "shape": _shape(rng, rank, placements, cells),
    }


def _part(rng, mesh):
    """Return the whole mesh, a part of it, or its chips in another arrangement."""
    kind = rng.random()
    if kind < 0.55:
        return None, [] if rng.random() < 0.95 else [rng.randint(0, 1) for _ in mesh]
    if kind < 0.85:
        over = [rng.randint(1, n) for n in mesh]
        offset = [rng.randint(0, n - m + (rng.random() < 0.06)) for n, m in zip(mesh, over)]
        short = rng.random() < 0.04
        return over, [] if rng.random() < 0.3 else offset[: len(offset) - short]
    over = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    return over, [rng.randint(0, 1) for _ in mesh] if rng.random() < 0.15 else []


def _placement(rng, rank, free):
    if rng.random() < 0.3:
        return None
    if rng.random() < 0.05:
        return rng.randint(-rank - 1, rank)
    dim = free.pop() if free and rng.random() < 0.95 else rng.randrange(rank)
    return dim - rank if rng.random() < 0.3 else dim


def _shape(rng, rank, placements, cells):
    shape = [rng.randint(1, 5) for _ in range(rank)]
    for size, dim in zip(cells, placements):
        if dim is not None and -rank <= dim < rank and rng.random() < 0.9:
            shape[dim] *= size
            while shape[dim] > 60:
                shape[dim] = size
    if rng.random() < 0.12:
        at = rng.randrange(rank)
        shape[at] = max(0, shape[at] + rng.choice([-1, 1, 2, -shape[at]]))
    while prod(shape) > 100_000:
        shape[shape.index(max(shape))] //= 2
    return shape


def weft_answer(case: dict) -> dict:
    """Return Weft's shards as coordinate, start and stop, or the reason of its refusal."""
    try:
        shards = runtime_shards(
            case["shape"], case["mesh"], case["placements"], case["over"], case["offset"]
        )
    except WeftError as error:
        return {"refused": reason(str(error), 1)}
    return {"shards": [[list(at), list(box.start), list(box.stop)] for at, box in shards]}


def reason(message: str, side: int) -> str:
    """Return the name of the reason in a message of ttnn (side 0) or Weft (1)."""
    import re

    names = [name for name, texts in REASONS.items() if re.search(texts[side], message)]
    return names[0] if len(names) == 1 else f"{names}: {message[:300]}"


def tensor(shape: list[int], kind: str, seed: int) -> np.ndarray:
    """Return reproducible values: arbitrary bit patterns, or numbers between -3 and 3."""
    count = np.arange(prod(shape), dtype=np.uint64) + np.uint64(seed)
    bits = (count * np.uint64(2654435761) ^ count * count * np.uint64(40503)) & np.uint64(2**32 - 1)
    if kind in ("uint32", "int32", "uint16", "uint8"):
        most = np.uint64({"uint8": 2**8, "uint16": 2**16}.get(kind, 2**31))
        return (bits % most).astype(kind).reshape(shape)
    if seed % 3 == 0:
        return bits.astype(np.uint32).view(np.float32).reshape(shape)
    return ((bits.astype(np.float64) / 2**31 - 1) * 3).astype(np.float32).reshape(shape)


def random_tile_case(rng: random.Random) -> dict:
    """Return a shape, a format, and a distribution over a small mesh."""
    rank = rng.randint(1, 5)
    shape = [rng.randint(1, 3) for _ in range(rank)]
    shape[-1] = rng.randint(1, 100)
    if rank > 1:
        shape[-2] = rng.randint(1, 100)
    mesh, placements = [rng.randint(1, 2), rng.randint(1, 3)], [None, None]
    for axis, dim in enumerate(rng.sample(range(rank), min(rank, rng.randint(0, 2)))):
        placements[axis] = dim
        shape[dim] = -(-shape[dim] // mesh[axis]) * mesh[axis]
    kinds = ["float32", "bfloat16", "bfloat8_b", "bfloat4_b", "uint32", "int32", "uint16", "uint8"]
    return {
        "shape": shape,
        "kind": rng.choice(kinds),
        "seed": rng.randrange(1000),
        "mesh": mesh,
        "placements": placements,
    }


def random_chip_case(rng: random.Random) -> dict:
    """Return a tensor in the memory of a chip: often one that just fits or just does not."""
    rank, tiled = rng.randint(1, 4), rng.random() < 0.6
    unit = 32 if tiled else 1
    shape = [rng.randint(1, 3) for _ in range(rank - 1)] + [rng.randint(1, 9 * unit)]
    if rank > 1:
        shape[-2] = rng.randint(1, 9 * unit)
    scheme = rng.choice(["HEIGHT", "WIDTH", "BLOCK", "ND"])
    pad = [-(-n // unit) * unit for n in ([1, *shape])[-2:]]
    whole = [prod(shape[:-2]) * pad[0], pad[1]]
    shard = [rng.randint(1, -(-n // unit)) * unit for n in whole]
    if scheme in ("HEIGHT", "WIDTH") and rng.random() < 0.9:
        side = 1 if scheme == "HEIGHT" else 0
        shard[side] = whole[side] + (rng.random() < 0.1) * unit
    if rng.random() < 0.08:
        shard[rng.randrange(2)] += rng.choice([-1, 1, 16])
    if scheme == "ND":
        shard = [rng.randint(1, 4) for _ in range(rng.randint(0, 2))] + [max(1, n) for n in shard]
    cores = [[0, 0, rng.randint(0, 7), rng.randint(0, 7)]]
    if rng.random() < 0.2:
        cores.append([cores[0][2] + 1 - (rng.random() < 0.1), 0, 9, rng.randint(0, 5)])
    return {
        "shape": shape,
        "layout": "TILE" if tiled else "ROW_MAJOR",
        "kind": rng.choice(["bfloat16", "float32", "bfloat8_b", "uint8"]),
        "scheme": scheme,
        "shard": shard,
        "cores": cores,
        "orientation": rng.choice(["ROW_MAJOR", "COL_MAJOR"]),
    }


def weft_chip(case: dict) -> dict:
    """Return Weft's cores in order, or that it refuses the layout."""
    try:
        grid = CoreGrid([CoreRange((a, b), (c, d)) for a, b, c, d in case["cores"]])
        turn = ShardOrientation[case["orientation"]]
        if case["scheme"] == "ND":
            memory = NdSharded(case["shard"], grid, turn)
        else:
            height, width = case["shard"]
            shard = Extent(height=height, width=width)
            memory = Sharded(Scheme[case["scheme"]], shard, grid, turn)
        ChipLayout(case["shape"], DataType(case["kind"]), Layout[case["layout"]], memory)
    except WeftError:
        return {"refused": "layout"}
    return {"cores": [list(core) for core in grid.cores(turn)]}
