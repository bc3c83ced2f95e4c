"""What MODEL means on the command line: a graph's JSON, or a Python function that makes a graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from weft.cli.files import reading
from weft.cli.parser import meant
from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.field import read_text
from weft.lang.serial import from_json

MODELS = "a graph's JSON, or module:function or file.py:function that makes a graph"


def read_model(text: str) -> Graph:
    """Return the graph that an argument names.

    A module or a file is imported, which runs it, where it is named as `module:function` or
    `file.py:function`; nothing else is ever imported.
    """
    if text.endswith(".json") or Path(text).is_file():
        return _of_json(Path(text))
    if not text:
        raise WeftError("the name of the model is empty", hint=f"a model is {MODELS}")
    if Path(text).is_dir():
        raise WeftError(f"{text} is a folder, and no model", hint=f"a model is {MODELS}")
    home, _, name = text.rpartition(":")
    if not home or not name:
        raise WeftError(f"there is no model {text}", hint=_way_out(text))
    module = _module(home, text)
    made = getattr(module, name, None)
    if made is None:
        raise WeftError(
            f"{module.__name__} has no {name}",
            hint=_way_out(text),
        )
    with _blamed(text):
        graph = made() if callable(made) else made
    if not isinstance(graph, Graph):
        raise WeftError(
            f"{text} is no graph, but {type(graph).__name__}", hint="weft.trace makes a graph"
        )
    return graph


def _of_json(path: Path) -> Graph:
    text = read_text(path)
    with reading(path, text, "graph"):
        return from_json(text)


@contextmanager
def _blamed(text: str) -> Iterator[None]:
    """What a person's own code raises is no bug of ours."""
    try:
        yield
    except (WeftError, ImportError, OSError):
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        hint = "the same command with --debug shows where"
        raise WeftError(f"the model {text} failed: {told}", hint=hint) from error


def _module(home: str, text: str) -> ModuleType:
    try:
        with _from_here(), _blamed(text):
            return _of_file(Path(home)) if home.endswith(".py") else import_module(home)
    except ImportError as error:
        raise WeftError(f"there is no model {text}: {error}", hint=_way_out(text)) from error


def _way_out(text: str) -> str:
    """A file that may be meant, or what a model is."""
    files = [file.name for file in Path().glob("*.json")]
    return meant(text, files) or f"a model is {MODELS}"


def _of_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {path}")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def _from_here() -> Iterator[None]:
    """Modules of the folder that the command runs in can be imported, as by `python -m`."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
