"""Pictures of plans: shardings, cuts, and what moves."""

import pytest

from weft import DeviceMesh, Plan, ShardingSpec, ops, propagate, trace
from weft.draw import SIZE_LIMIT, draw, to_text

MESH = DeviceMesh("m", (2, 4), ("dp", "tp"))


def planned(function, *shapes, mesh=MESH, **shardings):
    graph = trace(function, *shapes, meshes=[mesh], shardings=shardings)
    return Plan.of(propagate(graph))


def test_a_plan_is_drawn_with_its_cuts_and_the_bytes_that_move():
    plan = planned(lambda x, w: ops.relu(x @ w), (8, 16), (16, 4), x='<@m, [{"dp"}, {"tp"}]>')
    assert (
        to_text(draw(plan))
        == """\
2 applications on @m = <["dp"=2, "tp"=4]>, 768 B move in all
┌───────────────────┐ ┌───────────────────┐                       ┌────────────────────────────────┐
│ x: float32[8, 16] │ │ w: float32[16, 4] │╶╴ matmul ╶───────────▶│     matmul: float32[8, 4]      │
└───────────────────┘ └───────────────────┘  m: {"dp"}, k: {"tp"} └────────────────────────────────┘
  [{"dp"}, {"tp"}]      [{"tp"}, {}]                                [{"dp"}, {}], unreduced={"tp"}

┌────────────────────────────────┐             ┌─────────────────────┐
│     matmul: float32[8, 4]      │╶╴ relu ╶───▶│ relu: float32[8, 4] │
└────────────────────────────────┘  i0: {"dp"} └─────────────────────┘
  [{"dp"}, {}], unreduced={"tp"}    768 B move   [{"dp"}, {}]"""
    )


def test_reshards_of_outputs_are_notes():
    plan = planned(lambda x: x * 2, (8, 16), x='<@m, [{"dp"}, {}]>')
    wanted = (ShardingSpec.parse("<@m, [{}, {}]>", MESH),)
    plan = Plan(plan.graph, MESH, plan.specs, wanted, plan.placed)
    received = 8 * 4 * 16 * 4
    (name,) = plan.graph.outputs
    assert draw(plan).notes == (f"{name} is returned by all_gather: {received} B move",)


def test_a_mesh_name_with_a_comma_is_not_drawn_in_shardings():
    plan = planned(lambda x: x * 2, (8,), mesh=DeviceMesh("my, mesh", (2,), ("x",)))
    assert "\n  [{}]" in to_text(draw(plan))


@pytest.mark.parametrize("count", [1, 10, 11, 60])
def test_the_first_and_the_last_applications_of_a_long_program_are_drawn(count):
    def deep(x, w):
        for _ in range(count):
            x = x @ w
        return x

    plan = planned(deep, (64, 64), (64, 64), x='<@m, [{"dp"}, {"tp"}]>')
    html = plan._repr_html_()
    assert html.startswith("<svg")
    assert len(html) <= SIZE_LIMIT
    text = to_text(draw(plan))
    assert text.count("▶") == min(count, 10)
    assert (f"… {count - 10} applications between are not drawn" in text) == (count > 10)


def test_many_operands_are_counted():
    plan = planned(lambda *xs: ops.concatenate(xs, 0), *[(4,)] * 9)
    text = to_text(draw(plan))
    assert "+ 5 more" in text
    assert text.count("float32[4]") == 4
