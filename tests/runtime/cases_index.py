"""Applications of gather, scatter and embeddings."""

import numpy as np
from tests.runtime.cases import case, numbers, shape_of


def lookup(rng):
    """A shape, that of indices and slices, and the dimension numbers of a gather."""
    shape = shape_of(rng, 1, 3, 6)
    kinds = [str(rng.choice(["seen", "seen", "hidden", "batching"])) for _ in shape]
    if "seen" not in kinds and "hidden" not in kinds:  # an index says something
        kinds[int(rng.integers(0, len(shape)))] = "hidden"
    slices = tuple(
        (n if rng.random() < 0.5 else int(rng.integers(1, n + 1))) if kind == "seen" else 1
        for n, kind in zip(shape, kinds)
    )
    batching = [dim for dim, kind in enumerate(kinds) if kind == "batching"]
    free = shape_of(rng, 0, 2, 5)
    order = [int(n) for n in rng.permutation([*batching, *(-1 - n for n in range(len(free)))])]
    batch = [shape[n] if n >= 0 else free[-1 - n] for n in order]
    others = [dim for dim in range(len(shape)) if dim not in batching]
    mapped = [int(d) for d in rng.permutation(others)[: rng.integers(1, len(others) + 1)]]
    vector = int(rng.integers(0, len(batch) + 1))
    indices = (*batch[:vector], len(mapped), *batch[vector:])
    places = [order.index(dim) + (order.index(dim) >= vector) for dim in batching]
    if len(mapped) == 1 and rng.random() < 0.4:
        vector, indices = len(batch), tuple(batch)
        places = [order.index(dim) for dim in batching]
    seen = [n for n, kind in zip(slices, kinds) if kind == "seen"]
    rank = len(batch) + len(seen)
    window = sorted(int(n) for n in rng.permutation(rank)[: len(seen)])
    sizes, rest = iter(seen), iter(batch)
    made = tuple(next(sizes) if n in window else next(rest) for n in range(rank))
    found = {
        "window": tuple(window),
        "hidden": tuple(dim for dim, kind in enumerate(kinds) if kind == "hidden"),
        "batching": tuple(batching),
        "places": tuple(places),
        "mapped": tuple(mapped),
        "vector": vector,
    }
    return shape, indices, made, slices, found


def some_indices(rng, shape):
    dtype = str(rng.choice(["int32", "int64", "int32", "uint8"]))
    return rng.integers(0 if dtype == "uint8" else -2, 8, shape).astype(dtype)


def named(found, names):
    return dict(zip(names.split(), found.values()))


@case("gather")
def gather(rng):
    shape, indices, _, slices, found = lookup(rng)
    attributes = named(
        found,
        "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims "
        "start_index_map index_vector_dim",
    )
    x = numbers(rng, shape, str(rng.choice(["int64", "float64", "bool"])))
    return [x, some_indices(rng, indices)], attributes | {"slice_sizes": slices}


@case("scatter")
def scatter(rng):
    shape, indices, made, _, found = lookup(rng)
    attributes = named(
        found,
        "update_window_dims inserted_window_dims input_batching_dims "
        "scatter_indices_batching_dims scatter_dims_to_operand_dims index_vector_dim",
    )
    how = str(rng.choice(["sum", "sum", "max", "min", "prod", "or", "replace"]))
    attributes |= {"region": "replace"} if how == "replace" else {"monoid": how}
    dtype = "bool" if how == "or" and rng.random() < 0.5 else "int64"
    count = 2 if rng.random() < 0.2 else 1
    inputs, updates = ([numbers(rng, s, dtype) for _ in range(count)] for s in (shape, made))
    return [*inputs, some_indices(rng, indices), *updates], attributes


@case("embedding")
def embedding(rng):
    rows, width = (int(n) for n in rng.integers(1, 8, 2))
    bounds = ("refuse", "from_end", "clip")[int(rng.integers(3))]
    low, high = {"refuse": (0, rows), "from_end": (-rows, rows), "clip": (-9, 18)}[bounds]
    places = rng.integers(low, high, shape_of(rng, 0, 2, 6))
    return [numbers(rng, (rows, width), "int64"), np.asarray(places)], {"bounds": bounds}
