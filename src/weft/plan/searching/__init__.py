"""Search: the plans worth choosing from."""

from weft.plan.searching.front import ParetoFront
from weft.plan.searching.search import Progress, search

__all__ = ["ParetoFront", "Progress", "search"]
