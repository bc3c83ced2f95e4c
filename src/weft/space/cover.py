"""Do these boxes cover that box exactly once? Decided exactly, in time linear in the boxes.

How often each point is covered is a function on the integer grid, and such a function is known by
its *mixed difference*: the signed corners of its boxes. Corners that cancel leave nothing behind,
so a set of boxes covers a target exactly when all its corners cancel against the target's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from operator import add

from weft.draw import Drawing, Drawn, draw_boxes
from weft.errors import WeftError
from weft.space.zrange import ZRange, unchecked
from weft.values import Point, as_count, as_tuple, counted


@dataclass(frozen=True, slots=True)
class Defect:
    """A box that is not covered once: by nobody, by several, or outside the target.

    >>> print(Defect(ZRange((0,), (1,)), by=(0, 3)))
    overlap [0:1] by boxes 0, 3
    """

    box: ZRange
    by: tuple[int, ...]
    inside: bool = True

    def __str__(self) -> str:
        what = ("overlap" if self.by else "gap") if self.inside else "outside"
        return f"{what} {self.box}" + f" by boxes {', '.join(map(str, self.by))}" * bool(self.by)


@dataclass(frozen=True, slots=True)
class Cover(Drawn):
    """What `cover` found: the target, the boxes and the first places where they do not fit.

    >>> cover([ZRange((0,), (1,))], ZRange((0,), (2,))).defects[0].box
    ZRange(start=(1,), stop=(2,))
    """

    target: ZRange
    boxes: tuple[ZRange, ...]
    defects: tuple[Defect, ...]

    @property
    def is_exact(self) -> bool:
        """True when every point of the target lies in one box, and no box reaches outside."""
        return not self.defects

    def check(self) -> None:
        """Raise an error that names the first defects, if there are any."""
        if self.defects:
            raise WeftError(str(self))

    def drawing(self) -> Drawing:
        """The boxes over the outline of the target, and the gaps between them."""
        gaps = [defect.box for defect in self.defects if not defect.by]
        shown = [self.target, *self.boxes, *gaps]
        labels = ["", *map(str, range(len(self.boxes))), *["gap" for _ in gaps]]
        outlined = {0, *range(len(self.boxes) + 1, len(shown))}
        return draw_boxes([(b.start, b.stop) for b in shown], labels, str(self), outlined)

    def __str__(self) -> str:
        verdict = "; ".join(map(str, self.defects)) or "exactly once"
        verb = "covers" if len(self.boxes) == 1 else "cover"
        return f"{counted(len(self.boxes), 'box', 'boxes')} {verb} {self.target}: {verdict}"


def cover(boxes: Iterable[ZRange], target: ZRange, limit: int = 8) -> Cover:
    """How the boxes cover the target, with up to `limit` defects named.

    >>> parts = [ZRange((0,), (1,)), ZRange((0,), (1,)), ZRange((2,), (4,))]
    >>> print(cover(parts, ZRange((0,), (4,))))
    3 boxes cover [0:4]: overlap [0:1] by boxes 0, 1; gap [1:2]
    >>> cover(ZRange((0, 0), (9, 9)).tiles((4, 2)), ZRange((0, 0), (9, 9))).is_exact
    True
    """
    given = as_tuple(boxes, "boxes", ZRange)
    for number, box in enumerate(given):
        if box.ndim != target.ndim:
            raise WeftError(f"box {number} is {box}, not of rank {target.ndim} as {target} is")
    places = _nonzero(_difference(given, target))
    defects = (defect for place in places for defect in _name(unchecked(*place), given, target))
    return Cover(target, given, tuple(islice(defects, as_count(limit, "limit"))))


def _difference(boxes: Sequence[ZRange], target: ZRange) -> dict[Point, int]:
    """The mixed difference of (times covered) - (times wanted): signed corners, cancelled.

    Corners are coded as integers and made by the list: each is a whole number of rounds through
    the boxes, the target last.
    """
    if not target.ndim:
        return {(): len(boxes) - 1} if len(boxes) != 1 else {}
    every = (*boxes, target)
    up, down = [0] * len(every), list[int]()
    lows, steps = list[int](), [1]
    for dim in range(target.ndim):
        starts = [box.start[dim] for box in every]
        stops = [box.stop[dim] for box in every]
        low, step = min(starts), steps[-1]
        lows.append(low)
        steps.append(step * (max(stops) - low + 1))
        a, b = (cycle([(x - low) * step for x in ends]) for ends in (starts, stops))
        up, down = (
            [*map(add, up, a), *map(add, down, b)],
            [*map(add, down, a), *map(add, up, b)],
        )
    rounds = slice(len(boxes), None, len(every))
    up[rounds], down[rounds] = down[rounds], up[rounds]  # the target is wanted, not given
    plus, minus = Counter(up), Counter(down)
    return {
        tuple(c % after // step + low for low, step, after in zip(lows, steps, steps[1:])): n
        for c in {c for c, _ in plus.items() ^ minus.items()}
        if (n := plus[c] - minus[c])
    }


def _nonzero(difference: dict[Point, int]) -> Iterator[tuple[Point, Point]]:
    """Disjoint boxes on which the function with that mixed difference is constant and not 0.

    Between two neighbouring planes across the first dimension the function does not change along
    it; what it is there, in the dimensions left, is the sum of the differences passed so far.
    """
    if () in difference:
        yield (), ()
        return
    planes: dict[int, dict[Point, int]] = defaultdict(dict)
    for corner, weight in difference.items():
        planes[corner[0]][corner[1:]] = weight
    passed: dict[Point, int] = {}
    before = None
    for here in sorted(planes):
        for start, stop in _nonzero(passed):
            assert before is not None  # nothing is passed before the first plane
            yield (before, *start), (here, *stop)
        for corner, weight in planes[here].items():
            total = passed.pop(corner, 0) + weight
            if total:
                passed[corner] = total
        before = here


def _name(place: ZRange, boxes: Sequence[ZRange], target: ZRange) -> Iterator[Defect]:
    """The defects in a place where (times covered) - (times wanted) is constant.

    Different boxes may cover it in different places: it is cut until those named cover all of it.
    """
    waiting = [place]
    while waiting:
        piece = waiting.pop()
        by = tuple(number for number, box in enumerate(boxes) if box._holds(piece.start))
        inside = target._holds(piece.start)
        parts = (piece & target,) if inside else piece.difference(target)
        core = next(part for part in parts if part._holds(piece.start))
        for number in by:
            core &= boxes[number]
        yield Defect(core, by, inside)
        waiting += reversed(piece.difference(core))
