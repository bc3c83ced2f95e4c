"""Run a traced program with the arrays that its tracer holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.lang import Graph
from weft.plan import Strategy, propagate
from weft.runtime.execute import run


def run_graph(graph: Graph, arrays: Mapping[str, Any], strategy: Strategy) -> tuple[Any, ...]:
    """Propagate, plan and run a graph; its outputs are tensors."""
    return run(propagate(graph, strategy), arrays)
