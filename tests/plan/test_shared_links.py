"""Shared links: prices compared with all messages, one by one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import specs

from weft import DeviceMesh, Machine, ShardingSpec, ops, plan_reshard, propagate, trace
from weft.plan import Plan, estimate
from weft.plan.machines import H200_NODE
from weft.program import Route, Transfer
from weft.program.messages import messages

AXES = ("x", "y", "z")
KB = 1000


def mesh_of(*shape):
    return DeviceMesh("m", shape, AXES[: len(shape)])


def spec(text, mesh):
    return ShardingSpec.parse(f"<@m, {text}>", mesh)


@st.composite
def machines(draw, mesh):
    """Links that are shared or not, no two of one speed."""
    speeds = draw(st.permutations([1e9, 3e9, 1e10, 4e10]))
    links = {
        axis: (draw(st.sampled_from([0, 1e-6])), speed, draw(st.booleans()))
        for axis, speed in zip(mesh.axis_names, speeds)
        if draw(st.booleans())
    }
    latency = draw(st.sampled_from([0, 1e-6]))
    return Machine(links, latency, speeds[-1], shared=draw(st.booleans()))


def timed(steps, mesh, machine):
    """What the messages of steps take; who shares a link is found by looking at all cells."""
    total = 0.0
    for moves, itemsize in steps:
        received, added = Counter(), Counter()
        for move in moves:
            one, two = mesh.coord(move.sender), mesh.coord(move.receiver)
            crossed = [axis for axis, a, b in zip(mesh.axis_names, one, two) if a != b]
            axis = min(crossed, key=lambda axis: machine.link(axis).bandwidth)
            medium = axis if axis in machine.links else ""
            own = {axis} if medium else {*mesh.axis_names} - {*machine.links}
            rest = [(n, x) for n, x in zip(mesh.axis_names, two) if n not in own]
            received[move.receiver, axis, medium, tuple(rest)] += move.box.size * itemsize
            added[medium, tuple(rest)] += move.box.size * itemsize
        waits: dict[int, list[float]] = {}
        seen = set()
        for (receiver, axis, medium, rest), size in received.items():
            link = machine.link(axis)
            wait = waits.setdefault(receiver, [0.0, 0.0])
            wait[0] = max(wait[0], link.latency)
            if not link.shared:
                wait[1] += size / link.bandwidth
            elif (receiver, medium) not in seen:
                seen.add((receiver, medium))
                wait[1] += added[medium, rest] / link.bandwidth
        total += max(map(sum, waits.values()), default=0.0)
    return total


@given(st.sampled_from([(2, 4), (2, 2, 2), (2, 3), (4,)]), st.data())
def test_price_equals_the_messages_of_the_busiest_cells(shape, data):
    mesh = mesh_of(*shape)
    src, dst = data.draw(specs(mesh, 2)), data.draw(specs(mesh, 2))
    dst = ShardingSpec(mesh, dst.dim_specs)
    machine = data.draw(machines(mesh))
    plan = plan_reshard(src, dst, (2 * mesh.size, mesh.size), 4, machine)
    steps = [(list(step.transfers()), step.itemsize) for step in plan.steps]
    assert plan.price == pytest.approx(timed(steps, mesh, machine))


def price(src, dst, mesh, **link):
    machine = Machine(**link)
    return plan_reshard(spec(src, mesh), spec(dst, mesh), (64, 64 * KB), 4, machine).price


def test_the_bytes_of_a_group_add_up():
    mesh, size = mesh_of(2, 4), 4 * 64 * 64 * KB
    gather = ('[{"y"}, {}]', "[{}, {}]", mesh)
    alone = price(*gather, bandwidth=1e9)
    assert alone == pytest.approx(size * 3 / 4 / 1e9)
    assert price(*gather, links={"y": (0, 1e9, True)}) == pytest.approx(4 * alone)
    assert price(*gather, links={"x": (0, 1e9, True)}) == pytest.approx(alone)
    assert price(*gather, bandwidth=1e9, shared=True) == pytest.approx(8 * alone)
    rows = {"links": {"x": (0, 1e9)}, "bandwidth": 1e9, "shared": True}
    assert price(*gather, **rows) == pytest.approx(4 * alone)


def test_sub_axes_share_the_link_of_their_axis():
    mesh = mesh_of(8)
    gather = ('[{"x":(4)2}, {}]', "[{}, {}]", mesh)
    assert price(*gather, shared=True) == pytest.approx(8 * price(*gather))


def test_transfers_on_a_shared_link_are_counted_once():
    one, many = DeviceMesh("one", (1,), ("x",)), DeviceMesh("m", (8,), ("x",), range(1, 9))
    src, dst = ShardingSpec.parse("<@one, [{}]>", one), spec('[{"x"}]', many)
    plan = plan_reshard(src, dst, (8 * KB,), 1, Machine(bandwidth=1e9, shared=True))
    assert plan.price == pytest.approx(8 * KB / 1e9)


def halo(machine):
    graph = trace(
        lambda image, kernel: ops.convolve(image, kernel, padding=(1, 1)),
        *((1, 1, 64, 64), (1, 1, 3, 3)),
        meshes=[mesh_of(2, 2)],
        shardings={"image": '<@m, [{}, {}, {"x"}, {"y"}]>'},
    )
    plan = Plan.of(propagate(graph))
    (fetch,) = [i for i in plan.program.walk() if isinstance(i, Transfer)]
    layouts = [plan.program.buffers[n].layout for n in (fetch.source, fetch.result)]
    moved = [m for m in messages(Route.of(fetch, *layouts)) if m.sender != m.receiver]
    (item,) = [item for item in estimate(plan, machine).items if item.received]
    return item.seconds, timed([(moved, 4)], plan.mesh, machine)


@pytest.mark.parametrize("shared", [False, True])
def test_fetches_use_the_links_of_their_axes(shared):
    machine = Machine({"x": (1e-6, 1e9, shared)}, bandwidth=1e10, shared=shared)
    found, expected = halo(machine)
    assert found == pytest.approx(expected)
    assert found > halo(Machine({"x": (0, 1e9)}, bandwidth=1e10))[0]


def test_estimate_uses_the_given_machine():
    mesh = mesh_of(4)
    graph = trace(
        lambda x, w: x @ w, (64, 64), (64, 64), meshes=[mesh], shardings={"x": '<@m, [{}, {"x"}]>'}
    )
    plan, slow = Plan.of(propagate(graph)), Machine(bandwidth=1e6, latency=1.0)
    parts = 3 * 64 * 64 * 4 / 4  # a reduce_scatter and an all_gather, chosen for fewest bytes
    assert estimate(plan, slow).communicate == pytest.approx(2 * (1.0 + parts / 1e6))
    assert estimate(plan).communicate == pytest.approx(2 * parts / 1e9)
    chosen = Plan.of(propagate(graph), slow)
    assert estimate(chosen).communicate == pytest.approx(1.0 + 4 * parts / 1e6)  # one all_reduce
    fast = Plan(plan.graph, mesh, plan.specs, plan.outputs, plan.placed, H200_NODE)
    assert estimate(fast).communicate == estimate(fast, H200_NODE).communicate


def test_a_machine_for_another_mesh_is_refused():
    graph = trace(lambda x: x * 2, (8,), meshes=[mesh_of(2)])
    with pytest.raises(ValueError, match='the machine has a link along axis "node", but @m = '):
        estimate(Plan.of(propagate(graph)), Machine({"node": (0, 1)}))
