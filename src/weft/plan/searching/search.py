"""`search`: from a graph, a mesh and a machine to the plans worth choosing from."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from random import Random
from typing import Literal, TypeAlias

from weft.errors import WeftError
from weft.lang import Graph
from weft.layout import DeviceMesh
from weft.plan.estimate import Cost, estimate
from weft.plan.machine import Machine
from weft.plan.memory import moments, sizes_of
from weft.plan.plan import Plan
from weft.plan.searching.ahead import Goal
from weft.plan.searching.build import LARGE, pose
from weft.plan.searching.descend import descend
from weft.plan.searching.evolve import CROWD, evolve
from weft.plan.searching.exact import TooWideError, sweep
from weft.plan.searching.front import OBJECTIVES, ParetoFront
from weft.plan.searching.integer import solve
from weft.plan.searching.layers import share
from weft.plan.searching.model import Model, Weights
from weft.plan.searching.pareto import best, dominates
from weft.plan.searching.problem import Found, Problem
from weft.plan.searching.progress import Bar, Progress
from weft.plan.searching.scout import Scout
from weft.plan.searching.stored import Stored, Wanted, settle_inputs
from weft.plan.searching.variants import Variant, variants
from weft.plan.stored import check_storage
from weft.values import as_count

Engine: TypeAlias = Literal["auto", "exact", "evolve", "integer", "descend"]

ENGINES: tuple[Engine, ...] = ("auto", "exact", "evolve", "integer", "descend")

WIDTH = 20_000
"""The most partial plans that the exact engine may keep before another takes over."""

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
    the same front. Interrupted, the search gives the best front so far. Progress is shown on a
    terminal, or told to a function.

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
    if not isinstance(graph, Graph) or not isinstance(mesh, DeviceMesh):
        raise WeftError(f"a Graph and a DeviceMesh are searched, got {graph!r} and {mesh!r}")
    if as_count(budget, "budget") < 1:
        raise WeftError("a search with a budget of 0 plans looks at nothing")
    run = _Search(graph, mesh, machine or Machine(), tuple(objectives), seed, engine)
    run.storage = storage or {}
    check_storage(graph, run.storage)
    bar = Bar() if progress is True or (progress is None and sys.stderr.isatty()) else None
    run.progress = bar or (progress if callable(progress) else None)
    is_complete = True
    with _uncollected():
        try:
            run.look(budget, rewrite)
        except KeyboardInterrupt:
            is_complete = False
        finally:
            if bar is not None:
                bar.close()
        return run.front(is_complete)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage in circles meanwhile: there are many objects, and no circles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
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
    progress: Callable[[Progress], None] | None = None
    storage: Wanted = field(default_factory=dict)
    found: list[tuple[Problem, list[int]]] = field(default_factory=list)
    is_exact: bool = True
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
        written = [Variant("as written", self.graph)]
        every = variants(self.graph, self.mesh.size) if rewrite else written
        for number, variant in enumerate(every):
            self.stage = variant.name, number / len(every), 1 / len(every)
            self._say(0.0)
            self._search(self._pose(variant.graph), budget // len(every))
            self._say(1.0)

    def _pose(self, graph: Graph) -> Problem:
        return pose(graph, self.mesh, self.machine, storage=self.storage)

    def _search(self, problem: Problem, budget: int) -> None:
        is_large = len(problem.graph.applications) > LARGE
        classes = share(problem) if is_large else range(len(problem.decisions))
        model, rng = Model(problem, classes), Random(self.seed)
        if self.engine == "integer":
            self._add(model, [solve(model.priced(self._weights())).chosen])
            return
        scout = Scout(model, self.goal, rng)
        known = self._scouted(scout)
        if self.engine in ("auto", "exact") and not (is_large and self.engine == "auto"):
            try:
                self._sweep(problem, known)
                return
            except TooWideError:
                if self.engine == "exact":
                    raise WeftError(
                        "the graph is too wide for the exact engine", hint="take engine='auto'"
                    ) from None
        self.is_exact = False
        is_open = len(self.objectives) > 1 or not self._fits(problem, known)
        can_breed = self.engine == "evolve" or find_spec("pymoo") is not None
        if is_open and self.engine != "descend" and can_breed:
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
            del self.found[before:]
            self._add(model, plans)
            self._say(min(1.0, number * CROWD / max(budget, 1)))

    def _say(self, part: float) -> None:
        """Tell how far the variant is that is being searched."""
        if self.progress is not None:
            name, before, whole = self.stage
            points = [self._point(problem, found) for problem, found in self.found]
            front = tuple(tuple(point) for point, _ in best((p, None) for p in points))
            self.progress(Progress(name, before + whole * part, front))

    # -- the front

    def front(self, is_complete: bool) -> ParetoFront:
        """The best of what was found, priced exactly."""
        if not self.found:
            problem = self._pose(self.graph)
            self.found.append((problem, problem.start))
        chosen = self._chosen()
        costs = [self._cost(problem.plan(found)) for problem, found in chosen]
        fitting = [cost for cost in costs if cost.fits]
        if not fitting:
            raise self._too_small(costs)
        fitting.sort(key=lambda cost: (max(cost.peak), cost.moved, cost.seconds))
        found = best((self._values(cost), cost) for cost in fitting)
        exact = self.is_exact and is_complete and self.engine != "integer" and not self._is_shared
        return ParetoFront(self.objectives, tuple(cost for _, cost in found), exact, is_complete)

    def _chosen(self) -> list[tuple[Problem, list[int]]]:
        """The plans whose prices are best; of many in a large graph some that lie apart."""
        points = sorted(
            ((self._point(*one), one) for one in self.found), key=lambda pair: pair[0][1:]
        )
        fitting = [pair for pair in points if pair[0][1] <= self.machine.capacity]
        if not fitting:
            return [min(points, key=lambda pair: pair[0][1])[1]]
        order = [("time", "peak_memory", "bytes").index(name) for name in self.objectives]
        front = best(([point[n] for n in order], one) for point, one in fitting)
        if len(front) > POINTS and len(self.graph.applications) > LARGE:
            step = (len(front) - 1) / (POINTS - 1)
            front = [front[round(n * step)] for n in range(POINTS)]
        return [one for _, one in front]

    def _cost(self, plan: Plan) -> Cost:
        """What a plan takes with all fused that is placed alike, which never makes it worse."""
        fused = plan.fused()
        return estimate(settle_inputs(fused, self.storage), self.machine, self.storage)

    @property
    def _is_shared(self) -> bool:
        """Whether several read a stored input: prices are then no sums, and nothing is proved."""
        return any(Stored(p.graph, self.machine, self.storage).is_shared for p, _ in self.found)

    def _values(self, cost: Cost) -> list[float]:
        return [OBJECTIVES[name](cost) for name in self.objectives]

    def _point(self, problem: Problem, found: Found) -> tuple[float, float, float]:
        key = (id(problem), *found)
        if key not in self._points:
            price = problem.price(found)
            self._points[key] = problem.seconds(price), problem.peak(found), price.received
        return self._points[key]

    def _too_small(self, costs: Sequence[Cost]) -> WeftError:
        """Which array does not fit, and by how much."""
        cost = min(costs, key=lambda cost: max(cost.peak))
        plan, peak, capacity = cost.plan, max(cost.peak), self.machine.capacity
        held = next(moment for moment in moments(plan) if max(moment.cells) == peak)
        cell = held.cells.index(peak)
        sizes = {
            name: sizes_of(spec, plan.graph.values[name].shape, plan.itemsize(name))[cell]
            for name, spec in plan.specs.items()
        }
        largest = max(sizes, key=lambda name: sizes[name])
        return WeftError(
            f"no plan fits: cell {cell} holds {peak} B while {held.what} runs, "
            f"{peak - capacity:.0f} B more than its {capacity:.0f} B; the largest array is "
            f"{plan.graph.values[largest]}, of which it holds {sizes[largest]} B as "
            f"{plan.specs[largest]}",
            hint="take a larger mesh, a machine with more capacity, or a smaller program",
        )
