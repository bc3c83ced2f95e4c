"""`LevelLengths`: decides how much of each level readers see, so that all levels fit together.

While an image is written, level k has the length of level 0 divided by its factor, rounded down:
windows that are full. Once it is closed, windows that are not full count too, and the length is
rounded up. Levels are written at their own pace; none is shown further than the others allow. The
coarser ones are shown first, so that a reader that opens level 0 and then the others never finds
them too short.

Where a frame begins a row of level 0 (the first plane of a time point), the row counts, and the
attribute `weft.frames` of each level counts the frames that are there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from weft.store.assembler import ShardAssembler
from weft.store.writer import Writer


class LevelLengths:
    """The lengths of an image's levels; any thread may call it."""

    def __init__(self, levels: Sequence[Writer], factor: int) -> None:
        self._levels: list[ShardAssembler] = [level.assembler for level in levels]
        self._factors: list[int] = [factor**number for number in range(len(levels))]
        """The windows of each level along the dimension that is appended to."""
        self._rows = [max(1, level.layout.step_sizes[0]) for level in levels]
        """The elements of a row."""
        self._ready = [level.promised for level in self._levels]
        """The elements of each level that could be shown."""
        self._lock = threading.Lock()
        self._showing = threading.Lock()
        for number, level in enumerate(self._levels):
            level.on_readable = lambda elements, number=number: self._offer(number, elements)

    def _offer(self, number: int, elements: int) -> None:
        """Note how much of a level can be read, and show what fits together."""
        with self._lock:
            if elements <= self._ready[number]:
                return
            self._ready[number] = elements
        self._show_whole_windows()

    def _show_whole_windows(self) -> None:
        with self._showing:  # the last one to come sees all that is ready
            with self._lock:
                ready = list(self._ready)
            self._show(ready, self._fitting(ready))

    def _fitting(self, ready: Sequence[int]) -> int:
        """Return the elements of level 0 for which the other levels have their full windows."""
        whole = [count // row for count, row in zip(ready, self._rows)]
        others = list(zip(whole, self._factors))[1:]
        rows = whole[0]
        for have, factor in others:
            rows = min(rows, (have + 1) * factor - 1)
        if rows == whole[0] and all(
            factor == 1 or (rows + 1) // factor <= have for have, factor in others
        ):
            return ready[0]  # with the frames of a row that has begun
        return rows * self._rows[0]

    def _show(self, ready: Sequence[int], elements: int) -> None:
        """Show elements of level 0, and of the others what belongs to them."""
        rows = -(-elements // self._rows[0])
        steps = list(zip(self._levels, ready, self._factors, self._rows))
        for level, have, factor, row in reversed(steps[1:]):
            level.show(min(have, rows // factor * row), rows // factor)
        steps[0][0].show(elements)

    def flush(self) -> None:
        """Show all frames of level 0, and the windows of the others that are full."""
        with self._showing:
            with self._lock:
                ready = list(self._ready)
            self._show(ready, ready[0])

    def close(self) -> None:
        """Show everything, once all levels are closed; if one failed, the others as they are."""
        with self._showing, self._lock:
            for level, elements in reversed(list(zip(self._levels, self._ready))):
                level.show(elements)
