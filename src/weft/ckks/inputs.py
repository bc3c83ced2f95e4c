"""Which inputs of a graph are encrypted, and the range that each is declared to lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.lang import Graph
from weft.values import counted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LISTED = 8
"""Parameters in the clear that a plan's first line names, before it counts the rest."""

Limits: TypeAlias = float | Sequence[float]
"""A range as a caller declares it: (low, high), or one number r for (-r, r)."""


class Range(NamedTuple):
    """A closed interval of real numbers.

    >>> print(Range(-1, 1), Range(0, 2.5).magnitude)
    [-1, 1] 2.5
    """

    low: float
    high: float

    @property
    def magnitude(self) -> float:
        """The largest absolute value in it."""
        return max(abs(self.low), abs(self.high))

    @classmethod
    def of(cls, limits: Limits, name: str) -> Range:
        """Return the range that a caller declares for an input.

        >>> Range.of(2, "x"), Range.of((0, 1), "x")
        (Range(low=-2.0, high=2.0), Range(low=0.0, high=1.0))
        """
        try:
            array = np.asarray(limits, np.float64)
            low, high = (-array, array) if array.ndim == 0 else array
            made = cls(float(low), float(high))
        except (TypeError, ValueError):
            made = cls(1.0, -1.0)
        if not (isfinite(made.low) and isfinite(made.high) and made.low <= made.high):
            raise WeftError(
                f"the range of {name} is {limits!r}: expected r for [-r, r], or (low, high)"
            )
        return made

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


DEFAULT_RANGE = Range(-1.0, 1.0)
"""The range of an encrypted input whose range is not declared."""


def encrypted_inputs(graph: Graph, stated: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the inputs that are encrypted: those stated, or the only one that is no parameter.

    >>> from weft.lang import ops, trace
    >>> graph = trace(lambda x, w: ops.linear(x, w), (1, 8), (8, 4), parameters=["w"])
    >>> encrypted_inputs(graph, None)
    ('x',)
    >>> encrypted_inputs(trace(lambda x, y: x * y, (8,), (8,)), None)
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: which input is encrypted? 2 are not known to be parameters: x, y
    hint: state it: encrypted=["x"]; or declare the parameters: trace(..., parameters=[...])
    """
    names = [value.name for value in graph.inputs]
    if stated is not None:
        chosen = (stated,) if isinstance(stated, str) else tuple(dict.fromkeys(stated))
        for name in chosen:
            if name not in names:
                raise WeftError(f"there is no input {name} to encrypt", hint=f"inputs: {names}")
        if not chosen:
            raise WeftError("no input is stated to be encrypted", hint=f"inputs: {names}")
        return chosen
    data = [name for name in names if name not in graph.parameters]
    if len(data) == 1:
        return (data[0],)
    if not names:
        raise WeftError("the graph has no input that could be encrypted")
    if not data:
        raise WeftError(
            f"which input is encrypted? all are parameters: {', '.join(names)}",
            hint=f'state it: encrypted=["{names[0]}"]',
        )
    raise WeftError(
        f"which input is encrypted? {len(data)} are not known to be parameters: {', '.join(data)}",
        hint=f'state it: encrypted=["{data[0]}"]; or declare the parameters: '
        "trace(..., parameters=[...])",
    )


def declared_ranges(
    encrypted: Sequence[str], given: Limits | Mapping[str, Limits] | None
) -> dict[str, Range]:
    """Return the range of each encrypted input: as declared, or [-1, 1].

    >>> declared_ranges(["x", "y"], {"y": (0, 255)})["y"]
    Range(low=0.0, high=255.0)
    """
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        return {name: Range.of(given, name) for name in encrypted}
    for name in given:
        if name not in encrypted:
            raise WeftError(
                f"a range is declared for {name}, which is not encrypted",
                hint=f"encrypted: {', '.join(encrypted)}",
            )
    return {
        name: Range.of(given[name], name) if name in given else DEFAULT_RANGE for name in encrypted
    }


def check_range(name: str, values: ArrayLike, limits: Range) -> None:
    """Refuse values outside of the declared range of an input.

    >>> check_range("x", [0.5, 3.0], Range(-1, 1))
    Traceback (most recent call last):
    ...
    weft.errors.WeftError: input x: the value 3 is outside of its declared range [-1, 1]
    hint: 1 of 2 values are outside; scale the input, or plan with ranges={"x": (-1, 3)}
    """
    given = np.asarray(values, np.float64)
    outside = ~((given >= limits.low) & (given <= limits.high))  # NaN is outside
    if not outside.any():
        return
    wrong = given[outside]
    if not np.isfinite(wrong).all():
        raise WeftError(f"input {name}: values must be finite numbers; one is nan or infinite")
    worst = float(wrong[np.argmax(np.maximum(limits.low - wrong, wrong - limits.high))])
    low, high = min(limits.low, float(given.min())), max(limits.high, float(given.max()))
    raise WeftError(
        f"input {name}: the value {worst:g} is outside of its declared range {limits}",
        hint=f"{wrong.size} of {given.size} values are outside; scale the input, or plan with "
        f'ranges={{"{name}": ({low:g}, {high:g})}}',
    )


def headline(
    ranges: Mapping[str, Range], clear: Sequence[str], parameters: Sequence[str], declared: bool
) -> str:
    """Return the first line of a plan: which inputs are encrypted, and which are not.

    >>> headline({"x": DEFAULT_RANGE}, ["mask", "w"], ["w"], declared=True)
    'encrypted: x in [-1, 1]; in the clear: mask, and the parameter w'
    """
    said = ", ".join(f"{name} in {limits}" for name, limits in ranges.items())
    if not declared:
        said += " (the default range)"
    data = [name for name in clear if name not in parameters]
    weights = [name for name in clear if name in parameters]
    parts = [", ".join(data)] if data else []
    if weights:
        more = len(weights) - LISTED
        shown = ", ".join(weights[:LISTED]) + (f" and {more} more" if more > 0 else "")
        kind = "parameter" if len(weights) == 1 else counted(len(weights), "parameter")
        parts.append(f"the {kind} {shown}")
    return f"encrypted: {said}; in the clear: {', and '.join(parts) or 'nothing'}"
