"""Planning: the shardings that follow from those a person wrote, and the ways between them."""

from weft.plan.chunking import Chunking, choose_storage
from weft.plan.estimate import Cost, estimate
from weft.plan.machine import CellGroup, Link, Machine
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import Propagation
from weft.plan.resharding.reshard import Reshard, plan_reshard
from weft.plan.resharding.step import Step
from weft.plan.searching.cost_strategy import Strategy, propagate
from weft.plan.searching.pareto import ParetoFront
from weft.plan.searching.progress import SearchInterrupted
from weft.plan.searching.search import search
from weft.program.storage import Storage

__all__ = [
    "CellGroup",
    "Chunking",
    "Cost",
    "Link",
    "Machine",
    "ParetoFront",
    "Plan",
    "Propagation",
    "Reshard",
    "SearchInterrupted",
    "Step",
    "Storage",
    "Strategy",
    "choose_storage",
    "estimate",
    "plan_reshard",
    "propagate",
    "search",
]
