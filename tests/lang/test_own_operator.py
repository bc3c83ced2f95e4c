"""An operator that a user adds: a line and a kernel, proved, traced, propagated, run."""

import numpy as np
import pytest

import weft
from weft import Graph, WeftError, propagate
from weft.lang import OPERATORS, Application, Library, Operator, Value
from weft.runtime.validate import validate


def largest_gap(block, x):
    """The largest element of each row minus the smallest."""
    return block.xp.max(x, axis=-1) - block.xp.min(x, axis=-1)


def blend(block, x, y, a):
    """Something between two arrays, by a number for each row; `power` sharpens it."""
    a = block.xp.expand_dims(a, axis=1) ** block.attributes.get("power", 1)
    return a * x + (1 - a) * y


GAP = Operator("largest_gap", "m [k] -> m", largest_gap, flops=2)
BLEND = Operator(
    "blend",
    "m n, m n, m -> m n",
    blend,
    keeps={"sum": [(0, 1)]},
    flops=3,
    attributes={"power": int},
)


def some(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_user_operators_are_validated():
    assert validate(GAP, [some(7, 5)]).boxes > 8
    found = validate(BLEND, [some(7, 5), some(7, 5), some(7)], {"power": 2})
    assert found.partials == 1


def test_a_line_that_says_too_little_is_found():
    """Rows are seen whole; a line that lets them be cut is wrong, and so is a maximum of gaps."""
    for line in ("m k -> m  sum: k", "m k -> m  max: k"):
        with pytest.raises(WeftError, match="largest_gap is wrong where 'k' is cut into"):
            validate(Operator("largest_gap", line, largest_gap), [some(7, 5)])


def test_they_are_propagated():
    operators = Library(OPERATORS)
    operators.add(GAP)
    operators.add(BLEND)
    graph = Graph(
        inputs=[Value("x", (8, 6)), Value("y", (8, 6)), Value("a", (8,))],
        applications=[
            Application("blend", ("x", "y", "a"), ("z",), {"power": 2}),
            Application("largest_gap", ("z",), ("g",)),
        ],
        outputs=["g"],
        meshes=['@m = <["r"=2, "c"=3]>'],
        shardings={"x": '<@m, [{"r"}, {"c"}]>'},
        operators=operators,
    )
    found = propagate(graph)
    assert str(found.specs["y"]) == '<@m, [{"r", ?}, {"c", ?}]>'
    assert str(found.specs["a"]) == str(found.specs["g"]) == '<@m, [{"r", ?}]>'
    assert dict(found.placements[0]) == {"m": ("r",), "n": ("c",)}
    assert not found.partials


def test_a_taken_name_is_refused():
    with pytest.raises(WeftError, match="there already is an operator softmax"):
        OPERATORS.add(Operator("softmax", "m [k] -> m [k]"))


def test_they_are_functions_and_run_on_tensors(monkeypatch):
    monkeypatch.setitem(OPERATORS, "largest_gap", GAP)
    mesh = weft.DeviceMesh("m", (3,), ("r",))
    array = some(8, 6)
    tensor = weft.Tensor(array).shard(mesh, [weft.DimSpec(["r"]), weft.DimSpec([])])
    made = weft.ops.largest_gap(tensor)
    assert str(made.spec) == '<@m, [{"r"}]>'
    np.testing.assert_allclose(made.numpy(), np.ptp(array, axis=1))
