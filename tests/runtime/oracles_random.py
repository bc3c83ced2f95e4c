"""Random numbers by JAX: `jax.random` with partitionable Threefry, and XLA's bit generators."""

import jax
import jax.extend
import numpy as np
from jax import lax
from tests.runtime.oracles import ORACLES, given, oracle


def drawn(name):
    draw = getattr(jax.random, name)
    return lambda at, key: draw(key, at["result_shape"], at["dtype"])


for _name in ("uniform", "normal", "exponential", "gumbel", "bits"):
    ORACLES[f"random_{_name}"] = drawn(_name)
ORACLES["erf_inv"] = given(lax.erf_inv)
ORACLES["lgamma"] = given(lax.lgamma)


@oracle("random_integers")
def integers(at, key):
    return jax.random.randint(key, at["result_shape"], at["low"], at["high"], at["dtype"])


@oracle("random_split")
def split(at, key):
    return jax.random.split(key, at["result_shape"])


@oracle("random_fold_in")
def fold_in(at, key, data):
    flat = [jax.random.fold_in(key, int(n) & 0xFFFFFFFF) for n in data.ravel()]
    return np.asarray(flat, "uint32").reshape(*data.shape, 2)


@oracle("threefry2x32")
def threefry(at, k0, k1, x0, x1):
    made = jax.extend.random.threefry_2x32(
        np.stack([k0, k1]), np.concatenate([x0.ravel(), x1.ravel()])
    )
    return [half.reshape(x0.shape) for half in np.split(np.asarray(made), 2)]


@oracle("random_permutation")
def permutation(at, key):
    return jax.random.permutation(key, at["result_shape"][0])


@oracle("dropout")
def dropout(at, x, key):
    kept = 1 - at["rate"]
    mask = jax.random.bernoulli(key, np.float32(kept), x.shape)
    return np.where(mask, x / (kept or 1), np.zeros_like(x))


@oracle("rng_bit_generator")
def rng_bit_generator(at, state):
    algorithm = getattr(lax.RandomAlgorithm, f"RNG_{at['rng_algorithm']}")
    return lax.rng_bit_generator(state, at["result_shape"], at["dtype"], algorithm)


@oracle("bitcast_convert")
def bitcast_convert(at, x):
    return lax.bitcast_convert_type(x, at["dtype"])
