"""`weft ttmesh lower`: what it prints, the JSON, and refusals."""

import json
import re

import pytest

from weft.cli import main


def lower(*args):
    return main(["ttmesh", "lower", *map(str, args)])


def lowered(capsys, shape, mesh, dims, *more):
    assert lower("--shape", shape, "--mesh", mesh, "--dims", dims, "--json", *more) == 0
    return json.loads(capsys.readouterr().out)


def test_the_config_the_writes_and_the_picture(capsys):
    assert lower("--shape", "1,1,8,16", "--mesh", "2x2", "--dims", "3,2") == 0
    assert (
        capsys.readouterr().out
        == """\
mesh_device             2 rows x 2 columns
global_buffer_size      512 bytes
global_buffer_shape     height 8, width 16
shard_shape             height 4, width 8
mesh_shard_orientation  COL_MAJOR

write 0: elements from 0, viewed as 1x1x8x16, flattened before dimension 3, to 0 of 4 chips

[1, 1, 8, 16] on @mesh = <["rows"=2, "columns"=2]> · 1 write
  0       8      16
0 ┌───────┬───────┐
  │   0   │   2   │
4 ├───────┼───────┤
  │   1   │   3   │
8 └───────┴───────┘
"""
    )


def test_the_json_has_the_writes_by_name(capsys):
    found = lowered(capsys, "1,1,8192,10240", "8x4", "3,2")
    (write,) = found["writes"]
    assert write["global_shape"] == {"height": 8192, "width": 10240}
    assert write["shard_shape"] == {"height": 2048, "width": 1280}
    assert (write["orientation"], write["pivot"]) == ("COL_MAJOR", 3)
    assert found["devices"][1]["boxes"] == [{"start": [0, 0, 2048, 0], "stop": [1, 1, 4096, 1280]}]
    assert (found["choice"], found["fault"]) == ("writes", None)


def test_none_replicates(capsys):
    found = lowered(capsys, "4,3,32,32", "2x4", "none,0", "--dtype", "bfloat16", "--strict")
    (write,) = found["writes"]
    assert write["global_shape"] == {"height": 384, "width": 32}
    assert write["shard_shape"] == {"height": 96, "width": 0}
    assert (write["orientation"], write["global_size"]) == ("ROW_MAJOR", 24576)


def test_negative_dimensions_groups_and_one_dimension_for_all_axes(capsys):
    assert (
        lowered(capsys, "1,1,8,16", "2x2", "-1,-2")["writes"]
        == (lowered(capsys, "1,1,8,16", "2x2", "3,2")["writes"])
    )
    (fused,) = lowered(capsys, "64,384", "1x8", "none,1:3")["writes"]
    assert (fused["view"], fused["pivot"]) == ([64, 3, 128], 2)
    assert len(lowered(capsys, "64,24", "1x4", "none,-1:16+4+4")["writes"]) == 2 * 64
    (every,) = lowered(capsys, "1,32,8,32", "8x4", "1")["writes"]
    assert (every["shard_shape"], every["mesh"]) == ({"height": 8, "width": 32}, [8, 4])


def test_meshes_of_three_axes_and_parts_of_meshes(capsys):
    assert len(lowered(capsys, "4,2,4,7", "2x4", "none,2,1", "--over", "2x2x2")["writes"]) == 2
    (part,) = lowered(capsys, "8,8", "4x4", "0,1", "--over", "2x2", "--offset", "2x2")["writes"]
    assert part["devices"] == [10, 11, 14, 15]


def test_a_mesh_in_text_keeps_its_axis_names_and_devices(capsys):
    mesh = '@m = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>'
    result = lowered(capsys, "4,4", mesh, "0,1")
    assert [device["device"] for device in result["devices"]] == [3, 2, 1, 0]
    assert lower("--shape", "4,3", "--mesh", mesh, "--dims", "0,1") == 2
    assert 'mesh axis "y"=2' in capsys.readouterr().err


def test_uneven_sizes_are_padded_or_ragged_on_request(capsys):
    padded = lowered(capsys, "7,4", "1x4", "none,0", "--uneven", "pad")
    assert (padded["padded_shape"], len(padded["writes"])) == ([8, 4], 1)
    assert len(lowered(capsys, "7,4", "1x4", "none,0", "--uneven", "ragged")["writes"]) == 2
    lower("--shape", "7,4", "--mesh", "1x4", "--dims", "none,0", "--uneven", "pad")
    assert "padded to [8, 4]" in capsys.readouterr().out


def test_many_writes_are_summarised_and_a_copy_is_suggested(capsys):
    lower("--shape", "32,64,16,16", "--mesh", "8x4", "--dims", "2,3")
    printed = capsys.readouterr().out
    assert "… 2040 more" in printed
    assert "copied on the host first, then one write: many writes take longer" in printed
    lower("--shape", "4,6", "--mesh", "1x2", "--dims", "none,1", "--dtype", "2")
    assert "one write: rows of a shard are 3 x 2 = 6 bytes" in capsys.readouterr().out


REFUSED = {
    ("1,1,8,10", "2x4", "none,3"): 'dimension 3 of size 10 is cut by mesh axis "columns"=4',
    ("1,1,8,8", "2x4", "none,q"): "--dims has 'q', which is not a dimension",
    ("1,1,8,8", "2x4", "none,9"): 'mesh axis "columns"=4 cuts dimension 9',
    ("1,1,8,8", "2x4", "1,2,3"): "3 placements for the 2 axes of a mesh of shape (2, 4)",
    ("1,1,8,8", "2x0", "none,3"): 'axis "columns" of mesh @mesh has size 0; at least 1',
    ("1,q", "2x4", "none,3"): "column 3: expected an integer, found 'q'",
    ("2,4,8,8", "2x4", "none,1", "--strict"): "and dimension 0 before it keeps 2 on each chip",
    ("8,8", "2x4", "0,1", "--dtype", "float9"): "unknown format 'float9'",
    ("8,8", "2x4", "0,1", "--uneven", "maybe"): "uneven is 'refuse', 'pad' or 'ragged'",
}


@pytest.mark.parametrize("given", REFUSED)
def test_refusals_print_one_line_and_a_hint(capsys, given):
    shape, mesh, dims, *more = given
    assert lower("--shape", shape, "--mesh", mesh, "--dims", dims, *more) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert re.match("weft ttmesh lower: .*" + re.escape(REFUSED[given]), printed.err)
