"""Shardings: the laws that every later part of Weft relies on."""

import dataclasses
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import sharded_shapes, specs
from tests.trials import trials

from weft import (
    DeviceMesh,
    DimSpec,
    LayoutError,
    ShardingSpec,
    SubAxis,
    WeftError,
    ZRange,
    cover,
)
from weft.draw import Rect
from weft.layout import Axis


def digit(mesh: DeviceMesh, axis: Axis, coord):
    """The value of an axis, or of part of one, at a cell; and its size. Written out in full."""
    name, before, size = (axis, 1, None) if isinstance(axis, str) else axis
    whole = mesh.shape[mesh.axis_names.index(name)]
    size = whole if size is None else size
    x = coord[mesh.axis_names.index(name)]
    digits = [x // (whole // before), x // (whole // (before * size)) % size]
    return digits[1], size


def owner_box(spec, shape, coord):
    """The box of a cell by the rule of the design, one dimension at a time."""
    start, stop = [], []
    for n, dim in zip(shape, spec.dim_specs):
        k, count = 0, 1
        for axis in dim.axes:
            value, size = digit(spec.mesh, axis, coord)
            k, count = k * size + value, count * size
        block, at = -(-n // count), dim.cut_points
        start.append(min(k * block, n) if at is None else [0, *at][k])
        stop.append(min((k + 1) * block, n) if at is None else [*at, n][k])
    return ZRange(start, stop)


@given(sharded_shapes())
def test_region_is_the_rule_written_out(case):
    spec, shape = case
    regions = spec.regions(shape)
    assert len(regions) == spec.mesh.size
    for rank, coord in enumerate(spec.mesh.cells()):
        expected = owner_box(spec, shape, coord)
        assert spec.region(shape, coord) == spec.region(shape, rank) == regions[rank] == expected


@given(sharded_shapes())
def test_shards_of_one_replica_tile_the_array(case):
    spec, shape = case
    assert cover(spec.boxes(shape), ZRange.of(shape)).is_exact
    free = spec.mesh.size // prod(spec.grid)
    counts = Counter(point for box in spec.regions(shape) for point in box)
    assert set(counts) == set(ZRange.of(shape))
    assert set(counts.values()) <= {free}, "every point lies on as many cells as every other"


@given(sharded_shapes())
def test_every_point_is_found_in_its_box(case):
    spec, shape = case
    for point in ZRange.of(shape):
        block = spec.block_of(shape, point)
        assert point in spec.box(shape, block)
        holders = list(spec.holders(block))
        assert holders == [c for c in spec.mesh.cells() if point in spec.region(shape, c)]


@given(specs())
def test_holders_and_replicas_by_brute_force(spec):
    mesh = spec.mesh
    cells = list(mesh.cells())
    parts = {c: tuple(digit(mesh, axis, c) for axis in spec.partial) for c in cells}
    blocks = {c: spec.block(c) for c in cells}
    for cell in cells[:: max(1, len(cells) // 16)]:
        same = [c for c in cells if blocks[c] == blocks[cell]]
        assert list(spec.holders(blocks[cell])) == same
        replicas = [c for c in same if parts[c] == parts[cell]]
        assert list(spec.replicas(cell)) == replicas
        assert spec.replica_count == len(replicas)
    assert prod(spec.grid) == len(set(blocks.values()))


@given(sharded_shapes())
def test_evenness_and_shard_shape(case):
    spec, shape = case
    boxes = spec.boxes(shape)
    assert spec.is_even(shape) == (len({box.shape for box in boxes}) == 1)
    largest = tuple(max(box.shape[d] for box in boxes) for d in range(spec.ndim))
    assert spec.shard_shape(shape) == largest


@given(specs())
def test_parse_of_print_is_the_identity(spec):
    again = ShardingSpec.parse(str(spec), spec.mesh)
    assert again == spec
    assert str(again) == str(spec)
    assert hash(again) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert eval(repr(spec)) == spec


@given(specs())
def test_one_sharding_has_one_spelling(spec):
    """Neighbouring parts join, a part that is all of its axis is the axis, sets have an order."""
    for dim in spec.dim_specs:
        for one, two in zip(dim.axes, dim.axes[1:]):
            if isinstance(one, SubAxis) and isinstance(two, SubAxis) and one.name == two.name:
                assert one.before * one.size != two.before
        for axis in dim.axes:
            assert not isinstance(axis, SubAxis) or axis.size < spec.mesh.axis_size(axis.name)
    turned = ShardingSpec(
        spec.mesh,
        spec.dim_specs,
        reversed(spec.replicated_axes),
        dict(reversed(list(spec.partial.items()))),
    )
    assert turned == spec
    assert str(turned) == str(spec)


@pytest.mark.parametrize(
    "text",
    [
        '<@m, [{"x"}, {"y", ?}p1], replicated={"z"}>',
        '<@m, [{"y":(1)2, "x"}, {"y":(2)2}, {?}p2]>',
        '<@m, [], replicated={"x", "y":(2)2}, unreduced={"z"}>',
        '<@m, [{}], unreduced={"x"}, unreduced=max{"y", "z"}>',
        "<@m, [{}p3, {?}]>",
    ],
)
def test_texts_round_trip_exactly(text):
    mesh = DeviceMesh("m", (2, 4, 3), ("x", "y", "z"))
    assert str(ShardingSpec.parse(text, mesh)) == text
    assert ShardingSpec.parse("#sdy.sharding" + text, {"m": mesh}) == ShardingSpec.parse(
        text, [mesh]
    )


def test_the_example_of_seed_001():
    mesh = DeviceMesh("test", (2,), ("x",))
    spec = ShardingSpec(mesh, [DimSpec(["x"]), DimSpec([])])
    assert [str(box) for box in spec.regions((4, 8))] == ["[0:2, 0:8]", "[2:4, 0:8]"]


class TestArrayShardingOfSeed002:
    """Its ARRAY_SHARDING is a sharding on a mesh {x, y, z}, replicated over x."""

    spec_text = '<@c, [{"y"}, {"z"}, {}]>'

    def sharding(self, *shape):
        mesh = DeviceMesh("c", shape, ("x", "y", "z"))
        return ShardingSpec.parse(self.spec_text, mesh)

    def test_example_1(self):
        """[3, 224, 224] on {4, 3, 2} is D[6] of [1, 112, 224]; mesh[x, j, k] holds D[2j + k]."""
        spec = self.sharding(4, 3, 2)
        blocks = spec.boxes((3, 224, 224))
        assert [box.shape for box in blocks] == [(1, 112, 224)] * 6
        for x in range(4):
            for j in range(3):
                for k in range(2):
                    assert spec.region((3, 224, 224), (x, j, k)) == blocks[2 * j + k]
        assert list(spec.replicas((1, 2, 1))) == [(x, 2, 1) for x in range(4)]

    def test_example_2(self):
        """[64, 56, 56] on {8, 8, 1} is D[8] of [8, 56, 56]; mesh[x, j, 0] holds D[j]."""
        spec = self.sharding(8, 8, 1)
        blocks = spec.boxes((64, 56, 56))
        assert [box.shape for box in blocks] == [(8, 56, 56)] * 8
        for x in range(8):
            for j in range(8):
                assert spec.region((64, 56, 56), (x, j, 0)) == blocks[j]
        assert spec.replica_count == 8


def test_the_journey_of_the_design():
    """x[4:8, 8:12] lies on cell (dp=1, tp=2)."""
    mesh = DeviceMesh.parse('@m = <["dp"=2, "tp"=4]>')
    x = ShardingSpec.parse('<@m, [{"dp"}, {"tp"}]>', mesh)
    w = ShardingSpec.parse('<@m, [{"tp"}, {}]>', mesh)
    assert str(x.region((8, 16), (1, 2))) == "[4:8, 8:12]"
    assert str(w.region((16, 32), (1, 2))) == "[8:12, 0:32]"


def test_uneven_nested_sharding_of_one_dimension_by_two_axes():
    """Blocks of ceil(n / K) over both axes, not ceil of ceil: 5 over 2 x 2 is 2, 2, 1, 0."""
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    spec = ShardingSpec(mesh, [DimSpec(["x", "y"])])
    assert [str(box) for box in spec.regions((5,))] == ["[0:2]", "[2:4]", "[4:5]", "[5:5]"]


def test_a_mesh_of_a_million_cells_answers_about_one():
    mesh = DeviceMesh("pod", (2**20,), ("x",))
    spec = ShardingSpec(
        mesh, [DimSpec(["x:(1)1024"]), DimSpec()], partial={SubAxis("x", 1024, 4): "sum"}
    )
    assert str(spec.region((2048, 3), 2**20 - 1)) == "[2046:2048, 0:3]"
    assert spec.replica_count == 256
    assert next(iter(spec.holders((1023, 0)))) == (1023 * 1024,)
    assert next(iter(ShardingSpec(mesh, []).replicas(5))) == (0,)


@settings(max_examples=trials(20))
@given(st.sampled_from(["x", '"x"', '"x":(1)2', "x:(1)2", ("x", np.int64(1), np.int64(2))]))
def test_axes_may_be_given_as_text(text):
    mesh = DeviceMesh("m", (4,), ("x",))
    spec = ShardingSpec(mesh, [DimSpec([text])])
    assert spec.grid == ((4,) if text in ("x", '"x"') else (2,))


def test_flags_and_numbers_become_what_they_are():
    dim = DimSpec(["x"], is_open=2, priority=True)
    assert (dim.is_open, dim.priority, str(dim)) == (True, 1, '{"x", ?}p1')


def test_a_mesh_of_a_thousand_axes_is_walked():
    mesh = DeviceMesh("m", (1,) * 1200, [f"a{n}" for n in range(1200)])
    assert list(ShardingSpec(mesh, [DimSpec()]).holders((0,))) == [(0,) * 1200]


MESH = DeviceMesh("m", (8, 2), ("x", "y"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"]), DimSpec(["x"])]),
            'axis "x" cuts dimension 0 and cuts dimension 1',
        ),
        (lambda: ShardingSpec(MESH, [DimSpec(["x", "x"])]), 'axis "x" cuts dimension 0 twice'),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["q"])]),
            'axis "q" cuts dimension 0, but is not an axis of mesh @m',
        ),
        (
            lambda: ShardingSpec(MESH, [], replicated_axes=["q"]),
            'axis "q" is replicated, but is not an axis of mesh @m',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x:(1)4"]), DimSpec(["x:(2)2"])]),
            'axes "x":(1)4 and "x":(2)2 overlap: the first cuts dimension 0, the second cuts',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"]), DimSpec(["x:(2)2"])]),
            'axes "x" and "x":(2)2 overlap: the first cuts dimension 0, the second cuts',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x:(1)2"])], replicated_axes=["x:(1)2"]),
            'axis "x":(1)2 cuts dimension 0 and is replicated',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])], replicated_axes=["x"]),
            'axis "x" cuts dimension 0 and is replicated',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])], partial={"x": "max"}),
            'axis "x" cuts dimension 0 and is unreduced by max',
        ),
        (
            lambda: ShardingSpec(MESH, [], replicated_axes=["y"], partial={"y": "sum"}),
            'axis "y" is replicated and is unreduced by sum',
        ),
        (
            lambda: ShardingSpec(MESH, [], partial={"y": "median"}),
            'axis "y" is unreduced by "median", which is not a monoid',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec([SubAxis("x", 1, 3)])]),
            'sub-axis "x":(1)3 cuts dimension 0, but does not divide "x"=8: 1 x 3 = 3 and 8',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x:(1)1"])]),
            "'x:(1)1' is not an axis: a name, or a SubAxis of size 2 or more",
        ),
        (lambda: DimSpec(["x:(0)2"]), "'x:(0)2' is not an axis: a name, or a SubAxis"),
        (lambda: DimSpec([3]), "3 is not an axis: a name, or a SubAxis"),
        (lambda: DimSpec("x"), "axes must be a list of axes, got 'x'"),
        (lambda: DimSpec(None), "axes must be a list of axes, got None"),
        (lambda: DimSpec(["x"], priority=-1), "priority is -1; it cannot be negative"),
        (lambda: DimSpec(["x"], priority=1.5), "priority must be an integer: 1.5"),
        (lambda: ShardingSpec(MESH, [["x"]]), "expected a DimSpec or its text, got ['x']"),
        (
            lambda: ShardingSpec(MESH, DimSpec(["x"])),
            "dim_specs must be a list: DimSpec(",
        ),
        (lambda: ShardingSpec("m", []), "column 1: expected '@', found 'm'"),
        (lambda: ShardingSpec(MESH, [], replicated_axes=None), "replicated_axes must be a list of"),
        (
            lambda: ShardingSpec(MESH, [], partial="x"),
            "partial, unless a mapping, must be a list of",
        ),
        (
            lambda: ShardingSpec(MESH, [], partial=["x"]),
            "partial, unless a mapping, must be a list of",
        ),
        (lambda: ShardingSpec.parse("<@m, []>", None), "meshes must be a list: None"),
        (
            lambda: ShardingSpec.parse("<@m, []>", {"m": 3}),
            "expected a DeviceMesh or its text, got 3",
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).box((8,), (0.5,)),
            "block must be a sequence of integers: (0.5,)",
        ),
        (
            lambda: ShardingSpec(DeviceMesh("m", (12,), ("x",)), [DimSpec(["x:(1)2", "x:(3)2"])]),
            'axes "x":(1)2 and "x":(3)2 do not nest: the first cuts dimension 0, the second cuts',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).region((8, 8), 0),
            "shape has 2 dimensions where 1 are expected: (8, 8)",
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).region((-8,), 0),
            "dimension 0 has the negative size -8 in shape (-8,)",
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).region((8,), (8, 0)),
            'no cell (8, 0): axis "x"=8 has no coordinate 8',
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).box((8,), (8,)),
            "dimension 0 has no block 8: it is cut into 8",
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).holders(()),
            "block has 0 dimensions where 1 are expected",
        ),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["x"])]).block_of((8,), (8,)),
            "dimension 0 of size 8 has no coordinate 8",
        ),
        (lambda: ShardingSpec.parse("<@q, []>", MESH), "mesh @q is not known"),
        (lambda: ShardingSpec.parse("<@m, [}]>", MESH), "column 7: expected '{', found '}'"),
        (
            lambda: ShardingSpec.parse('<@m, [{?, "x"}]>', MESH),
            "column 15: '?' must come last in a dimension",
        ),
        (
            lambda: ShardingSpec.parse('<@m, [{"x"}], reduced={"y"}>', MESH),
            "column 15: expected 'replicated' or 'unreduced', found 'r'",
        ),
        (
            lambda: ShardingSpec.parse('<@m, [{"x":(1}]>', MESH),
            "column 14: expected ')', found '}'",
        ),
        (
            lambda: ShardingSpec.parse('<@m, [], unreduced={"x"}, unreduced=max{"x"}>', MESH),
            'axis "x" is unreduced by sum and is unreduced by max',
        ),
        (lambda: ShardingSpec.parse('<@m, [{"x"}', MESH), "column 12: expected ',', found the end"),
    ],
)
def test_invalid_shardings_are_refused(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: DimSpec("x"), "hint: write ['x']"),
        (
            lambda: ShardingSpec(MESH, [["x"]]),
            "hint: write [DimSpec([...]), ...], one for each dimension",
        ),
        (lambda: ShardingSpec.parse("<@q, []>", MESH), "hint: known are @m"),
        (lambda: ShardingSpec.parse("<@q, []>", []), "hint: known are none"),
        (lambda: ShardingSpec.parse('<@m, [{"q"}]>', MESH), 'while reading <@m, [{"q"}]>'),
        (
            lambda: ShardingSpec(MESH, [], partial={"y": "mean"}),
            "hint: the monoids are sum, prod, max, min, and, or, logsumexp, "
            "and those that you define",
        ),
    ],
)
def test_hints_say_the_way_out(make, hint):
    with pytest.raises(WeftError) as caught:
        make()
    assert hint in caught.value.__notes__


def test_specs_can_be_changed_into_others():
    spec = ShardingSpec(MESH, [DimSpec(["x"])], partial={"y": "sum"})
    assert dataclasses.replace(spec, partial={}) == ShardingSpec(MESH, [DimSpec(["x"])])
    assert dataclasses.replace(spec.dim_specs[0], is_open=True) == DimSpec(["x"], is_open=True)
    moved = dataclasses.replace(spec, dim_specs=[DimSpec(), DimSpec(["x"])])
    assert moved.grid == (1, 8), "what is derived follows"


def test_a_mapping_in_a_spec_cannot_change():
    spec = ShardingSpec(MESH, [], partial={"y": "sum"})
    assert spec.partial == {"y": "sum"}
    assert spec.partial["y"] == "sum"
    with pytest.raises(TypeError):
        spec.partial["y"] = "max"


@given(specs())
def test_the_parts_are_the_partial_axes_in_mesh_order(spec):
    found = {spec.mesh.axis(digit): monoid for digit, monoid in spec.parts}
    assert found == dict(spec.partial)
    places = [(digit.dim, -digit.divisor) for digit, _ in spec.parts]
    assert places == sorted(places)


@given(specs())
def test_equal_shardings_have_equal_hashes(spec):
    again = ShardingSpec.parse(str(spec), DeviceMesh.parse(str(spec.mesh)))
    assert again == spec
    assert again is not spec
    assert hash(again) == hash(spec)


def test_a_pickled_sharding_is_found_by_its_hash_in_another_process():
    spec = ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["y"])], partial={"x": "max"})
    code = f"""
import pickle
from weft import DeviceMesh, DimSpec, ShardingSpec
there = ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["y"])], partial={{"x": "max"}})
came = pickle.loads({pickle.dumps(spec)!r})
assert came == there and hash(came) == hash(there) and came.parts == there.parts
"""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_text_and_objects_are_accepted_alike():
    mesh = DeviceMesh("m", (8, 2), ("x", "y"))
    spec = ShardingSpec(mesh, [DimSpec(["x"], is_open=True), DimSpec()], ["y"])
    text = str(spec)
    assert ShardingSpec(str(mesh), ['{"x", ?}', DimSpec()], ["y"]) == spec
    assert ShardingSpec.parse(spec, mesh) is spec
    assert DeviceMesh.parse(mesh) is mesh
    assert DimSpec.parse(spec.dim_specs[0]) is spec.dim_specs[0]
    for meshes in (mesh, str(mesh), [mesh], [str(mesh)], {"m": mesh}, {"m": str(mesh)}):
        assert ShardingSpec.parse(text, meshes) == spec
    with pytest.raises(WeftError, match="is on @m"):
        ShardingSpec.parse(spec, '@m = <["x"=4]>')


def test_the_blocks_of_a_sharding_are_those_of_its_grid():
    spec = ShardingSpec.parse('<@m, [{"x"}, {"y"}]>', '@m = <["x"=4, "y"=3]>')
    blocks = spec.blocks((10, 7))
    assert (blocks.counts, blocks.block_shape) == (spec.grid, spec.shard_shape((10, 7)))
    assert spec.boxes((10, 7)) == blocks.boxes()
    assert [spec.region((10, 7), cell) for cell in spec.mesh.cells()] == spec.regions((10, 7))
    assert spec.is_even((8, 9))
    assert not spec.is_even((8, 7))
    assert spec.is_even((0, 0))


# Cut points.

LINE = DeviceMesh("m", (4,), ("y",))


@given(sharded_shapes())
def test_a_sharding_with_cut_points_is_read_back_and_has_one_canonical_form(case):
    spec, shape = case
    again = ShardingSpec.parse(str(spec), spec.mesh)
    assert again == spec
    assert hash(again) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    canonical = spec.canonical(shape)
    assert canonical.regions(shape) == spec.regions(shape)
    assert canonical.canonical(shape) == canonical
    regular = ShardingSpec(spec.mesh, [DimSpec(dim.axes) for dim in spec.dim_specs])
    for dim, edges in enumerate(spec.blocks(shape).edges):
        assert (edges is None) == (canonical.dim_specs[dim].cut_points is None)
        if edges is None:
            assert spec.blocks(shape).edges_of(dim) == regular.blocks(shape).edges_of(dim)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"y"} at [3]', 'dimension 0 has 4 blocks and is cut at 1 point: {"y"} at [3]'),
        ('{"y", ?} at [1, 2, 3]', "a dimension cut at [1, 2, 3] cannot be open: drop the '?'"),
        ('{"y"} at [1, 3, 2]', "cut points rise from 0, got [1, 3, 2]"),
        ("{} at [1]", "dimension 0 has 1 block and is cut at 1 point: {} at [1]"),
    ],
)
def test_cut_points_that_do_not_fit_are_refused(text, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        ShardingSpec(LINE, [text])


def test_cut_points_lie_inside_the_array():
    spec = ShardingSpec(LINE, ['{"y"} at [1, 2, 9]'])
    message = "dimension 0 of size 8 cannot be cut at [1, 2, 9] into 4 blocks"
    with pytest.raises(LayoutError, match=re.escape(message)):
        spec.blocks((8,))


def test_unequal_blocks_are_drawn_as_they_are():
    drawing = ShardingSpec(LINE, ['{"y"} at [1, 4, 4]']).drawing((8,))
    assert drawing.notes == ("dimension 0 is uneven: 1 block of 1, 1 of 3, 1 empty, 1 of 4",)
    assert [rect.label for rect in drawing.items if isinstance(rect, Rect)] == ["0", "1", "3"]
