"""A picture of a plan: its graph, with the sharding of every value and the cuts of every operator.

An application is a row: operands, an arrow with the operator, results. Below the arrow are the axes
that cut its index dimensions, and the bytes that move for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.draw import Drawing, Item, Label, Line, Rect, clip
from weft.layout import ShardingSpec
from weft.layout.shardy_text import write_symbol
from weft.program import Transfer
from weft.values import counted

if TYPE_CHECKING:
    from weft.plan.plan import Plan

MAX_APPLICATIONS = 10
"""The most applications that are drawn; of a longer program the first and the last."""

ROW_HEIGHT = 5
"""Text rows of one application: a box of three, a line below, an empty one."""

MAX_COLUMNS = 40
"""The most columns of a line under a box or an arrow."""

MAX_OPERANDS = 4
"""The most operands of one application that are drawn."""


def draw_plan(plan: Plan) -> Drawing:
    """Draw the applications in order, with what moves for each; of many the first and the last."""
    count = len(plan.graph.applications)
    head = count if count <= MAX_APPLICATIONS else MAX_APPLICATIONS // 2
    drawn = [*range(head), *range(max(head, count - MAX_APPLICATIONS // 2), count)]
    items = [
        item
        for row, number in enumerate(drawn)
        for item in _Row(plan, number, row * ROW_HEIGHT).items()
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


class _Row:
    """One application."""

    def __init__(self, plan: Plan, number: int, y: int) -> None:
        self.plan, self.number, self.y, self.x = plan, number, y, 0
        self.names = {name: tone for tone, name in enumerate(plan.graph.values)}
        self.drawn: list[Item] = []

    def items(self) -> list[Item]:
        """Return operands, arrow and results."""
        application, specs = self.plan.graph.applications[self.number], self.plan.specs
        used = application.operands
        for name in used[:MAX_OPERANDS]:
            self._value(name, specs[name])
        if len(used) > MAX_OPERANDS:
            self._label(f"+ {len(used) - MAX_OPERANDS} more", 1)
            self.x += 9
        self._arrow()
        for name in application.results[:MAX_OPERANDS]:
            self._value(name, specs[name])
        return self.drawn

    def _value(self, name: str, spec: ShardingSpec) -> None:
        label, sharding = (
            clip(str(self.plan.graph.values[name]), 32),
            clip(_short(spec), MAX_COLUMNS),
        )
        width = max(len(label), len(sharding)) + 3
        self.drawn.append(Rect(self.x, self.y, width, 2, label, self.names[name]))
        self._label(sharding, 3, indent=2)
        self.x += width + 2

    def _arrow(self) -> None:
        application, placed = (
            self.plan.graph.applications[self.number],
            self.plan.placed[self.number],
        )
        cuts = [f"{name}: {dim}" for name, dim in placed.cuts.items()]
        lines = clip(", ".join(cuts), MAX_COLUMNS), _moved(self.plan, self.number)
        name, start = clip(application.operator, 24), max(0, self.x - 1)
        width = max(len(name) + 4, *map(len, lines))
        after = start + len(name) + 4
        self.drawn += [
            Line(start, self.y + 1, start + 1, self.y + 1),
            Label(start + 3, self.y + 1, name),
            Line(after, self.y + 1, start + width + 1, self.y + 1, arrow=True),
        ]
        for row, text in enumerate(lines):
            self.drawn += [Label(start + 2, self.y + 2 + row, text)] * bool(text)
        self.x = start + width + 3

    def _label(self, text: str, row: int, indent: int = 0) -> None:
        self.drawn.append(Label(self.x + indent, self.y + row, text))


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
