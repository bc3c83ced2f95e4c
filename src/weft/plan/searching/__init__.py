"""Search: the plans worth choosing from."""

from weft.plan.searching.front import ParetoFront
from weft.plan.searching.interrupted import SearchInterrupted
from weft.plan.searching.progress import Progress
from weft.plan.searching.search import search

__all__ = ["ParetoFront", "Progress", "SearchInterrupted", "search"]
