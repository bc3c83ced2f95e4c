"""`on_mesh`: the graph that a search is for, annotated on its mesh and on no other."""

from __future__ import annotations

from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import DeviceMesh


def on_mesh(graph: Graph, mesh: DeviceMesh) -> Graph:
    """The graph, with the mesh that it is planned for as its only one with axes."""
    named = list(map(DeviceMesh.parse, graph.meshes))
    for other in named:
        if other.shape and other != mesh:
            raise WeftError(f"the graph is annotated on {other}, and the search is for {mesh}")
    if mesh in named:
        return graph
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [*graph.meshes, str(mesh)],
        graph.shardings,
        graph.output_shardings,
        graph.operators,
        {name: value.dtype for name, value in graph.values.items()},
        graph.parameters,
    )
