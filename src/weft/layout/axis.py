"""Axes of a mesh, whole or in part, as digits of a cell's coordinate: joined, and kept apart."""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import LayoutError
from weft.space import Digit
from weft.text.shardy import Axis, write_axis


def as_number(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """The digits as one number, major to minor: neighbours on an axis joined, strides set.

    >>> as_number([Digit(0, 4, 2, 1), Digit(0, 1, 4, 1), Digit(1, 1, 3, 1)])
    (Digit(dim=0, divisor=1, radix=8, stride=3), Digit(dim=1, divisor=1, radix=3, stride=1))
    """
    joined: list[Digit] = []
    for digit in digits:
        last = joined[-1] if joined else None
        if last and last.dim == digit.dim and last.divisor == digit.divisor * digit.radix:
            joined[-1] = digit._replace(radix=last.radix * digit.radix)
        else:
            joined.append(digit)
    weight = 1
    for place, digit in reversed(list(enumerate(joined))):
        joined[place] = digit._replace(stride=weight)
        weight *= digit.radix
    return tuple(joined)


def check_apart(uses: Iterable[tuple[Digit, Axis, str]]) -> None:
    """Refuse two uses of one axis, or of parts of it that are not different digits.

    Each use is a digit, its axis and what it does there: `cuts dimension 0`.
    """
    seen: dict[int, list[tuple[Digit, Axis, str]]] = {}
    for digit, axis, role in uses:
        for other, other_axis, other_role in seen.setdefault(digit.dim, []):
            minor, major = sorted((digit, other), key=lambda each: each.divisor)
            if digit == other:
                both = f"{role} twice" if role == other_role else f"{other_role} and {role}"
                raise LayoutError(f"axis {write_axis(axis)} {both}")
            if major.divisor % (minor.divisor * minor.radix):
                wrong = "overlap" if major.divisor < minor.divisor * minor.radix else "do not nest"
                raise LayoutError(
                    f"axes {write_axis(other_axis)} and {write_axis(axis)} {wrong}: "
                    f"the first {other_role}, the second {role}"
                )
        seen[digit.dim].append((digit, axis, role))
