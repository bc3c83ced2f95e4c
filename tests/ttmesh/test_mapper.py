"""Mappers as shardings and back, composers, configs and pictures."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import meshes, sharded_shapes, specs
from tests.ttmesh.reference import expected_shards

from weft import DeviceMesh, DimSpec, ShardingSpec, show
from weft.draw import to_svg
from weft.errors import LayoutError, WeftError
from weft.ttmesh import (
    Composer,
    ConcatMesh2dToTensor,
    ConcatMeshToTensor,
    Mapper,
    MeshBuffer,
    Replicate,
    ReplicatedBufferConfig,
    ReplicateTensorToMesh,
    Shard,
    ShardedBufferConfig,
    ShardTensor2dMesh,
    ShardTensorToMesh,
    deliver,
    distribute,
    from_spec,
    gather,
    lower,
    plain,
    runtime_shards,
    shards,
    to_spec,
)
from weft.ttmesh.mesh import as_mesh


@given(sharded_shapes())
def test_a_sharding_and_its_mapper_give_every_cell_the_same_box(case):
    spec, shape = case
    if spec.partial or spec.cut_points or not spec.mesh.ndim:
        return
    mapper = from_spec(spec)
    boxes = mapper.boxes(shape)
    assert [box for (box,) in boxes] == spec.regions(shape)
    if prod(shape):
        assert {box for (box,) in boxes if box} == {box for box in spec.boxes(shape) if box}
    again = to_spec(mapper, spec.ndim)
    assert again.regions(shape) == spec.regions(shape)
    assert from_spec(again) == Mapper(again.mesh, mapper.placements, order=mapper.order)


@given(st.data())
def test_mappers_of_whole_axes_round_trip(data):
    mesh = data.draw(meshes(max_rank=4).filter(lambda mesh: mesh.ndim))
    ndim = data.draw(st.integers(1, 4))
    each = [data.draw(st.sampled_from([None, *range(ndim)])) for _ in mesh.shape]
    mapper = Mapper(mesh, each, order=data.draw(st.permutations(range(mesh.ndim))))
    spec = to_spec(mapper, ndim)
    assert to_spec(from_spec(spec), ndim) == spec
    live = [p if n > 1 else Replicate() for p, n in zip(mapper.placements, mesh.shape)]
    found = from_spec(spec)
    assert [p if n > 1 else Replicate() for p, n in zip(found.placements, found.over)] == live


@given(specs())
def test_a_partial_sharding_is_refused(spec):
    if spec.partial:
        with pytest.raises(LayoutError, match="holds parts that are not combined yet"):
            from_spec(spec)


def test_an_interleaved_mapper_is_a_sharding_of_a_view():
    mapper = Mapper((2, 4), [0, Shard(-1, groups=3)])
    with pytest.raises(LayoutError, match="is interleaved, and a sharding cuts a dimension in one"):
        to_spec(mapper, 2)
    straight, shape = plain(mapper, (4, 24))
    assert (shape, straight.placements) == ((4, 3, 8), (Shard(0), Shard(2)))
    array = np.arange(96).reshape(4, 24)
    for coord, part in expected_shards(straight, array.reshape(shape)).items():
        assert np.array_equal(part.reshape(2, 6), expected_shards(mapper, array)[coord])
    with pytest.raises(LayoutError, match=r"its groups \(16, 4, 4\) are not a plain view"):
        plain(Mapper((2, 4), [0, Shard(1, groups=(16, 4, 4))]), (4, 24))


def test_equal_orders_of_axes_compare_equal():
    assert Mapper((2, 4), [0, 1], order=(1, 0)) == Mapper((2, 4), [0, 1])
    assert Mapper((2, 4), [0, 0], order=(1, 0)) != Mapper((2, 4), [0, 0])
    spec = ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["y", "x"])])
    assert from_spec(spec).order == (1, 0)
    assert from_spec(str(spec), spec.mesh) == from_spec(spec)
    with pytest.raises(LayoutError, match="mesh @m is not known"):
        from_spec(str(spec))
    lone = Mapper((2, 4), [-1, 1], order=(1, 0))  # the same dimension, known with the rank
    assert lone.sharded_dims((3, 8))[1].axes == (1, 0)


def test_ttnn_s_mappers_are_mappers_of_placements():
    mapper = ShardTensor2dMesh((2, 4), (2, 4), [0, None])
    assert mapper == Mapper((2, 4), [Shard(0), Replicate()])
    assert ReplicateTensorToMesh((2, 4)) == Mapper((2, 4), [None, None])


@pytest.mark.parametrize("mesh", ["2x4", '@mesh = <["rows"=2, "columns"=4]>', as_mesh((2, 4))])
def test_meshes_are_accepted_as_text_shape_or_object(mesh):
    for call in (
        lambda mesh: Mapper(mesh, [0, None]),
        lambda mesh: ShardTensorToMesh(mesh, 1),
        lambda mesh: ShardTensor2dMesh(mesh, dims=[0, 1]),
        ReplicateTensorToMesh,
        lambda mesh: Composer(mesh, [0, 1]),
        lambda mesh: ConcatMeshToTensor(mesh, 0),
        lambda mesh: ConcatMesh2dToTensor(mesh, dims=[0, 1]),
        lambda mesh: ShardedBufferConfig(mesh, 64),
        lambda mesh: ReplicatedBufferConfig(mesh, 64),
        lambda mesh: MeshBuffer(mesh, 4).mesh,
        lambda mesh: runtime_shards((4, 8), mesh, [0, 1]),
    ):
        assert call(mesh) == call((2, 4))
    for text in ("2 by 4", "x4", "2x", ""):
        with pytest.raises(WeftError, match="invalid mesh"):
            Mapper(text, [0, None])


def test_another_arrangement_takes_the_chips_in_order():
    mapper = Mapper((2, 4), [None, 2, 1], over=(2, 2, 2))
    assert mapper.cells.shape == (2, 2, 2)
    assert str(mapper.boxes((4, 2, 4, 7))[6][0]) == "[0:4, 0:1, 2:4, 0:7]"
    assert lower((4, 2, 4, 7), mapper).count == 2


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_composers_undo_mappers(dims):
    array = np.arange(8 * 8 * 8).reshape(8, 8, 8)
    parts = expected_shards(ShardTensor2dMesh((2, 4), dims=dims), array)
    assert np.array_equal(ConcatMesh2dToTensor((2, 4), dims=dims).compose([*parts.values()]), array)
    flat = expected_shards(ShardTensorToMesh((2, 4), dims[0]), array)
    assert np.array_equal(ConcatMeshToTensor((2, 4), dims[0]).compose([*flat.values()]), array)


def test_copies_are_composed_once_if_the_dim_is_none():
    array = np.arange(12).reshape(3, 4)
    parts = [*expected_shards(ShardTensor2dMesh((2, 4), dims=[None, 1]), array).values()]
    assert np.array_equal(ConcatMesh2dToTensor((2, 4), dims=[None, 1]).compose(parts), array)
    assert ConcatMesh2dToTensor((2, 4), (2, 4), dims=[0, 1]).compose(parts).shape == (6, 4)


@pytest.mark.parametrize("placements", [[0, 0], [0, 1], [Shard(0, groups=2), None], [None, 1]])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_composers_are_right_or_refuse(placements, order):
    array = np.arange(64, dtype="uint32").reshape(8, 8)
    mapper = Mapper((2, 2), placements, order=order)
    composers = [ConcatMeshToTensor((2, 2), dim) for dim in (0, 1, -1)]
    composers += [ConcatMesh2dToTensor((2, 2), dims=d) for d in product((None, 0, 1), repeat=2)]
    lowered = lower(array.shape, mapper, "uint32")
    read = [part for _, part in shards(deliver(array, lowered), lowered, array.dtype)]
    for parts in (distribute(array, mapper.boxes(array.shape)), read):
        for composer in composers:
            found = composed(composer, parts)
            if found is None or np.array_equal(found, array):
                continue
            assert found.size > array.size  # copies, side by side


def composed(composer, parts):
    """Return what a composer returns; None if it refuses."""
    try:
        return composer.compose(parts)
    except WeftError:
        return None


def test_shards_of_a_permuted_or_grouped_mapper_are_refused():
    array = np.arange(64).reshape(8, 8)
    for mapper, message in [
        (Mapper((2, 2), [0, 0], order=(1, 0)), 'mesh axis "columns"=2 join at dimension 0 that do'),
        (Mapper((2, 2), [None, Shard(0, groups=2)]), "chip 0 holds 2 boxes that do not lie"),
    ]:
        parts = distribute(array, mapper.boxes(array.shape))
        with pytest.raises(WeftError, match=message) as caught:
            ConcatMeshToTensor((2, 2), 0).compose(parts)
        assert "gather(shards, mapper.boxes(shape), shape)" in caught.value.__notes__[0]
        assert np.array_equal(gather(parts, mapper.boxes(array.shape), array.shape), array)
    parts = distribute(array, Mapper((2, 2), [0, 1]).boxes(array.shape))
    with pytest.raises(WeftError, match='mesh axis "columns"=2 are taken for copies'):
        ConcatMesh2dToTensor((2, 2), dims=[0, None]).compose(parts)


def test_pictures(capsys):
    show(lower((1, 1, 4, 8), ShardTensor2dMesh((2, 2), dims=[None, 3])))
    assert capsys.readouterr().out == (
        '[1, 1, 4, 8] on @mesh = <["rows"=2, "columns"=2]> · 1 write\n'
        "  0       4       8\n"
        "0 ┌───────┬───────┐\n"
        "  │  0 2  │  1 3  │\n"
        "4 └───────┴───────┘\n"
    )
    for mapper, shape in [
        (Mapper((4, 8), [0, 4]), (8, 1, 3, 2, 16)),
        (Mapper((2, 4), [0, Shard(0, groups=2)]), (64,)),
        (Mapper((32,), [None]), ()),
        (Mapper((4,), [0]), (9, 4)),
    ]:
        lowered = lower(shape, mapper, uneven="ragged")
        assert to_svg(lowered.drawing()).startswith("<svg")
        assert "<svg" in lowered._repr_html_()
