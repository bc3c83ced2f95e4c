"""What a search proves: a front is called exact only over what was enumerated.

The search space is stated in docs/search.md. A front is exact over the placements of some graphs if
every plan of that space was priced, or left out because a bound proves that another is no worse in
every objective. Whatever was decided otherwise is a reason, in words, why nothing is proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh
from weft.plan.memory import sizes_of
from weft.plan.propagation.shardings import Meshes
from weft.plan.searching.build import LARGE
from weft.plan.searching.choices import MOST, leaves_out
from weft.plan.searching.problem import Problem

NAMED = 4
"""So many names are listed in a reason."""


def unproved(problem: Problem, most: int = MOST) -> list[str]:
    """Return why the enumerated choices of a problem are not its whole search space.

    `most` is how many ways to cut an index space were looked at.

    >>> from weft import Machine, trace
    >>> from weft.plan.searching.build import pose
    >>> graph = trace(lambda x, y: x + y, (8, 8), (8, 8))
    >>> unproved(pose(graph, DeviceMesh("m", (2,), ("x",)), Machine()))
    []
    """
    graph = problem.graph
    found = []
    bodies = [app.results[0] for app in graph.applications if app.regions and app.results]
    if bodies:
        found.append(
            "bodies of loops and branches, and the values that they read and return, were placed "
            f"by propagation and not searched: {_listed(bodies)}"
        )
    groups = [app.operands[0] for app in graph.applications if app.operator == "sharding_group"]
    if groups:
        found.append(f"values in sharding groups were placed by propagation: {_listed(groups)}")
    if len(graph.applications) > LARGE:
        found.append(
            f"the graph has more than {LARGE} applications: equal layers are decided together, and "
            "placements that differ by interchangeable axes or leave many cells idle are left out"
        )
    uncut = [
        *(v.name for v in graph.values.values() if leaves_out(problem.mesh, _sizes(v.shape), most)),
        *(
            app.results[0]
            for app, line in zip(graph.applications, graph.signatures)
            if app.results
            and not app.regions
            and leaves_out(
                problem.mesh,
                {name: size for name, size in line.sizes.items() if name not in line.fixed},
                most,
            )
        ),
    ]
    if uncut:
        names = _listed(dict.fromkeys(uncut))
        found.append(f"small dimensions stayed whole, for there are too many ways to cut: {names}")
    return found


def least_peak(graph: Graph, mesh: DeviceMesh) -> int:
    """Return a lower bound on the bytes of the fullest cell, for every plan of a graph on a mesh.

    Inputs lie on the cells before anything runs, and outputs afterwards, whatever is rewritten,
    fused, cut or looped between. Each is at least once somewhere; one that is written with closed
    dimensions lies as written.

    >>> from weft import trace
    >>> least_peak(trace(lambda x: x[:4] * 1, (1024,)), DeviceMesh("m", (8,), ("x",)))
    512
    """
    inputs = [value.name for value in graph.inputs]
    return max(_spread(graph, mesh, names) for names in (inputs, [*dict.fromkeys(graph.outputs)]))


def _spread(graph: Graph, mesh: DeviceMesh, names: Iterable[str]) -> int:
    meshes, total, held = Meshes(graph), 0, [0] * mesh.size
    for name in names:
        value, text = graph.values[name], graph.shardings.get(name)
        width = itemsize(value.dtype)
        spec = None if text is None else meshes.parse(value, text)
        is_input = any(one.name == name for one in graph.inputs)
        if is_input and spec is not None and not any(dim.is_open for dim in spec.dim_specs):
            sizes = sizes_of(spec, value.shape, width)
            held = [a + b for a, b in zip(held, sizes)] if len(sizes) == len(held) else held
        else:
            total += prod(value.shape) * width
    return max(*held, -(-(sum(held) + total) // mesh.size))


def _sizes(shape: Sequence[int]) -> dict[str, int]:
    return {str(dim): size for dim, size in enumerate(shape)}


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more
