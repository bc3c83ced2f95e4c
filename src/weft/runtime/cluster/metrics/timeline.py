"""The timeline of a run as a picture like all others: a lane for each worker.

It is coarse, for terminals and notebooks; `timeline_svg` draws to the pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from weft.draw import Drawing, Item, Label, Line, Rect, clip
from weft.draw.svg import PALETTE
from weft.plan.searching.front_picture import scaled
from weft.runtime.cluster.metrics.lanes import Lane, lanes_of, length_of
from weft.runtime.cluster.metrics.record_table import headline, remarks

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord

COLUMNS = 72
"""Columns of the lanes in a drawing; the narrowest rectangle has two."""
MOST_DRAWN = 24
"""Lanes of a drawing."""
NAME = 24
"""The most characters of a worker's name."""


def draw_timeline(record: RunRecord) -> Drawing:
    """The lanes of a run as rectangles, each the operator that its worker mostly worked for."""
    grain = 2 * length_of(record) / COLUMNS
    lanes = lanes_of(record, grain)
    tones = tones_of(record)
    left = max([len(clip(lane.worker or "?", NAME)) for lane in lanes], default=0) + 2
    items: list[Item] = [
        Label(left, 0, "0"),
        Label(left + COLUMNS, 0, scaled(length_of(record), "s"), "end"),
    ]
    for row, lane in enumerate(lanes[:MOST_DRAWN]):
        items.append(Label(left - 2, 2 + 2 * row, clip(lane.worker or "?", NAME), "end"))
        items.append(Line(left, 1 + 2 * row, left, 3 + 2 * row))
        items += _rects(lane, length_of(record), tones, left, 1 + 2 * row)
    notes = [f"… {len(lanes) - MOST_DRAWN} more lanes are not drawn"] * (len(lanes) > MOST_DRAWN)
    return Drawing(tuple(items), headline(record), (*notes, *remarks(record)))


def tones_of(record: RunRecord) -> dict[str, int]:
    """A tone for each operator: those that take most of the time are told apart."""
    taken = {name: total.seconds for name, total in record.by_operator.items()}
    for task in record.again:
        taken.setdefault(task.operator, 0.0)
    order = sorted(taken, key=lambda name: -taken[name])
    return {name: min(place, len(PALETTE) - 1) for place, name in enumerate(order)}


def _rects(lane: Lane, length: float, tones: dict[str, int], x: int, y: int) -> Iterator[Rect]:
    """Steps of two columns, each of the operator that has most of it, joined where they agree."""
    step, count = 2 * length / COLUMNS, COLUMNS // 2
    shares: list[dict[str, float]] = [{} for _ in range(count)]
    for span in lane.spans:
        first, last = int(span.begin / step), min(count - 1, int(span.end / step))
        for at in range(min(first, count - 1), last + 1):
            inside = min(span.end, (at + 1) * step) - max(span.begin, at * step)
            shares[at][span.operator] = shares[at].get(span.operator, 0.0) + max(0.0, inside)
    names = [_most(share, step) for share in shares]
    at = 0
    for name, group in groupby(names):
        wide = 2 * len(list(group))
        if name is not None:
            label = clip(name, wide - 1) if wide > 4 else name[: wide - 1]
            yield Rect(x + at, y, wide, 2, label, tones[name])
        at += wide


def _most(share: dict[str, float], step: float) -> str | None:
    """Who has most of a step; nobody where it is mostly idle."""
    name = max(share, key=share.__getitem__, default=None)
    idle = step - sum(share.values())
    return None if name is None or idle > share[name] else name
