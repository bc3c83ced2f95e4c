"""`weft store`: lists, describes and verifies what is stored; writes and copies sharded arrays."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft.cli.files import StatusLine, print_result
from weft.cli.parser import Commands, add_flag, add_group, add_sizes
from weft.cli.sources import ArraySource, chosen_chunks, chosen_shards, of_zarr, open_source
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.store import Writer

EXAMPLES = """\
examples:
  weft store write stack.npy stack.zarr --chunks 16 128 128 --shards 64 1024 1024 --codec blosc-lz4
  weft store write frames.raw a.zarr --shape -1 2048 2048 --dtype uint16 --codec blosc-zstd
  weft store write stack.tif a.zarr
  camera | weft store write - a.zarr --shape -1 1024 1024 --dtype uint16
  weft store ls plate.zarr
  weft store info stack.zarr
  weft store verify s3://bucket/stack.zarr --json
  weft store copy stack.zarr again.zarr --chunks 8 64 64 --codec zstd
"""
CODECS = ("none", "zstd", "gzip", "blosc-lz4", "blosc-zstd", "lz4")


def add_to(commands: Commands) -> None:
    """Add the subcommand, and those below it."""
    summary = "write, look at, verify and copy sharded Zarr arrays"
    about = "Zarr arrays, images, plates and groups in folders and object stores."
    group = add_group(commands, "store", summary, about, EXAMPLES)
    for name, text in (
        ("ls", "a tree of what is stored"),
        ("info", "what an array, an image, a plate or a group is"),
        ("verify", "compare an array, or all below a group, with their checksums"),
    ):
        add = group(name, run, text)
        add("url", help="the folder or the address of an array or a group, of Zarr v3 or v2")
        if name == "ls":
            add("--depth", type=int, help="levels of the tree that are shown (all)")
        add_flag(add, "--json", "print JSON")
    about = "an array from .npy, raw bytes, TIFF, another Zarr array, or standard input"
    write = group("write", run, "an array from a file or a stream", about)
    write("source", help=".npy, .tif, a folder of these, raw, a Zarr array, or -")
    add_sizes(write, "--shape", "of raw bytes: 10 64 64, or -1 64 64 for all there are")
    write("--dtype", help="of raw bytes", words=("uint8", "uint16"), files=False)
    write("--offset", type=int, default=0, help="bytes before the raw ones (0)")
    text = "an array in other chunks, shards or codecs"
    copy = group("copy", run, text, f"{text}, in bounded memory")
    copy("source", help="the folder or the address of an array")
    for add in (write, copy):
        add("url", help="the folder or the address that is written")
        add_sizes(add, "--chunks", "the sizes of a chunk: 16 64 64, or 16,64,64, or 16x64x64")
        add_sizes(add, "--shards", "the sizes of a shard, multiples of those of a chunk")
        add("--codec", choices=CODECS, help="how chunks are compressed")
        add_flag(add, "--no-checksum", "store chunks without a checksum")
        add_flag(add, "--overwrite", "in place of what is there")
        add_flag(add, "--json", "print JSON")


def run(args: argparse.Namespace) -> None:
    """Run a subcommand, and print its result."""
    _store()  # says what is missing
    if args.what in ("ls", "info", "verify"):
        import_module("weft.cli.store_nodes").run(args)
        return
    print_table(args, {"write": write, "copy": copy}[args.what](args))


def print_table(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print a result as a table, or as JSON."""

    def table() -> str:
        findings = result.pop("findings", [])
        rows = [*result.items(), *(("finding", text) for text in findings)]
        rows = [row for key, value in rows for row in _rows(key, value)]
        wide = max(len(key) for key, _ in rows)
        return "\n".join(f"{key:{wide}}  {value}" for key, value in rows)

    print_result(args, lambda: result, table)


def _rows(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a field of a result as rows of a table: of a list of objects, one for each of them."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        yield key, "none" if value is None or value == [] else value
        return
    for each in value:
        about = [f"{name} {each[name]}" for name in each if name != "name"]
        yield key, ", ".join([str(each.get("name", "")), *about])
        key = ""


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
    begin, line = time.perf_counter(), StatusLine()
    with writer:
        if source.frames is not None:
            writer.copy_metadata(source.frames)
        for block in _blocks(source, writer, max(1, chunks[0])):
            writer.append_rows(block)  # a source of one shape, cut wherever memory wants it
            if not line.quiet:
                line.write(_progress(writer, source))
    line.clear()
    metrics = writer.metrics()
    return {
        "rows": metrics.rows,
        **pace(metrics.bytes, begin),
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


def _progress(writer: Writer, source: ArraySource) -> str:
    metrics = writer.metrics()
    of = "" if source.shape[0] is None else f" of {source.shape[0]}"
    ratio = f", {metrics.ratio:.2f} times smaller" if metrics.ratio else ""
    return f"{metrics.rows}{of} rows, {metrics.rate:.2f} GB/s{ratio} "


def pace(size: int, begin: float) -> dict[str, Any]:
    """Return bytes, seconds and GB/s since a time."""
    seconds = time.perf_counter() - begin
    return {"bytes": size, "seconds": round(seconds, 3), "GB/s": round(size / seconds / 1e9, 3)}


def _store() -> Any:
    try:
        return import_module("weft.store")
    except ImportError as error:
        raise WeftError("weft store needs NumPy", hint="pip install 'weft[store]'") from error
