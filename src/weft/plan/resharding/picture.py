"""A reshard as a table, and as a picture: who sends which box to whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from weft.draw import Drawing, Item, Label, Patch, Scale, draw_patches, extent, few, limits, moved
from weft.layout.shardy_text import write_axis
from weft.values import Point, counted

if TYPE_CHECKING:
    from weft.plan.resharding.reshard import Reshard
    from weft.plan.resharding.step import Step

MOST_MOVES = 5_000
"""Pieces that a picture looks at."""

MOST_CELLS = 512
"""Meshes up to this size are asked what every cell sends, which may take long."""


def write_reshard(plan: Reshard) -> str:
    """The plan as a table, one line for a step."""
    head = ("step", "axes", "dims", "after", "received", "sent", "seconds")
    rows = [head, *map(_row, plan.steps)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([_title(plan), *(lines if plan.steps else ["nothing moves"]), _sums(plan)])


def _row(step: Step) -> Sequence[str]:
    axes = " ".join(map(write_axis, step.axes)) or "-"
    dims = " ".join(map(str, step.dims)) or "-"
    few_cells = len(step.devices) <= MOST_CELLS
    sent = _range(step.sent) if few_cells else "-"
    name = " ".join([step.kind, *dict.fromkeys(step.monoids)])
    return name, axes, dims, str(step.after), _range(step.received), sent, f"{step.seconds:.3g}"


def _range(numbers: Point) -> str:
    """The bytes of a cell: one number, or the least and the most."""
    low, high = min(numbers), max(numbers)
    return f"{high:,} B" if low == high else f"{low:,} to {high:,} B"


def _title(plan: Reshard) -> str:
    return f"{list(plan.shape)} of {plan.itemsize} B: {plan.src} -> {plan.dst}"


def _sums(plan: Reshard) -> str:
    total, ideal = sum(plan.received), plan.ideal
    over = f" = {total / ideal:.2f} x the least" if ideal else ""
    return (
        f"{counted(len(plan.devices), 'cell')}, {total:,} B received in all{over}, "
        f"peak {_range(plan.peak)}, {plan.price:.3g} s"
    )


def draw_reshard(plan: Reshard) -> Drawing:
    """The steps below each other; each box with its senders and receivers."""
    items, row = list[Item](), 0
    notes = list[str]()
    for number, step in enumerate(plan.steps):
        picture = _draw_step(step)
        items.append(Label(0, row, f"{number + 1}. {step}"))
        items += moved(picture.items, 0, row + 1)
        row += extent(picture.items)[1] + 3
        notes += picture.notes
    if not plan.steps:
        items.append(Label(0, 0, "nothing moves"))
    return Drawing(tuple(items), _title(plan), tuple(dict.fromkeys([*notes, _sums(plan)])))


def _draw_step(step: Step) -> Drawing:
    """The pieces of the array: `0→1 2` where they go from 0 to 1 and 2, `0` where they stay.

    Of a reduction `1 2→0`: what comes from 1 and 2 is combined on 0.
    """
    moves = list(islice(step.moves(), MOST_MOVES + 1))
    labels = dict[tuple[Point, Point], dict[int, list[int]]]()
    for move in moves[:MOST_MOVES]:
        ways = labels.setdefault((move.box.start, move.box.stop), {})
        one, other = (move.receiver, move.sender)[:: 1 if step.monoids else -1]
        ways.setdefault(one, [])
        if one != other:
            ways[one].append(other)
    corners = [corner for box in labels for corner in box] or [(0,) * len(step.shape)]
    scales = list(map(Scale.through, zip(*corners), limits(len(step.shape))))
    patches = [
        Patch(*box, _ways(ways, bool(step.monoids)), n)
        for n, (box, ways) in enumerate(labels.items())
    ]
    notes = ["… more pieces are not drawn"] if len(moves) > MOST_MOVES else []
    return draw_patches(patches, scales, notes=notes)


def _ways(ways: dict[int, list[int]], are_senders: bool) -> str:
    moving = {one: others for one, others in ways.items() if others}
    if not moving:
        return few(map(str, ways), len(ways))
    names = {one: few(map(str, others), len(others), 15) for one, others in moving.items()}
    texts = [f"{some}→{one}" if are_senders else f"{one}→{some}" for one, some in names.items()]
    return few(texts, len(texts))
