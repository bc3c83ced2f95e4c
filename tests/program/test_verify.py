"""Programs that do not compute their graphs are refused, each with its reason."""

import ast
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tests.plan.test_trip_count import constant
from tests.program import enumerating
from tests.program.mutants import replace_layout
from tests.runtime.tensors import parts_of

import weft.plan.placed
from weft import (
    DeviceMesh,
    DimSpec,
    Plan,
    ShardingSpec,
    SubAxis,
    Tensor,
    WeftError,
    ops,
    propagate,
    run,
    trace,
)
from weft.lang import Application, Graph, Library, Operator, Value
from weft.lang.definition import define
from weft.plan.placed import place
from weft.program import (
    Apply,
    Combine,
    Copy,
    Free,
    Loop,
    Mask,
    Read,
    Storage,
    Transfer,
    VerificationError,
    Write,
)
from weft.program.verify import verify
from weft.space import BlockGrid, Digit
from weft.values import FrozenMap

MESH = DeviceMesh("m", (2, 2), ("x", "y"))
LINE = DeviceMesh("m", (2,), ("x",))
X, Y = Digit(0, 1, 2, 1), Digit(1, 1, 2, 1)


def block(a, w1, w2, bias):
    h = ops.relu(a @ w1)
    return ops.linear(h, w2, bias).sum(0) - bias, ops.softmax(h)[1:, ::2]


def block_program():
    graph = trace(
        block,
        (8, 6),
        (6, 12),
        (12, 4),
        (4,),
        meshes=[MESH],
        shardings={"a": '<@m, [{"x"}, {}]>', "w1": '<@m, [{}, {"y"}]>'},
    )
    return Plan.of(propagate(graph)).program


@pytest.mark.parametrize("module", ["verify", "layout_rule", "instructions"])
def test_the_verifier_is_independent(module):
    """Of the planner, the language and the executors it knows nothing."""
    source = Path(sys.modules[f"weft.program.{module}"].__file__)
    imported = {
        node.module
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("weft")
    }
    allowed = ("weft.program.", "weft.space", "weft.errors", "weft.values")
    assert all(name.startswith(allowed) for name in imported)


def test_a_program_is_proved():
    program = block_program()
    kinds = {type(instruction) for instruction in program.walk()}
    assert kinds == {Transfer, Mask, Apply, Free}
    proof = program.verify()
    assert proof.instructions == len(program.main.instructions)
    (linear,) = [each for each in proof.applications if each.operator == "linear"]
    assert (linear.boxes, linear.parts) == (4, 2)
    assert enumerating.accepts(program) == (True, "")


# Programs that were changed.


def find(program, kind, place=0):
    """The place of the instruction of a kind in the main body, and the instruction."""
    found = [(n, i) for n, i in enumerate(program.main.instructions) if isinstance(i, kind)]
    return found[place]


def applied(program, operator):
    """The place of the instruction that applies an operator, and the instruction."""
    for n, instruction in enumerate(program.main.instructions):
        is_applied = isinstance(instruction, Apply)
        definitions = program.main.graph.applications
        if is_applied and definitions[instruction.definition].operator == operator:
            return n, instruction
    raise AssertionError(operator)


def with_main(program, **fields):
    return replace(program, bodies=(replace(program.main, **fields), *program.bodies[1:]))


def with_instruction(program, found, **fields):
    place_, instruction = found
    code = list(program.main.instructions)
    code[place_] = replace(instruction, **fields)
    return with_main(program, instructions=tuple(code))


def without(program, place_):
    code = list(program.main.instructions)
    del code[place_]
    return with_main(program, instructions=tuple(code))


def with_layout(program, buffer, **fields):
    buffers = list(program.buffers)
    layout = replace_layout(buffers[buffer].layout, **fields)
    buffers[buffer] = replace(buffers[buffer], layout=layout)
    return replace(program, buffers=tuple(buffers))


def combining(program):
    """A transfer that combines parts."""
    return next(
        (n, i)
        for n, i in enumerate(program.main.instructions)
        if isinstance(i, Transfer) and i.combine
    )


def relabelled(program):
    """All parts of sums relabelled as parts of maxima, consistently."""

    def maxima(layout):
        return tuple((digit, "max") for digit, _ in layout.parts)

    buffers = [
        replace(each, layout=replace_layout(each.layout, parts=maxima(each.layout)))
        for each in program.buffers
    ]
    code = []
    for instruction in program.main.instructions:
        match instruction:
            case Transfer(combine=combine):
                runs = tuple(Combine("max", run.digits) for run in combine)
                code.append(replace(instruction, combine=runs))
            case Mask():
                code.append(replace(instruction, monoid="max"))
            case _:
                code.append(instruction)
    return replace(with_main(program, instructions=tuple(code)), buffers=tuple(buffers))


def short_grid(program):
    """An input whose blocks leave out its last row."""
    grid = program.buffers[0].layout.grid
    extents = (grid.block_shape[0] - 1, *grid.block_shape[1:])
    return with_layout(program, 0, grid=BlockGrid(grid.shape, grid.counts, extents))


def without_mask(program):
    """A bias that counts in every part."""
    found = find(program, Mask)
    code = list(program.main.instructions)
    code[found[0]] = Copy(found[1].source, found[1].result)
    return with_main(program, instructions=tuple(code))


def used_after_free(program):
    place_, free = find(program, Free)
    code = list(program.main.instructions)
    del code[place_]
    return with_main(program, instructions=(free, *code))


def swapped(program):
    found = applied(program, "subtract")
    return with_instruction(program, found, operands=found[1].operands[::-1])


CHANGES = {
    "blocks that leave out a row": (short_grid, "2 blocks do not cover 8 points"),
    "an input that is not all there": (
        lambda p: with_layout(p, 0, cuts=((X,), (X,)), grid=BlockGrid.cut((8, 6), (2, 2))),
        "input a is not held in full",
    ),
    "parts combined by another monoid": (
        lambda p: with_instruction(
            p, combining(p), combine=(Combine("max", combining(p)[1].combine[0].digits),)
        ),
        "parts by sum of 2 are combined by max",
    ),
    "parts that are not combined": (
        lambda p: with_instruction(p, combining(p), combine=()),
        "parts by sum of 2 are combined by nothing into parts by nothing",
    ),
    "parts combined twice": (
        lambda p: with_instruction(p, combining(p), combine=combining(p)[1].combine * 2),
        "parts are combined twice",
    ),
    "parts of copies combined": (
        lambda p: with_instruction(p, combining(p), combine=(Combine("sum", (X,)),)),
        "are combined",
    ),
    "a combination of no parts": (
        lambda p: with_instruction(
            p,
            combining(p),
            combine=(*combining(p)[1].combine, Combine("sum", (X._replace(radix=0),))),
        ),
        r"a cell has no digit \(0, 1, 0, 1\)",
    ),
    "a sum relabelled as a maximum": (relabelled, "by max of 2 where sum of 2 is expected"),
    "a bias in every part": (without_mask, "Copy of bias: .* becomes"),
    "a bias masked by a maximum": (
        lambda p: with_instruction(p, find(p, Mask), monoid="max"),
        "Mask of bias: parts are",
    ),
    "a bias masked along other cells": (
        lambda p: with_instruction(p, find(p, Mask), digits=(X,)),
        "Mask of bias: parts are",
    ),
    "no parts": (
        lambda p: with_layout(p, applied(p, "linear")[1].results[0], parts=()),
        "result 0 is left in parts by nothing, not by sum of 2",
    ),
    "operands of a difference swapped": (swapped, "operand 0 is bias where the graph has"),
    "an operand too few": (
        lambda p: with_instruction(
            p, applied(p, "linear"), operands=applied(p, "linear")[1].operands[:2]
        ),
        "2 operands where 3 are expected",
    ),
    "another application": (
        lambda p: with_instruction(p, applied(p, "relu"), definition=0),
        "1 operands where 2 are expected",
    ),
    "an application that is not there": (
        lambda p: with_instruction(p, applied(p, "relu"), definition=99),
        "the graph has no application 99",
    ),
    "a relu that stays partial": (
        lambda p: with_instruction(p, applied(p, "relu"), factors=(((X,), "sum", (0,)),)),
        r"does not distribute over sum in operands \[0\]",
    ),
    "an index space cut along other cells": (
        lambda p: with_instruction(
            p,
            applied(p, "relu"),
            index=replace_layout(applied(p, "relu")[1].index, cuts=((Y,), (X,))),
        ),
        "of operand 0 where its index box has",
    ),
    "a softmax that is cut": (
        lambda p: with_instruction(
            p,
            applied(p, "softmax"),
            index=replace_layout(
                applied(p, "softmax")[1].index,
                cuts=((), (X,)),
                grid=BlockGrid.cut((8, 12), (1, 2)),
            ),
        ),
        "index dimension 1 is cut and must be seen whole",
    ),
    "a buffer used after it is freed": (used_after_free, r"buffer \d+ is not there"),
    "a buffer made twice": (
        lambda p: with_main(
            p, instructions=(*p.main.instructions, p.main.instructions[find(p, Transfer)[0]])
        ),
        "is not there|is made twice",
    ),
    "an instruction left out": (
        lambda p: without(p, find(p, Transfer)[0]),
        r"buffer \d+ is not there",
    ),
    "an output that is another value": (
        lambda p: with_main(p, results=p.main.results[::-1]),
        "output subtract is slice",
    ),
    "an output that is missing": (lambda p: with_main(p, results=p.main.results[:1]), "1 outputs"),
    "no instructions": (lambda p: with_main(p, instructions=()), r"buffer \d+ is not there"),
    "a buffer that is not there": (
        lambda p: with_instruction(p, find(p, Mask), result=10**6),
        "there is no buffer 1000000",
    ),
    "a layout of another type": (
        lambda p: with_layout(p, 0, cuts=None),
        "the program is malformed",
    ),
    "another mesh": (
        lambda p: replace(p, cells=replace(p.cells, devices=(1, 0, 3, 2))),
        "a layout lies on other cells",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_program_is_refused_with_its_reason(what):
    change, reason = CHANGES[what]
    changed = change(block_program())
    with pytest.raises(VerificationError, match=reason):
        changed.verify()
    assert not enumerating.accepts(changed, block_program().main.graph)[0]


def test_errors_name_the_instruction():
    program = block_program()
    place_, _ = applied(program, "subtract")
    with pytest.raises(
        VerificationError, match=rf"instruction {place_} of body 0, Apply making subtract: operand"
    ):
        swapped(program).verify()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reduced", ()),
        ("reduced", ((2, "max"),)),
        ("once", frozenset()),
        ("whole", (2,)),
        ("sizes", (9, 4, 12)),
    ],
)
def test_a_program_computes_one_graph_only(field, value):
    program = block_program()
    graph = program.main.graph
    number, linear = next(
        (n, a) for n, a in enumerate(graph.applications) if a.operator == "linear"
    )
    other = replace(linear, space=replace(linear.space, **{field: value}))
    applications = (*graph.applications[:number], other, *graph.applications[number + 1 :])
    with pytest.raises(VerificationError, match="Apply making linear"):
        program.verify(replace(graph, applications=applications))


def test_another_operator_than_the_graphs_is_refused():
    def program(operator, **attributes):
        graph = Graph(
            [Value("a", (4, 4)), Value("b", (4, 4))],
            [Application(operator, ("a", "b"), ("c",), attributes)],
            ["c"],
            meshes=[str(LINE)],
        )
        return Plan.of(propagate(graph)).program

    sums = program("add")
    sums.verify(program("add").main.graph)
    with pytest.raises(VerificationError, match=r"multiply.* runs where the graph has add"):
        program("multiply").verify(sums.main.graph)
    less, more = (program("compare", comparison_direction=d) for d in ("LT", "GT"))
    with pytest.raises(VerificationError, match=r"direction=GT.* where .*direction=LT"):
        more.verify(less.main.graph)


# Parts by several monoids.


def moved(before, after, combine, **fields):
    """A program that is one transfer of an array between parts."""
    program = Plan.of(propagate(trace(lambda x: x, (4,), meshes=[MESH]))).program
    (given, *_), main = program.buffers, program.main
    layouts = [replace_layout(given.layout, parts=parts) for parts in (before, after)]
    buffers = tuple(replace(given, layout=layout) for layout in layouts)
    code = (Transfer(0, 1, combine, **fields),)
    return replace(
        program, buffers=buffers, bodies=(replace(main, instructions=code, results=(1,)),)
    )


MAX_OF_SUMS = ((X, "max"), (Y, "sum"))


@pytest.mark.parametrize(
    ("before", "after", "combine"),
    [
        (MAX_OF_SUMS, (), (Combine("max", (X,)), Combine("sum", (Y,)))),
        (MAX_OF_SUMS, ((X, "max"),), (Combine("sum", (Y,)),)),
        (((X, "sum"), (Y, "sum")), (), (Combine("sum", (Y, X)),)),
        (((X, "sum"), (Y, "sum")), ((Y, "sum"),), (Combine("sum", (X,)),)),
    ],
)
def test_parts_may_be_combined_from_the_inside(before, after, combine):
    program = moved(before, after, combine)
    verify(program)
    assert enumerating.accepts(program) == (True, "")


@pytest.mark.parametrize(
    ("after", "combine", "reason"),
    [
        ((), (Combine("sum", (Y,)), Combine("max", (X,))), "combined in another order"),
        (((Y, "sum"),), (Combine("max", (X,)),), "max is combined before sum"),
        ((), (Combine("max", (X, Y)),), "are combined by max"),
        (((Y, "max"),), (Combine("sum", (X,)),), "are combined by sum into parts by max"),
        (
            (),
            (Combine("sum", (Digit(0, 2, 1, 1), Y, Digit(0, 2, 1, 1))), Combine("max", (X,))),
            "combined in another order",
        ),
    ],
)
def test_parts_by_several_monoids_are_not_combined_from_the_outside(after, combine, reason):
    program = moved(MAX_OF_SUMS, after, combine)
    with pytest.raises(VerificationError, match=reason):
        verify(program)
    assert not enumerating.accepts(program)[0]


def test_parts_that_stay_do_not_change_places():
    sums, rest = ((X, "sum"), (Y, "sum")), (Combine("sum", (Y,)),)
    verify(moved(sums, ((X, "sum"),), rest))
    wrong = moved(sums, ((X, "sum"),), rest, kept=((X, Y),))
    with pytest.raises(VerificationError, match="are given other digits"):
        verify(wrong)
    assert not enumerating.accepts(wrong)[0]


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
    with pytest.raises(VerificationError, match="does not distribute over sum"):
        wrong.verify()


def test_swapped_operands_are_refused():
    plan = planned(lambda a, b: a - b, (4,), (4,), shardings={"a": '<@m, [{"x"}]>'})
    (difference,) = plan.graph.applications
    turned = Graph(
        plan.graph.inputs, [difference._replace(operands=("b", "a"))], plan.graph.outputs
    )
    assert plan.verify(plan.graph)
    with pytest.raises(VerificationError, match="operand 0 is b where the graph has a"):
        replace(plan, graph=turned).verify(plan.graph)


def test_parts_of_a_sum_relabelled_are_refused():
    plan = planned(lambda a: a.sum(0), (4, 6), shardings={"a": '<@m, [{"x"}, {}]>'})
    (placed,) = plan.placed
    maxima = ShardingSpec.parse('<@m, [{}], unreduced=max{"x"}>', LINE)
    wrong = replace(plan, placed=(replace(placed, results=(maxima,)),))
    with pytest.raises(VerificationError, match="left in parts by max of 2, not by sum of 2"):
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
    with pytest.raises(VerificationError, match=r"w is given as .* and assumed as"):
        wrong.verify()


@pytest.mark.parametrize("text", [COLUMNS, "<@m, [{}, {}]>"])
def test_a_body_that_returns_another_sharding_than_it_carries_is_refused(text):
    plan = loop_plan({"y": ROWS})
    outputs = (plan.regions[2][1].outputs[0], ShardingSpec.parse(text, LINE))
    with pytest.raises(VerificationError, match=r"value 1 is carried as .* and returned as"):
        with_region(plan, 1, outputs=outputs).verify()


def test_a_condition_that_assumes_another_sharding_is_refused():
    plan = loop_plan({"y": ROWS})
    condition = plan.regions[2][0]
    wrong = with_region(plan, 0, specs=with_spec(condition.specs, "c/y", COLUMNS))
    with pytest.raises(VerificationError, match=r"c/y is given as .* and assumed as"):
        wrong.verify()


def test_a_condition_on_which_cells_disagree_is_refused():
    plan = loop_plan({"y": ROWS})
    apart = (ShardingSpec.parse('<@m, [], unreduced=or{"x"}>', LINE),)
    with pytest.raises(VerificationError, match="cells may disagree on whether to go on"):
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
    entry = tuple(replace(each, steps=()) for each in moved.loop_reshards[2].entry)
    wrong = replace(moved)
    wrong.__dict__["loop_reshards"] = {2: moved.loop_reshards[2]._replace(entry=entry)}
    with pytest.raises(VerificationError, match=r"c/y is given as .* and assumed as"):
        wrong.verify()


def test_outputs_lie_as_the_plan_says():
    plan = loop_plan({"y": ROWS, "y'": ROWS})
    wanted = replace(plan, outputs=(ShardingSpec.parse(COLUMNS, LINE),))
    wanted.verify()
    wrong = replace(wanted)
    wrong.__dict__["returns"] = tuple(replace(each, steps=()) for each in wanted.returns)
    with pytest.raises(WeftError, match=r"output y' lies as .*, and the plan says <@m"):
        wrong.verify()


def with_loop(program, **fields):
    """The program of a loop, with something else in it."""
    return with_instruction(program, find(program, Loop), **fields)


def with_called(program, number, **fields):
    bodies = list(program.bodies)
    bodies[number] = replace(bodies[number], **fields)
    return replace(program, bodies=tuple(bodies))


LOOPS = {
    "carried values in another order": (
        lambda p: with_loop(p, carried=find(p, Loop)[1].carried[::-1]),
        "carried value 0 is y where the graph has i",
    ),
    "captured values in another order": (
        lambda p: with_loop(p, captured=((), find(p, Loop)[1].captured[1][::-1])),
        "w is given as",
    ),
    "a captured value that is missing": (
        lambda p: with_loop(p, captured=((), find(p, Loop)[1].captured[1][1:])),
        "1 values are captured",
    ),
    "the body as the condition": (
        lambda p: with_loop(p, condition=find(p, Loop)[1].body),
        r"arguments \['b/i', 'b/y', 'w', 'c'\] where",
    ),
    "a body that calls itself": (lambda p: with_loop(p, body=0), "body 0 calls itself"),
    "a body that is not there": (lambda p: with_loop(p, body=7), "there is no body 7"),
    "a value that the body takes over": (
        lambda p: with_loop(p, donated=frozenset([0])),
        "the body frees value 1 of the caller",
    ),
    "a body that owns what it captures": (
        lambda p: with_called(p, 2, owned=p.bodies[2].owned | {2}),
        "a body owns w, which it captures",
    ),
    "a condition that owns": (
        lambda p: with_called(p, 1, owned=frozenset([0])),
        "a condition takes no buffer over",
    ),
    "a body that owns nothing": (
        lambda p: with_called(p, 2, owned=frozenset()),
        "belongs to the caller",
    ),
    "a body with other names": (
        lambda p: with_called(
            p, 2, graph=replace(p.bodies[2].graph, inputs=("b/y", "b/i", "w", "c"))
        ),
        "body 2 is called by other names",
    ),
}


@pytest.mark.parametrize("what", LOOPS)
def test_a_loop_that_is_changed_is_refused(what):
    program = loop_plan({"y": ROWS}).program
    change, reason = LOOPS[what]
    with pytest.raises(VerificationError, match=reason):
        change(program).verify(program.main.graph)
    assert not enumerating.accepts(change(program), program.main.graph)[0]


def test_a_donated_buffer_is_carried_once():
    """Two values that are carried start from the same value, and the body changes one of them."""
    less = {"comparison_direction": "LT"}
    condition = Graph(
        [Value("c/i", (), "int32"), Value("c/j", (), "int32")],
        [constant("c/n", 3), Application("compare", ("c/i", "c/n"), ("c/p",), less)],
        ["c/p"],
    )
    body = Graph(
        [Value("b/i", (), "int32"), Value("b/j", (), "int32")],
        [constant("b/one", 1), Application("add", ("b/i", "b/one"), ("b/k",))],
        ["b/k", "b/j"],
    )
    graph = Graph(
        [Value("i", (), "int32")],
        [Application("while", ("i", "i"), ("k", "l"), {}, (condition, body))],
        ["k", "l"],
        meshes=[str(LINE)],
    )
    program = Plan.of(propagate(graph)).program
    program.verify()
    _, loop = find(program, Loop)
    wrong = with_loop(program, carried=(loop.carried[0],) * 2)
    with pytest.raises(VerificationError, match="a donated buffer is carried or captured twice"):
        wrong.verify()
    assert not enumerating.accepts(wrong)[0]


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
    with pytest.raises(VerificationError, match="cells may disagree on the branch"):
        replace(plan, specs=specs).verify()


def test_branches_that_return_different_layouts_are_refused():
    plan = choice_plan({"x": ROWS})
    assert plan.branch_reshards[1][0][0].steps == ()
    (one, two), columns = plan.regions[1], ShardingSpec.parse(COLUMNS, LINE)
    changed = replace(plan, regions=FrozenMap([(1, (one, replace(two, outputs=(columns,))))]))
    changed.verify()
    one, two = changed.branch_reshards[1]
    wrong = replace(changed)
    wrong.__dict__["branch_reshards"] = {1: (one, (replace(two[0], steps=()),))}
    with pytest.raises(VerificationError, match="result 0 of branch 1"):
        wrong.verify()


def test_manual_computations_are_not_proved():
    body = Graph([Value("q", (4,))], [Application("negate", ("q",), ("r",))], ["r"])
    said = {"in_shardings": ('<@m, [{"x"}]>',), "manual_axes": ("x",), "result_shapes": ((8,),)}
    graph = Graph(
        [Value("a", (8,))],
        [Application("manual_computation", ("a",), ("b",), said, (body,))],
        ["b"],
        meshes=[str(LINE)],
        shardings={"b": '<@m, [{"x"}]>'},
    )
    with pytest.raises(WeftError, match="runs graphs of its own; none is proved"):
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
def test_dimensions_reduced_by_two_monoids_are_not_cut(dims, strategy):
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
    with pytest.raises(VerificationError, match="must be seen whole"):
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
        return define(graph).applications[0].space.distributes

    assert distributes("int64") == distributes("float32") == {("sum", (0,))}
    assert distributes("uint8") == distributes("bool") == set()


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
    with patch.object(weft.plan.placed, "_check_copies", lambda *_: None):
        yield


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
    with pytest.raises(WeftError, match="result 1 cannot be computed on a cell whose part of 'm'"):
        place(LINE, graph.signatures[0], {"m": ["x"]})
    with unchecked_copies():
        cut = place(LINE, graph.signatures[0], {"m": ["x"]})
    with pytest.raises(VerificationError, match="makes result 1 of nothing of index dimension 0"):
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


# Storage.


def stored_program():
    """x @ w where x is read and the product written; each cell has some rows of it."""
    graph = trace(
        lambda x, w: x @ w,
        (8, 4),
        (4, 4),
        meshes=['@m = <["x"=2]>'],
        shardings={"x": '<@m, [{"x"}, {}]>'},
    )
    storage = {
        "x": Storage((8, 4), (2, 4), itemsize=4),
        "matmul": Storage((8, 4), (4, 4), itemsize=4),
    }
    return Plan.of(propagate(graph)).program_with(storage)


def with_stored_code(program, change):
    code = tuple(change(each) for each in program.main.instructions)
    flat = tuple(one for each in code for one in (each if isinstance(each, list) else [each]))
    return replace(program, bodies=(replace(program.main, instructions=flat),))


def test_storage_is_read_and_written_as_it_is_bound():
    program = stored_program()
    program.verify()
    x, product = program.storage["x"], program.storage["matmul"]

    def refuse(changed, message):
        with pytest.raises(VerificationError, match=message):
            changed.verify()

    def twice(each):
        return [each, each] if isinstance(each, Write) else each

    def dropped(each):
        return [] if isinstance(each, Write) else each

    def of_the_kernel(each):
        return replace(each, storage="w") if isinstance(each, Read) else each

    refuse(with_stored_code(program, twice), "Write of matmul: output matmul is written twice")
    refuse(with_stored_code(program, dropped), "output matmul is stored, and is not written")
    refuse(with_stored_code(program, of_the_kernel), "Read of w: w is not stored")
    refuse(replace(program, storage={"x": x}), "Write of matmul: matmul is not stored")
    refuse(replace(program, storage={"matmul": product}), r"arguments \['w'\] where \['x', 'w'\]")
    narrow = Storage((8, 4), (2, 4), itemsize=2)
    refuse(replace(program, storage={**program.storage, "x": narrow}), "2 B an element")
    other = {**program.storage, "y": x}
    refuse(replace(program, storage=other), "y is stored, and is neither an input nor an output")


def test_parts_are_not_written():
    graph = trace(
        lambda x, w: x @ w,
        (8, 4),
        (4, 4),
        meshes=['@m = <["x"=2]>'],
        shardings={"x": '<@m, [{}, {"x"}]>'},
    )
    program = Plan.of(propagate(graph)).program_with({"matmul": Storage((8, 4), (2, 4), None, 4)})
    program.verify()
    partial = next(n for n, each in enumerate(program.buffers) if each.layout.parts)
    code = [
        replace(each, source=partial) if isinstance(each, Write) else each
        for each in program.main.instructions
        if not isinstance(each, Free | Transfer | Copy)
    ]
    main = replace(program.main, instructions=tuple(code))
    with pytest.raises(VerificationError, match="Write of matmul: storage holds whole arrays"):
        replace(program, bodies=(main,)).verify()


def test_an_output_may_be_cut_by_the_halves_of_an_axis_around_an_axis_of_one_cell():
    mesh = DeviceMesh("m", (1, 4), ("one", "x"))
    graph = trace(lambda x: x + x, np.empty(8), meshes=[mesh], shardings={"x": '<@m, [{"x"}]>'})
    halves = ShardingSpec.parse('<@m, [{"x":(1)2, "one", "x":(2)2}]>', mesh)
    plan = replace(Plan.of(propagate(graph)), outputs=(halves,))
    plan.verify()
    (found,) = run(plan, {"x": np.arange(8.0)})
    assert found.numpy().tolist() == [2.0 * n for n in range(8)]


@pytest.mark.parametrize("kept", [SubAxis("x", 1, 2), SubAxis("x", 2, 2)])
def test_a_copy_is_masked_over_the_half_of_an_axis_over_which_it_is_not_partial_yet(kept):
    """A bias that is partial over one half of an axis counts once over the other."""
    mesh, cut = DeviceMesh("m", (4,), ("x",)), SubAxis("x", 3 - kept.before, 2)
    graph = trace(ops.linear, *(np.empty(shape) for shape in ((2, 4), (4, 3), (3,))), names="awb")
    placed = place(mesh, graph.signatures[0], {"k": [cut]}, {kept: ("sum", (0, 2))})
    specs = {
        "a": ShardingSpec(mesh, [DimSpec(), DimSpec([cut])], (), {kept: "sum"}),
        "w": ShardingSpec(mesh, [DimSpec([cut]), DimSpec()]),
        "b": ShardingSpec(mesh, [DimSpec()], (), {kept: "sum"}),
        "linear": placed.results[0],
    }
    whole = ShardingSpec(mesh, [DimSpec()] * 2)
    plan = Plan(graph, mesh, FrozenMap(specs.items()), (whole,), (placed,), None, FrozenMap(()))
    plan.verify()
    rng = np.random.default_rng(0)
    a, w, b = rng.normal(size=(2, 4)), rng.normal(size=(4, 3)), rng.normal(size=3)
    parts = {
        name: Tensor.of_shards(parts_of(rng, x, specs[name]), specs[name], x.shape)
        for name, x in (("a", a), ("b", b))
    }
    (y,) = run(plan, {**parts, "w": w})
    np.testing.assert_allclose(y.numpy(), a @ w + b)
