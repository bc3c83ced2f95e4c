"""Shardings as placements of DTensor, box by box against DTensor itself."""

import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.strategies import meshes
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _MaskPartial, _StridedShard

from weft import DeviceMesh, DimSpec, LayoutError, ShardingSpec
from weft.interop.torch import from_dtensor_placements, to_dtensor_placements

MESH = DeviceMesh("m", (2, 2), ("x", "y"))


def parse(text, mesh=MESH):
    return ShardingSpec.parse(text, mesh)


@st.composite
def whole_axis_specs(draw, monoids=("sum", "prod", "max", "min")):
    """Whole axes in any order on any dimension, some of them unreduced."""
    mesh = draw(meshes(max_size=16))
    ndim, monoid = draw(st.integers(1, 3)), draw(st.sampled_from(monoids))
    dims, partial = [[] for _ in range(ndim)], {}
    for axis in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(0, ndim + 1))
        if place < ndim:
            dims[place].append(axis)
        elif place == ndim:
            partial[axis] = monoid
    return ShardingSpec(mesh, map(DimSpec, dims), (), partial)


def theirs(spec, shape, placements):
    for cell in spec.mesh.cells():
        local, offset = _compute_local_shape_and_global_offset(
            shape, spec.mesh.shape, list(cell), placements
        )
        yield spec.region(shape, cell), tuple(local), tuple(offset)


@given(whole_axis_specs(), st.data())
def test_even_shards_are_those_of_dtensor(spec, data):
    shape = tuple(count * data.draw(st.integers(1, 3)) for count in spec.grid)
    placements = to_dtensor_placements(spec, shape)
    for box, local, offset in theirs(spec, shape, placements):
        assert (box.shape, box.start) == (local, offset)


@given(whole_axis_specs(), st.data())
def test_uneven_shards_are_those_of_dtensor_or_refused(spec, data):
    shape = tuple(data.draw(st.integers(0, 20)) for _ in range(spec.ndim))
    placements = to_dtensor_placements(spec)
    assume(not any(isinstance(placement, _StridedShard) for placement in placements))
    same = all(
        box.shape == local and (box.is_empty or box.start == offset)
        for box, local, offset in theirs(spec, shape, placements)
    )
    try:
        to_dtensor_placements(spec, shape)
    except LayoutError:
        assert not same
    else:
        assert same


@given(whole_axis_specs())
def test_there_and_back_is_the_same_sharding(spec):
    placements = to_dtensor_placements(spec)
    again = from_dtensor_placements(spec.mesh, placements, spec.ndim)
    assert to_dtensor_placements(again) == placements
    shape = tuple(2 * count for count in spec.grid)
    assert again.regions(shape) == spec.regions(shape)
    assert again.partial == spec.partial
    if 1 not in spec.mesh.shape:  # axes of one cell may stand anywhere
        assert again == spec


def test_placements():
    assert to_dtensor_placements(parse('<@m, [{}, {"x"}]>')) == (Shard(1), Replicate())
    assert to_dtensor_placements(parse('<@m, [{"x", "y"}]>')) == (Shard(0), Shard(0))
    assert to_dtensor_placements(parse('<@m, [{"y", "x"}]>')) == (
        _StridedShard(0, split_factor=2),
        Shard(0),
    )
    assert to_dtensor_placements(parse('<@m, [{"y"}], unreduced=prod{"x"}>')) == (
        Partial("product"),
        Shard(0),
    )


def test_uneven_nested_sharding_of_one_dimension_by_two_axes_is_refused():
    """DTensor cuts 10 into 5 + 5 and these into 3 + 2; blocks of ceil(10 / 4) are 3, 3, 3, 1."""
    spec = parse('<@m, [{"x", "y"}]>')
    with pytest.raises(LayoutError) as refused:
        to_dtensor_placements(spec, (10,))
    assert str(refused.value) == (
        'block 1 of dimension 0 of size 10, cut by {"x", "y"}, is [3:6], and [3:5] in DTensor, '
        "which cuts by one axis after the other"
    )
    assert refused.value.__notes__ == ["hint: pad to 12, or cut by one axis"]
    with pytest.raises(LayoutError, match=r"block 1 of dimension 0 of size 10"):
        from_dtensor_placements(MESH, [Shard(0), Shard(0)], 1, shape=(10,))
    assert to_dtensor_placements(spec, (12,)) == (Shard(0), Shard(0))


def test_uneven_strided_shards_are_refused():
    with pytest.raises(LayoutError) as refused:
        to_dtensor_placements(parse('<@m, [{"y", "x"}]>'), (7,))
    assert str(refused.value) == (
        'dimension 0 of size 7 is cut by {"y", "x"}, not in the order of the mesh, and '
        "7 = 4 x 1 + 3: DTensor's strided shards are not boxes"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '<@m, [{"x":(1)2}]>',
            'axis "x":(1)2 cuts dimension 0, and DTensor has a placement for whole axes only',
        ),
        (
            '<@m, [{}], unreduced={"x":(2)2}>',
            'axis "x":(2)2 is unreduced by sum, and DTensor has a placement for whole axes only',
        ),
        (
            '<@m, [{}], unreduced=logsumexp{"x"}>',
            'axis "x" is unreduced by logsumexp, and DTensor reduces by sum, prod, max, min only',
        ),
        (
            '<@m, [{}], unreduced={"x"}, unreduced=max{"y"}>',
            '<@m, [{}], unreduced={"x"}, unreduced=max{"y"}> is unreduced by sum and max: minor '
            "axes are combined first, and DTensor does not say which are",
        ),
    ],
)
def test_shardings_that_dtensor_cannot_express(text, message):
    with pytest.raises(LayoutError) as refused:
        to_dtensor_placements(parse(text, DeviceMesh("m", (4, 2), ("x", "y"))))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([Shard(0)], '1 placements are given for the 2 axes of @m = <["x"=2, "y"=2]>'),
        ([Shard(2), Replicate()], 'axis "x" cuts dimension 2 of an array of rank 2'),
        (
            [Partial("avg"), Replicate()],
            'axis "x" is Partial(avg), which is not a monoid of the values alone',
        ),
        (
            [Replicate(), _MaskPartial("sum")],
            'axis "y" is _MaskPartial(reduce_op=sum, offset_shape=None, offset_dim=0), '
            "which is not a monoid of the values alone",
        ),
        (["x", Replicate()], "the placement of axis \"x\" is 'x', which is unknown"),
        (
            [_StridedShard(0, split_factor=3), Shard(0)],
            'axis "x" cuts after 3 parts, and the later axes of the dimension are "y"=2',
        ),
        (
            [_StridedShard(0, split_factor=2), Shard(1)],
            'axis "x" cuts after 2 parts, and the later axes of the dimension are none',
        ),
        (
            [Partial("sum"), Partial("max")],
            '<@m, [{}, {}], unreduced={"x"}, unreduced=max{"y"}> is unreduced by sum and max: '
            "minor axes are combined first, and DTensor does not say which are",
        ),
    ],
)
def test_unreadable_placements(placements, message):
    with pytest.raises(LayoutError) as refused:
        from_dtensor_placements(MESH, placements, 2)
    assert str(refused.value) == message


def test_without_torch_an_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import weft.interop.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "DTensor's placements need torch, which is not installed: pip install 'weft[torch]'"
    assert f"ModuleNotFoundError: {said}" in ran.stderr
