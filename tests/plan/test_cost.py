"""`propagate(graph, "cost")`: as few bytes as brute force, and never more than Shardy."""

from importlib import import_module

import numpy as np
import pytest
from benchmarks.conflict_programs import Program
from benchmarks.conflicts import Moved, measure, rows
from tests.plan.region_programs import Writer
from tests.runtime.test_programs import planned
from tests.trials import trials

from weft import Graph, Machine, Plan, WeftError, communication, ops, propagate, run, trace
from weft.interop.stablehlo import read
from weft.lang import Application, Value
from weft.plan.propagation.shardings import Meshes

build = import_module("weft.plan.searching.build")
strategy = import_module("weft.plan.searching.cost_strategy")

PROGRAMS = trials(40)
"""Programs compared with Shardy and with brute force: 40 in `make test`, 5,000 in `make fuzz`."""

RULES = ("user_priority", "op_priority", "aggressive", "basic")
SQUARE = '@m = <["x"=2, "y"=2]>'
LINE = '@m = <["x"=4]>'


def moved(graph, strategy="cost", machine=None):
    return sum(Plan.of(propagate(graph, strategy, machine), machine).received)


def sums(**shardings):
    """A product of which k is cut, added to what is cut by rows."""
    return trace(
        lambda x, w, b: x @ w + b,
        (8, 16),
        (16, 4),
        (8, 4),
        names=["x", "w", "b"],
        meshes=[LINE],
        shardings={name: f"<@m, {text}>" for name, text in shardings.items()},
    )


def returning(graph, text):
    """The graph with a sharding on its only output."""
    return Graph(
        graph.inputs, graph.applications, graph.outputs, graph.meshes, graph.shardings, {0: text}
    )


def test_bytes_equal_brute_force_and_never_exceed_shardy():
    found = [measure(seed) for seed in range(PROGRAMS)]
    assert all(one.cost == one.optimum for one in found)
    assert all(one.cost <= one.shardy for one in found)
    assert any(one.cost < one.shardy for one in found)
    assert any(one.optimum == 0 for one in found)
    mean = next(rows(found))
    assert mean.weft == 1.0
    assert mean.peer_value > 1.5


def test_benchmark_rows():
    found = [Moved(0, 0, 8, 0), Moved(10, 10, 20, 15), Moved(100, 110, 100, 100)]
    said = {row.name: row for row in rows(found)}
    assert (said["conflicts/mean"].weft, said["conflicts/mean"].peer_value) == (1.05, 1.5)
    assert said["conflicts/mean"].n == 2
    assert said["conflicts/sum"].peer_value == pytest.approx(120 / 110)
    assert said["conflicts/mean-greedy"].peer_value == 1.25
    assert said["conflicts/fewest"].weft == 2
    assert said["conflicts/fewest-shardy"].weft == 1
    assert said["conflicts/no-more-than-shardy"].weft == 2


def test_results_equal_numpy():
    for seed in range(PROGRAMS):
        program = Program(seed)
        graph = read(program.text)
        found = propagate(graph, strategy="cost")
        plan = Plan.of(found)
        plan.verify()
        assert Plan.from_json(plan.to_json()) == plan
        arrays = program.arrays()
        with communication() as counted:
            outputs = run(plan, dict(zip((v.name for v in graph.inputs), arrays)))
        for output, wanted in zip(outputs, program.run(arrays)):
            assert np.array_equal(np.asarray(output), wanted), f"seed {seed}\n{plan}"
        received = np.zeros(plan.mesh.size, int)
        for movement in counted.movements:
            received += movement.received
        assert tuple(received) == plan.received
        assert_agrees(graph, found)


def assert_agrees(graph, found):
    """What is written stands; closed dimensions are as they were."""
    meshes = Meshes(graph)
    pairs = [
        *((graph.values[name], text, found.specs[name]) for name, text in graph.shardings.items()),
        *(
            (graph.values[graph.outputs[place]], text, found.output_specs[place])
            for place, text in graph.output_shardings.items()
        ),
    ]
    for value, text, spec in pairs:
        written = meshes.parse(value, text)
        for said, have in zip(written.dim_specs, spec.dim_specs):
            assert have.axes[: len(said.axes)] == said.axes
            assert said.is_open or have.axes == said.axes
        assert spec.replicated_axes == written.replicated_axes


def test_cost_never_moves_more_than_other_strategies():
    for seed in range(trials(80)):
        _, graph, _ = planned(seed)
        if len(Meshes(graph).all[0].shape) < 3:
            assert moved(graph) <= min(moved(graph, rule) for rule in RULES), f"seed {seed}"


def test_cost_never_moves_more_with_regions():
    settled = 0
    for seed in range(trials(30)):
        graph = read(Writer(seed, meshes=seed % 4 == 3).text(1 + seed % 8))
        found = propagate(graph, "cost")
        settled += found.settled is not None
        try:
            usual = min(moved(graph, rule) for rule in RULES)
        except WeftError:  # on two meshes at once, or parts of what is cut
            continue
        assert sum(Plan.of(found).received) <= usual, f"seed {seed}"
        if not any(a.operator == "manual_computation" for a, _ in graph.walk()):
            Plan.of(found).verify()  # no executor runs those, so that nothing is proved
    assert settled > trials(30) // 2


def test_a_conflict_is_resolved_by_bytes():
    graph = sums(x='[{}, {"x"}]', b='[{"x"}, {}]')
    assert (moved(graph, "user_priority"), moved(graph)) == (1152, 384)
    found = propagate(graph, "cost")
    assert found.explain("x", 1)[1] == '  as written on x: <@m, [{}, {"x"}]>'
    text = "  chosen by cost: 384 B move, 1152 B as propagation would have it"
    assert found.explain("w", 0)[1] == text
    assert found.explain("b", 1) == ["b dimension 1 is not cut"]
    assert dict(found.partials["matmul"]) == {"x": "sum"}
    assert str(found.specs["w"]) == '<@m, [{"x", ?}, {?}]>'


def test_partial_sums_are_added_before_they_are_combined():
    graph = trace(
        lambda x, w, z, v: x @ w + z @ v,
        *[(8, 8)] * 4,
        names="xwzv",
        meshes=[LINE],
        shardings=dict.fromkeys("xz", '<@m, [{}, {"x"}]>')
        | dict.fromkeys("wv", '<@m, [{"x"}, {}]>'),
    )
    graph = returning(graph, "<@m, [{}, {}]>")
    usual, found = propagate(graph), propagate(graph, "cost")
    assert 2 * sum(Plan.of(found).received) == sum(Plan.of(usual).received)
    assert [dict(kept) for kept in found.settled.kept][2] == {"x": ("sum", (0, 1))}
    assert found.specs["matmul"].partial == {}
    assert Plan.of(found).specs["matmul"].partial == {"x": "sum"}


def test_ties_are_broken_by_work():
    graph = trace(lambda x, w: ops.relu(x @ w), (8, 4), (4, 8), names="xw", meshes=[SQUARE])
    found = propagate(graph, "cost")
    assert moved(graph) == 0
    assert [sum(map(len, placement.values())) for placement in found.placements] == [2, 2]


def test_ties_are_broken_by_time():
    free = trace(ops.relu, (8, 8), names="x", meshes=[SQUARE])
    graph = returning(free, '<@m, [{"x"}, {}]>')
    slow = Machine({"x": (1e-3, 1e6)}, flops={"float32": 1e9})
    assert moved(graph, "cost", slow) == moved(graph) == 0
    assert propagate(graph, "cost", slow).specs["x"].dim_specs[0].axes == ("x",)


def test_open_outputs_are_extended_and_closed_ones_are_not():
    def graph(text):
        said = {"x": '<@m, [{"y", "x"}, {}]>'}
        made = trace(ops.relu, (8, 8), names="x", meshes=[SQUARE], shardings=said)
        return returning(made, text)

    assert moved(graph('<@m, [{"y", ?}, {}]>')) == 0
    found = propagate(graph('<@m, [{"y", ?}, {}]>'), "cost")
    assert str(found.output_specs[0]) == '<@m, [{"y", "x", ?}, {}]>'
    closed = propagate(graph('<@m, [{"y"}, {}]>'), "cost")
    assert str(closed.output_specs[0]) == '<@m, [{"y"}, {}]>'
    assert moved(graph('<@m, [{"y"}, {}]>')) > 0


def test_members_of_a_group_share_a_sharding():
    group = Application("sharding_group", ("x",), (), {"group_id": 0})
    graph = Graph(
        inputs=[Value("x", (8, 8)), Value("z", (8, 8))],
        applications=[
            group,
            Application("sharding_group", ("z",), (), {"group_id": 0}),
            Application("tanh", ("x",), ("y",)),
            Application("tanh", ("z",), ("v",)),
        ],
        outputs=["y", "v"],
        meshes=[SQUARE],
        shardings={"y": '<@m, [{"x"}, {}]>', "v": '<@m, [{}, {"x"}]>'},
    )
    found = propagate(graph, "cost")
    assert found.specs["x"].dim_specs == found.specs["z"].dim_specs


@pytest.mark.slow
def test_wide_and_large_graphs_are_no_worse(monkeypatch):
    graphs = [read(Program(seed).text) for seed in range(20)]
    best = [moved(graph) for graph in graphs]
    usual = [min(moved(graph, rule) for rule in RULES) for graph in graphs]

    def give_up(*_):
        raise strategy.TooWideError

    monkeypatch.setattr(strategy, "exact_front", give_up)
    wide = [moved(graph) for graph in graphs]
    assert all(a <= b <= c for a, b, c in zip(best, wide, usual))
    monkeypatch.setattr(build, "LARGE", 0)
    monkeypatch.setattr(strategy, "LARGE", 0)
    large = [moved(graph) for graph in graphs]
    assert all(a <= b <= c for a, b, c in zip(best, large, usual))
    assert sum(large) < sum(usual)


def attention(mesh, **shardings):
    return trace(
        lambda q, k, v: ops.softmax(q @ k) @ v + q,
        *[(2, 4, 8, 8)] * 3,
        names="qkv",
        meshes=[mesh],
        shardings={name: f"<@m, {text}>" for name, text in shardings.items()},
    )


CUT = {"q": '[{"a"}, {}, {}, {"b"}]', "k": '[{}, {"a"}, {"b"}, {}]'}


def test_work_is_bounded_with_a_reason():
    """On many axes there are more placements than can be compared: fewer are, and it is said."""
    axes = ", ".join(f'"{name}"=2' for name in "abcdefghij")
    graph = attention(f"@m = <[{axes}]>", **CUT)
    mesh = propagate(graph).mesh
    assert build.ProblemBuilder(graph, mesh, None, True).work() > strategy.MAX_WORK
    found = propagate(graph, "cost")
    assert sum(Plan.of(found).received) <= min(moved(graph, rule) for rule in RULES)
    assert "operands that stay partial were not tried" in found.settled.reasons
    assert "not proved to be the fewest: operands that stay partial" in str(found.settled)


def test_fewer_options_never_move_more_than_other_strategies(monkeypatch):
    graph = attention('@m = <["a"=2, "b"=2]>', **CUT)
    best = propagate(graph, "cost")
    assert best.settled.reasons == ()
    usual = min(moved(graph, rule) for rule in RULES)
    for work in (50_000, 2_000, 0):
        monkeypatch.setattr(strategy, "MAX_WORK", work)
        found = propagate(graph, "cost")
        assert best.settled.received <= sum(Plan.of(found).received) <= usual

    def give_up(*_):
        raise strategy.TooWideError

    monkeypatch.setattr(strategy, "exact_front", give_up)
    assert "descent looks at some plans, not at all" in propagate(graph, "cost").settled.reasons


def test_without_a_single_mesh_it_is_the_best_other_strategy():
    plain = trace(lambda x: x + 1, (8,), names="x")
    assert propagate(plain, "cost") == propagate(plain)
    two = trace(
        lambda x: x + 1,
        (8,),
        names="x",
        meshes=[SQUARE, '@n = <["z"=2]>'],
        shardings={"x": '<@m, [{"x"}]>'},
    )
    assert propagate(two, "cost") == propagate(two)


def test_cost_may_have_a_plan_where_propagation_has_none():
    graph = trace(
        lambda x, z: x + z,
        (8,),
        (8,),
        names="xz",
        meshes=['@m = <["x"=2]>'],
        shardings={"add": '<@m, [{}], unreduced={"x"}>', "z": '<@m, [{"x"}]>'},
    )
    with pytest.raises(WeftError, match="only replicas can become parts"):
        moved(graph, "user_priority")
    found = propagate(graph, "cost")
    assert Plan.of(found).received == (16, 16)
    assert "no plan as propagation would have it" in str(found.settled)


def test_without_any_plan_it_is_user_priority():
    graph = Graph(
        [Value("x", (8,))],
        [],
        ["x"],
        ['@m = <["x"=2]>'],
        {"x": '<@m, [{"x"}]>'},
        {0: '<@m, [{}], unreduced={"x"}>'},
    )
    assert propagate(graph, "cost") == propagate(graph)


def test_an_unknown_strategy_is_refused():
    with pytest.raises(WeftError, match="there is no strategy 'price'") as error:
        propagate(sums(), "price")
    assert "user_priority and cost" in str(error.value.__notes__)


def test_a_machine_must_fit_the_mesh():
    with pytest.raises(WeftError, match='the machine has a link along axis "z"'):
        propagate(sums(), "cost", Machine({"z": (0.0, 1e9)}))
