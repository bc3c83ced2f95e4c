"""Every operator on every dtype, pair of dtypes and kind of number, against NumPy and JAX.

Each case is computed at once, whole and on a mesh, and traced, planned and run: values, dtypes and
predicted bytes are compared. `make test` tries a sample, `make fuzz` all combinations.
"""

import warnings
from itertools import product
from random import Random

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.runtime.cases import CASES as CASES_OF
from tests.runtime.test_validate import WITH_KERNELS
from tests.trials import EXAMPLES

import weft
from weft import DeviceMesh, DimSpec, Plan, Tensor, WeftError, communication, ops, propagate, trace
from weft.lang import OPERATORS
from weft.lang.arithmetic import apply_all
from weft.lang.dtype import itemsize

CASES = 14 if EXAMPLES < 5000 else 10**9
"""Cases of each operator: a sample in `make test`, all of them in `make fuzz`."""

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMPY = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128"]
SCALARS = [True, 3, 300, -1, 0.5, 2j]
SHAPES = [(6,), (), (0,), (2, 6)]
MESH = DeviceMesh("m", (2,), ("x",))


def numbers(rng, shape, dtype):
    """Small numbers of a dtype, none of them 0, so that every quotient has a value."""
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), "bool")
    high = 100 if dtype in ("int8", "uint8") else 30000
    low = -high if dtype[0] != "u" else 1
    made = rng.integers(low, high, shape) if "int" in dtype else rng.uniform(-3, 3, shape)
    made = np.where(made == 0, 1, made)
    if "complex" in dtype:
        made = made + 1j * rng.uniform(-3, 3, shape)
    return np.asarray(made).astype(getattr(ml_dtypes, dtype, dtype))


UNARY = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "exp", "expm1", "floor", "isfinite")},
    **{name: getattr(np, name) for name in ("isinf", "isnan", "log1p", "negative", "round")},
    **{name: getattr(np, name) for name in ("sign", "sin", "cos", "tan", "tanh", "square", "sqrt")},
    **{name: getattr(np, name) for name in ("sum", "prod", "mean", "max", "min", "all", "any")},
    **{name: getattr(np, name) for name in ("cumsum", "sinh", "cosh", "cbrt", "log")},
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "logical_not": np.logical_not,
    "bitwise_invert": np.invert,
    "sort": np.sort,
    "relu": lambda x: np.maximum(x, np.zeros_like(x)),
}
BINARY = {
    **{name: getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "maximum")},
    **{name: getattr(np, name) for name in ("minimum", "equal", "not_equal", "less", "greater")},
    **{name: getattr(np, name) for name in ("less_equal", "greater_equal", "logical_and")},
    **{name: getattr(np, name) for name in ("logical_or", "logical_xor", "bitwise_and", "power")},
    **{name: getattr(np, name) for name in ("bitwise_or", "bitwise_xor", "floor_divide", "fmod")},
    **{name: getattr(np, name) for name in ("remainder", "matmul")},
    "atan2": np.arctan2,
    "where": lambda x, y: np.where(np.asarray(x) != 0, x, y),
    "concatenate": lambda x, y: np.concatenate([x, y]),
}

SPELLED = {
    "where": lambda x, y: ops.where(x if hasattr(x, "dtype") else x != 0, x, y),
    "concatenate": lambda x, y: ops.concatenate([x, y]),
    "cumsum": lambda x: ops.cumsum(x, 0),
    "sort": lambda x: ops.sort(x, 0),
}
ORACLE = {"cumsum": lambda x: np.cumsum(x, 0), "sort": lambda x: np.sort(x, 0)}

REFUSED = {
    "bool": {"round", "square", "relu", "power", "floor_divide", "remainder", "fmod", "atan2"},
    "complex": {"max", "min", "maximum", "minimum", "sort", "less", "greater", "sign", "relu"}
    | {"less_equal", "greater_equal", "cbrt", "expm1", "log1p", "round", "atan2"},
}
"""What Weft refuses and NumPy has an answer for."""


def oracle(name, table, *operands):
    """What NumPy makes, or JAX where NumPy has no such dtype; None where they refuse."""
    function = ORACLE.get(name, table[name])
    if any(str(getattr(x, "dtype", "")) == "bfloat16" for x in operands):
        other = {"bitwise_invert": "invert"}.get(name, name)
        function = getattr(jnp, other, None) if other not in ("relu", "where", *ORACLE) else None
        if function is None:
            function = {
                "relu": jax.nn.relu,
                "where": lambda x, y: jnp.where(jnp.asarray(x) != 0, x, y),
                "concatenate": lambda x, y: jnp.concatenate([x, y]),
                "cumsum": lambda x: jnp.cumsum(x, 0),
                "sort": lambda x: jnp.sort(x, 0),
            }[name]
        elif name == "concatenate":
            return np.asarray(jnp.concatenate(list(operands)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(function(*operands))
    except (TypeError, ValueError, OverflowError):
        return None


def apply(name, *operands):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SPELLED.get(name, getattr(ops, name, None))(*operands)


def may_refuse(name, operands):
    kinds = [str(getattr(x, "dtype", type(x).__name__)) for x in operands]
    if any(name in REFUSED["complex"] for k in kinds if "complex" in k):
        return True
    if name == "where" and any(type(x) is int for x in operands):
        return True  # NumPy wraps numbers that do not fit: -1 becomes 65535
    return all("bool" in k for k in kinds) and name in REFUSED["bool"]


def agree(found, expected):
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    eps = float(ml_dtypes.finfo(found.dtype).eps)
    wide = "complex128" if found.dtype.kind == "c" else "float64"
    found, expected = found.astype(wide), expected.astype(wide)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(found, expected, 64 * eps, 16 * eps * scale)


def sharded(x):
    """The array cut in two along its first dimension, be it empty; a scalar is repeated."""
    tensor = Tensor(x)
    return tensor.shard(MESH, [DimSpec(["x"])] + [DimSpec([])] * (x.ndim - 1) if x.ndim else [])


def check(name, table, operands):
    """Compare one case: at once, whole and cut; traced, planned and run."""
    expected = oracle(name, table, *operands)
    arrays = [x for x in operands if isinstance(x, np.ndarray)]
    try:
        whole = apply(name, *(Tensor(x) if isinstance(x, np.ndarray) else x for x in operands))
    except WeftError:
        assert expected is None or may_refuse(name, operands), "refused, and NumPy has an answer"
        whole = None
    if whole is None:
        with pytest.raises(WeftError):
            traced(name, operands, arrays)
        return
    assert expected is not None, "NumPy refuses this"
    agree(whole.numpy(), expected)
    cut = apply(name, *(sharded(x) if isinstance(x, np.ndarray) else x for x in operands))
    assert cut.dtype == str(expected.dtype)
    agree(cut.numpy(), expected)
    graph = traced(name, operands, arrays)
    plan = Plan.of(propagate(graph))
    value = graph.values[graph.outputs[0]]
    assert (value.dtype, value.shape) == (str(expected.dtype), expected.shape)
    with communication() as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (made,) = weft.run(plan, {f"input_{n}": x for n, x in enumerate(arrays)})
    agree(made.numpy(), expected)
    assert moved.received == sum(plan.received)
    assert itemsize(value.dtype) == expected.dtype.itemsize


def traced(name, operands, arrays):
    def function(*symbols):
        given = iter(symbols)
        return apply(name, *(next(given) if isinstance(x, np.ndarray) else x for x in operands))

    names = [f"input_{n}" for n in range(len(arrays))]
    spec = {
        n: '<@m, [{"x"}' + ", {}" * (x.ndim - 1) + "]>" for n, x in zip(names, arrays) if x.ndim
    }
    return trace(function, *arrays, names=names, meshes=['@m = <["x"=2]>'], shardings=spec)


def sample(cases, name):
    cases = list(cases)
    return Random(name).sample(cases, min(CASES, len(cases)))


@pytest.fixture(autouse=True)
def _64_bits():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name):
    for dtype, shape in sample(product([*NUMPY, "bfloat16"], SHAPES), name):
        if name in ("cumsum", "sort") and not shape:
            continue
        rng = np.random.default_rng(len(shape))
        x = numbers(rng, shape, dtype)
        if name in ("sqrt", "log", "log1p") and "uint" not in dtype:
            x = np.asarray(np.abs(x))
        try:
            check(name, UNARY, [x])
        except AssertionError as error:
            raise AssertionError(f"{name} of {dtype}{list(shape)}: {error}") from error


def pairs():
    every = [*NUMPY, "bfloat16"]
    for one, two, shape in product(every, every, SHAPES):
        yield one, two, shape, 0
    for one, number, shape, side in product(every, SCALARS, SHAPES, (1, 2)):
        yield one, number, shape, side


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name):
    for one, two, shape, side in sample(pairs(), name):
        rng = np.random.default_rng(len(shape))
        if name in ("matmul", "concatenate") and (side or not shape):
            continue
        x = numbers(rng, shape, one)
        y = two if side else numbers(rng, shape[-1:] if name == "matmul" else shape, two)
        if name == "power":
            x, y = np.asarray(np.abs(x)), np.asarray(np.abs(y)) if not side else abs(y)
            y = np.asarray(y % 4) if not side and y.dtype.kind in "iu" else y
        if name in ("floor_divide", "remainder", "fmod", "divide") and side == 0 and two == "bool":
            y = np.ones_like(y)
        operands = [y, x] if side == 2 else [x, y]
        try:
            check(name, BINARY, operands)
        except AssertionError as error:
            raise AssertionError(f"{name} of {one} and {two}, {shape}, {side}: {error}") from error


LOW = ("float16", "bfloat16")
EVERY = [*NUMPY, "bfloat16"]


def cast_all(operands, dtype):
    """Floats of a case in another dtype; integers that say where something is stay."""
    native = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [x.astype(native) if x.dtype.kind in "fc" else x for x in operands]


@pytest.mark.parametrize("name", WITH_KERNELS)
def test_every_kernel_makes_what_is_declared(name):
    """On every dtype the declared dtype, cut or not; low precision is rounded once, or refused."""
    for dtype in sample(EVERY, name) if CASES < 100 else EVERY:
        operands, attributes = CASES_OF[name](np.random.default_rng(7))
        given = cast_all(operands, dtype)
        tensors = [Tensor(x) for x in given]
        if not tensors:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = apply_all(name, *tensors, **attributes)
            except WeftError:
                continue
        declared = OPERATORS[name].dtypes(
            OPERATORS[name].conversion([x.dtype for x in tensors]), attributes
        )
        for number, made in enumerate(found):
            assert made.dtype == declared[min(number, len(declared) - 1)], (name, dtype)
            assert made.numpy().dtype.itemsize == itemsize(made.dtype)
        if dtype not in LOW or name in ("round_nearest_afz", "round_nearest_even", "topk", "sort"):
            continue
        wide = [x.astype("float32") if str(x.dtype) == dtype else x for x in given]
        exact = apply_all(name, *map(Tensor, wide), **attributes)
        for made, wanted in zip(found, exact):
            if made.dtype != dtype:
                continue
            once = wanted.numpy().astype(made.numpy().dtype).astype("float64")
            scale = np.abs(once[np.isfinite(once)]).max(initial=1e-30)
            eps = float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(
                made.numpy().astype("float64"), once, 2 * eps, eps * scale, err_msg=name
            )
