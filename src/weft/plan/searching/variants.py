"""Variants: graphs that compute the same values, by rewrites and by fusion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.fusion import ARROW, fusable, fuse
from weft.lang.rewrite import Match, Rewrite, rewrites_in

MAX_VARIANTS = 12

MAX_APPLICATIONS = 200
"""Graphs with more applications are searched only as written."""

EXCLUDED = ("matmul as prod and sum_dim",)
"""Rewrites that fusion undoes before the program runs."""

SMALL = 16
"""Rewrites that allow no new cuts may still save memory: they are tried in graphs of at most so
many applications."""

MAX_FUSIONS = 4
"""All fusions of a variant are searched if there are at most so many; of more, the variant itself
and the one in which everything is fused."""

REWRITES = "rewrites were not tried"
"""The beginning of a reason that is about rewrites only."""


class Variant(NamedTuple):
    """A graph, named by how it was rewritten."""

    name: str
    graph: Graph


class Variants(NamedTuple):
    """The graphs to search, and the reasons why other graphs of the same values are missing."""

    every: list[Variant]
    reasons: list[str]


def variants(graph: Graph, blocks: int, most: int = MAX_VARIANTS) -> list[Variant]:
    """Return the graph as written, with each rewrite where it matches, and each of those fused.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x, w: ops.softmax(ops.relu(x @ w)), (8, 4), (4, 4))
    >>> [variant.name for variant in variants(graph, 2, most=4)]
    ['as written', 'fused', 'softmax in stages', 'softmax in stages, fused']
    """
    rewritten = [Variant("as written", graph)]
    if len(graph.applications) > MAX_APPLICATIONS:
        return rewritten
    for variant in rewritten:
        for rewrite in rewrites_in(blocks):
            if rewrite.name in variant.name or rewrite.name in EXCLUDED:
                continue
            for again in _rewritten(variant, rewrite):
                if len(rewritten) < (most + 1) // 2 and again.graph not in [
                    v.graph for v in rewritten
                ]:
                    rewritten.append(again)
    every = [both for variant in rewritten for both in _with_fused(variant)][:most]
    more = [other for variant in rewritten for other in _partly_fused(variant, every)]
    return every + more if len(every) + len(more) <= most else every


def enumerate_variants(graph: Graph, blocks: int, rewrite: bool) -> Variants:
    """Return the graphs to search, and the rewrites and fusions that they leave out.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x, y: ops.softmax(x) + ops.softmax(y), (4, 8), (4, 8))
    >>> enumerate_variants(graph, 2, rewrite=True).reasons[1]
    'fusions were tried all together or not at all'
    """
    every = variants(graph, blocks) if rewrite else [Variant("as written", graph)]
    if len(graph.applications) > MAX_APPLICATIONS:
        what = "rewrites and fusions were" if rewrite else "fusions were"
        return Variants(
            every, [f"{what} not tried: the graph has more than {MAX_APPLICATIONS} applications"]
        )
    return Variants(every, _left_out([variant.graph for variant in every], blocks, rewrite))


def _left_out(graphs: Sequence[Graph], blocks: int, rewrite: bool) -> list[str]:
    """Return why the graphs are not closed under rewrites and fusion.

    They are closed if every rewrite and every fusion of each of them is another of them.
    """
    reasons = []
    if rewrite:
        missing = [
            one.name
            for one in rewrites_in(blocks)
            if one.name not in EXCLUDED
            and any(again not in graphs for again in _rewritten_once(graphs, one))
        ]
        if missing:
            where = "at every place by itself, or again on their own results"
            reasons.append(f"{REWRITES} {where}: {', '.join(missing)}")
    if any(fuse(graph, name) not in graphs for graph in graphs for name in fusable(graph)):
        tried = "tried all together or not at all" if rewrite else "not tried in the search"
        reasons.append(f"fusions were {tried}")
    return reasons


def _rewritten_once(graphs: Iterable[Graph], rewrite: Rewrite) -> Iterator[Graph]:
    """Yield the graphs that result from one rewrite at one place."""
    for graph in graphs:
        for match in rewrite.matches(graph):
            yield rewrite.apply(graph, match.root)


def _rewritten(variant: Variant, rewrite: Rewrite) -> Iterator[Variant]:
    """Yield the variant with every match rewritten and, of two or three, with each alone."""
    matches = list(rewrite.matches(variant.graph))
    roots = [match.root for match in matches]
    if not roots:
        return
    has_new_cuts = any(_allows_new_cuts(variant.graph, match) for match in matches)
    prefix = "" if variant.name == "as written" else f"{variant.name}, "
    graph = variant.graph
    for root in roots:
        try:
            graph = rewrite.apply(graph, root)
        except WeftError:  # an earlier rewrite replaced a part of this match
            continue
    if has_new_cuts or len(graph.applications) <= SMALL:
        yield Variant(prefix + rewrite.name, graph)
    if 1 < len(roots) <= 3:
        for root in roots:
            graph = rewrite.apply(variant.graph, root)
            if has_new_cuts or len(graph.applications) <= SMALL:
                yield Variant(f"{prefix}{rewrite.name} ({root})", graph)


def _allows_new_cuts(graph: Graph, match: Match) -> bool:
    """Whether a rewrite allows new cuts.

    It does where several applications become one, or one that needs a whole dimension is split.
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


def _partly_fused(variant: Variant, known: Sequence[Variant]) -> list[Variant]:
    """Return the other fusions of a variant, if there are few."""
    graphs, seen = [variant.graph], [one.graph for one in known]
    for graph in graphs:
        for name in fusable(graph):
            fused = fuse(graph, name)
            if fused not in graphs:
                graphs.append(fused)
            if len(graphs) > MAX_FUSIONS:
                return []
    prefix = "" if variant.name == "as written" else f"{variant.name}, "
    return [
        Variant(f"{prefix}fused as {_fused_names(graph)}", graph)
        for graph in graphs
        if graph not in seen
    ]


def _fused_names(graph: Graph) -> str:
    names = [one.operator for one in graph.applications if ARROW in one.operator]
    return " and ".join(names)
