"""The places of a large graph at which rewrites may pay, kind by kind.

Applications that are alike, and whose arrays are sharded alike in a plan, are one kind. Of each
kind one is searched by itself: as it is, and with all rewrites and fusions. Where the second is
faster, all of that kind are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from weft.lang import Application, Graph
from weft.lang.fusion import with_applications
from weft.lang.rewrite import Rewrite
from weft.plan.plan import Plan

PartSearch = Callable[[Graph, Graph], Graph | None]
"""Returns a better graph for an application alone, if there is one.

It is given twice: with its result sharded as in the plan, and in any way."""


def rewrite_sites(plan: Plan, rewrites: Sequence[Rewrite], search_part: PartSearch) -> Graph | None:
    """Return the graph with applications rewritten where a part alone is better; None if none is.

    Only applications that see a dimension whole are tried: others can be cut as they are.
    """
    roots = {rewrite.pattern[0] for rewrite in rewrites}
    better: dict[Hashable, Graph | None] = {}
    replaced: dict[int, tuple[Graph, Graph]] = {}
    for number, kind, part, free in _sites(plan, roots):
        if kind not in better:
            better[kind] = search_part(part, free)
        found = better[kind]
        if found is not None:
            replaced[number] = part, found
    return _replace(plan.graph, replaced) if replaced else None


def _sites(plan: Plan, roots: set[str]) -> Iterator[tuple[int, Hashable, Graph, Graph]]:
    """Yield numbers of applications, what those of a kind have in common, and their graphs."""
    graph, values = plan.graph, plan.graph.values
    for number, (application, line) in enumerate(zip(graph.applications, graph.signatures)):
        if application.operator not in roots or len(application.results) != 1:
            continue
        names = list(dict.fromkeys((*application.operands, *application.results)))
        specs = [plan.specs[name] for name in names]
        if not any(line.sizes[name] > 1 for name in line.fixed) or any(s.partial for s in specs):
            continue
        kind = (
            application.operator,
            line,
            repr(sorted(application.attributes.items())),
            tuple(values[name].dtype for name in names),
            tuple(map(names.index, application.operands)),
            tuple(specs),
        )
        fixed, free = (_alone(plan, application, some) for some in (names, names[:-1]))
        yield number, kind, fixed, free


def _alone(plan: Plan, application: Application, sharded: Sequence[str]) -> Graph:
    """Return the graph of one application, with some of its values sharded as in a plan."""
    values = plan.graph.values
    return Graph(
        [values[name] for name in dict.fromkeys(application.operands)],
        [application],
        application.results,
        [str(plan.mesh)],
        {name: str(plan.specs[name]) for name in sharded},
        operators=plan.graph.operators,
        dtypes={n: values[n].dtype for n in (*application.operands, *application.results)},
    )


def _replace(graph: Graph, replaced: Mapping[int, tuple[Graph, Graph]]) -> Graph:
    """Return a graph with applications replaced, each given alone and as what replaces its kind."""
    used, applications = {*graph.values}, list[Application]()
    dtypes = {name: value.dtype for name, value in graph.values.items()}
    for number, application in enumerate(graph.applications):
        if number not in replaced:
            applications.append(application)
            continue
        part, found = replaced[number]
        ends = ([v.name for v in one.inputs] + list(one.outputs) for one in (found, part))
        names = dict(zip(*ends))
        for each in found.applications:
            for name in each.results:
                if name not in names:
                    names[name] = _fresh(name, used)
                    dtypes[names[name]] = found.values[name].dtype
            applications.append(
                each._replace(
                    operands=tuple(names[name] for name in each.operands),
                    results=tuple(names[name] for name in each.results),
                )
            )
    return with_applications(graph, applications, dtypes)


def _fresh(name: str, used: set[str]) -> str:
    fresh, number = name, 1
    while fresh in used:
        number += 1
        fresh = f"{name}_{number}"
    used.add(fresh)
    return fresh
