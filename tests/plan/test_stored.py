"""What plans read from storage and write to it: exact against chunks counted cell by cell."""

from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.searching.small import GRID, machine, program
from tests.plan.test_storage import stored_boxes

from weft import DeviceMesh, Machine, Plan, WeftError, ZRange, estimate, ops, propagate, trace
from weft.lang import Application, Graph, Value
from weft.plan import Chunking, Storage
from weft.plan.searching.build import build_problem
from weft.plan.stored import reads, writes
from weft.program import Read
from weft.program.storage import joined

LINE = DeviceMesh("m", (4,), ("x",))


def planned(function, shapes, mesh=LINE, **shardings):
    text = {name: f"<@{mesh.name}, {spec}>" for name, spec in shardings.items()}
    return Plan.of(propagate(trace(function, *shapes, meshes=[mesh], shardings=text)))


def chunks_of(storage, box):
    """The numbers of the chunks of a box, point by point."""
    return {tuple(x // n for x, n in zip(point, storage.chunk)) for point in box}


def blur(x, k):
    return ops.convolve(x, k)


def test_a_cell_reads_what_it_needs_with_halos_and_nothing_moves():
    plan = planned(blur, [(1, 1, 64), (1, 1, 3)], x='[{}, {}, {"x"}]')
    stored = Storage((1, 1, 64), (1, 1, 4), itemsize=4)
    assert estimate(plan).received > 0
    cost = estimate(plan, storage={"x": stored})
    boxes = [box for cell in reads(plan, "x", stored) for box in cell]
    assert boxes == list(plan.placed[0].needs[0])
    assert cost.received == sum(cost.received_by_cell) == sum(cost.by_axis.values()) == 0
    assert cost.loaded == 16 * sum(len(chunks_of(stored, box)) for box in boxes)
    assert cost.amplification == cost.loaded / (4 * sum(box.size for box in boxes))
    assert cost.items[0].needed == 4 * sum(box.size for box in boxes)


def test_an_input_in_memory_still_moves():
    plan = planned(lambda x, w: x @ w, [(8, 8), (8, 8)], x='[{}, {"x"}]')
    whole = estimate(plan)
    stored = Storage((8, 8), (8, 8), itemsize=4)
    for name in ("x", "w"):
        cost = estimate(plan, storage={name: stored})
        assert cost.received == whole.received  # nothing but the sums moves
        assert cost.loaded == 4 * 256
        assert cost.compute == whole.compute


def test_boxes_that_several_applications_need_are_read_once():
    plan = planned(lambda x: (x + 1.0) @ x, [(16, 16)], x='[{"x"}, {}]')
    stored = Storage((16, 16), (4, 16), itemsize=4)
    for cell, boxes in enumerate(reads(plan, "x", stored)):
        assert boxes == (ZRange((0, 0), (16, 16)),), cell


def test_rows_far_apart_are_read_apart():
    mesh = DeviceMesh("m", (4, 4), ("x", "y"))
    problem = build_problem(
        trace(lambda x: ops.einsum("i k, j k -> i j", x, x), (64, 4)), mesh, Machine()
    )
    cuts = {"i": ("x",), "j": ("y",), "k": ()}
    found = [
        next((n for n, c in enumerate(d.options) if getattr(c, "placement", None) == cuts), 0)
        for d in problem.decisions
    ]
    plan, stored = problem.plan(found), Storage((64, 4), (4, 4), itemsize=4)
    assert plan.placed[0].placement == cuts
    rows = [[(box.start[0], box.stop[0]) for box in cell] for cell in reads(plan, "x", stored)]
    assert rows[:4] == [[(0, 16)], [(0, 32)], [(0, 16), (32, 48)], [(0, 16), (48, 64)]]
    assert estimate(plan, storage={"x": stored}).amplification == 1.0


def test_boxes_far_apart_stay_apart():
    x = Storage((100,), (10,))
    near, far = ZRange((0,), (5,)), ZRange((90,), (95,))
    assert joined(x, (near, far, near, ZRange((3,), (3,)))) == (near, far)
    assert joined(x, ()) == ()


@given(stored_boxes(), st.data())
def test_joined_boxes_hold_the_others_and_touch_no_more(given_, data):
    storage, box = given_
    sides = [st.integers(0, 9) for _ in storage.shape]
    more = [box, *data.draw(st.lists(st.tuples(*sides), max_size=3).map(_boxes_at(storage)))]
    found = joined(storage, tuple(more))
    assert all(any(one in two for two in found) for one in more if one)
    apart = sum(storage.touched(one).nbytes for one in set(more))
    assert sum(storage.touched(one).nbytes for one in found) <= apart


def _boxes_at(storage):
    return lambda corners: [ZRange.of((2,) * len(storage.shape), corner) for corner in corners]


@given(st.integers(0, 10**6))
def test_random_plans_read_and_write_what_counting_says(seed):
    rng = Random(seed)
    problem = build_problem(program(seed, 1 + seed % 4), GRID, machine(rng))
    plan = problem.plan([rng.randrange(len(d.options)) for d in problem.decisions])
    names = [value.name for value in plan.graph.inputs] + list(plan.graph.outputs)
    storage = {name: random_storage(rng, plan, name) for name in names if rng.random() < 0.7}
    cost = estimate(plan, storage=storage)
    cost.program.verify()
    inputs = {value.name for value in plan.graph.inputs}
    loaded = sum(read_by_hand(plan, name, storage[name]) for name in storage if name in inputs)
    outputs = [name for name in storage if name not in inputs]
    assert cost.loaded == loaded
    assert cost.stored == sum(written_by_hand(plan, name, storage[name]) for name in outputs)
    assert cost.received <= sum(plan.received)
    assert cost.moved == cost.received + cost.loaded + cost.stored
    if not storage:
        assert cost == estimate(plan)


def random_storage(rng, plan, name):
    shape = plan.graph.values[name].shape
    chunk = [rng.randint(1, 4) for _ in shape]
    shard = [rng.randint(1, 2) * n for n in chunk]
    return Storage(shape, chunk, shard, plan.itemsize(name))


def read_by_hand(plan, name, storage):
    """Cell by cell the chunks of the joined boxes of all that read it, by application."""
    total = 0
    for cell in range(plan.mesh.size):
        boxes = [
            placed.needs[slot][cell]
            for application, placed in zip(plan.graph.applications, plan.placed)
            for slot, operand in enumerate(application.operands)
            if operand == name
        ]
        if name in plan.graph.outputs:
            boxes.append(plan.specs[name].region(storage.shape, cell))
        touched = [len(chunks_of(storage, box)) for box in joined(storage, tuple(boxes))]
        total += sum(touched) * prod(storage.chunk) * storage.itemsize
    return total


def written_by_hand(plan, name, storage):
    """Every block once: all the chunks of the shards that it touches."""
    spec = plan.outputs[plan.graph.outputs.index(name)]
    total = 0
    for box in set(spec.regions(storage.shape)):
        chunks = set()
        for shard in storage.shards(box):
            chunks |= chunks_of(storage, shard)
        total += len(chunks) * prod(storage.chunk) * storage.itemsize
    return total


def test_an_output_is_written_once_by_the_first_that_hold_it():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    plan = planned(lambda x: x + x, [(8, 4)], mesh, x='[{"y"}, {}]')
    assert [box and str(box) for box in writes(plan, "add")] == [
        "[0:4, 0:4]",
        "[4:8, 0:4]",
        None,
        None,
    ]
    whole = estimate(plan, storage={"add": Storage((8, 4), (4, 4), itemsize=4)})
    assert (whole.stored, whole.amplification) == (128, 1.0)
    shared = estimate(plan, storage={"add": Storage((8, 4), (4, 4), (8, 4), itemsize=4)})
    assert (shared.stored, shared.amplification) == (256, 2.0)  # both cells write the one shard


def test_seconds_follow_from_the_link_to_storage():
    plan = planned(lambda x: x + x, [(8, 4)], x='[{"x"}, {}]')
    storage = {"x": Storage((8, 4), (2, 4), itemsize=4, ratio=2)}
    apart = estimate(plan, Machine(storage=(1e-3, 1e6)), storage)
    assert apart.items[0].seconds == pytest.approx(1e-3 + 32 / 2 / 1e6)
    together = estimate(plan, Machine(storage=(1e-3, 1e6, True)), storage)
    assert together.items[0].seconds == pytest.approx(1e-3 + 128 / 2 / 1e6)
    assert together.communicate == together.items[0].seconds
    slow = Machine(storage=(1e-3, 1e6))
    assert estimate(plan, slow).seconds == estimate(plan, slow, {}).seconds == 0


def test_a_table_says_what_storage_takes():
    plan = planned(lambda x: x + x, [(8, 4)], x='[{"x"}, {}]')
    cost = estimate(plan, storage={"x": Storage((8, 4), (8, 4), itemsize=4), "add": Chunking()})
    assert str(cost).splitlines() == [
        "x    read   1.28e-07 s  512 B, 4 x what is needed",
        "add  add           0 s  8 flop",
        "add  write   3.2e-08 s  128 B, 1 x what is needed",
        "1.6e-07 s, 0 B received, peak 64 B, 512 B loaded, 128 B stored, 2.5 x what is needed",
    ]
    assert cost.storage["add"] == Storage((8, 4), (2, 4), itemsize=4)


def looped():
    """A loop that doubles its rows, of which each cell has some."""
    condition = Graph(
        [Value("c/x", (8, 4))],
        [Application("constant", (), ("p",), {"value": 0, "dtype": "bool", "result_shape": ()})],
        ["p"],
    )
    body = Graph([Value("b/x", (8, 4))], [Application("add", ("b/x", "b/x"), ("b/y",))], ["b/y"])
    loop = Application("while", ("x",), ("y",), {}, (condition, body))
    shardings = {"x": '<@m, [{"x"}, {}]>'}
    return Graph([Value("x", (8, 4))], [loop], ["y"], [str(LINE)], shardings)


def test_a_loop_reads_a_stored_input_as_it_is_sharded():
    plan = Plan.of(propagate(looped()))
    storage = Storage((8, 4), (4, 4), itemsize=4)
    cost = estimate(plan, storage={"x": storage})
    assert cost.received == estimate(plan).received
    lies = plan.specs["x"].regions((8, 4))
    assert reads(plan, "x", storage) == tuple((box,) for box in lies)
    assert (cost.loaded, cost.amplification) == (4 * 64, 2.0)


def test_an_input_that_is_returned_is_read_as_it_lies_and_not_written():
    plan = planned(lambda x: x, [(8, 4)], x='[{"x"}, {}]')
    cost = estimate(plan, storage={"x": Storage((8, 4), (2, 4), itemsize=4)})
    assert (cost.loaded, cost.stored) == (128, 0)


def test_boxes_that_a_loop_holds_are_not_read_again():
    """A loop has the rows of x; sums of rows are views of them, sums of columns are read."""
    graph = looped()
    sums = [
        Application("sum_dim", ("x",), ("rows",), {"dimensions": [1]}),
        Application("sum_dim", ("x",), ("columns",), {"dimensions": [0]}),
    ]
    graph = Graph(
        graph.inputs,
        [*sums, *graph.applications],
        ["rows", "columns", "y"],
        graph.meshes,
        {**graph.shardings, "columns": '<@m, [{"x"}]>'},
    )
    plan = Plan.of(propagate(graph))
    program = plan.program_with({"x": Storage((8, 4), (2, 1), itemsize=4)})
    program.verify()
    reads = [each.result for each in program.main.instructions if isinstance(each, Read)]
    assert [str(program.buffers[n].layout) for n in reads] == ["[{0/4}, {}]", "[{}, {0/4}]"]
    assert program.main.instructions[1].operands == (reads[0],)


def test_an_unused_stored_input_is_not_read():
    plan = planned(lambda x, y, z: x + x, [(8, 4), (8, 4), ()])
    storage = {"y": Storage((8, 4), (2, 4), itemsize=4), "z": Storage((), (), itemsize=4)}
    cost = estimate(plan, storage=storage)
    assert (cost.loaded, cost.amplification) == (0, 1.0)
    assert reads(plan, "z", storage["z"]) == ((),) * 4


PLAN = planned(lambda x: x + x, [(8, 4)], x='[{"x"}, {}]')


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({"z": Storage((8, 4), (1, 1))}, "there is no input or output 'z'"),
        ({"x": Chunking()}, "x is an input: its chunks are given, and cannot be chosen"),
        ({"x": 3}, "the storage of x is a Storage or a Chunking, got 3"),
        (
            {"x": Storage((8, 4), (1, 1))},
            r"x: float32\[8, 4\] is another array than the one of 1 B an element that is 8 x 4 in",
        ),
    ],
)
def test_storage_that_does_not_fit_the_plan_is_refused(storage, message):
    with pytest.raises(WeftError, match=message):
        estimate(PLAN, storage=storage)


def test_boxes_that_are_read_count_while_they_are_used():
    plan = planned(blur, [(1, 1, 64), (1, 1, 3)], x='[{}, {}, {"x"}]')
    program = plan.program_with({"x": Storage((1, 1, 64), (1, 1, 4), itemsize=4)})
    text = str(program)
    assert "= read x, 1 x 1 x 64 in chunks of 1 x 1 x 4" in text
    assert "fetch" not in text
    assert "fetch" in str(plan.program)
    needs, made = plan.placed[0].needs[0], plan.outputs[0].regions((1, 1, 62))
    held = [4 * (box.size + block.size + 3) for box, block in zip(needs, made)]
    assert list(program.count.peak) == held
    assert plan.program_with({}) is plan.program


def test_parts_are_not_stored():
    graph = trace(lambda x: x.sum(0), (8, 4), meshes=[LINE], shardings={"x": '<@m, [{"x"}, {}]>'})
    wanted = {0: '<@m, [{}], unreduced={"x"}>'}
    parts = Graph(
        graph.inputs, graph.applications, graph.outputs, graph.meshes, graph.shardings, wanted
    )
    plan = Plan.of(propagate(parts))
    for storage in (Storage((4,), (1,), itemsize=4), Chunking()):
        with pytest.raises(WeftError, match="sum_dim lies in parts, as <@m, "):
            estimate(plan, storage={"sum_dim": storage})
    split = planned(lambda x: x + x, [(8, 4)], x='[{}, {}], unreduced={"x"}')
    with pytest.raises(WeftError, match="x lies in parts, as <@m, "):
        estimate(split, storage={"x": Storage((8, 4), (1, 4), itemsize=4)})


def test_a_manual_computation_has_an_input_as_it_is_sharded():
    body = Graph([Value("i", (8,))], [Application("add", ("i", "i"), ("o",))], ["o"])
    attributes = {
        "in_shardings": ("<@m, [{}]>",),
        "manual_axes": ("x",),
        "result_shapes": ((8,),),
    }
    manual = Application("manual_computation", ("a",), ("b",), attributes, (body,))
    shardings = {"a": '<@m, [{"x"}]>', "b": "<@m, [{}]>"}
    graph = Graph([Value("a", (8,))], [manual], ["b"], [str(LINE)], shardings)
    plan = Plan.of(propagate(graph))
    cost = estimate(plan, storage={"a": Storage((8,), (2,), itemsize=4)})
    assert cost.received == sum(plan.received) > 0
    assert cost.loaded == 32
