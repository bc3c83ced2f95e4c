"""Regions: the graphs that an application runs, and the edges along which values enter and leave.

An edge joins its sources to its targets, which have one sharding. The initial value of a loop and
the output of its body are sources; the loop's result and its block arguments are targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.values import FrozenMap, Point, counted

if TYPE_CHECKING:
    from weft.lang.graph import Application, Graph, Value


class Edge(NamedTuple):
    """One edge: its source values, and the target values that they become."""

    sources: tuple[str, ...]
    owner: str
    """The target whose sharding all have: a result, or the argument of a region."""
    others: tuple[str, ...] = ()
    """Further targets: the arguments of a loop's regions."""
    region: int | None = None
    """The region that the owner is an argument of; None for a result."""


Edges: TypeAlias = Callable[["Application"], Iterator[Edge]]


def _loop_edges(application: Application) -> Iterator[Edge]:
    condition, body = application.regions
    inside = zip(arguments(application, condition), arguments(application, body))
    for result, start, next_, others in zip(
        application.results, application.operands, body.outputs, inside
    ):
        yield Edge((start, next_), result, tuple(value.name for value in others))


def _branch_edges(application: Application) -> Iterator[Edge]:
    for sources, result in zip(zip(*(r.outputs for r in application.regions)), application.results):
        yield Edge(sources, result)


def _identity_edges(application: Application) -> Iterator[Edge]:
    for operand, result in zip(application.operands, application.results):
        yield Edge((operand,), result)


def _manual_edges(application: Application) -> Iterator[Edge]:
    (body,) = application.regions
    for operand, argument in zip(application.operands, arguments(application, body)):
        yield Edge((operand,), argument.name, region=0)
    for inner, result in zip(body.outputs, application.results):
        yield Edge((inner,), result)


EDGES: dict[str, Edges] = {
    "while": _loop_edges,
    "case": _branch_edges,
    "optimization_barrier": _identity_edges,
    "data_flow_edge": _identity_edges,
    "manual_computation": _manual_edges,
}
"""The functions that return an operator's edges, by its name; users may add theirs."""


def edges(application: Application) -> list[Edge]:
    """Return the edges of an application, those of region arguments before those of results."""
    edges_of = EDGES.get(application.operator)
    return [] if edges_of is None else list(edges_of(application))


def arguments(application: Application, region: Graph) -> list[Value]:
    """Return the block arguments of a region: its inputs that are not captured."""
    outside = set(application.operands)
    return [value for value in region.inputs if value.name not in outside]


def captured(application: Application) -> list[str]:
    """Return the values that the regions capture, in order: the application's last operands."""
    outside = set(application.operands)
    names = (value.name for region in application.regions for value in region.inputs)
    return list(dict.fromkeys(name for name in names if name in outside))


def own_operands(application: Application) -> tuple[str, ...]:
    """Return the operands without the captured ones."""
    return application.operands[: len(application.operands) - len(captured(application))]


def read_as_kept(application: Application) -> list[str]:
    """Return the operands that are used as they are stored, without a reshard.

    These are the captured values, and the one that selects a branch. Carried values of a loop are
    resharded first.
    """
    if not application.regions:
        return []
    selectors = application.operands[:1] if application.operator in ("case", "if") else ()
    return [*selectors, *captured(application)]


def add_region(values: Mapping[str, Value], everything: dict[str, Value], region: Graph) -> None:
    """Add the values of a region to those of the program; a name is used for one value only."""
    inputs = set(region.inputs)
    for name, value in region.all_values.items():
        if name not in everything:
            everything[name] = value
        elif value not in inputs or values.get(name) != value:
            raise WeftError(f"two values are named {name}")


def region_attributes(
    what: str, application: Application, values: Mapping[str, Value]
) -> Mapping[str, Any]:
    """Return the attributes with the shapes and dtypes of the regions' results."""
    inside = captured(application)
    count = len(own_operands(application))
    if list(application.operands[count:]) != inside:
        raise WeftError(
            f"the operands of {what} must end with what its regions capture: {', '.join(inside)}"
        )
    _check_interface(what, application, count)
    _check_edges(what, application, values)
    last = application.regions[-1]
    returned = [last.values[name] for name in last.outputs]
    known: dict[str, Any] = {
        "result_shapes": tuple(value.shape for value in returned),
        "result_dtypes": tuple(value.dtype for value in returned),
    }
    return FrozenMap((known | dict(application.attributes)).items())


def _interface(application: Application, own: int) -> list[tuple[int, int]]:
    """Return the number of arguments and outputs that each region must have."""
    results = len(application.results)
    match application.operator:
        case "while":
            return [(own, 1), (own, results)]
        case "case":
            return [(0, results)] * max(1, len(application.regions))
        case "if":
            return [(0, results)] * 2
        case "manual_computation":
            return [(own, results)]
    return [(len(arguments(application, r)), len(r.outputs)) for r in application.regions]


def _check_interface(what: str, application: Application, own: int) -> None:
    expected = _interface(application, own)
    if len(expected) != len(application.regions):
        regions = counted(len(application.regions), "region")
        raise WeftError(f"{what} has {regions}, expected {len(expected)}")
    for number, (region, (inputs, outputs)) in enumerate(zip(application.regions, expected)):
        for noun, got, want in (
            ("argument", len(arguments(application, region)), inputs),
            ("output", len(region.outputs), outputs),
        ):
            if got != want:
                raise WeftError(
                    f"{what}: region {number} has {counted(got, noun)}, expected {want}"
                )


def _check_edges(what: str, application: Application, values: Mapping[str, Value]) -> None:
    """Raise for an edge between shapes that differ; those of manual computations may."""
    if application.operator == "manual_computation":
        return
    shapes: dict[str, Point] = {name: values[name].shape for name in application.operands}
    for region in application.regions:
        shapes |= {name: value.shape for name, value in region.values.items()}
    for edge in edges(application):
        first, *rest = [name for name in (*edge.sources, *edge.others) if name in shapes]
        for name in rest:
            if shapes[name] != shapes[first]:
                raise WeftError(
                    f"{what} joins {first} of shape {list(shapes[first])} and {name} of shape "
                    f"{list(shapes[name])}"
                )
