"""One row of a benchmark, and how two things are timed against each other."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Row:
    """What one row says; printed as one JSON object on a line."""

    name: str
    """`benchmark/row`."""
    weft: float
    unit: str
    n: int
    """How many times it was measured."""
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    """How many times better than the peer: above 1 we are ahead, whatever the unit."""
    fraction: float | None = None
    """The part of the physical limit reached, where there is one."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Further columns, each with its unit in its name."""

    @classmethod
    def against(
        cls,
        name: str,
        weft: float,
        peer: str,
        peer_value: float,
        unit: str,
        n: int,
        better: Literal["lower", "higher"] = "lower",
    ) -> Row:
        """A row with a peer; the ratio follows from whether lower or higher is better."""
        ratio = peer_value / weft if better == "lower" else weft / peer_value
        return cls(name, weft, unit, n, peer, peer_value, ratio)

    @classmethod
    def beside_best(cls, name: str, rates: Mapping[str, float], unit: str, n: int) -> Row:
        """Our rate, which is that of `weft`, beside the best of the others that are there."""
        others = {who: rate for who, rate in rates.items() if who != "weft"}
        row = cls(name, rates["weft"], unit, n)
        if others:
            peer = max(others, key=lambda who: others[who])
            row = cls.against(name, rates["weft"], peer, others[peer], unit, n, "higher")
        return replace(row, more={f"{who}, {unit}": rate for who, rate in rates.items()})

    def line(self) -> str:
        """The row as JSON, figures to four digits."""
        order = ("name", "weft", "peer", "peer_value", "ratio", "fraction", "unit", "n")
        shown = {key: _short(getattr(self, key)) for key in order}
        if self.more:
            shown["more"] = {key: _short(value) for key, value in self.more.items()}
        return json.dumps(shown)


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def time_each(*calls: Callable[[], object], seconds: float) -> tuple[list[float], int]:
    """The median time of one call of each, in seconds, and how many rounds were taken.

    Rounds alternate between the calls, so that a noisy moment hits all of them alike.
    """
    numbers = [_calls_per_round(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(samples[0]) < 3 or time.perf_counter() < end:
        for call, number, taken in zip(calls, numbers, samples):
            begin = time.perf_counter()
            for _ in range(number):
                call()
            taken.append((time.perf_counter() - begin) / number)
    return [statistics.median(taken) for taken in samples], len(samples[0])


def _calls_per_round(call: Callable[[], object], round_seconds: float = 0.005) -> int:
    call()
    begin = time.perf_counter()
    call()
    once = max(time.perf_counter() - begin, 1e-7)
    return max(1, int(round_seconds / once))
