"""`python -m benchmarks [NAME …] [--quick]`: one JSON object per line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module

from benchmarks import store_cores, store_gpu, store_peers
from benchmarks.row import Row

BENCHMARKS = {
    "ckks": ("ckks",),
    "cluster": ("cluster",),
    "cluster-volume": ("cluster_volume",),
    "conflicts": ("conflicts",),
    "eager": ("eager",),
    "layout": ("layout",),
    "program": ("program",),
    "propagation": ("propagation",),
    "reshard": ("reshard",),
    "search": ("search",),
    # What is streamed, what is read back, coarser levels, and what a task of a cluster does.
    "store": ("store", "store_read", "store_pyramid", "store_shards"),
    "store-gpu": ("store_gpu", "store_gpu_read"),
    "ttmesh": ("ttmesh",),
}
"""The modules of each; one is loaded when it runs, so that no other needs what it needs."""


def rows(name: str, seconds: float) -> Iterator[Row]:
    """Return the rows of a benchmark, each of which may take about `seconds`."""
    for module in BENCHMARKS[name]:
        yield from import_module(f"benchmarks.{module}").run(seconds)


def cores_of(text: str) -> list[int]:
    """The numbers of cores in `1,2,4`, as far as this process has them."""
    return [int(each) for each in text.split(",") if int(each) <= store_peers.cores()]


def main() -> int:
    """Run the benchmarks that are named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--quick", action="store_true", help="a second for each row, and not five")
    speed.add_argument("--tiny", action="store_true", help="each row once, to see that it runs")
    parser.add_argument(
        "--cores", type=cores_of, help="with store: streams on 1,2,4 cores, beside others"
    )
    args = parser.parse_args()
    for name in args.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    seconds = 0.0 if args.tiny else 1.0 if args.quick else 5.0
    if args.cores:
        if args.names != ["store"]:
            parser.error("--cores is for the benchmark store")
        for count in args.cores:
            for row in store_cores.run(count, seconds):
                print(row.line(), flush=True)
        return 0
    there = [name for name in BENCHMARKS if name != "store-gpu" or store_gpu.is_there()]
    for name in args.names or there:
        for row in rows(name, seconds):
            print(row.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
