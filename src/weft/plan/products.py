"""Products before their sum are never made in full: they are fused with what reduces them.

`prod_of` makes a product for every point of an index space, far more than what it is made of or
what becomes of it. Each of its consumers gets products of its own, fused; where that cannot be, and
they would be too many to hold, the plan is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.lang import Application
from weft.lang.fusion import ARROW, with_applications
from weft.lang.operators.contract import LARGEST_PRODUCT, too_many_products
from weft.plan.fuse import fuse_plan
from weft.plan.placed import Placed
from weft.plan.resharding.counts import sizes_of
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.plan.plan import Plan

PRODUCTS = "prod_of"


def without_products(plan: Plan) -> Plan:
    """Return the plan with large products fused into the reductions that consume them."""
    if not any(application.operator == PRODUCTS for application, _ in plan.graph.walk()):
        return plan
    fused, before = fuse_plan(_apart(plan), where=_are_products), plan
    while fused is not before:
        before, fused = fused, fuse_plan(_apart(fused), where=_are_products)
    for name, size in _in_full(fused):
        raise too_many_products(name, size)
    return fused


def _are_products(made: Application, user: Application) -> bool:
    """Whether an application makes products that are not reduced yet."""
    first, *rest = made.operator.split(ARROW)
    return first == PRODUCTS and not any(map(_reduces, rest))


def _reduces(operator: str) -> bool:
    return operator.partition("@")[0].endswith("_dim") or operator.startswith("reduce")


def _in_full(plan: Plan) -> Iterator[tuple[str, int]]:
    """Return the products that take too much memory, with their bytes on the fullest cell."""
    for number, application in enumerate(plan.graph.applications):
        if _are_products(application, application):
            (name,) = application.results
            (spec,), shape = plan.placed[number].results, plan.graph.values[name].shape
            size = max(sizes_of(spec, shape, plan.itemsize(name)))
            if size > LARGEST_PRODUCT:
                yield name, size
        for inner in plan.regions.get(number, ()):
            yield from _in_full(inner)


def _apart(plan: Plan) -> Plan:
    """Return the plan in which every consumer of products computes its own."""
    graph = plan.graph
    uses = Counter(name for a in graph.applications for name in a.operands)
    kept = {*graph.outputs, *graph.shardings}
    shared = {
        name: number
        for number, application in enumerate(graph.applications)
        for name in application.results
        if _are_products(application, application) and uses[name] > 1 and name not in kept
    }
    if not shared:
        return plan
    names, specs = set(graph.all_values), dict(plan.specs)
    rows: list[tuple[Application, Placed]] = []
    regions = {}
    for number, application in enumerate(graph.applications):
        new = dict[str, str]()
        for name in dict.fromkeys(application.operands):
            if name in shared and uses[name] > application.operands.count(name) == 1:
                first, placed = graph.applications[shared[name]], plan.placed[shared[name]]
                new[name] = _free(name, names)
                uses[name] -= 1
                (specs[new[name]],) = placed.results
                rows.append((first._replace(results=(new[name],)), placed))
        if number in plan.regions:
            regions[len(rows)] = plan.regions[number]
        operands = tuple(new.get(name, name) for name in application.operands)
        rows.append((application._replace(operands=operands), plan.placed[number]))
    made = with_applications(graph, [application for application, _ in rows])
    return replace(
        plan,
        graph=made,
        specs=FrozenMap((name, specs[name]) for name in made.values),
        placed=tuple(placed for _, placed in rows),
        regions=FrozenMap(regions.items()),
    )


def _free(name: str, names: set[str]) -> str:
    """Return an unused name that resembles another."""
    number = 1
    while f"{name}_{number}" in names:
        number += 1
    names.add(f"{name}_{number}")
    return f"{name}_{number}"
