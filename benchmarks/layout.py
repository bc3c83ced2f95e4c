"""The core: one region, all regions, an exact cover, the cost of `import weft`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.row import Row, time_each
from weft import DeviceMesh, ShardingSpec, ZRange, cover

SHAPE = (8192, 4096)
BOTH = '<@m, [{"x"}, {"y"}]>'
ONE = '<@m, [{}, {"y"}]>'


def run(seconds: float) -> Iterator[Row]:
    """All rows; each may take about `seconds`."""
    yield from region(seconds)
    yield from regions(seconds)
    yield from exact_cover(seconds)
    yield from import_time(seconds)


def sharding(text: str, *shape: int) -> ShardingSpec:
    """A sharding on a mesh of that shape with the axes x and y."""
    return ShardingSpec.parse(text, DeviceMesh("m", shape, ("x", "y")))


def region(seconds: float) -> Iterator[Row]:
    """The box of one cell, warm: on 8 cells, on 2^20, and one against the other."""
    small, large = sharding(BOTH, 2, 4), sharding(BOTH, 1024, 1024)
    cells = (1, 2), (511, 770)
    calls: list[Callable[[], object]] = [
        lambda: small.region(SHAPE, cells[0]),
        lambda: large.region(SHAPE, cells[1]),
    ]
    peer = "DTensor compute_local_shape_and_global_offset"
    try:
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as theirs
    except ImportError:
        (t_small, t_large), n = time_each(*calls, seconds=seconds)
        yield Row("layout/region-8", t_small * 1e6, "us", n)
        yield Row("layout/region-1048576", t_large * 1e6, "us", n)
    else:
        both = [Shard(0), Shard(1)]
        calls += [
            lambda: theirs(SHAPE, (2, 4), cells[0], both),
            lambda: theirs(SHAPE, (1024, 1024), cells[1], both),
        ]
        (t_small, t_large, d_small, d_large), n = time_each(*calls, seconds=seconds)
        yield Row.against("layout/region-8", t_small * 1e6, peer, d_small * 1e6, "us", n)
        yield Row.against("layout/region-1048576", t_large * 1e6, peer, d_large * 1e6, "us", n)
    yield Row.against(
        "layout/region-growth", t_large * 1e6, "Weft on 8 cells", t_small * 1e6, "us", n
    )


def regions(seconds: float) -> Iterator[Row]:
    """The boxes of all 256 cells: a weight cut by one axis, and an array cut by both.

    The shape changes with every call, so that neither side has the answer in a cache.
    """
    peer = "JAX NamedSharding.devices_indices_map"
    for row, text in (("regions-256", ONE), ("regions-256-all-cut", BOTH)):
        spec = sharding(text, 16, 16)
        calls = [on_new_shapes(spec.regions)]
        try:
            calls.append(on_new_shapes(jax_indices_map(spec)))
        except ImportError:
            (mine,), n = time_each(*calls, seconds=seconds)
            yield Row(f"layout/{row}", mine * 1e6, "us", n)
        else:
            (mine, theirs), n = time_each(*calls, seconds=seconds)
            yield Row.against(f"layout/{row}", mine * 1e6, peer, theirs * 1e6, "us", n)


def on_new_shapes(ask: Callable[[tuple[int, ...]], object]) -> Callable[[], object]:
    """A call that asks about another shape every time."""
    numbers = count(1)
    return lambda: ask((256 * next(numbers), 4096))


def jax_indices_map(spec: ShardingSpec) -> Callable[[tuple[int, ...]], object]:
    """JAX's own map for the same sharding on forced host devices."""
    if "jax" not in sys.modules:
        flag = f"--xla_force_host_platform_device_count={spec.mesh.size}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices()[: spec.mesh.size], dtype=object)
    mesh = Mesh(devices.reshape(spec.mesh.shape), spec.mesh.axis_names)
    axes = PartitionSpec(*(dim.axes or None for dim in spec.dim_specs))
    found: Callable[[tuple[int, ...]], object] = NamedSharding(mesh, axes).devices_indices_map
    return found


def exact_cover(seconds: float) -> Iterator[Row]:
    """A hundred thousand tiles of a plane, proved to cover it exactly once."""
    target = ZRange.of((632, 632))
    tiles = list(target.tiles((2, 2))) if seconds else list(target.tiles((80, 80)))
    (taken,), n = time_each(lambda: cover(tiles, target).check(), seconds=seconds)
    yield Row("layout/cover-99856", taken * 1e3, "ms", n)


def import_time(seconds: float) -> Iterator[Row]:
    """What all of `weft` adds to a bare interpreter, beside what `import numpy` adds."""
    rounds = max(1, int(4 * seconds))
    taken: dict[str, list[float]] = {"pass": [], "from weft import *": [], "import numpy": []}
    for _ in range(rounds):
        for statement, samples in taken.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            samples.append(time.perf_counter() - begin)
    bare, ours, theirs = (statistics.median(samples) for samples in taken.values())
    weft_ms, numpy_ms = (ours - bare) * 1e3, (theirs - bare) * 1e3
    yield Row.against("layout/import", weft_ms, "import numpy", numpy_ms, "ms", rounds)
