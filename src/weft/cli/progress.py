"""`Bar`: how far a run is, in one line."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from weft.plan.searching.progress import gauge

if TYPE_CHECKING:
    from weft.runtime.cluster import Progress


class Bar:
    """How far a run is, in one line, and how long it will still take."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.first, self.begin = quiet, -1, 0.0
        self.last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Write the line anew, ten times a second at most."""
        now = time.monotonic()
        if self.first < 0:
            self.first, self.begin = progress.done, now
        if self.quiet or (now - self.last < 0.1 and progress.done < progress.total):
            return
        self.last = now
        text = gauge(progress.done / max(1, progress.total))
        text += f"  {progress.done} of {progress.total} tasks"
        if progress.done > self.first:  # what had been done before says nothing of speed
            each = (now - self.begin) / (progress.done - self.first)
            text += f", {clock(each * (progress.total - progress.done))} left"
        sys.stderr.write(f"\r{text}\033[K")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the line empty."""
        if not self.quiet:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def clock(seconds: float) -> str:
    """A time as people say it.

    >>> clock(4.2), clock(75), clock(3700)
    ('4 s', '1:15 min', '1:01 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"
