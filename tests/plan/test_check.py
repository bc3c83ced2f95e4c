"""Certificates: those of plans are accepted, and whatever is changed in them is refused."""

import ast
import copy
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import weft.plan.check
from tests.plan.test_trips import constant
from weft.plan.check import CertificateError, check

import weft.plan.placed
from weft import DeviceMesh, Plan, ShardingSpec, WeftError, ops, propagate, run, trace
from weft.lang import Application, Graph, Library, Operator, Value
from weft.lang.definition import define
from weft.plan.placed import place
from weft.values import FrozenMap

MESH = DeviceMesh("m", (2, 2), ("x", "y"))
LINE = DeviceMesh("m", (2,), ("x",))


def block(a, w1, w2, bias):
    h = ops.relu(a @ w1)
    return ops.linear(h, w2, bias).sum(0) - bias, ops.softmax(h)[1:, ::2]


def certificate():
    graph = trace(
        block,
        (8, 6),
        (6, 12),
        (12, 4),
        (4,),
        meshes=[MESH],
        shardings={"a": '<@m, [{"x"}, {}]>', "w1": '<@m, [{}, {"y"}]>'},
    )
    return Plan.of(propagate(graph)).verify()


def entries(data, kind):
    return [entry for entry in data["entries"] if entry["kind"] == kind]


def applied(data, operator):
    return next(e for e in entries(data, "apply") if e["operator"] == operator)


def test_the_checker_is_independent():
    source = Path(weft.plan.check.__file__).read_text(encoding="utf-8")
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("weft")
    }
    assert imported == {"weft.errors", "weft.space"}


def test_a_certificate_tells_the_whole_story():
    data = certificate()
    kinds = {entry["kind"] for entry in data["entries"]}
    assert kinds == {"input", "move", "mask", "keep", "apply"}
    covers = {entry["operator"]: entry["cover"] for entry in data["applications"]}
    assert covers["linear"] == {"boxes": 4, "parts": 2}
    check(data)
    check(data, data["graph"])


# Certificates that were changed.


def change_layout(data, entry, **fields):
    """Give an entry a layout of its own."""
    data["layouts"].append(copy.deepcopy(data["layouts"][entry["layout"]]))
    data["layouts"][-1].update(fields)
    entry["layout"] = len(data["layouts"]) - 1


def change_piece(entry):
    piece = next(p for p in entry["pieces"] if p[3][0] > p[2][0] + 1)
    piece[3][0] -= 1


def combining(data):
    return next(entry for entry in entries(data, "move") if entry["monoids"])


def split_parts(data):
    """The parts of a box no longer come one after another: a run would not combine them."""
    pieces = combining(data)["pieces"]
    pieces.sort(key=lambda piece: piece[0])


def relabel(data):
    """All parts of a sum relabelled as parts of a maximum, consistently."""
    for layout in data["layouts"]:
        layout["parts"] = [[size, "max"] for size, _ in layout["parts"]]
    for entry in data["entries"]:
        if "monoids" in entry:
            entry["monoids"] = ["max" for _ in entry["monoids"]]
        if "masked" in entry:
            entry["masked"] = [monoid and "max" for monoid in entry["masked"]]


def swap(data):
    applied(data, "subtract")["operands"].reverse()


def change_leader(data):
    data["entries"][data["entries"].index(applied(data, "linear"))]["leaders"] = [0, 0, 0, 0]


def first_box(data):
    entry = entries(data, "input")[0]
    boxes = copy.deepcopy(data["layouts"][entry["layout"]]["boxes"])
    boxes[0][1][0] -= 1
    change_layout(data, entry, boxes=boxes)


MUTATIONS = {
    "an input that is not all there": first_box,
    "a piece that is lost": lambda d: entries(d, "move")[0]["pieces"].pop(),
    "a piece twice": lambda d: entries(d, "move")[0]["pieces"].append(
        entries(d, "move")[0]["pieces"][0]
    ),
    "a piece too small": lambda d: change_piece(entries(d, "move")[0]),
    "a piece of another cell": lambda d: entries(d, "move")[0]["pieces"][0].__setitem__(0, 3),
    "a piece to no cell": lambda d: entries(d, "move")[0]["pieces"][0].__setitem__(1, 7),
    "parts of a box apart": split_parts,
    "parts combined by another monoid": lambda d: combining(d).update(monoids=["max"]),
    "a sum relabelled as a maximum": relabel,
    "a bias twice": lambda d: entries(d, "mask")[0].update(masked=[""] * 4),
    "a bias never": lambda d: entries(d, "mask")[0].update(masked=["sum"] * 4),
    "a bias masked by a maximum": lambda d: entries(d, "mask")[0].update(
        masked=[monoid and "max" for monoid in entries(d, "mask")[0]["masked"]]
    ),
    "a bias that some copies lack": lambda d: entries(d, "mask")[0]["masked"].__setitem__(
        entries(d, "mask")[0]["masked"].index(""), "sum"
    ),
    "no parts": lambda d: change_layout(d, applied(d, "linear")["results"][0], parts=[]),
    "operands of a difference swapped": swap,
    "another operand": lambda d: applied(d, "subtract")["operands"].__setitem__(0, "bias"),
    "an operand too few": lambda d: applied(d, "linear")["operands"].pop(),
    "another operator": lambda d: applied(d, "subtract").update(operator="add"),
    "another attribute": lambda d: applied(d, "sum_dim").update(attributes={"dimensions": [1]}),
    "a relu that stays partial": lambda d: applied(d, "relu")["kept"].append(
        ["sum", [0], [0, 1, 0, 1]]
    ),
    "computed by a cell with another box": change_leader,
    "an output that is missing": lambda d: d["outputs"].append({"state": "no", "layout": 0}),
    "an output that is another value": lambda d: d["outputs"][0].update(d["outputs"][1]),
    "an entry of no kind": lambda d: d["entries"][0].update(kind="wish"),
    "no entries": lambda d: d["entries"].clear(),
    "a layout that is not there": lambda d: d["entries"][0].update(layout=10**6),
    "a field of another type": lambda d: d["entries"][0].update(layout=None),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_what_is_changed_is_refused(what):
    data = copy.deepcopy(certificate())
    MUTATIONS[what](data)
    with pytest.raises(CertificateError):
        check(data)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("reduced", lambda space: space["reduced"].clear()),
        ("reduced", lambda space: space["reduced"][0].__setitem__(1, "max")),
        ("once", lambda space: space["once"].clear()),
        ("whole", lambda space: space["whole"].append(2)),
        ("reads", lambda space: space["reads"][0]["matrix"][0].reverse()),
        ("makes", lambda space: space["makes"][0]["matrix"][0].reverse()),
        ("sizes", lambda space: space["sizes"].__setitem__(0, 9)),
    ],
)
def test_a_certificate_is_of_one_graph_only(field, change):
    data = copy.deepcopy(certificate())
    (linear,) = [a for a in data["graph"]["applications"] if a["operator"] == "linear"]
    assert field in linear["space"]
    change(linear["space"])
    with pytest.raises(CertificateError):
        check(data)


def test_errors_name_the_entry_and_the_box():
    data = copy.deepcopy(certificate())
    change_piece(entries(data, "move")[-1])
    with pytest.raises(CertificateError, match=r"entry \d+, move .*: cell \d gets .* gap \["):
        check(data)


def corners_of(data):
    """The corners of every box that somebody holds, computes or sends."""
    found = [corner for layout in data["layouts"] for box in layout["boxes"] for corner in box]
    for entry in data["entries"]:
        found += [corner for piece in entry.get("pieces", []) for corner in piece[2:4]]
    return [corner for corner in found if corner]


def test_no_changed_box_goes_unnoticed():
    """The boxes are what is proved: move a side of any of them, and the proof is refused."""
    original = certificate()
    rng = np.random.default_rng(0)
    count = len(corners_of(original))
    for _ in range(200):
        data = copy.deepcopy(original)
        corner = corners_of(data)[int(rng.integers(count))]
        corner[int(rng.integers(len(corner)))] += int(rng.choice([-1, 1]))
        with pytest.raises(CertificateError):
            check(data)


# Plans that compute something else.


def planned(function, *shapes, shardings, mesh=LINE, **more):
    graph = trace(function, *shapes, meshes=[mesh], shardings=shardings, **more)
    return Plan.of(propagate(graph))


def test_a_relu_of_a_partial_sum_is_refused():
    plan = planned(
        lambda a, b: ops.relu(a @ b), (4, 6), (6, 4), shardings={"a": '<@m, [{}, {"x"}]>'}
    )
    (product, relu), sums = plan.placed, plan.placed[0].results[0]
    kept = place(LINE, relu.signature, {}, {"x": ("sum", (0,))})
    specs = {**plan.specs, "matmul": sums, "relu": kept.results[0]}
    wrong = replace(plan, placed=(product, kept), specs=FrozenMap(specs.items()))
    a, b = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    (found,) = run(wrong, {"a": a, "b": b.T.copy()})
    assert np.abs(found.numpy() - np.maximum(a @ b.T, 0)).max() > 0.1
    with pytest.raises(CertificateError, match="does not distribute over sum"):
        wrong.verify()


def test_swapped_operands_are_refused():
    plan = planned(lambda a, b: a - b, (4,), (4,), shardings={"a": '<@m, [{"x"}]>'})
    (difference,) = plan.graph.applications
    turned = Graph(
        plan.graph.inputs, [difference._replace(operands=("b", "a"))], plan.graph.outputs
    )
    assert plan.verify(plan.graph)
    with pytest.raises(CertificateError, match="operand 0 is b where the graph has a"):
        replace(plan, graph=turned).verify(plan.graph)


def test_parts_of_a_sum_relabelled_are_refused():
    plan = planned(lambda a: a.sum(0), (4, 6), shardings={"a": '<@m, [{"x"}, {}]>'})
    (placed,) = plan.placed
    maxima = ShardingSpec.parse('<@m, [{}], unreduced=max{"x"}>', LINE)
    wrong = replace(plan, placed=(replace(placed, results=(maxima,)),))
    with pytest.raises(CertificateError, match="are by max, not sum"):
        wrong.verify()


def loop_plan(shardings, strategy="user_priority"):
    """Three times `y = y @ w + c`, with `w` and a sum `c` from outside."""
    less = {"comparison_direction": "LT"}
    condition = Graph(
        [Value("c/i", (), "int32"), Value("c/y", (4, 4))],
        [constant("c/n", 3), Application("compare", ("c/i", "c/n"), ("c/p",), less)],
        ["c/p"],
    )
    body = Graph(
        [Value("b/i", (), "int32"), Value("b/y", (4, 4)), Value("w", (4, 4)), Value("c", (4, 4))],
        [
            constant("b/one", 1),
            Application("add", ("b/i", "b/one"), ("b/j",)),
            Application("matmul", ("b/y", "w"), ("b/z",)),
            Application("add", ("b/z", "c"), ("b/u",)),
        ],
        ["b/j", "b/u"],
    )
    graph = Graph(
        [Value("y", (4, 4)), Value("w", (4, 4)), Value("a", (4, 6)), Value("b", (6, 4))],
        [
            constant("i", 0),
            Application("matmul", ("a", "b"), ("c",)),
            Application("while", ("i", "y", "w", "c"), ("i'", "y'"), {}, (condition, body)),
        ],
        ["y'"],
        meshes=[str(LINE)],
        shardings=shardings,
    )
    return Plan.of(propagate(graph, strategy))


def loop_inputs():
    rng = np.random.default_rng(0)
    shapes = {"y": (4, 4), "w": (4, 4), "a": (4, 6), "b": (6, 4)}
    return {name: rng.integers(-2, 3, shape).astype("float32") for name, shape in shapes.items()}


def looped(y, w, a, b):
    for _ in range(3):
        y = y @ w + a @ b
    return y


@pytest.mark.parametrize("strategy", ["user_priority", "cost"])
def test_a_loop_may_take_a_sum_whose_terms_lie_apart(strategy):
    """What a body takes from outside is finished first: its plan knows it as finished."""
    plan = loop_plan({"a": '<@m, [{}, {"x"}]>', "y": '<@m, [{"x"}, {}]>'}, strategy)
    plan.verify()
    (found,) = run(plan, loop_inputs())
    np.testing.assert_array_equal(found.numpy(), looped(**loop_inputs()))


def with_region(plan, place, **fields):
    """The plan of a loop with something else in its condition, 0, or its body, 1."""
    (number,) = plan.regions
    inner = list(plan.regions[number])
    inner[place] = replace(inner[place], **fields)
    return replace(plan, regions=FrozenMap([(number, tuple(inner))]))


def with_spec(specs, name, text):
    return FrozenMap({**specs, name: ShardingSpec.parse(text, LINE)}.items())


ROWS, COLUMNS, SUMS = '<@m, [{"x"}, {}]>', '<@m, [{}, {"x"}]>', '<@m, [{}, {}], unreduced={"x"}>'


@pytest.mark.parametrize("text", [ROWS, COLUMNS, SUMS])
def test_a_body_that_assumes_another_sharding_of_what_it_captures_is_refused(text):
    plan = loop_plan({"y": ROWS})
    body = plan.regions[2][1]
    wrong = with_region(plan, 1, specs=with_spec(body.specs, "w", text))
    with pytest.raises(CertificateError, match="what the region is given as w"):
        wrong.verify()


@pytest.mark.parametrize("text", [COLUMNS, "<@m, [{}, {}]>"])
def test_a_body_that_returns_another_sharding_than_it_carries_is_refused(text):
    plan = loop_plan({"y": ROWS})
    outputs = (plan.regions[2][1].outputs[0], ShardingSpec.parse(text, LINE))
    with pytest.raises(CertificateError, match="what the body returns as value 1"):
        with_region(plan, 1, outputs=outputs).verify()


def test_a_condition_that_assumes_another_sharding_is_refused():
    plan = loop_plan({"y": ROWS})
    condition = plan.regions[2][0]
    wrong = with_region(plan, 0, specs=with_spec(condition.specs, "c/y", COLUMNS))
    with pytest.raises(CertificateError, match="what the region is given as c/y"):
        wrong.verify()


def test_a_condition_on_which_cells_disagree_is_refused():
    plan = loop_plan({"y": ROWS})
    apart = (ShardingSpec.parse('<@m, [], unreduced=or{"x"}>', LINE),)
    with pytest.raises(CertificateError, match="cells may disagree on whether the loop goes on"):
        with_region(plan, 0, outputs=apart).verify()


def test_the_reshards_around_a_loop_are_proved():
    plan = loop_plan({"y": ROWS, "y'": "<@m, [{}, {}]>", "w": "<@m, [{}, {}]>"})
    body = plan.regions[2][1]
    inside = with_spec(body.specs, "b/y", COLUMNS)
    condition = plan.regions[2][0]
    outputs = (body.outputs[0], ShardingSpec.parse(COLUMNS, LINE))
    moved = with_region(plan, 1, specs=inside, outputs=outputs)
    moved = with_region(moved, 0, specs=with_spec(condition.specs, "c/y", COLUMNS))
    moved.verify()
    (found,) = run(moved, loop_inputs())
    np.testing.assert_array_equal(found.numpy(), looped(**loop_inputs()))
    for name in ("entry", "exit"):
        reshards = moved.loop_reshards[2]
        ways = tuple(replace(way, steps=()) for way in getattr(reshards, name))
        assert ways != getattr(reshards, name)
        wrong = replace(moved)
        wrong.__dict__["loop_reshards"] = {2: reshards._replace(**{name: ways})}
        with pytest.raises(CertificateError):
            wrong.verify()


def choice_plan(shardings, strategy="user_priority"):
    """A branch that is chosen by a sum."""
    one = Graph([Value("x", (4, 4))], [Application("negate", ("x",), ("n",))], ["n"])
    two = Graph([Value("x", (4, 4))], [Application("abs", ("x",), ("p",))], ["p"])
    graph = Graph(
        [Value("x", (4, 4)), Value("k", (6,), "int32")],
        [
            Application("sum_dim", ("k",), ("s",), {"dimensions": (0,)}),
            Application("case", ("s", "x"), ("y",), {}, (one, two)),
        ],
        ["y"],
        meshes=[str(LINE)],
        shardings=shardings,
    )
    return Plan.of(propagate(graph, strategy))


@pytest.mark.parametrize("strategy", ["user_priority", "cost"])
def test_a_branch_may_be_chosen_by_a_sum_whose_terms_lie_apart(strategy):
    plan = choice_plan({"k": '<@m, [{"x"}]>'}, strategy)
    plan.verify()
    x = loop_inputs()["y"]
    (found,) = run(plan, {"x": x, "k": np.array([0, 0, 0, 0, 0, 1], "int32")})
    np.testing.assert_array_equal(found.numpy(), np.abs(x))


def test_a_branch_that_is_chosen_by_parts_is_refused():
    with pytest.raises(WeftError, match="case selects a branch by s, which is partial"):
        choice_plan({"k": '<@m, [{"x"}]>', "s": '<@m, [], unreduced={"x"}>'})
    plan = choice_plan({"k": '<@m, [{"x"}]>'})
    specs = with_spec(plan.specs, "s", '<@m, [], unreduced={"x"}>')
    with pytest.raises(CertificateError, match="cells may disagree on the branch"):
        replace(plan, specs=specs).verify()


def test_branches_that_return_different_layouts_are_refused():
    plan = choice_plan({"x": ROWS})
    assert plan.branch_reshards[1][0][0].steps == ()
    (one, two), columns = plan.regions[1], ShardingSpec.parse(COLUMNS, LINE)
    moved = replace(plan, regions=FrozenMap([(1, (one, replace(two, outputs=(columns,))))]))
    moved.verify()
    ways = moved.branch_reshards[1]
    wrong = replace(moved)
    wrong.__dict__["branch_reshards"] = {1: (ways[0], (replace(ways[1][0], steps=()),))}
    with pytest.raises(CertificateError, match="result 0 of branch 1"):
        wrong.verify()


def test_what_no_executor_runs_is_not_proved():
    body = Graph([Value("q", (4,))], [Application("negate", ("q",), ("r",))], ["r"])
    said = {"in_shardings": ('<@m, [{"x"}]>',), "manual_axes": ("x",), "result_shapes": ((8,),)}
    graph = Graph(
        [Value("a", (8,))],
        [Application("manual_computation", ("a",), ("b",), said, (body,))],
        ["b"],
        meshes=[str(LINE)],
        shardings={"b": '<@m, [{"x"}]>'},
    )
    with pytest.raises(WeftError, match="no executor runs: nothing is proved"):
        Plan.of(propagate(graph)).verify()


def test_a_region_on_another_mesh_is_not_proved():
    plan = loop_plan({"y": ROWS})
    turned = DeviceMesh("m", (2,), ("x",), device_ids=(1, 0))
    with pytest.raises(WeftError, match="a region runs on"):
        with_region(plan, 1, mesh=turned).verify()


# Two monoids.

MIXED = Operator("mixed", "i j k -> i  sum: k  max: j", lambda block, x: x.sum(2).max(1))


def mixed_graph(sharding):
    return Graph(
        [Value("x", (2, 2, 4), "int64")],
        [Application("mixed", ("x",), ("y",))],
        ["y"],
        meshes=[str(LINE)],
        shardings={"x": sharding},
        operators=Library(mixed=MIXED),
    )


@pytest.mark.parametrize("dims", ['{"x"}, {}, {}', '{}, {"x"}, {}', '{}, {}, {"x"}'])
@pytest.mark.parametrize("strategy", ["user_priority", "cost"])
def test_what_two_monoids_reduce_is_not_cut(dims, strategy):
    x = np.random.default_rng(0).integers(-3, 4, (2, 2, 4))
    plan = Plan.of(propagate(mixed_graph(f"<@m, [{dims}]>"), strategy))
    plan.verify()
    (found,) = run(plan, {"x": x})
    np.testing.assert_array_equal(found.numpy(), x.sum(2).max(1))


@pytest.mark.parametrize("name", ["j", "k"])
def test_a_plan_that_cuts_what_two_monoids_reduce_is_refused(name):
    plan = Plan.of(propagate(mixed_graph("<@m, [{}, {}, {}]>")))
    line = plan.graph.signatures[0]
    with pytest.raises(WeftError, match="needs it whole"):
        place(LINE, line, {name: ["x"]})
    alone = Operator("sums", "i j k -> i  sum: k j").sign([(2, 2, 4)])
    cut = replace(place(LINE, alone, {name: ["x"]}), signature=line)
    specs = with_spec(plan.specs, "y", str(cut.results[0]))
    with pytest.raises(CertificateError, match="must be seen whole"):
        replace(plan, placed=(cut,), specs=specs).verify()


def test_parts_by_two_monoids_at_once_are_not_placed():
    line = Operator("sums", "i k -> i  sum: k").sign([(2, 4)])
    with pytest.raises(WeftError, match="parts by max and sum at once"):
        place(MESH, line, {"k": ["x"]}, {"y": ("max", (0,))})


# Definitions.


def test_parts_of_integers_are_not_combined_in_another_dtype():
    """200 + 100 is 44 in uint8: to widen each part first would make it 300."""
    wide = Operator("wide", "n -> n", keeps={"sum": [(0,)]}, dtypes=lambda *_: ["int64"])
    library = Library(wide=wide)

    def distributes(dtype):
        graph = Graph([Value("x", (4,), dtype)], [Application("wide", ("x",), ("y",))], ["y"],
                      operators=library)  # fmt: skip
        return define(graph)["applications"][0]["space"]["distributes"]

    assert distributes("int64") == [["sum", [0]]]
    assert distributes("float32") == [["sum", [0]]]
    assert distributes("uint8") == distributes("bool") == []


def test_a_placement_of_another_signature_is_not_proved():
    plan = planned(lambda a: a + a, (4,), shardings={"a": '<@m, [{"x"}]>'})
    line = Operator("late", "n+1, n -> n").sign([(5,), (4,)])
    wrong = replace(plan, placed=(replace(plan.placed[0], signature=line),))
    with pytest.raises(WeftError, match=r"add is placed as n.*, and the graph has i0"):
        wrong.verify()


def test_placements_and_shardings_on_another_mesh_are_not_proved():
    plan = planned(lambda a: a + a, (4,), shardings={"a": '<@m, [{"x"}]>'})
    turned = DeviceMesh("m", (2,), ("x",), device_ids=(1, 0))
    with pytest.raises(WeftError, match=r"add is placed on .* and runs on"):
        replace(plan, placed=(replace(plan.placed[0], mesh=turned),)).verify()
    spec = ShardingSpec.parse('<@m, [{"x"}]>', turned)
    with pytest.raises(WeftError, match="and the plan runs on"):
        replace(plan, specs=FrozenMap({**plan.specs, "a": spec}.items())).verify()


@contextmanager
def unchecked_copies():
    """Let `place` leave cells without what they would make a copy of."""
    before = weft.plan.placed._check_copies
    weft.plan.placed._check_copies = lambda *_: None
    try:
        yield
    finally:
        weft.plan.placed._check_copies = before


def test_a_result_is_not_made_of_nothing():
    """With more cells than columns a cell has no column, and no copy of what depends on them."""
    both = Operator("both", "m n -> m n, n", lambda block, x: (x, x[0]))
    graph = Graph(
        [Value("x", (1, 4))],
        [Application("both", ("x",), ("y", "z"))],
        ["y", "z"],
        meshes=[str(LINE)],
        shardings={"x": '<@m, [{"x"}, {}]>'},
        operators=Library(both=both),
    )
    plan = Plan.of(propagate(graph))
    plan.verify()
    x = np.arange(4, dtype="float32").reshape(1, 4)
    np.testing.assert_array_equal(run(plan, {"x": x})[1].numpy(), x[0])
    with pytest.raises(WeftError, match="a cell has nothing of 'm', and no result 1"):
        place(LINE, graph.signatures[0], {"m": ["x"]})
    with unchecked_copies():
        cut = place(LINE, graph.signatures[0], {"m": ["x"]})
    with pytest.raises(CertificateError, match=r"cell 1 makes .* of result 1 of nothing"):
        replace(plan, placed=(cut,)).verify()


def test_what_does_not_depend_on_an_empty_box_may_be_copied():
    apart = Operator("apart", "m, n -> m, n", lambda block, x, y: (x, y))
    graph = Graph(
        [Value("x", (1,)), Value("y", (4,))],
        [Application("apart", ("x", "y"), ("u", "v"))],
        ["u", "v"],
        meshes=[str(LINE)],
        shardings={"x": '<@m, [{"x"}]>'},
        operators=Library(apart=apart),
    )
    plan = Plan.of(propagate(graph))
    cut = replace(plan, placed=(place(LINE, graph.signatures[0], {"m": ["x"]}),))
    cut.verify()
    x, y = np.ones(1, "float32"), np.arange(4, dtype="float32")
    np.testing.assert_array_equal(run(cut, {"x": x, "y": y})[1].numpy(), y)
