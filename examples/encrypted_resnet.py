"""A residual network on an encrypted image: planned, encrypted, run, compared.

The network is a ResNet-8 for images of 32 x 32: three stages of 16, 32 and 64 channels, two of them
with a stride of 2, a global average pool and a linear layer. Its activations are polynomials of
degree 2, so that 17 levels take it from the image to the answer without bootstrapping.

    python -m examples.encrypted_resnet           N=2^15 at 128-bit security; 6 GiB of memory
    python -m examples.encrypted_resnet --quick   a toy ring for a test: NOT SECURE
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.resnet import build, forward, mini, parameters
from weft import Graph, ckks
from weft.ckks.plan import PlannedLayer

KEYS = 24
"""The most rotation keys, of 170 MiB each; without a limit there would be 142."""

WORKERS = 2
"""Processes that share the keys: SEAL uses one core of each."""


def network(channels: int = 16, size: int = 32) -> Graph:
    """Return the graph: `weft ckks plan examples.encrypted_resnet:network --keys 24`."""
    return build(mini(channels, size=size), ckks.fit("relu", degree=2, low=-4, high=4))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it once, from the plan to the answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a toy ring for a test: NOT SECURE")
    quick = parser.parse_args(arguments).quick

    # The operation counts are known before anything is encrypted.
    graph = network(channels=4, size=8) if quick else network()
    slots = 1024 if quick else 1 << 14
    plan = ckks.plan(graph, slots, encrypted="image", ranges=1, keys=KEYS)
    print(plan)

    # Errors are too: too few levels, too little security, a modulus that is too small for the
    # values, a value out of range.
    chosen = plan.parameters(security=None if quick else 128)
    print(f"\n{chosen}")
    image = np.random.default_rng(1).uniform(-1, 1, graph.inputs[0].shape)
    arrays = {"image": image, **parameters(graph)}
    ckks.check_ranges(plan, arrays, chosen)

    begin = time.perf_counter()
    backend = ckks.Seal(chosen, plan.cost.keys, plan.needs_products)
    size = plan.key_bytes(chosen) / 2**30
    print(f"{len(plan.cost.keys)} rotation keys, {size:.1f} GiB, in {since(begin)}\n")

    begin = time.perf_counter()

    def progress(layer: PlannedLayer, counted: ckks.OperationCounts, seconds: float) -> None:
        spent = f"{seconds:.1f} s"
        print(f"{since(begin):>8}  {layer.name} to level {layer.level}, {spent}", flush=True)

    result = ckks.run(plan, arrays, backend, progress, workers=WORKERS)
    print(f"{since(begin):>8}  decrypted\n")

    # The same network on the image in the clear, and the same counts.
    show(result["fc"], forward(graph, arrays)["fc"])
    for name in ("rotations", "plain_products", "products", "rescales"):
        predicted, counted = getattr(plan.cost, name), getattr(backend.counters, name)
        print(f"{name:14} predicted {predicted:5,}   counted {counted:5,}")
        assert predicted == counted


def show(encrypted: Any, clear: Any) -> None:
    """Print both answers, and their largest difference."""
    for what, scores in (("encrypted", encrypted), ("in the clear", clear)):
        print(f"{what:14}" + "".join(f"{score:8.4f}" for score in scores[0]))
    print(f"{'the class':14} {encrypted.argmax()} and {clear.argmax()}")
    print(f"{'at most apart':14} {np.abs(encrypted - clear).max():.1e}\n")


def since(begin: float) -> str:
    """Return the seconds since a time."""
    return f"{time.perf_counter() - begin:.1f} s"


if __name__ == "__main__":
    main()
