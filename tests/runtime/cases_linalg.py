"""Applications of decompositions, transforms and sorting."""

import numpy as np
from tests.runtime.cases import case, numbers, shape_of

REAL = ("float64", "float32")


def chance(rng, odds):
    return bool(rng.random() < odds)


def matrices(rng, shape):
    """Random numbers, complex ones at times."""
    dtype = str(rng.choice(["float64", "complex128"]))
    x = numbers(rng, shape)
    return x + 1j * numbers(rng, shape) if dtype == "complex128" else x


@case("cholesky")
def cholesky(rng):
    n = int(rng.integers(1, 6))
    x = matrices(rng, (*shape_of(rng, 0, 2, 4), n, n))
    return [x @ np.conj(np.swapaxes(x, -1, -2)) + n * np.eye(n)], {"lower": chance(rng, 0.5)}


@case("triangular_solve")
def triangular_solve(rng):
    n = int(rng.integers(1, 6)) if chance(rng, 0.8) else int(rng.integers(60, 80))
    m, batch, left = int(rng.integers(1, 5)), shape_of(rng, 0, 2, 4), chance(rng, 0.5)
    a = matrices(rng, (*batch, n, n)) / n + 2 * np.eye(n)
    b = numbers(rng, (*batch, n, m) if left else (*batch, m, n)).astype(a.dtype)
    attributes = {
        "left_side": left,
        "lower": chance(rng, 0.5),
        "unit_diagonal": chance(rng, 0.3),
        "transpose_a": str(rng.choice(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])),
    }
    return [a, b], attributes


@case("fft")
def fft(rng):
    shape = shape_of(rng, 1, 4, 6)
    lengths = shape[-int(rng.integers(1, min(3, len(shape)) + 1)) :]
    kind = str(rng.choice(["FFT", "IFFT", "RFFT", "IRFFT"]))
    attributes = {"fft_type": kind, "fft_length": lengths}
    half = (*shape[:-1], shape[-1] // 2 + 1)
    if chance(rng, 0.5):
        attributes["result_shape"] = half if kind == "RFFT" else shape
    if kind == "RFFT":
        return [numbers(rng, shape)], attributes
    given = half if kind == "IRFFT" else shape
    return [numbers(rng, given) + 1j * numbers(rng, given)], attributes


@case("sort")
def sort(rng):
    shape = shape_of(rng)
    dims = len(shape)
    attributes = {"dimension": int(rng.integers(-dims, dims))}
    if chance(rng, 0.5):
        attributes["comparison_direction"] = str(rng.choice(["LT", "GT"]))
    return [numbers(rng, shape, "int64") for _ in range(rng.integers(1, 4))], attributes


@case("topk")
def topk(rng):
    shape = shape_of(rng)
    x = numbers(rng, shape, str(rng.choice(["int64", "float64"])))
    return [x], {"k": int(rng.integers(1, shape[-1] + 1))}


@case("cumsum")
def cumsum(rng):
    shape = shape_of(rng)
    dims = len(shape)
    attributes = {"dimension": int(rng.integers(-dims, dims))}
    for name in ("reverse", "exclusive"):
        attributes |= {name: chance(rng, 0.5)} if chance(rng, 0.6) else {}
    return [numbers(rng, shape, str(rng.choice(["int32", "float64"])))], attributes


@case("batch_norm_inference")
def batch_norm_inference(rng):
    shape, dtype = shape_of(rng), str(rng.choice(REAL))
    feature = int(rng.integers(0, len(shape)))
    vectors = [numbers(rng, (shape[feature],), dtype) for _ in range(4)]
    vectors[-1] = np.abs(vectors[-1]) + 0.1
    return [numbers(rng, shape, dtype), *vectors], {"feature_index": feature, "epsilon": 1e-3}
