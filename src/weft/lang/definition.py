"""What a graph computes: the definitions against which a program is verified.

Everything here follows from the graph and its operators: which operator is applied to which values
in which order, its index space and projections, how it reduces, and over which monoids it
distributes. Nothing of it comes from a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from weft.lang.graph import Application, Graph
from weft.lang.operator import Operator
from weft.lang.signature import Signature
from weft.program.instructions import Definition, GraphDefinition, IndexSpace
from weft.values import MONOIDS, Point


def define(graph: Graph) -> GraphDefinition:
    """Return the definition of a graph, those of its regions included.

    >>> from weft import trace
    >>> found = define(trace(lambda x, w: x @ w, (8, 16), (16, 4)))
    >>> found.outputs, found.applications[0].operands
    (('matmul',), ('x', 'w'))
    >>> space = found.applications[0].space
    >>> space.sizes, space.reduced, sorted(space.distributes)
    ((8, 4, 16), ((2, 'sum'),), [('sum', (0,)), ('sum', (1,))])
    """
    return GraphDefinition(
        tuple(value.name for value in graph.inputs),
        {name: value.shape for name, value in graph.values.items()},
        tuple(
            map(
                _definition, [graph] * len(graph.applications), graph.applications, graph.signatures
            )
        ),
        tuple(graph.outputs),
        monoids_of(graph),
    )


def monoids_of(graph: Graph) -> dict[str, object]:
    """Return the definitions of the monoids by which a graph reduces, where they are a user's.

    Those of its regions are among them.
    """
    names = {m for _, line in graph.walk() for m in line.notation.reduced.values()}
    found = {name: MONOIDS.get(name) for name in sorted(names)}
    return {name: monoid for name, monoid in found.items() if monoid is not None}


def _definition(graph: Graph, application: Application, signature: Signature) -> Definition:
    operator, values = graph.operators.find(application.operator), graph.values
    dtypes = tuple(values[name].dtype for name in application.operands)
    made = tuple(values[name].dtype for name in application.results)
    return Definition(
        application.operator,
        application.attributes,
        tuple(application.operands),
        tuple(application.results),
        _space(operator, signature, dtypes, made, tuple(MONOIDS)),
        tuple(map(define, application.regions)),
    )


@lru_cache(maxsize=4096)
def _space(
    operator: Operator,
    signature: Signature,
    dtypes: tuple[str, ...],
    made: tuple[str, ...],
    monoids: tuple[str, ...],
) -> IndexSpace:
    names, notation = list(signature.sizes), signature.notation
    return IndexSpace(
        tuple(signature.sizes.values()),
        tuple((names.index(name), notation.reduced[name]) for name in signature.reduced),
        tuple(sorted(map(names.index, signature.fixed))),
        frozenset(notation.once),
        frozenset(_distributes(operator, signature, dtypes, made, monoids)),
        tuple(zip(signature.operands, signature.operand_shapes)),
        tuple(zip(signature.results, signature.result_shapes)),
    )


def _distributes(
    operator: Operator,
    signature: Signature,
    dtypes: tuple[str, ...],
    made: tuple[str, ...],
    monoids: tuple[str, ...],
) -> Iterator[tuple[str, Point]]:
    """Return the groups of operands over whose parts an operator distributes, by monoid."""
    every = range(len(signature.notation.operands))
    for monoid in monoids:
        for group in operator.groups(monoid, signature, dtypes, made):
            yield monoid, tuple(sorted(every if group is ... else group))
