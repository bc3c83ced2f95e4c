"""What a graph computes, as plain data: the definitions against which a plan is verified.

Everything here follows from the graph and its operators: which operator is applied to which values
in which order, its index space and projections, how it reduces, and over which monoids it
distributes. Nothing of it comes from a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from weft.lang.graph import Application, Graph
from weft.lang.operator import Operator
from weft.lang.signature import Signature
from weft.space import Projection
from weft.values import MONOIDS

Definition = dict[str, Any]


def define(graph: Graph) -> Definition:
    """Return the definition of a graph, those of its regions included.

    >>> from weft import trace
    >>> found = define(trace(lambda x, w: x @ w, (8, 16), (16, 4)))
    >>> found["outputs"], found["applications"][0]["operands"]
    (['matmul'], ['x', 'w'])
    >>> space = found["applications"][0]["space"]
    >>> space["sizes"], space["reduced"], space["distributes"]
    ([8, 4, 16], [[2, 'sum']], [['sum', [0]], ['sum', [1]]])
    """
    return {
        "inputs": [value.name for value in graph.inputs],
        "shapes": {name: list(value.shape) for name, value in graph.values.items()},
        "applications": [
            _application(graph, application, signature)
            for application, signature in zip(graph.applications, graph.signatures)
        ],
        "outputs": list(graph.outputs),
    }


def _application(graph: Graph, application: Application, signature: Signature) -> Definition:
    """Return the definition of one application."""
    operator, values = graph.operators.find(application.operator), graph.values
    dtypes = tuple(values[name].dtype for name in application.operands)
    made = tuple(values[name].dtype for name in application.results)
    return {
        "operator": application.operator,
        "attributes": dict(application.attributes),
        "operands": list(application.operands),
        "results": list(application.results),
        "space": _space(operator, signature, dtypes, made),
        "regions": list(map(define, application.regions)),
    }


@lru_cache(maxsize=4096)
def _space(
    operator: Operator, signature: Signature, dtypes: Sequence[str], made: Sequence[str]
) -> Definition:
    """Return the index space of an application, its projections, and how it reduces.

    `whole` are the index dimensions that no plan may cut, `once` the operands that count once where
    a reduction is cut, and `distributes` the operands that may be partial together, by monoid: the
    results are partial then, and by the same monoid.
    """
    names, notation = list(signature.sizes), signature.notation
    return {
        "sizes": list(signature.sizes.values()),
        "reduced": [[names.index(name), notation.reduced[name]] for name in signature.reduced],
        "whole": sorted(map(names.index, signature.fixed)),
        "once": sorted(notation.once),
        "distributes": _distributes(operator, signature, dtypes, made),
        "reads": [_rows(*pair) for pair in zip(signature.operands, signature.operand_shapes)],
        "makes": [_rows(*pair) for pair in zip(signature.results, signature.result_shapes)],
    }


def _distributes(
    operator: Operator, signature: Signature, dtypes: Sequence[str], made: Sequence[str]
) -> list[list[Any]]:
    """Return the groups of operands over whose parts an operator distributes, by monoid."""
    every = range(len(signature.notation.operands))
    found = [
        [monoid, sorted(every if group is ... else group)]
        for monoid in MONOIDS
        for group in operator.groups(monoid, signature, dtypes, made)
    ]
    return [pair for n, pair in enumerate(found) if pair not in found[:n]]


def _rows(projection: Projection, shape: Sequence[int]) -> Definition:
    """Return a projection onto an array of that shape."""
    return {
        "shape": list(shape),
        "matrix": [list(row) for row in projection.matrix],
        "offset": list(projection.offset),
        "window": list(projection.shape),
    }
