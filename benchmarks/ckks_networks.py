"""Whole networks on ciphertexts: the operations of their layers, counted before anything runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from examples.resnet import RESNET18, RESNET20, RESNET50, Architecture, build, mini

from benchmarks.row import Row
from weft.ckks import EncryptedPlan, plan

ORION = {"resnet18": 25_860, "resnet50": 119_355}
"""The rotations of all linear layers by Orion's packing, recomputed, not taken from its paper."""
COMPILER = {"resnet18": 40_105}
"""Those of the compiler that the seed describes, as they were specified."""


def networks(size: str) -> Iterator[Row]:
    """Return the rows of residual networks with 32,768 slots, or of a tiny one with fewer."""
    if size == "tiny":
        yield row(mini(), 1024)
        return
    for architecture in (RESNET18, RESNET50, RESNET20):
        yield row(architecture, 1 << 15)


def row(architecture: Architecture, slots: int) -> Row:
    """Count the rotations of linear layers and of repackings between them, against Orion's."""
    begin = time.perf_counter()
    planned = plan(build(architecture), slots, ["image"])
    more = {"planning_s": time.perf_counter() - begin, **counted(planned)}
    name = architecture.name
    if name in COMPILER:
        more["compiler_rotations"] = COMPILER[name]
    rotations, theirs = planned.cost.rotations, ORION.get(name)
    if theirs is None:
        return Row(f"ckks/{name}", rotations, "rotations", 1, more=more)
    ratio = theirs / rotations
    return Row(
        f"ckks/{name}",
        rotations,
        "rotations",
        1,
        "Orion's packing, recomputed",
        theirs,
        ratio,
        more=more,
    )


def counted(planned: EncryptedPlan) -> dict[str, float]:
    """Return the other counts of a plan."""
    linear = sum(layer.cost.rotations for layer in planned.linear)
    most = max(planned.linear, key=lambda layer: layer.cost.rotations)
    return {
        "linear_rotations": linear,
        "move_rotations": planned.cost.rotations - linear,
        "largest_layer_rotations": most.cost.rotations,
        "plain_products": planned.cost.plain_products,
        "products": planned.cost.products,
        "levels": planned.depth,
    }
