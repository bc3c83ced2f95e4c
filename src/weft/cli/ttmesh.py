"""`weft ttmesh`: lower distributions to the sharded buffers of a mesh of chips."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from weft.cli.files import print_json
from weft.cli.graphs import read_mesh
from weft.cli.parser import Commands, add_flag, add_group
from weft.cli.show import read_shape
from weft.draw import say, show
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.ttmesh import BufferWrite, Extent, Lowering, Mapper, Shard, ShardedBufferConfig

EXAMPLES = """\
examples:
  weft ttmesh lower --shape 1,1,8192,10240 --mesh 8x4 --dims 3,2
  weft ttmesh lower --shape 4,3,32,32 --mesh 2x4 --dims none,0 --dtype bfloat16 --strict
  weft ttmesh lower --shape 1,1,64,384 --mesh 1x8 --dims none,3:3     (3 groups: fused QKV)
  weft ttmesh lower --shape 1,3,90,160,32 --mesh 2x4 --dims 2,3 --json
"""
SHOWN = 8
"""The number of writes that are listed; the others are counted."""


def add_to(commands: Commands) -> None:
    """Add the command with its subcommand."""
    summary = "lower a distribution to the buffers of a mesh of chips"
    group = add_group(commands, "ttmesh", summary, "Tensors on meshes of chips.", EXAMPLES)
    summary = "the config, the writes, and which chip holds what"
    about = "print the config, the writes, and a picture of which chip holds what"
    add = partial(group("lower", run, summary, about), files=False)
    add("--shape", required=True, help="of the tensor: 1,1,8192,10240")
    add("--mesh", required=True, help="rows and columns: 8x4; more axes; or a mesh")
    dims = (
        "the dimension that each mesh axis cuts, none to replicate; 3:3 is interleaved in 3 "
        "groups, 3:16+4+4 in groups of these sizes; a single one is cut over all chips"
    )
    add("--dims", required=True, help=dims)
    add("--dtype", default="float32", help="bfloat16, bfloat8_b, …; or a size")
    uneven = "if sizes do not divide: refuse, pad or ragged"
    add("--uneven", default="refuse", help=uneven, words=("refuse", "pad", "ragged"))
    add_flag(add, "--strict", "allow one config only, as (x, b·z·y)")
    add("--over", help="the shape of the distribution, if not that of the mesh")
    add("--offset", help="where the distribution begins on the mesh: 1x0")
    add_flag(add, "--json", "print JSON")


def run(args: argparse.Namespace) -> None:
    """Lower a distribution and print the result."""
    try:
        from weft.ttmesh import lower
    except ImportError as error:
        raise WeftError("weft ttmesh needs NumPy", hint="pip install 'weft[ttmesh]'") from error
    dtype = int(args.dtype) if re.fullmatch("[0-9]{1,18}", args.dtype) else args.dtype
    lowering = lower(read_shape(args.shape), _mapper(args), dtype, args.uneven, args.strict)
    if args.json:
        print_json(describe(lowering))
        return
    say("\n".join(_lines(lowering)), sys.stdout)
    show(lowering)


def _mapper(args: argparse.Namespace) -> Mapper:
    from weft.ttmesh import Mapper
    from weft.ttmesh.mesh import as_mesh

    dims = [_placement(text) for text in args.dims.split(",")]
    in_notation = args.mesh.lstrip().startswith("@")
    mesh = read_mesh(args.mesh) if in_notation else as_mesh(read_shape(args.mesh))
    over = None if args.over is None else read_shape(args.over)
    if len(dims) == 1:
        dims *= mesh.ndim if over is None else len(over)
    offset = None if args.offset is None else read_shape(args.offset)
    return Mapper(mesh, dims, over, offset)


def _placement(text: str) -> Shard | None:
    """Read the placement of one mesh axis: `none`, `3`, `-1`, `3:2`, `3:16+4+4`."""
    from weft.ttmesh import Shard

    word = text.strip().lower()
    if word == "none":
        return None
    match = re.fullmatch(r"(-?[0-9]{1,18})(?::([0-9]{1,18}(?:\+[0-9]{1,18})*))?", word)
    if not match:
        raise WeftError(
            f"--dims has {text!r}, which is not a dimension",
            hint="write a number for each mesh axis, or none: 3,2 or none,3",
        )
    groups = [int(size) for size in (match[2] or "1").split("+")]
    return Shard(int(match[1]), groups[0] if len(groups) == 1 else groups)


def _lines(lowering: Lowering) -> list[str]:
    """Return the config that the writes share, the writes, and which delivery is cheaper."""
    first = lowering.repeated_writes[0].first
    lines = [*_config(first.config), ""]
    if lowering.uneven == "pad" and lowering.padded_shape != lowering.shape:
        lines.append(f"padded to {list(lowering.padded_shape)}")
    for number, write in zip(range(SHOWN), chain.from_iterable(lowering.repeated_writes)):
        lines.append(f"write {number}: {_write(write)}")
    if lowering.count > SHOWN:
        lines.append(f"… {lowering.count - SHOWN} more")
    if lowering.choice == "copies":
        why = lowering.cost.fault or "many writes take longer"
        lines.append(f"copied on the host first, then one write: {why}")
    return [*lines, ""]


def _config(config: ShardedBufferConfig) -> list[str]:
    rows, columns = config.mesh_device.shape
    shard = config.shard_shape
    copies = [name for name, size in (("height", shard.height), ("width", shard.width)) if not size]
    note = f" (0: the whole {' and '.join(copies)}, with copies)" if copies else ""
    return [
        f"mesh_device             {rows} rows x {columns} columns",
        f"global_buffer_size      {config.global_buffer_size} bytes",
        f"global_buffer_shape     {_pair(config.global_buffer_shape)}",
        f"shard_shape             {_pair(shard)}{note}",
        f"mesh_shard_orientation  {config.mesh_shard_orientation.name}",
    ]


def _pair(extent: Extent) -> str:
    return f"height {extent.height}, width {extent.width}"


def _write(write: BufferWrite) -> str:
    view, pivot = "x".join(map(str, write.view)) or "1", write.pivot
    devices = _devices(write.config)
    return (
        f"elements from {write.source}, viewed as {view}, flattened before dimension {pivot}, "
        f"to {write.offset} of {len(devices)} chips"
    )


def describe(lowering: Lowering) -> dict[str, Any]:
    """Return a lowering as plain data."""
    mapper, cost = lowering.mapper, lowering.cost
    return {
        "shape": list(lowering.shape),
        "padded_shape": list(lowering.padded_shape),
        "mesh": list(mapper.mesh.shape),
        "dtype": lowering.element.name,
        "uneven": lowering.uneven,
        "writes": [
            {
                **_buffer(write.config),
                "pivot": write.pivot,
                "view": list(write.view),
                "source": write.source,
                "offset": write.offset,
            }
            for write in lowering.writes
        ],
        "choice": lowering.choice,
        "seconds": {"writes": cost.writes, "copies": cost.copies},
        "fault": cost.fault,
        "copied": _buffer(lowering.stage.config),
        "devices": [
            {
                "device": mapper.mesh.device(rank),
                "boxes": [{"start": list(box.start), "stop": list(box.stop)} for box in boxes],
            }
            for rank, boxes in enumerate(mapper.boxes(lowering.shape))
        ],
    }


def _buffer(config: ShardedBufferConfig) -> dict[str, Any]:
    return {
        "global_shape": _extent(config.global_buffer_shape),
        "shard_shape": _extent(config.shard_shape),
        "orientation": config.mesh_shard_orientation.name,
        "global_size": config.global_buffer_size,
        "mesh": list(config.mesh_device.shape),
        "devices": _devices(config),
    }


def _devices(config: ShardedBufferConfig) -> list[int]:
    return [config.mesh_device.device(rank) for rank in range(config.mesh_device.size)]


def _extent(extent: Extent) -> dict[str, int]:
    return {"height": extent.height, "width": extent.width}
