"""The smallest box of integer points that satisfies two-sided linear inequalities.

Rows narrow the box together. Where a row has several variables, each face is then pushed in until
some solution lies on it; most projections have no such row and need no search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import TypeAlias

Row: TypeAlias = tuple[tuple[tuple[int, int], ...], int, int]  # (variable, coefficient)…, bounds
Box: TypeAlias = tuple[list[int], list[int]]  # closed bounds, low and high

BUDGET = 4_000  # boxes examined for one face; one not settled by then stays outside, never inside
ROUNDS = 16  # passes before a box is halved instead: narrowing may creep by one a pass


def bound(
    rows: Iterable[tuple[Sequence[int], int, int]],
    low: Sequence[int | None],
    high: Sequence[int | None],
) -> Box | None:
    """The closed bounds of the solutions of `least <= coefficients · x <= most`, or None.

    A variable without a bound to begin with must stand alone in some row.

    >>> bound([((2, 1), 5, 6)], low=(0, 0), high=(15, 2))
    ([2, 0], [3, 2])
    """
    merged: dict[tuple[tuple[int, int], ...], tuple[int, int]] = {}
    for coefficients, *ends in rows:
        first = next((a for a in coefficients if a), 1)
        g = (gcd(*coefficients) or 1) * (1 if first > 0 else -1)
        terms = tuple((c, a // g) for c, a in enumerate(coefficients) if a)
        least, most = ends if g > 0 else reversed(ends)
        below, above = -(-least // g), most // g
        known = merged.get(terms, (below, above))
        merged[terms] = max(known[0], below), min(known[1], above)
    if any(least > most for least, most in merged.values()):
        return None
    sparse: list[Row] = [(terms, *ends) for terms, ends in merged.items()]
    alone = {terms[0][0]: ends for terms, *ends in sparse if len(terms) == 1}  # coefficient 1 now
    start = [alone[c][0] if x is None else x for c, x in enumerate(low)]
    box = _narrow(sparse, (start, [alone[c][1] if x is None else x for c, x in enumerate(high)]))
    shared = [row for row in sparse if len(row[0]) > 1]
    for variable in sorted({c for terms, _, _ in shared for c, _ in terms}):
        for side, toward in ((0, 1), (1, -1)):
            face = box and _extreme(shared, box, variable, toward)
            if box is None or face is None:
                return None
            box[side][variable] = face
    return box


def _extreme(rows: list[Row], box: Box, variable: int, toward: int) -> int | None:
    """The least (`toward` = 1) or greatest (-1) value of a variable over the solutions in `box`.

    Boxes are halved, the wanted half first, so whatever was set aside before lies further in.
    """
    free = {c for terms, _, _ in rows for c, _ in terms}
    waiting, budget = [box], BUDGET
    while waiting and budget:
        budget -= 1
        narrowed = _narrow(rows, waiting.pop())
        if narrowed is None:
            continue
        low, high = narrowed
        unsettled = [c for c in (variable, *free) if low[c] < high[c]]
        if not unsettled:
            return low[variable]
        cut = unsettled[0]
        middle = (low[cut] + high[cut]) // 2
        left = (low, [*high[:cut], middle, *high[cut + 1 :]])
        right = ([*low[:cut], middle + 1, *low[cut + 1 :]], high)
        waiting += (right, left) if toward > 0 else (left, right)
    return waiting[-1][toward < 0][variable] if waiting else None


def _narrow(rows: list[Row], box: Box) -> Box | None:
    """The box without the margins that some row alone rules out; None when nothing is left."""
    low, high = list(box[0]), list(box[1])
    for _ in range(ROUNDS):
        before = low + high
        for terms, least, most in rows:
            bottom = sum(a * (low[c] if a > 0 else high[c]) for c, a in terms)
            top = sum(a * (high[c] if a > 0 else low[c]) for c, a in terms)
            if bottom > most or top < least:
                return None
            for c, a in terms:
                # What the other terms leave for a * x, then for x.
                first, last = (a * low[c], a * high[c]) if a > 0 else (a * high[c], a * low[c])
                below, above = least - top + last, most - bottom + first
                if a < 0:
                    below, above = -above, -below
                low[c] = max(low[c], -(-below // abs(a)))
                high[c] = min(high[c], above // abs(a))
                if low[c] > high[c]:
                    return None
        if low + high == before:
            break
    return (low, high) if all(a <= b for a, b in zip(low, high)) else None
