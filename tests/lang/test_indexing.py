"""Indexing by integer arrays, equations and updates at places, against NumPy."""

import numpy as np
import pytest

from weft import DeviceMesh, Plan, Tensor, WeftError, ops, propagate, run, trace

MESH = DeviceMesh("m", (2, 3), ("x", "y"))
X = np.arange(35.0).reshape(7, 5)
CUBE = np.arange(120).reshape(4, 5, 6)
ROWS, COLUMNS = np.array([0, 1, -2]), np.array([[4], [-5]])


def everywhere(function, *arrays):
    """Return the results of a function: eager, of cut tensors, and of a plan."""
    cuts = '{"y"}', '{"x"}', "{}", "{}"
    specs = [f"<@m, [{', '.join(cuts[: a.ndim])}]>" for a in arrays]
    tensors = [Tensor(a) for a in arrays]
    yield function(*tensors).numpy()
    yield function(*(t.shard(MESH, s) for t, s in zip(tensors, specs))).numpy()
    names = [f"a{n}" for n in range(len(arrays))]
    graph = trace(function, *arrays, names=names, meshes=[MESH], shardings=dict(zip(names, specs)))
    plan = Plan.of(propagate(graph))
    plan.verify()
    (result,) = run(plan, dict(zip(names, arrays)))
    yield result.numpy()


def check(function, expected, *arrays):
    for found in everywhere(function, *arrays):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


KEYS = {
    "rows": (X, lambda x, i, j: x[i]),
    "columns": (X, lambda x, i, j: x[:, j]),
    "pairs": (X, lambda x, i, j: x[i, j]),
    "last": (CUBE, lambda x, i, j: x[..., i]),
    "apart": (CUBE, lambda x, i, j: x[i, :, j]),
    "a number and an array": (CUBE, lambda x, i, j: x[-1, :, i]),
    "with slices": (CUBE, lambda x, i, j: x[1:, i, None, ::-2]),
    "a list": (X, lambda x, i, j: x[[0, -1, 0]]),
    "nothing": (X, lambda x, i, j: x[[]]),
    "a number of numpy": (X, lambda x, i, j: x[np.int8(-1), np.array(2)]),
}


@pytest.mark.parametrize("key", KEYS)
def test_indices_are_numpys(key):
    x, function = KEYS[key]
    check(function, np.asarray(function(x, ROWS, COLUMNS)), x, ROWS, COLUMNS)


def test_negative_indices_count_from_the_end():
    check(lambda x, i: ops.take(x, i, axis=1), np.take(X, ROWS, axis=1), X, ROWS)
    check(lambda x, i: x.take(i), np.take(X, ROWS), X, ROWS)
    places = np.array([[0, -1], [4, -5]])
    along = np.take_along_axis(X[:2], places, 1)
    check(lambda x, i: ops.take_along_axis(x, i, 1), along, X[:2], places)
    clipped = np.take(X, [-3, 9], axis=0, mode="clip")
    check(lambda x, i: ops.take(x, i, axis=0, mode="clip"), clipped, X, np.array([-3, 9]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x[i, i],
        lambda x, i: ops.take(x, i, axis=0),
        ops.embedding,
        lambda x, i: ops.take_along_axis(x, i.reshape(-1, 1).expand(3, 5), 0),
    ],
)
@pytest.mark.parametrize("wrong", [7, -8])
def test_indices_outside_an_array_are_refused_when_the_program_runs(function, wrong):
    indices = np.array([0, wrong, 1])
    with pytest.raises(WeftError, match=f"index {wrong} is out of bounds"):
        function(Tensor(X), Tensor(indices))
    graph = trace(function, X, indices, names=["x", "i"])
    with pytest.raises(WeftError, match=f"index {wrong} is out of bounds"):
        run(Plan.of(propagate(graph, "basic")), {"x": X, "i": indices})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (X > 3, "cannot be indexed by a mask"),
        (True, "got 'True'"),
        (1.5, "got 1.5"),
        (slice(0.5), "slice indices must be integers"),
        (slice(None, None, 0), "slice step cannot be zero"),
        ([0.5], "indices are integers"),
        ([[1, 2], [3]], "rows of one length"),
        (([0, 1], [1, 2, 3]), "do not broadcast"),
        ((0, 0, 0), "an array of rank 2 cannot be indexed by"),
    ],
)
def test_invalid_indices_are_refused(key, message):
    with pytest.raises(WeftError, match=message):
        Tensor(X)[key]


EQUATIONS = {
    "ij,jk": [(3, 4), (4, 5)],
    "ba": [(3, 4)],
    "ij, jk -> ik": [(3, 4), (4, 5)],
    "...ij,...jk->...ik": [(2, 1, 4, 5), (3, 5, 2)],
    "...ij,...jk": [(1, 4, 5), (1, 5, 2)],
    "...ii->i...": [(2, 3, 3)],
    "i,": [(3,), ()],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations_are_numpys(equation):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, shape) for shape in EQUATIONS[equation]]
    expected = np.asarray(np.einsum(equation, *arrays))
    check(lambda *given: ops.einsum(equation, *given), expected, *arrays)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij->ii", "has a name twice in its result"),
        ("ijk->i", "has 'ijk' for an operand of rank 2"),
        ("ij,jk->ik", "is of 2 operands, got 1"),
    ],
)
def test_equations_that_do_not_fit_are_refused(equation, message):
    with pytest.raises(WeftError, match=message):
        ops.einsum(equation, Tensor(X))


def test_vecdot_conjugates_its_first_argument():
    x = X[:2] + 1j * X[2:4]
    check(ops.vecdot, np.vecdot(x, x[::-1]), x, x[::-1].copy())


def test_partial_results_without_elements_are_combined():
    """Nothing moves, but they are parts before and whole after."""
    check(lambda x: x.max(1).reshape(-1), np.zeros(0), X[:0])
