"""The operations of random programs, a module for each kind of them."""

from collections.abc import Callable

from tests.plan.families import contract, lookups, moves, others, pointwise, windows
from tests.plan.writer import Writer

FAMILIES: tuple[Callable[[Writer], None], ...] = tuple(
    family
    for module in (pointwise, contract, moves, windows, lookups, others)
    for family in module.FAMILIES
)
"""One of these is chosen for each operation; some are here several times."""
