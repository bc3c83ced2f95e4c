"""Windows along one dimension, made by products with a band: against SciPy and one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import correlate1d

from weft import Tensor, ops
from weft.lang.operators.convolution import slide_along


@given(
    seed=st.integers(0, 2**32 - 1),
    axis=st.integers(0, 2),
    offsets=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    count=st.one_of(st.integers(1, 9), st.integers(120, 300)),
    stride=st.integers(1, 3),
    beside=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_every_window_is_its_sum(seed, axis, offsets, count, stride, beside):
    rng = np.random.default_rng(seed)
    kernel = rng.integers(-4, 5, len(offsets)).astype(float)
    size = stride * (count - 1) + max(offsets) + 1 + int(rng.integers(0, 3))
    shape = (*beside[:axis], size, *beside[axis:])
    x = rng.integers(-9, 10, shape).astype(float)
    if rng.integers(2):
        x.flat[rng.integers(x.size)] = rng.choice([np.inf, -np.inf, np.nan])
    lines = np.moveaxis(x, axis, -1)
    with np.errstate(invalid="ignore"):
        found = slide_along(np, x, axis, kernel, offsets, count, stride)
        wanted = sum(
            number * lines[..., at : at + stride * (count - 1) + 1 : stride]
            for number, at in zip(kernel, offsets)
        )
    assert np.array_equal(np.moveaxis(found, axis, -1), wanted, equal_nan=True)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_blur_is_that_of_scipy(axis, dtype):
    x = np.random.default_rng(0).random((20, 150, 33)).astype(dtype)
    kernel = np.exp(-0.5 * np.arange(-6, 7) ** 2 / 4).astype(dtype)
    shape = [1, 1, 1, 1, 1]
    shape[2 + axis] = 13
    padding = [6 * (n == axis) for n in range(3)]
    made = ops.convolve(Tensor(x[None, None]), Tensor(kernel.reshape(shape)), padding=padding)
    wanted = correlate1d(x, kernel, axis, mode="constant")
    assert made.numpy().dtype == dtype
    assert np.allclose(made.numpy()[0, 0], wanted, rtol=1e-5)
