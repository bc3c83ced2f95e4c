"""The same questions to libraries that nobody here wrote: JAX, Shardy in jaxlib, DTensor."""

import jax
import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from tests.strategies import meshes, specs
from tests.trials import trials
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from weft import DeviceMesh, DimSpec, ShardingSpec


@st.composite
def whole_axis_specs(draw):
    """Shardings that JAX can express: whole axes only, on at most 16 devices in any order."""
    mesh = draw(meshes(max_size=16))
    ndim = draw(st.integers(0, 4))
    used = [[] for _ in range(ndim + 1)]
    for axis in draw(st.permutations(mesh.axis_names)):
        used[draw(st.integers(0, ndim))].append(axis)
    return ShardingSpec(mesh, [DimSpec(axes) for axes in used[:ndim]])


@given(whole_axis_specs(), st.data())
def test_even_regions_are_those_of_jax(spec, data):
    shape = tuple(count * data.draw(st.integers(1, 3)) for count in spec.grid)
    assert spec.is_even(shape)
    devices = np.array(jax.devices(), dtype=object)
    order = [spec.mesh.device(rank) for rank in range(spec.mesh.size)]
    jax_mesh = Mesh(devices[order].reshape(spec.mesh.shape), spec.mesh.axis_names)
    sharding = NamedSharding(jax_mesh, PartitionSpec(*(dim.axes or None for dim in spec.dim_specs)))
    theirs = sharding.devices_indices_map(shape)
    assert len(theirs) == spec.mesh.size
    for cell in spec.mesh.cells():
        index = theirs[devices[spec.mesh.device(cell)]]
        expected = tuple(slice(*part.indices(n)[:2]) for part, n in zip(index, shape))
        assert spec.region(shape, cell).slices() == expected


@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=3), st.data())
def test_uneven_regions_are_those_of_dtensor_on_one_axis(size, shape, data):
    dim = data.draw(st.none() | st.integers(0, len(shape) - 1))
    mesh = DeviceMesh("m", (size,), ("x",))
    spec = ShardingSpec(mesh, [DimSpec(["x"] if d == dim else []) for d in range(len(shape))])
    placement = Replicate() if dim is None else Shard(dim)
    for cell in range(size):
        local, offset = _compute_local_shape_and_global_offset(shape, (size,), [cell], [placement])
        region = spec.region(shape, cell)
        assert region.shape == local
        assert region.start == offset


@settings(max_examples=trials(300))
@given(specs())
def test_shardy_reads_our_text_and_prints_the_same(spec):
    assume(spec.mesh.name.isascii())  # MLIR prints other letters as escapes
    assume(set(spec.partial.values()) <= {"sum"})  # jaxlib 0.10 knows no other monoid in text
    with ir.Context() as context:
        sdy.register_dialect(context)
        attribute = ir.Attribute.parse(f"#sdy.sharding{spec}")
        assert str(attribute) == f"#sdy.sharding{spec}"


@given(meshes())
def test_shardy_reads_our_meshes_and_prints_the_same(mesh):
    body = str(mesh).rpartition(" = ")[2]
    with ir.Context() as context:
        sdy.register_dialect(context)
        assert str(ir.Attribute.parse(f"#sdy.mesh{body}")) == f"#sdy.mesh{body}"
