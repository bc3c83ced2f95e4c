"""Calls that do not fit: each is refused when it is made, with what would fit."""

import numpy as np
import pytest

from weft import Plan, Tensor, WeftError, ops, propagate, run, search, trace
from weft.lang import Value
from weft.layout import DeviceMesh

X = Tensor(np.ones((4, 6), "float32"))
IMAGE = Tensor(np.ones((2, 4, 5, 5)))
MESH = DeviceMesh("m", (2,), ("x",))
GRAPH = trace(lambda x, w: x @ w, (4, 6), (6, 3), meshes=[MESH])


def kernel(*shape):
    return Tensor(np.ones(shape))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.relu(X, X), "relu takes 1 operand, got 2"),
        (lambda: ops.where(X > 0), "select takes 3 operands, got 1"),
        (lambda: ops.multiply(X), "multiply takes 2 operands, got 1"),
        (lambda: ops.concatenate([]), "there are no arrays to concatenate"),
        (lambda: X.sum((0, -2)), r"axis \(0, -2\) names a dimension twice"),
        (lambda: ops.convolve(IMAGE, kernel(3, 2, 3, 3)), "of 4 channels and a kernel for 2"),
        (
            lambda: ops.convolve(IMAGE, kernel(4, 3, 3, 3), groups=2),
            r"4 channels and a kernel for 6: .* in 2 groups",
        ),
        (
            lambda: ops.convolve(IMAGE, kernel(3, 2, 3, 3), groups=2),
            "3 features are not a multiple of 2 groups",
        ),
        (
            lambda: ops.convolve(IMAGE, kernel(3, 4, 3, 3), bias=kernel(4)),
            r"a bias of shape \[4\] for 3 features",
        ),
        (lambda: ops.convolve(IMAGE, kernel(3, 4, 3)), "of one rank"),
        (lambda: ops.convolve(IMAGE, kernel(3, 4, 3, 3), strides=0), "numbers of at least 1"),
        (lambda: ops.convolve(IMAGE, kernel(3, 4, 3, 3), padding=(1,)), "1 numbers for 2"),
        (lambda: ops.convolve(IMAGE, kernel(3, 4, 3, 3), padding="same"), "got 'same'"),
        (lambda: ops.cholesky(X), r"cholesky takes square matrices, got \[4, 6\]"),
        (lambda: ops.correlate(X, X), "expected weights of rank 1"),
        (lambda: np.add.reduce(X), "np.add.reduce cannot be applied"),
        (lambda: np.exp(X, out=np.ones((4, 6))), "np.exp with out cannot be applied"),
        (lambda: np.exp2(X), "np.exp2 cannot be applied"),
        (lambda: Tensor([[1, 2], [3]]), "rows of one length"),
        (lambda: Tensor(None), "cannot be made of a NoneType"),
        (lambda: Tensor(np.ma.array([1, 2], mask=[0, 1])), "cannot be made of a masked array"),
        (lambda: trace(ops.relu, (3,), (4,), names=["x"]), "1 names for 2 inputs: x"),
        (lambda: Plan.of(GRAPH), "a plan follows from a propagation"),
        (lambda: propagate(lambda x: x), "propagate takes a graph"),
        (lambda: run(GRAPH, {}), "a plan follows from a propagation"),
        (lambda: run(propagate(GRAPH), [X]), "inputs are arrays by name, got a list"),
        (lambda: search(GRAPH, MESH, "h200"), "machine must be a Machine, got 'h200'"),
        (
            lambda: run(propagate(GRAPH), {"x": np.ones((4, 6)), "w": np.ones((6, 3))}),
            "input x: .* cannot have the dtype float64",
        ),
    ],
)
def test_calls_that_do_not_fit_are_refused(call, message):
    with pytest.raises(WeftError, match=message):
        call()


def test_functions_of_numpy_apply_operators():
    x = np.linspace(0.1, 2, 24, dtype="float32").reshape(4, 6)
    graph = trace(lambda x: np.maximum(np.arctan(x), np.abs(x) ** 0.5), x)
    (found,) = run(propagate(graph), {"x": x})
    np.testing.assert_allclose(found.numpy(), np.maximum(np.arctan(x), x**0.5), rtol=1e-6)
    assert (x - Tensor(x)).numpy().max() == 0


def test_names_of_operators_that_are_misspelt_are_guessed():
    with pytest.raises(AttributeError, match="did you mean layer_norm"):
        ops.layernorm


def test_names_that_are_given_count_for_values_too():
    assert trace(ops.relu, Value("old", (3,)), names=["new"]).inputs[0].name == "new"
    assert trace(ops.relu, Value("old", (3,))).inputs[0].name == "old"
