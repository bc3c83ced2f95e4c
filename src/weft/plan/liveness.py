"""The lifetimes of values: from where they are made to their last use."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from weft.lang import Application, Graph
from weft.lang.region import arguments
from weft.plan.resharding.reshard import Reshard


class Lives(NamedTuple):
    """The last uses of values."""

    unused: tuple[str, ...]
    """Inputs that nothing uses."""
    ends: tuple[tuple[str, ...], ...]
    """For every application the values whose last use it is."""


def lives(graph: Graph) -> Lives:
    """Return the last uses of the values of a graph; outputs live to the end.

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
    """Return the carried values of a loop that its body returns unchanged."""
    given = [value.name for value in arguments(application, body)]
    triples = enumerate(zip(given, body.outputs, returns))
    return {n for n, (name, output, way) in triples if name == output and not way.steps}


def handed(application: Application, ends: Collection[str], lent: Collection[str]) -> set[int]:
    """Return the initial values whose buffers a loop may reuse, as it is their last use."""
    operands = application.operands
    return {
        number
        for number, name in enumerate(operands[: len(application.results)])
        if name in ends and name not in lent and operands.count(name) == 1
    }
