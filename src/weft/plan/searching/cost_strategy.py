"""`propagate`: Shardy's strategies, and `cost`, which resolves conflicts by the bytes that move.

The cost strategy is a search with a lexicographic objective: bytes, then time, then the work of the
busiest cell. The three are packed into one integer, in which a unit of one is more than the sum of
all that follows it, so that the searches for one objective apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from random import Random
from typing import Literal, TypeAlias, TypeVar

from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan.machine import Machine
from weft.plan.placed import Placed, kept_of
from weft.plan.plan import Plan
from weft.plan.propagation.cut_points import CutPoints
from weft.plan.propagation.propagate import (
    Propagation,
    Settled,
    ShardyStrategy,
    propagate_like_shardy,
)
from weft.plan.resharding.reshard import check_machine
from weft.plan.searching.bounds import Goal
from weft.plan.searching.branch_and_bound import TooWideError, exact_front
from weft.plan.searching.build import LARGE, ProblemBuilder, omitted_options
from weft.plan.searching.choice_graph import assignment_of, choices_of
from weft.plan.searching.local_search import LocalSearch
from weft.plan.searching.prices import MoveCost, OptionCost
from weft.plan.searching.problem import (
    Decision,
    DecisionClasses,
    PairCost,
    Problem,
    Table,
    equivalence_classes,
)
from weft.values import FrozenMap

T = TypeVar("T")

Strategy: TypeAlias = ShardyStrategy | Literal["cost"]
"""How propagation resolves conflicts: as one of Shardy's passes, or by cost."""

SHARDY_STRATEGIES: tuple[ShardyStrategy, ...] = (
    "user_priority",
    "op_priority",
    "aggressive",
    "basic",
)

MAX_PARTIAL_PLANS = 50_000
"""The most partial plans that branch and bound keeps before local search has the last word."""

MAX_TRIES = 1_000_000
"""The most partial plans that it prices before local search has the last word."""

MAX_WORK = 300_000
"""The most pairs of options that are priced; where there are more, fewer options are tried."""

EFFORTS = ((True, 512), (False, 512), (False, 128), (False, 32), (False, 8))
"""Tried until the work is bounded: whether operands may stay partial, and the most ways to cut an
index space."""

BYTES = Goal(time=False, received=True, memory=False)

BITS = 40
"""Time and work are each counted in units of 2**-BITS of their largest possible sum."""


def propagate(
    graph: Graph,
    strategy: Strategy = "user_priority",
    machine: Machine | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Propagation:
    r"""Propagate the shardings on a graph's values to all of them, forwards and backwards.

    Four strategies build on each other, as Shardy's passes do: `basic` takes only axes without a
    conflict, `aggressive` resolves conflicts for the larger tensor, `op_priority` goes through
    pointwise operators first, `user_priority` propagates user priority 0 first, then 1 and so on.
    The priorities that users wrote (`p1`) count only in `user_priority`, the default, and in
    `cost`; `basic`, `aggressive` and `op_priority` ignore them, as in Shardy.

    `cost` considers all placements that agree with the annotations, and takes the plan that moves
    the fewest bytes; of several the one that takes the least time on the machine, then the one
    with the least work for the busiest cell. It never moves more than `user_priority`, and where
    all priorities are equal never more than the other three. Where they differ, a lower number
    wins as in `user_priority`: what follows from all but the last priority is kept, and only the
    rest is chosen by cost. Regions, and the values that they read, are sharded as in
    `user_priority`; for a graph on several meshes, or on none, `cost` is the best of the four.
    The work is bounded: where there are too many placements fewer are tried, and
    `settled.reasons` of the result says so, as does `explain`.

    `sizes` are numbers for sizes of the graph that are not known; only `cost` needs them. An axis
    that is not known to divide a factor inside a dimension stops there.

    >>> from weft import Plan, trace
    >>> graph = trace(
    ...     lambda x, w, b: x @ w + b, (8, 16), (16, 4), (8, 4), names=["x", "w", "b"],
    ...     meshes=['@m = <["x"=4]>'],
    ...     shardings={"x": '<@m, [{}, {"x"}]>', "b": '<@m, [{"x"}, {}]>'},
    ... )
    >>> sum(Plan.of(propagate(graph)).received)
    1152
    >>> result = propagate(graph, strategy="cost")
    >>> sum(Plan.of(result).received)
    384
    >>> print(*result.explain("w", 0), sep="\n")
    w dimension 0 is cut by "x"
      chosen by cost: 384 B move, 1152 B as propagation would have it
    """
    if not isinstance(graph, Graph):
        raise WeftError(f"propagate takes a graph, got {graph!r}", hint="weft.trace(function, ...)")
    if sizes:
        graph = graph.bind(sizes)
    if strategy != "cost":
        return propagate_like_shardy(graph, strategy)
    graph.check_bound("the strategy 'cost'")
    last = _last_priority(graph)
    strategies = SHARDY_STRATEGIES if last is None else SHARDY_STRATEGIES[:1]
    every = [propagate_like_shardy(graph, one) for one in strategies]
    candidates = [(_moved_bytes(partial(Plan.of, one, machine)), one) for one in every]
    usual_bytes, usual = candidates[0]
    if sum(bool(mesh.shape) for mesh in usual.meshes) == 1:
        fixed = graph if last is None else _with_priorities(graph, last)
        problem, omitted = _build_problem(fixed, usual.mesh, machine)
        assignment, unproved = cheapest(problem)
        plan = replace(problem.plan(assignment), graph=graph)
        moved = _moved_bytes(lambda: plan)
        if moved < inf:
            reasons = (*omitted, *unproved)
            candidates.insert(0, (moved, _propagation(usual, plan, moved, usual_bytes, reasons)))
    return min(candidates, key=lambda pair: pair[0])[1]


def _last_priority(graph: Graph) -> int | None:
    """Return the highest priority of annotated axes; None where all are equal."""
    meshes = list(map(DeviceMesh.parse, graph.meshes))
    texts = (*graph.shardings.values(), *graph.output_shardings.values())
    dims = (dim for text in texts for dim in ShardingSpec.parse(text, meshes).dim_specs)
    levels = {dim.priority for dim in dims if dim.axes}
    return max(levels) if len(levels) > 1 else None


def _with_priorities(graph: Graph, last: int) -> Graph:
    """Return the graph annotated with what follows from all but the last priority."""
    specs = propagate_like_shardy(graph, below=last).specs
    followed = {
        name: str(ShardingSpec(specs[name].mesh, specs[name].dim_specs))
        for name in graph.values
        if name not in graph.shardings and any(dim.axes for dim in specs[name].dim_specs)
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


def _moved_bytes(make: Callable[[], Plan]) -> float:
    """Return the bytes that a plan moves; infinity where there is none, as on two meshes."""
    try:
        return sum(make().received)
    except WeftError:
        return inf


def _build_problem(
    graph: Graph, mesh: DeviceMesh, machine: Machine | None
) -> tuple[Problem, list[str]]:
    """Return the problem with as many options as the work allows, and what it leaves out."""
    check_machine(machine or Machine(), [mesh])
    for thorough, max_cuts in EFFORTS:
        builder = ProblemBuilder(
            graph, mesh, machine, thorough, with_memory=False, max_cuts=max_cuts
        )
        if builder.work() <= MAX_WORK:
            break
    problem = builder.problem()
    reasons = omitted_options(problem.graph, mesh, max_cuts)
    if not builder.thorough:
        reasons.append("operands that stay partial were not tried")
    return problem, reasons


def cheapest(problem: Problem) -> tuple[list[int], list[str]]:
    """Return the cheapest assignment, and why that is not proved; empty if it is."""
    packed, is_large = lexicographic(problem), len(problem.graph.applications) > LARGE
    classes = DecisionClasses(packed, equivalence_classes(problem) if is_large else None)
    local = LocalSearch(classes, BYTES, Random(0))
    local.minimize()
    known = [problem.start, *map(classes.assignment, local.solutions)]
    best = min(known, key=lambda one: packed.cost(one).received)
    if is_large:
        return best, []  # `omitted_options` has the reason
    point = (0.0, 0, packed.cost(best).received)
    try:
        front = exact_front(choices_of(packed), BYTES, [point], MAX_PARTIAL_PLANS, MAX_TRIES)
        return (assignment_of(problem, *front[0][1:]) if front else best), []
    except TooWideError:
        return best, ["descent looks at some plans, not at all"]


def _propagation(
    usual: Propagation, plan: Plan, moved: float, usual_bytes: float, reasons: tuple[str, ...]
) -> Propagation:
    """Return a plan in the form of a propagation."""
    graph = plan.graph
    specs = {
        name: _opened(plan.specs[name], spec, name in graph.shardings)
        if name in plan.specs
        else spec
        for name, spec in usual.specs.items()
    }
    placements = tuple(placed.placement for placed in plan.placed)
    result_partials = {
        name: spec.partial
        for application, placed in zip(graph.applications, plan.placed)
        for name, spec in zip(application.results, placed.results)
    }
    inner = {name: parts for name, parts in usual.partials.items() if name not in result_partials}
    return replace(
        usual,
        specs=specs,
        output_specs=tuple(
            _opened(spec, old, True) for spec, old in zip(plan.outputs, usual.output_specs)
        ),
        placements=placements,
        all_placements=tuple(_with_regions(graph, placements, usual.all_placements)),
        cut_points=_cut_points(plan, usual),
        partials=inner | {name: parts for name, parts in result_partials.items() if parts},
        settled=Settled(
            FrozenMap(plan.specs.items()),
            tuple(FrozenMap(kept_of(placed).items()) for placed in plan.placed),
            moved,
            usual_bytes,
            reasons if moved else (),
        ),
    )


def _opened(spec: ShardingSpec, usual: ShardingSpec, is_annotated: bool) -> ShardingSpec:
    """Return a sharding with the open dimensions of propagation, partial only where annotated."""
    pairs = zip(spec.dim_specs, usual.dim_specs)
    dims = [
        DimSpec(dim.axes, old.is_open and dim.cut_points is None, cut_points=dim.cut_points)
        for dim, old in pairs
    ]
    if is_annotated:
        return ShardingSpec(spec.mesh, dims, usual.replicated_axes, spec.partial)
    return ShardingSpec(spec.mesh, dims)


def _cut_points(plan: Plan, usual: Propagation) -> tuple[CutPoints, ...]:
    """Return the cut points of all applications; empty if there are none."""
    own = [
        {name: dim.cut_points for name, dim in placed.cuts.items() if dim.cut_points is not None}
        for placed in plan.placed
    ]
    if not any(own) and not usual.cut_points:
        return ()
    every = usual.cut_points or ({},) * len(usual.all_placements)
    return tuple(_with_regions(plan.graph, own, every))


def _with_regions(graph: Graph, placements: Sequence[T], usual: Iterable[T]) -> Iterator[T]:
    """Yield the placements of all applications, those of regions as propagation has them."""
    before = iter(usual)
    for application, placement in zip(graph.applications, placements):
        next(before)
        yield placement
        yield from islice(before, sum(len(list(region.walk())) for region in application.regions))


def lexicographic(problem: Problem) -> Problem:
    """Return the problem with one cost: bytes, then seconds, then work, packed into an integer.

    Work is what the busiest cell computes, in points of an index space, and what the fullest holds,
    in bytes.
    """
    share = 1.0 - problem.machine.overlap

    def seconds(cost: OptionCost) -> float:
        return cost.compute + share * cost.communicate

    def work(decision: Decision) -> list[int]:
        if isinstance(decision.subject, int):
            placed = [one for one in decision.options if isinstance(one, Placed)]
            return [max((box.size for box in one.boxes), default=0) for one in placed]
        return [max(size, default=0) for size in problem.values[decision.subject].sizes]

    works = [work(decision) for decision in problem.decisions]
    tables = {id(pair.table): pair.table for pair in problem.pairs}
    slowest = {
        key: share * max((move.seconds for row in table for move in row), default=0.0)
        for key, table in tables.items()
    }
    all_work = sum(max(one, default=0) for one in works) or 1
    all_seconds = sum(max(map(seconds, d.costs), default=0.0) for d in problem.decisions)
    all_seconds = sum((slowest[id(pair.table)] for pair in problem.pairs), all_seconds) or 1.0

    def packed(received: int, seconds: float, work: int = 0) -> int:
        ticks = int(seconds / all_seconds * (1 << BITS))
        return (received << 2 * BITS + 2) + (ticks << BITS + 1) + (work << BITS) // all_work

    moves: dict[tuple[int, float], MoveCost] = {}

    def move(cost: MoveCost) -> MoveCost:
        """Return one object for all moves of equal cost."""
        key = cost.received, cost.seconds
        if key not in moves:
            moves[key] = MoveCost(0.0, packed(cost.received, share * cost.seconds), (), (), ())
        return moves[key]

    new: dict[int, Table] = {
        key: [list(map(move, row)) for row in table] for key, table in tables.items()
    }

    def pair(old: PairCost) -> PairCost:
        return old._replace(table=new[id(old.table)])

    return replace(
        problem,
        decisions=tuple(
            decision._replace(
                costs=tuple(
                    OptionCost(received=packed(cost.received, seconds(cost), one))
                    for cost, one in zip(decision.costs, own)
                )
            )
            for decision, own in zip(problem.decisions, works)
        ),
        pairs=tuple(map(pair, problem.pairs)),
        steps=tuple(
            step._replace(
                deliveries=tuple(map(pair, step.deliveries)),
                results=tuple(
                    result._replace(reshard=result.reshard and pair(result.reshard))
                    for result in step.results
                ),
            )
            for step in problem.steps
        ),
    )
