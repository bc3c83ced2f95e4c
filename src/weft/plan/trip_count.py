"""Trip counts of loops and taken branches, where the program determines them.

Constants are propagated through the graph, and a value that a loop carries is known as an offset
from what it was at the start of the iteration: an induction variable. A loop whose condition
compares such a value with a constant, and whose body adds a constant to it, has a known trip count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from weft.lang import Application, Graph
from weft.lang.fusion import ARROW, FIRST, part_of
from weft.lang.kernel import Attributes
from weft.lang.region import arguments
from weft.values import FrozenMap

SAME = frozenset(
    (
        *("broadcast", "broadcast_in_dim", "data_flow_edge", "optimization_barrier"),
        *("propagation_barrier", "reshape", "sharding_constraint"),
    )
)
"""Operators whose results have the elements of their operands."""

FOLDS: dict[str, Callable[..., int]] = {
    "clamp": lambda least, number, most: min(max(number, least), most),
    "maximum": max,
    "minimum": min,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
}
"""Operators that are evaluated on constants; sums and differences also on induction variables."""

MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}
"""Comparisons with their sides exchanged."""

_INTEGER = re.compile(r"(u?)int(\d+)")


class Number(NamedTuple):
    """The integer that every element of a value equals: a constant, or a carried value plus one."""

    number: int
    dtype: str
    place: int | None = None
    """The position of the carried value to which the number is added; None for a constant."""


class Comparison(NamedTuple):
    """A comparison of two numbers."""

    direction: str
    one: Number
    two: Number


Fact: TypeAlias = Number | Comparison
Known: TypeAlias = Mapping[str, Fact]
"""Facts about the values of a graph, by name."""


class LoopFacts(NamedTuple):
    """The trip count of a loop, and which of its carried values are constant."""

    trip_count: int | None
    """The number of times the body runs; None if that is not known."""
    constants: Mapping[int, Number]
    """The carried values that are the same constant in every iteration, by position."""


def known_values(graph: Graph, given: Known) -> dict[str, Fact]:
    """Return facts about the values of a graph, from facts about its inputs.

    >>> from weft.lang import Application, Graph
    >>> attributes = {"value": 2, "dtype": "int32", "result_shape": ()}
    >>> two = Application("constant", (), ("two",), attributes)
    >>> graph = Graph([], [two, Application("add", ("two", "two"), ("four",))], ["four"])
    >>> known_values(graph, {})["four"]
    Number(number=4, dtype='int32', place=None)
    """
    known = dict(given)
    for application in graph.applications:
        operands = [known.get(name) for name in application.operands]
        if application.operator == "while" and application.regions:
            results = _carried(application, operands, known)
        elif application.regions:
            continue
        elif application.operator in SAME:
            results = operands
        else:
            results = [_evaluate(application.operator, operands, application.attributes)]
        known |= {name: n for name, n in zip(application.results, results) if n is not None}
    return known


def analyze_loop(application: Application, outside: Known) -> LoopFacts:
    """Return the trip count of a loop, from facts about the values outside."""
    condition, count = application.regions[0], len(application.results)
    starts = [_constant(outside.get(name)) for name in application.operands[:count]]
    steps = _steps(application, outside, {})
    fixed = {
        n: start for n, start in enumerate(starts) if start is not None and _stays(n, steps[n])
    }
    known = known_values(condition, _entered(application, condition, outside, fixed))
    test = known.get(condition.outputs[0])
    if not isinstance(test, Comparison):
        return LoopFacts(None, fixed)
    return LoopFacts(_trip_count(test, starts, _steps(application, outside, fixed)), fixed)


def _trip_count(
    test: Comparison, starts: Sequence[Number | None], steps: Sequence[Fact | None]
) -> int | None:
    """Return how often a loop runs, from the initial values and the values after one iteration."""
    if test.one.place is None:
        test = Comparison(MIRRORED[test.direction], test.two, test.one)
    if test.two.place is not None:
        return None
    if test.one.place is None:  # a comparison of constants
        return _steps_across(test.direction, test.two.number - test.one.number, 0)
    start, step = starts[test.one.place], steps[test.one.place]
    if start is None or not isinstance(step, Number) or step.place != test.one.place:
        return None
    return _count(test, start, step.number)


def known_inside(
    application: Application,
    region: Graph,
    outside: Known,
    fixed: Mapping[int, Number] = FrozenMap(()),
) -> dict[str, Fact]:
    """Return facts that hold in every run of a region; `fixed` are the constants of a loop."""
    names = [value.name for value in arguments(application, region)]
    return _constants(application, outside) | {names[n]: known for n, known in fixed.items()}


def taken_branch(application: Application, outside: Known) -> int | None:
    """Return the branch that is taken, or None if that is not known."""
    index, count = _constant(outside.get(application.operands[0])), len(application.regions)
    if index is None or application.operator == "if":
        return None
    return index.number if 0 <= index.number < count else count - 1


def _entered(
    application: Application, region: Graph, outside: Known, fixed: Mapping[int, Number]
) -> dict[str, Fact]:
    """Return facts in one iteration, relative to the carried values at its start."""
    known = _constants(application, outside)
    for place, value in enumerate(arguments(application, region)):
        if _INTEGER.fullmatch(value.dtype):
            known[value.name] = fixed.get(place) or Number(0, value.dtype, place)
    return known


def _constants(application: Application, outside: Known) -> dict[str, Fact]:
    constants = {name: _constant(outside.get(name)) for name in application.operands}
    return {name: number for name, number in constants.items() if number is not None}


def _constant(known: Fact | None) -> Number | None:
    return known if isinstance(known, Number) and known.place is None else None


def _steps(
    application: Application, outside: Known, fixed: Mapping[int, Number]
) -> list[Fact | None]:
    """Return facts about the values that the body of a loop returns."""
    body = application.regions[1]
    known = known_values(body, _entered(application, body, outside, fixed))
    return [known.get(name) for name in body.outputs]


def _stays(place: int, step: Fact | None) -> bool:
    return isinstance(step, Number) and (step.number, step.place) == (0, place)


def _carried(
    application: Application, operands: Sequence[Fact | None], outside: Known
) -> list[Fact | None]:
    """Return facts about the results of a loop: values that it carries unchanged."""
    steps = _steps(application, outside, {})
    return [
        known if _stays(n, step) else None for n, (known, step) in enumerate(zip(operands, steps))
    ]


def _evaluate(
    operator: str, operands: Sequence[Fact | None], attributes: Attributes
) -> Fact | None:
    """Return the fact about the result of an operator; of a fused one, part by part."""
    if ARROW in operator:
        return _fused(operator, operands, attributes)
    if operator == "constant":
        return _number(attributes.get("value"), str(attributes.get("dtype")))
    numbers = [known for known in operands if isinstance(known, Number)]
    if not numbers or len(numbers) < len(operands):
        return None
    if operator in SAME:
        return numbers[0]
    if operator == "compare" and attributes.get("comparison_direction") in MIRRORED:
        return Comparison(attributes["comparison_direction"], *numbers)
    return _integer(operator, numbers, attributes)


def _integer(operator: str, numbers: Sequence[Number], attributes: Attributes) -> Number | None:
    first, places = numbers[0], [n.place for n in numbers]
    if operator == "convert":
        return _convert(first, str(attributes.get("dtype")))
    if attributes.get("dtype", first.dtype) != first.dtype:
        return None
    if operator == "add" and None in places:
        place = next((place for place in places if place is not None), None)
        return _number(sum(n.number for n in numbers), first.dtype, place)
    if operator == "subtract" and places[1] is None:
        return _number(first.number - numbers[1].number, first.dtype, first.place)
    if operator in FOLDS and set(places) == {None}:
        return _number(FOLDS[operator](*(n.number for n in numbers)), first.dtype)
    return None


def _convert(number: Number, dtype: str) -> Number | None:
    if number.dtype == dtype:
        return number
    return _number(number.number, dtype) if number.place is None else None


def _fused(operator: str, operands: Sequence[Fact | None], attributes: Attributes) -> Fact | None:
    producer, _, rest = operator.rpartition(ARROW)
    consumer, _, place = rest.partition("@")
    count = attributes[FIRST]
    others = list(operands[count:])
    others.insert(int(place or 0), _evaluate(producer, operands[:count], part_of(attributes, 1)))
    return _evaluate(consumer, others, part_of(attributes, 2))


def _number(number: Any, dtype: str, place: int | None = None) -> Number | None:
    """Return the number if it is an integer that fits the dtype; offsets may be of any size."""
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return Number(number, dtype, place) if place is not None or _fits(number, dtype) else None


def _fits(number: int, dtype: str) -> bool:
    integer = _INTEGER.fullmatch(dtype)
    if integer is None:
        return False
    bits = int(integer[2])
    return 0 <= number < 1 << bits if integer[1] else -1 << bits - 1 <= number < 1 << bits - 1


def _count(test: Comparison, start: Number, step: int) -> int | None:
    """Return how often a step is taken while a test holds; None if endless or overflowing."""
    gap = test.two.number - test.one.number - start.number
    count = _steps_across(test.direction, gap, step)
    if count is None:
        return None
    last = start.number + count * step
    ends = [start.number, last, *(end + test.one.number for end in (start.number, last))]
    return count if all(_fits(end, start.dtype) for end in ends) else None


def _steps_across(direction: str, gap: int, step: int) -> int | None:
    """Return how often a step can be added to 0 while the sum compares so with a gap."""
    if direction in ("GT", "GE"):
        direction, gap, step = MIRRORED[direction], -gap, -step
    if direction == "LE":
        direction, gap = "LT", gap + 1
    if direction == "LT":
        return 0 if gap <= 0 else -(-gap // step) if step > 0 else None
    if direction == "EQ":
        return 0 if gap else 1 if step else None
    if gap == 0:
        return 0
    return gap // step if step and gap % step == 0 and gap // step > 0 else None
