"""The command line: pictures, files, and refusals in one line with exit code 2."""

import json
import subprocess
import sys

import pytest

from weft import WeftError, __version__
from weft.cli import main

MESH = '@m = <["dp"=2, "tp"=4]>'
SHARDING = '<@m, [{"dp"}, {"tp"}]>'


def test_a_mesh_in_the_terminal(capsys):
    assert main(["show", MESH]) == 0
    assert "dp=1 │   4   │" in capsys.readouterr().out


@pytest.mark.parametrize("shape", ["8x16", "8,16", "[8, 16]"])
def test_a_sharding_in_the_terminal(capsys, shape):
    assert main(["show", MESH, shape, SHARDING]) == 0
    assert capsys.readouterr().out.startswith("[8, 16] as <@m, ")


def test_a_sharding_without_a_shape(capsys):
    assert main(["show", MESH, SHARDING]) == 0
    assert capsys.readouterr().out.startswith(f"{SHARDING} · 2 x 4 blocks")


def test_a_picture_in_a_file(capsys, tmp_path):
    for name, start in (("a.svg", "<svg"), ("a.txt", "[8, 16] as")):
        path = tmp_path / name
        assert main(["show", MESH, "8x16", SHARDING, "-o", str(path)]) == 0
        assert path.read_text(encoding="utf-8").startswith(start)
        assert capsys.readouterr().out == f"wrote {path}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["@m"], "weft show: column 3: expected '=', found the end\n@m\n  ^\n"),
        ([MESH, "8x16"], "weft show: shape 8x16 is given without a sharding\nhint: add one: '<@m"),
        ([MESH, "8x", SHARDING], "weft show: column 3: expected an integer, found the end"),
        ([MESH, "8 16", SHARDING], "weft show: column 3: expected 'x' or ',', found '1'"),
        ([MESH, "[8", SHARDING], "weft show: column 3: expected 'x' or ',', found the end"),
        ([MESH, "8", SHARDING], "weft show: shape has 1 dimension where 2 are expected: (8,)"),
        ([MESH, "8x8", '<@m, [{"q"}, {}]>'], 'weft show: axis "q" cuts dimension 0, but is not'),
        ([MESH, "-o", "picture.png"], "weft show: cannot write picture.png: its name must end in"),
        (
            [MESH, "-o", "no/such/folder/a.svg"],
            "weft show: cannot write no/such/folder/a.",
        ),
    ],
)
def test_refusals(capsys, args, message):
    assert main(["show", *args]) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith(message)
    assert not seen.out
    assert "Traceback" not in seen.err


def test_tracebacks_on_request():
    with pytest.raises(WeftError):
        main(["--debug", "show", "@m"])


def test_the_module_and_the_version():
    ran = subprocess.run(
        [sys.executable, "-m", "weft", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"weft {__version__}\n"


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m weft show '{MESH}' | head -n 1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("@m = <")
    assert not ran.stderr


def test_an_operator_and_a_line_in_the_terminal(capsys):
    assert main(["show", "matmul", "8x16", "16x32", "--cell", "m=3"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("matmul: m k, k n -> m n sum: k {m=8, n=32, k=16}")
    assert main(["show", "m k, k n -> m n  sum: k", "8x16", "16x32", "--cell", "m=3"]) == 0
    assert capsys.readouterr().out.splitlines()[-9:] == drawn.splitlines()[-9:]
    assert main(["show", "softmax", "8x16", "--set", "dimension=1"]) == 0
    assert "i0 [k] -> i0 [k]" in capsys.readouterr().out
    assert main(["show", "matmul"]) == 0


def test_the_boxes_of_an_operator_as_json(capsys):
    line = "s*y+u-1, u -> y  sum: u"
    given = ["16", "3", "--set", "y=8", "--set", "s=2", "--cell", "y=4", "--json"]
    assert main(["show", line, *given]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["sizes"] == {"y": 8, "u": 3}
    assert data["operands"][0] == {"shape": [16], "box": {"start": [7], "stop": [10]}}
    assert data["results"][0]["box"] == {"start": [4], "stop": [5]}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["nothing"],
            "weft show: 'nothing' is not a mesh or an operator, and there is no such file",
        ),
        (["matmul", "8x16", "--cell", "m"], "weft show: --cell m: expected NAME=VALUE"),
        (["matmul", "8x16"], "weft show: matmul takes two arrays of rank 1 or more, got"),
        (["matmul", "--cell", "q=1"], "weft show: "),
        ([MESH, "--cell", "m=1"], f"weft show: --cell m=1: {MESH} is not an operator"),
        ([MESH, "8x16", SHARDING, "8"], "weft show: expected a shape and a sharding, got 8x16"),
        (["sum_dim", "8", "--set", "dimension=1"], "weft show: sum_dim has no attribute dimension"),
    ],
)
def test_refusals_of_operators(capsys, args, message):
    assert main(["show", *args]) == 2
    assert capsys.readouterr().err.startswith(message)
