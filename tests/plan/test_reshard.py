"""Reshard plans, run on NumPy shards: values, bytes, memory, prices, and what is refused."""

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.plan.moving import gather, make_parts, run, scatter
from tests.strategies import specs, with_cut_points
from tests.trials import trials

from weft import (
    DeviceMesh,
    DimSpec,
    LayoutError,
    Machine,
    ShardingSpec,
    WeftError,
    plan_reshard,
    show,
)


def mesh_of(shape, ids=None, name="m", axes="xyzuv"):
    return DeviceMesh(name, shape, list(axes[: len(shape)]), ids)


@st.composite
def mesh_pairs(draw):
    """Two meshes: one twice, transposed, of another shape, or on any devices."""
    sizes = st.lists(st.sampled_from([1, 2, 2, 3, 4, 6]), max_size=3)
    shape = draw(sizes.filter(lambda sizes: prod(sizes) <= 12))
    size, how = prod(shape), draw(st.integers(0, 4))
    ids = draw(st.one_of(st.none(), st.permutations(range(size))))
    one = mesh_of(shape, ids)
    if how == 0:
        return one, one
    if how == 1:
        order = draw(st.permutations(range(len(shape))))
        devices = np.array(ids or range(size)).reshape(shape).transpose(order)
        names = [one.axis_names[n] for n in order]
        return one, DeviceMesh("t", devices.shape, names, devices.flatten().tolist())
    other = draw(sizes.filter(lambda sizes: prod(sizes) <= 12))
    if how == 2:
        splits = [s for s in [(2, 3), (3, 2), (6,), (2, 2), (4,), (2, 6), (12,)] if prod(s) == size]
        other = draw(st.sampled_from(splits or [shape]))
        return one, mesh_of(other, ids, "other", "abc")
    pool = draw(st.permutations(range(14)))
    return one, mesh_of(other, pool[: prod(other)], "other", draw(st.sampled_from(["abc", "xyz"])))


@st.composite
def reshards(draw, partial_dst=False):
    one, two = draw(mesh_pairs())
    ndim = draw(st.integers(0, 3))
    src, dst = draw(specs(one, ndim)), draw(specs(two, ndim))
    if not partial_dst or draw(st.booleans()):
        dst = ShardingSpec(two, dst.dim_specs, dst.replicated_axes)
    if draw(st.booleans()):
        src = ShardingSpec(one, src.dim_specs, src.replicated_axes)
    size = st.one_of(st.integers(0, 9), st.sampled_from([4, 6, 8, 12]))
    shape = tuple(draw(size) for _ in range(ndim))
    assume(prod(shape) <= 600)
    if draw(st.integers(0, 2)) == 0:
        src, dst = draw(with_cut_points(src, shape)), draw(with_cut_points(dst, shape))
    return src, dst, shape


@st.composite
def machines(draw, *meshes):
    links = {}
    for axis in {axis for mesh in meshes for axis in mesh.axis_names}:
        if draw(st.booleans()):
            links[axis] = (draw(st.sampled_from([0, 1e-6])), draw(st.sampled_from([1e9, 1e10])))
    return Machine(links, draw(st.sampled_from([0, 1e-6])), draw(st.sampled_from([1e9, 3e10])))


def check(plan, seed=0):
    """Run a plan; the values, the counts and the memory must be as it says."""
    parts, whole = make_parts(plan.src, plan.shape, np.random.default_rng(seed))
    shards = run(plan, scatter(plan.src, plan.shape, parts))
    assert (gather(plan.dst, plan.shape, shards) == whole).all()
    assert sum(plan.received) == sum(plan.sent) >= plan.ideal
    check_memory(plan)
    return shards


def check_memory(plan):
    """What lies between the two shards lies inside the second, and is counted while it is there."""
    moving = [step.kind for step in plan.steps if step.kind != "mask"]
    assert {*moving[1:]} <= {"reduce_scatter", "all_gather"}, (
        "nobody writes over what is to be sent"
    )
    for step in plan.steps[:-1]:
        for cell in step.after.mesh.cells():
            box = step.after.region(plan.shape, cell)
            assert box in plan.dst.region(plan.shape, cell)
    source = held_by(plan.src, plan)
    most, beside = {device: source.get(device, 0) for device in plan.devices}, {}
    for step in plan.steps:
        after = held_by(step.after, plan)
        for device in made_by(step):
            together = source.get(device, 0) + beside.get(device, 0) + after[device]
            most[device] = max(most[device], together)
            beside[device] = after[device]
        beside = {device: size for device, size in beside.items() if device in after}
    assert plan.peak == tuple(most.values())


def held_by(sharding, plan):
    """The bytes that each device holds under a sharding."""
    cells = sharding.mesh.cells()
    return {
        sharding.mesh.device(cell): sharding.region(plan.shape, cell).size * plan.itemsize
        for cell in cells
    }


def made_by(step):
    """The devices that have an array of their own after a step: others sent them something."""
    if step.kind != "mask":
        return {transfer.receiver for transfer in step.transfers()}
    new = [step.after.mesh.digit(a) for a in {*step.after.partial} - {*step.before.partial}]
    mesh = step.after.mesh
    hidden = [c for c in mesh.cells() if any(c[d.dim] // d.divisor % d.radix for d in new)]
    return set(map(mesh.device, hidden))


@given(reshards(), st.integers(1, 8))
def test_any_sharding_becomes_any_other(case, itemsize):
    plan = plan_reshard(*case, itemsize)
    check(plan)
    if not plan.src.partial:
        assert sum(plan.received) == plan.ideal


@given(reshards(), st.data())
def test_reshards_are_right_on_random_machines(case, data):
    src, dst, shape = case
    machine = data.draw(machines(src.mesh, dst.mesh))
    plan = plan_reshard(src, dst, shape, 2, machine)
    check(plan)
    assert plan.price >= 0


@given(reshards())
def test_there_and_back_is_the_identity(case):
    src, dst, shape = case
    src = ShardingSpec(src.mesh, src.dim_specs)
    there, back = plan_reshard(src, dst, shape), plan_reshard(dst, src, shape)
    values = np.asarray(np.random.default_rng(1).integers(0, 97, shape))
    shards = scatter(src, shape, {(): values})
    found = run(back, run(there, shards))
    assert all((found[device] == shards[device]).all() for device in shards)
    assert found.keys() == shards.keys()


@given(reshards(partial_dst=True))
def test_reshards_to_partial_destinations_are_right(case):
    src, dst, shape = case
    try:
        plan = plan_reshard(src, dst, shape)
    except LayoutError:
        assume(False)
    check(plan)


CUBE = mesh_of((2, 2, 2))
GRID = mesh_of((2, 4))


def spec(text, mesh=GRID):
    return ShardingSpec.parse(f"<@{mesh.name}, {text}>", mesh)


def kinds(src, dst, shape=(16, 16), mesh=GRID, machine=None):
    plan = plan_reshard(spec(src, mesh), spec(dst, mesh), shape, 4, machine)
    check(plan)
    return [step.kind for step in plan.steps]


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ('[{"x"}, {}]', '[{"x"}, {}]', []),
        ('[{"x"}, {}]', '[{"x", ?}p1, {}], replicated={"y"}', []),
        ('[{"x"}, {}]', '[{"x", "y"}, {}]', ["slice"]),
        ("[{}, {}]", '[{"x"}, {"y"}]', ["slice"]),
        ('[{"x", "y"}, {}]', '[{"x"}, {}]', ["all_gather"]),
        ('[{"x"}, {"y"}]', "[{}, {}]", ["all_gather"]),
        ('[{"y"}, {}]', '[{"y":(1)2}, {}]', ["all_gather"]),
        ('[{"x", "y"}, {}]', '[{"x"}, {"y"}]', ["all_to_all"]),
        ('[{"y"}, {}]', '[{"y":(1)2}, {"y":(2)2}]', ["all_to_all"]),
        ('[{"x", "y"}, {}]', '[{"y", "x"}, {}]', ["collective_permute"]),
        ('[{"x"}, {"y":(1)2}]', '[{"y":(1)2}, {"x"}]', ["collective_permute"]),
        ('[{"x"}, {}]', '[{"y":(2)2}, {}]', ["collective_permute"]),
        ('[{"x"}, {}]', '[{"y"}, {}]', ["exchange"]),
        ('[{"y"}, {"x"}]', '[{"x"}, {}]', ["exchange"]),
        ('[{}, {}], unreduced={"x", "y"}', '[{"x"}, {"y"}]', ["reduce_scatter"]),
        ('[{}, {}], unreduced={"y"}', '[{"y"}, {}]', ["reduce_scatter", "all_gather"]),
        ('[{"x"}, {}], unreduced={"y"}', '[{"x"}, {"y"}]', ["reduce_scatter"]),
        ('[{"y"}, {}], unreduced={"x"}', '[{"y"}, {}]', ["all_reduce"]),
        ('[{"x"}, {}], unreduced={"y"}', '[{"x"}, {}]', ["reduce_scatter", "all_gather"]),
        ('[{"x"}, {}], unreduced=max{"y"}', '[{}, {"x"}]', ["exchange", "all_gather"]),
        ('[{}, {}], unreduced={"x", "y"}', '[{"y"}, {}]', ["reduce_scatter", "all_gather"]),
        ('[{"x"}, {}]', '[{"x"}, {}], unreduced={"y"}', ["mask"]),
        ('[{"x"}, {}]', '[{}, {"x"}], unreduced=min{"y"}', ["all_to_all", "mask"]),
        ('[{"x"}, {}], unreduced={"y"}', '[{}, {"x"}], unreduced={"y"}', ["all_to_all"]),
        ('[{}, {}], unreduced={"y"}', '[{"y":(2)2}, {}], unreduced={"y":(1)2}', ["reduce_scatter"]),
    ],
)
def test_simple_reshards_are_one_named_collective(src, dst, expected):
    assert kinds(src, dst) == expected


def test_uneven_blocks_that_do_not_nest_are_exchanged():
    assert kinds('[{"x"}, {}]', '[{"x", "y"}, {}]', (10, 4)) == ["exchange"]
    assert kinds('[{"x", "y"}, {}]', '[{"x"}, {}]', (10, 4)) == ["exchange"]
    assert kinds('[{"x", "y"}, {}]', '[{"x"}, {}]', (7, 4)) == ["all_gather"]
    assert kinds('[{"x", "y"}, {}]', '[{"x"}, {}]', (0, 4)) == ["slice"]
    assert kinds('[{"x"}, {"y"}]', '[{"y"}, {"x"}]', (1, 1)) == ["slice"]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("shape", [(4, 2), (2, 2, 2)])
def test_all_pairs_on_eight_devices_move_the_least(shape, rank):
    mesh, array = mesh_of(shape), (24, 16)[:rank]
    specs = []
    for dims in np.ndindex((rank + 1,) * len(shape)):
        cuts = [[a for a, at in zip(mesh.axis_names, dims) if at == dim] for dim in range(rank)]
        specs += [
            ShardingSpec(mesh, map(DimSpec, cuts)),
            ShardingSpec(mesh, [DimSpec(c[::-1]) for c in cuts]),
        ]
    for src in specs:
        for dst in specs:
            plan = plan_reshard(src, dst, array)
            needs = sum(
                b.size - (a & b).size for a, b in zip(src.regions(array), dst.regions(array))
            )
            assert sum(plan.received) == plan.ideal == needs * 4


def test_the_sum_of_a_matmul_is_scattered_as_in_the_design():
    plan = plan_reshard(spec('[{"x"}, {}], unreduced={"y"}'), spec('[{"x"}, {"y"}]'), (8, 32))
    assert [step.kind for step in plan.steps] == ["reduce_scatter"]
    assert plan.received == plan.sent == (3 * 4 * 8 * 4,) * 8
    assert (plan.steps[0].axes, plan.steps[0].dims, plan.steps[0].monoids) == (
        ("y",),
        (1,),
        ("sum",),
    )
    assert plan.price == pytest.approx(384e-9)


def test_parts_by_different_monoids_are_combined_minor_axes_first():
    src, dst = spec('[{}], unreduced={"x"}, unreduced=max{"y"}'), spec("[{}]")
    plan = plan_reshard(src, dst, (8,))
    check(plan)
    assert plan.steps[0].monoids == ("sum", "max")
    plan = plan_reshard(src, spec('[{}], unreduced={"x"}'), (8,))
    check(plan)
    assert plan.steps[0].monoids == ("max",)


def test_the_ideal_of_a_reduction_is_reached_with_replicas_too():
    mesh = mesh_of((2, 3))
    plan = plan_reshard(spec('[{}], unreduced={"y"}', mesh), spec("[{}]", mesh), (12,))
    assert sum(plan.received) == plan.ideal == 12 * 4 * (2 + 5)
    check(plan)


# -- other meshes ---------------------------------------------------------------------------------


def test_a_transposed_mesh_names_its_collectives():
    turned = DeviceMesh("t", (4, 2), ("y", "x"), np.arange(8).reshape(2, 4).T.flatten().tolist())
    plan = plan_reshard(spec('[{"x", "y"}, {}]'), spec('[{"x"}, {}]', turned), (16, 4))
    assert [step.kind for step in plan.steps] == ["all_gather"]
    plan = plan_reshard(spec('[{"x", "y"}, {}]'), spec('[{"x", "y"}, {}]', turned), (16, 4))
    assert plan.steps == ()
    sums = plan_reshard(
        spec('[{"x"}, {}], unreduced={"y"}'), spec('[{"x"}, {"y"}]', turned), (16, 4)
    )
    assert [step.kind for step in sums.steps] == ["reduce_scatter"]
    check(sums)


def test_a_mesh_of_another_shape_names_its_collectives():
    line = mesh_of((8,), name="line", axes="a")
    plan = plan_reshard(spec('[{"x", "y"}, {}]'), spec('[{}, {"a"}]', line), (16, 16))
    assert [step.kind for step in plan.steps] == ["all_to_all"]
    assert plan_reshard(spec('[{"x", "y"}]'), spec('[{"a"}]', line), (16,)).steps == ()
    check(plan)


def test_some_only_send_and_some_only_receive():
    left, right = mesh_of((2,), (0, 1), "left"), mesh_of((4,), (5, 1, 6, 7), "right")
    plan = plan_reshard(spec('[{"x"}]', left), spec('[{"x"}]', right), (8,), 1)
    assert plan.devices == (0, 1, 5, 6, 7)
    assert plan.received == (0, 2, 2, 2, 2)
    assert plan.sent == (4, 4, 0, 0, 0)
    assert plan.peak == (4, 6, 2, 2, 2)
    check(plan)


def test_part_of_a_mesh_that_holds_everything_already():
    part = mesh_of((2,), (3, 5), "part")
    plan = plan_reshard(spec("[{}]"), spec('[{"x"}]', part), (8,))
    assert ([step.kind for step in plan.steps], sum(plan.received)) == (["slice"], 0)
    assert plan_reshard(spec("[{}]"), spec("[{}]", part), (8,)).steps == ()


def test_ciphertexts_of_seed_002_are_packed_two_to_one():
    """[64][112, 112] on 64 ciphertexts becomes [32][2, 112, 112] on 32."""
    many = DeviceMesh("many", (64, 1, 1), ("x", "y", "z"))
    half = DeviceMesh("half", (32, 1, 1), ("x", "y", "z"))
    src, dst = (
        ShardingSpec(mesh, [DimSpec(["x"]), DimSpec(["y"]), DimSpec([])]) for mesh in (many, half)
    )
    plan = plan_reshard(src, dst, (64, 112, 112), 1)
    shard = 112 * 112
    assert plan.received == (shard, *[2 * shard] * 31, *[0] * 32)
    assert plan.sent == (0, *[shard] * 63)
    first = [str(move) for move in plan.steps[0].moves()][:3]
    assert first == [
        "0 -> 0 [0:1, 0:112, 0:112]",
        "1 -> 0 [1:2, 0:112, 0:112]",
        "2 -> 1 [2:3, 0:112, 0:112]",
    ]


# -- machines -------------------------------------------------------------------------------------

CLUSTER = mesh_of((2, 4), name="cluster", axes=["node", "gpu"])
SLOW = Machine({"node": (5e-6, 1e10)}, latency=1e-6, bandwidth=4e11)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ('[{"node"}, {"gpu"}]', "[{}, {}]", ["all_gather", "all_gather"]),
        ('[{"gpu", "node"}, {}]', "[{}, {}]", ["all_gather", "all_gather"]),
        ('[{"node", "gpu"}, {}]', "[{}, {}]", ["exchange", "all_gather"]),
        (
            '[{}, {}], unreduced={"node", "gpu"}',
            "[{}, {}]",
            ["reduce_scatter", "reduce_scatter", "all_gather", "all_gather"],
        ),
        (
            '[{}, {}], unreduced={"node", "gpu"}',
            '[{"gpu"}, {}]',
            ["reduce_scatter", "reduce_scatter", "all_gather"],
        ),
        ('[{"node"}, {}]', '[{}, {"node"}]', ["exchange", "all_gather"]),
        ('[{"node", "gpu"}, {}]', '[{}, {"node", "gpu"}]', ["all_to_all"]),
    ],
)
def test_traffic_is_kept_off_a_slow_axis(src, dst, expected):
    shape = (1024, 512)
    start, end = spec(src, CLUSTER), spec(dst, CLUSTER)
    chain, direct = plan_reshard(start, end, shape, 4, SLOW), plan_reshard(start, end, shape)
    assert [step.kind for step in chain.steps] == expected
    assert chain.price == pytest.approx(timed(chain, SLOW))
    assert chain.price <= timed(direct, SLOW)
    if len(expected) > 1:
        assert across_nodes(chain) < across_nodes(direct)
        assert chain.price < timed(direct, SLOW) / 1.5


@given(st.sampled_from([(2, 4), (2, 2, 2), (2, 3)]), st.data())
def test_the_price_is_what_the_transfers_of_the_busiest_cells_take(shape, data):
    mesh = mesh_of(shape)
    src, dst = data.draw(specs(mesh, 2)), data.draw(specs(mesh, 2))
    dst = ShardingSpec(mesh, dst.dim_specs)
    machine = data.draw(machines(mesh))
    plan = plan_reshard(src, dst, (2 * mesh.size, mesh.size), 4, machine)
    assert plan.price == pytest.approx(timed(plan, machine))


def timed(plan, machine):
    """What the steps take: each cell's bytes, by the slowest axis that each transfer crosses."""
    total = 0.0
    for step in plan.steps:
        axes = step.before.mesh.axis_names
        taken = {device: [0.0, 0.0] for device in step.devices}
        for move in step.transfers():
            one, two = (step.before.mesh.coord(device) for device in (move.sender, move.receiver))
            links = [machine.link(axis) for axis, a, b in zip(axes, one, two) if a != b]
            slowest = min(links, key=lambda link: (link.bandwidth, -link.latency))
            cell = taken[move.receiver]
            cell[0] = max(cell[0], slowest.latency)
            cell[1] += move.box.size * step.itemsize / slowest.bandwidth
        total += max(map(sum, taken.values()))
    return total


def across_nodes(plan):
    return sum(
        move.box.size
        for step in plan.steps
        for move in step.transfers()
        if move.sender // 4 != move.receiver // 4
    )


def test_small_arrays_are_reduced_in_one_step():
    src, dst = spec('[{}], unreduced={"node", "gpu"}', CLUSTER), spec("[{}]", CLUSTER)
    assert [step.kind for step in plan_reshard(src, dst, (8,), 4, SLOW).steps] == ["all_reduce"]
    large = plan_reshard(src, dst, (1 << 20,), 4, SLOW)
    assert large.steps[0].kind == "reduce_scatter"


def test_replicas_near_by_are_asked_first():
    src, dst = spec('[{"gpu"}]', CLUSTER), spec("[{}]", CLUSTER)
    for machine in (None, SLOW):
        assert across_nodes(plan_reshard(src, dst, (8,), 4, machine)) == 0


def test_the_load_is_spread_over_replicas():
    mesh = mesh_of((4, 2))
    plan = plan_reshard(spec('[{"x"}]', mesh), spec('[{"y"}]', mesh), (8,), 1)
    assert plan.received == (2, 4, 2, 4, 4, 2, 4, 2)
    assert max(plan.sent) == 4
    check(plan)


def test_a_single_holder_scatters_and_the_receivers_gather():
    one, many = mesh_of((1,), name="one"), mesh_of((8,), range(1, 9), "many")
    plan = plan_reshard(spec("[{}]", one), spec("[{}]", many), (64,))
    assert [step.kind for step in plan.steps] == ["exchange", "all_gather"]
    assert plan.sent == (256, *[224] * 8)
    assert sum(plan.received) == plan.ideal
    whole = mesh_of((8,), name="whole")  # here the source would have to receive what it has
    assert len(plan_reshard(spec("[{}]", one), spec("[{}]", whole), (64,)).steps) == 1
    fast = plan_reshard(spec("[{}]", one), spec("[{}]", whole), (64,), 4, Machine())
    assert [step.kind for step in fast.steps] == ["exchange", "all_gather"]
    check(fast)


def test_planning_on_4096_cells_looks_at_no_pair_of_them():
    mesh = mesh_of((64, 64))
    everything = plan_reshard(spec('[{"x"}, {"y"}]', mesh), spec("[{}, {}]", mesh), (4096, 4096))
    assert everything.received == everything.sent == (4 * (4096**2 - 64**2),) * 4096
    sums = plan_reshard(
        spec('[{"x"}, {}], unreduced={"y"}', mesh), spec("[{}, {}]", mesh), (4095, 3)
    )
    assert sum(sums.received) == sum(sums.sent) >= sums.ideal
    turned = plan_reshard(
        spec('[{"x", "y"}, {}]', mesh), spec('[{}, {"y", "x"}]', mesh), (4096, 4096)
    )
    assert turned.sent == turned.received == (4 * (4096 - 1),) * 4096
    assert str(turned).count("\n") == 3


# -- what a plan says -----------------------------------------------------------------------------


def test_a_plan_is_a_table_and_a_line():
    plan = plan_reshard(spec('[{"x"}, {}], unreduced={"y"}'), spec('[{"x"}, {}]'), (8, 16))
    lines = str(plan).splitlines()
    assert lines[1].split() == ["step", "axes", "dims", "after", "received", "sent", "seconds"]
    assert lines[2].split()[:4] == ["reduce_scatter", "sum", '"y"', "0"]
    assert lines[-1].startswith("8 cells, 3,072 B received in all = 1.00 x the least, peak 576 B")
    assert "\n" not in repr(plan)
    assert repr(plan).endswith("[8, 16] of 4 B: [reduce_scatter, all_gather])")
    assert str(plan.steps[1]) == 'all_gather {"y"} <@m, [{"x", "y"}, {}]> -> <@m, [{"x"}, {}]>'


def test_a_plan_draws_who_sends_which_box_to_whom(capsys):
    mesh = mesh_of((2,))
    show(plan_reshard(spec('[{"x"}, {}]', mesh), spec('[{}, {"x"}]', mesh), (4, 8)))
    assert "│   0   │  0→1  │" in capsys.readouterr().out
    show(plan_reshard(spec('[{}], unreduced={"y"}'), spec('[{"y"}]'), (4,)))
    assert "│ 1 2 3→0 5 6 7→4 │" in capsys.readouterr().out


@given(reshards())
@settings(max_examples=trials(50))
def test_every_plan_has_a_small_picture_and_a_table(case):
    plan = plan_reshard(*case)
    assert plan._repr_html_().startswith(("<svg", "<pre>"))
    assert len(plan._repr_html_()) <= 25_000
    assert len(str(plan).splitlines()) == len(plan.steps) + 3
    assert hash(plan) == hash(plan_reshard(*case))


def test_equal_reshards_are_planned_once():
    first = plan_reshard(spec('[{"x"}]'), spec('[{"y"}]'), (8,))
    assert plan_reshard(spec('[{"x"}]'), spec('[{"y"}]'), [8]) is first


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (
            '[{"x"}]',
            '[{}], unreduced={"x"}',
            'axis "x" cuts dimension 0 of the source and is unreduced by sum',
        ),
        (
            '[{}], unreduced={"x"}',
            '[{}], unreduced=max{"x"}',
            'axis "x" is unreduced by sum in the source and by max in the destination',
        ),
        (
            '[{}], unreduced={"x"}, unreduced=max{"y"}',
            '[{}], unreduced=max{"y"}',
            'parts over axis "x" cannot be combined by sum while parts by max',
        ),
        (
            '[{}], unreduced=max{"y"}',
            '[{}], unreduced={"x"}, unreduced=max{"y"}',
            'parts over axis "x" cannot be made by sum while parts by max',
        ),
        (
            '[{"x"}]',
            '[{"x"}, {}]',
            r"the source is a sharding of 1 dimension, .* the destination of 2",
        ),
    ],
)
def test_impossible_partial_destinations_are_refused(src, dst, message):
    with pytest.raises(LayoutError, match=message):
        plan_reshard(spec(src), spec(dst), (8,))


def test_parts_need_cells_that_match():
    other = mesh_of((2, 2), (3, 1, 2, 0), "other")
    with pytest.raises(
        LayoutError,
        match='"x" is unreduced by sum in the destination, but the cells of @m and @other',
    ):
        plan_reshard(spec("[{}]"), spec('[{}], unreduced={"x"}', other), (8,))
    turned = DeviceMesh("t", (4, 2), ("y", "x"), np.arange(8).reshape(2, 4).T.flatten().tolist())
    mixed = '[{}], unreduced={"x"}, unreduced=max{"y"}'
    with pytest.raises(LayoutError, match="the destination's mesh has another order"):
        plan_reshard(spec(mixed), spec(mixed, turned), (8,))


def test_invalid_arguments_of_plan_reshard_are_refused():
    src, dst = spec('[{"x"}]'), spec("[{}]")
    with pytest.raises(WeftError, match="shape has 2 dimensions where 1 are expected"):
        plan_reshard(src, dst, (8, 8))
    with pytest.raises(WeftError, match="dimension 0 has the negative size -8"):
        plan_reshard(src, dst, (-8,))
    with pytest.raises(WeftError, match="shape must be a sequence of integers"):
        plan_reshard(src, dst, (8.0,))
    with pytest.raises(WeftError, match="itemsize is -1; it cannot be negative"):
        plan_reshard(src, dst, (8,), -1)
    with pytest.raises(WeftError, match="itemsize is 0; an element has at least one byte"):
        plan_reshard(src, dst, (8,), 0)
    with pytest.raises(WeftError, match=r"itemsize must be an integer: 4\.0"):
        plan_reshard(src, dst, (8,), 4.0)
    with pytest.raises(WeftError, match="source and destination must be ShardingSpecs, got"):
        plan_reshard(src, "[{}]", (8,))
    with pytest.raises(WeftError, match="machine must be a Machine, got 'fast'"):
        plan_reshard(src, dst, (8,), 4, "fast")
    with pytest.raises(
        LayoutError, match=r'the machine has a link along axis "z", but @m = .* has none'
    ):
        plan_reshard(src, dst, (8,), 4, Machine({"z": (0, 1)}))
