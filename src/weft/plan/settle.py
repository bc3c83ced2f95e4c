"""`propagate`: conflicts settled by a rule, as Shardy does it, or by what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from random import Random
from typing import Literal, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import kept_of
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import (
    Propagation,
    Settled,
    ShardyStrategy,
    propagate_like_shardy,
)
from weft.plan.resharding.reshard import check_machine
from weft.plan.searching.ahead import Goal
from weft.plan.searching.build import LARGE, Builder
from weft.plan.searching.claim import unproved
from weft.plan.searching.exact import TooWideError, sweep
from weft.plan.searching.layers import share
from weft.plan.searching.model import Model
from weft.plan.searching.problem import Problem
from weft.plan.searching.ranked import ranked
from weft.plan.searching.scout import Scout
from weft.values import FrozenMap

Strategy: TypeAlias = ShardyStrategy | Literal["cost"]
"""How propagation settles conflicts: by one of four rules, or by what moves the fewest bytes."""

RULES: tuple[ShardyStrategy, ...] = ("user_priority", "op_priority", "aggressive", "basic")
"""The strategies whose plans are looked at, the usual one first."""

WIDTH = 50_000
"""The most partial plans that are kept before descent has the last word."""

TRIES = 1_000_000
"""The most partial plans that are priced before descent has the last word."""

WORK = 300_000
"""The most pairs of choices that are priced; where there are more, fewer choices are looked at."""

EFFORTS = ((True, 512), (False, 512), (False, 128), (False, 32), (False, 8))
"""What is tried until the work is bounded: whether operands may stay partial, and how many ways to
cut an index space are looked at."""

BYTES = Goal(time=False, received=True, memory=False)


def propagate(
    graph: Graph, strategy: Strategy = "user_priority", machine: Machine | None = None
) -> Propagation:
    r"""Propagate the shardings on a graph's values to all of them, forwards and backwards.

    Four strategies build on each other, as Shardy's passes do: `basic` takes what nothing objects
    to, `aggressive` settles conflicts for the larger tensor, `op_priority` goes through pointwise
    operators first, `user_priority` propagates what users gave priority 0 first, then 1 and so on.
    The priorities that users wrote (`p1`) count only in `user_priority`, the default, and in
    `cost`; `basic`, `aggressive` and `op_priority` ignore them, as in Shardy.

    `cost` looks at all placements that agree with what is written, and takes the plan that moves
    the fewest bytes; of several the one that takes the least time on the machine, then the one
    that leaves the least to the busiest cell. It never moves more than `user_priority`, and where
    all priorities are equal never more than the other three. Where they differ, a lower number
    wins as in `user_priority`: what follows from all but the last priority is kept, and only the
    rest is chosen by cost. Regions, and the values that they see, lie as in `user_priority`; of a
    graph on several meshes, or on none, `cost` is the best of the four.
    The work is bounded: where there are too many placements fewer are looked at, and
    `settled.reasons` of the result says so, as does `explain`.

    >>> from weft import Plan, trace
    >>> graph = trace(
    ...     lambda x, w, b: x @ w + b, (8, 16), (16, 4), (8, 4), names=["x", "w", "b"],
    ...     meshes=['@m = <["x"=4]>'],
    ...     shardings={"x": '<@m, [{}, {"x"}]>', "b": '<@m, [{"x"}, {}]>'},
    ... )
    >>> sum(Plan.of(propagate(graph)).received)
    1152
    >>> found = propagate(graph, strategy="cost")
    >>> sum(Plan.of(found).received)
    384
    >>> print(*found.explain("w", 0), sep="\n")
    w dimension 0 is cut by "x"
      chosen by cost: 384 B move, 1152 B as propagation would have it
    """
    return propagate_like_shardy(graph, strategy) if strategy != "cost" else _settle(graph, machine)


def _settle(graph: Graph, machine: Machine | None) -> Propagation:
    """The cheapest plan; those of the other strategies are looked at for what no choice offers.

    On several meshes, or on none, there are no others.
    """
    last = _last_priority(graph)
    every = [propagate_like_shardy(graph, rule) for rule in (RULES if last is None else RULES[:1])]
    known = [(_moved(partial(Plan.of, one, machine)), one) for one in every]
    before, usual = known[0]
    if sum(bool(mesh.shape) for mesh in usual.meshes) == 1:
        fixed = graph if last is None else _with_priorities(graph, last)
        problem, reasons = _pose(fixed, usual.mesh, machine)
        found, more = _cheapest(problem)
        plan = replace(problem.plan(found), graph=graph)
        moved = _moved(lambda: plan)
        if moved < inf:
            known.insert(0, (moved, _propagation(usual, plan, moved, before, reasons + more)))
    return min(known, key=lambda pair: pair[0])[1]


def _last_priority(graph: Graph) -> int | None:
    """The highest priority of axes that are written; None where all are equal."""
    meshes = list(map(DeviceMesh.parse, graph.meshes))
    texts = (*graph.shardings.values(), *graph.output_shardings.values())
    levels = {
        dim.priority
        for text in texts
        for dim in ShardingSpec.parse(text, meshes).dim_specs
        if dim.axes
    }
    return max(levels) if len(levels) > 1 else None


def _with_priorities(graph: Graph, last: int) -> Graph:
    """The graph with what follows from all but the last priority written on its values."""
    found = propagate_like_shardy(graph, below=last)
    followed = {
        name: str(ShardingSpec(spec.mesh, spec.dim_specs))
        for name in graph.values
        if name not in graph.shardings
        for spec in [found.specs[name]]
        if any(dim.axes for dim in spec.dim_specs)
    }
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        graph.meshes,
        {**graph.shardings, **followed},
        graph.output_shardings,
        graph.operators,
        {name: value.dtype for name, value in graph.values.items()},
    )


def _moved(make: Callable[[], Plan]) -> float:
    """The bytes that a plan moves; without end where there is none, as on two meshes at once."""
    try:
        return sum(make().received)
    except WeftError:
        return inf


def _pose(
    graph: Graph, mesh: DeviceMesh, machine: Machine | None
) -> tuple[Problem, tuple[str, ...]]:
    """Return the problem with as many choices as the work allows, and what it leaves out."""
    check_machine(machine or Machine(), [mesh])
    for thorough, most in EFFORTS:
        builder = Builder(graph, mesh, machine, thorough, has_room=False, most=most)
        if builder.work() <= WORK:
            break
    problem = builder.problem()
    reasons = unproved(problem, most)
    if not builder.thorough:
        reasons.append("operands that stay partial were not tried")
    return problem, tuple(reasons)


def _cheapest(problem: Problem) -> tuple[list[int], tuple[str, ...]]:
    """Return the choices that cost least, and why that is not proved; empty if it is."""
    one, is_large = ranked(problem), len(problem.graph.applications) > LARGE
    model = Model(one, share(problem) if is_large else range(len(problem.decisions)))
    scout = Scout(model, BYTES, Random(0))
    scout.fastest()
    known = [problem.start, *map(model.found, scout.found)]
    best = min(known, key=lambda found: one.price(found).received)
    if is_large:
        return best, ()  # the problem itself says why
    try:
        return sweep(one, BYTES, [best], WIDTH, TRIES)[0], ()
    except TooWideError:
        return best, ("descent looks at some plans, not at all",)


def _propagation(
    usual: Propagation, plan: Plan, moved: float, before: float, reasons: tuple[str, ...]
) -> Propagation:
    """What a plan says of every value, in the form of a propagation."""
    graph = plan.graph
    specs = {
        name: _said(plan.specs[name], spec, name in graph.shardings) if name in plan.specs else spec
        for name, spec in usual.specs.items()
    }
    outputs = zip(plan.outputs, usual.output_specs)
    placements = tuple(placed.placement for placed in plan.placed)
    made = {
        name: spec.partial
        for application, placed in zip(graph.applications, plan.placed)
        for name, spec in zip(application.results, placed.results)
    }
    inner = {name: parts for name, parts in usual.partials.items() if name not in made}
    return replace(
        usual,
        specs=specs,
        output_specs=tuple(_said(spec, old, True) for spec, old in outputs),
        placements=placements,
        all_placements=tuple(_in_order(graph, placements, usual)),
        partials=inner | {name: parts for name, parts in made.items() if parts},
        settled=Settled(
            FrozenMap(plan.specs.items()),
            tuple(FrozenMap(kept_of(placed).items()) for placed in plan.placed),
            moved,
            before,
            reasons if moved else (),
        ),
    )


def _said(spec: ShardingSpec, usual: ShardingSpec, is_written: bool) -> ShardingSpec:
    """A sharding as propagation says it: open where it is open, partial where it is written."""
    pairs = zip(spec.dim_specs, usual.dim_specs)
    dims = [DimSpec(dim.axes, old.is_open) for dim, old in pairs]
    if is_written:
        return ShardingSpec(spec.mesh, dims, usual.replicated_axes, spec.partial)
    return ShardingSpec(spec.mesh, dims)


def _in_order(
    graph: Graph, placements: tuple[Mapping[str, tuple[Axis, ...]], ...], usual: Propagation
) -> Iterator[Mapping[str, tuple[Axis, ...]]]:
    """The placements of all applications, those of regions as they were."""
    before = iter(usual.all_placements)
    for application, placement in zip(graph.applications, placements):
        next(before)
        yield placement
        yield from islice(before, sum(len(list(region.walk())) for region in application.regions))
