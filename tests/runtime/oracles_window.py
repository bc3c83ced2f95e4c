"""Windows and lookups by XLA."""

from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.runtime.executed import execute
from tests.runtime.oracles import REDUCERS, nothing, oracle


def _pairs(edges):
    return list(zip(edges[::2], edges[1::2]))


@oracle("reduce_window")
def reduce_window(at, x, init):
    both = REDUCERS[at["monoid"]]
    made = lax.reduce_window(
        x,
        nothing(at["monoid"], x.dtype),
        both,
        at["window_dimensions"],
        at["window_strides"],
        _pairs(at["padding"]),
        at["base_dilations"],
        at["window_dilations"],
    )
    return both(made, np.broadcast_to(init, made.shape))


@oracle("select_and_scatter")
def select_and_scatter(at, x, source, init):
    """XLA runs the text of the operator itself, since JAX has only one kind of it."""
    monoid = {"sum": "add", "max": "maximum"}[at["monoid"]]
    kind = "FLOAT" if x.dtype.kind == "f" else "SIGNED"
    compared = f"stablehlo.compare {at['comparison_direction']}, %a, %b, {kind}"
    text = f"""
      %r = "stablehlo.select_and_scatter"(%0, %1, %2) <{{
        window_dimensions = array<i64: {", ".join(map(str, at["window_dimensions"]))}>,
        window_strides = array<i64: {", ".join(map(str, at["window_strides"]))}>,
        padding = dense<{[list(pair) for pair in _pairs(at["padding"])]}> : tensor<{x.ndim}x2xi64>
      }}> ({{
        ^bb0(%a: tensor<T>, %b: tensor<T>):
          %c = {compared} : (tensor<T>, tensor<T>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
      }}, {{
        ^bb0(%a: tensor<T>, %b: tensor<T>):
          %c = stablehlo.{monoid} %a, %b : tensor<T>
          stablehlo.return %c : tensor<T>
      }}) : (X, Y, tensor<T>) -> X"""
    return execute(text, x, source, init)


@oracle("convolution")
def convolution(at, x, kernel, bias=0):
    specs = [
        (at[f"{t}_{a}_dimension"], at[f"{t}_{b}_dimension"], *at[f"{t}_spatial_dimensions"])
        for t, a, b in (
            ("input", "batch", "feature"),
            ("kernel", "output_feature", "input_feature"),
            ("output", "batch", "feature"),
        )
    ]
    turned = [d for d, on in zip(specs[1][2:], at.get("window_reversal", ())) if on]
    made = lax.conv_general_dilated(
        x.astype("float64"),
        lax.rev(kernel.astype("float64"), turned),
        at["window_strides"],
        _pairs(at["padding"]),
        at["lhs_dilation"],
        at["rhs_dilation"],
        lax.ConvDimensionNumbers(*specs),
        at["feature_group_count"],
        at["batch_group_count"],
    )
    made = np.moveaxis(np.asarray(made), at["output_feature_dimension"], -1) + bias
    return np.moveaxis(made, -1, at["output_feature_dimension"]).astype(x.dtype)


def _pool(at, x, reducer, init):
    rest = x.ndim - len(at["window"])
    padding = _pairs(at.get("padding", (0, 0) * len(at["window"])))
    strides = at.get("strides", at["window"])
    ones = (1,) * rest
    return np.asarray(
        lax.reduce_window(
            x,
            np.asarray(init, x.dtype),
            reducer,
            (*ones, *at["window"]),
            (*ones, *strides),
            [(0, 0)] * rest + padding,
        )
    )


@oracle("max_pool")
def max_pool(at, x):
    return _pool(at, x, lax.max, -np.inf)


@oracle("avg_pool")
def avg_pool(at, x):
    by = prod(at["window"])
    if not at.get("count_include_pad", True):
        by = _pool(at, np.ones_like(x), lax.add, 0)
    return _pool(at, x, lax.add, 0) / np.asarray(by, x.dtype)


def _last(indices, vector, places):
    """Indices whose vectors are the last dimension, and where the others are then."""
    if vector == indices.ndim:
        return indices[..., None], tuple(places)
    return np.moveaxis(indices, vector, -1), tuple(p - (p > vector) for p in places)


@oracle("gather")
def gather(at, x, indices):
    indices, places = _last(
        indices, at["index_vector_dim"], at.get("start_indices_batching_dims", ())
    )
    numbers = lax.GatherDimensionNumbers(
        at["offset_dims"],
        at["collapsed_slice_dims"],
        at["start_index_map"],
        at["operand_batching_dims"],
        places,
    )
    return lax.gather(x, indices, numbers, at["slice_sizes"], mode="clip")


_SCATTERS = {
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
    "replace": lax.scatter,
}


@oracle("scatter")
def scatter(at, *operands):
    half = len(operands) // 2
    indices, places = _last(
        operands[half], at["index_vector_dim"], at.get("scatter_indices_batching_dims", ())
    )
    numbers = lax.ScatterDimensionNumbers(
        at["update_window_dims"],
        at["inserted_window_dims"],
        at["scatter_dims_to_operand_dims"],
        at["input_batching_dims"],
        places,
    )

    def run(how, x, updates):
        return np.asarray(_SCATTERS[how](x, indices, updates, numbers, mode="drop"))

    def one(x, updates):
        how = at.get("region") or at["monoid"]
        if how != "or":
            return run(how, x, updates)
        # JAX has no such scatter: bit by bit it is a maximum, and the last bit is the sign.
        bits = [
            run("max", (x.astype(int) >> n) & 1, (updates.astype(int) >> n) & 1) for n in range(6)
        ]
        total = sum(bit << n for n, bit in enumerate(bits[:5])) - (bits[5] << 5)
        return total.astype(x.dtype)

    return tuple(map(one, operands[:half], operands[half + 1 :]))


@oracle("embedding")
def embedding(at, table, indices):
    clips = at.get("bounds") == "clip"
    return jnp.take(table, indices, axis=0, mode="clip" if clips else "wrap")
