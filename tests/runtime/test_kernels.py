"""Every kernel on the whole index space, against a library that nobody here wrote."""

import jax
import numpy as np
import pytest
import torch
from tests.runtime import (  # noqa: F401
    oracles_blocks,
    oracles_linalg,
    oracles_random,
    oracles_window,
)
from tests.runtime.cases import CASES
from tests.runtime.oracles import ORACLES
from tests.runtime.test_validate import WITH_KERNELS
from tests.trials import trials

from weft.lang import OPERATORS, Block
from weft.runtime.arrays import namespace
from weft.runtime.blocks import run_block

TRIALS = trials(4, fewest=2)
"""Applications of each operator: 2 in `make test`, 4 in `make test-all`, 133 in `make fuzz`."""


@pytest.fixture(autouse=True)
def _64_bits():
    with jax.enable_x64(True):
        yield


def run(name, operands, attributes, xp=np):
    """The results of an operator, from one run of its kernel on everything."""
    operator = OPERATORS[name]
    line = operator.sign([tuple(x.shape) for x in operands], attributes)
    block = Block(xp, line, attributes, line.space)
    inputs = [array[box.slices()] for array, box in zip(operands, block.operands)]
    return run_block(operator, block, inputs)


def differs(found, expected):
    """What differs, in words."""
    found, expected = np.asarray(found), np.asarray(expected)
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{found.dtype}{found.shape} for {expected.dtype}{expected.shape}"
    exact = found.dtype.kind in "biu"
    tolerance = 0 if exact else 64 * np.finfo(found.dtype).eps
    scale = 1 if exact else np.abs(expected[np.isfinite(expected)]).max(initial=1)
    if np.allclose(found, expected, tolerance, tolerance * scale, equal_nan=True):
        return ""
    at = np.argwhere(~np.isclose(found, expected, tolerance, tolerance * scale, equal_nan=True))[0]
    return f"{found[tuple(at)]} for {expected[tuple(at)]} at {at.tolist()}"


def test_every_kernel_has_an_oracle():
    assert sorted(ORACLES) == WITH_KERNELS


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_kernels_make_what_others_make(name):
    for seed in range(TRIALS):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        expected = ORACLES[name](attributes, *operands)
        if not isinstance(expected, tuple | list):
            expected = (expected,)
        found = run(name, operands, attributes)
        assert len(found) == len(expected)
        for one, two in zip(found, expected):
            assert not differs(one, two), f"seed {seed}, {attributes}: {differs(one, two)}"


UNARY = (
    *("abs", "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "gelu"),
    *("is_finite", "log", "log_plus_one", "logistic", "negate", "relu", "round_nearest_afz"),
    *("round_nearest_even", "rsqrt", "sign", "silu", "sine", "sqrt", "tan", "tanh"),
)
SPECIAL = (0.0, -0.0, 0.5, 1.5, 2.5, 0.49999997, 2.0**23, 2.0**52, 1e-7, 30.0, 90.0)
ENDLESS = (np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_special_numbers(name, dtype):
    endless = () if name in ("gelu", "silu") else ENDLESS  # JAX itself gives no number there
    x = np.asarray([*SPECIAL, *(-n for n in SPECIAL), *endless], dtype)
    if name == "tan":
        x = x[np.abs(x) < 2.0**20]  # far out, sine and cosine are rounded differently
    with np.errstate(all="ignore"):
        (found,) = run(name, [x], {})
        expected = ORACLES[name]({}, x)
    each = [differs(one, two) for one, two in zip(found, np.asarray(expected))]
    assert not any(each), {float(n): how for n, how in zip(x, each) if how}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "name",
    [
        *("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum"),
        *("shift_left", "shift_right_arithmetic", "shift_right_logical", "and", "or", "xor"),
    ],
)
def test_all_pairs_of_bytes(name, dtype):
    ends = np.iinfo(dtype)
    x, y = np.meshgrid(*[np.arange(ends.min, ends.max + 1, dtype="int64").astype(dtype)] * 2)
    if name in ("divide", "remainder"):
        known = (y != 0) & ~((x == ends.min) & (y.astype(int) == -1))
        x, y = x[known], y[known]
    (found,) = run(name, [x, y], {})
    assert not differs(found, ORACLES[name]({}, x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["popcnt", "count_leading_zeros", "not", "sign"])
def test_all_bytes(name, dtype):
    ends = np.iinfo(dtype)
    x = np.arange(ends.min, ends.max + 1, dtype="int64").astype(dtype)
    (found,) = run(name, [x], {})
    assert not differs(found, ORACLES[name]({}, x))


def test_the_first_of_equal_elements_is_selected():
    """As torch has it in the gradient of pooling."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        shape, size, stride, edge = (1, 1, 7, 6), rng.integers(2, 4, 2), rng.integers(1, 4, 2), 1
        x = torch.asarray(rng.integers(-2, 3, shape).astype("float64"), requires_grad=True)
        pooled = torch.nn.functional.max_pool2d(x, size.tolist(), stride.tolist(), edge)
        source = torch.asarray(rng.integers(-9, 10, tuple(pooled.shape)).astype("float64"))
        pooled.backward(source)
        attributes = {
            "window_dimensions": (1, 1, *size.tolist()),
            "window_strides": (1, 1, *stride.tolist()),
            "padding": (0, 0, 0, 0, edge, edge, edge, edge),
        }
        operands = [x.detach().numpy(), source.numpy(), np.asarray(0.0)]
        (found,) = run("select_and_scatter", operands, attributes)
        assert not differs(found, x.grad.numpy()), seed


def test_remainders_of_floats():
    x, y = np.meshgrid([5.0, -5.0, 0.75, -0.75, 1e300], [3.0, -3.0, 0.5, -0.5, np.inf, -np.inf])
    (found,) = run("remainder", [x, y], {})
    assert not differs(found, ORACLES["remainder"]({}, x, y))


LIBRARIES = {"torch": (torch.asarray, torch.Tensor), "jax": (jax.numpy.asarray, jax.Array)}


@pytest.mark.parametrize("library", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WITH_KERNELS)
def test_results_stay_in_the_library_of_the_operands(name, library):
    make, kind = LIBRARIES[library]
    operands, attributes = CASES[name](np.random.default_rng(1))
    if not operands:
        return
    if library == "torch" and name != "rng_bit_generator":
        # Torch has no arithmetic on unsigned integers but bytes.
        operands = [x.astype("int64") if x.dtype == "uint64" else x for x in operands]
    expected = run(name, operands, attributes)
    arrays = [make(x) for x in operands]
    found = run(name, arrays, attributes, namespace(*arrays))
    for one, two in zip(found, expected):
        assert isinstance(one, kind)
        assert not differs(one, two)
