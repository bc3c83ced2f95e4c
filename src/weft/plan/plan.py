"""`Plan`: a graph with every placement chosen and every move known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.lang import Application, Graph
from weft.lang.definition import define
from weft.lang.dtype import itemsize
from weft.lang.operator import OPERATORS, Library
from weft.lang.region import arguments, read_as_kept
from weft.layout import DeviceMesh, ShardingSpec
from weft.plan.chunking import Chunking
from weft.plan.fuse import fuse_plan, without_products
from weft.plan.lower import lower
from weft.plan.machine import Machine
from weft.plan.picture import draw_plan
from weft.plan.placed import Placed, fit
from weft.plan.plan_file import read_plan, write_plan
from weft.plan.propagation.propagate import Propagation
from weft.plan.resharding.reshard import Reshard, plan_reshard
from weft.plan.stored import settled_storage
from weft.program import Apply, Executed, Free, Mask, Program, Proof, Slice, Storage, Transfer
from weft.values import FrozenMap, Point


class LoopReshards(NamedTuple):
    """The reshards of the values that a loop carries, at its entry and at its exit."""

    entry: tuple[Reshard, ...]
    exit: tuple[Reshard, ...]


@dataclass(frozen=True)
class Plan(Drawn):
    """A graph with the sharding of every value and the placement of every application.

    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w,
    ...     (8, 16),
    ...     (16, 32),
    ...     meshes=['@m = <["dp"=2, "tp"=4]>'],
    ...     shardings={"x": '<@m, [{"dp"}, {"tp"}]>'},
    ... )
    >>> plan = Plan.of(propagate(graph))
    >>> print(plan)
    matmul  matmul m: {"dp"}, k: {"tp"}           <@m, [{"dp"}, {}], unreduced={"tp"}>
    matmul  reduce_scatter, all_gather of matmul  6144 B
    >>> plan.verify().applications[0]
    AppliedProof(operator='matmul', boxes=8, parts=4)
    """

    graph: Graph
    mesh: DeviceMesh
    specs: Mapping[str, ShardingSpec]
    """The sharding of every value."""
    outputs: tuple[ShardingSpec, ...]
    """The sharding of every output."""
    placed: tuple[Placed, ...]
    machine: Machine | None = None

    regions: Mapping[int, tuple[Plan, ...]] = FrozenMap(())
    """The plans of the regions of loops and branches, by application."""

    @classmethod
    def of(cls, found: Propagation, machine: Machine | None = None, **sizes: int) -> Plan:
        """Return the plan that follows from a propagation, with numbers for unknown sizes.

        A partial result that one application uses stays partial until that one needs it. Products
        before their sum are fused with it, so that they are never held in full.
        """
        if not isinstance(found, Propagation):
            raise WeftError(
                f"a plan follows from a propagation, got {found!r}",
                hint="Plan.of(propagate(graph))",
            )
        if sizes:
            found = found.bind(sizes)
        found.graph.check_bound("a plan")
        maker = _Maker(found, machine)
        return without_products(maker.plan(found.graph, found.output_specs))

    def fused(self) -> Plan:
        """Return the plan with producers fused into consumers that are placed alike.

        Nothing more moves, no cell holds more, and it takes no longer.
        """
        return fuse_plan(self)

    @cached_property
    def result_reshards(self) -> tuple[tuple[Reshard, ...], ...]:
        """For every application the reshards of its results to the shardings they are kept in."""
        return tuple(
            tuple(
                self.reshard(name, made, self.specs[name])
                for name, made in zip(application.results, placed.results)
            )
            for application, placed in zip(self.graph.applications, self.placed)
        )

    @cached_property
    def returns(self) -> tuple[Reshard, ...]:
        """The reshards of the outputs."""
        return tuple(
            self.reshard(name, self.specs[name], wanted)
            for name, wanted in zip(self.graph.outputs, self.outputs)
        )

    @cached_property
    def loop_reshards(self) -> Mapping[int, LoopReshards]:
        """For every loop the reshards of its values at entry and exit."""
        found = {}
        for number, application in enumerate(self.graph.applications):
            if application.operator != "while" or not application.regions:
                continue
            body, placed = self.regions[number][1], self.placed[number]
            inside = [body.specs[value.name] for value in arguments(application, body.graph)]
            operands, results = application.operands, application.results
            found[number] = LoopReshards(
                tuple(map(self.reshard, results, map(self.specs.__getitem__, operands), inside)),
                tuple(map(self.reshard, results, inside, placed.results)),
            )
        return found

    @cached_property
    def branch_reshards(self) -> Mapping[int, tuple[tuple[Reshard, ...], ...]]:
        """For every branch of a choice the reshards of what it returns."""
        return {
            number: tuple(
                tuple(map(self.reshard, application.results, inner.outputs, placed.results))
                for inner in self.regions[number]
            )
            for number, (application, placed) in enumerate(
                zip(self.graph.applications, self.placed)
            )
            if application.operator in ("case", "if") and application.regions
        }

    def reshard(self, name: str, src: ShardingSpec, dst: ShardingSpec) -> Reshard:
        """Return the reshard of a value from one sharding to another."""
        shape = self.graph.values[name].shape
        return plan_reshard(src, dst, shape, self.itemsize(name), self.machine)

    def itemsize(self, name: str) -> int:
        """Return the bytes of an element of a value."""
        return itemsize(self.graph.values[name].dtype)

    @cached_property
    def program(self) -> Program:
        """The plan lowered to instructions: what is verified, counted, priced and executed."""
        return lower(self)

    def program_with(self, storage: Mapping[str, Storage | Chunking]) -> Program:
        """Return the program that reads inputs from storage and writes outputs to it.

        Chunks of outputs that are left open are chosen.

        >>> from weft import propagate, trace
        >>> from weft.plan import Storage
        >>> graph = trace(
        ...     lambda x: x + x, (8, 4), meshes=['@m = <["x"=2]>'],
        ...     shardings={"x": '<@m, [{"x"}, {}]>'},
        ... )
        >>> stored = Storage((8, 4), (2, 4), itemsize=4)
        >>> print(Plan.of(propagate(graph)).program_with({"x": stored, "add": stored}))
        main()
          %0: x float32[8, 4] [{0/2}, {}] = read x, 8 x 4 in chunks of 2 x 4
          %1: add float32[8, 4] [{0/2}, {}] = add %0 %0 over [{0/2}, {}]
          free %0
          write %1 to add, 8 x 4 in chunks of 2 x 4
          free %1
          return nothing
        """
        settled = settled_storage(self, storage)
        if not settled:
            return self.program
        key = tuple(sorted(settled.items(), key=lambda item: item[0]))
        if key not in self._stored_programs:
            self._stored_programs[key] = lower(self, storage=settled)
        return self._stored_programs[key]

    @cached_property
    def _stored_programs(self) -> dict[object, Program]:
        return {}

    @property
    def received(self) -> Point:
        """The bytes that each device receives in all."""
        return self.program.count.received_by_cell

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions about loops and branches; empty if bytes are exact."""
        return self.program.count.assumed

    @property
    def peak(self) -> Point:
        """The most bytes that each cell holds while it runs."""
        return self.program.count.peak

    def made_by(self, number: int) -> list[Executed]:
        """Return what is executed until an application has made its results, loops included.

        How its results come to lie as they are kept does not belong to it.
        """
        made = self.program.main.made[number]
        return [
            each
            for each in self.program.count.executed
            if each.root == number and (each.body or each.place < made)
        ]

    def verify(self, graph: Graph | None = None) -> Proof:
        """Prove that the plan's program computes its graph, or another graph.

        The program is what executors run; the graph's definition, which `weft.lang` writes, says
        what is to be computed. `weft.program.verify` compares the two, and knows nothing else of
        Weft. What it cannot prove raises `VerificationError`. Kernels, the executors' code and
        what carries arrays between cells are outside the proof.
        """
        return self.program.verify(None if graph is None else define(graph))

    def drawing(self) -> Drawing:
        """Return a picture of the applications, the shardings of values, and what moves."""
        return draw_plan(self)

    def to_json(self, indent: int | None = 1) -> str:
        """Return the plan as JSON, from which `from_json` reads an equal one; see `plan_file`."""
        return write_plan(self, indent)

    @classmethod
    def from_json(cls, text: str, operators: Library = OPERATORS) -> Plan:
        """Read a plan from its text; `verify` proves what was read."""
        return cls(*read_plan(text, cls, operators))

    def __str__(self) -> str:
        moves: dict[int | None, list[MovedValue]] = {}
        for move in moved_values(self.program):
            moves.setdefault(move.root, []).append(move)
        rows = [row for n in range(len(self.placed)) for row in self._rows(n, moves.get(n, []))]
        rows += [move.row for move in moves.get(None, ())]
        wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        lines = [f"{a:{wide[0]}}  {b:{wide[1]}}  {c}".rstrip() for a, b, c in rows]
        return "\n".join([*lines, *(f"assumed: {text}" for text in self.assumed)])

    def _rows(self, number: int, moves: list[MovedValue]) -> Iterator[tuple[str, str, str]]:
        """Return what moves to an application, what it computes, what moves in and from it."""
        application, placed = self.graph.applications[number], self.placed[number]
        yield from (move.row for move in moves if move.is_before)
        cut = [f"{name}: {dim}" for name, dim in placed.cuts.items()]
        what = f"{application.operator} {', '.join(cut)}".rstrip()
        yield ", ".join(application.results), what, ", ".join(map(str, placed.results))
        yield from (move.row for move in moves if not move.is_before)


@dataclass(frozen=True, slots=True)
class MovedValue:
    """A value that goes from one layout to another, in one transfer or in several."""

    name: str
    """The results of the application for which it moves, or the output."""
    value: str
    steps: tuple[Executed, ...]
    """The transfers, one after another."""
    received: int
    """The bytes that all cells receive, in all the times together."""
    is_before: bool
    """Whether an application of the main body computes after it."""

    @property
    def root(self) -> int | None:
        """The application of the main body in which it moves; None for an output."""
        return self.steps[0].root

    @property
    def inside(self) -> str:
        """The loops and branches around it, as a text."""
        return self.steps[0].inside

    @property
    def row(self) -> tuple[str, str, str]:
        """The move as a row of a table."""
        kinds = ", ".join(each.instruction.kind for each in self.steps)  # type: ignore[union-attr]
        what = kinds if self.root is None else f"{self.inside}{kinds} of {self.value}"
        return self.name, what, f"{self.received} B"


def moved_values(program: Program) -> Iterator[MovedValue]:
    """Return the values that move when a program runs, in order."""
    count, chain = program.count, list[Executed]()
    for at, each in enumerate(count.executed):
        if not isinstance(each.instruction, Transfer) or not count.total(each.instruction):
            continue
        chain.append(each)
        following = _next_transfer(count.executed, at)
        if following is None:
            yield _moved_value(program, tuple(chain))
            chain = []


def _next_transfer(executed: Sequence[Executed], at: int) -> Executed | None:
    """Return the transfer that takes what another has made further, if there is one."""
    last = executed[at].instruction
    assert isinstance(last, Transfer)
    for each in executed[at + 1 :]:
        if isinstance(each.instruction, Transfer | Mask | Slice):
            if each.instruction.source == last.result:
                return each if isinstance(each.instruction, Transfer) else None
            return None
        if not isinstance(each.instruction, Free):
            return None
    return None


def _moved_value(program: Program, steps: tuple[Executed, ...]) -> MovedValue:
    first = steps[0]
    assert isinstance(first.instruction, Transfer)
    body, graph = program.bodies[first.body], program.graphs[first.body]
    value = program.buffers[first.instruction.source].value
    number = body.application_at(first.place)
    name = value if number is None else ", ".join(graph.applications[number].results)
    code = body.instructions[first.place : body.starts[number + 1]] if number is not None else ()
    is_before = first.body == 0 and any(isinstance(each, Apply) for each in code)
    total = sum(
        each.times * program.count.total(each.instruction)
        for each in steps
        if isinstance(each.instruction, Transfer)
    )
    return MovedValue(name, value, steps, total, is_before)


class _Maker:
    """Makes the plan of a graph and of the regions in it, in the order of the program."""

    def __init__(self, found: Propagation, machine: Machine | None) -> None:
        self.found, self.machine = found, machine
        self.mesh = found.mesh
        self.placements = map(found.cuts, count())
        self.specs = {name: self._on_mesh(name, spec) for name, spec in found.specs.items()}

    def plan(self, graph: Graph, wanted: Sequence[ShardingSpec]) -> Plan:
        uses, as_kept = Counter(graph.outputs), set[str]()
        for application in graph.applications:
            uses.update(application.operands)
            as_kept.update(read_as_kept(application))
        kept = {*graph.outputs, *graph.shardings, *as_kept}
        settled = self.found.settled if graph is self.found.graph else None
        specs = {name: self.specs[name] for name in graph.values}
        if settled:
            specs |= settled.specs
        placed, regions = [], dict[int, tuple[Plan, ...]]()
        for number, application in enumerate(graph.applications):
            line, stay = graph.signatures[number], settled.kept[number] if settled else None
            placed.append(fit(self.mesh, line, next(self.placements), stay))
            if application.regions:
                regions[number] = tuple(
                    self.plan(region, self._returned(application, place))
                    for place, region in enumerate(application.regions)
                )
            for name, made in zip(application.results, placed[-1].results if not settled else ()):
                if uses[name] == 1 and name not in kept:
                    specs[name] = made
            self._check_selector(application, specs)
        outputs = tuple(self._on_mesh("an output", spec) for spec in wanted)
        made_specs, inner = FrozenMap(specs.items()), FrozenMap(regions.items())
        return Plan(graph, self.mesh, made_specs, outputs, tuple(placed), self.machine, inner)

    def _check_selector(self, application: Application, specs: Mapping[str, ShardingSpec]) -> None:
        """Refuse a choice between branches on which cells could disagree."""
        if application.operator not in ("case", "if") or not application.regions:
            return
        name = application.operands[0]
        if specs[name].partial:
            raise WeftError(
                f"{application.operator} selects a branch by {name}, which is partial: "
                f"{specs[name]}",
                hint=f"give {name} a sharding that is not unreduced",
            )

    def _returned(self, application: Application, place: int) -> list[ShardingSpec]:
        """Return the shardings of a region's results: a loop's arguments, or the results."""
        region = application.regions[place]
        if application.operator != "while":
            return [self.specs[name] for name in application.results]
        if place == 0:
            return [ShardingSpec(self.mesh, ())]
        return [self.specs[value.name] for value in arguments(application, region)]

    def _on_mesh(self, name: str, spec: ShardingSpec) -> ShardingSpec:
        """Return a sharding on the plan's mesh without open dimensions."""
        if spec.mesh != self.mesh and any(dim.axes for dim in spec.dim_specs):
            raise WeftError(f"{name} lies on {spec.mesh}, and the plan is for {self.mesh}")
        dims = [dim.closed for dim in spec.dim_specs]
        return ShardingSpec(self.mesh, dims, (), spec.partial)
