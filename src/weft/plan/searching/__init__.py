"""Search: from a graph, a mesh and a machine to the Pareto front of plans."""

from weft.plan.searching.pareto import ParetoFront
from weft.plan.searching.progress import SearchInterrupted, SearchProgress
from weft.plan.searching.search import search

__all__ = ["ParetoFront", "SearchInterrupted", "SearchProgress", "search"]
