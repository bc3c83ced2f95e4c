"""Lower a plan to a program: the one place where a plan becomes instructions.

- A value has allocations of its own from when it is made to its last use. What is moved to an
  application lies beside it until the application has run.
- A reshard is a chain of transfers; each result is freed when the next one is there, the source
  when the last one is. Where a cell ends up with a view, it is copied, so that nothing else stays.
- A loop owns what its body changes; what the body returns as it came, and what regions take from
  outside, stays with whoever has it.
- Of a stored input every application reads what it needs, halos included, and nothing moves for it.
  A loop, a branch or an output takes it as it is sharded: it is then read at the start, and what
  lies in that is not read again. Stored outputs are written when all outputs are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from weft.errors import WeftError
from weft.lang import Graph
from weft.lang.definition import define
from weft.lang.monoid import check_parts
from weft.lang.region import arguments
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.layout.shardy_text import write_axis
from weft.plan.delivery import deliver
from weft.plan.liveness import handed, invariant, lives
from weft.plan.machine import Machine
from weft.plan.placed import Placed, kept_of, layout_of
from weft.plan.resharding.reshard import Reshard
from weft.plan.resharding.step import Step
from weft.plan.stored import check_stored, lies
from weft.plan.trip_count import Known, analyze_loop, known_inside, known_values, taken_branch
from weft.program.instructions import (
    Apply,
    Body,
    Branch,
    Buffer,
    Copy,
    Free,
    GraphDefinition,
    Instruction,
    Loop,
    Mask,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.layout_rule import Cells, Layout, Parts, lies_inside, same_boxes
from weft.program.program import Program
from weft.program.storage import Storage
from weft.space import Digit
from weft.values import MONOIDS, FrozenMap, Point

if TYPE_CHECKING:
    from weft.plan.plan import Plan


def lower(
    plan: Plan,
    owned: Collection[str] | None = None,
    storage: Mapping[str, Storage] | None = None,
) -> Program:
    """Return the program of a plan; of its inputs all are its own, or those that are `owned`.

    `storage` has the inputs that are read from storage, and the outputs that are written to it.
    """
    check_stored(plan, storage or {})
    lowering = _Lowering(plan, storage or {})
    owned = [value.name for value in plan.graph.inputs] if owned is None else owned
    lowering.bodies.append(None)
    lowering.graphs.append(plan.graph)
    main = _BodyLowering(lowering, plan, define(plan.graph), owned, {}, lowering.storage)
    lowering.bodies[0] = main.body()
    bodies = tuple(body for body in lowering.bodies if body is not None)
    for name, spec, buffer in zip(plan.graph.outputs, plan.outputs, main.returned):
        layout = lowering.buffers[buffer].layout
        if layout != layout_of(spec, layout.shape):
            raise WeftError(f"output {name} lies as {layout}, and the plan says {spec}")
    parts = {(m, buffer.dtype) for buffer in lowering.buffers for _, m in buffer.layout.parts}
    for monoid, dtype in parts:
        check_parts(monoid, dtype)
    names = sorted({monoid for monoid, _ in parts})
    monoids = {name: MONOIDS[name] for name in names if MONOIDS[name] is not None}
    return Program(
        lowering.cells,
        tuple(lowering.buffers),
        bodies,
        tuple(lowering.graphs),
        plan.mesh,
        {**bodies[0].graph.monoids, **monoids},
        lowering.storage,
    )


class _Lowering:
    """The buffers, bodies and layouts that the bodies of one program share."""

    def __init__(self, plan: Plan, storage: Mapping[str, Storage]) -> None:
        self.mesh, self.machine, self.storage = plan.mesh, plan.machine, FrozenMap(storage.items())
        self.cells = Cells(plan.mesh.shape, plan.mesh.device_ids)
        self.buffers: list[Buffer] = []
        self.bodies: list[Body | None] = []
        self.graphs: list[Graph] = []
        self.layouts: dict[object, Layout] = {}

    def layout(self, spec: ShardingSpec, shape: Point) -> Layout:
        """Return the layout of a sharding, made once."""
        key = spec, shape
        if key not in self.layouts:
            if spec.mesh != self.mesh:
                raise WeftError(f"{spec} lies on {spec.mesh}, and the plan runs on {self.mesh}")
            self.layouts[key] = layout_of(spec, shape)
        return self.layouts[key]

    def index(self, placed: Placed) -> Layout:
        """Return the boxes of an application's index space."""
        return self.layout(placed.index, tuple(placed.signature.sizes.values()))


class _BodyLowering:
    """Lowers one graph, or a region of one, with the plan that it has."""

    def __init__(
        self,
        lowering: _Lowering,
        plan: Plan,
        definition: GraphDefinition,
        owned: Collection[str],
        known: Known,
        storage: Mapping[str, Storage] | None = None,
    ) -> None:
        if plan.mesh != lowering.mesh:
            raise WeftError(f"a region runs on {plan.mesh}, and the plan on {lowering.mesh}")
        self.shared, self.plan, self.graph = lowering, plan, plan.graph
        self.definition, self.given = definition, known
        inputs = {value.name for value in plan.graph.inputs}
        self.stored = inputs & set(storage or {})
        self.written = {
            plan.graph.outputs.index(name) for name in storage or {} if name not in inputs
        }
        """The outputs that are written, each where it comes first."""
        self.owned = set(owned)
        self.borrowed = inputs - self.owned - self.stored
        self.lives = lives(plan.graph)
        self.code: list[Instruction] = []
        self.made: list[int] = []
        self.held: dict[str, int] = {}
        """The buffer of every value that is there."""
        self.returned: list[int] = []
        """The buffer of every output, those that are written included."""

    def body(
        self, unchanged: Collection[int] = (), reshards: Sequence[Reshard] | None = None
    ) -> Body:
        """Return the body; outputs that are `unchanged` are returned as they came.

        `reshards` follow the graph's own reshards of its outputs: those of a branch.
        """
        plan, graph = self.plan, self.graph
        names = [value.name for value in graph.inputs if value.name not in self.stored]
        given = tuple(self._buffer(name, self._layout(name, plan.specs[name])) for name in names)
        self.held.update(zip(names, given))
        owned = {n for n, name in enumerate(names) if name in self.owned}
        for value in graph.inputs:
            if value.name in self.stored and lies(graph, value.name):
                layout = self._layout(value.name, plan.specs[value.name])
                self.held[value.name] = self._read(value.name, layout)
        self._end(self.lives.unused)
        starts: list[int] = []
        for number in range(len(graph.applications)):
            starts.append(len(self.code))
            self._application(number)
        starts.append(len(self.code))
        later = [n for n in range(len(graph.outputs)) if n not in unchanged]
        for place, name in enumerate(graph.outputs):
            if place in unchanged:
                self.returned.append(self.held[name])
                continue
            later.remove(place)
            is_last = name not in self.borrowed and all(graph.outputs[n] != name for n in later)
            made = self._keep(self.held[name], plan.returns[place], is_last)
            if reshards is not None:
                made = self._keep(made, reshards[place], True)
            self.returned.append(made)
        self.code += (Write(self.returned[n], graph.outputs[n]) for n in sorted(self.written))
        self._free(self.returned[n] for n in sorted(self.written))
        results = [each for n, each in enumerate(self.returned) if n not in self.written]
        return Body(
            self.definition,
            given,
            tuple(self.code),
            tuple(results),
            frozenset(owned),
            tuple(starts),
            tuple(self.made),
        )

    # Buffers.

    def _layout(self, name: str, spec: ShardingSpec) -> Layout:
        return self.shared.layout(spec, self.graph.values[name].shape)

    def _buffer(self, name: str, layout: Layout) -> int:
        value = self.graph.values[name]
        self.shared.buffers.append(Buffer(name, value.dtype, self.plan.itemsize(name), layout))
        return len(self.shared.buffers) - 1

    def _like(self, buffer: int, layout: Layout) -> int:
        """Return a new buffer of the same value in another layout."""
        old = self.shared.buffers[buffer]
        self.shared.buffers.append(Buffer(old.value, old.dtype, old.itemsize, layout))
        return len(self.shared.buffers) - 1

    def _free(self, buffers: Iterable[int]) -> None:
        found = tuple(buffers)
        if found:
            self.code.append(Free(found))

    def _end(self, names: Iterable[str]) -> None:
        self._free(self.held.pop(n) for n in names if n not in self.borrowed and n in self.held)

    # Movement.

    def _step(self, source: int, step: Step) -> int:
        """Emit one step of a reshard."""
        before = self.shared.buffers[source].layout
        result = self._like(source, self.shared.layout(step.after, before.shape))
        self.code.append(_instruction(step, source, result, before))
        return result

    def _chain(self, source: int, steps: Iterable[Step]) -> int:
        """Emit steps one after another; each result is freed when the next one is there."""
        at = source
        for step in steps:
            result = self._step(at, step)
            if at != source:
                self._free([at])
            at = result
        return at

    def _keep(self, source: int, reshard: Reshard, is_last: bool) -> int:
        """Emit a reshard after which every cell has an allocation of its own.

        Where this `is_last` use of the source, it is freed.
        """
        if is_last and not reshard.steps:
            return source
        at = self._chain(source, reshard.steps)
        result = self._like(at, self.shared.buffers[at].layout)
        ends = [buffer for buffer in (at, source) if buffer != source or is_last]
        self.code.append(Copy(at, result, tuple(dict.fromkeys(ends))))
        return result

    # Applications.

    def _application(self, number: int) -> None:
        application, plan = self.graph.applications[number], self.plan
        placed, line = plan.placed[number], self.graph.signatures[number]
        if placed.mesh != plan.mesh:
            raise WeftError(
                f"{application.operator} is placed on {placed.mesh}, and runs on {plan.mesh}"
            )
        if placed.signature != line:
            raise WeftError(
                f"{application.operator} is placed as {placed.signature}, and the graph has {line}"
            )
        ends = self.lives.ends[number]
        if not application.results:
            self.made.append(len(self.code))
            self._end(ends)
            return
        made: list[int | None]
        match application.operator, bool(application.regions):
            case "while", True:
                made = self._loop(number)
            case (("case" | "if"), True):
                made = list(self._branch(number))
            case _:
                made = list(self._apply(number))
        self.made.append(len(self.code))
        for name, buffer, reshard in zip(application.results, made, plan.result_reshards[number]):
            if buffer is not None:
                self.held[name] = self._keep(buffer, reshard, True)
        self._end(ends)

    def _apply(self, number: int) -> Point:
        application, placed = self.graph.applications[number], self.plan.placed[number]
        delivered: dict[object, int] = {}
        operands, temporary = [], []
        for place, name in enumerate(application.operands):
            key = name, _operand(placed, place)
            if key not in delivered:
                delivered[key] = self._bring(number, place)
                if delivered[key] != self.held.get(name):
                    temporary.append(delivered[key])
            operands.append(delivered[key])
        results = tuple(
            self._buffer(name, self._layout(name, spec))
            for name, spec in zip(application.results, placed.results)
        )
        digit = self.shared.mesh.digit
        factors = tuple(
            ((digit(axis)._replace(stride=1),), monoid, tuple(sorted(group)))
            for axis, (monoid, group) in kept_of(placed).items()
            if digit(axis).radix > 1
        )
        index = self.shared.index(placed)
        self.code.append(Apply(number, tuple(operands), results, index, factors))
        self._free(temporary)
        return results

    def _bring(self, number: int, place: int) -> int:
        """Emit how an operand comes to an application; return the buffer that it reads."""
        plan = self.plan
        application, placed = self.graph.applications[number], plan.placed[number]
        name = application.operands[place]
        if name in self.stored and not application.regions:
            return self._bring_stored(name, placed, place)
        source, width = self.held[name], plan.itemsize(name)
        delivery = deliver(placed, place, plan.specs[name], width, plan.machine)
        at = self._chain(source, delivery.steps)
        if delivery.takes_boxes:
            result = self._like(at, delivery.need)
            fetch = Transfer(at, result, kind="fetch")
            self.code.append(fetch if delivery.fetches else Slice(at, result))
            at = self._drop(source, at, result)
        return self._masked(source, at, placed, place, delivery.masked)

    def _bring_stored(self, name: str, placed: Placed, place: int) -> int:
        """Emit how an operand comes from storage, or from what was read of it."""
        shared, source = self.shared, self.held.get(name)
        need = placed.operand_layout(place)
        if source is None or not lies_inside(need, shared.buffers[source].layout):
            at = self._read(name, need)
        elif same_boxes(need, shared.buffers[source].layout):
            at = source
        else:
            at = self._like(source, need)
            self.code.append(Slice(source, at))
        return self._masked(source, at, placed, place, placed.operand_parts(place))

    def _read(self, name: str, layout: Layout) -> int:
        result = self._buffer(name, layout)
        self.code.append(Read(name, result))
        return result

    def _masked(
        self, source: int | None, at: int, placed: Placed, place: int, masked: Parts
    ) -> int:
        """Emit the mask of an operand of which copies become parts, if any do."""
        if not masked:
            return at
        result = self._like(at, _operand(placed, place))
        self.code.append(_mask(at, result, masked))
        return self._drop(source, at, result)

    def _drop(self, source: int | None, before: int, after: int) -> int:
        """Free what lies between the source and the last result."""
        if before != source:
            self._free([before])
        return after

    # Loops and branches.

    @cached_property
    def _known(self) -> Known:
        """The numbers that the program is sure of."""
        return known_values(self.graph, self.given)

    def _region(
        self,
        number: int,
        place: int,
        owned: Collection[str],
        known: Known,
        unchanged: Collection[int] = (),
        reshards: Sequence[Reshard] | None = None,
    ) -> tuple[int, Point]:
        """Lower a region; return its body and the buffers that it takes from outside."""
        shared = self.shared
        inner, definition = self.plan.regions[number][place], self.definition.applications[number]
        at = len(shared.bodies)
        shared.bodies.append(None)
        shared.graphs.append(inner.graph)
        region = definition.regions[place]
        shared.bodies[at] = _BodyLowering(shared, inner, region, owned, known).body(
            unchanged, reshards
        )
        outside = set(self.graph.applications[number].operands)
        names = [value.name for value in inner.graph.inputs if value.name in outside]
        return at, tuple(self.held[name] for name in names)

    def _loop(self, number: int) -> list[int | None]:
        plan, application = self.plan, self.graph.applications[number]
        condition, body = plan.regions[number]
        ends, reshards = self.lives.ends[number], plan.loop_reshards[number]
        unchanged = invariant(application, body.graph, body.returns)
        taken = handed(application, ends, self.borrowed)
        carried, borrowed = [], set[int]()
        for n, name in enumerate(application.operands[: len(application.results)]):
            source = self.held.pop(name) if n in taken else self.held[name]
            if n in unchanged and n not in taken and not reshards.entry[n].steps:
                borrowed.add(n)
                carried.append(source)
            else:
                carried.append(self._keep(source, reshards.entry[n], n in taken))
        known = self._known
        loop = analyze_loop(application, known)
        first = self._region(
            number, 0, (), known_inside(application, condition.graph, known, loop.constants)
        )
        names = [value.name for value in arguments(application, body.graph)]
        second = self._region(
            number,
            1,
            [name for n, name in enumerate(names) if n not in unchanged],
            known_inside(application, body.graph, known, loop.constants),
            unchanged,
        )
        results = tuple(
            self._buffer(result, self.shared.buffers[buffer].layout)
            for result, buffer in zip(application.results, carried)
        )
        self.code.append(
            Loop(
                number,
                first[0],
                second[0],
                tuple(carried),
                (first[1], second[1]),
                results,
                frozenset(range(len(carried))) - borrowed,
                loop.trip_count,
            )
        )
        made: list[int | None] = []
        for n, (name, result) in enumerate(zip(application.results, results)):
            if n not in borrowed:
                made.append(self._keep(result, reshards.exit[n], True))
            elif name in ends:
                self._free([result])
                made.append(None)
            else:
                made.append(self._keep(result, reshards.exit[n], False))
                self._free([result])
        return made

    def _branch(self, number: int) -> Point:
        plan, application = self.plan, self.graph.applications[number]
        known = self._known
        bodies, captured = [], []
        for place, inner in enumerate(plan.regions[number]):
            reshards = plan.branch_reshards[number][place]
            facts = known_inside(application, inner.graph, known)
            body, outside = self._region(number, place, (), facts, (), reshards)
            bodies.append(body)
            captured.append(outside)
        results = tuple(
            self._buffer(name, self._layout(name, spec))
            for name, spec in zip(application.results, plan.placed[number].results)
        )
        selector = self.held[application.operands[0]]
        taken = taken_branch(application, known)
        self.code.append(Branch(number, selector, tuple(bodies), tuple(captured), results, taken))
        return results


def _operand(placed: Placed, place: int) -> Layout:
    """Return the layout in which an application reads an operand."""
    return placed.operand_layout(place).with_parts(placed.operand_parts(place))


def _instruction(step: Step, source: int, result: int, before: Layout) -> Instruction:
    """Return a step of a reshard as an instruction."""
    if step.kind == "mask":
        return _mask(source, result, step.parts.masked)
    is_local = step.kind == "slice" and step.before.mesh == step.after.mesh
    is_local &= not step.route.combine  # parts of an array without elements are combined as well
    if is_local and lies_inside(layout_of(step.after, before.shape), before):
        return Slice(source, result)
    return transfer_of(step, source, result)


def _mask(source: int, result: int, parts: Iterable[tuple[Digit, str]]) -> Mask:
    found = [(digit._replace(stride=1), monoid) for digit, monoid in parts if digit.radix > 1]
    monoids = {monoid for _, monoid in found}
    if len(monoids) != 1:
        raise WeftError(f"a mask by {' and '.join(sorted(monoids)) or 'nothing'} at once")
    return Mask(source, result, tuple(digit for digit, _ in found), monoids.pop())


def transfer_of(step: Step, source: int, result: int) -> Transfer:
    """Return a step of a reshard as a transfer between two buffers."""
    route = step.route
    return Transfer(
        source, result, route.combine, route.kept, step.kind, route.balance, route.one_to_one
    )


@lru_cache(maxsize=1 << 14)
def sharding_of(mesh: DeviceMesh, layout: Layout) -> ShardingSpec | None:
    """Return the sharding that gives a layout on a mesh; None where there is none, as of halos."""
    if layout.image is not None:
        return None
    edges = layout.grid.edges
    dims = [
        DimSpec(map(mesh.axis, cut), cut_points=None if at is None else at[1:-1])
        for cut, at in zip(layout.cuts, edges)
    ]
    parts = [(mesh.axis(digit), monoid) for digit, monoid in layout.parts]
    return ShardingSpec(mesh, dims, (), parts)


@lru_cache(maxsize=4096)
def reshard_program(reshard: Reshard) -> Program:
    """Return a program that takes one array from one sharding to another, and does not free it."""
    src, shape = reshard.src, reshard.shape
    buffers = [Buffer("", "", reshard.itemsize, layout_of(src, shape))]
    code: list[Instruction] = []
    for step in reshard.steps:
        source, result = len(buffers) - 1, len(buffers)
        buffers.append(Buffer("", "", reshard.itemsize, layout_of(step.after, shape)))
        code.append(_instruction(step, source, result, buffers[source].layout))
        if source:
            code.append(Free((source,)))
    graph = GraphDefinition(("",), {"": shape}, (), ("",))
    body = Body(graph, (0,), tuple(code), (len(buffers) - 1,), frozenset([0]), (0,))
    return Program(buffers[0].layout.cells, tuple(buffers), (body,))


def transfer_axes(program: Program, transfer: Transfer) -> str:
    """Return the mesh axes that a transfer is about, as text."""
    mesh = program.mesh
    before, after = (
        sharding_of(mesh, program.buffers[n].layout) for n in (transfer.source, transfer.result)
    )
    if before is None or after is None:
        return ""
    step = Step(
        transfer.kind,  # type: ignore[arg-type]
        before,
        after,
        program.buffers[transfer.source].layout.shape,
        1,
        Machine(),
        0.0,
    )
    return ", ".join(map(write_axis, step.axes))
