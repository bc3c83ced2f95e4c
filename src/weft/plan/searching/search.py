"""`search`: from a graph, a mesh and a machine to the plans worth choosing from."""

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
from weft.plan.searching.ahead import Goal
from weft.plan.searching.build import LARGE, pose
from weft.plan.searching.claim import least_peak, unproved
from weft.plan.searching.descend import descend
from weft.plan.searching.evolve import CROWD, evolve
from weft.plan.searching.exact import TooWideError, sweep
from weft.plan.searching.front import OBJECTIVES, ParetoFront, over
from weft.plan.searching.integer import solve
from weft.plan.searching.interrupted import SearchInterrupted
from weft.plan.searching.layers import share
from weft.plan.searching.meshed import on_mesh
from weft.plan.searching.model import Model, Weights
from weft.plan.searching.pareto import best, dominates
from weft.plan.searching.problem import Found, Problem
from weft.plan.searching.progress import Bar, Progress
from weft.plan.searching.scout import Scout
from weft.plan.searching.stored import Stored, Wanted, settle_inputs
from weft.plan.searching.variants import REWRITES, enumerate_variants
from weft.plan.stored import check_storage
from weft.values import as_count

Engine: TypeAlias = Literal["auto", "exact", "evolve", "integer", "descend"]

ENGINES: tuple[Engine, ...] = ("auto", "exact", "evolve", "integer", "descend")

WIDTH = 20_000
"""The most partial plans that the exact engine may keep before another takes over."""

RULES: tuple[ShardyStrategy, ...] = ("op_priority", "aggressive", "basic")
"""The rules of propagation whose plans are looked at beside those of `user_priority`."""

POINTS = 32
"""The most plans of a front of a large graph."""


def search(
    graph: Graph,
    mesh: DeviceMesh,
    machine: Machine | None = None,
    objectives: Sequence[str] = ("time", "peak_memory", "bytes"),
    budget: int = 3000,
    seed: int = 0,
    *,
    engine: Engine = "auto",
    rewrite: bool = True,
    storage: Wanted | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
) -> ParetoFront:
    """The plans for a graph on a mesh of which none is better than another in every objective.

    Placements, rewrites and fusion are chosen together. Shardings written on the graph are kept to.
    A small graph is searched exactly; for a larger one `budget` says how many plans the stochastic
    search may look at (extra `search`; without it descent has the last word). The same seed finds
    the same front. Progress is shown on a terminal, or told to a function.

    `front.is_exact` is True only where the front is proved over the whole search space; otherwise
    `front.reasons` lists what was not tried. No plan of the front is worse in every objective than
    the plan that propagation makes of the shardings written on the graph.

    An interrupt (Ctrl-C, or a `KeyboardInterrupt` raised by `progress`) at any moment raises
    `SearchInterrupted`, a `KeyboardInterrupt` whose `front` is the best front so far.

    `storage` says how inputs and outputs lie in storage: what is read of chunks and written then
    counts as time and as bytes. For an output it may be a `Chunking`, from which chunks and shards
    are chosen that every cell writes whole: `front.costs[n].storage` has them.

    >>> from weft import Machine, trace
    >>> graph = trace(lambda x, w: x @ w, (64, 16), (16, 16))
    >>> machine = Machine(latency=1e-6, bandwidth=1e9, flops={"float32": 1e9})
    >>> front = search(graph, DeviceMesh("m", (4,), ("x",)), machine)
    >>> print(front.best("time"))
    matmul  matmul m: {"x"}  <@m, [{"x"}, {}]>
    """
    run: _Search | None = None

    def begin() -> _Search:
        wanted = tuple(objectives), seed, engine, storage or {}
        return _Search(graph, mesh, machine or Machine(), *wanted)

    def front_so_far() -> ParetoFront | None:
        return (run or begin()).interrupted()

    try:
        if not isinstance(graph, Graph) or not isinstance(mesh, DeviceMesh):
            raise WeftError(f"a Graph and a DeviceMesh are searched, got {graph!r} and {mesh!r}")
        if as_count(budget, "budget") < 1:
            raise WeftError("a search with a budget of 0 plans looks at nothing")
        run = begin()
        check_storage(graph, run.storage)
        bar = Bar() if progress is True or (progress is None and sys.stderr.isatty()) else None
        run.progress = bar or (progress if callable(progress) else None)
        with _uncollected():
            try:
                run.look(budget, rewrite)
            finally:
                if bar is not None:
                    bar.close()
            return run.front()
    except KeyboardInterrupt as error:
        raise SearchInterrupted(front_so_far) from error


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the cyclic garbage collector off: a search makes many objects and no cycles."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass
class _Search:
    graph: Graph
    mesh: DeviceMesh
    machine: Machine
    objectives: tuple[str, ...]
    seed: int
    engine: Engine
    storage: Wanted = field(default_factory=dict)
    progress: Callable[[Progress], None] | None = None
    found: list[tuple[Problem, list[int]]] = field(default_factory=list)
    """The plans that are worth looking at, by the choices of their problems."""
    starts: list[tuple[Problem, list[int]]] = field(default_factory=list)
    """For every variant the plan of propagation."""
    rules: list[Cost] = field(default_factory=list)
    """The plans that propagation makes of what is written on the graph, by each of its rules."""
    proved: list[str] = field(default_factory=list)
    """The variants over whose placements the front is proved."""
    reasons: list[str] = field(default_factory=list)
    """Why the front is not proved over the whole search space."""
    stage: tuple[str, float, float] = ("", 0.0, 1.0)
    """The variant that is being searched, what was done before it, and its part of the whole."""
    _points: dict[object, tuple[float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.objectives:
            if name not in OBJECTIVES:
                known = ", ".join(OBJECTIVES)
                raise WeftError(f"there is no objective {name!r}", hint=f"there are {known}")
        if not self.objectives:
            raise WeftError("a search needs an objective", hint=", ".join(OBJECTIVES))
        if self.engine not in ENGINES:
            raise WeftError(f"there is no engine {self.engine!r}", hint=", ".join(ENGINES))
        if self.engine == "integer" and self.objectives not in (("time",), ("bytes",)):
            raise WeftError("the integer programme has one objective: time, or bytes")
        self.goal = Goal(*(name in self.objectives for name in ("time", "bytes", "peak_memory")))

    def look(self, budget: int, rewrite: bool) -> None:
        """Search every variant of the graph."""
        self._say(0.0)
        every, left_out = enumerate_variants(self.graph, self.mesh.size, rewrite)
        self.reasons += left_out
        for number, variant in enumerate(every):
            self.stage = variant.name, number / len(every), 1 / len(every)
            self._say(0.0)
            problem = self._pose(variant.graph)
            self.starts.append((problem, problem.start))
            self._doubt(*unproved(problem), *self._unproved_storage(problem.graph))
            self._search(variant.name, problem, budget // len(every))
            self._say(1.0)
        self._follow_rules()

    def _pose(self, graph: Graph) -> Problem:
        return pose(graph, self.mesh, self.machine, storage=self.storage)

    def _doubt(self, *reasons: str) -> None:
        """Note why the front is not proved."""
        self.reasons += [reason for reason in reasons if reason not in self.reasons]

    def _unproved_storage(self, graph: Graph) -> list[str]:
        """Why the prices of storage prove nothing."""
        stored = Stored(graph, self.machine, self.storage)
        if stored.is_shared:
            return ["several applications read a stored input: what they read is no sum of prices"]
        if stored.inputs and (self.goal.memory or self.machine.capacity < inf):
            return ["stored inputs are placed where they are read only after the search"]
        return []

    def _follow_rules(self) -> None:
        """Look at what propagation makes of what is written on the graph."""
        graph = on_mesh(self.graph, self.mesh)
        is_written = bool(graph.shardings or graph.output_shardings)
        if not is_written:
            return
        usual = self.starts[0][0].base
        self.rules = [self._priced(usual)]
        for rule in RULES if len(graph.applications) <= LARGE else ():
            try:
                plan = Plan.of(propagate_like_shardy(graph, rule), self.machine)
            except WeftError:  # this rule leads to no plan
                continue
            if plan != usual:
                self.rules += [self._priced(plan), self._cost(plan)]

    def _search(self, name: str, problem: Problem, budget: int) -> None:
        is_large = len(problem.graph.applications) > LARGE
        classes = share(problem) if is_large else range(len(problem.decisions))
        model, rng = Model(problem, classes), Random(self.seed)
        if self.engine == "integer":
            optimum = solve(model.priced(self._weights()))
            self._add(model, [optimum.chosen])
            self._doubt("the integer programme knows neither capacity nor fusion")
            if not optimum.is_optimal:
                self._doubt(f"HiGHS stopped before it proved an optimum ({name})")
            return
        scout = Scout(model, self.goal, rng)
        known = self._scouted(scout)
        if self.engine in ("auto", "exact") and not (is_large and self.engine == "auto"):
            try:
                self._sweep(problem, known)
            except TooWideError:
                if self.engine == "exact":
                    raise WeftError(
                        "the graph is too wide for the exact engine", hint="take engine='auto'"
                    ) from None
                self._doubt(f"the exact engine would keep more than {WIDTH} partial plans ({name})")
            else:
                self.proved.append(name)
                return
        is_open = len(self.objectives) > 1 or not self._fits(problem, known)
        can_breed = self.engine == "evolve" or find_spec("pymoo") is not None
        by_evolution = is_open and self.engine != "descend" and can_breed
        self._doubt(f"{'evolution' if by_evolution else 'descent'} looks at some plans, not at all")
        if by_evolution:
            self._evolve(model, scout, budget, rng)

    def _add(self, model: Model, plans: Sequence[Sequence[int]]) -> list[list[int]]:
        """Remember plans, each given as the choices of a model's classes."""
        found = [model.found(chosen) for chosen in plans]
        self.found += [(model.problem, one) for one in found]
        return found

    def _weights(self) -> Weights:
        return Weights(1.0, 0.0) if self.goal.time else Weights(0.0, 1.0)

    def _scouted(self, scout: Scout) -> list[list[int]]:
        """What descent finds: if one thing is to be small, and it fits, that is enough."""
        if self.goal.memory or len(self.objectives) > 1:
            scout.look()
            return self._add(scout.model, scout.found)
        scout.fastest()
        found = self._add(scout.model, scout.found)
        if self._fits(scout.problem, found):
            return found
        scout.smaller()
        return found + self._add(scout.model, scout.found[len(found) :])

    def _fits(self, problem: Problem, known: Sequence[Found]) -> bool:
        return any(problem.peak(found) <= self.machine.capacity for found in known)

    def _sweep(self, problem: Problem, known: Sequence[Found]) -> None:
        """The exact front; memory is looked at only where it matters, or is short."""
        limit = WIDTH if self.engine == "auto" else 100 * WIDTH
        found = sweep(problem, self.goal, known, limit)
        if any(problem.peak(one) > self.machine.capacity for one in found):
            found = sweep(problem, self.goal._replace(memory=True), known, limit)
        tidy = Model(problem, range(len(problem.decisions)))
        scout = Scout(tidy, self.goal, Random(self.seed))
        self.found += [(problem, one) for one in found if one in known]
        self.found += [(problem, self._tidied(scout, one)) for one in found if one not in known]

    def _tidied(self, scout: Scout, found: Found) -> list[int]:
        """A plan that is no worse in anything, with ties settled for less room and fewer bytes."""
        priced = scout.tidy(self._weights())
        again = descend(priced, found, Random(self.seed), 1)
        old, new = (self._point(scout.problem, one) for one in (found, again))
        slack = (new[0] * (1 - 1e-12), *new[1:])
        return again if dominates(slack, old) else list(found)

    def _evolve(self, model: Model, scout: Scout, budget: int, rng: Random) -> None:
        before = len(self.found)
        looked = evolve(model, self.goal, scout.found, scout.sums, budget, rng)
        for number, plans in enumerate(looked, 1):
            bred = [(model.problem, model.found(chosen)) for chosen in plans]
            self.found = self.found[:before] + bred  # at once: an interrupt finds all or none
            self._say(min(1.0, number * CROWD / max(budget, 1)))

    def _say(self, part: float) -> None:
        """Tell how far the variant is that is being searched."""
        if self.progress is not None:
            name, before, whole = self.stage
            points = [self._point(*one) for one in (*self.found, *self.starts)]
            front = tuple(tuple(point) for point, _ in best((p, None) for p in points))
            self.progress(Progress(name, before + whole * part, front))

    # -- the front

    def front(self) -> ParetoFront:
        """The best of what was found, priced exactly; what does not fit the machine is refused."""
        costs = [self._cost(problem.plan(found)) for problem, found in self._chosen()]
        return self._front(costs + self.rules, is_complete=True)

    def interrupted(self) -> ParetoFront | None:
        """The best of what was found so far, or what propagation does; None if nothing fits."""
        self._doubt("the search was interrupted")
        if self.found or self.starts:
            costs = [self._cost(problem.plan(found)) for problem, found in self._chosen()]
        else:
            try:
                costs = [
                    self._cost(
                        Plan.of(propagate_like_shardy(on_mesh(self.graph, self.mesh)), self.machine)
                    )
                ]
            except WeftError:  # the search would have refused this graph on this mesh
                return None
        costs += self.rules
        return self._front(costs, is_complete=False) if any(c.fits for c in costs) else None

    def _front(self, costs: Sequence[Cost], is_complete: bool) -> ParetoFront:
        fitting = [cost for cost in costs if cost.fits]
        if not fitting:
            raise self._too_small(costs)
        fitting.sort(key=lambda cost: (max(cost.peak), cost.moved, cost.seconds))
        found = best((self._values(cost), cost) for cost in fitting)
        return ParetoFront(
            self.objectives,
            tuple(cost for _, cost in found),
            is_complete,
            self._proved(),
            tuple(self.reasons),
        )

    def _proved(self) -> tuple[str, ...]:
        """The variants over whose placements the front is proved.

        Rewrites that were not tried leave a proof over the others as it is; any other reason, such
        as a fusion that was not tried and may make a dominated plan better, leaves none.
        """
        is_proved = all(reason.startswith(REWRITES) for reason in self.reasons)
        return tuple(self.proved) if is_proved else ()

    def _chosen(self) -> list[tuple[Problem, list[int]]]:
        """The plans whose prices are best; of many in a large graph some that lie apart."""
        points = sorted(
            ((self._point(*one), one) for one in (*self.found, *self.starts)),
            key=lambda pair: pair[0][1:],
        )
        fitting = [pair for pair in points if pair[0][1] <= self.machine.capacity]
        if not fitting:
            return [min(points, key=lambda pair: pair[0][1])[1]]
        order = [("time", "peak_memory", "bytes").index(name) for name in self.objectives]
        front = best(([point[n] for n in order], one) for point, one in fitting)
        if len(front) > POINTS and len(self.graph.applications) > LARGE:
            self._doubt(f"of {len(front)} plans {POINTS} are shown")
            step = (len(front) - 1) / (POINTS - 1)
            front = [front[round(n * step)] for n in range(POINTS)]
        return [one for _, one in front]

    def _cost(self, plan: Plan) -> Cost:
        """The cost of a plan with all fused that is placed alike, which never makes it worse."""
        return self._priced(plan.fused())

    def _priced(self, plan: Plan) -> Cost:
        return estimate(settle_inputs(plan, self.storage), self.machine, self.storage)

    def _values(self, cost: Cost) -> list[float]:
        return [OBJECTIVES[name](cost) for name in self.objectives]

    def _point(self, problem: Problem, found: Found) -> tuple[float, float, float]:
        key = (id(problem), *found)
        if key not in self._points:
            price = problem.price(found)
            self._points[key] = problem.seconds(price), problem.peak(found), price.received
        return self._points[key]

    def _too_small(self, costs: Sequence[Cost]) -> WeftError:
        """The error if nothing fits: what is proved, which array is too large, and by how much."""
        cost = min(costs, key=lambda cost: max(cost.peak))
        plan, peak, capacity = cost.plan, max(cost.peak), self.machine.capacity
        cell, doing = plan.program.count.busiest()
        sizes = {
            name: sizes_of(spec, plan.graph.values[name].shape, plan.itemsize(name))[cell]
            for name, spec in plan.specs.items()
        }
        largest = max(sizes, key=lambda name: sizes[name])
        least = least_peak(on_mesh(self.graph, self.mesh), self.mesh)
        if least > capacity:
            claim = "no plan fits"
            note = f"every plan holds at least {least} B on some cell for its inputs or outputs"
        elif (proved := self._proved()) and not self.reasons:
            claim = "no plan of the search space fits"
            note = f"searched: {over(proved)}"
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
