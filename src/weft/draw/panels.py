"""Boxes of any rank as a picture: leading dimensions as a strip of panels, rulers at the cuts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise, product
from typing import NamedTuple, TypeAlias

from weft.draw.drawing import Drawing, Item, Label, Rect, clip
from weft.draw.scale import Ruler, Scale, limits
from weft.values import Point, counted

Sides: TypeAlias = tuple[int, int, int, int]  # left, right, above, below

WIDTH = 100
"""Panels wrap to a new row of panels at this column."""

MOST_RECTS = 72
"""The most rectangles of a picture; a remark counts the others."""


class Patch(NamedTuple):
    """A box with a label: half-open bounds in the coordinates of an array."""

    start: Point
    stop: Point
    label: str = ""
    tone: int | None = 0
    hatched: bool = False


def draw_boxes(
    boxes: Sequence[tuple[Point, Point]],
    labels: Sequence[str],
    title: str = "",
    outlined: Collection[int] = (),
) -> Drawing:
    """Draw boxes of one rank, without empty ones; those in `outlined` are not filled.

    >>> from weft.draw import to_text
    >>> print(to_text(draw_boxes([((0,), (2,)), ((2,), (3,))], ["a", "b"])))
    0       2   3
    ┌───────┬───┐
    │   a   │ b │
    └───────┴───┘
    """
    full = [(n, a, b) for n, (a, b) in enumerate(boxes) if all(map(int.__lt__, a, b))]
    corners = [corner for _, *pair in full for corner in pair] or [boxes[0][0]]
    scales = list(map(Scale.through, zip(*corners), limits(len(corners[0]))))
    patches = (Patch(a, b, labels[n], None if n in outlined else n) for n, a, b in full)
    return draw_patches(patches, scales, title)


def draw_blocks(
    scales: Sequence[Scale], label: Callable[[Point], str], title: str, notes: Sequence[str] = ()
) -> Drawing:
    """Draw a grid of blocks, one for each step of the scales; `label` gets its start."""
    steps = product(*(scale.steps for scale in scales))
    bounds = ((tuple(a for a, _ in step), tuple(b for _, b in step)) for step in steps)
    patches = (Patch(start, stop, label(start), n) for n, (start, stop) in enumerate(bounds))
    return draw_patches(patches, scales, title, notes)


def draw_patches(
    patches: Iterable[Patch],
    scales: Sequence[Scale],
    title: str = "",
    notes: Sequence[str] = (),
) -> Drawing:
    """Draw patches on their scales, with a panel for every step of the leading dimensions."""
    remarks = list(notes)
    *leading, rows, columns = [Scale((0, 1), names=("",))] * (2 - len(scales)) + list(scales)
    pad = (0,) * (2 - len(scales)), (1,) * (2 - len(scales))
    full = [p._replace(start=pad[0] + p.start, stop=pad[1] + p.stop) for p in patches]
    places = product(*(scale.steps for scale in leading))
    panels = [(_panel_title(leading, at), [p for p in full if _meets(p, at)]) for at in places]
    missing, budget = 0, MOST_RECTS
    for number, (heading, inside) in enumerate(panels):
        panels[number] = heading, inside[:budget]
        missing += len(inside[budget:])
        budget -= len(inside[:budget])
    panels = [panel for panel in panels if panel[1]] or panels[:1]
    if missing:
        remarks.append(f"… {counted(missing, 'more box is', 'more boxes are')} not drawn")
    if any(scale.elided for scale in leading):
        remarks.append("… panels between are not drawn")
    return _arrange(panels, rows, columns, title, remarks)


def few(names: Iterable[str], count: int, width: int = 21) -> str:
    """Return as many of `count` names as fit a label, and how many more there are.

    >>> few(map(str, range(100, 200)), 100), few(["0", "4"], 2)
    ('100 101 102 103 +96', '0 4')
    """
    shown = list(islice(names, 8))
    while True:
        text = " ".join(shown) + f" +{count - len(shown)}" * (count > len(shown))
        if len(text) <= width or len(shown) == 1:
            return text
        shown.pop()


def _meets(patch: Patch, place: Sequence[tuple[int, int]]) -> bool:
    return all(
        a < high and low < b
        for a, b, (low, high) in zip(patch.start, patch.stop, place, strict=False)
    )


def _panel_title(leading: Sequence[Scale], place: Sequence[tuple[int, int]]) -> str:
    def name(scale: Scale, step: tuple[int, int]) -> str:
        return scale.names[scale.cuts.index(step[0])] if scale.names else f"{step[0]}:{step[1]}"

    parts = [name(scale, step) for scale, step in zip(leading, place)]
    if not parts:
        return ""
    return ", ".join(parts) if leading[0].names else f"[{', '.join(parts)}, …]"


def _arrange(
    panels: Sequence[tuple[str, list[Patch]]],
    rows: Scale,
    columns: Scale,
    title: str,
    notes: Sequence[str],
) -> Drawing:
    """Draw panels side by side on common scales, wrapped at `WIDTH`."""
    across = _across(columns, [patch for _, patches in panels for patch in patches])
    down = _down(rows)
    margin = max((len(text) + 1 for _, text in down.ticks), default=0)
    top = bool(across.ticks) + any(heading for heading, _ in panels)
    wide = max([margin + across.at[-1] + 1, *(len(heading) for heading, _ in panels)]) + 3
    per_row = max(1, WIDTH // wide)
    items: list[Item] = []
    for number, (heading, patches) in enumerate(panels):
        x = number % per_row * wide
        y = number // per_row * (top + down.at[-1] + 2)
        if heading:
            items.append(Label(x, y, clip(heading)))
        items += _panel(patches, across, down, x + margin, y + top)
    return Drawing(tuple(items), title, tuple(notes))


def _panel(patches: Sequence[Patch], across: Ruler, down: Ruler, x: int, y: int) -> Iterator[Item]:
    """Draw one panel: rectangles (shared by boxes in the same place), rulers and gaps."""
    together: dict[Sides, tuple[list[str], int | None, bool]] = {}
    hidden: list[Rect] = []  # outlines that a fill may cover, drawn once more on top
    for patch in patches:
        columns = across.span(patch.start[-1], patch.stop[-1])
        rows = down.span(patch.start[-2], patch.stop[-2])
        if columns and rows:
            names, tone, hatched = together.get((*columns, *rows), ([], None, False))
            tone = patch.tone if tone is None else tone
            names = [*names, *filter(None, [patch.label])]
            together[*columns, *rows] = names, tone, hatched or patch.hatched
    for sides, (names, tone, hatched) in together.items():
        left, right, above, below = sides
        label = clip(" ".join(names), max(1, right - left - 1))
        filled = (other for other, (_, fill, _) in together.items() if fill is not None)
        rivals = [other for other in filled if other != sides and _overlap(sides, other)]
        spot = _free_spot(sides, rivals, product(down.middles, across.middles))
        yield Rect(x + left, y + above, right - left, below - above, label, tone, spot, hatched)
        hidden += [Rect(x + left, y + above, right - left, below - above)] if rivals else []
    yield from hidden
    for at, text in across.ticks:
        yield Label(x + at, y - 1, text, "middle" if across.scale.names or at else "start")
    for at, text in down.ticks:
        yield Label(x - 1, y + at, text, "end")
    for n in across.scale.elided:
        for at in down.middles:
            yield Label(x + across.middles[n], y + at, "⋯", "middle")
    for n in down.scale.elided:
        for m, at in enumerate(across.middles):
            if m not in across.scale.elided:
                yield Label(x + at, y + down.middles[n], "⋮", "middle")


def _overlap(one: Sides, two: Sides) -> bool:
    return one[0] < two[1] and two[0] < one[1] and one[2] < two[3] and two[2] < one[3]


def _free_spot(
    sides: Sides, rivals: Sequence[Sides], spots: Iterable[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return a spot for the label of a rectangle that no other crosses; None for the middle."""

    def meets(one: Sides, column: int, row: int) -> bool:
        return one[0] <= column <= one[1] and one[2] <= row <= one[3]

    left, right, above, below = sides
    if not any(meets(o, (left + right) // 2, (above + below) // 2) for o in rivals):
        return None
    for row, column in spots:
        inside = left < column < right and above < row < below
        if inside and not any(meets(o, column, row) for o in rivals):
            return column - left, row - above
    return None


def _down(rows: Scale) -> Ruler:
    """Rows are one line high; a few uneven ones may be taller, to show it."""
    uneven = len(rows.cuts) <= 6 and len({high - low for low, high in rows.steps}) > 1
    return Ruler.fit(rows, [2] * len(rows.cuts), longest=4 if uneven else 2, gap=2)


def _across(columns: Scale, patches: Sequence[Patch]) -> Ruler:
    """Columns are as wide as the labels of boxes one step wide, and as the ticks."""
    widths = [len(str(cut)) for cut in columns.cuts]
    least = [max(4, (a + b) // 2 + 2) for a, b in pairwise([2 * widths[0], *widths[1:]])]
    for n, name in enumerate(columns.names):
        least[n] = max(4, len(name) + 2)
    for patch in patches:
        match columns.steps_in(patch.start[-1], patch.stop[-1]):
            case [step]:
                room = len(patch.label) + 3 + 2 * patch.hatched
                least[step] = max(least[step], min(24, room))
    return Ruler.fit(columns, least, longest=max([8, *least]), gap=4)
