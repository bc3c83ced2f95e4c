"""Programs on the command line: graphs, meshes, shardings, machines and storage options."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from weft.cli.files import reading
from weft.cli.parser import Add, add_list, meant, sizes_of
from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.lang.field import read_text
from weft.lang.graph import located
from weft.lang.graph_json import from_json, to_json
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan import Chunking, Machine, Storage
from weft.plan.machines import PRESETS, find_machine
from weft.plan.propagation.propagate import ShardyStrategy
from weft.values import Point

MODELS = "a graph's JSON, or module:function or file.py:function that returns a graph"
MESH = """a mesh in Shardy's notation: '@m = <["x"=2, "y"=4]>'"""
SHARDING = """a sharding in Shardy's notation: '<@m, [{"x"}, {}]>'"""
SHARD = """the sharding of a value: x='<@m, [{"x"}, {}]>'; may be repeated"""
SIZE = "a number for a size of the graph that has a name only: n=32; may be repeated"
STRATEGY = "how conflicts are resolved; cost takes the plan that moves the fewest bytes"
MACHINE = f"a machine's TOML file, or one of {', '.join([*PRESETS, 'host'])}"
STORED = (
    "inputs and outputs stored in chunks, x=64,64, and shards, x=64,64/256,256; y=auto chooses the "
    "chunks of an output"
)
STORAGE = "write NAME=64,64, NAME=64,64/256,256 with shards, or NAME=auto for an output"


# -- options --------------------------------------------------------------------------------------


def add_graph_to(add: Add) -> None:
    """Add the program, further meshes, and shardings of its values."""
    add("graph", help=MODELS)
    add_list(add, "--mesh", f"add {MESH}", files=False)
    add_list(add, "--shard", SHARD, metavar="NAME=SHARDING", files=False)
    add_sizes_to(add)


def add_sizes_to(add: Add) -> None:
    """Add numbers for sizes of the program that are not known."""
    add_list(add, "--size", SIZE, metavar="NAME=NUMBER", files=False)


def add_strategy_to(add: Add) -> None:
    """Add the strategy for conflicts."""
    choices = (*get_args(ShardyStrategy), "cost")
    add("--strategy", choices=choices, default="user_priority", help=STRATEGY)


def add_machine_to(add: Add, purpose: str = "the machine to run on") -> None:
    """Add the machine: a preset or a file."""
    add("--machine", help=f"{purpose}: {MACHINE}", words=(*PRESETS, "host"), files=True)


def add_storage_to(add: Add) -> None:
    """Add the storage of inputs and outputs."""
    add("--storage", nargs="+", default=[], metavar="NAME=CHUNK", help=STORED, files=False)


def read_machine(args: Namespace) -> Machine | None:
    """Return the machine of the option, if it is given."""
    return find_machine(args.machine) if args.machine else None


# -- graphs with meshes and shardings -------------------------------------------------------------


def read_graph(args: Namespace) -> Graph:
    """Return the program with the meshes and the shardings of the options."""
    graph = read_bound_model(args)
    if not args.mesh and not args.shard:
        return graph
    data = json.loads(to_json(graph))
    with located("--mesh"):
        meshes = {mesh.name: mesh for mesh in map(read_mesh, [*graph.meshes, *args.mesh])}
    data["meshes"] = list(map(str, meshes.values()))
    given = dict(_read_shard(text, graph, list(meshes.values())) for text in args.shard)
    data["shardings"] = {**data.get("shardings", {}), **given}
    return from_json(json.dumps(data), graph.operators)


def read_mesh(text: str) -> DeviceMesh:
    """Return a mesh from its text; errors say how one is written."""
    try:
        return DeviceMesh.parse(text)
    except WeftError as error:
        error.add_note(f"hint: {MESH}")
        raise


def read_sharding(text: str, meshes: DeviceMesh | Sequence[DeviceMesh]) -> ShardingSpec:
    """Return a sharding from its text; errors say how one is written."""
    try:
        return ShardingSpec.parse(text, meshes)
    except WeftError as error:
        if not any(note.startswith("hint:") for note in getattr(error, "__notes__", ())):
            error.add_note(f"hint: {SHARDING}")
        raise


def _read_shard(text: str, graph: Graph, meshes: Sequence[DeviceMesh]) -> tuple[str, str]:
    name, equals, sharding = text.partition("=")
    if not equals:
        raise WeftError(f"--shard {text}: expected NAME=SHARDING", hint=SHARD)
    check_value(name, graph)
    if not meshes:
        raise WeftError(f"--shard {text}: the graph has no mesh", hint=f"--mesh is {MESH}")
    with located(f"--shard {name}"):
        return name, str(read_sharding(sharding, meshes))


def check_value(name: str, graph: Graph) -> None:
    """Refuse a value that a graph does not have."""
    known = list(graph.all_values)
    if name not in known:
        more = " ..." if len(known) > 6 else ""
        values = f"its values are {', '.join(known[:6])}{more}" if known else "it has none"
        raise WeftError(f"the graph has no value {name}", hint=meant(name, known) or values)


# -- models ---------------------------------------------------------------------------------------


def read_model(text: str) -> Graph:
    """Return the graph that an argument names.

    A module or a file is imported, which runs it, if it is named as `module:function` or
    `file.py:function`; nothing else is ever imported.
    """
    if text.endswith(".json") or Path(text).is_file():
        data = read_text(Path(text))
        with reading(Path(text), data, "graph"):
            return from_json(data)
    if not text:
        raise WeftError("the name of the model is empty", hint=f"a model is {MODELS}")
    if Path(text).is_dir():
        raise WeftError(f"{text} is a folder, not a model", hint=f"a model is {MODELS}")
    home, _, name = text.rpartition(":")
    if not home or not name:
        raise WeftError(f"there is no model {text}", hint=_model_hint(text))
    module = _import_model(home, text)
    model = getattr(module, name, None)
    if model is None:
        raise WeftError(f"{module.__name__} has no {name}", hint=_model_hint(text))
    with _user_code(text):
        graph = model() if callable(model) else model
    if not isinstance(graph, Graph):
        raise WeftError(
            f"{text} is not a graph, but of type {type(graph).__name__}",
            hint="weft.trace returns a graph",
        )
    return graph


def read_bound_model(args: Namespace) -> Graph:
    """Return the graph of the arguments, with the numbers that `--size` gives."""
    graph, sizes = read_model(args.graph), dict[str, int]()
    for text in args.size:
        name, _, number = text.partition("=")
        if not number.isdecimal():
            raise WeftError(f"--size {text}: expected NAME=NUMBER", hint=SIZE)
        sizes[name] = int(number)
    if not sizes:
        return graph
    with located("--size"):
        return graph.bind(sizes)


@contextmanager
def _user_code(text: str) -> Iterator[None]:
    """Report an exception of the user's code as such, and not as a bug of Weft."""
    try:
        yield
    except (WeftError, ImportError, OSError):
        raise
    except Exception as error:
        message = f"the model {text} failed: {type(error).__name__}: {error}"
        raise WeftError(message, hint="the same command with --debug shows where") from error


def _import_model(home: str, text: str) -> ModuleType:
    try:
        with importable_from_here(), _user_code(text):
            return _import_file(Path(home)) if home.endswith(".py") else import_module(home)
    except ImportError as error:
        raise WeftError(f"there is no model {text}: {error}", hint=_model_hint(text)) from error


def _model_hint(text: str) -> str:
    """Return a file that may be meant, or the forms of a model."""
    files = [file.name for file in Path().glob("*.json")]
    return meant(text, files) or f"a model is {MODELS}"


def _import_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"there is no file {path}")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Make modules of the current folder importable, as `python -m` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def import_operators(name: str) -> ModuleType:
    """Import a module that adds operators, from the current folder too."""
    try:
        with importable_from_here():
            return import_module(name)
    except ImportError as error:
        raise WeftError(f"cannot import {name}: {error}") from None


# -- storage --------------------------------------------------------------------------------------


def read_storage(texts: Sequence[str], graph: Graph) -> dict[str, Storage | Chunking]:
    """Return the storage of the arrays of a graph from the option."""
    return dict(_read_storage(text, graph) for text in texts)


def _read_storage(text: str, graph: Graph) -> tuple[str, Storage | Chunking]:
    name, sign, blocks = text.partition("=")
    if not sign or not blocks:
        raise WeftError(f"--storage {text}: no chunk is given", hint=STORAGE)
    if name not in graph.values:
        known = ", ".join([*(value.name for value in graph.inputs), *graph.outputs])
        raise WeftError(f"--storage {text}: there is no {name}", hint=f"there are {known}")
    if blocks == "auto":
        return name, Chunking()
    value = graph.values[name]
    chunk, _, shard = blocks.partition("/")
    shards = _read_block(shard, text) if shard else None
    return name, Storage(value.shape, _read_block(chunk, text), shards, itemsize(value.dtype))


def _read_block(part: str, text: str) -> Point:
    try:
        return sizes_of(part)
    except ArgumentTypeError as error:
        raise WeftError(f"--storage {text}: {error}", hint=STORAGE) from None


def describe_storage(storage: Mapping[str, Storage]) -> dict[str, Any]:
    """Return how arrays are stored, as plain data."""
    return {name: asdict(one) for name, one in storage.items()}
