"""Where a writer works: on the threads of a CPU, or on a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import WeftError
from weft.store.metrics import STAGES
from weft.store.pipeline import Threads

STAGES_CUDA = ("arrive", "compress", "aggregate", "leave", "write", "publish")
"""What is done to frames on a GPU, in order; seconds of kernels are by the device's clock."""


def pipeline_on(device: str) -> Any:
    """The pipeline of a device, by its name."""
    if device == "cpu":
        return Threads
    if device == "cuda":
        return import_module("weft.store.cuda.pipeline").Device
    raise WeftError(f"device: {device!r} is neither cpu nor cuda")


def stages_of(device: str) -> tuple[str, ...]:
    """The stages that a device counts."""
    return STAGES_CUDA if device == "cuda" else STAGES
