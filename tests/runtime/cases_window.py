"""Applications of convolutions and pooling."""

from math import prod

import numpy as np
from tests.runtime.cases import case, numbers, shape_of


def chance(rng, odds):
    return bool(rng.random() < odds)


def window(rng, sizes, *, base=True, dilation=True, negative=True):
    """A window for dimensions of these sizes, so that at least one fits into each."""
    found = {"size": [], "stride": [], "padding": [], "base": [], "dilation": []}
    for n in sizes:
        by = int(rng.integers(1, 4)) if base and chance(rng, 0.3) else 1
        apart = int(rng.integers(1, 4)) if dilation and chance(rng, 0.3) else 1
        low, high = (int(rng.integers(0, 4)) if chance(rng, 0.6) else 0 for _ in range(2))
        whole = (n - 1) * by + 1
        if negative and whole > 2 and chance(rng, 0.2):
            low, high = (-1, high) if chance(rng, 0.5) else (low, -1)
        most = (low + whole + high - 1) // apart + 1
        size = int(rng.integers(1, min(4, most) + 1))
        stride = int(rng.integers(1, 4))
        for key, value in zip(found, (size, stride, (low, high), by, apart)):
            found[key].append(value)
    found["padding"] = [edge for pair in found["padding"] for edge in pair]
    return {key: tuple(value) for key, value in found.items()}


def count(found, sizes):
    """How many windows there are along each dimension."""
    made = []
    for axis, n in enumerate(sizes):
        low, high = found["padding"][2 * axis : 2 * axis + 2]
        padded = low + (n - 1) * found["base"][axis] + 1 + high
        reach = (found["size"][axis] - 1) * found["dilation"][axis] + 1
        made.append((padded - reach) // found["stride"][axis] + 1)
    return tuple(made)


@case("reduce_window")
def reduce_window(rng):
    shape = shape_of(rng, 1, 3, 8)
    found = window(rng, shape)
    monoid = str(rng.choice(["sum", "max", "min", "prod", "and", "or"]))
    dtype = str(rng.choice(["int64", "bool"] if monoid in ("and", "or") else ["int64", "int32"]))
    x = np.sign(numbers(rng, shape, dtype)) if monoid == "prod" else numbers(rng, shape, dtype)
    attributes = {
        "window_dimensions": found["size"],
        "window_strides": found["stride"],
        "padding": found["padding"],
        "base_dilations": found["base"],
        "window_dilations": found["dilation"],
        "monoid": monoid,
    }
    return [x, np.asarray(numbers(rng, (), dtype))], attributes


@case("select_and_scatter")
def select_and_scatter(rng):
    shape = shape_of(rng, 1, 2, 8)
    found = window(rng, shape, base=False, dilation=False, negative=False)
    windows = count(found, shape)
    attributes = {
        "window_dimensions": found["size"],
        "window_strides": found["stride"],
        "padding": found["padding"],
        "monoid": str(rng.choice(["sum", "sum", "max"])),
        "comparison_direction": str(rng.choice(["GE", "GE", "GT", "LE", "LT"])),
    }
    dtype = str(rng.choice(["int64", "float64"]))
    # No two are equal: which of them XLA selects depends on how it goes through a window.
    return [
        (rng.permutation(prod(shape)).reshape(shape) - prod(shape) // 2).astype(dtype),
        rng.integers(-9, 9, windows).astype(dtype),
        np.asarray(int(rng.integers(0, 3)), dtype),
    ], attributes


@case("convolution")
def convolution(rng):
    spatial = shape_of(rng, 0, 3, 6)
    found = window(rng, spatial)
    group = int(rng.integers(1, 4)) if chance(rng, 0.5) else 1
    by_batch = chance(rng, 0.4)
    features, channels, batch = (int(n) for n in rng.integers(1, 4, 3))
    left = {"batch": batch * (group if by_batch else 1)}
    left["feature"] = channels * (1 if by_batch else group)
    right = {"input_feature": channels, "output_feature": features * group}
    made = {"batch": batch, "feature": right["output_feature"]}
    attributes, shapes = {}, []
    for tensor, sizes, inner in (
        ("input", left, spatial),
        ("kernel", right, found["size"]),
        ("output", made, ()),
    ):
        order = [int(n) for n in rng.permutation(len(spatial) + 2)]
        shape = [0] * len(order)
        for (name, size), at in zip(sizes.items(), order):
            attributes[f"{tensor}_{name}_dimension"] = at
            shape[at] = size
        attributes[f"{tensor}_spatial_dimensions"] = tuple(order[2:])
        for at, size in zip(order[2:], inner):
            shape[at] = size
        shapes.append(tuple(shape))
    attributes |= {
        "window_strides": found["stride"],
        "padding": found["padding"],
        "lhs_dilation": found["base"],
        "rhs_dilation": found["dilation"],
        "feature_group_count": 1 if by_batch else group,
        "batch_group_count": group if by_batch else 1,
    }
    if chance(rng, 0.3):
        attributes["window_reversal"] = tuple(bool(n) for n in rng.integers(0, 2, len(spatial)))
    dtype = str(rng.choice(["int64", "float64"]))
    bias = [(features * group,)] if chance(rng, 0.4) else []
    return [numbers(rng, shape, dtype) for shape in (*shapes[:2], *bias)], attributes


@case("avg_pool")
def mean_pooling(rng):
    operands, attributes = pooling(rng)
    if chance(rng, 0.3):
        attributes["count_include_pad"] = chance(rng, 0.5)
    return operands, attributes


@case("max_pool")
def pooling(rng):
    shape = shape_of(rng, 1, 3, 8)
    slid = shape[int(rng.integers(0, len(shape))) :]
    found = window(rng, slid, base=False, dilation=False, negative=False)
    attributes = {"window": found["size"]}
    # Only windows that see something: the mean and the maximum of nothing are not numbers.
    edges = [min(edge, found["size"][n // 2] - 1) for n, edge in enumerate(found["padding"])]
    if chance(rng, 0.7) and all(
        (low + n + high - size) // stride * stride - low < n
        for n, size, stride, low, high in zip(
            slid, found["size"], found["stride"], edges[::2], edges[1::2]
        )
    ):
        attributes |= {"strides": found["stride"], "padding": tuple(edges)}
    elif any(size > n for size, n in zip(found["size"], slid)):
        attributes = {"window": (1,) * len(slid)}
    return [numbers(rng, shape, str(rng.choice(["float64", "float32"])))], attributes
