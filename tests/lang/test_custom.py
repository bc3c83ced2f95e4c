"""Custom calls, edges and rules that an author wrote: those of Shardy, inside jaxlib."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lang.test_rules import Case, rule_of_shardy, shapes, spelled
from tests.plan.programs import run_pass

from weft import WeftError
from weft.interop.stablehlo import opaque, read
from weft.lang import OPERATORS, Operator, Signature, factor_rule
from weft.lang.rule import written_rule
from weft.plan import propagate

ALIKE = [
    "custom_call @annotate_device_placement",
    "custom_call @Cholesky",
    "custom_call @CompactWyHelper",
    "custom_call @InspectSharding",
    "custom_call @InvertDiagBlocksLowerTriangular",
    "custom_call @InvertDiagBlocksUpperTriangular",
    "custom_call @LayoutConstraint",
    "custom_call @MoveToDevice",
    "custom_call @MoveToHost",
    "custom_call @X64Combine",
    "custom_call @X64SplitHigh",
    "custom_call @X64SplitLow",
    "custom_call @mhlo.erf",
    "custom_call @xla.megascale.provide_metadata",
]
AROUND = ["while", "case", "if", "manual_computation", "optimization_barrier", "data_flow_edge"]
AROUND += ["propagation_barrier", "sharding_group"]
"""These have no rule, but edges: `tests/plan/test_regions.py` compares what they do."""


def check(name, given, made):
    target = name.removeprefix("custom_call @")
    signature = OPERATORS[name].sign(given, {"result_shapes": made})
    assert signature.result_shapes == tuple(made)
    case = Case("custom_call", given, {}, f'call_target_name = "{target}"')
    ours, theirs = spelled(factor_rule(signature)), rule_of_shardy(case, tuple(made))
    assert ours.canonical() == theirs.canonical(), f"{signature}\n{theirs}"


@pytest.mark.parametrize("name", ALIKE)
@given(shapes(1), st.integers(1, 2))
def test_operands_and_results_of_one_shape(name, shape, operands):
    check(name, [shape] * operands, [shape])


def squares(least=1):
    return st.tuples(shapes(0, 2), st.integers(least, 6), st.integers(least, 6))


@given(squares())
def test_decompositions(drawn):
    batch, m, n = drawn
    check("custom_call @Eigh", [(*batch, m, m)], [(*batch, m, m), (*batch, m)])
    for name in ("custom_call @Qr", "custom_call @QrDecompositionBlock"):
        check(name, [(*batch, m, n)], [(*batch, m, n), (*batch, min(m, n))])
    householder = "custom_call @ProductOfElementaryHouseholderReflectors"
    check(householder, [(*batch, m, n), (*batch, min(m, n))], [(*batch, m, n)])


@given(shapes(1, 3), st.data())
def test_top_k(shape, data):
    k = data.draw(st.integers(1, shape[-1]))
    made = [(*shape[:-1], k)] * 2
    check("custom_call @mhlo.topk", [shape], made)
    for name in ("custom_call @ApproxTopK", "custom_call @PartialReduce"):
        check(name, [shape, shape, (), ()], made)


def test_the_state_of_a_random_generator_is_not_cut():
    text = """
    sdy.mesh @m = <["x"=2]>
    func.func @main(%a: tensor<2xui32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>},
                    %b: tensor<2xui32>) -> (tensor<2xui64>, tensor<8xui32>) {
      %0 = stablehlo.custom_call @X64Combine(%a, %b)
        : (tensor<2xui32>, tensor<2xui32>) -> tensor<2xui64>
      %1, %2 = stablehlo.rng_bit_generator %0, algorithm = THREE_FRY
        : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8xui32>)
      return %1, %2 : tensor<2xui64>, tensor<8xui32>
    }"""
    found = propagate(read(text))
    theirs = read(run_pass(text, "sdy-user-priority-propagate")).shardings
    assert str(found.specs["0"]) == "<@m, [{?}]>"
    assert "0" not in theirs
    assert str(found.specs["arg1"]) == "<@m, [{?}]>"


def call(target, more=""):
    return read(f"""
    sdy.mesh @m = <["x"=2]>
    func.func @main(%a: tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}})
            -> tensor<8x4xf32> {{
      %0 = stablehlo.custom_call @{target}(%a) {more} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32>
    }}""")


def test_an_unknown_target_is_opaque():
    graph = call("mystery")
    assert opaque(graph) == ["custom_call @mystery"]
    assert str(propagate(graph).specs["0"]) == "<@m, [{?}, {?}]>"


def test_a_user_defines_a_target(monkeypatch):
    monkeypatch.setitem(OPERATORS, "custom_call @mine", Operator("mine", "m n -> m n"))
    graph = call("mine")
    assert not opaque(graph)
    assert str(propagate(graph).specs["0"]) == '<@m, [{"x", ?}, {?}]>'


RULE = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=4}, custom>"


def test_a_rule_that_the_author_wrote_counts():
    graph = call("mystery", f"{{sdy.sharding_rule = {RULE}}}")
    assert graph.applications[0].attributes["sdy.sharding_rule"] == RULE
    found = propagate(graph)
    assert str(found.specs["0"]) == '<@m, [{"x", ?}, {?}]>'
    assert dict(found.placements[0]) == {"i": ("x",), "j": ()}


def test_a_written_reduction_leaves_a_partial_sum():
    text = """
    sdy.mesh @m = <["x"=2]>
    func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>})
            -> tensor<4xf32> {
      %0 = stablehlo.custom_call @mystery(%a) {sdy.sharding_rule =
        #sdy.op_sharding_rule<([i, j])->([j]) {i=8, j=4} reduction={i}, custom>}
        : (tensor<8x4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    assert {n: dict(p) for n, p in propagate(read(text)).partials.items()} == {"0": {"x": "sum"}}


LINE = Signature.of("[a] [b] -> [c] [d]", [(8, 6)], {"c": 6, "d": 8})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<([i, j])->([j, i]) {i=8}>", "column 1: the factor 'j' has no size"),
        ("<([i, j])->([j, i]) {i=8, j=5}>", "the rule gives operand 0 the shape [8, 5]"),
        ("<([i, j])->([i, j]) {i=8, j=6}>", "the rule gives result 0 the shape [8, 6]"),
        ("<([i, j], [i])->([j, i]) {i=8, j=6}>", "the rule has 2 operands where there are 1"),
        ("<([i, j])->([j, i]) {i=8, j=6} sum={i}>", "column 32: 'sum' is not a kind of factor"),
        ("<([i, 2])->([j, i]) {i=8, j=6}>", "column 7: expected a name, found '2'"),
        ("<([i, J])->([j, i]) {i=8, j=6}>", "column 7: 'J' is not a row of factors"),
        ("<([i, j])->([j, i]) {i=8, j=6}, own>", "column 33: expected 'custom'"),
        ("([i, j])->([j, i])", "column 1: expected '<'"),
    ],
)
def test_invalid_rules_are_refused(text, message):
    with pytest.raises(WeftError) as caught:
        written_rule(text, LINE)
    assert str(caught.value).startswith(message)


def test_a_rule_is_read_as_it_is_written():
    text = (
        "#sdy.op_sharding_rule<([ij, z_1])->([z_1, ij]) {i=2, j=4, z_1=6} reduction={} "
        "need_replication={i} permutation={j} blocked_propagation={z_1}, is_custom>"
    )
    rule = written_rule(text, LINE)
    assert rule.operands == (((0, 1), (3,)),)
    assert rule.results == (((4,), (0, 1)),)
    assert rule.kinds == ("whole", "permuted", "parallel", "parallel", "parallel")
    assert rule.sizes == (2, 4, 6, 6, 6)


def test_rules_of_shardy_are_read_back():
    """For random shapes, Shardy prints the rule of the operator's line."""
    rng = random.Random(1)
    for _ in range(50):
        m, k, n = (rng.choice([2, 3, 4, 6]) for _ in range(3))
        line = Signature.of("m k, k n -> m n  sum: k", [(m, k), (k, n)])
        text = f"<([i, k], [k, j])->([i, j]) {{i={m}, j={n}, k={k}}} reduction={{k}}>"
        ours, said = factor_rule(line), written_rule(text, line)
        assert (said.operands, said.results) == (ours.operands, ours.results)
        assert (said.sizes, said.kinds) == (ours.sizes, ours.kinds)
