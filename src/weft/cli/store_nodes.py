"""`weft store ls`, `info` and `verify`: arrays, images, plates and groups, of Zarr v3 and v2."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

from weft.cli.files import StatusLine, print_result
from weft.cli.store import pace, print_table
from weft.errors import WeftError
from weft.store.array import Array
from weft.store.group import Group, open_group
from weft.store.hierarchy import find_node, load_metadata, sink_of
from weft.store.metadata import own_attributes
from weft.store.ome.channels import Channel, read_channels
from weft.store.ome.image import Image, open_image
from weft.store.ome.metadata import Multiscale, Plate
from weft.store.ome.plate import open_plate
from weft.store.ome.positions import open_positions
from weft.store.target import ArrayKeys
from weft.store.verify import IntegrityError, Verification
from weft.values import counted

MAX_FINDINGS = 100
"""Findings of all arrays that are listed; all are counted."""


def run(args: argparse.Namespace) -> None:
    """Run a subcommand, and print its result."""
    if args.what == "ls":
        tree = described(opened(args.url), _name(args.url), args.depth)
        print_result(args, lambda: tree, lambda: "\n".join(lines(tree)))
    elif args.what == "info":
        print_table(args, info(args.url))
    else:
        verify(args)


def opened(url: str) -> Array | Group:
    """Open the array or group at a URL."""
    sink = sink_of(url)
    node = find_node(sink)
    if node is None or node.kind == "array":
        return Array(sink, load_metadata(sink))
    return open_group(url)


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2] or url


def members(group: Group) -> Iterator[tuple[str, Array | Group | WeftError]]:
    """Yield the members of a group; the error of one that cannot be read."""
    for name in group:
        try:
            yield name, group[name]
        except WeftError as error:
            yield name, error


def arrays(node: Array | Group, path: str = "") -> Iterator[tuple[str, Array | WeftError]]:
    """Yield all arrays at and below a node, with their paths."""
    if not isinstance(node, Group):
        yield path, node
        return
    for name, member in members(node):
        below = f"{path}/{name}" if path else name
        if isinstance(member, Group):
            yield from arrays(member, below)
        else:
            yield below, member


# -- ls


def described(node: Any, name: str, depth: int | None = None) -> dict[str, Any]:
    """Return a node and its members as plain data."""
    if isinstance(node, WeftError):
        return {"name": name, "kind": "unreadable", "error": str(node)}
    if isinstance(node, Array):
        return {
            "name": name,
            "kind": "array",
            "dtype": node.metadata.dtype,
            "shape": list(node.shape),
            "chunks": list(node.chunks),
            "shards": _as_list(node.shards),
        }
    found: dict[str, Any] = {"name": name, "kind": node.kind, "zarr_format": node.zarr_format}
    found |= _ome_summary(node)
    if depth is None or depth > 0:
        left = None if depth is None else depth - 1
        found["members"] = [described(member, key, left) for key, member in members(node)]
    return found


def lines(tree: Mapping[str, Any], head: str = "", below: str = "") -> Iterator[str]:
    """Yield the lines of a tree."""
    if tree["kind"] == "array":
        chunks = "x".join(map(str, tree["chunks"]))
        text = f"{tree['dtype']}{tree['shape']} in chunks of {chunks}"
        if tree["shards"] not in (None, tree["chunks"]):
            text += f", shards of {'x'.join(map(str, tree['shards']))}"
    else:
        text = tree.get("error") or ", ".join(_summary_text(tree))
    yield f"{head}{tree['name']}  {text}"
    inside = tree.get("members", [])
    for number, member in enumerate(inside):
        is_last = number == len(inside) - 1
        branch, more = ("└── ", "    ") if is_last else ("├── ", "│   ")
        yield from lines(member, below + branch, below + more)


def _summary_text(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is known of a group, in words."""
    kind, name = tree["kind"], tree.get("image_name")
    yield f"{kind} {name!r}" if name else kind
    for key in ("axes", "channels", "rows", "columns", "wells", "positions"):
        if tree.get(key):
            yield f"{key} {' '.join(tree[key]) if isinstance(tree[key], list) else tree[key]}"
    if "levels" in tree:
        yield counted(tree["levels"], "level")


def _ome_summary(group: Group) -> dict[str, Any]:
    """Return what OME-NGFF says of a group, in few words; nothing where it cannot be read."""
    with suppress(WeftError):
        if group.kind == "image":
            return _image_summary(Multiscale.from_json(group.ome), read_channels(group.ome))
        if group.kind == "plate":
            return _plate_summary(Plate.from_json(group.ome))
        if group.kind == "collection":
            return {"positions": list(open_positions(group.sink).names)}
    return {}


def _image_summary(image: Multiscale, channels: Sequence[Channel]) -> dict[str, Any]:
    result: dict[str, Any] = {"image_name": image.name} if image.name else {}
    result |= {"axes": "".join(axis.name for axis in image.axes), "levels": len(image.levels)}
    return result | ({"channels": _names(channels)} if channels else {})


def _plate_summary(plate: Plate) -> dict[str, Any]:
    wells = [f"{well.row}/{well.column}" for well in plate.wells]
    return {"rows": list(plate.rows), "columns": list(plate.columns), "wells": wells}


def _names(channels: Sequence[Channel]) -> list[str]:
    return [channel.name or str(number) for number, channel in enumerate(channels)]


def _as_list(sizes: Sequence[int] | None) -> list[int] | None:
    return None if sizes is None else list(sizes)


# -- info


def info(url: str) -> dict[str, Any]:
    """Return what a node is, and the bytes that it takes."""
    node = opened(url)
    if isinstance(node, Array):
        return _array_info(node)
    found = list(arrays(node))
    readable = [array for _, array in found if isinstance(array, Array)]
    result = {"kind": node.kind, "zarr_format": node.zarr_format, **_ome_info(node)}
    result |= {"arrays": len(readable)}
    if len(found) > len(readable):
        result["unreadable"] = len(found) - len(readable)
    names = [name for name in node.attrs if name not in ("ome", "weft")]
    return result | {"attributes": names} | _sizes(readable)


def _array_info(array: Array) -> dict[str, Any]:
    metadata, node = array.metadata, find_node(array.sink)
    result = {
        "kind": "array",
        "zarr_format": 3 if node is None else node.zarr_format,
        "shape": list(metadata.shape),
        "dtype": metadata.dtype,
        "chunks": list(metadata.chunks),
        "shards": _as_list(array.shards),
        "codecs": [codec.name for codec in metadata.codecs] or ["none"],
        "checksum": any(codec.name == "crc32c" for codec in metadata.codecs),
        "dimension_names": list(metadata.dimension_names or ()),
        "attributes": [name for name in metadata.attributes if name != "weft"],
    }
    if "frame_segments" in own_attributes(metadata.attributes):
        frames = array.frames
        result |= {"frames": len(frames), "dropped": len(frames.dropped)}
        result["frame_metadata"] = list(frames.columns)
    return result | _sizes([array])


def _ome_info(group: Group) -> dict[str, Any]:
    """Return what OME-NGFF says of an image, a plate or the positions of a recording."""
    if group.kind == "image":
        return _image_info(open_image(group.sink))
    if group.kind == "plate":
        plate = open_plate(group.sink)
        paths = [
            (well.row, well.column, field.path)
            for well in plate.plate.wells
            for field in plate.well(well.row, well.column).fields
        ]
        about = {"acquisitions": [run.name or str(run.id) for run in plate.plate.acquisitions]}
        fields = [_listed("/".join(path), plate.image(*path)) for path in paths]
        return _plate_summary(plate.plate) | about | {"fields": fields}
    if group.kind == "collection":
        positions = open_positions(group.sink)
        images = zip(positions.paths, positions)
        return {"positions": [_listed(image.name or path, image) for path, image in images]}
    return {}


def _image_info(image: Image) -> dict[str, Any]:
    result: dict[str, Any] = {
        "image_name": image.name,
        "axes": [axis.name for axis in image.axes],
        "channels": _names(image.channels),
        "dtype": image.levels[0].metadata.dtype,
        "levels": [list(level.shape) for level in image.levels],
        "scales": [list(scale) for scale in image.scales],
        "labels": list(image.labels),
    }
    frames = image.frames
    if frames.columns or len(frames.dropped):
        result |= {"frames": len(frames), "dropped": len(frames.dropped)}
        result["frame_metadata"] = list(frames.columns)
    return result


def _listed(name: str, image: Image) -> dict[str, Any]:
    """Return an image as one of many: its name, axes, channels, and the shapes of its levels."""
    return {
        "name": name,
        "axes": "".join(axis.name for axis in image.axes),
        "channels": _names(image.channels),
        "levels": [list(level.shape) for level in image.levels],
    }


def _sizes(every: list[Array]) -> dict[str, Any]:
    """Return the files and bytes of arrays; None where a server cannot list them."""
    whole = sum(_bytes(array) for array in every)
    sizes: list[int] | None = None
    with suppress(WeftError):
        sizes = [size for array in every for size in _stored(array)]
    if sizes is None:
        return {"files": None, "bytes": whole, "stored": None, "ratio": None}
    stored = sum(sizes)
    ratio = round(whole / stored, 3) if stored else None
    return {"files": len(sizes), "bytes": whole, "stored": stored, "ratio": ratio}


def _stored(array: Array) -> Iterator[int]:
    """Yield the bytes of each shard that is stored."""
    metadata = array.metadata
    keys = ArrayKeys(metadata.shape, metadata.shards, metadata.keys, 0, False, "end", 0)
    for key in array.sink.keys(metadata.keys.root):
        if keys.shard_at(key) is not None and (found := array.sink.fetch(key, 0, 0)):
            yield found.size


def _bytes(array: Array) -> int:
    return prod(array.shape) * int(array.dtype.itemsize)


# -- verify


def verify(args: argparse.Namespace) -> None:
    """Read every index and every chunk; findings are printed before the command fails."""
    node, begin, line = opened(args.url), time.perf_counter(), StatusLine()
    results, size, error = list[Verification](), 0, None
    for path, array in arrays(node):
        if isinstance(array, WeftError):
            results.append(Verification(0, faults=1, findings=[f"{path}: {array}"]))
            error = error or array
            continue
        where, total = f"{path}: " if path else "", array.layout.shard_grid.size
        size += _bytes(array)
        text = f"{where}{{}} of {total} shards, {{}} chunks "
        try:
            results.append(array.verify(partial(_show_progress, line, text)))
        except IntegrityError as failed:
            results.append(failed.verification)
            error = error or failed
    line.clear()
    result = _as_data(results) | pace(size, begin)
    if isinstance(node, Group):
        result = {"arrays": len(results)} | result
    print_table(args, result)
    if error is not None:
        faults = sum(result.faults for result in results)
        if len(results) == 1 or faults == 1:
            raise error
        raise WeftError(f"{counted(faults, 'finding')} in {args.url}: {error}")


def _show_progress(line: StatusLine, text: str, shards: int, chunks: int) -> None:
    line.write(text.format(shards, chunks))


def _as_data(results: list[Verification]) -> dict[str, Any]:
    """Return verifications as plain data, all together."""
    findings = [text for result in results for text in result.findings]
    total = Verification(
        sum(results),
        shards=sum(result.shards for result in results),
        matched=sum(result.matched for result in results),
        decoded=sum(result.decoded for result in results),
        absent=sum(result.absent for result in results),
        faults=sum(result.faults for result in results),
        findings=findings[:MAX_FINDINGS],
    )
    return {
        "chunks": total.chunks,
        "matched": total.matched,
        "decoded": total.decoded,
        "shards": total.shards,
        "absent": total.absent,
        "checked": total.text,
        "findings": list(total.findings),
    }
