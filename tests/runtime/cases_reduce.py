"""Applications of reductions."""

import numpy as np
from tests.runtime import monoids  # noqa: F401 - defined where they are imported
from tests.runtime.cases import case, numbers, shape_of

from weft.lang.struct_array import StructArray


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


@case("aggregate")
def by_a_monoid(rng):
    monoid = str(rng.choice(["argmax", "argmin", "moments", "spread", "parity", "two_largest"]))
    floats = monoid in ("moments", "two_largest") or (monoid != "parity" and rng.random() < 0.5)
    operands, attributes = along(rng, "float64" if floats else "int64")
    if monoid == "spread" and rng.random() < 0.5:
        low, high = numbers(rng, operands[0].shape), numbers(rng, operands[0].shape)
        operands = [StructArray({"low": low, "high": high}, low.ndim)]
    return operands, {**attributes, "monoid": monoid}


@case("component")
def of_elements(rng):
    value, place = numbers(rng, (4, 3, 2)), numbers(rng, (4, 3), "int64")
    name = str(rng.choice(["value", "place"]))
    shape = value.shape if name == "value" else place.shape
    return [StructArray({"value": value, "place": place}, 2)], {"name": name, "result_shape": shape}
