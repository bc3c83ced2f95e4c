"""`search`: the Pareto front of the plans for a graph on a mesh.

Every variant of the graph is searched. Local search finds good plans first; branch and bound then
proves the front of a small graph, and evolutionary search improves that of a larger one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from random import Random
from typing import Literal, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import DeviceMesh
from weft.plan.estimate import Cost, estimate
from weft.plan.machine import Machine
from weft.plan.memory import sizes_of
from weft.plan.plan import Plan
from weft.plan.propagation.propagate import ShardyStrategy, propagate_like_shardy
from weft.plan.searching.branch_and_bound import (
    Goal,
    TooWideError,
    exact_front,
    peak_lower_bound,
)
from weft.plan.searching.build import LARGE, build_problem, omitted_options, on_mesh
from weft.plan.searching.evolution import POPULATION, evolutionary_search
from weft.plan.searching.integer_program import solve_integer_program
from weft.plan.searching.local_search import LocalSearch, block_descent
from weft.plan.searching.pareto import (
    OBJECTIVES,
    Objective,
    ParetoFront,
    dominates,
    objective_name,
    pareto_front,
    placements_of,
    value_of,
)
from weft.plan.searching.prices import StorageOptions, StoragePrices, place_stored_inputs
from weft.plan.searching.problem import (
    Assignment,
    DecisionClasses,
    ObjectiveWeights,
    Problem,
    equivalence_classes,
)
from weft.plan.searching.progress import SearchInterrupted, SearchProgress, TerminalProgress
from weft.plan.searching.variants import REWRITES, enumerate_variants
from weft.plan.stored import check_storage
from weft.values import as_count

Engine: TypeAlias = Literal["auto", "exact", "evolve", "integer", "descend"]

ENGINES: tuple[Engine, ...] = ("auto", "exact", "evolve", "integer", "descend")

MAX_PARTIAL_PLANS = 20_000
"""The most partial plans that branch and bound may keep before another engine takes over."""

OTHER_STRATEGIES: tuple[ShardyStrategy, ...] = ("op_priority", "aggressive", "basic")
"""The strategies of propagation whose plans are candidates beside that of `user_priority`."""

MAX_PLANS = 32
"""The most plans of the front of a large graph."""


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
    storage: StorageOptions | None = None,
    progress: Callable[[SearchProgress], None] | bool | None = None,
) -> ParetoFront:
    """Return the plans for a graph on a mesh that no other plan dominates.

    Placements, rewrites and fusion are chosen together. Shardings written on the graph are kept.
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
        graph.check_bound("a search")
        if as_count(budget, "budget") < 1:
            raise WeftError("a search with a budget of 0 plans tries nothing")
        run = begin()
        check_storage(graph, run.storage)
        show = progress is True or (progress is None and sys.stderr.isatty())
        bar = TerminalProgress() if show else None
        run.progress = bar or (progress if callable(progress) else None)
        with _without_garbage_collection():
            try:
                run.search(budget, rewrite)
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


Candidate: TypeAlias = tuple[Problem, Assignment]


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
    candidates: list[Candidate] = field(default_factory=list)
    bases: list[Candidate] = field(default_factory=list)
    """For every variant the plan of propagation."""
    propagated: list[Cost] = field(default_factory=list)
    """The plans of propagation for the annotated graph, by each strategy."""
    proved: list[str] = field(default_factory=list)
    """The variants over whose placements the front is proved."""
    reasons: list[str] = field(default_factory=list)
    """Why the front is not proved over the whole search space."""
    stage: tuple[str, float, float] = ("", 0.0, 1.0)
    """The variant that is being searched, the fraction done before it, and its own fraction."""
    _points: dict[object, tuple[float, float, float]] = field(default_factory=dict)

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

    def search(self, budget: int, rewrite: bool) -> None:
        """Search every variant of the graph."""
        self._report(0.0)
        variants, omitted = enumerate_variants(self.graph, self.mesh.size, rewrite)
        self.reasons += omitted
        for number, variant in enumerate(variants):
            self.stage = variant.name, number / len(variants), 1 / len(variants)
            self._report(0.0)
            problem = build_problem(variant.graph, self.mesh, self.machine, storage=self.storage)
            self.bases.append((problem, problem.start))
            self._doubt(*omitted_options(problem), *self._storage_reasons(problem.graph))
            self._search_variant(variant.name, problem, budget // len(variants))
            self._report(1.0)
        self._add_propagated()

    def _doubt(self, *reasons: str) -> None:
        """Add reasons why the front is not proved."""
        self.reasons += [reason for reason in reasons if reason not in self.reasons]

    def _storage_reasons(self, graph: Graph) -> list[str]:
        """Return why the costs of storage do not allow a proof."""
        stored = StoragePrices(graph, self.machine, self.storage)
        if stored.is_shared:
            return ["several applications read a stored input: their costs do not add up"]
        limited = self.machine.capacity < inf or self.machine.capacities(self.mesh) is not None
        if stored.inputs and (self.goal.memory or limited):
            return ["stored inputs are placed where they are read only after the search"]
        return []

    def _add_propagated(self) -> None:
        """Add the plans of propagation for the annotated graph."""
        graph = on_mesh(self.graph, self.mesh)
        if not graph.shardings and not graph.output_shardings:
            return
        usual = self.bases[0][0].base
        self.propagated = [self._estimate(usual)]
        for strategy in OTHER_STRATEGIES if len(graph.applications) <= LARGE else ():
            try:
                plan = Plan.of(propagate_like_shardy(graph, strategy), self.machine)
            except WeftError:  # this strategy leads to no plan
                continue
            if plan != usual:
                self.propagated += [self._estimate(plan), self._estimate(plan.fused())]

    def _search_variant(self, name: str, problem: Problem, budget: int) -> None:
        is_large = len(problem.graph.applications) > LARGE
        classes = DecisionClasses(problem, equivalence_classes(problem) if is_large else None)
        rng = Random(self.seed)
        if self.engine == "integer":
            optimum = solve_integer_program(classes.weighted(self.weights))
            self._add(classes, [optimum.choices])
            self._doubt("the integer program ignores capacity and fusion")
            if not optimum.is_optimal:
                self._doubt(f"HiGHS stopped before it proved an optimum ({name})")
            return
        local = LocalSearch(classes, self.goal, rng)
        known = self._local_search(local)
        if self.engine == "exact" or (self.engine == "auto" and not is_large):
            try:
                self._search_exactly(problem, known)
            except TooWideError:
                if self.engine == "exact":
                    raise WeftError(
                        "the graph is too wide for the exact engine", hint="use engine='auto'"
                    ) from None
                self._doubt(
                    f"the exact engine would keep more than {MAX_PARTIAL_PLANS} partial plans "
                    f"({name})"
                )
            else:
                self.proved.append(name)
                return
        is_open = len(self.searched) > 1 or not self._fits(problem, known)
        can_evolve = self.engine == "evolve" or find_spec("pymoo") is not None
        evolves = is_open and self.engine != "descend" and can_evolve
        method = "evolution" if evolves else "descent"
        self._doubt(f"{method} looks at some plans, not at all")
        if evolves:
            self._evolve(classes, local, budget, rng)

    def _add(self, classes: DecisionClasses, solutions: Sequence[Sequence[int]]) -> list[list[int]]:
        assignments = [classes.assignment(choices) for choices in solutions]
        self.candidates += [(classes.problem, one) for one in assignments]
        return assignments

    def _local_search(self, local: LocalSearch) -> list[list[int]]:
        """Return the plans of local search; for one objective the first that fit are enough."""
        if self.goal.memory or len(self.searched) > 1:
            local.explore()
            return self._add(local.classes, local.solutions)
        local.minimize()
        known = self._add(local.classes, local.solutions)
        if self._fits(local.problem, known):
            return known
        local.reduce_memory()
        return known + self._add(local.classes, local.solutions[len(known) :])

    def _fits(self, problem: Problem, known: Sequence[Assignment]) -> bool:
        return any(not problem.excess(one) for one in known)

    def _search_exactly(self, problem: Problem, known: Sequence[Assignment]) -> None:
        """Add the exact front; memory is counted only where it is an objective, or short."""
        limit = MAX_PARTIAL_PLANS if self.engine == "auto" else 100 * MAX_PARTIAL_PLANS
        front = exact_front(problem, self.goal, known, limit)
        if any(problem.excess(one) for one in front):
            front = exact_front(problem, self.goal._replace(memory=True), known, limit)
        local = LocalSearch(DecisionClasses(problem), self.goal, Random(self.seed))
        self.candidates += [(problem, one) for one in front if one in known]
        new = [one for one in front if one not in known]
        model = local.model(self.weights) if new else None
        for one in new:
            # break ties for less memory and fewer bytes, unless anything gets worse
            assert model is not None
            again = block_descent(model, one, Random(self.seed), 1)
            old_point, new_point = self._point(problem, one), self._point(problem, again)
            slack = (new_point[0] * (1 - 1e-12), *new_point[1:])
            self.candidates.append((problem, again if dominates(slack, old_point) else list(one)))

    def _evolve(
        self, classes: DecisionClasses, local: LocalSearch, budget: int, rng: Random
    ) -> None:
        before = len(self.candidates)
        generations = evolutionary_search(
            classes, self.goal, local.solutions, local.models, budget, rng
        )
        for number, plans in enumerate(generations, 1):
            new: list[Candidate] = [(classes.problem, classes.assignment(one)) for one in plans]
            self.candidates = self.candidates[:before] + new  # at once, for interrupts
            self._report(min(1.0, number * POPULATION / max(budget, 1)))

    def _report(self, fraction: float) -> None:
        """Report the progress, from the fraction of this variant that is done."""
        if self.progress is not None:
            name, before, whole = self.stage
            points = [self._point(*one) for one in (*self.candidates, *self.bases)]
            front = tuple(tuple(point) for point, _ in pareto_front((p, None) for p in points))
            self.progress(SearchProgress(name, before + whole * fraction, front))

    # -- the front

    def front(self) -> ParetoFront:
        """Return the best candidates with exact costs; raise an error if none fits the machine."""
        costs = [self._estimate(problem.plan(one).fused()) for problem, one in self._best()]
        return self._front(costs + self.propagated, is_complete=True)

    def front_so_far(self) -> ParetoFront | None:
        """Return the best candidates so far, or the plan of propagation; None if none fits."""
        self._doubt("the search was interrupted")
        if self.candidates or self.bases:
            plans = [problem.plan(one) for problem, one in self._best()]
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
        """Return the variants over whose placements the front is proved.

        Rewrites that were not tried do not affect the proof over the others; any other reason, such
        as a fusion that was not tried and may improve a dominated plan, does.
        """
        is_proved = all(reason.startswith(REWRITES) for reason in self.reasons)
        return tuple(self.proved) if is_proved else ()

    def _best(self) -> list[Candidate]:
        """Return the Pareto front of the candidates; of a large graph at most `MAX_PLANS`."""
        points = sorted(
            ((self._point(*one), one) for one in (*self.candidates, *self.bases)),
            key=lambda pair: pair[0][1:],
        )
        unequal = self.machine.capacities(self.mesh) is not None
        fitting = [
            (point, one)
            for point, one in points
            if not (one[0].excess(one[1]) if unequal else point[1] > self.machine.capacity)
        ]
        if not fitting:
            return [min(points, key=lambda pair: pair[0][1])[1]]
        order = [("time", "peak_memory", "bytes").index(name) for name in self.searched]
        front = pareto_front(([point[n] for n in order], one) for point, one in fitting)
        if len(front) > MAX_PLANS and len(self.graph.applications) > LARGE:
            self._doubt(f"of {len(front)} plans {MAX_PLANS} are shown")
            step = (len(front) - 1) / (MAX_PLANS - 1)
            front = [front[round(n * step)] for n in range(MAX_PLANS)]
        return [one for _, one in front]

    def _estimate(self, plan: Plan) -> Cost:
        return estimate(place_stored_inputs(plan, self.storage), self.machine, self.storage)

    def _point(self, problem: Problem, assignment: Assignment) -> tuple[float, float, float]:
        key = (id(problem), *assignment)
        if key not in self._points:
            cost = problem.cost(assignment)
            self._points[key] = problem.seconds(cost), problem.peak(assignment), cost.received
        return self._points[key]

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
            note = f"searched: {placements_of(proved)}"
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
