"""A clean clone in an empty environment: `make demo`, and `make test` if `make fresh` asks for it.

The environment has Python, git, make and standard tools: no compiler, no browser, no packages.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TOOLS = """
awk bash cat chmod cp cut date dirname env git grep head ls make mkdir mv ps readlink rm sed sh
sleep sort tail touch tr uname
"""
KEPT = re.compile("HOME|LANG|TMPDIR|(PIP|XDG|SSL_CERT)_.*|.*_(PROXY|proxy|CA_BUNDLE)")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The environment of a machine with Python, git and make."""
    folder = tmp_path_factory.mktemp("bin")
    for name in TOOLS.split():
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    # The interpreter itself, not the environment of the tests.
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    return {**kept, "PATH": str(folder)}


@pytest.fixture(scope="module")
def clone(bare, tmp_path_factory):
    """A clone, with uncommitted changes."""
    folder = tmp_path_factory.mktemp("clone") / "weft"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not in a repository")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], env=bare, check=True)
    for name in filter(None, found.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(ROOT / name, target)
        except (FileNotFoundError, IsADirectoryError):  # removed, perhaps by a test that made it
            target.unlink(missing_ok=True)
    return folder


def make(clone, bare, *words):
    """Run a target, print how long it takes, and return its output."""
    begin = time.monotonic()
    ran = subprocess.run(
        ["make", *words],
        cwd=clone,
        env=bare,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ran.stdout)
    print(f"make {words[0]} took {time.monotonic() - begin:.0f} s")
    assert ran.returncode == 0
    return ran.stdout


def test_make_demo_in_a_clean_clone(clone, bare):
    output = make(clone, bare, "demo")
    assert re.findall(r"^All checks passed, in \d+ s\.$", output, re.MULTILINE)
    assert (clone / "weft-report.html").stat().st_size < 2_000_000


@pytest.mark.skipif(not os.environ.get("WEFT_FRESH"), reason="`make fresh` runs it")
def test_make_test_in_a_clean_clone(clone, bare):
    output = make(clone, bare, "test")
    assert re.search(r"^=+ \d+ passed", output, re.MULTILINE)
