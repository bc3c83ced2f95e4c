"""`python -m benchmarks [NAME …] [--quick]`: one JSON object per line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks import (
    ckks,
    conflicts,
    eager,
    grid,
    grid_volume,
    layout,
    propagation,
    reshard,
    search,
    store,
    store_gpu,
    store_pyramid,
    store_read,
    store_shards,
    ttmesh,
)
from benchmarks.row import Row


def run_store(seconds: float) -> Iterator[Row]:
    """What is streamed, what is read back, coarser levels, and what a task of a cluster does."""
    yield from store.run(seconds)
    yield from store_read.run(seconds)
    yield from store_pyramid.run(seconds)
    yield from store_shards.run(seconds)


BENCHMARKS: dict[str, Callable[[float], Iterator[Row]]] = {
    "ckks": ckks.run,
    "conflicts": conflicts.run,
    "eager": eager.run,
    "grid": grid.run,
    "grid-volume": grid_volume.run,
    "layout": layout.run,
    "propagation": propagation.run,
    "reshard": reshard.run,
    "search": search.run,
    "store": run_store,
    "store-gpu": store_gpu.run,
    "ttmesh": ttmesh.run,
}
"""Each takes the seconds it may spend on one row."""


def main() -> int:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--quick", action="store_true", help="all rows within a minute")
    speed.add_argument("--tiny", action="store_true", help="each row once, to see that it runs")
    args = parser.parse_args()
    for name in args.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    seconds = 0.0 if args.tiny else 1.0 if args.quick else 5.0
    there = [name for name in BENCHMARKS if name != "store-gpu" or store_gpu.is_there()]
    for name in args.names or there:
        for row in BENCHMARKS[name](seconds):
            print(row.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
