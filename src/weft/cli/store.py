"""`weft store`: arrays written to sharded Zarr, looked at, verified and copied."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import print_json
from weft.draw import say
from weft.errors import WeftError
from weft.space import ZRange

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Iterator

    from weft.store import Array, Writer

EXAMPLES = """\
examples:
  weft store write stack.npy stack.zarr --chunks 16 128 128 --shards 64 1024 1024 --codec blosc-lz4
  weft store info stack.zarr
  weft store verify stack.zarr --json
  weft store copy stack.zarr again.zarr --chunks 8 64 64 --codec zstd
"""
CODECS = ("none", "zstd", "gzip", "blosc-lz4", "blosc-zstd", "lz4")


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand, and those below it."""
    parser = commands.add_parser(
        "store",
        help="write, look at, verify and copy sharded Zarr arrays",
        description="Sharded Zarr v3 arrays in local folders.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, told in (("info", "what an array is"), ("verify", "read every byte of an array")):
        one = below.add_parser(name, help=told, description=told)
        one.add_argument("path", type=Path, help="the folder of an array")
        _finish(one)
    for name, told in (
        ("write", "a .npy file as a sharded array"),
        ("copy", "an array in other chunks, shards or codecs, in bounded memory"),
    ):
        one = below.add_parser(name, help=told, description=told)
        one.add_argument("source", type=Path, help="what is read")
        one.add_argument("path", type=Path, help="the folder that is written")
        one.add_argument("--chunks", type=int, nargs="+", help="the sizes of a chunk")
        one.add_argument("--shards", type=int, nargs="+", help="the sizes of a shard")
        one.add_argument("--codec", choices=CODECS, help="how chunks are compressed")
        one.add_argument("--overwrite", action="store_true", help="in place of what is there")
        _finish(one)


def _finish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run what is asked for, and print what came of it."""
    found = {"info": info, "verify": verify, "write": write, "copy": copy}[args.what](args)
    if args.json:
        print_json(found)
    else:
        wide = max(map(len, found))
        say("\n".join(f"{key:{wide}}  {value}" for key, value in found.items()), sys.stdout)


def info(args: argparse.Namespace) -> dict[str, Any]:
    """What the metadata of an array says, and the bytes of its shards."""
    array: Array = _store().open_array(args.path)
    said = array.metadata
    files = [file for file in (args.path / "c").rglob("*") if file.is_file()]
    stored, whole = sum(file.stat().st_size for file in files), _bytes(array)
    return {
        "shape": list(said.shape),
        "dtype": said.dtype,
        "chunks": list(said.chunks),
        "shards": list(said.shards),
        "codecs": [codec.name for codec in said.codecs] or ["none"],
        "dimension_names": list(said.dimension_names or ()),
        "files": len(files),
        "bytes": whole,
        "stored": stored,
        "ratio": round(whole / stored, 3) if stored else None,
    }


def verify(args: argparse.Namespace) -> dict[str, Any]:
    """Read every index and every chunk."""
    array: Array = _store().open_array(args.path)
    begin = time.perf_counter()
    chunks = array.verify()
    return {"chunks": chunks, **_pace(_bytes(array), begin)}


def write(args: argparse.Namespace) -> dict[str, Any]:
    """A .npy file, read as it is needed."""
    np: Any = import_module("numpy")
    try:
        source = np.load(args.source, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise WeftError(f"{args.source} is no .npy file of numbers: {error}") from None
    chunks = tuple(args.chunks or (min(64, n or 1) for n in source.shape))
    with _create(args, source.shape, source.dtype.name, chunks, args.codec or "zstd") as writer:
        return _stream(writer, source.shape, lambda box: source[box.slices()])


def copy(args: argparse.Namespace) -> dict[str, Any]:
    """An array, epoch by epoch of the new one."""
    array: Array = _store().open_array(args.source)
    said = array.metadata
    chunks = tuple(args.chunks or said.chunks)
    if args.shards is None and args.chunks is None:
        args.shards = said.shards
    codecs = None if args.codec else said.codecs
    with _create(args, said.shape, said.dtype, chunks, args.codec, codecs, said) as writer:
        return _stream(writer, said.shape, array.read)


def _create(
    args: argparse.Namespace,
    shape: tuple[int, ...],
    dtype: str,
    chunks: tuple[int, ...],
    codec: str | None,
    codecs: Any = None,
    said: Any = None,
) -> Writer:
    store = _store()
    if codecs is None:
        made = {
            "none": (),
            "zstd": (store.Zstd(1),),
            "gzip": (store.Gzip(1),),
            "blosc-lz4": (store.Blosc("lz4", 5, "shuffle"),),
            "blosc-zstd": (store.Blosc("zstd", 1, "shuffle"),),
            "lz4": (store.Lz4(),),
        }
        codecs = made[codec or "none"]
    more = {}
    if said is not None:
        more = {
            "fill_value": said.fill_value,
            "dimension_names": said.dimension_names,
            "attributes": said.attributes,
        }
    writer: Writer = store.create(
        args.path,
        shape,
        dtype,
        chunks,
        args.shards or chunks,
        codecs=codecs,
        overwrite=args.overwrite,
        **more,
    )
    return writer


def _stream(writer: Writer, shape: tuple[int, ...], read: Any) -> dict[str, Any]:
    """Everything, as many rows at a time as a chunk has."""
    begin, size = time.perf_counter(), 0
    for start, stop in _rows(shape[0], writer.metadata.chunks[0]):
        block = read(ZRange((start, *[0] * (len(shape) - 1)), (stop, *shape[1:])))
        writer.append(block)
        size += block.nbytes
        if sys.stderr.isatty():
            rate = size / (time.perf_counter() - begin) / 1e9
            sys.stderr.write(f"\r{stop} of {shape[0]} rows, {rate:.2f} GB/s ")
    writer.close()
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    stored = writer.metrics().stored
    ratio = round(size / stored, 3) if stored else None
    return {"rows": shape[0], **_pace(size, begin), "stored": stored, "ratio": ratio}


def _rows(count: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _pace(size: int, begin: float) -> dict[str, Any]:
    seconds = time.perf_counter() - begin
    return {"bytes": size, "seconds": round(seconds, 3), "GB/s": round(size / seconds / 1e9, 3)}


def _bytes(array: Array) -> int:
    return prod(array.shape) * int(array.dtype.itemsize)


def _store() -> Any:
    try:
        return import_module("weft.store")
    except ImportError as error:
        raise WeftError("weft store needs NumPy", hint="pip install 'weft[store]'") from error
