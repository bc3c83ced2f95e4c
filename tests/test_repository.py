"""Rules of the repository: what `import weft` loads, its public names, and their doctests."""

import ast
import doctest
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "weft"


def python(code):
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


def test_the_core_imports_only_the_standard_library():
    loaded = json.loads(
        python(
            "import sys, json; before = set(sys.modules); from weft import *; "
            "print(json.dumps(sorted({m.partition('.')[0] for m in set(sys.modules) - before})))"
        )
    )
    assert set(loaded) - set(sys.stdlib_module_names) == {"weft"}


def test_the_public_names_are_few_and_the_same_for_type_checkers():
    assert len(weft._HOMES) <= 30
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (alias.asname, statement.module)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == set(weft._HOMES.items())
    for name, home in typed:
        module = importlib.import_module(home)
        expected = module if home == f"weft.{name}" else getattr(module, name)
        assert getattr(weft, name) is expected
        assert name in dir(weft)
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'nope'"):
        weft.nope


def public_names():
    for package in ("weft", "weft.space", "weft.layout"):
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield pytest.param(thing, id=f"{package}.{name}")


@pytest.mark.parametrize("thing", list(public_names()))
def test_every_public_name_has_a_doctest(thing):
    if inspect.isclass(thing) and issubclass(thing, Exception):
        assert thing.__doc__
        return
    module = sys.modules[thing.__module__]
    found = doctest.DocTestFinder().find(thing, thing.__name__, module=module)
    assert any(test.examples for test in found), f"{thing} has no example that a reader could copy"


def test_a_second_make_test_installs_nothing():
    if not (ROOT / ".venv" / ".test").exists():
        pytest.skip("not run in the environment that `make test` makes")
    ran = subprocess.run(["make", "-q", ".venv/.test"], cwd=ROOT, check=False)
    assert ran.returncode == 0
