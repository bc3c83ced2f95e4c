"""Search: the plans worth choosing from."""

from weft.plan.search.front import ParetoFront
from weft.plan.search.search import Progress, search

__all__ = ["ParetoFront", "Progress", "search"]
