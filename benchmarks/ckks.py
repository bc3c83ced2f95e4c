"""Layers on ciphertexts: rotations and products, counted on real encryption.

The figures of the seed's meshes are quoted from it; those of its formulas are computed here. The
rotations of the seed's compiler and of Orion came with the specification of this target, Orion's
totals recomputed from its packing. They were not compared with the tables of Orion's paper.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

from tests.ckks.formulas import Pointwise, mesh_of, seed_rotations, weft_rotations

from benchmarks.ckks_layer import LAYERS
from benchmarks.ckks_networks import networks
from benchmarks.row import Row

FORMULAS = {
    "formula-64-16-mesh-1x4": (Pointwise(64, 16, 7, 7, slots=1024), (1, 4)),
    "formula-64-16-mesh-2x8": (Pointwise(64, 16, 7, 7, slots=1024), (2, 8)),
    "formula-2048-512-mesh-1x4": (Pointwise(2048, 512, 7, 7, slots=32768), (1, 4)),
    "formula-2048-512-mesh-2x8": (Pointwise(2048, 512, 7, 7, slots=32768), (2, 8)),
}
PRINTED = {"formula-2048-512-mesh-2x8": 768}
"""What the seed prints where its own rule gives another number."""

QUOTED: dict[str, tuple[str, float, dict[str, float]]] = {
    "2048-512-1x1-7": ("the seed's mesh of 2 x 8", 768, {"mesh_1x4_rotations": 4096}),
    "64-64-3x3-56": ("the seed's compiler", 1096, {"peer_MB": 3200}),
    "512-512-3x3-7": ("the seed's compiler", 1033, {"peer_MB": 13900}),
    "3-64-7x7-s2-224": ("the seed's compiler", 10246, {"orion_rotations": 3335}),
}
"""The rotations of a peer, and its other known figures."""


def run(seconds: float) -> Iterator[Row]:
    """Return all rows; without seconds the layers and the ring are small."""
    yield from formulas()
    size = "full" if seconds else "tiny"
    yield from layers(size)
    yield workers("512-512-3x3-7", size)
    yield from networks(size)


def formulas() -> Iterator[Row]:
    """Return the seed's formulas, and ours for the same meshes."""
    for name, (layer, (x, y)) in FORMULAS.items():
        mesh = mesh_of(x, y)
        theirs, ours = seed_rotations(layer, mesh), weft_rotations(layer, mesh).rotations
        row = Row.against(f"ckks/{name}", ours, "the seed's formula", theirs, "rotations", 1)
        yield replace(row, more={"printed": PRINTED[name]}) if name in PRINTED else row


def layers(size: str) -> Iterator[Row]:
    """Return rows of layers on ciphertexts, each in a process of its own."""
    for name in LAYERS:
        found = measured(name, size)
        peer, rotations, more = QUOTED[name]
        if size == "tiny":
            row = Row(f"ckks/{name}", found["rotations"], "rotations", 1)
        else:
            row = Row.against(f"ckks/{name}", found["rotations"], peer, rotations, "rotations", 1)
            found |= more
        yield replace(row, more={key: n for key, n in found.items() if key != "rotations"})


def workers(name: str, size: str) -> Row:
    """Return a layer on two processes, against one: the CPU seconds of the busiest process.

    The wall-clock time is the same if two cores are free, which is rare on a shared machine.
    """
    one, two = measured(name, size), measured(name, size, 2)
    ours, theirs = two["busiest_cpu_s"], one["busiest_cpu_s"]
    row = Row.against(f"ckks/{name}-workers-2", ours, "1 worker", theirs, "s", 1)
    return replace(row, more={"clock_s": two["run_s"], "one_clock_s": one["run_s"]})


def measured(name: str, size: str, workers: int = 1) -> dict[str, float]:
    """Return the counts and the times of a layer, and its distance from NumPy's answer."""
    command = [sys.executable, "-m", "benchmarks.ckks_layer", name, size, str(workers)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found
