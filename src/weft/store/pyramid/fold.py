"""`Fold`: the mean, minimum, maximum or first element of windows, exactly, in bounded memory.

Integers are added in a type that holds any sum, or in their own where those that came are small
enough; 64-bit ones in two halves. Floats are added in float64, one after the other as they come, so
that it does not matter into which blocks a stream was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from weft.store.dtypes import as_dtype
from weft.store.pyramid.windows import Region, Slices, elements, inside, pieces, reduced, regions

Numbers: TypeAlias = np.ndarray[Any, Any]

PIECE = 1 << 18
"""Elements that are worked on at a time, so that they stay in a core's cache."""

LOW = 0xFFFFFFFF
"""The lower half of a 64-bit integer."""

_TINY = 2.0**-126
"""Below it, bfloat16 has steps of 2^-133."""

_STEPS = 1.5 * 2.0 ** (52 - 133)
"""Added and taken off again, it rounds a small float64 to steps of 2^-133."""


class Fold:
    """Makes one element of every window; it holds what it works with, and nothing else.

    >>> Fold("mean", "uint8", (2, 2)).reduce(np.uint8([[1, 2, 9], [3, 5, 7]]), (2, 2))
    array([[3, 8]], dtype=uint8)
    """

    def __init__(self, method: str, name: str, factors: Sequence[int], most: int = 0) -> None:
        self.method, self.name = method, name
        self.dtype = np.dtype("uint8") if name == "bool" else as_dtype(name)[1]
        self.op = {"min": np.minimum, "max": np.maximum}.get(method, np.add)
        count = prod(factors)
        self.held = self._held(count)
        self.planes = 2 if method == "mean" and self.dtype.kind in "iu" and self.is_64 else 1
        self.most = most or max(1 << 10, PIECE // count)
        """Windows that are worked on at a time."""
        self._sums = [np.empty(self.most, self.held) for _ in range(self.planes)]
        self._spare = np.empty(self.most, self.held)
        self._own = np.empty(self.most, self.dtype)
        self._rows = np.empty(self.most * factors[-1], self.dtype)
        self._small = np.empty(self.most, bool)

    @property
    def is_64(self) -> bool:
        """Whether integers have 64 bits, of which sums are kept in halves."""
        return self.dtype.itemsize == 8

    def _held(self, count: int) -> np.dtype[Any]:
        """The type of what is kept of a window while it is not full."""
        if self.name == "bfloat16" and self.method != "first":
            return np.dtype("float64" if self.method == "mean" else "float32")
        if self.method != "mean":
            return self.dtype
        if self.dtype.kind in "fc":
            return np.dtype("complex128" if self.dtype.kind == "c" else "float64")
        limits = np.iinfo(self.dtype)
        most = max(limits.max, -limits.min) * count + count
        sizes = (size for size in (2, 4, 8) if size >= self.dtype.itemsize)
        kinds = (np.dtype(f"{self.dtype.kind}{size}") for size in sizes)
        return next((k for k in kinds if np.iinfo(k).max >= most), np.dtype(f"{self.dtype.kind}8"))

    @property
    def nbytes(self) -> int:
        """The bytes it works with."""
        held = [*self._sums, self._spare, self._own, self._rows, self._small]
        return sum(array.nbytes for array in held)

    def accumulators(self, shape: Sequence[int]) -> list[Numbers]:
        """Room for what is known of windows that are not full yet."""
        return [np.empty(shape, self.held) for _ in range(self.planes)]

    def clear(self, into: Sequence[Numbers]) -> None:
        """Forget what was known: nothing has come yet."""
        for array in into:
            array.fill(self._nothing())

    def _nothing(self) -> Any:
        """What changes nothing: -0.0 of a sum of floats, since 0.0 would make 0.0 of -0.0."""
        if self.method in ("mean", "first"):
            return -0.0 if self.held.kind == "f" else 0
        if self.held.kind == "f":
            return inf if self.method == "min" else -inf
        limits = np.iinfo(self.held)
        return limits.max if self.method == "min" else limits.min

    # -- windows into one element each

    def reduce(self, block: Numbers, factors: Sequence[int]) -> Numbers:
        """The windows of a block that has all of their elements."""
        made = np.empty(reduced(block.shape, factors), self.dtype)
        for windows in pieces(made.shape, self.most):
            part = block[elements(windows, factors)]
            found = self._folded(part, factors)
            for region in regions(part.shape, factors):
                views = [array[region.windows] for array in found]
                self._end(views, region.count, made[windows][region.windows])
        return made

    def add(
        self, block: Numbers, factors: Sequence[int], into: Sequence[Numbers], is_first: bool
    ) -> None:
        """Fold some elements of windows into what is known of them.

        `is_first` says that the first element of every window is among them.
        """
        if self.method == "first":
            if is_first:
                np.copyto(into[0], block[tuple(slice(0, None, f) for f in factors)])
            return
        for windows in pieces(into[0].shape, self.most):
            part = block[elements(windows, factors)]
            target = [array[windows] for array in into]
            if self._is_exact(part, prod(factors)):
                self._join(target, self._in_own_type(part, factors))
            else:
                for where, numbers in self._numbers(part, factors):
                    self._join([array[where] for array in target], numbers)

    def end(self, into: Sequence[Numbers], found: Iterator[Region], made: Numbers) -> None:
        """Make elements of what is known of windows."""
        for region in found:
            shape = [span.stop - span.start for span in region.windows]
            for piece in pieces(shape, self.most):
                at = inside(region.windows, piece)
                self._end([array[at] for array in into], region.count, made[at])

    # -- how they are folded

    def _folded(self, part: Numbers, factors: Sequence[int]) -> list[Numbers]:
        if self.method == "first":
            return [part[tuple(slice(0, None, f) for f in factors)]]
        if self._is_exact(part, prod(factors)):
            return [self._in_own_type(part, factors)]
        shape = reduced(part.shape, factors)
        sums = [array[: prod(shape)].reshape(shape) for array in self._sums]
        for count, (where, numbers) in enumerate(self._numbers(part, factors)):
            if count == 0:
                self._begin(sums, numbers)
            else:
                self._join([array[where] for array in sums], numbers)
        return sums

    def _is_exact(self, part: Numbers, count: int) -> bool:
        """Whether nothing is lost if windows are folded in their own type."""
        if self.name == "bfloat16" or self.dtype.kind in "fc":
            return self.method != "mean" and self.name != "bfloat16"
        if self.method != "mean":
            return True
        limits = np.iinfo(self.dtype)
        if count > limits.max:
            return False
        least = int(part.min()) if self.dtype.kind == "i" else 0
        return int(part.max()) * count + count // 2 <= limits.max and least * count >= limits.min

    def _in_own_type(self, part: Numbers, factors: Sequence[int]) -> Numbers:
        """Rows onto rows first, which lie one behind the other, and then within each row."""
        *outer, last = factors
        shape = reduced(part.shape, factors)
        if prod(outer) > 1:
            wide = (*shape[:-1], part.shape[-1])
            rows = self._rows[: prod(wide)].reshape(wide)
            self._stack(part, (*outer, 1), rows)
            part = rows
        if last > 1:
            made = self._own[: prod(shape)].reshape(shape)
            self._stack(part, (*[1] * len(outer), last), made)
            part = made
        return part

    def _stack(self, part: Numbers, factors: Sequence[int], made: Numbers) -> None:
        views = _views(part, factors)
        _, one = next(views)
        two = next(views, None)
        if two is None or two[1].shape != made.shape:
            np.copyto(made, one)
        else:
            self.op(one, two[1], out=made)
        if two is not None and two[1].shape != made.shape:
            self.op(made[two[0]], two[1], out=made[two[0]])
        for where, view in views:
            self.op(made[where], view, out=made[where])

    def _numbers(self, part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
        """Elements of windows one after the other, as something that can be added."""
        if self._is_paired(part, factors):
            half = self.dtype.itemsize * 8
            for where, pairs in _views(part.view(self.held), (*factors[:-1], factors[-1] // 2)):
                spare = self._spare[: pairs.size].reshape(pairs.shape)
                np.left_shift(pairs, half, out=spare)
                np.right_shift(spare, half, out=spare)
                yield where, spare
                yield where, np.right_shift(pairs, half, out=spare)
            return
        for where, view in _views(part, factors):
            yield where, self._lifted(view) if self.name == "bfloat16" else view

    def _is_paired(self, part: Numbers, factors: Sequence[int]) -> bool:
        """Whether two neighbours can be read as one number of twice the width, which is faster."""
        wide, size = self.held.itemsize, self.dtype.itemsize
        return (
            self.dtype.kind in "iu"
            and self.name != "bfloat16"
            and wide == 2 * size
            and part.dtype.isnative
            and factors[-1] % 2 == 0
            and part.shape[-1] % 2 == 0
            and part.strides[-1] == size
            and not any(n % wide for n in (part.ctypes.data, *part.strides[:-1]))
        )

    def _begin(self, into: Sequence[Numbers], numbers: Numbers) -> None:
        if self.planes == 2:
            np.bitwise_and(numbers, LOW, out=into[0])
            np.right_shift(numbers, 32, out=into[1])
        else:
            np.copyto(into[0], numbers)

    def _join(self, into: Sequence[Numbers], numbers: Numbers) -> None:
        if self.planes == 2:
            spare = self._spare[: numbers.size].reshape(numbers.shape)
            np.bitwise_and(numbers, LOW, out=spare)
            np.add(into[0], spare, out=into[0])
            np.right_shift(numbers, 32, out=spare)
            np.add(into[1], spare, out=into[1])
        else:
            self.op(into[0], numbers, out=into[0])

    def _lifted(self, view: Numbers) -> Numbers:
        """Numbers that NumPy can compute with: bfloat16 is the upper half of a float32."""
        bits = self._spare.view(np.uint32)[: view.size].reshape(view.shape)
        np.copyto(bits, view)
        np.left_shift(bits, 16, out=bits)
        return bits.view(np.float32)

    # -- what comes out

    def _end(self, sums: Sequence[Numbers], count: int, made: Numbers) -> None:
        """An element of each window, of which so many came; `sums` are used up."""
        if self.method == "first":
            np.copyto(made, sums[0])
        elif self.name == "bfloat16":
            self._end_bfloat16(sums[0], count, made)
        elif self.method != "mean":
            np.copyto(made, sums[0])
        elif self.dtype.kind in "fc":
            parts = sums[0].view(np.float64)  # a complex number is divided part by part
            np.divide(parts, count, out=parts)
            np.copyto(made, sums[0], casting="same_kind")
        elif len(sums) == 2:
            self._end_halves(sums[0], sums[1], count, made)
        else:
            _divide(sums[0], count, made)

    def _end_halves(self, low: Numbers, high: Numbers, count: int, made: Numbers) -> None:
        """(high * 2^32 + low + count // 2) // count; no step of it leaves 64 bits."""
        whole = self._spare[: low.size].reshape(low.shape)
        np.floor_divide(high, count, out=whole)
        np.remainder(high, count, out=high)
        np.left_shift(high, 32, out=high)
        np.add(high, low, out=high)
        np.left_shift(whole, 32, out=whole)
        _divide(high, count, high)
        np.add(whole, high, out=made)

    def _end_bfloat16(self, sums: Numbers, count: int, made: Numbers) -> None:
        """Rounded to the nearest once, to even: by float32 it would be twice."""
        if self.method == "mean":
            np.divide(sums, count, out=sums)
            spare = self._spare[: sums.size].reshape(sums.shape)
            self._round_tiny(sums, spare)
            _round_to_8_bits(sums.view(np.uint64), spare.view(np.uint64))
        single = self._spare.view(np.float32)[: sums.size].reshape(sums.shape)
        np.copyto(single, sums, casting="same_kind")
        bits = single.view(np.uint32)
        np.right_shift(bits, 16, out=bits)
        np.copyto(made, bits, casting="unsafe")

    def _round_tiny(self, sums: Numbers, spare: Numbers) -> None:
        is_small = self._small[: sums.size].reshape(sums.shape)
        np.less(np.absolute(sums, out=spare), _TINY, out=is_small)
        if is_small.any():
            np.copyto(spare, sums)
            np.add(spare, _STEPS, out=spare, where=is_small)
            np.subtract(spare, _STEPS, out=spare, where=is_small)
            np.copysign(spare, sums, out=sums)


def _divide(sums: Numbers, count: int, made: Numbers) -> None:
    """The quotient, rounded half up; `sums` are used up."""
    if count > 1:
        np.add(sums, count // 2, out=sums)
    is_power = not count & (count - 1)
    op, by = (np.right_shift, count.bit_length() - 1) if is_power else (np.floor_divide, count)
    if sums.dtype == made.dtype:
        op(sums, by, out=made)
    else:
        np.copyto(made, op(sums, by, out=sums), casting="unsafe")


def _round_to_8_bits(bits: Numbers, spare: Numbers) -> None:
    """The bits of float64 numbers, rounded to 8 binary places of them, half to even."""
    np.right_shift(bits, 45, out=spare)
    np.bitwise_and(spare, 1, out=spare)
    np.add(spare, (1 << 44) - 1, out=spare)
    np.add(bits, spare, out=bits)
    np.bitwise_and(bits, ~((1 << 45) - 1) & ((1 << 64) - 1), out=bits)


def _views(part: Numbers, factors: Sequence[int]) -> Iterator[tuple[Slices, Numbers]]:
    """The first elements of all windows, then the second ones, …: which windows, and the elements.

    A window's own elements come in the order in which they arrive.
    """
    for offset in product(*map(range, factors)):
        view = part[tuple(slice(o, None, f) for o, f in zip(offset, factors))]
        if view.size:
            yield tuple(slice(0, n) for n in view.shape), view
