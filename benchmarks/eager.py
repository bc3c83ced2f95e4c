"""Eager operators on shards: what Weft adds to the kernels, for each cell, beside DTensor's rank.

DTensor runs as one rank of a fake process group, so that its collectives take no time. The
overhead is the time of the operation less that of the kernel on the shard alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from benchmarks.row import Row, time_each
from weft import DeviceMesh, DimSpec, ShardingSpec, Tensor

SHAPE = (64, 64)
AXES = "xyzw"


class Case(NamedTuple):
    """One operation: ours on the whole mesh, the kernel on a shard, DTensor's on one rank."""

    name: str
    weft: Callable[[], object]
    kernel: Callable[[], object]
    peer: Callable[[], object]
    peer_kernel: Callable[[], object]


def run(seconds: float) -> Iterator[Row]:
    """The rows of this benchmark."""
    with FakeRanks(4):
        for case in cases():
            (ours, kernel, peer, peer_kernel), n = time_each(*case[1:], seconds=seconds)
            cell = max(ours - 4 * kernel, 1e-9) / 4
            overhead = max(peer - peer_kernel, 1e-9)
            name = f"eager/{case.name}"
            yield Row.against(name, cell * 1e6, "DTensor", overhead * 1e6, "µs", n)
    for rank in (1, 2, 3, 4) if seconds else (1,):
        for what in ("add", "mismatched-add"):
            with FakeRanks(2**rank):
                ours = min(_cold(rank, what) for _ in range(5))
                peer = _cold_peer(rank, what)
            name = f"eager/cold-{what}-{rank}"
            yield Row.against(name, ours * 1e3, "DTensor", peer * 1e3, "ms", 5)


class FakeRanks:
    """A process group that pretends to have `size` ranks."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=self.size)

    def __exit__(self, *_: object) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


def cases() -> Iterator[Case]:
    """The operations of the issue, on a mesh of 2 x 2."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    torch_mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))

    def ours(*axes: list[str]) -> Tensor:
        whole = Tensor(np.ones(SHAPE, "float32"))
        return whole.shard(ShardingSpec(mesh, [DimSpec(axis) for axis in axes]))

    def theirs(*placements: Any) -> Any:
        return distribute_tensor(torch.ones(SHAPE), torch_mesh, placements)

    both, turned = ours(["x"], ["y"]), ours(["y"], ["x"])
    rows, columns = ours(["x"], []), ours([], ["y"])
    theirs_both = theirs(Shard(0), Shard(1))
    theirs_turned = theirs(Shard(1), Shard(0))
    theirs_rows, theirs_columns = theirs(Shard(0), Replicate()), theirs(Replicate(), Shard(1))
    a, b = both.shards[0], theirs_both.to_local()
    row, column = rows.shards[0], columns.shards[0]
    torch_row, torch_column = theirs_rows.to_local(), theirs_columns.to_local()
    yield Case(
        "add",
        lambda: both + both,
        lambda: np.add(a, a),
        lambda: theirs_both + theirs_both,
        lambda: b + b,
    )
    yield Case(
        "mm",
        lambda: rows @ columns,
        lambda: np.matmul(row, column),
        lambda: theirs_rows @ theirs_columns,
        lambda: torch_row @ torch_column,
    )
    yield Case(
        "view",
        lambda: rows.reshape(8, 8, 64),
        lambda: np.reshape(row, (4, 8, 64)),
        lambda: theirs_rows.view(8, 8, 64),
        lambda: torch_row.view(4, 8, 64),
    )
    yield Case(
        "scale",
        lambda: both * 2.0,
        lambda: np.multiply(a, np.float32(2)),
        lambda: theirs_both * 2.0,
        lambda: b * 2.0,
    )
    yield Case(
        "mismatched-add",
        lambda: both + turned,
        lambda: np.add(a, a),
        lambda: theirs_both + theirs_turned,
        lambda: b + b,
    )


_FRESH = count(3)
"""A size that was not used before, so that nothing is remembered."""


def _cold(rank: int, what: str) -> float:
    """The first addition of two tensors that lie alike or not, on a mesh of that rank."""
    axes = AXES[:rank]
    mesh = DeviceMesh("m", (2,) * rank, tuple(axes))
    size = 64 * next(_FRESH)
    whole = Tensor(np.ones((size, 64), "float32"))
    one = whole.shard(ShardingSpec(mesh, [DimSpec(list(axes)), DimSpec([])]))
    other = whole.shard(ShardingSpec(mesh, [DimSpec([]), DimSpec(list(axes))]))
    two = one if what == "add" else other
    begin = time.perf_counter()
    one + two
    return time.perf_counter() - begin


def _cold_peer(rank: int, what: str) -> float:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,) * rank, mesh_dim_names=tuple(AXES[:rank]))
    whole = torch.ones((64 * next(_FRESH), 64))
    one = distribute_tensor(whole, mesh, [Shard(0)] * rank)
    two = one if what == "add" else distribute_tensor(whole, mesh, [Shard(1)] * rank)
    begin = time.perf_counter()
    one + two
    return time.perf_counter() - begin
