"""Presets of `Machine`: published figures, and an estimate of this host.

Rates are those that vendors publish for dense data, which no program reaches; `weft calibrate`
measures the host it runs on.
"""

from __future__ import annotations

import os
from math import inf

from weft.errors import WeftError
from weft.plan.machine import Machine
from weft.values import as_count, counted

_H200_FLOPS = {
    "float64": 34e12,
    "float32": 67e12,
    "float16": 989.5e12,
    "bfloat16": 989.5e12,
    "float8_e4m3fn": 1979e12,
    "float8_e5m2": 1979e12,
    "int8": 1979e12,
}

H200_NODE = Machine(
    latency=2e-6,
    bandwidth=450e9,  # NVLink 4: 900 GB/s both ways, through switches: each cell has its own
    flops=_H200_FLOPS,
    memory_bandwidth=4.8e12,
    capacity=141e9,
    name="node of 8 H200",
)
"""Eight H200 in one host, every pair at full speed: a mesh with any axes."""

CLUSTER = Machine(
    {"node": (5e-6, 50e9), "device": (2e-6, 450e9)},  # an adapter of 400 Gb/s for each device
    latency=5e-6,
    bandwidth=50e9,
    flops=_H200_FLOPS,
    memory_bandwidth=4.8e12,
    capacity=141e9,
    name="cluster of nodes of 8 H200",
)
"""Nodes of eight H200 over a network that is slower: a mesh with the axes "node" and "device"."""

CHIPS_2X4 = Machine(
    latency=1e-6,
    bandwidth=50e9,  # 400 Gb/s of Ethernet from chip to chip
    flops={"float16": 65.5e12, "bfloat16": 65.5e12, "float8_e4m3fn": 233e12},
    memory_bandwidth=288e9,
    capacity=12e9,
    name="2 x 4 Wormhole chips",
)
"""Four boards of two Wormhole chips each, as a mesh of 2 x 4: any axes, each link its own."""

_CORE_FLOPS = {"float32": 50e9, "float64": 25e9}
"""A core with vectors of 256 bits at some 3 GHz, about half of its peak."""


def this_host(cells: int = 0) -> Machine:
    """Return an estimate of this host, shared by `cells`, by default one for each core.

    All links are one, the memory. Rates are those of common cores; `weft calibrate` measures them.

    >>> machine = this_host(cells=4)
    >>> machine.name, machine.shared
    ('this host, 4 cells', True)
    """
    cores = os.cpu_count() or 1
    count = as_count(cells, "cells") or cores
    part = cores / count
    return Machine(
        latency=50e-6,
        bandwidth=5e9,
        shared=True,
        flops={dtype: rate * part for dtype, rate in _CORE_FLOPS.items()},
        memory_bandwidth=10e9 / count,
        capacity=memory() / count,
        name=host_name(count),
    )


def host_name(cells: int) -> str:
    """Return the name of a machine that is this host."""
    return f"this host, {counted(cells, 'cell')}"


def memory() -> float:
    """Return the bytes of memory of this host; infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # there is none on Windows
        return inf


PRESETS = {"h200": H200_NODE, "cluster": CLUSTER, "chips": CHIPS_2X4}


def find_machine(name: str) -> Machine:
    """Return a preset by name (h200, cluster, chips or host), or the machine of a TOML file.

    >>> find_machine("h200").capacity
    141000000000.0
    """
    if name == "host":
        return this_host()
    if name in PRESETS:
        return PRESETS[name]
    try:
        return Machine.load(name)
    except FileNotFoundError:
        known = ", ".join([*PRESETS, "host"])
        raise WeftError(
            f"there is no machine {name}", hint=f"give a TOML or JSON file, or one of {known}"
        ) from None
