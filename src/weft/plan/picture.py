"""Pictures of plans, of placed applications and of reshards; and a reshard as a table.

A plan is its graph: an application is a row of operands, an arrow with the operator, and results.
Below the arrow are the axes that cut its index dimensions, and the bytes that move for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING

from weft.draw import (
    ApplicationRow,
    ArrayPanel,
    Drawing,
    Item,
    Label,
    Patch,
    Scale,
    ValueBox,
    clip,
    draw_figure,
    draw_patches,
    extent,
    few,
    first_and_last,
    limits,
    moved,
)
from weft.draw.rows import ROW_HEIGHT
from weft.lang.signature_picture import index_panel, panel_title
from weft.layout import ShardingSpec
from weft.layout.picture import grid_scales
from weft.layout.shardy_text import write_axis, write_symbol
from weft.program import Transfer
from weft.space import Projection, ZRange
from weft.values import Point, counted

if TYPE_CHECKING:
    from weft.layout.mesh import Cell
    from weft.plan.placed import Placed
    from weft.plan.plan import Plan
    from weft.plan.resharding.reshard import Reshard
    from weft.plan.resharding.step import Step

# Plans.

MAX_APPLICATIONS = 10
"""The most applications that are drawn; of a longer program the first and the last."""


def draw_plan(plan: Plan) -> Drawing:
    """Draw the applications in order, with what moves for each; of many the first and the last."""
    count = len(plan.graph.applications)
    drawn = first_and_last(count, MAX_APPLICATIONS)
    items = [
        item
        for row, number in enumerate(drawn)
        for item in _application(plan, number).items(0, row * ROW_HEIGHT)
    ]
    notes = [f"… {count - len(drawn)} applications between are not drawn"] * (len(drawn) < count)
    for name, reshard in zip(plan.graph.outputs, plan.returns):
        if sum(reshard.received):
            kinds = ", ".join(step.kind for step in reshard.steps)
            notes.append(clip(f"{name} is returned by {kinds}: {sum(reshard.received)} B move"))
    notes += [clip(f"assumed: {text}") for text in plan.assumed]
    title = f"{counted(count, 'application')} on {plan.mesh}, {sum(plan.received)} B move in all"
    return Drawing(tuple(items), clip(title), tuple(notes[:MAX_APPLICATIONS]))


def _application(plan: Plan, number: int) -> ApplicationRow:
    """Return an application with the shardings of its values, its cuts, and what moves for it."""
    application, placed = plan.graph.applications[number], plan.placed[number]
    tones = {name: tone for tone, name in enumerate(plan.graph.values)}
    operands, results = (
        [ValueBox(str(plan.graph.values[n]), _short(plan.specs[n]), tones[n]) for n in names]
        for names in (application.operands, application.results)
    )
    cuts = ", ".join(f"{name}: {dim}" for name, dim in placed.cuts.items())
    return ApplicationRow(operands, application.operator, [cuts, _moved(plan, number)], results)


def _short(spec: ShardingSpec) -> str:
    """Return a sharding as text without its mesh, which all have in common."""
    return str(spec).removeprefix(f"<{write_symbol(spec.mesh.name)}, ").removesuffix(">")


def _moved(plan: Plan, number: int) -> str:
    """Return as text the bytes that all cells receive for an application, in its regions too."""
    count = plan.program.count
    total = sum(
        each.times * count.total(each.instruction)
        for each in count.executed
        if each.root == number and isinstance(each.instruction, Transfer)
    )
    return f"{total} B move" if total else ""


# Placed applications.


def draw_placed(placed: Placed, cell: Cell | None = None) -> Drawing:
    """Draw the index box of each cell, or of one, and its image in every operand and result.

    Boxes have the numbers of their cells, and the colour of the index box that they belong to.
    Arrays of which cells hold parts are hatched.
    """
    signature, line = placed.signature, placed.signature.notation
    boxes, is_whole = _index_boxes(placed) if cell is None else ([_box_of(placed, cell)], True)
    cut = [dim for dim, count in enumerate(placed.index.grid) if count > 1]
    parallel = {dim for dim, name in enumerate(signature.sizes) if name not in line.reduced}
    shown = sorted(parallel.union(cut))
    shown = cut if cut and len(shown) > 2 else shown
    patches = [Patch(box.start, box.stop, label, tone) for box, label, tone in boxes]
    index = index_panel(signature, shown, patches)
    operands = [
        ArrayPanel(panel_title(rows, shape, n in line.once), shape, _images(p, boxes, shape, parts))
        for n, (rows, shape, p, parts) in enumerate(
            zip(line.operands, signature.operand_shapes, signature.operands, placed.partials)
        )
    ]
    results = [
        ArrayPanel(panel_title(rows, shape), shape, _images(p, boxes, shape, spec.partial))
        for rows, shape, p, spec in zip(
            line.results, signature.result_shapes, signature.results, placed.results
        )
    ]
    cuts = ", ".join(f"{name}: {dim}" for name, dim in placed.cuts.items()) or "nothing is cut"
    notes = [
        f"{placed.mesh.axis_size(axis)} parts over {write_axis(axis)}, combined by {monoid}"
        for axis, monoid in (placed.results[0].partial if placed.results else {}).items()
    ]
    notes += [f"… of {placed.mesh.size} cells only some are drawn"] * (not is_whole)
    title = f"{signature} on {placed.mesh} · {cuts}"
    if cell is not None:
        title += f" · cell {placed.mesh.rank(placed.mesh.coord(cell))}"
    return draw_figure("", index, operands, results, title, notes)


IndexBox = tuple[ZRange, str, int]
"""An index box, the cells that compute it, and its colour."""


def _index_boxes(placed: Placed) -> tuple[list[IndexBox], bool]:
    """Return the index boxes that are drawn, the outer ones if many, and whether it is all."""
    spec, mesh = placed.index, placed.mesh
    grid = spec.blocks(tuple(placed.signature.sizes.values()))
    copies = mesh.size // prod(spec.grid)
    most = iter(limits(sum(count > 1 for count in spec.grid)))
    scales = grid_scales(grid, [next(most) if count > 1 else 1 for count in spec.grid])
    boxes: list[IndexBox] = []
    for number, step in enumerate(product(*(scale.steps for scale in scales))):
        box = ZRange([a for a, _ in step], [b for _, b in step])
        cells = spec.holders(grid.block_of(box.start))
        boxes.append((box, few((str(mesh.device(cell)) for cell in cells), copies), number))
    return boxes, not any(scale.elided for scale in scales)


def _box_of(placed: Placed, cell: Cell) -> IndexBox:
    box = placed.index.region(tuple(placed.signature.sizes.values()), cell)
    return box, str(placed.mesh.device(cell)), 0


def _images(
    image: Projection, boxes: Sequence[IndexBox], shape: Point, parts: Iterable[object]
) -> list[Patch]:
    """Return the images of index boxes in an array; those of several are drawn once."""
    together: dict[ZRange, tuple[list[str], int]] = {}
    for box, label, tone in boxes:
        region = image.region(box, shape)
        together.setdefault(region, ([], tone))[0].append(label)
    return [
        Patch(box.start, box.stop, few(labels, len(labels)), tone, bool([*parts]))
        for box, (labels, tone) in together.items()
    ]


# Reshards.

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
