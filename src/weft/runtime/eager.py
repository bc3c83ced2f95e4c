"""Apply an operator to tensors at once: propagate, place, prepare, run.

A tensor's `Kind` is all of it but its numbers and its history; there is one `Kind` for each shape,
sharding, dtype and library. What an operator does to operands of some kinds, at the end of some
program, is worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import OPERATORS, Application, Block, Graph, Operator, Signature, Value
from weft.lang.dtype import dtype_name
from weft.lang.kernel import Attributes
from weft.lang.monoid import check_parts
from weft.layout import DimSpec, ShardingSpec
from weft.plan import Plan
from weft.plan.infer import place_operands
from weft.plan.lower import lower
from weft.plan.placed import Placed
from weft.program import Apply, Program
from weft.runtime.arrays import Array
from weft.runtime.blocks import LARGE, check_dtypes, run_block
from weft.runtime.history import (
    History,
    HistoryEntry,
    Origin,
    closed,
    input_of,
    program_of,
    propagated,
    results_of,
)
from weft.runtime.local import Shards, execute, kernel_of
from weft.values import FrozenMap, Point


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """All of a tensor but its numbers and its history; a kind is equal to itself alone."""

    shape: Point
    spec: ShardingSpec | None
    dtype: Any
    """The library's own."""
    xp: Any

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)} {self.spec or ''}".rstrip()


@lru_cache(maxsize=16384)
def kind_of(shape: Point, spec: ShardingSpec | None, dtype: Any, xp: Any) -> Kind:
    """The kind of a shape, a sharding, a dtype and a library."""
    for monoid in spec.partial.values() if spec is not None else ():
        check_parts(monoid, dtype_name(dtype))
    return Kind(shape, spec, dtype, xp)


@dataclass(slots=True)
class Ready:
    """An operator and the kinds of its operands, with all worked out."""

    kernel: Compiled | Whole | Direct
    xp: Any
    specs: Sequence[ShardingSpec | None]
    shapes: Sequence[Point]
    name: str
    dtypes: Sequence[str]
    """The dtypes of the results; one stands for all."""
    kinds: dict[Any, list[Kind]] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()
    """The axes that cut the index space."""
    competes: bool = False
    """Whether an operand or a result moved: annotations wanted different things of an axis."""

    def run(self, operands: Sequence[Shards]) -> list[tuple[Kind, Shards]]:
        """The results: their kinds and their shards."""
        results: list[Shards] = list(self.kernel.run(self.xp, operands))
        key = tuple([shards[0].dtype for shards in results])
        kinds = self.kinds.get(key)
        if kinds is None:
            check_dtypes(self.name, [shards[0] for shards in results], self.dtypes)
            kinds = self.kinds[key] = [
                kind_of(shape, spec, shards[0].dtype, self.xp)
                for shape, spec, shards in zip(self.shapes, self.specs, results)
            ]
        return list(zip(kinds, results))


@dataclass(slots=True)
class Whole:
    """An application to arrays that are not cut."""

    operator: Operator
    block: Block
    slices: Sequence[tuple[slice, ...] | None]
    """The part of each operand that the operator reads; None for all of it."""

    @classmethod
    def of(cls, operator: Operator, line: Signature, attributes: Attributes, xp: Any) -> Whole:
        """An application to whole arrays."""
        block = Block(xp, line, attributes, line.space)
        slices = [
            None if box.shape == shape else box.slices()
            for box, shape in zip(block.operands, line.operand_shapes)
        ]
        return cls(operator, block, slices)

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The results, each as one shard."""
        pairs = zip(operands, self.slices)
        arrays = [shards[0] if part is None else shards[0][part] for shards, part in pairs]
        return [[array] for array in run_block(self.operator, self.block, arrays)]


@dataclass(slots=True)
class Compiled:
    """An application as a program of its own."""

    program: Program

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[Shards]:
        """The shards of every result."""
        size, main = self.program.cells.size, self.program.main
        each = {
            self.program.buffers[buffer].value: place for place, buffer in enumerate(main.arguments)
        }
        given: list[Shards] = [()] * len(main.arguments)
        for name, shards in zip(self.program.graphs[0].applications[0].operands, operands):
            given[each[name]] = shards if len(shards) == size else [shards[0]] * size
        return execute(self.program, xp, given, counts_memory=False)


@dataclass(slots=True)
class Direct:
    """An application with one result and small boxes, whose operands lie where they are needed."""

    kernel: Any
    blocks: list[Block]
    leaders: Point | None
    """None where every cell computes its own box."""

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The shards of the result."""
        kernel, count = self.kernel, len(self.blocks)
        each = [s if len(s) == count else [s[0]] * count for s in operands]
        made: list[Array] = []
        if self.leaders is None:
            made = list(map(kernel, self.blocks, *each))
        else:
            for rank, leader in enumerate(self.leaders):
                if leader != rank:
                    made.append(made[leader])
                else:
                    made.append(kernel(self.blocks[rank], *[shards[rank] for shards in each]))
        return [[array for (array,) in made] if isinstance(made[0], tuple) else made]


Key: TypeAlias = tuple[Any, ...]
_READY: dict[Key, Ready | None] = {}
"""Prepared operators by key; None where the program behind the operands must be looked at."""
_UNKNOWN = object()
_PLACED: dict[Key, ShardingSpec] = {}
_MOST = 16384


class Operand(NamedTuple):
    """An operand: what it is, its arrays, where it comes from, and what messages call it."""

    kind: Kind
    shards: Shards
    origin: Origin
    name: str


def run_operator(
    name: str, attributes: Attributes, operands: Sequence[Operand]
) -> list[tuple[Kind, Shards, Origin]]:
    """The results of an operator: their kinds, their shards and their origins.

    They lie as propagation has them in the program that led to the operands and ends here. Partial
    results stay partial until something needs them whole.
    """
    said = tuple(attributes.items())
    shards = [operand.shards for operand in operands]
    kinds = [operand.kind for operand in operands]
    key: Key = (name, said, *kinds)
    alike: Point = ()
    if len(operands) > 1 and len(set(map(id, shards))) < len(operands):
        places = list(map(id, shards))
        alike = tuple(map(places.index, places))
        key += (alike,)
    program: History = ()
    numbers: Point = ()
    origins = [operand.origin for operand in operands]
    axes = _axes(origins)
    key += (axes,)
    is_cut = any(kind.spec is not None for kind in kinds)
    if is_cut and axes is not None and _READY.get(key, _UNKNOWN) is _UNKNOWN:
        _remember(key, _local(name, attributes, operands, alike, axes))
    if is_cut and (axes is None or _READY[key] is None):
        found = program_of(origins)
        if found is None:
            origins = [input_of(kind.shape, dtype_name(kind.dtype), kind.spec) for kind in kinds]
            found = program_of(origins)
        assert found is not None
        program, numbers = found
        key += (program, numbers)
    ready = _READY.get(key)
    if ready is None:
        names = [operand.name for operand in operands]
        ready = _prepare(name, attributes, kinds, names, alike, (program, numbers))
        results = ready.run(shards)
        _remember(key, _direct(ready))
    else:
        results = ready.run(shards)
    made = results_of(
        name,
        said,
        origins,
        tuple([(kind.shape, dtype_name(kind.dtype)) for kind, _ in results]),
        [kind.spec for kind, _ in results],
        None if ready.competes else axes,
    )
    return [(kind, arrays, origin) for (kind, arrays), origin in zip(results, made)]


def _remember(key: Key, ready: Ready | None) -> None:
    if len(_READY) >= _MOST:
        _READY.clear()
    _READY[key] = ready


def _axes(origins: Sequence[Origin]) -> frozenset[str] | None:
    """The axes of all annotations behind some tensors; None where they may compete."""
    first = origins[0].axes
    for origin in origins[1:]:
        if first is None or origin.axes is None:
            return None
        if origin.axes is not first:
            first = first | origin.axes
    return first


def _local(
    name: str,
    attributes: Attributes,
    operands: Sequence[Operand],
    alike: Point,
    axes: frozenset[str],
) -> Ready | None:
    """The application by its operands alone, if the program behind them could change nothing.

    That is so where no operand moves, and where every axis of the annotations behind them cuts
    something here: then propagation has no axis left to give to a result.
    """
    kinds = [operand.kind for operand in operands]
    program = tuple(
        HistoryEntry(
            "", (), (), ((kind.shape, dtype_name(kind.dtype)),), kind.spec and closed(kind.spec)
        )
        for kind in kinds
    )
    names = [operand.name for operand in operands]
    history = program, tuple(range(len(kinds)))
    ready = _prepare(name, attributes, kinds, names, alike, history)
    if ready.competes or not axes <= ready.axes:
        return None
    return _direct(ready)


def sharding_of(origin: Origin) -> ShardingSpec:
    """Return the sharding of a tensor under a constraint; propagation fills open dimensions."""
    annotation = origin.annotation
    assert annotation is not None
    if not any(dim.is_open for dim in annotation.dim_specs):
        return closed(annotation)
    found = program_of([origin])
    if found is None:
        return closed(annotation)
    key: Key = (found[0], annotation.mesh)
    if key not in _PLACED:
        if len(_PLACED) >= _MOST:
            _PLACED.clear()
        (_PLACED[key],) = propagated(found[0], annotation.mesh).results
    return _PLACED[key]


def _prepare(
    name: str,
    attributes: Attributes,
    kinds: Sequence[Kind],
    names: Sequence[str],
    alike: Point,
    history: tuple[History, Point],
) -> Ready:
    operator, xp = OPERATORS.find(name), kinds[0].xp
    line = operator.sign([kind.shape for kind in kinds], attributes)
    given = [dtype_name(kind.dtype) for kind in kinds]
    try:
        dtypes = operator.dtypes(given, attributes)
    except WeftError as error:
        error.add_note(f"while applying {name} to {', '.join(map(str, kinds))}")
        raise
    meshes = {kind.spec.mesh for kind in kinds if kind.spec is not None}
    frozen = FrozenMap(attributes.items())
    if not meshes:
        whole = Whole.of(operator, line, frozen, xp)
        none = (None,) * len(line.result_shapes)
        return Ready(whole, xp, none, line.result_shapes, name, dtypes)
    pairs = list(zip(names, kinds))
    if len(meshes) > 1:
        said = " and ".join(f"{n or k} on {k.spec.mesh}" for n, k in pairs if k.spec is not None)
        raise WeftError(f"the operands of {name} lie on different meshes: {said}")
    (mesh,) = meshes
    specs, itemsizes = [kind.spec for kind in kinds], [kind.itemsize for kind in kinds]
    program, numbers = history
    made = tuple((shape, "") for shape in line.result_shapes)
    last = HistoryEntry(name, tuple(attributes.items()), numbers, made, None)
    found = propagated((*program, last), mesh)
    placed = place_operands(
        operator, line, mesh, found.placement, specs, itemsizes, alike, given, dtypes
    )
    results = [
        src if src.dim_specs == dst.dim_specs else dst
        for src, dst in zip(placed.results, found.results)
    ]
    compiled = _compile(operator, frozen, placed, results, pairs, alike)
    used = [axis for axes in placed.placement.values() for axis in axes]
    cut = frozenset(axis for axis in used if isinstance(axis, str))
    stay = results == list(placed.results) and _stays(placed, specs)
    shapes, moved = line.result_shapes, len(cut) < len(used) or not stay
    return Ready(compiled, xp, results, shapes, name, dtypes, axes=cut, competes=moved)


def _compile(
    operator: Operator,
    attributes: Attributes,
    placed: Placed,
    results: Sequence[ShardingSpec],
    operands: Sequence[tuple[str, Kind]],
    alike: Point,
) -> Compiled:
    """Lower one application, on operands that others keep, to a program."""
    mesh, specs = placed.mesh, dict[str, ShardingSpec]()
    values, names = list[Value](), list[str]()
    for number, (name, kind) in enumerate(operands):
        if alike and alike[number] != number:
            names.append(names[alike[number]])
            continue
        names.append(f"operand {number}{f', {name}' * bool(name)}")
        values.append(Value(names[-1], kind.shape, dtype_name(kind.dtype)))
        specs[names[-1]] = kind.spec or ShardingSpec(mesh, [DimSpec()] * len(kind.shape))
    made = [f"its result {number}" for number in range(len(results))]
    application = Application(operator.name, tuple(names), tuple(made), attributes)
    graph = Graph(values, [application], made)
    specs |= dict(zip(made, results))
    plan = Plan(graph, mesh, FrozenMap(specs.items()), tuple(results), (placed,))
    return Compiled(lower(plan, owned=()))


def _stays(placed: Placed, specs: Sequence[ShardingSpec | None]) -> bool:
    """Whether all operands lie where they are needed, or a cell needs a part of what it holds."""
    for spec, needed in zip(specs, placed.operands):
        if spec is None:
            continue
        if needed is None:
            return False
        for held, wanted in zip(spec.dim_specs, needed.dim_specs):
            if wanted.axes[: len(held.axes)] != held.axes or held.cut_points != wanted.cut_points:
                return False
    return True


def _direct(ready: Ready) -> Ready:
    """The same without what this application does not need."""
    compiled = ready.kernel
    if not isinstance(compiled, Compiled) or len(ready.shapes) > 1:
        return ready
    main = compiled.program.main
    (apply, *rest) = main.instructions
    if rest or not isinstance(apply, Apply) or not set(apply.operands) <= set(main.arguments):
        return ready
    kernel = kernel_of(compiled.program, 0, apply, ready.xp)
    if kernel.work < LARGE:
        ready.kernel = Direct(kernel.operator.kernel, kernel.blocks, kernel.leaders)
    return ready
