"""How far a search is, and a line on a terminal that says so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from weft.plan.searching.front_picture import scaled
from weft.values import counted

WIDE = 20
"""Columns of the bar."""


def gauge(part: float) -> str:
    """A part of a whole, as a bar and in percent.

    >>> gauge(0.5)
    '━━━━━━━━━━──────────  50%'
    """
    done = round(part * WIDE)
    return "━" * done + "─" * (WIDE - done) + f" {part:4.0%}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is: what it does, which part of it is done, and the best points so far."""

    stage: str
    part: float
    points: tuple[tuple[float, ...], ...]
    """Seconds, bytes of the fullest cell, and bytes received of the plans that are best so far."""

    def __str__(self) -> str:
        return f"{gauge(self.part)}  {self.stage}{self._front()}"

    def _front(self) -> str:
        if not self.points:
            return ""
        seconds, peak, received = map(min, zip(*self.points))
        front = counted(len(self.points), "plan")
        return (
            f"  {front}: from {scaled(seconds, 's')}, {scaled(peak, 'B')} a cell, "
            f"{scaled(received, 'B')} moved"
        )


class Bar:
    """One line that is written over and over, and gone in the end.

    >>> import io
    >>> stream = io.StringIO()
    >>> Bar(stream)(Progress("breeding", 0.5, ((0.001, 4096, 0),)))
    >>> stream.getvalue().strip()
    '━━━━━━━━━━──────────  50%  breeding  1 plan: from 1 ms, 4096 B a cell, 0 B moved'
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream, self.wide = stream or sys.stderr, 0

    def __call__(self, progress: Progress) -> None:
        """Write the line anew."""
        line = str(progress)
        self.stream.write(f"\r{line:{self.wide}}")
        self.stream.flush()
        self.wide = max(self.wide, len(line))

    def close(self) -> None:
        """Leave the line empty."""
        self.stream.write(f"\r{'':{self.wide}}\r")
        self.stream.flush()
