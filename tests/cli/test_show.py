"""The command line: pictures, files, and refusals in one line with exit code 2."""

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
