"""Operators that see a dimension whole: each has a staged form, or a reason in the docs."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.runtime import test_validate  # noqa: F401 - fills the cases
from tests.runtime.cases import CASES
from tests.trials import trials

from weft import DeviceMesh, Machine, ops, propagate, run, search, trace
from weft.lang import OPERATORS
from weft.lang.arithmetic import apply
from weft.lang.rewrite import REWRITES, rewrites_in, rewrites_of

PAGE = (Path(__file__).parent.parent.parent / "docs" / "language.md").read_text("utf-8")
CELLS = DeviceMesh("m", (8,), ("x",))
SIZE = 1 << 20
SMALL = 4
"""The words of a random key; no cell is too small for them."""


def rows(heading):
    """The operators in the first column of a table of the page, below a heading of its columns."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}


STAGED, NOT_STAGED = rows("| operator | staged form |"), rows("| operator | why |")


def sees_whole(name):
    """Whether an application among the cases has a dimension that cannot be cut."""
    for seed in range(20):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        line = OPERATORS[name].sign([tuple(x.shape) for x in operands], attributes)
        if any(line.sizes[dim] > SMALL for dim in line.fixed):
            return True
    return False


def is_shipped_with_a_kernel(name):
    """Other tests define operators of their own."""
    kernel = OPERATORS[name].kernel
    while hasattr(kernel, "func"):
        kernel = kernel.func
    return kernel is not None and kernel.__module__.startswith("weft.")


def test_every_operator_can_be_cut_or_the_docs_say_why():
    whole = {name for name in OPERATORS if name in CASES and sees_whole(name)}
    assert whole <= STAGED | NOT_STAGED
    assert OPERATORS.keys() >= NOT_STAGED
    assert not [name for name in OPERATORS.keys() - CASES.keys() if is_shipped_with_a_kernel(name)]


def test_operators_that_the_docs_call_staged_have_rewrites():
    for name in STAGED - {"topk", "convolution"}:
        assert rewrites_of(name), name
    known = {rewrite.pattern[0] for rewrite in REWRITES}
    assert {"layer_norm", "rms_norm", "cumsum", "sort", "log_softmax", "concatenate"} <= known


FUNCTIONS = {
    "softmax": ops.softmax,
    "log_softmax": ops.log_softmax,
    "logsumexp": lambda x: ops.logsumexp(x, 1),
    "layer_norm": ops.layer_norm,
    "rms_norm": ops.rms_norm,
    "cumsum": lambda x: ops.cumsum(x, 1),
    "cumsum, reversed": lambda x: ops.cumsum(x, 1, reverse=True),
    "sort": ops.sort,
    "topk": lambda x: ops.topk(x, 100),
    "argmax": lambda x: ops.argmax(x, 1),
    "argmin": lambda x: ops.argmin(x, 1),
    "median": lambda x: ops.median(x, 1),
    "quantile": lambda x: ops.quantile(x, [0.1, 0.999], 1),
    "var": lambda x: ops.var(x, 1),
    "concatenate": lambda x: ops.concatenate([x[:, : SIZE // 4], x[:, SIZE // 4 : SIZE // 2]], 1),
    "fft": lambda x: ops.fft(x, fft_length=(SIZE,)),
    "convolution": lambda x: ops.correlate(x, x[0, :5], 1),
}


FEW = ("layer_norm", "cumsum", "sort", "topk", "argmax")
SOME = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in FUNCTIONS]


@pytest.mark.parametrize("name", SOME)
def test_eight_cells_have_a_plan_for_eight_times_their_memory(name):
    """An array of 4 MB on cells of 3 MB, which none of them can hold with its result."""
    graph = trace(FUNCTIONS[name], (1, SIZE), names=["x"])
    capacity = 6_000_000 if name == "fft" else 3_000_000  # complex numbers have twice the bytes
    plan = search(graph, CELLS, Machine(capacity=capacity)).plans[0]
    assert max(plan.peak) <= capacity
    plan.verify()


@pytest.mark.parametrize("name", ["sort", "cumsum", "log_softmax", "layer_norm"])
def test_plans_of_staged_operators_equal_numpy(name):
    x = np.random.default_rng(0).normal(size=(1, 1 << 14)).astype("float32")
    graph = trace(FUNCTIONS[name], x.shape, names=["x"])
    (found,) = run(search(graph, CELLS, Machine(capacity=48_000)).plans[0], {"x": x})
    e = np.exp(x.astype("float64") - x.max())
    wanted = {
        "sort": np.sort(x),
        "cumsum": np.cumsum(x.astype("float64"), 1),
        "log_softmax": np.log(e / e.sum()),
        "layer_norm": (x - x.mean()) / np.sqrt(x.var() + 1e-5),
    }
    np.testing.assert_allclose(found.numpy(), wanted[name], rtol=1e-4, atol=1e-3)


def test_columnsort_sorts_whatever_the_size():
    for seed in range(trials(100)):
        rng = np.random.default_rng(seed)
        blocks, size = int(rng.integers(2, 9)), int(rng.choice([rng.integers(4, 40), 100, 257]))
        dtype = str(rng.choice(["float32", "int8", "uint16", "bool", "float16"]))
        x = rng.integers(0, 2 if dtype == "bool" or size % 2 else 100, (size, 2)).astype(dtype)
        if dtype == "float32":
            x[rng.random(x.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
        order = str(rng.choice(["LT", "GT"]))
        graph = trace(
            lambda v, order=order: apply("sort", v, dimension=0, comparison_direction=order),
            x,
            names=["v"],
            meshes=[CELLS],
        )
        rewrite = next(r for r in rewrites_in(blocks) if r.name == "sort in columns")
        (found,) = run(propagate(rewrite.apply(graph, "sort")), {"v": x})
        wanted = np.sort(x, axis=0)[:: 1 if order == "LT" else -1]
        np.testing.assert_array_equal(found.numpy(), wanted, f"seed {seed}")
