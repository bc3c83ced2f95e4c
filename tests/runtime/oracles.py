"""Operators by somebody else, JAX or NumPy: pointwise ones, moves, products and reductions."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ORACLES = {}
"""For each operator what makes its results from operands (NumPy arrays) and attributes."""


def oracle(*names):
    """Register a function of attributes and operands under the names of operators."""

    def add(make):
        for name in names:
            assert name not in ORACLES, name
            ORACLES[name] = make
        return make

    return add


def given(function):
    """The oracle that is a function of the operands alone, repeated to one shape."""
    return lambda at, *operands: function(*np.broadcast_arrays(*operands))


_LAX = """
    abs add atan2 cbrt ceil clamp complex cosine=cos divide=div exponential=exp
    exponential_minus_one=expm1 floor imag is_finite log log_plus_one=log1p logistic
    maximum=max minimum=min multiply=mul negate=neg popcnt=population_count power=pow real
    remainder=rem rsqrt shift_left shift_right_arithmetic shift_right_logical sign sine=sin sqrt
    subtract=sub tan tanh count_leading_zeros=clz
    acos acosh asin asinh atan atanh cosh erf erfc sinh square
    and=bitwise_and or=bitwise_or xor=bitwise_xor not=bitwise_not
"""
for _word in _LAX.split():
    _name, _, _other = _word.partition("=")
    ORACLES[_name] = given(getattr(lax, _other or _name))

ORACLES["real"] = given(np.real)
ORACLES["imag"] = given(np.imag)
for _name in ("sharding_constraint", "propagation_barrier", "data_flow_edge"):
    ORACLES[_name] = given(np.asarray)
ORACLES["relu"] = given(jax.nn.relu)
ORACLES["floor_divide"] = given(np.floor_divide)
ORACLES["mod"] = given(np.mod)
ORACLES["silu"] = given(jax.nn.silu)
ORACLES["next_after"] = given(np.nextafter)
for _name in ("copysign", "hypot", "logaddexp", "log2", "log10", "trunc"):
    ORACLES[_name] = given(getattr(np, _name))
ORACLES["is_inf"] = given(np.isinf)
ORACLES["select"] = given(np.where)
ORACLES["round_nearest_afz"] = given(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO))
ORACLES["round_nearest_even"] = given(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))


@oracle("gelu")
def gelu(at, x):
    return jax.nn.gelu(x, approximate=not at.get("exact", False))


@oracle("polynomial")
def polynomial(at, x):
    if "low" not in at:
        return np.polynomial.Polynomial(at["coefficients"])(x)
    return np.polynomial.Chebyshev(at["coefficients"], domain=[at["low"], at["high"]])(x)


@oracle("optimization_barrier")
def optimization_barrier(at, *operands):
    return tuple(lax.optimization_barrier(operands))


@oracle("compare")
def compare(at, x, y):
    return getattr(lax, at["comparison_direction"].lower())(*np.broadcast_arrays(x, y))


@oracle("convert")
def convert(at, x):
    return lax.convert_element_type(x, at["dtype"])


# Moves.


@oracle("transpose")
def transpose(at, x):
    return lax.transpose(x, at["permutation"])


@oracle("reshape")
def reshape(at, x):
    return lax.reshape(x, at["result_shape"])


@oracle("broadcast_in_dim")
def broadcast_in_dim(at, x):
    return lax.broadcast_in_dim(x, at["result_shape"], at["broadcast_dimensions"])


@oracle("reverse")
def reverse(at, x):
    return lax.rev(x, at["dimensions"])


@oracle("slice")
def cut(at, x):
    return lax.slice(x, at["start_indices"], at["limit_indices"], at["strides"])


@oracle("pad")
def pad(at, x, value):
    edges = zip(at["edge_padding_low"], at["edge_padding_high"], at["interior_padding"])
    return lax.pad(x, value, list(edges))


@oracle("concatenate")
def concatenate(at, *parts):
    return lax.concatenate(parts, at["dimension"])


@oracle("dynamic_slice")
def dynamic_slice(at, x, *starts):
    # The primitive itself: `lax.dynamic_slice` counts negative places from the end.
    return lax.dynamic_slice_p.bind(*map(jnp.asarray, (x, *starts)), slice_sizes=at["slice_sizes"])


@oracle("dynamic_update_slice")
def dynamic_update_slice(at, x, update, *starts):
    return lax.dynamic_update_slice_p.bind(
        jnp.asarray(x), jnp.asarray(update), *map(jnp.asarray, starts)
    )


def _xla_starts(primitive, x, starts, **how):
    """The primitive itself: `lax.dynamic_slice` counts negative places from the end."""
    return primitive.bind(jnp.asarray(x), *map(jnp.asarray, starts), **how)


@oracle("iota")
def iota(at):
    return lax.broadcasted_iota(at["dtype"], at["result_shape"], at["iota_dimension"])


@oracle("constant")
def constant(at):
    return np.broadcast_to(
        np.asarray(at["value"], at["dtype"]).ravel(), (prod(at["result_shape"]),)
    ).reshape(at["result_shape"])


# Products and reductions.


@oracle("matmul", "dot")
def matmul(at, x, y):
    return np.matmul(x, y)


@oracle("linear")
def linear(at, x, w, b=0):
    return (x @ w + b).astype(x.dtype)


@oracle("dot_general")
def dot_general(at, x, y):
    kinds = ("contracting", "batching")
    dims = [[at[f"{side}_{kind}_dimensions"] for side in ("lhs", "rhs")] for kind in kinds]
    return lax.dot_general(x, y, dims)


@oracle("einsum")
def einsum(at, *operands):
    return np.einsum(at["equation"].replace(" ", ""), *operands)


REDUCERS = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def nothing(monoid, dtype):
    """What a monoid leaves as it is: JAX says nothing of other initial values."""
    if dtype == "bool":
        return np.asarray(monoid in ("and", "min", "prod"))
    ends = np.iinfo(dtype)
    found = {"sum": 0, "or": 0, "prod": 1, "and": -1, "max": ends.min, "min": ends.max}
    return np.asarray(found[monoid], dtype)


@oracle("reduce")
def reduce(at, *operands):
    half, both = len(operands) // 2, REDUCERS[at["monoid"]]

    def one(x, init):
        made = lax.reduce(x, nothing(at["monoid"], x.dtype), both, at["dimensions"])
        return both(made, np.broadcast_to(init, made.shape))

    return tuple(map(one, operands[:half], operands[half:]))


def _along(function):
    return lambda at, x: function(x, axis=at["dimensions"], keepdims=at.get("keepdims", False))


for _name in ("sum", "prod", "max", "min", "all", "any", "mean"):
    ORACLES[f"{_name}_dim"] = _along(getattr(np, _name))
ORACLES["logsumexp_dim"] = _along(jax.nn.logsumexp)
