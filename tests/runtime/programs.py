"""Random programs over tensors of all dtypes, each step with what NumPy makes of it."""

import warnings

import ml_dtypes
import numpy as np
from tests.runtime import threefry
from tests.runtime.monoids import PARITY, SPREAD, TWO_LARGEST, two_largest
from tests.runtime.tensors import random_spec

from weft import ops


class Step:
    """One operation: what Weft does, and what NumPy does, on values by their numbers."""

    def __init__(self, name, operands, weft, numpy):
        self.name, self.operands, self.weft, self.numpy = name, operands, weft, numpy


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MIXED = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
MIXED = (*MIXED, "float16", "float32", "float64")
KIND = ("int64", "float64", "mixed", "mixed", "float16", "bfloat16")
"""Programs have integers, floats, arrays of all dtypes, or floats of low precision."""


def in_numpy(function, *operands):
    """What NumPy makes; None where it refuses. It has no rule for bfloat16: float32, rounded."""
    low = {x.dtype for x in operands if x.dtype.kind in "fV"} == {BFLOAT16}
    given = [x.astype("float32") if x.dtype == BFLOAT16 else x for x in operands]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = np.asarray(function(*given))
    except (TypeError, OverflowError):
        return None
    return made.astype(BFLOAT16) if low and made.dtype.kind == "f" else made


class Maker:
    """Makes a program step by step; shapes and dtypes are those that NumPy finds."""

    dtypes = KIND

    def __init__(self, seed, steps):
        self.rng = np.random.default_rng(seed)
        self.kind = str(self.rng.choice(self.dtypes))
        self.floats = "float" in self.kind
        self.values, self.steps = [], []
        for _ in range(int(self.rng.integers(1, 4))):
            shape = tuple(int(n) for n in self.rng.integers(1, 8, self.rng.integers(1, 4)))
            self.values.append(self._numbers(shape))
        self.inputs = list(self.values)
        while len(self.steps) < steps:
            self.add(KINDS)

    def add(self, kinds):
        """Add a step of a kind; say whether it can be added to this program."""
        step = getattr(self, str(self.rng.choice(kinds)))()
        made = step and in_numpy(step.numpy, *(self.values[n] for n in step.operands))
        if made is None or not self._is_tame(made):
            return False
        self.steps.append(step)
        self.values.append(made)
        return True

    def _is_tame(self, made):
        """Whether rounding stays small: sums of low precision, sorted or compared, may differ."""
        if made.dtype.kind not in "fV":
            return True
        size = np.abs(made.astype("float64")).max(initial=0)
        return bool(size < (1e3 if made.dtype.itemsize == 2 else 1e12))

    def _numbers(self, shape):
        dtype = str(self.rng.choice(MIXED)) if self.kind == "mixed" else self.kind
        dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return self.rng.integers(-3 if dtype.kind == "i" else 0, 4, shape).astype(dtype)
        return self.rng.normal(size=shape).astype(dtype)

    @property
    def outputs(self):
        used = {n for step in self.steps for n in step.operands}
        first = len(self.inputs)
        return [n for n in range(first, len(self.values)) if n not in used] or [first]

    def any(self, least=1):
        fit = [n for n, v in enumerate(self.values) if v.ndim >= least and v.size < 2000]
        return int(self.rng.choice(fit)) if fit else None

    def like(self, n):
        """A value that NumPy repeats to the shape of another, or that one to it."""
        found = []
        for m, value in enumerate(self.values):
            try:
                shape = np.broadcast_shapes(value.shape, self.values[n].shape)
            except ValueError:
                continue
            if np.prod(shape, dtype=int) < 2000:
                found.append(m)
        return int(self.rng.choice(found))

    def arithmetic(self):
        a = self.any(0)
        both = {
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "maximum": np.maximum,
            "minimum": np.minimum,
        }
        name = str(self.rng.choice(list(both)))
        if name == "multiply" and np.abs(self.values[a].astype("f8")).max(initial=0) > 1e4:
            return None
        return Step(name, [a, self.like(a)], getattr(ops, name), both[name])

    def scalar(self):
        a, k = self.any(0), int(self.rng.integers(-2, 3))
        k = float(k) if self.floats else k
        return Step("scalar", [a], lambda x: x * k - k, lambda x: x * k - k)

    def quotient(self):
        a = self.any(0)
        return Step("divide", [a], lambda x: x / 2, lambda x: x / 2)

    def compared(self):
        a = self.any(0)
        return Step("compare", [a, self.like(a)], lambda x, y: x == y, lambda x, y: x == y)

    def mean(self):
        a = self.any()
        if not self.values[a].size:
            return None
        return Step("mean", [a], lambda x: x.mean(0), lambda x: x.mean(0))

    def root(self):
        a = self.any(0)
        return Step("sqrt", [a], lambda x: ops.sqrt(abs(x)), lambda x: np.sqrt(np.abs(x)))

    def relu(self):
        a = self.any(0)
        if self.values[a].dtype.kind == "b":
            return None
        return Step("relu", [a], ops.relu, lambda x: np.maximum(x, x.dtype.type(0)))

    def softmax(self):
        a = self.any()
        if self.values[a].dtype.kind not in "fV" or not self.values[a].size:
            return None
        return Step("softmax", [a], ops.softmax, softmax)

    def dropout(self):
        a, rate, seed = self.any(0), float(self.rng.choice([0.25, 0.5])), int(self.rng.integers(99))
        if self.values[a].dtype.kind not in "fV":
            return None
        return Step(
            "dropout",
            [a],
            lambda x: ops.dropout(x, rate, seed),
            lambda x: threefry.dropout(x, rate, seed),
        )

    def uniform(self):
        a, seed = self.any(0), int(self.rng.integers(99))
        if self.values[a].dtype in (BFLOAT16, np.float16):  # their rounding would show
            return None
        return Step(
            "uniform",
            [a],
            lambda x: x * ops.random_uniform(seed, x.shape),
            lambda x: x * threefry.uniform(seed, x.shape),
        )

    def matmul(self):
        a = self.any(2)
        if a is None or np.abs(self.values[a].astype("f8")).max(initial=0) > 1e6:
            return None
        fit = [
            n
            for n, v in enumerate(self.values)
            if v.ndim == 2 and v.shape[0] == self.values[a].shape[-1]
        ]
        if not fit:
            return Step(
                "gram",
                [a],
                lambda x: x @ x.transpose(*range(x.ndim - 2), -1, -2),
                lambda x: x @ np.swapaxes(x, -1, -2),
            )
        return Step("matmul", [a, int(self.rng.choice(fit))], lambda x, y: x @ y, np.matmul)

    def reduce(self):
        a = self.any()
        rank = self.values[a].ndim
        dims = tuple(int(d) for d in self.rng.permutation(rank)[: self.rng.integers(1, rank + 1)])
        keep = bool(self.rng.random() < 0.4)
        name = str(self.rng.choice(["sum", "max", "min"]))
        if not self.values[a].size:
            return None
        numpy = getattr(np, name)
        return Step(
            name,
            [a],
            lambda x: getattr(x, name)(dims, keepdims=keep),
            lambda x: numpy(x, axis=dims, keepdims=keep),
        )

    def place(self):
        a = self.any()
        value, name = self.values[a], str(self.rng.choice(["argmax", "argmin"]))
        axis = None if self.rng.random() < 0.3 else int(self.rng.integers(0, value.ndim))
        if not value.size or value.dtype.kind == "b" or value.dtype == BFLOAT16:
            return None
        weft, numpy = getattr(ops, name), getattr(np, name)
        return Step(name, [a], lambda x: weft(x, axis), lambda x: numpy(x, axis))

    def variance(self):
        a = self.any()
        value, axis = self.values[a], int(self.rng.integers(0, self.values[a].ndim))
        if not value.size or value.dtype.kind == "b" or value.dtype.itemsize == 2:
            return None
        return Step("var", [a], lambda x: ops.var(x, axis), lambda x: np.var(x, axis))

    def aggregate(self):
        """A reduction by a monoid of several components, defined in the tests."""
        a = self.any()
        value = self.values[a]
        dim, keep = int(self.rng.integers(0, value.ndim)), bool(self.rng.random() < 0.4)
        if not value.size or value.dtype.kind == "b":
            return None
        if value.dtype.kind in "iu" and self.rng.random() < 0.3:
            return Step(
                "parity",
                [a],
                lambda x: ops.aggregate(x, PARITY, dim, keepdims=keep),
                lambda x: np.bitwise_xor.reduce(x, axis=dim, keepdims=keep),
            )
        if value.dtype.kind == "f" and value.shape[dim] > 1 and self.rng.random() < 0.5:
            name = str(self.rng.choice(["value", "place"]))
            return Step(
                f"two_largest {name}",
                [a],
                lambda x: ops.component(ops.aggregate(x, TWO_LARGEST, dim), name),
                lambda x: two_largest(x, dim)[name == "place"],
            )

        def spread(x):
            found = ops.aggregate(x, SPREAD, dim, keepdims=keep)
            return ops.component(found, "high") - ops.component(found, "low")

        return Step("spread", [a], spread, lambda x: np.ptp(x, axis=dim, keepdims=keep))

    def reshape(self):
        a = self.any()
        size, shape = self.values[a].size, []
        while size > 1 and len(shape) < 3:
            part = int(self.rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            shape.append(part)
            size //= part
        shape = (*shape, size)
        return Step("reshape", [a], lambda x: x.reshape(shape), lambda x: x.reshape(shape))

    def transpose(self):
        a = self.any()
        order = tuple(int(d) for d in self.rng.permutation(self.values[a].ndim))
        return Step("transpose", [a], lambda x: x.transpose(order), lambda x: x.transpose(order))

    def index(self):
        a = self.any()
        parts = []
        for size in self.values[a].shape:
            start = int(self.rng.integers(0, max(1, size)))
            step = int(self.rng.choice([1, 1, 2, -1]))
            if size and self.rng.random() < 0.2:
                parts.append(start)
            elif self.rng.random() < 0.5:
                parts.append(slice(None, None, step))
            else:
                parts.append(slice(start, None) if step > 0 else slice(start, None, -1))
        where = tuple(parts)
        return Step("index", [a], lambda x: x[where], lambda x: x[where])

    def concatenate(self):
        a = self.any()
        dim = int(self.rng.integers(0, self.values[a].ndim))
        return Step(
            "concatenate",
            [a, a],
            lambda x, y: ops.concatenate([x, y], dim),
            lambda x, y: np.concatenate([x, y], dim),
        )

    def cumsum(self):
        a = self.any()
        dim = int(self.rng.integers(0, self.values[a].ndim))
        return Step("cumsum", [a], lambda x: ops.cumsum(x, dim), lambda x: np.cumsum(x, dim))

    def sort(self):
        a = self.any()
        return Step("sort", [a], ops.sort, np.sort)

    def where(self):
        a = self.any(0)
        return Step(
            "where",
            [a, a],
            lambda x, y: ops.where(x > 0, x, y * 0),
            lambda x, y: np.where(x > 0, x, y * 0),
        )


KINDS = (
    *("arithmetic", "arithmetic", "arithmetic", "scalar", "relu", "softmax", "matmul", "matmul"),
    *("reduce", "reduce", "reshape", "reshape", "transpose", "index", "concatenate", "cumsum"),
    *("sort", "where", "quotient", "compared", "mean", "root"),
    *("place", "variance", "aggregate", "aggregate", "dropout", "uniform"),
)


def run_steps(program, inputs, between=lambda x: x):
    """The values of a program's outputs."""
    values = list(inputs)
    for step in program.steps:
        values.append(between(step.weft(*(values[n] for n in step.operands))))
    return [values[n] for n in program.outputs]


def sometimes_elsewhere(rng, mesh):
    """Now and then another sharding for a tensor."""

    def between(x):
        if rng.random() < 0.8:
            return x
        return x.with_sharding(random_spec(rng, mesh, x.shape, monoids=()))

    return between
