"""`weft store`: writes, describes, verifies and copies sharded Zarr arrays."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

from weft.cli.files import print_json
from weft.cli.parser import examples_of, sentence, sizes_of, suggest
from weft.cli.sources import ArraySource, chosen_chunks, chosen_shards, of_zarr, open_source
from weft.draw import say
from weft.errors import WeftError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from weft.store import Array, Metadata, Verification, Writer

EXAMPLES = """\
examples:
  weft store write stack.npy stack.zarr --chunks 16 128 128 --shards 64 1024 1024 --codec blosc-lz4
  weft store write frames.raw a.zarr --shape -1 2048 2048 --dtype uint16 --codec blosc-zstd
  weft store write stack.tif a.zarr
  camera | weft store write - a.zarr --shape -1 1024 1024 --dtype uint16
  weft store info stack.zarr
  weft store verify s3://bucket/stack.zarr --json
  weft store copy stack.zarr again.zarr --chunks 8 64 64 --codec zstd
"""
CODECS = ("none", "zstd", "gzip", "blosc-lz4", "blosc-zstd", "lz4")


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand, and those below it."""
    parser = commands.add_parser(
        "store",
        help="write, look at, verify and copy sharded Zarr arrays",
        description="Sharded Zarr v3 arrays in folders and object stores.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(dest="what", metavar="WHAT")
    for name, summary in (
        ("info", "what an array is"),
        ("verify", "compare an array with its checksums"),
    ):
        one = _command(below, name, summary, summary)
        one.add_argument("url", help="the folder or the address of an array")
        _finish(one)
    write = _command(
        below,
        "write",
        "an array from a file or a stream",
        "an array from .npy, raw bytes, TIFF, another Zarr array, or standard input",
    )
    # A shape may begin with -1: `--shape -1,64,64` is no option.
    write._negative_number_matcher = re.compile(r"^-\d+([,x].*)?$")
    write.add_argument("source", help=".npy, .tif, a folder of these, raw, a Zarr array, or -")
    _add_sizes(write, "--shape", "of raw bytes: 10 64 64, or -1 64 64 for all there are")
    suggest(write.add_argument("--dtype", help="of raw bytes"), "uint8", "uint16", files=False)
    write.add_argument("--offset", type=int, default=0, help="bytes before the raw ones (0)")
    copy = _command(
        below,
        "copy",
        "an array in other chunks, shards or codecs",
        "an array in other chunks, shards or codecs, in bounded memory",
    )
    copy.add_argument("source", help="the folder or the address of an array")
    for one in (write, copy):
        one.add_argument("url", help="the folder or the address that is written")
        _add_sizes(one, "--chunks", "the sizes of a chunk: 16 64 64, or 16,64,64, or 16x64x64")
        _add_sizes(one, "--shards", "the sizes of a shard, multiples of those of a chunk")
        one.add_argument("--codec", choices=CODECS, help="how chunks are compressed")
        one.add_argument(
            "--no-checksum", action="store_true", help="store chunks without a checksum"
        )
        one.add_argument("--overwrite", action="store_true", help="in place of what is there")
        _finish(one)


def _command(
    below: _SubParsersAction[argparse.ArgumentParser], name: str, summary: str, more: str
) -> argparse.ArgumentParser:
    """Add a subcommand, with its own examples."""
    raw = argparse.RawDescriptionHelpFormatter
    examples = examples_of(EXAMPLES, f"weft store {name}")
    return below.add_parser(
        name, help=summary, description=f"{sentence(more)}.", epilog=examples, formatter_class=raw
    )


def _add_sizes(parser: argparse.ArgumentParser, name: str, summary: str) -> None:
    sizes = parser.add_argument(name, type=sizes_of, nargs="+", metavar="N", help=summary)
    suggest(sizes, files=False)


def _flat(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with their sizes flattened."""
    for name in ("shape", "chunks", "shards"):
        if getattr(args, name, None):
            setattr(args, name, [size for word in getattr(args, name) for size in word])
    return args


def _finish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run a subcommand, and print its result."""
    _print(
        args, {"info": info, "verify": verify, "write": write, "copy": copy}[args.what](_flat(args))
    )


def _print(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json:
        print_json(result)
    else:
        findings = result.pop("findings", [])
        rows = [*result.items(), *(("finding", text) for text in findings)]
        wide = max(len(key) for key, _ in rows)
        say("\n".join(f"{key:{wide}}  {value}" for key, value in rows), sys.stdout)


def info(args: argparse.Namespace) -> dict[str, Any]:
    """Return the metadata of an array, and the bytes of its shards."""
    array, metadata = _open_array(args.url)
    sizes = [found.size for key in array.sink.keys("c") if (found := array.sink.fetch(key, 0, 0))]
    stored, whole = sum(sizes), _bytes(array)
    return {
        "shape": list(metadata.shape),
        "dtype": metadata.dtype,
        "chunks": list(metadata.chunks),
        "shards": list(metadata.shards),
        "codecs": [codec.name for codec in metadata.codecs] or ["none"],
        "checksum": any(codec.name == "crc32c" for codec in metadata.codecs),
        "dimension_names": list(metadata.dimension_names or ()),
        "files": len(sizes),
        "bytes": whole,
        "stored": stored,
        "ratio": round(whole / stored, 3) if stored else None,
    }


def verify(args: argparse.Namespace) -> dict[str, Any]:
    """Read every index and every chunk; findings are printed before the command fails."""
    array, _ = _open_array(args.url)
    total = array.layout.shard_grid.size
    begin = time.perf_counter()

    def progress(shards: int, chunks: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{shards} of {total} shards, {chunks} chunks \033[K")

    try:
        result = array.verify(progress)
    except _store().IntegrityError as error:
        _clear_line()
        _print(args, _as_data(error.verification) | _pace(_bytes(array), begin))
        raise
    _clear_line()
    return _as_data(result) | _pace(_bytes(array), begin)


def _as_data(result: Verification) -> dict[str, Any]:
    """Return a verification as plain data."""
    return {
        "chunks": result.chunks,
        "matched": result.matched,
        "decoded": result.decoded,
        "shards": result.shards,
        "absent": result.absent,
        "checked": result.text,
        "findings": list(result.findings),
    }


def write(args: argparse.Namespace) -> dict[str, Any]:
    """Write an array from a file or a stream, piece by piece."""
    source = open_source(args.source, args.shape, args.dtype, args.offset)
    chunks = tuple(args.chunks or chosen_chunks(source))
    shards = args.shards or (chunks if args.chunks else chosen_shards(source, chunks))
    return _stream(args, source, chunks, shards, args.codec or "zstd")


def copy(args: argparse.Namespace) -> dict[str, Any]:
    """Copy an array, as many rows at a time as the new chunks have."""
    source = of_zarr(args.source)
    chunks = tuple(args.chunks or source.metadata.chunks)
    shards = args.shards or (chunks if args.chunks else source.metadata.shards)
    codecs = args.codec or source.metadata.codecs
    if args.no_checksum and not args.codec:
        codecs = [codec for codec in codecs if codec.name != "crc32c"]
    return _stream(args, source, chunks, shards, codecs)


def _stream(
    args: argparse.Namespace, source: ArraySource, chunks: Any, shards: Any, codecs: Any
) -> dict[str, Any]:
    """Append a source piece by piece; what came before a failure is kept."""
    more: dict[str, Any] = {"dimension_names": source.names}
    if source.metadata is not None:
        more |= {"fill_value": source.metadata.fill_value, "attributes": source.metadata.attributes}
    more |= {"codecs": codecs, "checksum": not args.no_checksum, "overwrite": args.overwrite}
    writer = _create(args.url, source.shape, source.dtype, chunks, shards, **more)
    begin = time.perf_counter()
    with writer:
        for block in _blocks(source, writer, max(1, chunks[0])):
            writer.append_rows(block)  # a source of one shape, cut wherever memory wants it
            if sys.stderr.isatty():
                _progress(writer, source)
    _clear_line()
    metrics = writer.metrics()
    return {
        "rows": metrics.rows,
        **_pace(metrics.bytes, begin),
        "stored": metrics.stored,
        "ratio": round(metrics.ratio, 3) if metrics.ratio else None,
        "append": f"median {metrics.append_median * 1e3:.2f} ms, "
        f"maximum {metrics.append_maximum * 1e3:.2f} ms",
        "binds": metrics.binds,
    }


def _blocks(source: ArraySource, writer: Writer, rows: int) -> Iterator[Any]:
    """Yield the blocks of a source, without the fill value after its last frame."""
    left = _promised(source, writer)
    for block in source.blocks(rows):
        if left is None or block.size <= left:
            yield block
        else:
            yield block.reshape(-1, *writer.frame)[: left // writer.layout.frame_size]
        left = None if left is None else max(0, left - block.size)


def _promised(source: ArraySource, writer: Writer) -> int | None:
    """Return the elements that the writer of an array promised; None for all of its shape."""
    weft = {} if source.metadata is None else source.metadata.attributes.get("weft", {})
    if source.metadata is None or "frames" not in weft or "axis_order" in weft:
        return None
    return writer.layout.promised_elements(source.metadata)


def _create(url: str, *arguments: Any, **more: Any) -> Writer:
    """Create an array; where one exists, hint at the option of the command."""
    try:
        writer: Writer = _store().create(url, *arguments, **more)
    except WeftError as error:
        if "holds an array already" not in str(error):
            raise
        raise WeftError(str(error), hint="--overwrite writes in its place") from error
    return writer


def _clear_line() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")


def _progress(writer: Writer, source: ArraySource) -> None:
    metrics = writer.metrics()
    of = "" if source.shape[0] is None else f" of {source.shape[0]}"
    ratio = f", {metrics.ratio:.2f} times smaller" if metrics.ratio else ""
    sys.stderr.write(f"\r{metrics.rows}{of} rows, {metrics.rate:.2f} GB/s{ratio} \033[K")


def _pace(size: int, begin: float) -> dict[str, Any]:
    seconds = time.perf_counter() - begin
    return {"bytes": size, "seconds": round(seconds, 3), "GB/s": round(size / seconds / 1e9, 3)}


def _bytes(array: Array) -> int:
    return prod(array.shape) * int(array.dtype.itemsize)


def _open_array(url: str) -> tuple[Array, Metadata]:
    """Open an array; images and plates are refused."""
    _store()
    array: Array = import_module("weft.store.create").open_array(url)
    return array, array.metadata


def _store() -> Any:
    try:
        return import_module("weft.store")
    except ImportError as error:
        raise WeftError("weft store needs NumPy", hint="pip install 'weft[store]'") from error
