"""Regions: the graphs that an application runs, and the edges along which values enter and leave.

An edge joins its sources to its targets: what flows in lies as what flows out. The initial value of
a loop and what its body returns are sources; the loop's result and its block arguments are targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.values import FrozenMap, Point, counted

if TYPE_CHECKING:
    from weft.lang.graph import Application, Graph, Value


class Edge(NamedTuple):
    """One edge: where values come from, and the values that they become."""

    sources: tuple[str, ...]
    owner: str
    """The target whose sharding is that of all: a result, or the argument of a region."""
    others: tuple[str, ...] = ()
    """Further targets: the arguments of a loop's regions."""
    region: int | None = None
    """The region at whose start the owner stands; None for a result."""


Edges: TypeAlias = Callable[["Application"], Iterator[Edge]]


def _along_a_loop(application: Application) -> Iterator[Edge]:
    condition, body = application.regions
    inside = zip(arguments(application, condition), arguments(application, body))
    for result, start, next_, others in zip(
        application.results, application.operands, body.outputs, inside
    ):
        yield Edge((start, next_), result, tuple(value.name for value in others))


def _out_of_branches(application: Application) -> Iterator[Edge]:
    for sources, result in zip(zip(*(r.outputs for r in application.regions)), application.results):
        yield Edge(sources, result)


def _straight_on(application: Application) -> Iterator[Edge]:
    for operand, result in zip(application.operands, application.results):
        yield Edge((operand,), result)


def _in_and_out(application: Application) -> Iterator[Edge]:
    (body,) = application.regions
    for operand, argument in zip(application.operands, arguments(application, body)):
        yield Edge((operand,), argument.name, region=0)
    for inner, result in zip(body.outputs, application.results):
        yield Edge((inner,), result)


EDGES: dict[str, Edges] = {
    "while": _along_a_loop,
    "case": _out_of_branches,
    "optimization_barrier": _straight_on,
    "data_flow_edge": _straight_on,
    "manual_computation": _in_and_out,
}
"""The edges of the operators that have them; an operator of a user joins by its name."""


def edges(application: Application) -> list[Edge]:
    """The edges of an application, those of region arguments before those of results."""
    found = EDGES.get(application.operator)
    return [] if found is None else list(found(application))


def arguments(application: Application, region: Graph) -> list[Value]:
    """The inputs of a region that are its own; the others are taken from outside."""
    outside = set(application.operands)
    return [value for value in region.inputs if value.name not in outside]


def taken(application: Application) -> list[str]:
    """What the regions take from outside, in order: the last operands of the application."""
    outside = set(application.operands)
    names = (value.name for region in application.regions for value in region.inputs)
    return list(dict.fromkeys(name for name in names if name in outside))


def own_operands(application: Application) -> tuple[str, ...]:
    """The operands but for what the regions take from outside."""
    return application.operands[: len(application.operands) - len(taken(application))]


def read_as_kept(application: Application) -> list[str]:
    """The operands that nothing is brought to: a run reads them where and as they are kept.

    These are the values that regions take from outside, and the one that selects a branch. What a
    loop carries is brought to it first.
    """
    if not application.regions:
        return []
    selectors = application.operands[:1] if application.operator in ("case", "if") else ()
    return [*selectors, *taken(application)]


def add_region(values: Mapping[str, Value], everything: dict[str, Value], region: Graph) -> None:
    """Add the values of a region to those of the program; a name stands for one value only."""
    inputs = set(region.inputs)
    for name, value in region.all_values.items():
        if name not in everything:
            everything[name] = value
        elif value not in inputs or values.get(name) != value:
            raise WeftError(f"two values are named {name}")


def region_attributes(
    what: str, application: Application, values: Mapping[str, Value]
) -> Mapping[str, Any]:
    """The attributes with shapes and dtypes of the results, which follow from the regions."""
    inside = taken(application)
    count = len(own_operands(application))
    if list(application.operands[count:]) != inside:
        raise WeftError(
            f"{what} must end its operands with what its regions take from outside: "
            f"{', '.join(inside)}"
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
    """How many arguments and outputs each region must have."""
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
        raise WeftError(f"{what} has {regions} where {len(expected)} are expected")
    for number, (region, (inputs, outputs)) in enumerate(zip(application.regions, expected)):
        for noun, got, want in (
            ("argument", len(arguments(application, region)), inputs),
            ("output", len(region.outputs), outputs),
        ):
            if got != want:
                raise WeftError(
                    f"{what}: region {number} has {counted(got, noun)} where {want} are expected"
                )


def _check_edges(what: str, application: Application, values: Mapping[str, Value]) -> None:
    """Refuse an edge between shapes that differ; a manual computation has parts inside."""
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
