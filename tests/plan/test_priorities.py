"""User priorities: which strategies use them."""

import pytest

from weft import Plan, propagate, trace

MESH = '@m = <["x"=2]>'


def result(strategy, rows, columns, function=lambda a, b: a + b, shapes=((8, 8), (8, 8))):
    """How the result lies of rows at one priority and columns at another."""
    said = {"a": f'<@m, [{{"x"}}{rows}, {{}}]>', "b": f'<@m, [{{}}, {{"x"}}{columns}]>'}
    graph = trace(function, *shapes, names=["a", "b"], meshes=[MESH], shardings=said)
    return [dim.axes for dim in Plan.of(propagate(graph, strategy)).outputs[0].dim_specs]


@pytest.mark.parametrize("strategy", ["user_priority", "cost"])
@pytest.mark.parametrize(("rows", "columns"), [("p1", ""), ("p2", "p1"), ("", "p1"), ("p1", "p3")])
def test_the_annotation_with_the_lower_priority_number_wins(strategy, rows, columns):
    expected = [("x",), ()] if rows < columns else [(), ("x",)]
    assert result(strategy, rows, columns) == expected
    large = ((8, 8), (8, 800)) if rows < columns else ((800, 8), (8, 8))
    assert result(strategy, rows, columns, lambda a, b: a @ b, large) == expected


@pytest.mark.parametrize("strategy", ["basic", "aggressive", "op_priority"])
def test_other_strategies_ignore_priorities(strategy):
    plain = result(strategy, "", "")
    for rows, columns in [("p1", ""), ("", "p1"), ("p2", "p1")]:
        assert result(strategy, rows, columns) == plain
