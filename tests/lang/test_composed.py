"""Functions and methods under the names of NumPy and torch, eagerly and cut, against both."""

import numpy as np
import pytest
import torch

from weft import DeviceMesh, Plan, Tensor, WeftError, ops, propagate, run, trace

MESH = DeviceMesh("m", (2, 2), ("a", "b"))
X = np.arange(24, dtype="float32").reshape(4, 6) - 7.5

SAME = {
    "unsqueeze": (lambda x: ops.unsqueeze(x, -1), lambda x: x[..., None]),
    "unsqueeze method": (lambda x: x.unsqueeze(0), lambda x: x[None]),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1), lambda x: x),
    "flatten": (lambda x: x.flatten(), np.ravel),
    "flatten some": (lambda x: x.reshape(2, 2, 6).flatten(1), lambda x: x.reshape(2, 12)),
    "ravel": (ops.ravel, np.ravel),
    "moveaxis": (lambda x: ops.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), lambda x: x.T),
    "mT": (lambda x: x.mT, lambda x: x.T),
    "permute": (lambda x: x.permute(1, 0), lambda x: x.T),
    "roll": (lambda x: ops.roll(x, 2, 1), lambda x: np.roll(x, 2, 1)),
    "roll back": (lambda x: ops.roll(x, -1, 0), lambda x: np.roll(x, -1, 0)),
    "roll all": (lambda x: ops.roll(x, 5), lambda x: np.roll(x, 5)),
    "roll two": (lambda x: ops.roll(x, (1, 2), (0, 1)), lambda x: np.roll(x, (1, 2), (0, 1))),
    "tile": (lambda x: x.tile((2, 3)), lambda x: np.tile(x, (2, 3))),
    "tile ranks": (lambda x: ops.tile(x, (2, 1, 2)), lambda x: np.tile(x, (2, 1, 2))),
    "repeat": (lambda x: x.repeat(2, 1), lambda x: np.repeat(x, 2, 1)),
    "repeat flat": (lambda x: ops.repeat(x, 3), lambda x: np.repeat(x, 3)),
    "split": (lambda x: ops.concat(x.split(3, 1)[::-1], 1), lambda x: np.roll(x.reshape(4, 3, 2)[:, ::-1], 0, 1).reshape(4, 6)),  # noqa: E501
    "unstack": (lambda x: ops.unstack(x, 1)[2], lambda x: x[:, 2]),
    "expand": (lambda x: x.unsqueeze(0).expand(3, -1, 6), lambda x: np.stack([x] * 3)),
    "view": (lambda x: x.view(8, -1), lambda x: x.reshape(8, 3)),
    "bits": (lambda x: x.view("int32"), lambda x: x.view("int32")),
    "narrow bits": (lambda x: x.view("uint16"), lambda x: x.view("uint16")),
    "wide bits": (lambda x: x.view("uint64"), lambda x: x.view("uint64")),
    "bitcast": (lambda x: ops.bitcast(x, "uint8"), lambda x: x.view("uint8").reshape(4, 6, 4)),
    "clip": (lambda x: x.clip(-1, 2), lambda x: x.clip(-1, 2)),
    "round": (lambda x: x.round(), np.round),
    "take": (lambda x: x.take(ops.arange(1, 4), 1), lambda x: x[:, 1:4]),
    "tril": (ops.tril, np.tril),
    "triu": (lambda x: ops.triu(x, 1), lambda x: np.triu(x, 1)),
    "eye": (lambda x: x @ ops.eye(6), lambda x: x),
    "ones": (lambda x: x + ops.ones((4, 6)) + ops.zeros(6), lambda x: x + 1),
    "like": (lambda x: x + ops.full_like(x, 2) + ops.ones_like(x), lambda x: x + 3),
    "arange": (lambda x: x + ops.arange(6, dtype="float32"), lambda x: x + np.arange(6, dtype="f4")),  # noqa: E501
    "reciprocal": (ops.reciprocal, lambda x: 1 / x),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), lambda x: np.where(x > 0, np.float32(-1), x)),  # noqa: E501
    "count_nonzero": (lambda x: ops.count_nonzero(x > 0, 0), lambda x: np.count_nonzero(x > 0, 0)),
    "diff": (ops.diff, np.diff),
    "vecdot": (lambda x: ops.vecdot(x, x), lambda x: (x * x).sum(-1)),
    "log2": (lambda x: ops.log2(abs(x)), lambda x: np.log2(np.abs(x))),
    "trunc": (ops.trunc, np.trunc),
    "erfinv": (lambda x: ops.erfinv(x / 100), lambda x: torch.erfinv(torch.asarray(x) / 100).numpy()),  # noqa: E501
    "cat": (lambda x: ops.cat([x, x], 1), lambda x: np.concatenate([x, x], 1)),
    "cumulative_sum": (lambda x: ops.cumulative_sum(x, 1), lambda x: np.cumsum(x, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_names_of_numpy_and_torch(name):
    ours, theirs = SAME[name]
    expected = theirs(X)
    eager = ours(Tensor(X)).numpy()
    assert eager.dtype == expected.dtype
    assert np.allclose(eager, expected, rtol=1e-5)
    graph = trace(ours, X, names=["x"], meshes=[MESH], shardings={"x": '<@m, [{"a"}, {"b"}]>'})
    plan = Plan.of(propagate(graph))
    plan.verify()
    (made,) = run(plan, {"x": X})
    assert np.array_equal(made.numpy(), eager)


def test_created_arrays_are_tensors_outside_programs():
    assert ops.zeros((2, 3)).numpy().tolist() == [[0.0] * 3] * 2
    assert str(ops.full(3, 0.5)) == "float32[3]"
    assert str(ops.full(3, 0.5, "float64")) == "float64[3]"
    assert ops.full((), True).dtype == "bool"
    assert ops.arange(5, 0, -2).tolist() == [5, 3, 1]
    assert ops.eye(3, k=1).numpy().tolist() == np.eye(3, k=1).tolist()


def test_sizes_and_numbers_of_tensors():
    x = Tensor(X)
    assert (x.size, x.nbytes, x[0, 0].item()) == (24, 96, -7.5)
    assert x.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.bitcast(x, "bool"), "the bits of float32 cannot be read as bool"),
        (lambda x: ops.bitcast(x, "complex64"), "cannot be read as complex64"),
        (lambda x: ops.bitcast(x, "float64"), "expected a last dimension of size 2"),
        (lambda x: x[:, :5].view("float64"), "has no whole elements of float64 along its end"),
        (lambda x: x.split(5, 1), "axis 1 of size 6 cannot be split into 5 equal parts"),
        (lambda x: ops.moveaxis(x, (0, 0), (0, 1)), "cannot be moved"),
        (lambda x: x.flatten(1, 0), "expected start_dim <= end_dim"),
    ],
)
def test_errors(call, message):
    with pytest.raises(WeftError, match=message):
        call(Tensor(X))
