"""Applications of reductions."""

import numpy as np
from tests.runtime.cases import case, numbers, shape_of


def some_dims(rng, rank):
    return tuple(sorted(int(d) for d in rng.permutation(rank)[: rng.integers(1, rank + 1)]))


@case("reduce")
def reduce(rng):
    shape, monoid = shape_of(rng), str(rng.choice(["sum", "prod", "max", "min", "and", "or"]))
    dtype = "int64" if monoid not in ("and", "or") or rng.random() < 0.5 else "bool"
    dims = some_dims(rng, len(shape))
    count = int(rng.choice([1, 1, 1, 2]))
    inputs = [numbers(rng, shape, dtype) for _ in range(count)]
    starts = [np.asarray(numbers(rng, (), dtype)) for _ in range(count)]
    return [*inputs, *starts], {"dimensions": dims, "monoid": monoid}


def along(rng, dtype):
    shape = shape_of(rng)
    keep = bool(rng.random() < 0.5)
    return [numbers(rng, shape, dtype)], {
        "dimensions": some_dims(rng, len(shape)),
        "keepdims": keep,
    }


@case("sum_dim", "prod_dim", "max_dim", "min_dim")
def of_integers(rng):
    return along(rng, "int64")


@case("all_dim", "any_dim")
def of_flags(rng):
    return along(rng, "bool")


@case("mean_dim", "logsumexp_dim")
def of_floats(rng):
    return along(rng, "float64")
