"""Applications of operators that move elements."""

from itertools import pairwise
from math import prod

import numpy as np
from tests.runtime.cases import case, numbers, shape_of


@case("transpose")
def transpose(rng):
    shape = shape_of(rng)
    order = tuple(int(d) for d in rng.permutation(len(shape)))
    return [numbers(rng, shape, "int64")], {"permutation": order}


@case("reshape")
def reshape(rng):
    left = [int(n) for n in rng.choice([1, 2, 2, 3, 4], rng.integers(1, 5))]

    def grouped():
        cuts = sorted(int(c) for c in rng.integers(0, len(left) + 1, 2))
        edges = [0, *cuts, len(left)]
        return tuple(prod(left[a:b]) for a, b in pairwise(edges))

    if rng.random() < 0.5:  # shapes that share few digits
        size, shapes = int(rng.choice([12, 24, 36, 60])), []
        for _ in range(2):
            first = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            shapes.append((first, size // first))
        return [numbers(rng, shapes[0], "int64")], {"result_shape": shapes[1]}
    return [numbers(rng, grouped(), "int64")], {"result_shape": grouped()}


@case("broadcast_in_dim")
def broadcast_in_dim(rng):
    shape = shape_of(rng, 0, 2)
    rank = len(shape) + int(rng.integers(0, 3))
    where = tuple(sorted(int(d) for d in rng.permutation(rank)[: len(shape)]))
    made = [int(n) for n in rng.integers(1, 5, rank)]
    for dim, size in zip(where, shape):
        made[dim] = size if size != 1 or rng.random() < 0.5 else made[dim]
    attributes = {"broadcast_dimensions": where, "result_shape": tuple(made)}
    return [numbers(rng, shape, "int64")], attributes


@case("reverse")
def reverse(rng):
    shape = shape_of(rng)
    dims = tuple(int(d) for d in rng.permutation(len(shape))[: rng.integers(1, len(shape) + 1)])
    return [numbers(rng, shape, "int64")], {"dimensions": dims}


@case("slice")
def cut(rng):
    shape = shape_of(rng)
    start = [int(rng.integers(0, n)) for n in shape]
    stop = [int(rng.integers(a + 1, n + 1)) for a, n in zip(start, shape)]
    strides = tuple(int(n) for n in rng.integers(1, 4, len(shape)))
    attributes = {"start_indices": tuple(start), "limit_indices": tuple(stop), "strides": strides}
    return [numbers(rng, shape, "int64")], attributes


@case("pad")
def pad(rng):
    shape = shape_of(rng)
    low, high = (rng.integers(0, 4, len(shape)) for _ in range(2))
    inner = rng.integers(0, 3, len(shape)) * (rng.random() < 0.5)
    if rng.random() < 0.3:
        low = np.where(np.asarray(shape) > 2, -1, low)
        high = np.where((np.asarray(shape) > 3) & (rng.random() < 0.5), -2, high)
    attributes = {
        "edge_padding_low": tuple(map(int, low)),
        "edge_padding_high": tuple(map(int, high)),
        "interior_padding": tuple(map(int, inner)),
    }
    return [numbers(rng, shape, "int64"), np.asarray(7)], attributes


@case("concatenate")
def concatenate(rng):
    shape = shape_of(rng)
    dim = int(rng.integers(0, len(shape)))
    shapes = [
        (*shape[:dim], int(rng.integers(1, 5)), *shape[dim + 1 :])
        for _ in range(rng.integers(1, 4))
    ]
    return [numbers(rng, s, "int64") for s in shapes], {"dimension": dim}


def places(rng, shape):
    """Where a slice begins, outside at times."""
    dtype = str(rng.choice(["int64", "int32", "uint8", "uint64"]))
    return [np.asarray(n, dtype) for n in rng.integers(-2 * (dtype[0] == "i"), 8, len(shape))]


@case("dynamic_slice")
def dynamic_slice(rng):
    shape = shape_of(rng)
    sizes = tuple(n if rng.random() < 0.5 else int(rng.integers(1, n + 1)) for n in shape)
    return [numbers(rng, shape, "int64"), *places(rng, shape)], {"slice_sizes": sizes}


@case("dynamic_update_slice")
def dynamic_update_slice(rng):
    shape = shape_of(rng)
    small = tuple(n if rng.random() < 0.5 else int(rng.integers(1, n + 1)) for n in shape)
    return [numbers(rng, shape, "int64"), numbers(rng, small, "int64"), *places(rng, shape)], {}


@case("iota")
def iota(rng):
    shape = shape_of(rng)
    dim = int(rng.integers(0, len(shape)))
    return [], {"result_shape": shape, "iota_dimension": dim, "dtype": "int64"}


@case("constant")
def constant(rng):
    shape = shape_of(rng)
    many = tuple(int(n) for n in rng.integers(0, 9, prod(shape)))
    return [], {"result_shape": shape, "value": many if rng.random() < 0.5 else 3, "dtype": "int64"}


@case("optimization_barrier")
def optimization_barrier(rng):
    return [numbers(rng, shape_of(rng, 1, 2), "int64") for _ in range(rng.integers(1, 3))], {}
