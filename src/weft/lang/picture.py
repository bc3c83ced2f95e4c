"""Draw a graph: each application is a line, with values as boxes and the operator as an arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weft.draw import ApplicationRow, Drawing, Item, Label, Line, ValueBox, clip, first_and_last
from weft.draw.rows import ROW_HEIGHT

if TYPE_CHECKING:
    from weft.lang.graph import Graph

MOST = 12
"""The most applications that are drawn: the first and the last of a longer program."""

INDENT = 4
"""The columns by which a region is indented."""


def draw_graph(graph: Graph) -> Drawing:
    """Draw the applications in order, with the index dimensions of each value below it."""
    steps = list(_steps(graph, 0, ""))
    count, drawn = len(steps), first_and_last(len(steps), MOST)
    items = [item for row, n in enumerate(drawn) for item in _application(steps[n], row)]
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


def _application(step: _DrawnApplication, row: int) -> list[Item]:
    graph, number, depth, where = step
    application, notation = graph.applications[number], graph.signatures[number].notation
    tones = {name: tone for tone, name in enumerate(graph.values)}
    operands, results = (
        [
            ValueBox(str(graph.values[name]), " ".join(map(str, rows)), tones[name])
            for name, rows in zip(names, every)
        ]
        for names, every in (
            (application.operands, notation.operands),
            (application.results, notation.results),
        )
    )
    reduced = "  ".join(f"{by}: {dim}" for dim, by in notation.reduced.items())
    x, y = depth * INDENT, row * ROW_HEIGHT
    items = ApplicationRow(operands, application.operator, [reduced], results).items(x, y)
    if depth:
        bar = Line(x - 2, y, x - 2, y + ROW_HEIGHT - 2)
        items = [bar, Label(x, y - 1, clip(where, 32)), *items]
    return items
