"""Shardings as `NamedSharding`s, box by box against JAX itself."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from tests.strategies import meshes

from weft import DeviceMesh, DimSpec, LayoutError, ShardingSpec
from weft.interop.jax import from_named_sharding, to_named_sharding


@st.composite
def whole_axis_specs(draw):
    """Whole axes in any order on any dimension, some unreduced, on at most 16 devices."""
    mesh = draw(meshes(max_size=16))
    ndim = draw(st.integers(0, 3))
    dims, partial = [[] for _ in range(ndim)], {}
    for axis in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(0, ndim + 1))
        if place < ndim:
            dims[place].append(axis)
        elif place == ndim:
            partial[axis] = "sum"
    return ShardingSpec(mesh, map(DimSpec, dims), (), partial)


@given(whole_axis_specs(), st.data())
def test_shards_are_those_of_jax(spec, data):
    shape = tuple(count * data.draw(st.integers(1, 3)) for count in spec.grid)
    cut = ShardingSpec(spec.mesh, spec.dim_specs)  # JAX has no boxes for what is unreduced
    theirs = to_named_sharding(cut, shape=shape).devices_indices_map(shape)
    devices = jax.devices()
    assert len(theirs) == spec.mesh.size
    for cell in spec.mesh.cells():
        index = theirs[devices[spec.mesh.device(cell)]]
        expected = tuple(slice(*part.indices(n)[:2]) for part, n in zip(index, shape))
        assert spec.region(shape, cell).slices() == expected


@given(whole_axis_specs())
def test_there_and_back_is_the_same_sharding(spec):
    sharding = to_named_sharding(spec)
    again = from_named_sharding(sharding, name=spec.mesh.name)
    assert str(again) == str(spec)
    assert again.mesh.shape == spec.mesh.shape
    ids = [list(s.mesh.device_ids or range(s.mesh.size)) for s in (spec, again)]
    assert ids[0] == ids[1]
    assert to_named_sharding(again) == sharding


def test_arrays_lie_as_the_spec_says():
    mesh = DeviceMesh("m", (2, 4), ("x", "y"), device_ids=[3, 1, 2, 0, 7, 6, 5, 4])
    spec = ShardingSpec.parse('<@m, [{"y"}, {"x"}]>', mesh)
    array = np.arange(64).reshape(8, 8)
    placed = jax.device_put(array, to_named_sharding(spec))
    for shard in placed.addressable_shards:
        cell = mesh.device_ids.index(shard.device.id)
        assert np.array_equal(shard.data, array[spec.region((8, 8), cell).slices()])


def test_unconstrained_dimensions_of_jax_are_open():
    mesh = AbstractMesh((2, 4), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(PartitionSpec.UNCONSTRAINED, "x", None))
    assert str(from_named_sharding(sharding)) == '<@mesh, [{?}, {"x"}, {}]>'


def test_a_sum_is_unreduced():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    spec = ShardingSpec.parse('<@m, [{"x"}], unreduced={"y"}>', mesh)
    assert to_named_sharding(spec).spec == PartitionSpec("x", unreduced={"y"})


FOUR = DeviceMesh("m", (4, 2), ("x", "y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '<@m, [{"x":(1)2}]>',
            'axis "x":(1)2 cuts dimension 0, and JAX names whole axes only',
        ),
        (
            '<@m, [{}], unreduced={"x":(2)2}>',
            'axis "x":(2)2 is unreduced by sum, and JAX names whole axes only',
        ),
        (
            '<@m, [{}], unreduced=max{"x"}>',
            'axis "x" is unreduced by max, and unreduced is a sum in JAX',
        ),
        (
            '<@m, [{"y", "x"}]>',
            'dimension 0 of size 10 is cut by {"y", "x"}, and JAX has shards of one size: '
            "10 = 8 x 1 + 2",
        ),
    ],
)
def test_shardings_that_jax_cannot_express(text, message):
    with pytest.raises(LayoutError) as refused:
        to_named_sharding(ShardingSpec.parse(text, FOUR), shape=(10,))
    assert str(refused.value) == message


def test_a_mesh_needs_its_devices():
    with pytest.raises(LayoutError, match=r"has device 7, and JAX has 4 devices") as refused:
        to_named_sharding(ShardingSpec.parse('<@m, [{"x"}]>', FOUR), jax.devices()[:4])
    assert refused.value.__notes__ == [
        "hint: to try it on a CPU: XLA_FLAGS=--xla_force_host_platform_device_count=8"
    ]


def test_shardings_of_jax_that_cannot_be_read():
    with pytest.raises(LayoutError, match="expected a NamedSharding, got SingleDeviceSharding"):
        from_named_sharding(SingleDeviceSharding(jax.devices()[0]))
    two = NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec("x", None))
    with pytest.raises(LayoutError, match="has 2 dimensions, and the array has 1"):
        from_named_sharding(two, ndim=1)
    odd = NamedSharding(Mesh(np.array(jax.devices()[:2]), (3,)), PartitionSpec())
    with pytest.raises(LayoutError, match=r"axis 3 of .* is not a name"):
        from_named_sharding(odd)


def test_without_jax_an_error_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None; import weft.interop.jax"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "JAX shardings need jax, which is not installed: pip install 'weft[jax]'"
    assert f"ModuleNotFoundError: {said}" in ran.stderr
