"""`DevicePyramid`: computes the coarser levels of an image on a GPU while frames arrive there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.buffers import MemoryUse
from weft.store.cuda.device import cupy, module
from weft.store.cuda.encoders import THREADS
from weft.store.cuda.scatter import URGENT
from weft.store.dtypes import as_dtype
from weft.store.writer import Writer

METHODS = ("mean", "min", "max", "median", "first")
MAX_WINDOW = 64
"""The most elements of a window: a thread holds them all."""

_NUMBERS = {
    "bool": ("unsigned char", "unsigned int"),
    "uint8": ("unsigned char", "unsigned int"),
    "uint16": ("unsigned short", "unsigned int"),
    "uint32": ("unsigned int", "unsigned long long"),
    "uint64": ("unsigned long long", "unsigned __int128"),
    "int8": ("signed char", "int"),
    "int16": ("short", "int"),
    "int32": ("int", "long long"),
    "int64": ("long long", "__int128"),
    "float32": ("float", "double"),
    "float64": ("double", "double"),
}
"""The C types of elements, and of their sums."""


def reduce_source(inner: Sequence[int], factors: Sequence[int], method: str, name: str) -> str:
    """Return the code before the reduction kernel; `inner` are the sizes after the outermost.

    >>> print(reduce_source((4,), (1, 2), "mean", "uint16").splitlines()[0])
    typedef unsigned short Number;
    """
    if name not in _NUMBERS:
        raise WeftError(f"levels of {name} cannot be computed on a GPU", hint=", ".join(_NUMBERS))
    if method not in METHODS:
        raise WeftError(f"{method} cannot be computed on a GPU", hint=", ".join(METHODS))
    window = prod(factors)
    if window > MAX_WINDOW:
        raise WeftError(f"a window of {window} elements; a GPU takes at most {MAX_WINDOW}")
    number, total = _NUMBERS[name]
    return "\n".join(
        [
            f"typedef {number} Number;",
            f"typedef {total} Sum;",
            f"#define METHOD {METHODS.index(method)}",
            f"#define IS_WHOLE {int(np.dtype(name).kind in 'biu')}",
            f"#define IS_SIGNED {int(np.dtype(name).kind == 'i')}",
            f"#define IS_BOOL {int(name == 'bool')}",
            f"#define WINDOW {window}",
            "#define VISIT_ALL(in, rows, n, window) \\",
            " \\\n".join([*_coordinates(inner, factors), *_loops(inner, factors)]),
            "",
        ]
    )


def _coordinates(inner: Sequence[int], factors: Sequence[int]) -> list[str]:
    """Return code for where a window lies along each dimension."""
    lines, rest = [], "n"
    for dim in reversed(range(1, len(factors))):
        size = -(-inner[dim - 1] // factors[dim])
        lines.append(f"    u64 o{dim} = {rest} % {size}ull;")
        rest = f"({rest} / {size}ull)"
    return [*lines, f"    u64 o0 = {rest};"]


def _loops(inner: Sequence[int], factors: Sequence[int]) -> list[str]:
    """Return code that visits the elements of a window, in arrival order.

    Loops have constant bounds, so that they are unrolled; where windows always fit, no bounds are
    checked.
    """
    lines, at = [], "a0"
    for dim, factor in enumerate(factors):
        size = "rows" if dim == 0 else f"{inner[dim - 1]}ull"
        fits = factor == 1 or (dim > 0 and inner[dim - 1] % factor == 0)
        check = "" if fits else f" if (a{dim} < {size})"
        step = f"a{dim} = o{dim} * {factor}ull + b{dim}"
        lines.append(f"    for (u32 b{dim} = 0; b{dim} < {factor}; ++b{dim})")
        lines.append(f"    for (u64 {step}, once{dim} = 1; once{dim}; once{dim} = 0){check}")
        if dim:
            at = f"({at} * {size} + a{dim})"
    return [*lines, f"        visit(window, in[{at}]);"]


HELD = 128 << 20
"""Bytes of a level that are appended at a time."""


class DeviceLevel:
    """One level: it buffers rows of the level before until a window of them is full."""

    def __init__(
        self, cp: Any, inner: Sequence[int], factors: Sequence[int], method: str, name: str
    ) -> None:
        self.cp, self.factors = cp, tuple(factors)
        self.dtype = as_dtype(name)[1]
        self.row = prod(inner)
        self.inner = tuple(-(-n // f) for n, f in zip(inner, factors[1:]))
        """The shape of a row of this level."""
        source = reduce_source(inner, factors, method, name)
        self._kernel = module("reduce.cu", source).get_function("weft_reduce")
        self._pending = cp.empty(0, self.dtype)
        self._room = cp.empty((0, *self.inner), self.dtype)
        self._rows = 0
        """Rows in the room."""

    @property
    def is_full(self) -> bool:
        """Whether it has enough rows to append."""
        return self._rows * self._row_nbytes >= HELD

    @property
    def _row_nbytes(self) -> int:
        return prod(self.inner) * self.dtype.itemsize

    def push(self, block: Any) -> None:
        """Reduce the windows that are full."""
        flat = block.reshape(-1)
        if len(self._pending):
            flat = self.cp.concatenate([self._pending, flat])
        step = self.row * self.factors[0]
        whole = len(flat) // step * step
        if len(self._pending) or whole < len(flat):
            self._pending = flat[whole:].copy()
        self._reduce(flat[:whole])

    def finish(self) -> None:
        """Reduce windows that are not full; a row that is not whole is completed."""
        flat = self._pending
        missing = -len(flat) % self.row
        if missing:  # its last element stands for the missing ones
            flat = self.cp.concatenate([flat, self.cp.repeat(flat[-1:], missing)])
        self._pending = self.cp.empty(0, self.dtype)
        self._reduce(flat)

    def take_rows(self) -> Any:
        """Return the reduced rows, and forget them."""
        rows, self._rows = self._room[: self._rows], 0
        self._room = self.cp.empty((0, *self.inner), self.dtype)
        return rows

    def _reduce(self, flat: Any) -> None:
        rows = len(flat) // self.row
        count = -(-rows // self.factors[0])
        size = count * prod(self.inner)
        if not size:
            return
        self._make_room(count)
        out = self._room[self._rows : self._rows + count]
        grid = (-(-size // THREADS),)
        self._kernel(grid, (THREADS,), (flat, out, np.uint64(rows), np.uint64(size)))
        self._rows += count

    def _make_room(self, count: int) -> None:
        """Make room for more rows; move those that are there if necessary."""
        if self._rows + count <= len(self._room):
            return
        room = self.cp.empty((self._rows + max(count, self._max_rows), *self.inner), self.dtype)
        room[: self._rows] = self._room[: self._rows]
        self._room = room

    @property
    def _max_rows(self) -> int:
        """The rows of one append."""
        return max(1, HELD // self._row_nbytes)

    @property
    def nbytes(self) -> int:
        """The most bytes that it buffers."""
        return self.row * self.factors[0] * self.dtype.itemsize + HELD + self._row_nbytes


class DevicePyramid:
    """Computes coarser levels at once, from blocks on the device."""

    def __init__(
        self,
        shape: Sequence[int | None],
        factors: Sequence[int],
        method: str,
        dtype: Any,
        writers: Sequence[Writer],
    ) -> None:
        self.cp, self._writers = cupy(), tuple(writers)
        self._stream = self.cp.cuda.Stream(non_blocking=True, priority=URGENT)
        self._reading: deque[tuple[Any, Any]] = deque()
        """Blocks that are being reduced, and the events at which that ends."""
        self._failed: BaseException | None = None
        self.position = 0
        """Not counted: what was interrupted is not appended again."""
        name, _ = as_dtype(dtype)
        self._levels: list[DeviceLevel] = []
        inner = tuple(n or 0 for n in shape[1:])
        for _ in writers:
            level = DeviceLevel(self.cp, inner, factors, method, name)
            self._levels.append(level)
            inner = level.inner

    def append(self, block: Any, *, is_own: bool = False) -> None:
        """Reduce elements of the finest level; wait until they are read, unless they are a copy."""
        self._stream.wait_event(self.cp.cuda.get_current_stream().record())
        with self._stream:
            self._levels[0].push(self.cp.asarray(block))
            self._reading.append((self._stream.record(), block))
            self._append_rows()
        if not is_own:
            self._reading[-1][0].synchronize()
        while self._reading and self._reading[0][0].done:
            self._reading.popleft()

    def _append_rows(self, *, is_all: bool = False) -> None:
        """Append rows to their levels, and reduce them further: many at a time, or all."""
        for number, (level, writer) in enumerate(zip(self._levels, self._writers)):
            if not (is_all or level.is_full):
                break
            rows = level.take_rows()
            if len(rows):
                writer.append_rows(rows, is_kept=True)
                for coarser in self._levels[number + 1 : number + 2]:
                    coarser.push(rows)

    def check(self) -> None:
        """Refuse more after an interrupt; other errors are raised at once."""
        if self._failed is not None:
            raise WeftError(f"a coarser level failed: {self._failed!r}") from self._failed

    def catch_up(self, block: Any, position: int, count: int) -> None:
        """Refuse to go on after an interrupt: how much of a block was read is not known."""
        raise WeftError("coarser levels were interrupted on the device")

    def fail(self, error: BaseException) -> None:
        """Reduce no more: elements of the finest level did not come."""
        self._failed = error

    def drain(self) -> None:
        """Append all rows of full windows."""
        with self._stream:
            self._append_rows(is_all=True)

    def close(self) -> None:
        """Reduce the remaining elements, windows that are not full too."""
        if self._failed is not None:
            return
        with self._stream:
            for level in self._levels:
                self._append_rows(is_all=True)
                level.finish()
            self._append_rows(is_all=True)

    def memory(self) -> MemoryUse:
        """Return the bytes of the device that buffer rows."""
        return MemoryUse(sum(level.nbytes for level in self._levels))
