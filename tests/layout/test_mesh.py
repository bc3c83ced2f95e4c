"""Meshes: cells by coordinate and rank, devices, axes and parts of axes, text."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from tests.strategies import meshes

from weft import DeviceMesh, LayoutError, ParseError, SubAxis, WeftError


@given(meshes())
def test_cells_by_coordinate_and_by_rank(mesh):
    cells = list(mesh.cells())
    assert len(cells) == mesh.size == int(np.prod(mesh.shape))
    assert cells == [tuple(x) for x in np.ndindex(*mesh.shape)]
    for rank, coord in enumerate(cells):
        assert mesh.coord(rank) == mesh.coord(np.int64(rank)) == mesh.coord(coord) == coord
        assert mesh.rank(coord) == rank
        expected = rank if mesh.device_ids is None else mesh.device_ids[rank]
        assert mesh.device(rank) == mesh.device(coord) == expected


@given(meshes())
def test_parse_of_print_is_the_identity(mesh):
    assert DeviceMesh.parse(str(mesh)) == mesh
    assert str(DeviceMesh.parse(str(mesh))) == str(mesh)
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert hash(DeviceMesh.parse(str(mesh))) == hash(mesh)


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ('@cluster = <["dp"=2, "tp"=4]>', DeviceMesh("cluster", (2, 4), ("dp", "tp"))),
        ('sdy.mesh @m = <["x"=2]>', DeviceMesh("m", (2,), ("x",))),
        ("@m = <[]>", DeviceMesh("m", (), ())),
        ('@"my mesh" = <["a b"=3]>', DeviceMesh("my mesh", (3,), ("a b",))),
        ('  @m=<["x"=2],device_ids=[1,0]> ', DeviceMesh("m", (2,), ("x",), (1, 0))),
        ('@m = <["x"=2], device_ids=[0, 1]>', DeviceMesh("m", (2,), ("x",))),
    ],
)
def test_texts_that_are_read(text, mesh):
    assert DeviceMesh.parse(text) == mesh


def test_more_axes_or_cells_than_any_machine_has_are_refused():
    axes = ", ".join(f'"a{n}"=1' for n in range(4096))
    assert DeviceMesh.parse(f"@m = <[{axes}]>").ndim == 4096
    with pytest.raises(ParseError, match="more than 4096 entries in one list"):
        DeviceMesh.parse(f'@m = <[{axes}, "b"=1]>')
    with pytest.raises(LayoutError, match="mesh @m has 4097 axes; at most 4096"):
        DeviceMesh("m", [1] * 4097, [f"a{n}" for n in range(4097)])
    assert DeviceMesh.parse(f'@m = <["x"={1 << 48}]>').size == 1 << 48
    with pytest.raises(LayoutError, match=f"mesh @m has more than {1 << 48} cells"):
        DeviceMesh.parse(f'@m = <["x"={1 << 24}, "y"={1 << 25}]>')


def test_axes_and_parts_of_axes():
    mesh = DeviceMesh("m", (2, 8), ("x", "y"))
    assert mesh.axis_size("y") == 8
    assert mesh.axis_size(SubAxis("y", 2, 4)) == mesh.axis_size("y:(2)4") == 4
    assert mesh.digit("y") == (1, 1, 8, 1)
    assert mesh.digit(SubAxis("y", 1, 4)) == (1, 2, 4, 1)
    for axis in ("x", SubAxis("y", 1, 2), SubAxis("y", 2, 2), SubAxis("y", 2, 4)):
        assert mesh.axis(mesh.digit(axis)) == axis


def test_a_mesh_of_a_million_cells_costs_nothing():
    mesh = DeviceMesh("pod", (1024, 1024), ("x", "y"))
    assert mesh.coord(1_048_575) == (1023, 1023)
    assert mesh.device((1023, 0)) == 1_047_552


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DeviceMesh("m", (2,), ("x", "y")),
            "mesh @m of shape (2,) needs as many axis names",
        ),
        (
            lambda: DeviceMesh("m", (2, 4), "xy"),
            "axis_names of mesh @m must be a list of str: 'xy'",
        ),
        (lambda: DeviceMesh("m", (2,), (1,)), "axis_names of mesh @m must be a list of str: (1,)"),
        (lambda: DeviceMesh(5, (2,), ("x",)), "expected the name of a mesh, got 5"),
        (lambda: DeviceMesh("my m", 3, ("x",)), 'shape of mesh @"my m" must be a sequence of inte'),
        (lambda: DeviceMesh.parse(None), "expected a DeviceMesh or its text, got None"),
        (lambda: DeviceMesh("m", (2, 2), ("x", "x")), 'mesh @m has two axes named "x"'),
        (lambda: DeviceMesh("m", (0,), ("x",)), 'axis "x" of mesh @m has size 0; at least 1'),
        (lambda: DeviceMesh("m", (-2,), ("x",)), 'axis "x" of mesh @m has size -2; at least 1'),
        (lambda: DeviceMesh("m", (2,), ("",)), "'' cannot be a name"),
        (lambda: DeviceMesh("", (2,), ("x",)), "'' cannot be a name"),
        (lambda: DeviceMesh("m", (2,), ('x"',)), "'x\"' cannot be a name"),
        (lambda: DeviceMesh("m", (4,), ("x:(1)2",)), "'x:(1)2' cannot be a name"),
        (lambda: DeviceMesh("m", (4,), ("x\\y",)), "'x\\\\y' cannot be a name"),
        (lambda: DeviceMesh("m\n", (4,), ("x",)), "'m\\n' cannot be a name"),
        (
            lambda: DeviceMesh("m", (2,), ("x",), (0, 1, 2)),
            "mesh @m of 2 cells needs 2 different device ids, none negative: 3 are given",
        ),
        (
            lambda: DeviceMesh("m", (2,), ("x",), (1, 1)),
            "mesh @m of 2 cells needs 2 different device ids, none negative: 2 are given, 1 diff",
        ),
        (
            lambda: DeviceMesh("m", (2,), ("x",), (1, -1)),
            "mesh @m of 2 cells needs 2 different device ids, none negative: 2 are given, 2 diff",
        ),
        (
            lambda: DeviceMesh("m", (2,), ("x",)).coord(2),
            'no cell 2 in mesh @m = <["x"=2]>, which has 2 cells',
        ),
        (
            lambda: DeviceMesh("m", (2,), ("x",)).coord((-1,)),
            'no cell (-1,): axis "x"=2 has no coordinate -1',
        ),
        (
            lambda: DeviceMesh("m", (2,), ("x",)).coord((0, 0)),
            "cell has 2 dimensions where 1 are expected: (0, 0)",
        ),
        (lambda: DeviceMesh("m", (2,), ("x",)).coord(None), "cell must be an integer: None"),
        (lambda: DeviceMesh("m", (2,), ("x",)).coord(1.5), "cell must be an integer: 1.5"),
        (lambda: DeviceMesh("m", (2,), ("x",)).digit("q"), 'axis "q" is not an axis of mesh @m'),
        (
            lambda: DeviceMesh("m", (8,), ("x",)).digit(SubAxis("x", 0, 2)),
            "SubAxis(name='x', before=0, size=2) is not an axis: a name, or a SubAxis of size 2",
        ),
        (
            lambda: DeviceMesh("m", (8,), ("x",)).digit(SubAxis("x", 1, 3)),
            'sub-axis "x":(1)3 does not divide "x"=8: 1 x 3 = 3 and 8 = 3 x 2 + 2',
        ),
    ],
)
def test_invalid_meshes_are_refused(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: expected '@', found the end"),
        ("cluster", "column 1: expected '@', found 'c'"),
        ('@m <["x"=2]>', "column 4: expected '=', found '<'"),
        ("@m = <[x=2]>", "column 8: expected a name in double quotes, found 'x'"),
        ('@m = <["x"2]>', "column 11: expected '=', found '2'"),
        ('@m = <["x"=]>', "column 12: expected an integer, found ']'"),
        ('@m = <["x"=-2]>', "column 12: expected an integer, found '-'"),
        ('@m = <["x"=2 "y"=2]>', "column 14: expected ',', found '\"'"),
        ('@m = <["x"=2], devices=[]>', "column 16: expected 'device_ids', found 'd'"),
        ('@m = <["x"=2]', "column 14: expected '>', found the end"),
        ('@m = <["x"=2]> and more', "column 16: expected the end, found 'a'"),
        (f'@m = <["x"={"9" * 30}]>', "column 12: an integer of 30 digits; at most 18 are read"),
    ],
)
def test_malformed_text_is_refused_with_the_column(text, message):
    with pytest.raises(ParseError) as caught:
        DeviceMesh.parse(text)
    assert str(caught.value) == message
    shown, caret = caught.value.__notes__[0].split("\n")
    assert shown == text
    assert caret.index("^") == caught.value.column - 1


def test_an_unknown_axis_gets_the_mesh_as_a_hint():
    with pytest.raises(LayoutError) as caught:
        DeviceMesh("m", (2,), ("x",)).axis_size("y")
    assert caught.value.__notes__ == ['hint: the mesh is @m = <["x"=2]>']


def test_a_mesh_without_axes_may_name_its_device():
    for text in ("@m = <[]>", "@m = <[], device_ids=[0]>", "@m = <[], device_ids=[5]>"):
        assert str(DeviceMesh.parse(text)) == text
    assert DeviceMesh.parse("@m = <[], device_ids=[5]>").device(0) == 5
    assert DeviceMesh("m", (2,), ("x",), [0, 1]) == DeviceMesh("m", (2,), ("x",))
