"""A picture of a plan: its graph, with the sharding of every value and the cuts of every operator.

An application is a row: operands, an arrow with the operator, results. Below the arrow are the axes
that cut its index dimensions, and the bytes that move for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.draw import ApplicationRow, Drawing, ValueBox, clip, first_and_last
from weft.draw.rows import ROW_HEIGHT
from weft.layout import ShardingSpec
from weft.layout.shardy_text import write_symbol
from weft.program import Transfer
from weft.values import counted

if TYPE_CHECKING:
    from weft.plan.plan import Plan

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
    moved, title = sum(plan.received), f"{counted(count, 'application')} on {plan.mesh}"
    return Drawing(
        tuple(items), clip(f"{title}, {moved} B move in all"), tuple(notes[:MAX_APPLICATIONS])
    )


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
