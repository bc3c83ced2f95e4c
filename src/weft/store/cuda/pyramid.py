"""The source of the reduction kernel, generated from the windows of a level.

`DevicePyramid`: coarser levels of an image, made on a GPU while frames arrive there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.cuda.device import cupy, module
from weft.store.cuda.encoders import THREADS
from weft.store.cuda.scatter import URGENT
from weft.store.dtypes import as_dtype
from weft.store.writer import Writer

METHODS = ("mean", "min", "max", "median", "first")
MOST = 64
"""The elements of a window, at most: a thread holds them all."""

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
"""The types of elements, and those in which they are added."""


def reduce_source(inner: Sequence[int], factors: Sequence[int], method: str, name: str) -> str:
    """What stands before the reduction kernel; `inner` are the sizes behind the outermost.

    >>> print(reduce_source((4,), (1, 2), "mean", "uint16").splitlines()[0])
    typedef unsigned short Number;
    """
    if name not in _NUMBERS:
        raise WeftError(f"levels of {name} are not made on a GPU", hint=", ".join(_NUMBERS))
    window = prod(factors)
    if window > MOST:
        raise WeftError(f"a window of {window} elements; a GPU takes at most {MOST}")
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
    """Where a window is along every dimension."""
    lines, rest = [], "n"
    for dim in reversed(range(1, len(factors))):
        size = -(-inner[dim - 1] // factors[dim])
        lines.append(f"    u64 o{dim} = {rest} % {size}ull;")
        rest = f"({rest} / {size}ull)"
    return [*lines, f"    u64 o0 = {rest};"]


def _loops(inner: Sequence[int], factors: Sequence[int]) -> list[str]:
    """All elements of a window that are there, in the order in which they arrive.

    Loops have constant ends, so that they are unrolled; where windows always fit, nothing is asked.
    """
    lines, at = [], "a0"
    for dim, factor in enumerate(factors):
        size = "rows" if dim == 0 else f"{inner[dim - 1]}ull"
        fits = factor == 1 or (dim > 0 and inner[dim - 1] % factor == 0)
        asked = "" if fits else f" if (a{dim} < {size})"
        step = f"a{dim} = o{dim} * {factor}ull + b{dim}"
        lines.append(f"    for (u32 b{dim} = 0; b{dim} < {factor}; ++b{dim})")
        lines.append(f"    for (u64 {step}, once{dim} = 1; once{dim}; once{dim} = 0){asked}")
        if dim:
            at = f"({at} * {size} + a{dim})"
    return [*lines, f"        visit(window, in[{at}]);"]


HELD = 128 << 20
"""Bytes of a level that are worth an append of their own."""


class Level:
    """One level: rows of the level before it are held until a window of them is full."""

    def __init__(
        self, cp: Any, inner: Sequence[int], factors: Sequence[int], method: str, name: str
    ) -> None:
        self.cp, self.factors = cp, tuple(factors)
        self.dtype = as_dtype(name)[1]
        self.row = prod(inner)
        self.inner = tuple(-(-n // f) for n, f in zip(inner, factors[1:]))
        """The sizes of a row of this level."""
        source = reduce_source(inner, factors, method, name)
        self._kernel = module("reduce.cu", source).get_function("weft_reduce")
        self._held = cp.empty(0, self.dtype)
        self._room = cp.empty((0, *self.inner), self.dtype)
        self._made = 0
        """Rows in the room."""

    @property
    def is_full(self) -> bool:
        """Whether it has enough rows to go on with."""
        return self._made * self._made_row >= HELD

    @property
    def _made_row(self) -> int:
        return prod(self.inner) * self.dtype.itemsize

    def push(self, block: Any) -> None:
        """Reduce the windows that are full by now."""
        flat = block.reshape(-1)
        if len(self._held):
            flat = self.cp.concatenate([self._held, flat])
        step = self.row * self.factors[0]
        whole = len(flat) // step * step
        if len(self._held) or whole < len(flat):
            self._held = flat[whole:].copy()
        self._reduce(flat[:whole])

    def finish(self) -> None:
        """Reduce windows that are not full; a row that is not whole is made so."""
        flat = self._held
        missing = -len(flat) % self.row
        if missing:  # the row has no more elements: its last one stands for them
            flat = self.cp.concatenate([flat, self.cp.repeat(flat[-1:], missing)])
        self._held = self.cp.empty(0, self.dtype)
        self._reduce(flat)

    def taken(self) -> Any:
        """The rows that were made, which it does not hold any longer."""
        rows, self._made = self._room[: self._made], 0
        self._room = self.cp.empty((0, *self.inner), self.dtype)
        return rows

    def _reduce(self, flat: Any) -> None:
        rows = len(flat) // self.row
        count = -(-rows // self.factors[0])
        size = count * prod(self.inner)
        if not size:
            return
        self._make_room(count)
        made = self._room[self._made : self._made + count]
        grid = (-(-size // THREADS),)
        self._kernel(grid, (THREADS,), (flat, made, np.uint64(rows), np.uint64(size)))
        self._made += count

    def _make_room(self, count: int) -> None:
        """For so many rows more; what is there is moved if it is in the way."""
        if self._made + count <= len(self._room):
            return
        room = self.cp.empty((self._made + max(count, self._most), *self.inner), self.dtype)
        room[: self._made] = self._room[: self._made]
        self._room = room

    @property
    def _most(self) -> int:
        """Rows that are about as much as it holds."""
        return max(1, HELD // self._made_row)

    @property
    def nbytes(self) -> int:
        """The bytes of rows that are held at most, of both levels."""
        return self.row * self.factors[0] * self.dtype.itemsize + HELD + self._made_row


class DevicePyramid:
    """Makes coarser levels of what the finest takes, at once: blocks are on the device."""

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
        """Blocks that are being reduced, and the events that end it."""
        name, _ = as_dtype(dtype)
        self._levels: list[Level] = []
        inner = tuple(n or 0 for n in shape[1:])
        for _ in writers:
            level = Level(self.cp, inner, factors, method, name)
            self._levels.append(level)
            inner = level.inner

    def take(self, block: Any, *, is_own: bool = False) -> None:
        """Reduce elements that the finest level took; they are read then, unless they are ours."""
        self._stream.wait_event(self.cp.cuda.get_current_stream().record())
        with self._stream:
            self._levels[0].push(self.cp.asarray(block))
            self._reading.append((self._stream.record(), block))
            self._pass_on()
        if not is_own:
            self._reading[-1][0].synchronize()
        while self._reading and self._reading[0][0].done:
            self._reading.popleft()

    def _pass_on(self, *, is_all: bool = False) -> None:
        """Append rows to their levels, and reduce them further: many at a time, or all."""
        for number, (level, writer) in enumerate(zip(self._levels, self._writers)):
            if not (is_all or level.is_full):
                break
            rows = level.taken()
            if len(rows):
                writer.append_rows(rows, is_kept=True)
                for coarser in self._levels[number + 1 : number + 2]:
                    coarser.push(rows)

    def check(self) -> None:
        """What fails is said at once."""

    def drain(self) -> None:
        """Append all rows of windows that are full."""
        with self._stream:
            self._pass_on(is_all=True)

    def close(self) -> None:
        """Reduce what is there, windows that are not full too."""
        with self._stream:
            for level in self._levels:
                self._pass_on(is_all=True)
                level.finish()
            self._pass_on(is_all=True)

    def memory(self) -> int:
        """The bytes of the device that rows take which wait for their windows."""
        return sum(level.nbytes for level in self._levels)
