"""Whole networks over ciphertexts: what their linear layers take, counted before anything runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from examples.resnet import RESNET18, RESNET20, RESNET50, Architecture, build, mini

from benchmarks.row import Row
from weft.ckks import Plan, plan

ORION = {"resnet18": 25_860, "resnet50": 119_355}
"""The rotations of all linear layers by Orion's packing, recomputed, not taken from its paper."""
COMPILER = {"resnet18": 40_105}
"""Those of the compiler that the seed describes, as they were specified."""


def networks(size: str) -> Iterator[Row]:
    """The residual networks in ciphertexts of 32,768 slots; tiny ones in smaller."""
    if size == "tiny":
        yield row(mini(), 1024)
        return
    for architecture in (RESNET18, RESNET50, RESNET20):
        yield row(architecture, 1 << 15)


def row(architecture: Architecture, slots: int) -> Row:
    """Count the rotations of linear layers and of the moves between them, against Orion's."""
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


def counted(planned: Plan) -> dict[str, float]:
    """What else is known of a plan."""
    linear = sum(placed.cost.rotations for placed in planned.linear)
    most = max(planned.linear, key=lambda placed: placed.cost.rotations)
    return {
        "linear_rotations": linear,
        "move_rotations": planned.cost.rotations - linear,
        "largest_layer_rotations": most.cost.rotations,
        "plain_products": planned.cost.plain_products,
        "products": planned.cost.products,
        "levels": planned.depth,
    }
