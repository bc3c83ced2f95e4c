"""How much memory a process and all that it started have, looked at all the time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Self


class Watch:
    """The most bytes of all processes together, what they share counted once; and of the largest.

    Looked at twenty times a second.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.total, self.largest = pid, 0, 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.is_over.is_set():
            sizes = [_size(pid) for pid in _family(self.pid)]
            self.total = max(self.total, sum(pss for pss, _ in sizes))
            self.largest = max(self.largest, *(rss for _, rss in sizes), 0)
            time.sleep(0.05)


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _size(pid: int) -> tuple[int, int]:
    """The bytes of a process, those that it shares divided among those who have them; and all."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = dict(line.split(":", 1) for line in lines)
    pss, rss = (int(sizes.get(name, "0").split()[0]) << 10 for name in ("Pss", "Rss"))
    return pss, rss
