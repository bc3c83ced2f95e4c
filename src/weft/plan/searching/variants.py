"""Variants: the graphs that make the same values, by rewrites and by fusion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.fusion import fusable, fuse
from weft.lang.rewrite import Match, Rewrite
from weft.lang.rewrites import rewrites_in

MOST = 12
"""The most variants of one graph that are looked at."""

LARGE = 200
"""Graphs with more applications are taken as they are written."""


LITERAL = ("matmul as prod and sum_dim",)
"""What is fused back into what it was before it runs."""

SMALL = 16
"""Where parts can be cut no better than the whole, they may still need less room: they are looked
at in graphs of so few applications."""


class Variant(NamedTuple):
    """A graph, and how it came from the one that was written."""

    name: str
    graph: Graph


def variants(graph: Graph, blocks: int, most: int = MOST) -> list[Variant]:
    """The graph as it is written, with each rewrite where it fits, and each of those fused.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x, w: ops.softmax(ops.relu(x @ w)), (8, 4), (4, 4))
    >>> [variant.name for variant in variants(graph, 2, most=4)]
    ['as written', 'fused', 'softmax in stages', 'softmax in stages, fused']
    """
    found = [Variant("as written", graph)]
    if len(graph.applications) > LARGE:
        return found
    for variant in found:
        for rewrite in rewrites_in(blocks):
            if rewrite.name in variant.name or rewrite.name in LITERAL:
                continue
            for again in _rewritten(variant, rewrite):
                if len(found) < (most + 1) // 2 and again.graph not in [v.graph for v in found]:
                    found.append(again)
    return [both for variant in found for both in _with_fused(variant)][:most]


def _rewritten(variant: Variant, rewrite: Rewrite) -> Iterator[Variant]:
    """Every match rewritten; and if there are two or three, each alone."""
    matches = list(rewrite.matches(variant.graph))
    roots = [match.root for match in matches]
    if not roots:
        return
    opens = any(_opens(variant.graph, match) for match in matches)
    written = "" if variant.name == "as written" else f"{variant.name}, "
    graph = variant.graph
    for root in roots:
        try:
            graph = rewrite.apply(graph, root)
        except WeftError:  # an earlier one took a part of this
            continue
    if opens or len(graph.applications) <= SMALL:
        yield Variant(written + rewrite.name, graph)
    if 1 < len(roots) <= 3:
        for root in roots:
            graph = rewrite.apply(variant.graph, root)
            if opens or len(graph.applications) <= SMALL:
                yield Variant(f"{written}{rewrite.name} ({root})", graph)


def _opens(graph: Graph, match: Match) -> bool:
    """Whether there are ways to cut that were not there before.

    Several applications become one, or one that needs a dimension whole is taken apart.
    """
    if len(match.applications) > 1:
        return True
    signature = graph.signatures[graph.applications.index(match.applications[0])]
    return any(signature.sizes[name] > 1 for name in signature.fixed)


def _with_fused(variant: Variant) -> Iterator[Variant]:
    yield variant
    graph = variant.graph
    while names := fusable(graph):
        graph = fuse(graph, names[0])
    if graph is not variant.graph:
        name = "fused" if variant.name == "as written" else f"{variant.name}, fused"
        yield Variant(name, graph)
