"""A picture of a graph: each application a line, values as boxes, the operator an arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.draw import Drawing, Item, Label, Line, Rect, clip

if TYPE_CHECKING:
    from weft.lang.graph import Graph

MOST = 12
"""Applications that are drawn; of a longer program the first and the last."""

TALL = 5
"""Rows of one application: a box of three, its index dimensions below, a free one."""


def draw_graph(graph: Graph) -> Drawing:
    """The applications in order, and under each value which index dimensions run along it."""
    count = len(graph.applications)
    head = count if count <= MOST else MOST // 2
    drawn = [*range(head), *range(max(head, count - MOST // 2), count)]
    items: list[Item] = []
    for row, number in enumerate(drawn):
        items += _application(graph, number, row * TALL)
    notes = [f"… {count - len(drawn)} applications between are not drawn"]
    title = f"{len(graph.inputs)} inputs, {count} applications, returns {', '.join(graph.outputs)}"
    return Drawing(tuple(items), clip(title), tuple(notes if len(drawn) < count else ()))


def _application(graph: Graph, number: int, y: int) -> list[Item]:
    application, notation = graph.applications[number], graph.signatures[number].notation
    items: list[Item] = []
    x = 0
    for name, rows in zip(application.operands, notation.operands):
        x = _value(items, graph, name, " ".join(map(str, rows)), x, y)
    arrow = clip(application.operator, 24)
    start, end = max(0, x - 1), x + len(arrow) + 6
    after = start + len(arrow) + 4
    items += [Line(start, y + 1, start + 1, y + 1), Label(start + 3, y + 1, arrow)]
    items += [Line(after, y + 1, end - 1, y + 1, arrow=True)]
    reduced = "  ".join(f"{by}: {dim}" for dim, by in notation.reduced.items())
    items += [Label(start + 2, y + 2, clip(reduced, 40))] if reduced else []
    x = end
    for name, rows in zip(application.results, notation.results):
        x = _value(items, graph, name, " ".join(map(str, rows)), x, y)
    return items


def _value(items: list[Item], graph: Graph, name: str, dims: str, x: int, y: int) -> int:
    """Draw a value with its index dimensions below; the column where the next may begin."""
    label = clip(str(graph.values[name]), 32)
    width = max(len(label), len(dims)) + 3
    tone = list(graph.values).index(name)
    items += [Rect(x, y, width, 2, label, tone), Label(x + 2, y + 3, clip(dims, 40))]
    return x + width + 2
