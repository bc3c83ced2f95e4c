"""The progress of a search, a progress bar for terminals, and the interrupt of a search."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TextIO

from weft.plan.searching.pareto import ParetoFront
from weft.values import counted, scaled

WIDTH = 20
"""Columns of the bar."""


def percent_bar(fraction: float) -> str:
    """Return a fraction as a bar and in percent.

    >>> percent_bar(0.5)
    '━━━━━━━━━━──────────  50%'
    """
    done = round(fraction * WIDTH)
    return "━" * done + "─" * (WIDTH - done) + f" {fraction:4.0%}"


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The stage of a search, the fraction that is done, and the best points so far."""

    stage: str
    part: float
    points: tuple[tuple[float, ...], ...]
    """Seconds, bytes of the fullest cell, and bytes received, of the best plans so far."""

    def __str__(self) -> str:
        text = f"{percent_bar(self.part)}  {self.stage}"
        if not self.points:
            return text
        seconds, peak, received = map(min, zip(*self.points))
        return (
            f"{text}  {counted(len(self.points), 'plan')}: from {scaled(seconds, 's')}, "
            f"{scaled(peak, 'B')} a cell, {scaled(received, 'B')} moved"
        )


class TerminalProgress:
    """A line on a terminal that each report overwrites; `close` clears it.

    >>> import io
    >>> stream = io.StringIO()
    >>> TerminalProgress(stream)(SearchProgress("fused", 0.5, ((0.001, 4096, 0),)))
    >>> stream.getvalue().strip()
    '━━━━━━━━━━──────────  50%  fused  1 plan: from 1 ms, 4096 B a cell, 0 B moved'
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream, self.width = stream or sys.stderr, 0

    def __call__(self, progress: SearchProgress) -> None:
        """Overwrite the line."""
        line = str(progress)
        self.stream.write(f"\r{line:{self.width}}")
        self.stream.flush()
        self.width = max(self.width, len(line))

    def close(self) -> None:
        """Clear the line."""
        self.stream.write(f"\r{'':{self.width}}\r")
        self.stream.flush()


class SearchInterrupted(KeyboardInterrupt):
    """A search was interrupted: by Ctrl-C, or by a `KeyboardInterrupt` of a progress function.

    It is a `KeyboardInterrupt`: a program that does not catch it ends as with any other.

    >>> from weft import DeviceMesh, search, trace
    >>> def stop(progress):
    ...     raise KeyboardInterrupt
    >>> try:
    ...     search(trace(lambda x: x + x, (8,)), DeviceMesh("m", (2,), ("x",)), progress=stop)
    ... except SearchInterrupted as error:
    ...     len(error.front), error.front.is_complete
    (1, False)
    """

    def __init__(self, front: Callable[[], ParetoFront | None] | None = None) -> None:
        super().__init__("the search was interrupted")
        self._make = front

    @cached_property
    def front(self) -> ParetoFront | None:
        """The best front so far; if the search had no plan yet, the plan of propagation.

        None if no plan so far fits the machine. The plans are built when this is first read, so
        the interrupt itself is immediate; another interrupt meanwhile raises and loses nothing.
        """
        return None if self._make is None else self._make()
