"""Conflicts resolved by cost, compared with Shardy, a greedy choice, and the best of all plans.

Random programs of 2 to 5 operators on a 2 x 2 mesh, with random annotations. A ratio is of the
bytes that a plan moves to the fewest that any plan moves; means and sums are over the programs in
which something must move. How many plans move the fewest bytes is counted over all programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import NamedTuple

from benchmarks.conflict_programs import Program
from benchmarks.exhaustive import fewest_bytes
from benchmarks.rivals import bytes_of_greed, bytes_of_shardy
from benchmarks.row import Row
from weft.plan import Plan, propagate
from weft.plan.searching.build import build_problem

PROGRAMS = 1000
SHARDY, GREEDY = "Shardy's shardings", "each operator as is cheapest for itself"


class Moved(NamedTuple):
    """The bytes that move in one program."""

    optimum: float
    cost: int
    shardy: int
    greedy: int


def run(seconds: float) -> Iterator[Row]:
    """All rows: of 1,000 programs, of a fifth of them, or of a few."""
    try:
        found = list(map(measure, range(round(PROGRAMS * min(seconds, 5.0) / 5) or 12)))
    except ImportError:
        return
    yield from rows(found)


def measure(seed: int) -> Moved:
    """Return the bytes that move in one program."""
    from weft.interop.stablehlo import read

    text = Program(seed).text
    graph = read(text)
    found = propagate(graph, strategy="cost")
    return Moved(
        fewest_bytes(build_problem(graph, found.mesh, None, thorough=True)),
        sum(Plan.of(found).received),
        bytes_of_shardy(graph, text),
        bytes_of_greed(graph),
    )


def rows(found: Sequence[Moved]) -> Iterator[Row]:
    """Yield the rows over all programs."""
    moving = [one for one in found if one.optimum]
    n, unit = len(moving), "times the fewest bytes"
    for name, middle in (("mean", mean), ("median", median)):
        ratios = [[one[place] / one.optimum for one in moving] for place in (1, 2, 3)]
        cost, shardy, greedy = map(middle, ratios)
        yield Row.against(f"conflicts/{name}", cost, SHARDY, shardy, unit, n)
        yield Row.against(f"conflicts/{name}-greedy", cost, GREEDY, greedy, unit, n)
    best, cost, shardy, greedy = (float(sum(one[place] for one in moving)) for place in range(4))
    yield Row.against("conflicts/sum", cost / best, SHARDY, shardy / best, unit, n)
    yield Row.against("conflicts/sum-greedy", cost / best, GREEDY, greedy / best, unit, n)
    yield _count("conflicts/fewest", found, [one.cost == one.optimum for one in found])
    yield _count("conflicts/fewest-shardy", found, [one.shardy == one.optimum for one in found])
    yield _count("conflicts/fewest-greedy", found, [one.greedy == one.optimum for one in found])
    yield _count("conflicts/no-more-than-shardy", found, [one.cost <= one.shardy for one in found])


def _count(name: str, found: Sequence[Moved], holds: Sequence[bool]) -> Row:
    return Row(name, sum(holds), "programs", len(found), fraction=sum(holds) / len(found))
