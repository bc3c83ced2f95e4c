"""The annotated program that led to a tensor, so that eager operators follow the same propagation.

A tensor that computes at once knows the operators, the annotations and the shapes that it came
from, but not their numbers. The sharding of a result is the one that `propagate` gives it in the
program so far. Only the last `LONGEST` applications are remembered: what lies further back counts
as an input that lies as it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from weft.lang import Application, Graph, Value
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan import propagate
from weft.plan.placed import Placement
from weft.values import FrozenMap, Point

LONGEST = 64
"""The number of applications that a tensor remembers."""

CONSTRAINT = "sharding_constraint"

Attributes: TypeAlias = tuple[tuple[str, Any], ...]

_SERIAL = count()


class OriginStep:
    """An application in the history of a tensor."""

    __slots__ = ("attributes", "depth", "operands", "operator", "results", "serial")

    def __init__(
        self,
        operator: str,
        attributes: Attributes,
        operands: tuple[Origin, ...],
        results: tuple[tuple[Point, str], ...],
    ) -> None:
        self.operator, self.attributes = operator, attributes
        self.operands, self.results = operands, results
        self.serial = next(_SERIAL)
        """The place in the order in which applications were made."""
        self.depth: int = 1 + max([origin.depth for origin in operands], default=0)


class Origin:
    """The origin of a tensor: a result of a step, or an input; and its annotation."""

    __slots__ = ("annotation", "axes", "depth", "dtype", "place", "serial", "shape", "step")

    def __init__(
        self,
        shape: Point,
        dtype: str,
        annotation: ShardingSpec | None = None,
        step: OriginStep | None = None,
        place: int = 0,
        axes: frozenset[str] | None = None,
    ) -> None:
        self.shape, self.dtype, self.annotation = shape, dtype, annotation
        self.step, self.place = step, place
        self.axes = axes_of(annotation) if step is None and axes is None else axes
        """The axes of all annotations that led here; None where they may compete for something."""
        self.depth: int = 0 if step is None else step.depth
        self.serial = next(_SERIAL) if step is None else step.serial


class HistoryEntry(NamedTuple):
    """One line of a program whose values are numbered; an input has no operator."""

    operator: str
    attributes: Attributes
    operands: tuple[int, ...]
    results: tuple[tuple[Point, str], ...]
    """Shapes and dtypes; an empty dtype is the one that the operator makes."""
    annotation: ShardingSpec | None


History: TypeAlias = tuple[HistoryEntry, ...]


class PropagatedShardings(NamedTuple):
    """The placement and the result shardings of the last application of a program."""

    placement: Placement
    results: tuple[ShardingSpec, ...]
    """The shardings of the results, with nothing left open."""


def results_of(
    operator: str,
    attributes: Attributes,
    operands: Iterable[Origin],
    results: tuple[tuple[Point, str], ...],
    specs: Sequence[ShardingSpec | None],
    axes: frozenset[str] | None,
) -> list[Origin]:
    """The origins of the results of an application, which lie as the specs say."""
    step = OriginStep(operator, attributes, tuple(operands), results)
    if step.depth > LONGEST:
        return [input_of(*each, spec, axes) for each, spec in zip(results, specs)]
    return [Origin(shape, dtype, None, step, n, axes) for n, (shape, dtype) in enumerate(results)]


def axes_of(annotation: ShardingSpec | None) -> frozenset[str] | None:
    """The axes that an annotation gives to dimensions that are closed, none before another.

    None where it leaves something to choose: priorities, open dimensions, parts of axes; and where
    it gives cut points.
    """
    if annotation is None:
        return _NONE
    dims = annotation.dim_specs
    plain = all(dim == DimSpec(dim.axes) for dim in dims)
    names = [axis for dim in dims for axis in dim.axes]
    if not plain or annotation.replicated_axes or not all(isinstance(axis, str) for axis in names):
        return None
    return frozenset(map(str, names))


_NONE: frozenset[str] = frozenset()


def input_of(
    shape: Point, dtype: str, spec: ShardingSpec | None, axes: frozenset[str] | None = None
) -> Origin:
    """The origin of a tensor whose history is not remembered."""
    return Origin(shape, dtype, None if spec is None else opened(spec), axes=axes)


def constrained(origin: Origin, annotation: ShardingSpec) -> Origin:
    """The origin of a tensor under a sharding constraint."""
    step = OriginStep(CONSTRAINT, (), (origin,), ((origin.shape, origin.dtype),))
    axes = axes_of(annotation) if origin.axes == _NONE else None
    return Origin(origin.shape, origin.dtype, annotation, step, axes=axes)


def program_of(origins: Sequence[Origin]) -> tuple[History, tuple[int, ...]] | None:
    """The program that leads to some tensors, and their numbers in it; None if it is too long.

    Entries stand in the order in which they were made, as in a traced program. Programs that
    differ only in which tensors their inputs were are equal.
    """
    found: dict[int, tuple[OriginStep | None, Origin]] = {}
    waiting = list(origins)
    while waiting:
        origin = waiting.pop()
        step = origin.step
        if origin.serial not in found:
            found[origin.serial] = step, origin
            if len(found) > 2 * LONGEST:
                return None
            if step is not None:
                waiting += step.operands
    numbers: dict[int, int] = {}
    entries, values = list[HistoryEntry](), 0
    for serial in sorted(found):
        step, origin = found[serial]
        numbers[serial] = values
        if step is None:
            entries.append(
                HistoryEntry("", (), (), ((origin.shape, origin.dtype),), origin.annotation)
            )
            values += 1
            continue
        operands = tuple([numbers[each.serial] + each.place for each in step.operands])
        entries.append(
            HistoryEntry(step.operator, step.attributes, operands, step.results, origin.annotation)
        )
        values += len(step.results)
    return tuple(entries), tuple([numbers[origin.serial] + origin.place for origin in origins])


def propagated(program: History, mesh: DeviceMesh) -> PropagatedShardings:
    """Propagate by users' priorities; return what follows for the last application."""
    inputs, applications = list[Value](), list[Application]()
    values = list[Value]()
    shardings: dict[str, str] = {}
    for entry in program:
        made = [Value(f"v{len(values) + n}", *each) for n, each in enumerate(entry.results)]
        if entry.operator:
            operands = tuple(values[number].name for number in entry.operands)
            results = tuple(value.name for value in made)
            applications.append(
                Application(entry.operator, operands, results, FrozenMap(entry.attributes))
            )
        else:
            inputs += made
        if entry.annotation is not None:
            shardings[made[0].name] = str(entry.annotation)
        values += made
    last = applications[-1].results
    dtypes = {value.name: value.dtype for value in values if value.dtype}
    graph = Graph(inputs, applications, last, (str(mesh),), shardings, dtypes=dtypes)
    found = propagate(graph)
    return PropagatedShardings(
        found.cuts(len(found.placements) - 1), tuple(closed(one) for one in found.output_specs)
    )


def closed(spec: ShardingSpec) -> ShardingSpec:
    """The sharding with nothing left open: where the data is, not where it may go."""
    return ShardingSpec(spec.mesh, [d.closed for d in spec.dim_specs], (), spec.partial)


def opened(spec: ShardingSpec) -> ShardingSpec:
    """The sharding with every dimension open but those with cut points."""
    dims = [
        DimSpec(dim.axes, dim.cut_points is None, cut_points=dim.cut_points)
        for dim in spec.dim_specs
    ]
    return ShardingSpec(spec.mesh, dims, (), spec.partial)
