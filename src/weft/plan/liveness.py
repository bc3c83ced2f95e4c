"""How long values live: from when they are made to their last use; outputs live to the end."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from weft.lang import Application, Graph
from weft.lang.region import arguments
from weft.plan.resharding.reshard import Reshard


class Lives(NamedTuple):
    """Which values end where."""

    unused: tuple[str, ...]
    """The inputs that nobody needs."""
    ends: tuple[tuple[str, ...], ...]
    """For every application the values that nobody needs after it."""


def lives(graph: Graph) -> Lives:
    """When the values of a graph end.

    >>> from weft import trace
    >>> lives(trace(lambda x, y: (x + x) @ x, (4, 4), (4, 4)))
    Lives(unused=('y',), ends=((), ('add', 'x')))
    """
    last = {value.name: -1 for value in graph.inputs}
    for number, application in enumerate(graph.applications):
        last |= dict.fromkeys((*application.results, *application.operands), number)
    found: list[list[str]] = [[] for _ in range(len(graph.applications) + 1)]
    for name in last.keys() - set(graph.outputs):
        found[last[name]].append(name)
    *ends, unused = (tuple(sorted(names)) for names in found)
    return Lives(unused, tuple(ends))


def invariant(application: Application, body: Graph, returns: Collection[Reshard]) -> set[int]:
    """The values of a loop that its body gives back as they came, so that one array is enough."""
    given = [value.name for value in arguments(application, body)]
    triples = enumerate(zip(given, body.outputs, returns))
    return {n for n, (name, output, way) in triples if name == output and not way.steps}


def handed(application: Application, ends: Collection[str], lent: Collection[str]) -> set[int]:
    """The values from which a loop starts that it may take over: nobody else has or needs them."""
    operands = application.operands
    return {
        number
        for number, name in enumerate(operands[: len(application.results)])
        if name in ends and name not in lent and operands.count(name) == 1
    }
