"""NVIDIA's nvCOMP: its batched C API on a batch of tiles. It is found where it is installed."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.cuda.device import cupy, module
from weft.store.cuda.stages import PART, THREADS, aligned

NAME = "libnvcomp.so"
VERSIONS = (6, 5)


class Options(ctypes.Structure):
    """What says how to compress: all zero for what nvCOMP thinks best."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


@cache
def library() -> Any:
    """nvCOMP, from its Python package or from where the system looks for libraries."""
    spec = find_spec("nvidia.libnvcomp") if find_spec("nvidia") is not None else None
    folders = (
        [Path(place) / "lib64" for place in (spec.submodule_search_locations or [])] if spec else []
    )
    names = [f"{NAME}.{version}" for version in VERSIONS]
    for place in [*(str(folder / name) for folder in folders for name in names), *names]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise WeftError(
        "nvCOMP is needed and not installed",
        hint="pip install nvidia-libnvcomp-cu13 (or -cu12)",
    )


class NvComp:
    """Chunks by nvCOMP: all tiles of a batch in one call."""

    fixed = 0
    batch = 1 << 29  # it wants a thousand chunks and more

    def __init__(self, kind: str, tile: int) -> None:
        self.name = f"nvcomp-{kind.lower()}"
        self.kind, self.library, self.cp = kind, library(), cupy()
        if tile % 8:
            raise WeftError(f"nvCOMP takes chunks of a multiple of 8 B, and not of {tile} B")
        self._most = aligned(self._asked("GetMaxOutputChunkSize", ctypes.c_size_t(tile), Options()))
        self._gather = module("aggregate.cu").get_function("weft_gather")

    def _call(self, name: str, *given: Any) -> None:
        status = getattr(self.library, f"nvcompBatched{self.kind}Compress{name}")(*given)
        if status:
            raise WeftError(f"nvCOMP: {self.kind} {name} failed with status {status}")

    def _asked(self, name: str, *given: Any, after: tuple[Any, ...] = ()) -> int:
        found = ctypes.c_size_t()
        self._call(name, *given, ctypes.byref(found), *after)
        return found.value

    def most(self, tile: int) -> int:
        """As nvCOMP says."""
        return self._most

    def _parts(self, tile: int, count: int) -> list[int]:
        """Where the working memory, the chunks, and four tables lie, and the end."""
        sizes = ctypes.c_size_t(count), ctypes.c_size_t(tile), Options()
        total = ctypes.c_size_t(count * tile), ctypes.c_void_p(0)
        working = aligned(self._asked("GetTempSize", *sizes, after=total))
        steps = [
            working,
            aligned(count * self._most),
            *[aligned(8 * count)] * 3,
            aligned(4 * count),
        ]
        return [0, *np.cumsum(steps).tolist()]

    def scratch(self, tile: int, count: int) -> int:
        """Working memory, a slot for every chunk, and tables."""
        return self._parts(tile, count)[-1]

    def sizes(self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any) -> None:
        """Compress all tiles."""
        at, cp = self._parts(tile, count), self.cp
        numbers = cp.arange(count, dtype=cp.uint64)
        tables = [scratch[a : a + 8 * count].view(cp.uint64) for a in at[2:5]]
        tables[0][...] = pool.data.ptr + numbers * tile
        tables[1][...] = scratch.data.ptr + at[1] + numbers * self._most
        tables[2][...] = tile
        sources, targets, given = (ctypes.c_void_p(table.data.ptr) for table in tables)
        self._call(
            "Async",
            sources,
            given,
            ctypes.c_size_t(tile),
            ctypes.c_size_t(count),
            ctypes.c_void_p(scratch.data.ptr),
            ctypes.c_size_t(at[1]),
            targets,
            ctypes.c_void_p(sizes.data.ptr),
            Options(),
            ctypes.c_void_p(scratch.data.ptr + at[5]),
            ctypes.c_void_p(cp.cuda.get_current_stream().ptr),
        )

    def put(
        self, pool: Any, tile: int, count: int, scratch: Any, sizes: Any, offsets: Any, out: Any
    ) -> None:
        """Copy chunks from their slots."""
        parts, at = -(-self._most // PART), self._parts(tile, count)
        slots, stride = scratch[at[1] :], np.uint64(self._most)
        given = slots, stride, sizes, offsets, out, np.uint32(parts), np.uint64(PART)
        self._gather((count * parts,), (THREADS,), given)

    def check(self, tile: int, count: int, scratch: Any) -> None:
        """Refuse a batch of which a chunk was not compressed."""
        at = self._parts(tile, count)[5]
        statuses = scratch[at : at + 4 * count].view(self.cp.int32).get()
        if statuses.any():
            chunk = int(np.flatnonzero(statuses)[0])
            raise WeftError(f"nvCOMP failed at chunk {chunk} of a batch: status {statuses[chunk]}")
