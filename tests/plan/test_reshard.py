"""Reshard plans, run on NumPy shards: values, bytes, memory, prices, and what is refused."""

from math import prod

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.plan.moving import gather, make_parts, run, scatter
from tests.strategies import specs

from weft import (
    DeviceMesh,
    LayoutError,
    Machine,
    ShardingSpec,
    plan_reshard,
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
    """No cell holds more than its two shards: all between them lies inside the second."""
    for step in plan.steps[:-1]:
        for cell in step.after.mesh.cells():
            box = step.after.region(plan.shape, cell)
            assert box in plan.dst.region(plan.shape, cell)
    held = dict.fromkeys(plan.devices, 0)
    for spec in (plan.src, plan.dst):
        for cell in spec.mesh.cells():
            held[spec.mesh.device(cell)] += spec.region(plan.shape, cell).size * plan.itemsize
    assert all(peak <= both for peak, both in zip(plan.peak, held.values()))


@given(reshards(), st.integers(1, 8))
def test_any_sharding_becomes_any_other(case, itemsize):
    plan = plan_reshard(*case, itemsize)
    check(plan)
    if not plan.src.partial:
        assert sum(plan.received) == plan.ideal


@given(reshards(), st.data())
def test_on_any_machine(case, data):
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
def test_destinations_with_parts(case):
    src, dst, shape = case
    try:
        plan = plan_reshard(src, dst, shape)
    except LayoutError:
        assume(False)
    check(plan)
