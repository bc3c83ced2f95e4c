"""CuPy, kernels compiled by NVRTC from sources with their includes inlined, and memory."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.extra import needed


def cupy() -> Any:
    """Return CuPy where there is a GPU; raise an error where there is none."""
    try:
        library = needed("cupy", "cuda13")
    except WeftError as error:
        raise WeftError(
            "device='cuda' needs CuPy, which is not installed",
            hint="pip install 'weft[cuda13]', or 'weft[cuda12]' for drivers of CUDA 12",
        ) from error
    try:
        count = library.cuda.runtime.getDeviceCount()
    except library.cuda.runtime.CUDARuntimeError as error:
        raise WeftError(f"device='cuda' needs a GPU, and there is none: {error}") from None
    if not count:
        raise WeftError("device='cuda' needs a GPU, and there is none")
    return library


@cache
def kernel_text(name: str) -> str:
    """Return the text of a kernel file."""
    return resources.files(__package__).joinpath("kernels", name).read_text(encoding="utf-8")


def inlined(text: str, seen: set[str] | None = None) -> str:
    """Return a source with the files that it includes inlined, each once."""
    known = set() if seen is None else seen
    lines = []
    for line in text.splitlines():
        if line.startswith('#include "'):
            name = line.split('"')[1]
            if name not in known:
                known.add(name)
                lines.append(inlined(kernel_text(name), known))
        elif not line.startswith("#pragma once"):
            lines.append(line)
    return "\n".join(lines)


@cache
def module(name: str, before: str = "") -> Any:
    """Return the kernels of a file, with code before them, compiled for this GPU."""
    source = inlined(f"{before}\n{kernel_text(name)}")
    return cupy().RawModule(code=source, options=("-std=c++17",))


def device_of(cp: Any, given: Any) -> Any:
    """Return the device that "cuda", "cuda:1" or a device of CuPy names."""
    if isinstance(given, cp.cuda.Device):
        return given
    name, _, number = str(given).partition(":")
    count = cp.cuda.runtime.getDeviceCount()
    if name != "cuda" or (number and not (number.isascii() and number.isdigit())):
        raise WeftError(f"device: {given!r} is not a device", hint="'cpu', 'cuda', 'cuda:1'")
    if number and int(number) >= count:
        raise WeftError(f"device: there is no {given!r}", hint=f"cuda:0 to cuda:{count - 1}")
    return cp.cuda.Device(int(number)) if number else cp.cuda.Device()


def address(array: Any) -> np.uint64:
    """Return where an array of the device begins, as kernels take it."""
    return np.uint64(array.data.ptr)


def move_bytes(cp: Any, to: int, source: int, size: int, stream: Any) -> None:
    """Copy bytes between the host and the device, in either direction, in a stream."""
    runtime = cp.cuda.runtime
    runtime.memcpyAsync(to, source, size, runtime.memcpyDefault, stream.ptr)


class DeviceMemory:
    """Allocates buffers, and counts their bytes."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.device = self.pinned = 0

    def on_device(self, size: int) -> Any:
        """Allocate bytes of the GPU, as a CuPy array."""
        self.device += size
        memory = self.cp.cuda.Memory(max(1, size))
        pointer = self.cp.cuda.MemoryPointer(memory, 0)
        return self.cp.ndarray((size,), self.cp.uint8, pointer)

    def on_host(self, size: int) -> np.ndarray[Any, Any]:
        """Allocate pinned bytes of the host, as a NumPy array."""
        self.pinned += size
        memory = self.cp.cuda.PinnedMemory(max(1, size))
        pointer = self.cp.cuda.PinnedMemoryPointer(memory, 0)
        return np.frombuffer(pointer, np.uint8, size)
