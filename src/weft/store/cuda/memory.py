"""Memory of a GPU and pinned memory of its host: plain allocations, counted."""

from __future__ import annotations

from typing import Any

import numpy as np


class Memory:
    """Allocates buffers, and knows how many bytes that was."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.device = self.pinned = 0

    def on_device(self, size: int) -> Any:
        """Bytes of the GPU, as a CuPy array."""
        self.device += size
        memory = self.cp.cuda.Memory(max(1, size))
        pointer = self.cp.cuda.MemoryPointer(memory, 0)
        return self.cp.ndarray((size,), self.cp.uint8, pointer)

    def on_host(self, size: int) -> np.ndarray[Any, Any]:
        """Pinned bytes of the host, as a NumPy array."""
        self.pinned += size
        memory = self.cp.cuda.PinnedMemory(max(1, size))
        pointer = self.cp.cuda.PinnedMemoryPointer(memory, 0)
        return np.frombuffer(pointer, np.uint8, size)
