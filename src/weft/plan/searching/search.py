"""`search`: the Pareto front of the plans for a graph on a mesh.

Every variant of the graph is searched. Local search finds good plans first; branch and bound then
proves the front of a small graph, and evolutionary search improves that of a larger one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Application, Graph
from weft.lang.alternatives import FUSIONS, REWRITES, Alternatives
from weft.lang.forwarding import forwards_in
from weft.lang.fusion import fusable, fuse
from weft.lang.rewrite import Rewrite, shipped_rewrites
from weft.layout import DeviceMesh
from weft.plan.estimate import Cost, estimate
from weft.plan.machine import Machine
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import ShardyStrategy, propagate_like_shardy
from weft.plan.resharding.counts import sizes_of
from weft.plan.searching.bounds import Goal
from weft.plan.searching.branch_and_bound import (
    TooWideError,
    exact_front,
    peak_lower_bound,
)
from weft.plan.searching.build import LARGE, build_problem, omitted_options, on_mesh
from weft.plan.searching.choice_graph import ChoiceGraph, build_choices
from weft.plan.searching.choices import Symmetry
from weft.plan.searching.evolution import POPULATION, evolutionary_search
from weft.plan.searching.integer_program import solve_choices, solve_integer_program
from weft.plan.searching.local_search import IMPROVEMENT, LocalSearch
from weft.plan.searching.pareto import (
    OBJECTIVES,
    Costs,
    Objective,
    ParetoFront,
    objective_name,
    pareto_front,
    proof,
    value_of,
)
from weft.plan.searching.prices import (
    MovePrices,
    StorageOptions,
    StoragePrices,
    place_stored_inputs,
)
from weft.plan.searching.problem import (
    Assignment,
    DecisionClasses,
    ObjectiveWeights,
    Problem,
    equivalence_classes,
    take_over,
)
from weft.plan.searching.progress import SearchInterrupted, SearchProgress, TerminalProgress
from weft.plan.searching.sites import rewrite_sites
from weft.plan.stored import check_storage
from weft.values import as_count

Engine: TypeAlias = Literal["auto", "exact", "evolve", "integer", "descend"]

ENGINES: tuple[Engine, ...] = ("auto", "exact", "evolve", "integer", "descend")

MAX_PARTIAL_PLANS = 100_000
"""The most partial plans that branch and bound may keep before another engine takes over."""

OTHER_STRATEGIES: tuple[ShardyStrategy, ...] = ("op_priority", "aggressive", "basic")
"""The strategies of propagation whose plans are candidates beside that of `user_priority`."""

MAX_PLANS = 32
"""The most plans of the front of a large graph."""

MAX_STEPS = 150
"""The most applications, with all alternatives, for which the exact engine is tried."""

MAX_TRIES = 150_000
"""The most partial plans that branch and bound may price before another engine takes over."""

MAX_REWRITTEN = 8
"""The most rewritten graphs that are tried where the exact engine is too slow."""

SMALL = 16
"""Rewrites that allow no new cuts may still save memory: in graphs of more applications they are
left to the exact engine."""


def search(
    graph: Graph,
    mesh: DeviceMesh,
    machine: Machine | None = None,
    objectives: Sequence[Objective] = ("time", "peak_memory", "bytes"),
    budget: int = 3000,
    seed: int = 0,
    *,
    engine: Engine = "auto",
    rewrite: bool = True,
    rewrites: Sequence[Rewrite] = (),
    storage: StorageOptions | None = None,
    progress: Callable[[SearchProgress], None] | bool | None = None,
) -> ParetoFront:
    """Return the plans for a graph on a mesh that no other plan dominates.

    Placements, rewrites and fusion are chosen together. Shardings written on the graph are kept.
    `rewrites` are tried beside those of Weft and of the graph's operators; each is checked first
    on random arrays, and one that computes anything else is refused.
    A small graph is searched exactly; for a larger one `budget` is the number of plans that the
    evolutionary search may price (extra `search`; without it local search has the last word). The
    same seed gives the same front. Progress is shown on a terminal, or passed to a function.

    `front.is_exact` is True only where the front is proved over the whole search space; otherwise
    `front.reasons` lists what was not tried. No plan of the front is worse in every objective than
    the plan that propagation derives from the shardings written on the graph.

    An interrupt (Ctrl-C, or a `KeyboardInterrupt` raised by `progress`) at any moment raises
    `SearchInterrupted`, a `KeyboardInterrupt` whose `front` is the best front so far.

    An objective may also be a function of a plan's cost, as `lambda cost: cost.seconds * watts`. It
    is evaluated for the plans that are found for the three named ones, and nothing is proved then.

    `storage` says how inputs and outputs are stored: reading and writing them then counts as time
    and as bytes. For an output it may be a `Chunking`, from which chunks and shards are chosen so
    that every cell writes whole shards: `front.costs[n].storage` has them.

    >>> from weft import Machine, trace
    >>> graph = trace(lambda x, w: x @ w, (64, 16), (16, 16))
    >>> machine = Machine(latency=1e-6, bandwidth=1e9, flops={"float32": 1e9})
    >>> front = search(graph, DeviceMesh("m", (4,), ("x",)), machine)
    >>> print(front.best("time"))
    matmul  matmul m: {"x"}  <@m, [{"x"}, {}]>
    """
    run: _Search | None = None

    def begin() -> _Search:
        options = tuple(objectives), seed, engine, storage or {}
        return _Search(graph, mesh, machine or Machine(), *options)

    def front_so_far() -> ParetoFront | None:
        return (run or begin()).front_so_far()

    try:
        if not isinstance(graph, Graph) or not isinstance(mesh, DeviceMesh):
            raise WeftError(f"search expects a Graph and a DeviceMesh, got {graph!r} and {mesh!r}")
        if machine is not None and not isinstance(machine, Machine):
            raise WeftError(
                f"machine must be a Machine, got {machine!r}",
                hint="weft.plan.machines has some, such as H200_NODE",
            )
        graph.check_bound("a search")
        if as_count(budget, "budget") < 1:
            raise WeftError("a search with a budget of 0 plans tries nothing")
        run = begin()
        check_storage(graph, run.storage)
        show = progress is True or (progress is None and sys.stderr.isatty())
        bar = TerminalProgress() if show else None
        run.progress = bar or (progress if callable(progress) else None)
        own = [one for operator in graph.operators.values() for one in operator.rewrites]
        run.unproved = [*dict.fromkeys((*own, *rewrites))] if rewrite else []
        used = [*shipped_rewrites(mesh.size), *forwards_in(graph)] if rewrite else None
        with _without_garbage_collection():
            try:
                run.search(budget, used)
            finally:
                if bar is not None:
                    bar.close()
            return run.front()
    except KeyboardInterrupt as error:
        raise SearchInterrupted(front_so_far) from error


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch the cyclic garbage collector off: a search makes many objects and no cycles."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()


class PlanCandidate(NamedTuple):
    """A plan that was found: its seconds, peak and bytes, and how to make it."""

    point: tuple[float, float, float]
    fits: bool
    make: Callable[[], Plan]


@dataclass
class _Search:
    graph: Graph
    mesh: DeviceMesh
    machine: Machine
    objectives: tuple[Objective, ...]
    seed: int
    engine: Engine
    storage: StorageOptions
    progress: Callable[[SearchProgress], None] | None = None
    candidates: list[PlanCandidate] = field(default_factory=list)
    bases: list[PlanCandidate] = field(default_factory=list)
    """The plan of propagation for the graph as written."""
    propagated: list[Cost] = field(default_factory=list)
    """The plans of propagation for the annotated graph, by each strategy."""
    proved: tuple[str, ...] = ()
    """What the front is proved over."""
    reasons: list[str] = field(default_factory=list)
    """Why the front is not proved over the whole search space."""
    unproved: Sequence[Rewrite] = ()
    """Rewrites that are checked before they are used."""
    stage: tuple[str, float, float] = ("", 0.0, 1.0)
    """What is being searched, the fraction done before it, and its own fraction."""

    def __post_init__(self) -> None:
        functions = [one for one in self.objectives if callable(one)]
        for name in self.objectives:
            if name not in OBJECTIVES and name not in functions:
                known = ", ".join(OBJECTIVES)
                raise WeftError(f"there is no objective {name!r}", hint=f"there are {known}")
        if not self.objectives:
            raise WeftError("a search needs an objective", hint=", ".join(OBJECTIVES))
        if self.engine not in ENGINES:
            raise WeftError(f"there is no engine {self.engine!r}", hint=", ".join(ENGINES))
        if self.engine == "integer" and self.objectives not in (("time",), ("bytes",)):
            raise WeftError("the integer program has one objective: time, or bytes")
        # a function may depend on anything: plans are searched for all that is counted
        self.searched = tuple(OBJECTIVES) if functions else tuple(map(str, self.objectives))
        found_by = "was evaluated only for plans found by time, peak_memory and bytes"
        self._doubt(*(f"{objective_name(one)} {found_by}" for one in functions))
        self.goal = Goal(*(name in self.searched for name in ("time", "bytes", "peak_memory")))
        self.weights = ObjectiveWeights(1.0, 0.0) if self.goal.time else ObjectiveWeights(0.0, 1.0)
        self.rng = Random(self.seed)

    def search(self, budget: int, rewrites: Sequence[Rewrite] | None) -> None:
        """Search the graph as written, then all graphs that rewrites and fusion lead to.

        Without rewrites, not even an empty list of them, nothing is fused either.
        """
        graph = on_mesh(self.graph, self.mesh)
        is_large = len(graph.applications) > LARGE
        self._begin("as written", 0.0, 0.4)
        kinds = Symmetry(graph, self.mesh, self.machine).kinds
        by_cell = not is_large or self.machine.capacities(self.mesh) is not None
        self.prices = MovePrices(self.machine, self.mesh, kinds, by_cell=by_cell)
        problem = build_problem(
            graph, self.mesh, self.machine, storage=self.storage, prices=self.prices
        )
        self.base = problem.base
        self.bases.append(self._candidate(problem, problem.start))
        self._doubt(*omitted_options(graph, self.mesh), *self._storage_reasons(graph))
        alternatives = self._alternatives(graph, rewrites, is_large)
        if self.engine == "integer":
            self._solve(problem, alternatives)
        else:
            self._search_problem(problem, alternatives, rewrites or (), budget)
        self._add_propagated()
        self._report(1.0)

    def _alternatives(
        self, graph: Graph, rewrites: Sequence[Rewrite] | None, is_large: bool
    ) -> Alternatives | None:
        """Return the graphs to choose from; None for a large graph."""
        if is_large:
            what = (
                "fusions were not tried"
                if rewrites is None
                else ("rewrites were tried kind by kind, and fusions only at the end")
            )
            self._doubt(f"{what}: the graph has more than {LARGE} applications")
            return None
        found = Alternatives.of(graph, rewrites or (), rewrites is not None, self.unproved)
        if rewrites is None:
            shipped = shipped_rewrites(self.mesh.size)
            if any(True for rewrite in shipped for _ in rewrite.matches(graph)):
                self._doubt(f"{REWRITES} in the search")
            if fusable(graph):
                self._doubt(f"{FUSIONS} in the search")
        self._doubt(*found.reasons)
        return found

    def _begin(self, stage: str, before: float, whole: float) -> None:
        self.stage = stage, before, whole
        self._report(0.0)

    def _doubt(self, *reasons: str) -> None:
        """Add reasons why the front is not proved."""
        self.reasons += [reason for reason in reasons if reason not in self.reasons]

    def _storage_reasons(self, graph: Graph) -> list[str]:
        """Return why the costs of storage do not allow a proof."""
        stored = StoragePrices(graph, self.machine, self.storage)
        if stored.is_shared:
            return ["several applications read a stored input: their costs do not add up"]
        return []

    def _add_propagated(self) -> None:
        """Add the plans of propagation for the annotated graph."""
        graph = on_mesh(self.graph, self.mesh)
        if not graph.shardings and not graph.output_shardings:
            return
        self.propagated = [self._estimate(self.base)]
        for strategy in OTHER_STRATEGIES if len(graph.applications) <= LARGE else ():
            try:
                plan = Plan.of(propagate_like_shardy(graph, strategy), self.machine)
            except WeftError:  # this strategy leads to no plan
                continue
            if plan != self.base:
                self.propagated += [self._estimate(plan), self._estimate(plan.fused())]

    # -- the engines

    def _search_problem(
        self,
        problem: Problem,
        alternatives: Alternatives | None,
        rewrites: Sequence[Rewrite],
        budget: int,
    ) -> None:
        is_large = alternatives is None
        classes = DecisionClasses(problem, equivalence_classes(problem) if is_large else None)
        local = LocalSearch(classes, self.goal, self.rng)
        self._local_search(local)
        self._report(0.5)
        searched = [local]
        if alternatives is not None:
            fused = _fused_throughout(problem.graph) if alternatives.fuses else problem.graph
            if fused is not problem.graph:
                searched.append(self._search_graph(fused))
            self._report(1.0)
            if self.engine in ("exact", "auto") and self._search_exactly(alternatives):
                return
            searched += self._search_rewrites(searched, rewrites)
        elif rewrites and (new := self._rewrite_sites(local, rewrites)):
            self._add(new.classes, new.solutions)
            searched.append(new)
        is_open = len(self.searched) > 1 or not self._fits()
        can_evolve = self.engine == "evolve" or find_spec("pymoo") is not None
        evolves = is_open and self.engine != "descend" and can_evolve
        method = "evolution" if evolves else "descent"
        self._doubt(f"{method} looks at some plans, not at all")
        for number, one in enumerate(searched if evolves else ()):
            self._begin("evolution", 0.5 + number / len(searched) / 2, 0.5 / len(searched))
            self._evolve(one, budget // len(searched))

    def _rewrite_sites(self, local: LocalSearch, rewrites: Sequence[Rewrite]) -> LocalSearch | None:
        """Return a local search of a large graph that is rewritten where single sites gain by it.

        A kind of place is searched by itself, exactly; the plan of the rest is then taken over and
        improved for all of them together.
        """
        objective = self.searched[0]
        column = ("time", "peak_memory", "bytes").index(objective)
        best = min((*self.candidates, *self.bases), key=lambda one: one.point[column])

        def search_part(part: Graph, free: Graph) -> Graph | None:
            given = self.mesh, self.machine, [objective]
            try:
                after = search(free, *given, rewrites=self.unproved, progress=False)
            except WeftError:  # nothing fits
                return None
            with suppress(WeftError):
                before = search(part, *given, rewrite=False, progress=False)
                if after.points[0][0] >= before.points[0][0] * IMPROVEMENT:
                    return None
            return after[0].graph

        graph = rewrite_sites(best.make(), [*rewrites, *self.unproved], search_part)
        return None if graph is None else self._taken_over(local, graph)

    def _search_graph(self, graph: Graph) -> LocalSearch:
        """Return a local search of another graph for the same values."""
        problem = build_problem(
            graph, self.mesh, self.machine, storage=self.storage, prices=self.prices
        )
        local = LocalSearch(DecisionClasses(problem), self.goal, self.rng)
        self._local_search(local)
        return local

    def _candidate(self, problem: Problem, assignment: Assignment) -> PlanCandidate:
        cost, chosen = problem.cost(assignment), list(assignment)
        point = problem.seconds(cost), problem.peak(chosen), cost.received
        unequal = self.machine.capacities(self.mesh) is not None
        fits = not problem.excess(chosen) if unequal else point[1] <= self.machine.capacity
        return PlanCandidate(point, fits, lambda: problem.plan(chosen))

    def _add(self, classes: DecisionClasses, solutions: Sequence[Sequence[int]]) -> None:
        assignments = dict.fromkeys(tuple(classes.assignment(choices)) for choices in solutions)
        self.candidates += [self._candidate(classes.problem, one) for one in assignments]

    def _local_search(self, local: LocalSearch) -> None:
        """Add the plans of local search; for one objective the first that fit are enough."""
        if self.goal.memory or len(self.searched) > 1:
            local.explore()
            self._add(local.classes, local.solutions)
            return
        local.minimize()
        self._add(local.classes, local.solutions)
        if not self._fits():
            known = len(local.solutions)
            local.reduce_memory()
            self._add(local.classes, local.solutions[known:])

    def _fits(self) -> bool:
        return any(one.fits for one in self.candidates)

    def _search_exactly(self, alternatives: Alternatives) -> bool:
        """Add the exact front over all alternatives; return whether that was possible.

        Memory is counted only where it is an objective, or short.
        """
        self._begin("all rewrites and fusions", 0.4, 0.6)
        limit = MAX_PARTIAL_PLANS if self.engine == "auto" else 100 * MAX_PARTIAL_PLANS
        if self.engine == "auto" and len(list(alternatives.in_order())) > MAX_STEPS:
            self._doubt(f"the exact engine is not tried with more than {MAX_STEPS} applications")
            return False
        choices = self._choices(alternatives)
        try:
            found = self._exact_candidates(choices, self.goal, limit)
            if not all(one.fits for one in found) or not self._fits():
                found = self._exact_candidates(choices, self.goal._replace(memory=True), limit)
        except TooWideError:
            if self.engine == "exact":
                raise WeftError(
                    "the graph is too wide for the exact engine", hint="use engine='auto'"
                ) from None
            self._doubt("there are too many partial plans for the exact engine")
            return False
        self.candidates += found
        self.proved = ("placements", *(("rewrites", "fusions") if alternatives.fuses else ()))
        return True

    def _choices(self, alternatives: Alternatives) -> ChoiceGraph:
        choices = build_choices(
            alternatives, self.mesh, self.machine, self.base, self.prices, self.storage
        )
        self._doubt(*choices.reasons)
        return choices

    def _chosen(
        self, choices: ChoiceGraph, steps: Sequence[tuple[int, int]], specs: Mapping[str, int]
    ) -> PlanCandidate:
        plan = choices.plan(steps, specs)
        cost = estimate(plan, self.machine, self.storage)
        point = cost.seconds, max(cost.peak, default=0), cost.moved
        return PlanCandidate(point, cost.fits, lambda: plan)

    def _exact_candidates(
        self, choices: ChoiceGraph, goal: Goal, limit: int
    ) -> list[PlanCandidate]:
        """Return the plans of the exact front that are better than what is known."""
        tries = MAX_TRIES if self.engine == "auto" else inf
        try:
            front = exact_front(choices, goal, self._known(goal), limit, tries)
        except TooWideError as error:
            found = (self._chosen(choices, one.steps, one.specs) for one in error.chosen)
            self.candidates += found
            raise
        return [self._chosen(choices, one.steps, one.specs) for one in front]

    def _known(self, goal: Goal) -> list[Costs]:
        """Return the points of the plans that are known and fit."""
        fitting = (one.point for one in (*self.candidates, *self.bases) if one.fits)
        return [point for point, _ in pareto_front((self._masked(p, goal), None) for p in fitting)]

    def _masked(self, point: Costs, goal: Goal) -> tuple[float, ...]:
        wanted = (goal.time, goal.memory, goal.received)
        return tuple(x if is_wanted else 0 for x, is_wanted in zip(point, wanted))

    def _search_rewrites(
        self, searched: Sequence[LocalSearch], rewrites: Sequence[Rewrite]
    ) -> list[LocalSearch]:
        """Return a local search of a graph that is rewritten wherever that makes it better.

        Coordinate descent: one place after another is rewritten, the plan of the rest is taken
        over and improved, and the rewrite stays if time, or else the bytes, became less.
        """
        start = best = min(searched, key=self._least)
        self._begin("rewrites", 0.4, 0.1)
        tried: set[tuple[Application, ...]] = {best.problem.graph.applications}
        is_better = True
        while is_better:
            is_better = False
            for rewrite in rewrites:
                for root in [match.root for match in rewrite.matches(best.problem.graph)]:
                    graph = _rewritten(best.problem.graph, rewrite, root)
                    if graph is None or graph.applications in tried:
                        continue
                    if len(tried) > MAX_REWRITTEN:
                        break
                    tried.add(graph.applications)
                    new = self._taken_over(best, graph)
                    if self._least(new) < self._least(best) * IMPROVEMENT:
                        best, is_better = new, True
        if best is start:
            return []
        self._local_search(best)
        return [best]

    def _least(self, local: LocalSearch) -> float:
        """Return the least time, or else the fewest bytes, of the plans of a local search."""
        costs = [local.problem.cost(local.classes.assignment(one)) for one in local.solutions]
        return min(
            local.problem.seconds(cost) if self.goal.time else cost.received for cost in costs
        )

    def _taken_over(self, old: LocalSearch, graph: Graph) -> LocalSearch:
        """Return a local search of a rewritten graph that begins with the plan of another."""
        problem = build_problem(
            graph, self.mesh, self.machine, storage=self.storage, prices=self.prices
        )
        is_large = len(graph.applications) > LARGE
        classes = DecisionClasses(problem, equivalence_classes(problem) if is_large else None)
        local = LocalSearch(classes, self.goal, self.rng)
        choices = min(old.solutions, key=old.models[0].total)
        local.descend(take_over(old.problem, old.classes.assignment(choices), problem))
        return local

    def _evolve(self, local: LocalSearch, budget: int) -> None:
        classes, before = local.classes, list(self.candidates)
        generations = evolutionary_search(
            classes, self.goal, local.solutions, local.models, budget, self.rng
        )
        for number, plans in enumerate(generations, 1):
            new = [self._candidate(classes.problem, classes.assignment(one)) for one in plans]
            self.candidates = before + new  # at once, for interrupts
            self._report(min(1.0, number * POPULATION / max(budget, 1)))

    def _solve(self, problem: Problem, alternatives: Alternatives | None) -> None:
        """Add the optimum of an integer program."""
        self._doubt("the integer program ignores capacity")
        if alternatives is None:
            classes = DecisionClasses(problem, equivalence_classes(problem))
            optimum = solve_integer_program(classes.weighted(self.weights))
            self._add(classes, [optimum.choices])
            is_optimal = optimum.is_optimal
        else:
            self._begin("integer program", 0.4, 0.6)
            choices = self._choices(alternatives)
            best = solve_choices(choices, self.weights)
            self.candidates.append(self._chosen(choices, best.steps, best.specs))
            is_optimal = best.is_optimal
        if not is_optimal:
            self._doubt("HiGHS stopped before it proved an optimum")

    def _report(self, fraction: float) -> None:
        """Report the progress, from the fraction of this stage that is done."""
        if self.progress is not None:
            name, before, whole = self.stage
            points = [one.point for one in (*self.candidates, *self.bases)]
            front = tuple(tuple(point) for point, _ in pareto_front((p, None) for p in points))
            self.progress(SearchProgress(name, before + whole * fraction, front))

    # -- the front

    def front(self) -> ParetoFront:
        """Return the best candidates with exact costs; raise an error if none fits the machine."""
        costs = [self._estimate(one.make().fused()) for one in self._best()]
        return self._front(costs + self.propagated, is_complete=True)

    def front_so_far(self) -> ParetoFront | None:
        """Return the best candidates so far, or the plan of propagation; None if none fits."""
        self._doubt("the search was interrupted")
        if self.candidates or self.bases:
            plans = [one.make() for one in self._best()]
        else:
            try:
                usual = propagate_like_shardy(on_mesh(self.graph, self.mesh))
                plans = [Plan.of(usual, self.machine)]
            except WeftError:  # the search would have refused this graph on this mesh
                return None
        costs = [*(self._estimate(plan.fused()) for plan in plans), *self.propagated]
        return self._front(costs, is_complete=False) if any(c.fits for c in costs) else None

    def _front(self, costs: Sequence[Cost], is_complete: bool) -> ParetoFront:
        fitting = [cost for cost in costs if cost.fits]
        if not fitting:
            raise self._does_not_fit(costs)
        fitting.sort(key=lambda cost: (max(cost.peak), cost.moved, cost.seconds))
        points = ([value_of(one, cost) for one in self.objectives] for cost in fitting)
        best = tuple(cost for _, cost in pareto_front(zip(points, fitting)))
        return ParetoFront(self.objectives, best, is_complete, self._proved(), tuple(self.reasons))

    def _proved(self) -> tuple[str, ...]:
        """Return what the front is proved over.

        Rewrites that were not tried do not affect the proof over the others; any other reason, such
        as a fusion that was not tried and may improve a dominated plan, does.
        """
        is_proved = all(reason.startswith(REWRITES) for reason in self.reasons)
        return self.proved if is_proved else ()

    def _best(self) -> list[PlanCandidate]:
        """Return the Pareto front of the candidates; of a large graph at most `MAX_PLANS`."""
        every = sorted((*self.candidates, *self.bases), key=lambda one: one.point[1:])
        fitting = [one for one in every if one.fits]
        if not fitting:
            return [min(every, key=lambda one: one.point[1])]
        order = [("time", "peak_memory", "bytes").index(name) for name in self.searched]
        front = pareto_front(([one.point[n] for n in order], one) for one in fitting)
        if len(front) > MAX_PLANS and len(self.graph.applications) > LARGE:
            self._doubt(f"of {len(front)} plans {MAX_PLANS} are shown")
            step = (len(front) - 1) / (MAX_PLANS - 1)
            front = [front[round(n * step)] for n in range(MAX_PLANS)]
        return [one for _, one in front]

    def _estimate(self, plan: Plan) -> Cost:
        return estimate(place_stored_inputs(plan, self.storage), self.machine, self.storage)

    def _does_not_fit(self, costs: Sequence[Cost]) -> WeftError:
        """Return the error that nothing fits: what is proved, the largest array, and the excess."""
        cost = min(costs, key=lambda cost: cost.excess)
        rooms = self.machine.capacities(self.mesh) or (self.machine.capacity,) * self.mesh.size
        plan = cost.plan
        cell, doing = plan.program.count.busiest(rooms)
        peak, capacity = cost.peak[cell], rooms[cell]
        sizes = {
            name: sizes_of(spec, plan.graph.values[name].shape, plan.itemsize(name))[cell]
            for name, spec in plan.specs.items()
        }
        largest = max(sizes, key=lambda name: sizes[name])
        least = peak_lower_bound(on_mesh(self.graph, self.mesh), self.mesh)
        if least > max(rooms):
            claim = "no plan fits"
            note = f"every plan holds at least {least} B on some cell for its inputs or outputs"
        elif (proved := self._proved()) and not self.reasons:
            claim = "no plan of the search space fits"
            note = f"searched: all {proof(proved)}"
        else:
            claim = "no plan was found that fits"
            note = f"not proved: {'; '.join(self.reasons)}"
        error = WeftError(
            f"{claim}: cell {cell} holds {peak} B while {doing} runs, "
            f"{peak - capacity:.0f} B more than its {capacity:.0f} B; the largest array is "
            f"{plan.graph.values[largest]}, of which it holds {sizes[largest]} B as "
            f"{plan.specs[largest]}",
            hint="take a larger mesh, a machine with more capacity, or a smaller program",
        )
        error.add_note(note)
        return error


def _rewritten(graph: Graph, rewrite: Rewrite, root: str) -> Graph | None:
    """Return a graph with one rewrite; None if it no longer applies, or allows no new cuts."""
    match = next((each for each in rewrite.matches(graph) if each.root == root), None)
    if match is None:
        return None
    if len(graph.applications) > SMALL and len(match.applications) == 1:
        signature = graph.signatures[graph.applications.index(match.applications[0])]
        if not any(signature.sizes[name] > 1 for name in signature.fixed):
            return None
    return rewrite.apply(graph, root)


def _fused_throughout(graph: Graph) -> Graph:
    """Return the graph with everything fused that can be, first come, first served."""
    while names := fusable(graph):
        graph = fuse(graph, names[0])
    return graph
