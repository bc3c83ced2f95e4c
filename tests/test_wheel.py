"""The release: `python -m build`, and its wheel in an empty environment."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import weft

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"


def output_of(command, **options):
    """Run a command and return its output; a failure shows its errors."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=alone, **options
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    output_of([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def empty(built, tmp_path_factory):
    """The Python of an environment with the wheel only, without pip."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    output_of([*pip, "install", "--quiet", "--no-index", built[1]])
    (installed,) = json.loads(output_of([*pip, "list", "--format", "json"]))
    assert installed == {"name": "weft", "version": weft.__version__}
    return python


def test_the_wheel_has_exactly_the_package(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    mine = {file.relative_to(SOURCE).as_posix() for file in (SOURCE / "weft").rglob("*.*")}
    assert names == {name for name in mine if "__pycache__" not in name and "." in name}
    assert "weft/py.typed" in names


def test_the_source_distribution_has_the_files_of_its_commands(built):
    with tarfile.open(built[0]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    wanted = {"Makefile", "README.md", "LICENSE", "mkdocs.yml", "examples/demo.py", "docs/core.md"}
    assert wanted <= names
    assert not any(name.startswith((".venv", "build", "weft-report")) for name in names)


PROGRAM = """
import weft
from weft.plan.machines import H200_NODE

mesh = weft.DeviceMesh("m", (2, 4), ("dp", "tp"))
graph = weft.trace(lambda x, w: weft.ops.relu(x @ w), (64, 128), (128, 256))
plan = weft.search(graph, mesh, H200_NODE).balanced
assert weft.Plan.from_json(plan.to_json()) == plan
print(weft.__file__)
"""


def test_the_core_works_with_no_extra(empty, tmp_path):
    home = output_of([empty, "-c", PROGRAM], cwd=tmp_path).strip()
    assert Path(home).is_relative_to(empty.parent.parent)


def test_the_command_works_with_no_extra(empty, tmp_path):
    command = empty.parent / "weft"
    drawn = output_of([command, "show", '@m = <["x"=2]>', "4x4", '<@m, [{"x"}, {}]>'], cwd=tmp_path)
    assert drawn.startswith('[4, 4] as <@m, [{"x"}, {}]>')
    found = json.loads(output_of([command, "doctor", "--json"], cwd=tmp_path))
    assert {name for name, extra in found["extras"].items() if extra["there"]} == set()


def test_an_error_names_the_missing_extra(empty, tmp_path):
    ran = subprocess.run(
        [empty.parent / "weft", "store", "info", "a.zarr"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 2
    assert "pip install 'weft[store]'" in ran.stderr
    assert "Traceback" not in ran.stderr
