"""Draw a graph: each application is a line, with values as boxes and the operator as an arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weft.draw import Drawing, Item, Label, Line, Rect, clip

if TYPE_CHECKING:
    from weft.lang.graph import Graph

MOST = 12
"""The most applications that are drawn: the first and the last of a longer program."""

TALL = 5
"""The rows of one application: a box of three, its index dimensions, a blank one."""

INDENT = 4
"""The columns by which a region is indented."""


def draw_graph(graph: Graph) -> Drawing:
    """Draw the applications in order, with the index dimensions of each value below it."""
    steps = list(_steps(graph, 0, ""))
    count = len(steps)
    head = count if count <= MOST else MOST // 2
    drawn = [*range(head), *range(max(head, count - MOST // 2), count)]
    items: list[Item] = []
    for row, number in enumerate(drawn):
        items += _application(steps[number], row * TALL)
    notes = [f"… {count - len(drawn)} applications between are not drawn"]
    title = f"{len(graph.inputs)} inputs, {count} applications, returns {', '.join(graph.outputs)}"
    return Drawing(tuple(items), clip(title), tuple(notes if len(drawn) < count else ()))


class _DrawnApplication(NamedTuple):
    """An application and its position."""

    graph: Graph
    number: int
    depth: int
    region: str


def _steps(graph: Graph, depth: int, where: str) -> Iterator[_DrawnApplication]:
    """Yield the applications in order, each followed by those of its regions."""
    for number, application in enumerate(graph.applications):
        yield _DrawnApplication(graph, number, depth, where)
        for place, region in enumerate(application.regions):
            inside = f"region {place} of {application.operator}"
            yield from _steps(region, depth + 1, inside)


def _application(step: _DrawnApplication, y: int) -> list[Item]:
    graph, number, depth, where = step
    application, notation = graph.applications[number], graph.signatures[number].notation
    items: list[Item] = []
    x = depth * INDENT
    if depth:
        items += [Line(x - 2, y, x - 2, y + TALL - 2), Label(x, y - 1, clip(where, 32))]
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
    """Draw a value with its index dimensions below, and return the next free column."""
    label = clip(str(graph.values[name]), 32)
    width = max(len(label), len(dims)) + 3
    tone = list(graph.values).index(name)
    items += [Rect(x, y, width, 2, label, tone), Label(x + 2, y + 3, clip(dims, 40))]
    return x + width + 2
