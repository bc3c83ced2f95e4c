"""`propagate` on graphs: specs, placements, partial results and reasons."""

import numpy as np
import pytest

from weft import Plan, Tensor, WeftError, run, trace
from weft.lang import Application, Graph, Library, Operator, Value
from weft.plan import propagate

OPERATORS = Library()
for operator in (
    Operator("matmul", "m k, k n -> m n  sum: k"),
    Operator("tanh", "m n -> m n", passes="both"),
    Operator("add", "m n, m n -> m n", passes="both"),
):
    OPERATORS.add(operator)


def mlp(**shardings):
    """y = tanh(x w1) w2: Megatron's column-then-row split is two annotations."""
    return Graph(
        inputs=[Value("x", (8, 16)), Value("w1", (16, 64)), Value("w2", (64, 16))],
        applications=[
            Application("matmul", ("x", "w1"), ("h",)),
            Application("tanh", ("h",), ("a",)),
            Application("matmul", ("a", "w2"), ("y",)),
            Application("add", ("y", "x"), ("z",)),
        ],
        outputs=["z"],
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings=shardings,
        operators=OPERATORS,
    )


def test_megatron_from_two_annotations():
    found = propagate(mlp(x='<@m, [{"dp"}, {}]>', w1='<@m, [{}, {"tp"}]>'))
    assert {name: str(spec) for name, spec in found.specs.items()} == {
        "x": '<@m, [{"dp"}, {}]>',
        "w1": '<@m, [{}, {"tp"}]>',
        "w2": '<@m, [{"tp", ?}, {?}]>',
        "h": '<@m, [{"dp", ?}, {"tp", ?}]>',
        "a": '<@m, [{"dp", ?}, {"tp", ?}]>',
        "y": '<@m, [{"dp", ?}, {?}]>',
        "z": '<@m, [{"dp", ?}, {?}]>',
    }
    assert dict(found.placements[2]) == {"m": ("dp",), "n": (), "k": ("tp",)}
    assert dict(found.partials) == {"y": {"tp": "sum"}}
    assert str(found.output_specs[0]) == '<@m, [{"dp", ?}, {?}]>'


def test_custom_reductions_are_not_partial():
    operators = Library({"fold": Operator("fold", "m k -> m  custom: k")})
    graph = Graph(
        inputs=[Value("x", (8, 16))],
        applications=[Application("fold", ("x",), ("y",))],
        outputs=["y"],
        meshes=['@m = <["dp"=2, "tp"=4]>'],
        shardings={"x": '<@m, [{"dp"}, {"tp"}]>'},
        operators=operators,
    )
    found = propagate(graph)
    assert str(found.specs["y"]) == '<@m, [{"dp", ?}]>'
    assert not found.partials


def test_explain_leads_back_to_the_annotation():
    found = propagate(mlp(x='<@m, [{"dp"}, {}]>', w1='<@m, [{}, {"tp"}]>'))
    assert found.explain("w2", 0) == [
        'w2 dimension 0 is cut by "tp"',
        "  through y = matmul(a, w2) from a dimension 1",
        "  through a = tanh(h) from h dimension 1",
        "  through h = matmul(x, w1) from w1 dimension 1",
        '  as written on w1: <@m, [{}, {"tp"}]>',
    ]
    assert found.explain("w2", 1) == ["w2 dimension 1 is not cut"]


def test_propagation_does_not_mutate_the_graph():
    graph = mlp(x='<@m, [{"dp"}, {}]>')
    before = str(graph)
    assert propagate(graph) == propagate(graph)
    assert str(graph) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: propagate(mlp(x='<@m, [{"dp"}]>')),
            "shardings.x: the sharding has 1 dimension and the array has 2",
        ),
        (
            lambda: propagate(mlp(x='<@m, [{"q"}, {}]>')),
            'shardings.x: axis "q" cuts dimension 0, but is not an axis of mesh @m',
        ),
        (lambda: propagate(mlp(), "bold"), "there is no strategy 'bold'"),
        (lambda: propagate(mlp()).explain("q", 0), "there is no value q in the graph"),
        (lambda: propagate(mlp()).explain("x", 2), "x has no dimension 2: its sharding is"),
    ],
)
def test_invalid_graphs_and_annotations_are_refused(call, message):
    with pytest.raises(WeftError) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("monoid", "whole"), [("", 10), ("max", 4), ("min", 1), ("prod", 24)])
def test_parts_of_an_input_are_combined_by_the_monoid_that_is_written(monoid, whole):
    text = f'<@m, [{{}}], unreduced={monoid}{{"x"}}>'
    mesh = '@m = <["x"=4]>'
    graph = trace(lambda a: a + a, (3,), meshes=[mesh], shardings={"a": text})
    plan = Plan.of(propagate(graph))
    assert str(plan.specs["a"]) == text
    parts = [np.full(3, n, "float32") for n in (1, 2, 3, 4)]
    (found,) = run(plan, {"a": Tensor.of_shards(parts, plan.specs["a"], (3,))})
    assert found.numpy().tolist() == [2.0 * whole] * 3
