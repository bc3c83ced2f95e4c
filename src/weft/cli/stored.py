"""`--storage`: how inputs and outputs lie in storage, as a person writes it."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from weft.cli.parser import sizes_of, suggest
from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.plan import Chunking, Storage
from weft.values import Point

HINT = "write NAME=64,64, NAME=64,64/256,256 with shards, or NAME=auto for an output"


def add_storage_to(parser: ArgumentParser) -> None:
    """Add the option."""
    storage = parser.add_argument(
        "--storage",
        nargs="+",
        default=[],
        metavar="NAME=CHUNK",
        help="inputs and outputs that lie in chunks, x=64,64, and shards, x=64,64/256,256; those "
        "of an output may be chosen, y=auto",
    )
    suggest(storage, files=False)


def read_storage(texts: Sequence[str], graph: Graph) -> dict[str, Storage | Chunking]:
    """What the option says of the arrays of a graph."""
    return dict(_read(text, graph) for text in texts)


def _read(text: str, graph: Graph) -> tuple[str, Storage | Chunking]:
    name, sign, said = text.partition("=")
    if not sign or not said:
        raise WeftError(f"--storage {text}: there is no chunk", hint=HINT)
    if name not in graph.values:
        known = ", ".join([*(value.name for value in graph.inputs), *graph.outputs])
        raise WeftError(f"--storage {text}: there is no {name}", hint=f"there are {known}")
    if said == "auto":
        return name, Chunking()
    value = graph.values[name]
    chunk, _, more = said.partition("/")
    shard = _block(more, text) if more else None
    return name, Storage(value.shape, _block(chunk, text), shard, itemsize(value.dtype))


def _block(part: str, text: str) -> Point:
    try:
        return sizes_of(part)
    except ArgumentTypeError as fault:
        raise WeftError(f"--storage {text}: {fault}", hint=HINT) from None


def describe_storage(storage: Mapping[str, Storage]) -> dict[str, Any]:
    """How arrays lie in storage, as plain data."""
    return {name: asdict(one) for name, one in storage.items()}
